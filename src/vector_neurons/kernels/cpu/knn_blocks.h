// Brute-force search of knn.cpp: candidates from blocks of the distance matrix.

#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "knn_candidates.h"

namespace vector_neurons {
namespace {

using at::Tensor;

constexpr int64_t BLOCK_ELEMENTS = 1 << 20;   // of the distance matrix, at most
constexpr int64_t DIFFERENCES_MAX_DIM = 8;    // up to this dimension, distances come from differences, not products
constexpr int64_t GROUP_SIZE = 16;            // distances that are skipped together by their minimum, at most

// Whether products in bfloat16 are faster than in float32 here.
bool has_fast_bfloat16() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bf16") && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

// Whether the user allows torch to round products of float32 to bfloat16. There are two settings for it, and torch
// throws where they differ.
bool may_round_products() {
  try {
    return at::globalContext().float32MatmulPrecision() != at::Float32MatmulPrecision::HIGHEST;
  } catch (const c10::Error&) {
    return true;
  }
}

// The minimum of each group of n values; value i belongs to group i % groups.
template <typename T>
NOINLINE void group_minima(const T* __restrict v, int64_t n, int64_t groups, T* __restrict least) {
  std::fill(least, least + groups, std::numeric_limits<T>::infinity());
  for (int64_t start = 0; start < n; start += groups) {
    const int64_t count = std::min(groups, n - start);
    for (int64_t g = 0; g < count; ++g) least[g] = v[start + g] < least[g] ? v[start + g] : least[g];
  }
}

// Lower bounds of the squared distances from a point of squared length `own`, from its products with all points, which
// are wrong by up to `slack` times the other point's length.
template <typename P, typename T>
NOINLINE void distances_from_products(const P* __restrict product, const T* __restrict square,
                                      const T* __restrict length, T own, T slack, int64_t n, T* __restrict v) {
  for (int64_t j = 0; j < n; ++j) v[j] = square[j] + own - 2 * T(product[j]) - slack * length[j];
}

// Squared distances from one point, from differences of coordinates (dim, points).
template <typename T>
NOINLINE void distances_from_differences(const T* query, const T* columns, int64_t points, int64_t dim, int64_t n,
                                         T* __restrict v) {
  std::fill(v, v + n, T(0));
  for (int64_t d = 0; d < dim; ++d) {
    const T* __restrict column = columns + d * points;
    for (int64_t j = 0; j < n; ++j) v[j] += (query[d] - column[j]) * (query[d] - column[j]);
  }
}

// Products are computed in P: those in bfloat16 are wrong by a percent, and still bound distances from below. Searches
// from the rows from `begin` on; with `selves`, these are places that come behind the points, and which point each is.
template <typename T, typename P>
void search_blocks(const Query<T>& query, const Tensor& x, int64_t begin, const int64_t* selves, int64_t* out) {
  const int64_t points = x.size(0), dim = x.size(1), n = query.n, k = query.k;
  const bool by_products = dim > DIFFERENCES_MAX_DIM;
  const Tensor columns = x.mT().contiguous();
  Tensor rounded, transposed, squares, lengths;
  if (by_products) {
    // Centered, points are shorter, and so are the errors of their products.
    const Tensor centered = x - x.narrow(0, 0, n).mean(0, true).nan_to_num(0, 0, 0);
    rounded = centered.to(c10::CppTypeToScalarType<P>::value), transposed = rounded.mT().contiguous();
    squares = centered.square().sum(-1), lengths = centered.norm(2, -1);
  }
  const T *square = by_products ? squares.const_data_ptr<T>() : nullptr,
          *length = by_products ? lengths.const_data_ptr<T>() : nullptr;
  const double longest = by_products ? *std::max_element(length, length + n) : 0,
               unit = std::numeric_limits<T>::epsilon();
  // Products that overflow bound nothing.
  const bool overflows = by_products && !(8 * longest * longest < std::numeric_limits<T>::max());
  // Relative error of a product of two values rounded to bfloat16, which is rounded to bfloat16 itself.
  const bool half = std::is_same_v<P, at::BFloat16> || (std::is_same_v<P, float> && may_round_products());
  const double rounding = half ? 1.52 * std::numeric_limits<at::BFloat16>::epsilon() : 0;
  const int64_t groups = std::max((n + GROUP_SIZE - 1) / GROUP_SIZE, std::min(n, 4 * k));
  const int64_t block_rows = std::clamp<int64_t>(BLOCK_ELEMENTS / std::max<int64_t>(points, 1), 16, 256);
  at::parallel_for(0, (points - begin + block_rows - 1) / block_rows, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    Tensor products;
    if (by_products) products = at::empty({block_rows, points}, rounded.options());
    std::vector<T> distances(n), minima(groups), squares_within;
    T* v = distances.data();
    T guess = 1;  // of the k-th smallest minimum: that of the point before
    IndexList near_groups(groups), near_points(n);
    std::vector<Candidate> candidates;
    const int64_t stop = std::min(points, begin + last * block_rows);
    for (int64_t start = begin + first * block_rows; start < stop; start += block_rows) {
      const int64_t rows = std::min(block_rows, points - start);
      if (by_products) {
        Tensor some = products.narrow(0, 0, rows);
        at::mm_out(some, rounded.narrow(0, start, rows), transposed);
      }
      for (int64_t row = start; row < start + rows; ++row) {
        const T* at = query.rows + row * dim;
        const double size = length_of(at, dim), own = by_products ? length[row] : 0;
        const int64_t self = selves ? selves[row - begin] : row < n ? row : -1;
        double error = 0;  // of v, beyond the slack
        if (by_products) {
          distances_from_products(products.const_data_ptr<P>() + (row - start) * points, square, length, square[row],
                                  T(2 * rounding * own), n, v);
          error = 2 * (dim + 8) * unit * (longest * (longest + own) + own * own);
        } else {
          distances_from_differences(at, columns.const_data_ptr<T>(), points, dim, n, v);
        }
        const T infinity = std::numeric_limits<T>::infinity();
        if (overflows) std::fill(v, v + n, -infinity);
        if (self >= 0) v[self] = query.include_self ? -infinity : infinity;
        group_minima(v, n, groups, minima.data());
        guess = upper_bound_of_kth(minima.data(), groups, k, guess);
        const auto collect_within = [&](T limit) {
          near_groups.count = near_points.count = 0;
          near_groups.append_within(minima.data(), limit, 0, groups);
          for (const int64_t g : near_groups) near_points.append_within(v + g, limit, g, n, groups);
        };
        // At least k points, whose exact distances give the radius; then all points that may be within it.
        collect_within(guess);
        if (guess < infinity && !by_products) {
          squares_within.clear();  // v is accurate here
          for (const int64_t point : near_points) squares_within.push_back(std::max(v[point], T(0)));
          const double radius = query.radius_of(squares_within, size), squared = radius * radius;
          const T limit = std::min<double>(squared + (2 * dim + 8) * unit * squared, std::numeric_limits<T>::max());
          if (limit <= guess)
            near_points.keep_within(v, limit);  // none is farther than the guess
          else
            collect_within(limit);
        } else if (guess < infinity) {
          const double radius = query.search_radius(at, self, size, near_points, squares_within);
          collect_within(T(std::min<double>(radius * radius + error, std::numeric_limits<T>::max())));
        }
        query.select(at, self, size, near_points, candidates, out + (row - begin) * k);
      }
    }
  });
}

}  // namespace
}  // namespace vector_neurons
