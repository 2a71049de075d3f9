// Farthest-point samples. Points come in canonical order, so ties go to the lower index, as in geometry/sampling.py.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "noinline.h"

using at::Tensor;

namespace {

// Lowers the squared distances to the nearest chosen point by those to `pick`, and returns the largest; coordinates are
// (dim, points).
template <typename T>
NOINLINE T lower_distances(const T* x, int64_t points, int64_t dim, int64_t pick, T* __restrict squared,
                           T* __restrict nearest) {
  std::fill(squared, squared + points, T(0));
  for (int64_t d = 0; d < dim; ++d, x += points) {
    const T at = x[pick];
#pragma omp simd
    for (int64_t i = 0; i < points; ++i) squared[i] += (x[i] - at) * (x[i] - at);
  }
  T largest = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < points; ++i) {
    nearest[i] = squared[i] < nearest[i] ? squared[i] : nearest[i];
    largest = largest < nearest[i] ? nearest[i] : largest;
  }
  return largest;
}

// The first of the values that are at least `least`; the first of all if none is.
template <typename T>
NOINLINE int64_t first_of(const T* values, int64_t count, T least) {
  constexpr int64_t STEP = 32;  // values are compared at a time
  for (int64_t start = 0; start < count; start += STEP) {
    const int64_t stop = std::min(count, start + STEP);
    int any = 0;
#pragma omp simd reduction(| : any)
    for (int64_t i = start; i < stop; ++i) any |= values[i] >= least;
    if (any)
      for (int64_t i = start; i < stop; ++i)
        if (values[i] >= least) return i;
  }
  return 0;
}

// x (clouds, dim, points) and the distances (clouds, points) by which the first point is chosen, -inf at padding;
// distances closer than the tolerance of their cloud are equal.
Tensor farthest_canonical(const Tensor& x, const Tensor& first, const Tensor& tolerance, int64_t n) {
  TORCH_CHECK(x.dim() == 3 && x.is_contiguous() && first.is_contiguous() && tolerance.is_contiguous() &&
                  first.sizes() == at::IntArrayRef({x.size(0), x.size(2)}) && tolerance.numel() == x.size(0) &&
                  n <= x.size(2),
              "farthest_canonical takes clouds (clouds, dim, points), distances (clouds, points) and tolerances");
  const int64_t dim = x.size(1), points = x.size(2);
  Tensor out = at::empty({x.size(0), n}, x.options().dtype(at::kLong));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "farthest_canonical", [&] {
    constexpr scalar_t inf = std::numeric_limits<scalar_t>::infinity();
    at::parallel_for(0, x.size(0), 1, [&](int64_t begin, int64_t end) {
      std::vector<scalar_t> squared(points), nearest(points);
      for (int64_t cloud = begin; cloud < end; ++cloud) {
        const scalar_t* distance = first.const_data_ptr<scalar_t>() + cloud * points;
        const scalar_t close = tolerance.const_data_ptr<scalar_t>()[cloud];
        for (int64_t i = 0; i < points; ++i) nearest[i] = distance[i] == -inf ? -inf : inf;
        int64_t pick = first_of(distance, points, *std::max_element(distance, distance + points) - close);
        for (int64_t step = 0; step < n; ++step) {
          out.data_ptr<int64_t>()[cloud * n + step] = pick;
          nearest[pick] = -inf;  // a chosen point is never chosen again, not even among duplicates
          const scalar_t largest = lower_distances(x.const_data_ptr<scalar_t>() + cloud * dim * points, points, dim,
                                                   pick, squared.data(), nearest.data());
          const scalar_t least = std::max(std::sqrt(std::max(largest, scalar_t(0))) - close, scalar_t(0));
          pick = first_of(nearest.data(), points, least * least);
        }
      }
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) { m.impl("farthest_canonical", &farthest_canonical); }
