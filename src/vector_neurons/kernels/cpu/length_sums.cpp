// Statistics of lengths, for batch norm: sums of n and n² over rows that need not exist (rows.h).

#include <torch/library.h>

#include "block_input.h"

using namespace vector_neurons;

namespace {

template <typename T>
NOINLINE void lengths(Row<T> x, int64_t w, T eps, T* __restrict n) {
  for (int64_t c = 0; c < w; ++c) n[c] = length(x.at(0, c), x.at(1, c), x.at(2, c)) + eps;
}

template <typename T, int J>
NOINLINE void add_moments(const std::array<Row<T>, J> rows, int64_t w, T eps, const T* centre, T* __restrict sums) {
  const int64_t step = rows[0].step;
  const T* b = rows[0].b;
#pragma omp simd
  for (int64_t c = 0; c < w; ++c) {
    const T b0 = b[c], b1 = b[step + c], b2 = b[2 * step + c], middle = centre[c] - eps;
    T first = 0, second = 0;
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      const T* a = rows[j].a;
      const T n = length(a[c] + b0, a[step + c] + b1, a[2 * step + c] + b2) - middle;
      first += n, second += n * n;
    }
    sums[c] += first, sums[w + c] += second;
  }
}

// The variance is a difference of the sums, and small where lengths are nearly equal: hence sums about a centre, the
// lengths of some row, and float64.
template <typename T>
NOINLINE void flush(const T* centre, int64_t w, int64_t count, T* __restrict sums, double* __restrict out) {
  for (int64_t c = 0; c < w; ++c) {
    const double middle = centre[c], sum = sums[c], square = sums[w + c];
    out[c] += sum + count * middle;
    out[w + c] += square + 2 * middle * sum + count * middle * middle;
    sums[c] = sums[w + c] = 0;
  }
}

template <typename T>
Tensor moments_of(const Rows& rows, int64_t w, double eps) {
  const int64_t unit = rows.unit(FLUSH), units = (rows.number + unit - 1) / unit, chunk = rows.chunk(unit) / unit;
  const int64_t chunks = (units + chunk - 1) / chunk;
  std::vector<double> partial(chunks * 2 * w, 0.0);
  at::parallel_for(0, chunks, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    Reader<T> read(rows);
    std::vector<T> centre(w), sums(2 * w);
    for (int64_t c = first; c < last; ++c) {
      const int64_t end = std::min(units, (c + 1) * chunk);
      read.open(c * chunk * unit, std::min(rows.number, end * unit));
      for (int64_t place = c * chunk; place < end; ++place) {
        const int64_t start = rows.unit_at(place) * unit, stop = std::min(rows.number, start + unit);
        if (place == c * chunk) lengths(read(start), w, T(eps), centre.data());
        abreast<ABREAST>(rows, start, stop, [&](int64_t m, auto number) {
          constexpr int J = decltype(number)::value;
          std::array<Row<T>, J> some;
          for (int j = 0; j < J; ++j) some[j] = read(m + j);
          add_moments<T, J>(some, w, T(eps), centre.data(), sums.data());
        });
        flush(centre.data(), w, stop - start, sums.data(), &partial[c * 2 * w]);
      }
    }
  });
  return total(partial, 2, w, rows.a);
}

// Gradient of a row from those of the sums of n and n².
template <typename T>
NOINLINE void length_back(Row<T> x, const T* g, int64_t w, int64_t c0, int64_t c1, T eps, bool add, T* __restrict to,
                       T* __restrict own) {
  const T least = shortest<T>();
#pragma omp simd
  for (int64_t c = c0; c < c1; ++c) {
    const T x0 = x.at(0, c), x1 = x.at(1, c), x2 = x.at(2, c);
    const T n = length(x0, x1, x2);
    const T f = n > least ? (g[c] + 2 * (n + eps) * g[w + c]) / n : T(0);
    const int64_t second = x.step + c, third = 2 * x.step + c;
    if (add) {
      to[c] += f * x0, to[second] += f * x1, to[third] += f * x2;
      own[c] += f * x0, own[second] += f * x1, own[third] += f * x2;
    } else {
      to[c] = f * x0, to[second] = f * x1, to[third] = f * x2;
    }
  }
}

template <typename T>
void moments_back(const Rows& rows, int64_t w, double eps, const T* gradient, const Gradients& to) {
  const Parts parts(rows, w, 1, true);
  parts([&] {
    return [&, read = Reader<T>(rows), sink = Sink<T>(rows, to)](int64_t, int64_t c0, int64_t c1, int64_t first,
                                                                 int64_t last) mutable {
      for (int64_t place = first; place < last; ++place) {
        const int64_t u = rows.unit_at(place);
        for (int64_t m = u * parts.unit; m < (u + 1) * parts.unit; ++m)
          length_back(read(m), gradient, w, c0, c1, T(eps), bool(rows.index), sink.at(m), sink.mine());
        sink.finish(u, c0, c1);
      }
    };
  });
}

// Sums of n and n² over all rows, of their first columns, (2, width) in float64.
Tensor moments(const Tensor& a, const Maybe& b, const Maybe& weight, const Maybe& index, int64_t width, double eps) {
  const Rows rows(a, b, weight, {}, index);
  TORCH_CHECK(width <= rows.columns, "lengths of ", width, " columns were asked of ", rows.columns);
  Tensor out;
  AT_DISPATCH_FLOATING_TYPES(rows.type(), "moments", [&] { out = moments_of<scalar_t>(rows, width, eps); });
  return out;
}

std::tuple<Tensor, Tensor> moments_backward(const Tensor& grad, const Tensor& a, const Maybe& b, const Maybe& index,
                                            int64_t width, double eps) {
  const Rows rows(a, b, {}, {}, index);
  TORCH_CHECK(!index || width % LANES == 0, "the width of edges must be a multiple of ", LANES);
  TORCH_CHECK(grad.sizes() == at::IntArrayRef({2, width}) && width <= rows.columns, "two sums of ", width, " columns");
  Gradients to(rows);
  if (width < rows.columns) to.a.zero_(), to.b.zero_();
  const Tensor g = grad.to(a.scalar_type()).contiguous();
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "moments_backward",
                             [&] { moments_back<scalar_t>(rows, width, eps, g.const_data_ptr<scalar_t>(), to); });
  return {to.a, b && !index ? to.a.sum(1, true) : to.b};
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("length_sums", &moments);
  m.impl("length_sums_backward", &moments_backward);
}
