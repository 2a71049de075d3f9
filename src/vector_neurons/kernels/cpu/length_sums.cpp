// Statistics of a batch norm of lengths: sums of n and n² over the rows of a factored input (block_input.h).

#include <torch/library.h>

#include "block_gradients.h"

using namespace vector_neurons;

namespace {

template <typename T>
NOINLINE void compute_lengths(SummedRow<T> x, int64_t w, T eps, T* __restrict n) {
  for (int64_t c = 0; c < w; ++c) n[c] = length(x.at(0, c), x.at(1, c), x.at(2, c)) + eps;
}

// Adds n - center and its square, for J rows with the same row of `b`, to sums (2, w).
template <typename T, int J>
NOINLINE void add_lengths(const std::array<SummedRow<T>, J> rows, int64_t w, T eps, const T* center,
                          T* __restrict sums) {
  const int64_t stride = rows[0].stride;
  const T* b = rows[0].b;
#pragma omp simd
  for (int64_t c = 0; c < w; ++c) {
    const T b0 = b[c], b1 = b[stride + c], b2 = b[2 * stride + c], middle = center[c] - eps;
    T first = 0, second = 0;
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      const T* a = rows[j].a;
      const T n = length(a[c] + b0, a[stride + c] + b1, a[2 * stride + c] + b2) - middle;
      first += n, second += n * n;
    }
    sums[c] += first, sums[w + c] += second;
  }
}

// Adds partial sums about a center to sums about zero, in float64, and resets them. The variance is a difference of
// these sums, and small where lengths are nearly equal; without the center (the lengths of any row) and float64 it
// would cancel.
template <typename T>
NOINLINE void flush_sums(const T* center, int64_t w, int64_t count, T* __restrict sums, double* __restrict out) {
  for (int64_t c = 0; c < w; ++c) {
    const double middle = center[c], sum = sums[c], square = sums[w + c];
    out[c] += sum + count * middle;
    out[w + c] += square + 2 * middle * sum + count * middle * middle;
    sums[c] = sums[w + c] = 0;
  }
}

template <typename T>
Tensor length_sums_of(const BlockInput& input, int64_t w, double eps) {
  const int64_t unit = input.rows_per_unit(ROWS_PER_PARTIAL_SUM), units = (input.num_rows + unit - 1) / unit;
  const int64_t chunk = input.chunk_rows(unit) / unit, chunks = (units + chunk - 1) / chunk;
  std::vector<double> partial(chunks * 2 * w, 0.0);
  at::parallel_for(0, chunks, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    RowReader<T> read(input);
    std::vector<T> center(w), sums(2 * w);
    for (int64_t c = first; c < last; ++c) {
      const int64_t end = std::min(units, (c + 1) * chunk);
      read.load_chunk(c * chunk * unit, std::min(input.num_rows, end * unit));
      for (int64_t position = c * chunk; position < end; ++position) {
        const int64_t start = input.unit_at(position) * unit, stop = std::min(input.num_rows, start + unit);
        if (position == c * chunk) compute_lengths(read(start), w, T(eps), center.data());
        for_row_blocks<ROW_BLOCK>(input, start, stop, [&](int64_t m, auto count) {
          constexpr int J = decltype(count)::value;
          std::array<SummedRow<T>, J> rows;
          for (int j = 0; j < J; ++j) rows[j] = read(m + j);
          add_lengths<T, J>(rows, w, T(eps), center.data(), sums.data());
        });
        flush_sums(center.data(), w, stop - start, sums.data(), &partial[c * 2 * w]);
      }
    }
  });
  return add_partial_sums(partial, 2, w, input.a);
}

// Gradient of one row, from the gradients g (2, w) of the sums of n and n²; written, or added to both summands.
template <typename T>
NOINLINE void add_length_gradient(SummedRow<T> x, const T* g, int64_t w, int64_t c0, int64_t c1, T eps, bool add,
                                  T* __restrict to, T* __restrict own) {
  const T least = smallest_length<T>();
#pragma omp simd
  for (int64_t c = c0; c < c1; ++c) {
    const T x0 = x.at(0, c), x1 = x.at(1, c), x2 = x.at(2, c);
    const T n = length(x0, x1, x2);
    const T f = n > least ? (g[c] + 2 * (n + eps) * g[w + c]) / n : T(0);
    const int64_t second = x.stride + c, third = 2 * x.stride + c;
    if (add) {
      to[c] += f * x0, to[second] += f * x1, to[third] += f * x2;
      own[c] += f * x0, own[second] += f * x1, own[third] += f * x2;
    } else {
      to[c] = f * x0, to[second] = f * x1, to[third] = f * x2;
    }
  }
}

template <typename T>
void length_sums_gradients(const BlockInput& input, int64_t w, double eps, const T* gradient,
                           const InputGradients& to) {
  const BackwardParts parts(input, w, 1, true);
  parts([&] {
    return [&, read = RowReader<T>(input), writer = GradientWriter<T>(input, to)](
               int64_t, int64_t c0, int64_t c1, int64_t first, int64_t last) mutable {
      for (int64_t position = first; position < last; ++position) {
        const int64_t u = input.unit_at(position);
        for (int64_t m = u * parts.unit; m < (u + 1) * parts.unit; ++m)
          add_length_gradient(read(m), gradient, w, c0, c1, T(eps), bool(input.neighbors), writer.destination(m),
                              writer.point_gradient());
        writer.finish_point(u, c0, c1);
      }
    };
  });
}

// Sums of n and n² over all rows, for the first `width` columns: (2, width) in float64.
Tensor length_sums(const Tensor& a, const Maybe& b, const Maybe& weight, const Maybe& neighbors, int64_t width,
                   double eps) {
  const BlockInput input(a, b, weight, {}, neighbors);
  TORCH_CHECK(width <= input.columns, "width is ", width, ", more than the ", input.columns, " columns of the rows");
  Tensor out;
  AT_DISPATCH_FLOATING_TYPES(input.dtype(), "length_sums", [&] { out = length_sums_of<scalar_t>(input, width, eps); });
  return out;
}

std::tuple<Tensor, Tensor> length_sums_backward(const Tensor& grad, const Tensor& a, const Maybe& b,
                                                const Maybe& neighbors, int64_t width, double eps) {
  const BlockInput input(a, b, {}, {}, neighbors);
  TORCH_CHECK(!neighbors || width % LANES == 0, "the width of edges must be a multiple of ", LANES);
  TORCH_CHECK(grad.sizes() == at::IntArrayRef({2, width}) && width <= input.columns, "two sums of ", width, " columns");
  InputGradients to(input);
  if (width < input.columns) to.a.zero_(), to.b.zero_();
  const Tensor g = grad.to(a.scalar_type()).contiguous();
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "length_sums_backward", [&] {
    length_sums_gradients<scalar_t>(input, width, eps, g.const_data_ptr<scalar_t>(), to);
  });
  return {to.a, b && !neighbors ? to.a.sum(1, true) : to.b};
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("length_sums", &length_sums);
  m.impl("length_sums_backward", &length_sums_backward);
}
