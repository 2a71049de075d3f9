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

// Lowers the distances to the nearest chosen point by those to `pick`, and returns the largest; coordinates are
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
    const T distance = std::sqrt(squared[i]);
    nearest[i] = distance < nearest[i] ? distance : nearest[i];
    largest = largest < nearest[i] ? nearest[i] : largest;
  }
  return largest;
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
        scalar_t largest = *std::max_element(distance, distance + points);
        for (int64_t i = 0; i < points; ++i) nearest[i] = distance[i] == -inf ? -inf : inf;
        for (int64_t step = 0; step < n; ++step) {
          int64_t pick = 0;  // the first of the farthest
          while (pick < points - 1 && !(distance[pick] >= largest - close)) ++pick;
          out.data_ptr<int64_t>()[cloud * n + step] = pick;
          nearest[pick] = -inf;  // a chosen point is never chosen again, not even among duplicates
          largest = lower_distances(x.const_data_ptr<scalar_t>() + cloud * dim * points, points, dim, pick,
                                    squared.data(), nearest.data());
          distance = nearest.data();
        }
      }
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) { m.impl("farthest_canonical", &farthest_canonical); }
