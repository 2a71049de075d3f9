// What both searches of knn.cpp share: lists of candidates, their exact distances, and how ties are broken.
// (Included by one translation unit: internal linkage lets compilers inline freely.)

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "noinline.h"

namespace vector_neurons {
namespace {

constexpr int64_t LEAF_POINTS = 32;  // points of a box of the k-d tree, and spare room of an index list

struct Candidate {
  double distance;
  int64_t index;
  bool operator<(const Candidate& other) const {
    return distance < other.distance || (distance == other.distance && index < other.index);
  }
};

template <typename T>
NOINLINE int64_t count_within(const T* v, int64_t n, T limit) {
  int64_t count = 0;
#pragma omp simd reduction(+ : count)
  for (int64_t i = 0; i < n; ++i) count += v[i] <= limit;
  return count;
}

// The smallest and the largest finite of n values.
template <typename T>
NOINLINE std::pair<T, T> finite_range(const T* v, int64_t n) {
  const T infinity = std::numeric_limits<T>::infinity();
  T low = infinity, high = -infinity;
#pragma omp simd reduction(min : low) reduction(max : high)
  for (int64_t i = 0; i < n; ++i) {
    const T above = v[i] > -infinity ? v[i] : infinity, below = v[i] < infinity ? v[i] : -infinity;
    low = above < low ? above : low, high = below > high ? below : high;
  }
  return {low, high};
}

// An upper bound of the k-th smallest of n values which few more than k values do not exceed, unless they tie. By
// bisection, starting from a guess.
template <typename T>
T upper_bound_of_kth(const T* v, int64_t n, int64_t k, T guess) {
  auto [low, high] = finite_range(v, n);
  if (count_within(v, n, high) < k) return std::numeric_limits<T>::infinity();
  for (int step = 0; step < 24; ++step) {
    if (!(low < guess && guess < high)) guess = low + (high - low) / 2;
    const int64_t count = count_within(v, n, guess);
    (count < k ? low : high) = guess;
    if (count >= k && count <= k + k / 8) break;
  }
  return high;
}

// A list of up to `size` indices, with spare room for branchless appends.
struct IndexList {
  std::vector<int64_t> room;
  int64_t count = 0;

  explicit IndexList(int64_t size) : room(size + LEAF_POINTS) {}
  int64_t* begin() { return room.data(); }
  int64_t* end() { return room.data() + count; }

  // Appends the indices from `first` to `last`, in steps, whose value is within a limit. Without a branch: it would be
  // unpredictable.
  template <typename T>
  void append_within(const T* v, T limit, int64_t first, int64_t last, int64_t step = 1) {
    int64_t* next = end();
    for (int64_t i = first; i < last; i += step, v += step) *next = i, next += *v <= limit;
    count = next - begin();
  }

  // Keeps the indices whose value is within a limit, in their order.
  template <typename T>
  void keep_within(const T* v, T limit) {
    int64_t* next = begin();
    for (const int64_t i : *this) *next = i, next += v[i] <= limit;
    count = next - begin();
  }
};

// Accumulated in A.
template <typename A, typename T>
NOINLINE A squared_distance_of_many(const T* __restrict a, const T* __restrict b, int64_t dim) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < dim; ++d) sum += (A(a[d]) - A(b[d])) * (A(a[d]) - A(b[d]));
  return sum;
}

template <typename A, typename T>
A squared_distance(const T* a, const T* b, int64_t dim) {
  if (dim != 3) return squared_distance_of_many<A>(a, b, dim);
  const A x = A(a[0]) - A(b[0]), y = A(a[1]) - A(b[1]), z = A(a[2]) - A(b[2]);
  return x * x + y * y + z * z;
}

template <typename T>
NOINLINE double length_of(const T* x, int64_t dim) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < dim; ++d) sum += double(x[d]) * double(x[d]);
  return std::sqrt(sum);
}

// Breaks ties: the k nearest of sorted candidates, where distances closer than the tolerance are equal, and among equal
// ones the lower index wins.
void select_nearest(std::vector<Candidate>& candidates, int64_t k, double size, double ulps, int64_t* out) {
  const double last = candidates[k - 1].distance, tolerance = ulps * (size + std::max(last, 0.0));
  const auto by_index = [](const Candidate& a, const Candidate& b) { return a.index < b.index; };
  // Candidates that tie with the k-th: those of the lowest indices are selected.
  const auto begin = std::partition_point(candidates.begin(), candidates.end(),
                                          [&](const Candidate& c) { return c.distance < last - tolerance; });
  const auto end =
      std::partition_point(begin, candidates.end(), [&](const Candidate& c) { return c.distance <= last + tolerance; });
  std::sort(begin, end, by_index);
  std::sort(begin, candidates.begin() + k);
  // Order of the selected: within runs of ties by index.
  for (auto run = candidates.begin(), stop = candidates.begin() + k; run != stop;) {
    auto next = run + 1;
    while (next != stop && next->distance - (next - 1)->distance <= tolerance) ++next;
    std::sort(run, next, by_index);
    run = next;
  }
  for (int64_t j = 0; j < k; ++j) out[j] = candidates[j].index;
}

// A point with a NaN is never selected as a neighbor; sorting needs an ordered value.
template <typename T>
T infinite_if_nan(T value) {
  return value == value ? value : std::numeric_limits<T>::infinity();
}

// A query for the k nearest of the points (rows, dim) of a cloud, the first n of which exist: the others are padding,
// or places to search from. A place is given by its coordinates `at`, and by the point `self` that it is, or -1.
// Points may be stored in another order than the canonical one; `canonical` then holds their canonical indices.
template <typename T>
struct Query {
  const T* rows;
  const int64_t* canonical;  // or null
  int64_t n, dim, k;
  bool include_self;
  double ulps;

  int64_t canonical_index(int64_t point) const { return canonical ? canonical[point] : point; }

  // Upper bound of the distance, computed in T, of all neighbors of a point including ties, from any list of at least
  // k others.
  double search_radius(const T* at, int64_t self, double size, IndexList& points, std::vector<T>& squares) const {
    squares.clear();
    for (const int64_t point : points)
      if (include_self || point != self)
        squares.push_back(infinite_if_nan(squared_distance<T>(at, rows + point * dim, dim)));
    return radius_of(squares, size);
  }

  // The same from the squared distances of the others.
  double radius_of(std::vector<T>& squares, double size) const {
    const double margin = 1 + 4 * (dim + 8) * double(std::numeric_limits<T>::epsilon());
    std::nth_element(squares.begin(), squares.begin() + k - 1, squares.end());
    const double farthest = std::sqrt(double(squares[k - 1])) * margin;
    return (farthest + ulps * (size + farthest)) * margin;
  }

  // Removes points beyond a radius.
  void remove_beyond(const T* at, double radius, IndexList& points) const {
    int64_t* next = points.begin();
    for (const int64_t point : points)
      *next = point, next += squared_distance<T>(at, rows + point * dim, dim) <= radius * radius;
    points.count = next - points.begin();
  }

  // The k nearest of a list of points, by distances recomputed in float64; of all points, if the list is too short.
  void select(const T* at, int64_t self, double size, IndexList& points, std::vector<Candidate>& candidates,
              int64_t* out) const {
    if (points.count < k) {
      points.count = n;
      std::iota(points.begin(), points.end(), 0);
    }
    candidates.clear();
    for (const int64_t point : points) {
      const double squared = squared_distance<double>(at, rows + point * dim, dim);
      const double to_self = include_self ? -1.0 : INFINITY;
      candidates.push_back({point == self ? to_self : infinite_if_nan(std::sqrt(squared)), canonical_index(point)});
    }
    std::sort(candidates.begin(), candidates.end());
    select_nearest(candidates, k, size, ulps, out);
  }
};

}  // namespace
}  // namespace vector_neurons
