// Statistics of lengths, for batch norm: sums of n and n² over rows that need not exist (rows.h).

#include <torch/library.h>

#include "rows.h"

using namespace vector_neurons;

namespace {

// In float64: the variance is a difference of these sums, and small where lengths are nearly equal.
template <typename T>
inline void add_moments(const T* __restrict x, int64_t w, T eps, double* __restrict sums) {
#pragma omp simd
  for (int64_t c = 0; c < w; ++c) {
    const double n = length(x, c, w) + eps;
    sums[c] += n;
    sums[w + c] += n * n;
  }
}

template <typename T>
Tensor moments_of(const Tensor& a, const Maybe& b, const Maybe& index, int64_t k, double eps) {
  const Rows<T> rows = rows_of<T>(a, b, index);
  const Shape s = shape_of(a, index, k);
  const int64_t w = rows.width, chunks = (s.groups + CHUNK - 1) / CHUNK;
  std::vector<double> partial(chunks * 2 * w, 0.0);
  in_chunks(s.groups, [&](int64_t chunk, int64_t begin, int64_t end) {
    std::vector<T> x(3 * w);
    for (int64_t m = begin * k; m < end * k; ++m) {
      rows.load(m, x.data());
      add_moments(x.data(), w, T(eps), &partial[chunk * 2 * w]);
    }
  });
  return total(partial, 2, w, a);
}

// Gradient of a row from those of the sums of n and n².
template <typename T>
inline void length_back(const T* __restrict x, const T* __restrict g, int64_t w, int64_t c0, int64_t c1, T eps,
                        T* __restrict gx) {
  const T least = shortest<T>();
#pragma omp simd
  for (int64_t c = c0; c < c1; ++c) {
    const T n = length(x, c, w);
    const T f = n > least ? (g[c] + 2 * (n + eps) * g[w + c]) / n : T(0);
    gx[c] = f * x[c], gx[w + c] = f * x[w + c], gx[2 * w + c] = f * x[2 * w + c];
  }
}

template <typename T>
Tensor moments_back(const Rows<T>& rows, int64_t total_rows, int64_t pool, double eps, const T* gradient,
                    const Pair& to) {
  const int64_t w = rows.width, size = rows.weight ? rows.inputs * w : 0;
  const Tasks tasks(rows, total_rows, pool, true);
  std::vector<double> partial(tasks.parts() * size, 0.0);
  at::parallel_for(0, tasks.count, 1, [&](int64_t first_task, int64_t last_task) {
    std::vector<T> x(3 * w), g(3 * w);
    Sink<T> sink(rows, pointer<T>(to.a), pointer<T>(to.b));
    for (int64_t task = first_task; task < last_task; ++task) {
      const int64_t c0 = tasks.first(task), c1 = tasks.last(task);
      for (int64_t u = tasks.begin(task); u < tasks.end(task); ++u) {
        for (int64_t m = u * tasks.unit; m < (u + 1) * tasks.unit; ++m) {
          rows.load(m, x.data());
          length_back(x.data(), gradient, w, c0, c1, T(eps), g.data());
          sink.take(m, g.data(), c0, c1);
        }
        sink.finish(u, c0, c1);
      }
      sink.hand_over(partial.data() + tasks.part(task) * size);
    }
  });
  return total(partial, 1, size, to.a);
}

// Sums of n and n² over all rows, (2, width) in float64.
Tensor moments(const Tensor& a, const Maybe& b, const Maybe& index, int64_t pool, double eps) {
  check(a, b, index, true);
  check_neighbours(index, a.size(1));
  Tensor out;
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "moments", [&] { out = moments_of<scalar_t>(a, b, index, pool, eps); });
  return out;
}

std::tuple<Tensor, Tensor> moments_backward(const Tensor& grad, const Tensor& a, const Maybe& b, const Maybe& index,
                                            int64_t pool, double eps) {
  check(a, b, index, true);
  check_neighbours(index, a.size(1));
  Pair to(a, b, index);
  const Tensor g = grad.to(a.scalar_type()).contiguous();
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "moments_backward", [&] {
    const auto rows = rows_of<scalar_t>(a, b, index);
    const int64_t count = shape_of(a, index, pool).rows;
    to.complete(b, index, moments_back<scalar_t>(rows, count, pool, eps, g.const_data_ptr<scalar_t>(), to));
  });
  return {to.a, to.b};
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("moments", &moments);
  m.impl("moments_backward", &moments_backward);
}
