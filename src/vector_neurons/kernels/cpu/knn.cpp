// Nearest neighbours without the matrix of all distances: the few candidates that could be among the nearest are found
// in the precision of the input, whose error is bounded, and then measured in float64. Candidates come from blocks of
// the matrix, or, in larger clouds, from a subspace of few dimensions: features of networks lie close to one, distances
// can only be smaller there, and most points can be passed over by the boxes they are in. What is a tie, and who wins
// it, is as in geometry/neighbours.py: points come in their canonical order.

#include <ATen/Context.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "noinline.h"

namespace {

using at::Tensor;

constexpr int64_t BLOCK = 1 << 20;   // elements of a block of scores, at most
constexpr int64_t NARROW = 8;        // spaces up to this dimension are measured by differences, without a product
constexpr int64_t SPAN = 16;         // values that are passed over together, at most
constexpr int64_t MANY = 512;        // points of a narrow cloud from which on candidates are found in boxes,
constexpr int64_t LARGE = 1536;      // and of a wide one, which is projected to a subspace,
constexpr int64_t FEW[] = {8, 16};   // of so few dimensions,
constexpr double MOST = 0.95;        // if it has so much of the cloud's variance
constexpr int64_t ENOUGH = 1 << 13;  // numbers in a cloud whose products torch leaves to oneDNN for certain
constexpr int64_t LEAF = 32;         // points of a box
constexpr int64_t AROUND = 8;        // boxes whose points bound how far the neighbours of a point are

struct Candidate {
  double distance;
  int64_t index;
  bool operator<(const Candidate& other) const {
    return distance < other.distance || (distance == other.distance && index < other.index);
  }
};

// The smallest of each of some groups of n values; groups take turns.
template <typename T>
NOINLINE void least_of_groups(const T* __restrict v, int64_t n, int64_t groups, T* __restrict least) {
  std::fill(least, least + groups, std::numeric_limits<T>::infinity());
  for (int64_t start = 0; start < n; start += groups) {
    const int64_t count = std::min(groups, n - start);
    for (int64_t g = 0; g < count; ++g) least[g] = v[start + g] < least[g] ? v[start + g] : least[g];
  }
}

template <typename T>
NOINLINE int64_t count_within(const T* v, int64_t n, T limit) {
  int64_t count = 0;
#pragma omp simd reduction(+ : count)
  for (int64_t i = 0; i < n; ++i) count += v[i] <= limit;
  return count;
}

// The smallest and the largest that is finite, of n values.
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

// A value that k of n values, and few more unless they tie, do not exceed. From a guess, by bisection.
template <typename T>
T bound_few(const T* v, int64_t n, int64_t k, T guess) {
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

// A list of numbers below some size, with room for a few more.
struct Notes {
  std::vector<int64_t> room;
  int64_t count = 0;

  explicit Notes(int64_t size) : room(size + LEAF) {}
  int64_t* begin() { return room.data(); }
  int64_t* end() { return room.data() + count; }

  // Adds those from `first` to `last`, in steps, whose value is within a limit; without a branch, which no machine
  // could guess.
  template <typename T>
  void add_within(const T* v, T limit, int64_t first, int64_t last, int64_t step = 1) {
    int64_t* next = end();
    for (int64_t i = first; i < last; i += step, v += step) *next = i, next += *v <= limit;
    count = next - begin();
  }
};

// In the precision of A.
template <typename A, typename T>
NOINLINE A squared_distance(const T* __restrict a, const T* __restrict b, int64_t dim) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < dim; ++d) sum += (A(a[d]) - A(b[d])) * (A(a[d]) - A(b[d]));
  return sum;
}

// The k nearest of sorted candidates; distances closer than the tolerance are equal, lower indices win.
void settle(std::vector<Candidate>& candidates, int64_t k, double size, double ulps, int64_t* out) {
  const double last = candidates[k - 1].distance, tolerance = ulps * (size + std::max(last, 0.0));
  const auto by_index = [](const Candidate& a, const Candidate& b) { return a.index < b.index; };
  const auto begin = std::partition_point(candidates.begin(), candidates.end(),
                                          [&](const Candidate& c) { return c.distance < last - tolerance; });
  const auto end =
      std::partition_point(begin, candidates.end(), [&](const Candidate& c) { return c.distance <= last + tolerance; });
  std::sort(begin, end, by_index);
  std::sort(begin, candidates.begin() + k);
  for (auto run = candidates.begin(), stop = candidates.begin() + k; run != stop;) {
    auto next = run + 1;
    while (next != stop && next->distance - (next - 1)->distance <= tolerance) ++next;
    std::sort(run, next, by_index);
    run = next;
  }
  for (int64_t j = 0; j < k; ++j) out[j] = candidates[j].index;
}

template <typename T>
T number(T value) {  // what is no number is nobody's neighbour; sorting needs an answer all the same
  return value == value ? value : std::numeric_limits<T>::infinity();
}

// The points (rows, dim) of a cloud, of which the first n exist, and what is asked of them. Points may stand in another
// order than the canonical one, in which they then have these names.
template <typename T>
struct Cloud {
  const T* rows;
  const int64_t* names;  // or null
  int64_t n, dim, k;
  bool include_self;
  double ulps;

  int64_t name(int64_t point) const { return names ? names[point] : point; }

  // Up to where the neighbours of a point may be, ties included, if these have k others; for distances in T.
  double reach(int64_t self, double size, Notes& points, std::vector<T>& squares) const {
    const double margin = 1 + 4 * (dim + 8) * double(std::numeric_limits<T>::epsilon());
    squares.clear();
    for (const int64_t point : points)
      if (include_self || point != self)
        squares.push_back(number(squared_distance<T>(rows + self * dim, rows + point * dim, dim)));
    std::nth_element(squares.begin(), squares.begin() + k - 1, squares.end());
    const double farthest = std::sqrt(double(squares[k - 1])) * margin;
    return (farthest + ulps * (size + farthest)) * margin;
  }

  // Leaves out what is farther.
  void refine(int64_t self, double reach, Notes& points) const {
    int64_t* next = points.begin();
    for (const int64_t point : points)
      *next = point, next += squared_distance<T>(rows + self * dim, rows + point * dim, dim) <= reach * reach;
    points.count = next - points.begin();
  }

  // The k nearest of some points; of all, if those are too few.
  void choose(int64_t self, double size, Notes& points, std::vector<Candidate>& candidates, int64_t* out) const {
    if (points.count < k) {
      points.count = n;
      std::iota(points.begin(), points.end(), 0);
    }
    candidates.clear();
    for (const int64_t point : points) {
      const double squared = squared_distance<double>(rows + self * dim, rows + point * dim, dim);
      const double to_self = include_self ? -1.0 : INFINITY;
      candidates.push_back({point == self ? to_self : number(std::sqrt(squared)), name(point)});
    }
    std::sort(candidates.begin(), candidates.end());
    settle(candidates, k, size, ulps, out);
  }
};

// ---------------------------------------------------------------------------------------- candidates by blocks of rows

// Whether products in bfloat16 are the faster ones here.
bool has_bfloat16() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bf16") && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

// Whether the user lets torch round products of float32 to bfloat16. There are two ways to say so, and torch refuses to
// answer where they differ.
bool may_round() {
  try {
    return at::globalContext().float32MatmulPrecision() != at::Float32MatmulPrecision::HIGHEST;
  } catch (const c10::Error&) {
    return true;
  }
}

// What the squared distances from one point, of this squared length, are at least, by its products with others, which
// are off by up to `slack` of their length.
template <typename P, typename T>
NOINLINE void from_products(const P* __restrict product, const T* __restrict square, const T* __restrict length, T own,
                         T slack, int64_t n, T* __restrict v) {
  for (int64_t j = 0; j < n; ++j) v[j] = square[j] + own - 2 * T(product[j]) - slack * length[j];
}

// Squared distances from one point, by differences of coordinates (dim, points).
template <typename T>
NOINLINE void from_differences(const T* query, const T* columns, int64_t points, int64_t dim, int64_t n, T* __restrict v) {
  std::fill(v, v + n, T(0));
  for (int64_t d = 0; d < dim; ++d) {
    const T* __restrict column = columns + d * points;
    for (int64_t j = 0; j < n; ++j) v[j] += (query[d] - column[j]) * (query[d] - column[j]);
  }
}

// The products are of type P: those of bfloat16 are off by a percent, and bound the nearest all the same.
template <typename T, typename P>
void search_blocks(const Cloud<T>& cloud, const Tensor& x, int64_t* out) {
  const int64_t points = x.size(0), dim = x.size(1), n = cloud.n, k = cloud.k;
  // About their mean, points are short, and so are the errors of their products.
  const Tensor centred = x - x.narrow(0, 0, n).mean(0, true).nan_to_num(0, 0, 0);
  const Tensor rounded = centred.to(c10::CppTypeToScalarType<P>::value), turned = rounded.mT().contiguous();
  const Tensor columns = x.mT().contiguous(), squares = centred.square().sum(-1);
  const Tensor lengths = centred.norm(2, -1), sizes = x.norm(2, -1);
  const T *square = squares.const_data_ptr<T>(), *length = lengths.const_data_ptr<T>();
  const double longest = *std::max_element(length, length + n), unit = std::numeric_limits<T>::epsilon();
  // Products that leave the range of the numbers bound nothing.
  const bool too_long = dim > NARROW && !(8 * longest * longest < std::numeric_limits<T>::max());
  // Of a product of two numbers that are rounded to bfloat16, as it is itself, relative to their size.
  const bool half = std::is_same_v<P, at::BFloat16> || (std::is_same_v<P, float> && may_round());
  const double rounding = half ? 1.52 * std::numeric_limits<at::BFloat16>::epsilon() : 0;
  const int64_t groups = std::max((n + SPAN - 1) / SPAN, std::min(n, 4 * k));
  const int64_t most = std::clamp<int64_t>(BLOCK / std::max<int64_t>(points, 1), 16, 256);
  at::parallel_for(0, (points + most - 1) / most, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    Tensor products = at::empty({dim > NARROW ? most : 0, points}, rounded.options());
    std::vector<T> distances(n), least(groups), near;
    T* v = distances.data();
    T guess = 1;
    Notes hit(groups), chosen(n);
    std::vector<Candidate> candidates;
    for (int64_t start = first * most; start < std::min(points, last * most); start += most) {
      const int64_t rows = std::min(most, points - start);
      if (dim > NARROW) {
        Tensor some = products.narrow(0, 0, rows);
        at::mm_out(some, rounded.narrow(0, start, rows), turned);
      }
      for (int64_t self = start; self < start + rows; ++self) {
        const double size = sizes.const_data_ptr<T>()[self], own = length[self];
        double error;  // of v otherwise
        if (dim > NARROW) {
          from_products(products.const_data_ptr<P>() + (self - start) * points, square, length, square[self],
                        T(2 * rounding * own), n, v);
          error = 2 * (dim + 8) * unit * (longest * (longest + own) + own * own);
        } else {
          from_differences(cloud.rows + self * dim, columns.const_data_ptr<T>(), points, dim, n, v);
        }
        const T infinity = std::numeric_limits<T>::infinity();
        if (too_long) std::fill(v, v + n, -infinity);
        if (self < n) v[self] = cloud.include_self ? -infinity : infinity;
        least_of_groups(v, n, groups, least.data());
        guess = bound_few(least.data(), groups, k, guess);
        const auto choose = [&](T limit) {
          hit.count = chosen.count = 0;
          hit.add_within(least.data(), limit, 0, groups);
          for (const int64_t g : hit) chosen.add_within(v + g, limit, g, n, groups);
        };
        choose(guess);
        if (guess < infinity) {
          const double reach = cloud.reach(self, size, chosen, near), squared = reach * reach;
          if (dim <= NARROW) error = (2 * dim + 8) * unit * squared;
          choose(T(std::min<double>(squared + error, std::numeric_limits<T>::max())));
        }
        cloud.choose(self, size, chosen, candidates, out + self * k);
      }
    }
  });
}

// ---------------------------------------------------------------------------------------------- candidates from boxes

// A cloud in a space of few dimensions, (points, few), and the lengths of what was projected there.
struct Projection {
  Tensor points, lengths;
};

// The first n points of a cloud, about their mean, where they are widest. A narrow cloud is its own subspace. Nothing,
// if a subspace would leave out much of them, or they are few.
std::optional<Projection> project(const Tensor& x, int64_t n) {
  const int64_t dim = x.size(1), most = *std::rbegin(FEW);
  if (dim == 0 || n < (dim <= NARROW ? MANY : LARGE) || (dim > NARROW && dim <= 2 * most)) return {};
  const Tensor centred = x - x.narrow(0, 0, n).mean(0, true), real = centred.narrow(0, 0, n);
  const Tensor spread = real.mT().mm(real);
  if (!std::isfinite(spread.sum().item<double>())) return {};
  if (dim <= NARROW) return Projection{x, at::zeros({x.size(0)}, x.options())};
  Tensor axes = spread.narrow(1, 0, 2 * most);
  for (int step = 0; step < 3; ++step) axes = spread.mm(std::get<0>(at::linalg_qr(axes)));  // widest first
  axes = std::get<0>(at::linalg_qr(axes));
  const Tensor held = ((axes * spread.mm(axes)).sum(0) / spread.trace()).cumsum(0);
  for (const int64_t few : FEW)
    if (held[few - 1].item<double>() > MOST) {
      // In float64: who allows torch to round products of float32 does not mean these.
      const Tensor seen = centred.to(at::kDouble).mm(axes.narrow(1, 0, few).to(at::kDouble));
      return Projection{seen.to(x.scalar_type()), centred.norm(2, -1)};
    }
  return {};
}

// Points in boxes, the leaves of a k-d tree.
template <typename T>
struct Leaves {
  int64_t few, count = 0;
  std::vector<int64_t> order, start;  // points, leaf by leaf, and where each leaf begins; after the last those that
                                      // are not real, whose neighbours nobody asks for
  std::vector<T> coordinates;         // (count, few, LEAF), infinite where a leaf has no point
  std::vector<T> low, high, middle;   // (few, count)

  Leaves(const T* x, int64_t points, int64_t n, int64_t dimensions) : few(dimensions), order(points), start{0} {
    std::iota(order.begin(), order.end(), 0);
    split(x, 0, n);
    count = start.size() - 1;
    coordinates.assign(count * few * LEAF, std::numeric_limits<T>::infinity());
    low.resize(few * count), high.resize(few * count), middle.resize(few * count);
    for (int64_t leaf = 0; leaf < count; ++leaf)
      for (int64_t d = 0; d < few; ++d) {
        T* to = coordinates.data() + (leaf * few + d) * LEAF;
        const int64_t size = start[leaf + 1] - start[leaf];
        for (int64_t i = 0; i < size; ++i) to[i] = x[order[start[leaf] + i] * few + d];
        const auto [least, most] = std::minmax_element(to, to + size);
        low[d * count + leaf] = *least, high[d * count + leaf] = *most;
        middle[d * count + leaf] = (*least + *most) / 2;
      }
  }

  // Halves points across the axis along which they are widest, until a leaf holds them.
  void split(const T* x, int64_t begin, int64_t end) {
    if (end - begin <= LEAF) {
      start.push_back(end);
      return;
    }
    std::vector<T> least(few, std::numeric_limits<T>::infinity()), most(few, -std::numeric_limits<T>::infinity());
    for (int64_t i = begin; i < end; ++i)
      for (int64_t d = 0; d < few; ++d) {
        const T value = x[order[i] * few + d];
        least[d] = std::min(least[d], value), most[d] = std::max(most[d], value);
      }
    int64_t axis = 0;
    for (int64_t d = 1; d < few; ++d)
      if (most[d] - least[d] > most[axis] - least[axis]) axis = d;
    const int64_t half = begin + ((end - begin) / 2 + LEAF - 1) / LEAF * LEAF;  // full leaves, but for the last
    std::nth_element(order.begin() + begin, order.begin() + half, order.begin() + end,
                     [&](int64_t a, int64_t b) { return x[a * few + axis] < x[b * few + axis]; });
    split(x, begin, half);
    split(x, half, end);
  }
};

// Squared distances of a query from the points of a leaf.
template <typename T>
NOINLINE void to_points(const T* __restrict query, const T* __restrict coordinates, int64_t few, T* __restrict v) {
  for (int64_t i = 0; i < LEAF; ++i) v[i] = 0;
  for (int64_t d = 0; d < few; ++d)
    for (int64_t i = 0; i < LEAF; ++i) {
      const T gap = query[d] - coordinates[d * LEAF + i];
      v[i] += gap * gap;
    }
}

// Squared distances of a query from boxes (few, count) between two corners.
template <typename T>
NOINLINE void to_boxes(const T* __restrict query, const T* __restrict low, const T* __restrict high, int64_t few,
                    int64_t count, T* __restrict v) {
  for (int64_t c = 0; c < count; ++c) v[c] = 0;
  for (int64_t d = 0; d < few; ++d)
    for (int64_t c = 0; c < count; ++c) {
      const T below = low[d * count + c] - query[d], above = query[d] - high[d * count + c];
      const T gap = below > above ? below : above;
      v[c] += gap > 0 ? gap * gap : T(0);
    }
}

template <typename T>
void search_leaves(const Cloud<T>& original, const Tensor& x, const Projection& projection, int64_t* out) {
  const Tensor& seen = projection.points;
  const int64_t points = x.size(0), n = original.n, k = original.k, few = seen.size(1);
  const Leaves<T> leaves(seen.const_data_ptr<T>(), points, n, few);
  const Tensor order = at::from_blob(const_cast<int64_t*>(leaves.order.data()), {points}, at::kLong);
  // Neighbours become neighbours in memory, in whole SIMD vectors.
  const Tensor sorted = at::constant_pad_nd(x.index_select(0, order), {0, -x.size(1) & 7}), sizes = sorted.norm(2, -1);
  Cloud<T> cloud = original;
  cloud.rows = sorted.const_data_ptr<T>(), cloud.names = leaves.order.data(), cloud.dim = sorted.size(1);
  const T* span = projection.lengths.const_data_ptr<T>();
  const T infinity = std::numeric_limits<T>::infinity();
  const double longest = *std::max_element(span, span + n), unit = std::numeric_limits<T>::epsilon();
  const int64_t dim = cloud.dim, groups = leaves.count + (points - n + LEAF - 1) / LEAF;
  at::parallel_for(0, groups, 1, [&](int64_t first, int64_t last) {
    std::vector<T> v, boxes(leaves.count), middle(few), nearest;
    std::vector<int64_t> near(leaves.count);
    Notes hit(leaves.count), chosen(n);
    std::vector<Candidate> candidates;
    T guess = 1;
    for (int64_t group = first; group < last; ++group) {
      const bool real = group < leaves.count;
      const int64_t begin = real ? leaves.start[group] : n + (group - leaves.count) * LEAF;
      const int64_t end = real ? leaves.start[group + 1] : std::min(points, begin + LEAF);
      // The leaves around this one, as many as bound the distance of the k nearest well.
      for (int64_t d = 0; d < few; ++d) middle[d] = leaves.middle[d * leaves.count + (real ? group : 0)];
      to_boxes(middle.data(), leaves.middle.data(), leaves.middle.data(), few, leaves.count, boxes.data());
      const int64_t around = std::min<int64_t>(leaves.count, AROUND + 2 * (k + 1) / LEAF);
      std::iota(near.begin(), near.end(), 0);
      std::partial_sort(near.begin(), near.begin() + around, near.end(),
                        [&](int64_t a, int64_t b) { return boxes[a] < boxes[b]; });
      v.resize(around * LEAF);
      for (int64_t self = begin; self < end; ++self) {
        const int64_t name = leaves.order[self];
        const T* query = seen.const_data_ptr<T>() + name * few;
        const double size = sizes.const_data_ptr<T>()[self], own = span[name];
        for (int64_t i = 0; i < around; ++i) {
          to_points(query, leaves.coordinates.data() + near[i] * few * LEAF, few, v.data() + i * LEAF);
          if (near[i] == group && !cloud.include_self) v[i * LEAF + self - begin] = infinity;
        }
        hit.count = chosen.count = 0;
        // Any k points bound the distance of the nearest k: here those that are nearest in the subspace, or nearly.
        guess = bound_few(v.data(), around * LEAF, k, guess);
        if (guess < infinity) {
          for (int64_t i = 0; i < around; ++i)
            chosen.add_within(v.data() + i * LEAF, guess, leaves.start[near[i]], leaves.start[near[i] + 1]);
          const double reach = cloud.reach(self, size, chosen, nearest);
          const double error = std::sqrt(double(few)) * (dim + 8) * unit * (own + longest);  // of distances there
          const double there = reach + error;
          const T limit = T(std::min<double>(there * there, std::numeric_limits<T>::max()));
          chosen.count = 0;
          to_boxes(query, leaves.low.data(), leaves.high.data(), few, leaves.count, boxes.data());
          hit.add_within(boxes.data(), limit, 0, leaves.count);
          for (const int64_t leaf : hit) {
            to_points(query, leaves.coordinates.data() + leaf * few * LEAF, few, v.data());
            chosen.add_within(v.data(), limit, leaves.start[leaf], leaves.start[leaf + 1]);
          }
          cloud.refine(self, reach, chosen);
        }
        cloud.choose(self, size, chosen, candidates, out + name * k);
      }
    }
  });
}

template <typename T>
void search(const Tensor& x, int64_t n, int64_t k, bool include_self, double ulps, int64_t* out) {
  const Cloud<T> cloud{x.const_data_ptr<T>(), nullptr, n, x.size(1), k, include_self, ulps};
  if (const auto projection = project(x, n))
    search_leaves(cloud, x, *projection, out);
  else if (std::is_same_v<T, float> && x.size(1) > NARROW && x.numel() >= ENOUGH && has_bfloat16())
    search_blocks<T, at::BFloat16>(cloud, x, out);
  else
    search_blocks<T, T>(cloud, x, out);
}

// The k nearest of the first present[b] points of each cloud (clouds, points, dim), for every point.
Tensor nearest(const Tensor& x, const Tensor& present, int64_t k, bool include_self, double ulps) {
  TORCH_CHECK(x.dim() == 3 && x.is_contiguous() && present.is_contiguous() && present.numel() == x.size(0),
              "nearest needs (clouds, points, dim), and how many of the points are present in each cloud");
  for (int64_t cloud = 0; cloud < x.size(0); ++cloud) {
    const int64_t n = present.const_data_ptr<int64_t>()[cloud];
    TORCH_CHECK(1 <= k && k + !include_self <= n && n <= x.size(1), k, " neighbours of ", n, " points");
  }
  // Products round as the caller's autocast says, unless it is told not to.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::NoGradGuard no_grad;
  Tensor out = at::empty({x.size(0), x.size(1), k}, x.options().dtype(at::kLong));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "nearest", [&] {
    for (int64_t cloud = 0; cloud < x.size(0); ++cloud)
      search<scalar_t>(x[cloud], present.const_data_ptr<int64_t>()[cloud], k, include_self, ulps,
                       out[cloud].data_ptr<int64_t>());
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) { m.impl("knn_canonical", &nearest); }
