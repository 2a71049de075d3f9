// Search of knn.cpp in large clouds: candidates from the leaves of a k-d tree, in a subspace of few dimensions.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/zeros.h>

#include <iterator>
#include <optional>

#include "knn_blocks.h"

namespace vector_neurons {
namespace {

constexpr int64_t TREE_MIN_POINTS = 512;        // from which on a cloud of few dimensions is searched by a tree
constexpr int64_t SUBSPACE_MIN_POINTS = 1536;   // from which on one of more dimensions is, in a subspace
constexpr int64_t SUBSPACE_DIMS[] = {8, 16};    // dimensions of the subspace, the first that suffices
constexpr double SUBSPACE_MIN_VARIANCE = 0.95;  // share of the cloud's variance that a subspace must have
constexpr int64_t RADIUS_MIN_LEAVES = 8;        // leaves around a point that bound the distance of its neighbors

// A cloud in its subspace, (points, dims), and the lengths of the points that were projected.
struct Subspace {
  Tensor points, lengths;
};

// Principal subspace of a cloud's first n points. A cloud of few dimensions is its own subspace. None if the cloud is
// small, or the subspace would have too little of its variance.
std::optional<Subspace> principal_subspace(const Tensor& x, int64_t n) {
  const int64_t dim = x.size(1), max_dims = *std::rbegin(SUBSPACE_DIMS);
  const bool narrow = dim <= DIFFERENCES_MAX_DIM;
  if (dim == 0 || n < (narrow ? TREE_MIN_POINTS : SUBSPACE_MIN_POINTS) || (!narrow && dim <= 2 * max_dims)) return {};
  const Tensor centered = x - x.narrow(0, 0, n).mean(0, true), present = centered.narrow(0, 0, n);
  const Tensor scatter = present.mT().mm(present);
  if (!std::isfinite(scatter.sum().item<double>())) return {};
  if (narrow) return Subspace{x, at::zeros({x.size(0)}, x.options())};
  // Subspace iteration; the axes come out by falling variance.
  Tensor axes = scatter.narrow(1, 0, 2 * max_dims);
  for (int step = 0; step < 3; ++step) axes = scatter.mm(std::get<0>(at::linalg_qr(axes)));
  axes = std::get<0>(at::linalg_qr(axes));
  const Tensor explained = ((axes * scatter.mm(axes)).sum(0) / scatter.trace()).cumsum(0);
  for (const int64_t dims : SUBSPACE_DIMS)
    if (explained[dims - 1].item<double>() > SUBSPACE_MIN_VARIANCE) {
      // In float64: where torch may round products of float32, these must not be.
      const Tensor projected = centered.to(at::kDouble).mm(axes.narrow(1, 0, dims).to(at::kDouble));
      return Subspace{projected.to(x.scalar_type()), centered.norm(2, -1)};
    }
  return {};
}

// The leaves of a k-d tree, and their bounding boxes.
template <typename T>
struct Leaves {
  int64_t dims, count = 0;
  std::vector<int64_t> order, start;  // points leaf by leaf, and where each leaf begins; behind the last the padding,
                                      // which has neighbors but is none
  std::vector<T> coordinates;         // (count, dims, LEAF_POINTS), infinite where a leaf has no point
  std::vector<T> low, high, middle;   // boxes, (dims, count)

  Leaves(const T* x, int64_t points, int64_t n, int64_t dims) : dims(dims), order(points), start{0} {
    std::iota(order.begin(), order.end(), 0);
    split(x, 0, n);
    count = start.size() - 1;
    coordinates.assign(count * dims * LEAF_POINTS, std::numeric_limits<T>::infinity());
    low.resize(dims * count), high.resize(dims * count), middle.resize(dims * count);
    for (int64_t leaf = 0; leaf < count; ++leaf)
      for (int64_t d = 0; d < dims; ++d) {
        T* to = coordinates.data() + (leaf * dims + d) * LEAF_POINTS;
        const int64_t size = start[leaf + 1] - start[leaf];
        for (int64_t i = 0; i < size; ++i) to[i] = x[order[start[leaf] + i] * dims + d];
        const auto [least, most] = std::minmax_element(to, to + size);
        low[d * count + leaf] = *least, high[d * count + leaf] = *most;
        middle[d * count + leaf] = (*least + *most) / 2;
      }
  }

  // Halves points along their widest axis until they fit into a leaf.
  void split(const T* x, int64_t begin, int64_t end) {
    if (end - begin <= LEAF_POINTS) {
      start.push_back(end);
      return;
    }
    std::vector<T> least(dims, std::numeric_limits<T>::infinity()), most(dims, -std::numeric_limits<T>::infinity());
    for (int64_t i = begin; i < end; ++i)
      for (int64_t d = 0; d < dims; ++d) {
        const T value = x[order[i] * dims + d];
        least[d] = std::min(least[d], value), most[d] = std::max(most[d], value);
      }
    int64_t axis = 0;
    for (int64_t d = 1; d < dims; ++d)
      if (most[d] - least[d] > most[axis] - least[axis]) axis = d;
    // Full leaves, but for the last.
    const int64_t half = begin + ((end - begin) / 2 + LEAF_POINTS - 1) / LEAF_POINTS * LEAF_POINTS;
    std::nth_element(order.begin() + begin, order.begin() + half, order.begin() + end,
                     [&](int64_t a, int64_t b) { return x[a * dims + axis] < x[b * dims + axis]; });
    split(x, begin, half);
    split(x, half, end);
  }
};

// Squared distances from a point to those of a leaf.
template <typename T>
NOINLINE void distances_to_leaf(const T* __restrict query, const T* __restrict coordinates, int64_t dims,
                                T* __restrict v) {
  for (int64_t i = 0; i < LEAF_POINTS; ++i) v[i] = 0;
  for (int64_t d = 0; d < dims; ++d)
    for (int64_t i = 0; i < LEAF_POINTS; ++i) {
      const T gap = query[d] - coordinates[d * LEAF_POINTS + i];
      v[i] += gap * gap;
    }
}

// Squared distances from a point to boxes, given by their corners (dims, count).
template <typename T>
NOINLINE void distances_to_boxes(const T* __restrict query, const T* __restrict low, const T* __restrict high,
                                 int64_t dims, int64_t count, T* __restrict v) {
  for (int64_t c = 0; c < count; ++c) v[c] = 0;
  for (int64_t d = 0; d < dims; ++d)
    for (int64_t c = 0; c < count; ++c) {
      const T below = low[d * count + c] - query[d], above = query[d] - high[d * count + c];
      const T gap = below > above ? below : above;
      v[c] += gap > 0 ? gap * gap : T(0);
    }
}

template <typename T>
void search_tree(const Query<T>& original, const Tensor& x, const Subspace& subspace, int64_t* out) {
  const Tensor& projected = subspace.points;
  const int64_t points = x.size(0), n = original.n, k = original.k, dims = projected.size(1);
  const Leaves<T> leaves(projected.const_data_ptr<T>(), points, n, dims);
  const Tensor order = at::from_blob(const_cast<int64_t*>(leaves.order.data()), {points}, at::kLong);
  // Points are stored leaf by leaf, so that neighbors are near in memory, and padded to whole SIMD vectors.
  const Tensor sorted = at::constant_pad_nd(x.index_select(0, order), {0, -x.size(1) & 7}), sizes = sorted.norm(2, -1);
  Query<T> query = original;
  query.rows = sorted.const_data_ptr<T>(), query.canonical = leaves.order.data(), query.dim = sorted.size(1);
  const T* lengths = subspace.lengths.const_data_ptr<T>();
  const T infinity = std::numeric_limits<T>::infinity();
  const double longest = *std::max_element(lengths, lengths + n), unit = std::numeric_limits<T>::epsilon();
  // Padding is processed in groups like leaves, behind them.
  const int64_t dim = query.dim, groups = leaves.count + (points - n + LEAF_POINTS - 1) / LEAF_POINTS;
  at::parallel_for(0, groups, 1, [&](int64_t first, int64_t last) {
    std::vector<T> v, boxes(leaves.count), middle(dims), squares_within;
    std::vector<int64_t> nearest_leaves(leaves.count);
    IndexList near_leaves(leaves.count), near_points(n);
    std::vector<Candidate> candidates;
    T guess = 1;  // of the distance of the k-th neighbor: that of the point before
    for (int64_t group = first; group < last; ++group) {
      const bool present = group < leaves.count;
      const int64_t begin = present ? leaves.start[group] : n + (group - leaves.count) * LEAF_POINTS;
      const int64_t end = present ? leaves.start[group + 1] : std::min(points, begin + LEAF_POINTS);
      // The leaves around this one, enough to bound the distance of the k nearest well.
      for (int64_t d = 0; d < dims; ++d) middle[d] = leaves.middle[d * leaves.count + (present ? group : 0)];
      distances_to_boxes(middle.data(), leaves.middle.data(), leaves.middle.data(), dims, leaves.count, boxes.data());
      const int64_t around = std::min<int64_t>(leaves.count, RADIUS_MIN_LEAVES + 2 * (k + 1) / LEAF_POINTS);
      std::iota(nearest_leaves.begin(), nearest_leaves.end(), 0);
      std::partial_sort(nearest_leaves.begin(), nearest_leaves.begin() + around, nearest_leaves.end(),
                        [&](int64_t a, int64_t b) { return boxes[a] < boxes[b]; });
      v.resize(around * LEAF_POINTS);
      for (int64_t self = begin; self < end; ++self) {
        const int64_t canonical = leaves.order[self];
        const T* position = projected.const_data_ptr<T>() + canonical * dims;
        const double size = sizes.const_data_ptr<T>()[self], own = lengths[canonical];
        for (int64_t i = 0; i < around; ++i) {
          const int64_t leaf = nearest_leaves[i];
          distances_to_leaf(position, leaves.coordinates.data() + leaf * dims * LEAF_POINTS, dims,
                            v.data() + i * LEAF_POINTS);
          if (leaf == group && !query.include_self) v[i * LEAF_POINTS + self - begin] = infinity;
        }
        near_leaves.count = near_points.count = 0;
        // The exact distances of any k points bound those of the k nearest: here of points near in the subspace.
        guess = upper_bound_of_kth(v.data(), around * LEAF_POINTS, k, guess);
        if (guess < infinity) {
          for (int64_t i = 0; i < around; ++i)
            near_points.append_within(v.data() + i * LEAF_POINTS, guess, leaves.start[nearest_leaves[i]],
                                      leaves.start[nearest_leaves[i] + 1]);
          const T* at = query.rows + self * query.dim;
          const double radius = query.search_radius(at, self, size, near_points, squares_within);
          // Distances in the subspace are not larger than in the whole space, up to this error.
          const double error = std::sqrt(double(dims)) * (dim + 8) * unit * (own + longest);
          const double subspace_radius = radius + error;
          const T limit = T(std::min<double>(subspace_radius * subspace_radius, std::numeric_limits<T>::max()));
          near_points.count = 0;
          distances_to_boxes(position, leaves.low.data(), leaves.high.data(), dims, leaves.count, boxes.data());
          near_leaves.append_within(boxes.data(), limit, 0, leaves.count);
          for (const int64_t leaf : near_leaves) {
            distances_to_leaf(position, leaves.coordinates.data() + leaf * dims * LEAF_POINTS, dims, v.data());
            near_points.append_within(v.data(), limit, leaves.start[leaf], leaves.start[leaf + 1]);
          }
          query.remove_beyond(at, radius, near_points);
        }
        query.select(query.rows + self * query.dim, self, size, near_points, candidates, out + canonical * k);
      }
    }
  });
}

}  // namespace
}  // namespace vector_neurons
