// Nearest neighbours without the matrix of all distances: a block of rows at a time is multiplied out in the precision
// of the input, whose error is bounded; the few candidates that could be among the nearest are then measured in
// float64. Features of networks lie close to a subspace of few dimensions, where distances can only be smaller: in
// large clouds candidates are found there. What is a tie, and who wins it, is as in geometry/neighbours.py: points come
// in their canonical order.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

namespace {

using at::Tensor;

constexpr int64_t BLOCK = 1 << 18;      // elements of a block of scores: stays in the second-level cache
constexpr int64_t NARROW = 8;           // spaces up to this dimension are measured by differences, without a product
constexpr int64_t FEW[] = {8, 16, 32};  // dimensions of subspaces in which candidates may be found,
constexpr int64_t LARGE = 1536;         // if a cloud has so many points,
constexpr double MOST = 0.95;           // and the subspace so much of its variance
constexpr double SLACK = 1.2;           // of squared distances there, for what lies across it
constexpr int64_t SPAN = 16;            // values that are passed over together

struct Candidate {
  double distance;
  int64_t index;
  bool operator<(const Candidate& other) const {
    return distance < other.distance || (distance == other.distance && index < other.index);
  }
};

// The smallest of every span of n values.
template <typename T>
void least_of_spans(const T* __restrict v, int64_t n, std::vector<T>& least) {
  least.clear();
  for (int64_t start = 0; start < n; start += SPAN) {
    const int64_t end = std::min(n, start + SPAN);
    T smallest = std::numeric_limits<T>::infinity();
#pragma omp simd reduction(min : smallest)
    for (int64_t j = start; j < end; ++j) smallest = v[j] < smallest ? v[j] : smallest;
    least.push_back(smallest);
  }
}

// A value no smaller than the k-th smallest of n, tight enough: the k-th smallest of the minima of many groups.
template <typename T>
T upper_bound(const T* v, int64_t n, const std::vector<T>& least, int64_t k, std::vector<T>& minima) {
  size_t groups = 64;
  while (groups < size_t(2 * k)) groups *= 2;
  if (least.size() < groups) {
    minima.assign(v, v + n);
  } else {
    minima.assign(least.begin(), least.begin() + groups);
    for (size_t i = groups; i < least.size(); ++i) minima[i % groups] = std::min(minima[i % groups], least[i]);
  }
  std::nth_element(minima.begin(), minima.begin() + (k - 1), minima.end());
  return minima[k - 1];
}

// Indices of all values up to a limit. Few are: most spans are passed over.
template <typename T>
int64_t within(const T* v, int64_t n, const std::vector<T>& least, T limit, int64_t* out) {
  int64_t count = 0;
  for (size_t span = 0; span < least.size(); ++span)
    if (least[span] <= limit)
      for (int64_t j = span * SPAN, end = std::min<int64_t>(n, j + SPAN); j < end; ++j)
        if (v[j] <= limit) out[count++] = j;
  return count;
}

// A function of its own: within others compilers leave it scalar.
template <typename T>
double squared_distance(const T* __restrict a, const T* __restrict b, int64_t dim) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < dim; ++d) sum += (double(a[d]) - double(b[d])) * (double(a[d]) - double(b[d]));
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

// A cloud (points, dim) as candidates are looked for in it: its coordinates, the same turned, squares of their lengths,
// and the lengths of the vectors that they were made from, which bound their errors.
struct View {
  Tensor points, turned, squares, lengths;
};

// Moves a view to the subspace of few dimensions in which the first n points of its cloud are widest, about their mean,
// unless that would leave out much of them.
void see_in_few(const Tensor& x, int64_t n, View& view) {
  const Tensor centred = x - x.narrow(0, 0, n).mean(0, true), real = centred.narrow(0, 0, n);
  const Tensor spread = real.mT().mm(real);
  if (!std::isfinite(spread.sum().item<double>())) return;
  Tensor axes = spread.narrow(1, 0, FEW[std::size(FEW) - 1]);
  for (int step = 0; step < 3; ++step) axes = spread.mm(std::get<0>(at::linalg_qr(axes)));  // widest first
  axes = std::get<0>(at::linalg_qr(axes));
  const Tensor held = (axes * spread.mm(axes)).sum(0) / spread.trace();
  for (const int64_t few : FEW)
    if (held.narrow(0, 0, few).sum().item<double>() > MOST) {
      const Tensor seen = centred.mm(axes.narrow(1, 0, few));
      view = {seen, seen.mT().contiguous(), seen.square().sum(-1), centred.norm(2, -1)};
      return;
    }
}

std::vector<View> views_of(const Tensor& x, const Tensor& lengths, const Tensor& present) {
  const Tensor turned = x.mT().contiguous(), squares = x.square().sum(-1);
  const bool large = x.size(1) >= LARGE && x.size(2) > FEW[std::size(FEW) - 1];
  std::vector<View> views;
  for (int64_t cloud = 0; cloud < x.size(0); ++cloud) {
    views.push_back({x[cloud], turned[cloud], squares[cloud], lengths[cloud]});
    if (large) see_in_few(x[cloud], present.const_data_ptr<int64_t>()[cloud], views.back());
  }
  return views;
}

template <typename T>
void search(const Tensor& x, const Tensor& present, int64_t k, bool include_self, double ulps, Tensor& out) {
  const int64_t clouds = x.size(0), points = x.size(1), dim = x.size(2);
  // Products round as the caller's autocast says, unless it is told not to.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::NoGradGuard no_grad;
  const Tensor lengths = x.norm(2, -1);
  const std::vector<View> views = views_of(x, lengths, present);
  const int64_t most = std::clamp<int64_t>(BLOCK / std::max<int64_t>(points, 1), 16, 128);
  const int64_t blocks = (points + most - 1) / most;
  const double unit = std::numeric_limits<T>::epsilon();
  at::parallel_for(0, clouds * blocks, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    std::vector<T> scores(most * points), least, minima;
    std::vector<int64_t> chosen(points);
    std::vector<Candidate> candidates;
    for (int64_t task = first; task < last; ++task) {
      const int64_t cloud = task / blocks, start = task % blocks * most, rows = std::min(most, points - start);
      const int64_t n = present.const_data_ptr<int64_t>()[cloud];
      const T* all = x.const_data_ptr<T>() + cloud * points * dim;
      const T* sizes = lengths.const_data_ptr<T>() + cloud * points;
      const View& view = views[cloud];
      const bool few = view.points.size(1) < dim;
      const T* columns = view.turned.const_data_ptr<T>();
      const T* __restrict square = view.squares.const_data_ptr<T>();
      const T* length = view.lengths.const_data_ptr<T>();
      const double widest = *std::max_element(length, length + n);
      if (dim > NARROW) {
        Tensor product = at::from_blob(scores.data(), {rows, points}, x.options());
        at::mm_out(product, view.points.narrow(0, start, rows), view.turned);
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t self = start + r;
        const T* query = all + self * dim;
        T* __restrict v = scores.data() + r * points;
        const double size = sizes[self], own = length[self];
        double error, offset;  // of v, which is the squared distance less `offset`
        // What is no number is nobody's neighbour; sorting needs an answer all the same.
        const auto number = [](T value) { return value == value ? value : std::numeric_limits<T>::infinity(); };
        if (dim > NARROW) {
          for (int64_t j = 0; j < n; ++j) v[j] = number(square[j] - 2 * v[j]);
          // A view of few dimensions has errors of its own, of centring and turning.
          offset = square[self], error = (few ? 16 : 2) * (dim + 8) * unit * (widest * (widest + own) + own * own);
        } else {
          std::fill(v, v + n, T(0));
          for (int64_t d = 0; d < dim; ++d) {
            const T* __restrict column = columns + d * points;
            for (int64_t j = 0; j < n; ++j) v[j] += (query[d] - column[j]) * (query[d] - column[j]);
          }
          for (int64_t j = 0; j < n; ++j) v[j] = number(v[j]);
          offset = 0, error = 0;
        }
        if (self < n) v[self] = include_self ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
        // Makes candidates of all points up to a value of v, nearest first by their true distances.
        const auto look = [&](T limit) {
          int64_t count = within(v, n, least, limit, chosen.data());
          if (count < k)
            for (count = 0; count < n; ++count) chosen[count] = count;
          candidates.resize(count);
          for (int64_t i = 0; i < count; ++i) {
            const double sum = squared_distance(query, all + chosen[i] * dim, dim);
            const double to_self = include_self ? -1.0 : INFINITY;
            candidates[i] = {chosen[i] == self ? to_self : sum == sum ? std::sqrt(sum) : INFINITY, chosen[i]};
          }
          std::sort(candidates.begin(), candidates.end());
        };
        // The value of v up to which there may be neighbours if k points are no farther than `bound`, a value of v.
        const auto limit_of = [&](double bound) {
          if (dim <= NARROW) error = (2 * dim + 8) * unit * std::max(bound, 0.0);
          const double farthest = std::sqrt(std::max(bound + offset + error, 0.0));
          const double tolerance = ulps * (size + farthest);
          return T((bound + 2 * error + 2 * tolerance * (farthest + tolerance)) * (bound > 0 ? 1 + 4 * unit : 1));
        };
        least_of_spans(v, n, least);
        const double bound = upper_bound(v, n, least, k, minima);
        if (few) {
          // Any k points bound the distance of the nearest k: here those that are nearest in the subspace.
          const T reach = std::max(T(bound), T(SLACK * (bound + offset) - offset));
          look(reach);
          const double farthest = std::max(candidates[k - 1].distance, 0.0);
          const T limit = limit_of(farthest * farthest - offset);
          if (limit > reach) look(limit);
        } else {
          look(limit_of(bound));
        }
        settle(candidates, k, size, ulps, out.data_ptr<int64_t>() + (cloud * points + self) * k);
      }
    }
  });
}

// The k nearest of the first present[b] points of each cloud (clouds, points, dim), for every point.
Tensor nearest(const Tensor& x, const Tensor& present, int64_t k, bool include_self, double ulps) {
  TORCH_CHECK(x.dim() == 3 && x.is_contiguous() && present.is_contiguous(), "nearest needs (clouds, points, dim)");
  Tensor out = at::empty({x.size(0), x.size(1), k}, x.options().dtype(at::kLong));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "nearest",
                             [&] { search<scalar_t>(x, present, k, include_self, ulps, out); });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) { m.impl("nearest", &nearest); }
