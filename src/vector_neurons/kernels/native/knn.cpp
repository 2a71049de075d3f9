// Nearest neighbours without the matrix of all distances: a block of rows at a time is multiplied out in the precision
// of the input, whose error is bounded; the few candidates that could be among the nearest are then measured in
// float64. What is a tie, and who wins it, is as in geometry/neighbours.py: points come in their canonical order.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

using at::Tensor;

constexpr int64_t BLOCK = 1 << 18;  // elements of a block of scores: stays in the second-level cache
constexpr int64_t NARROW = 8;       // spaces up to this dimension are measured by differences, without a product

struct Candidate {
  double distance;
  int64_t index;
  bool operator<(const Candidate& other) const {
    return distance < other.distance || (distance == other.distance && index < other.index);
  }
};

// A value no smaller than the k-th smallest, tight enough: the k-th smallest of the minima of many groups.
template <typename T>
T upper_bound(const T* __restrict v, int64_t n, int64_t k, std::vector<T>& minima) {
  int64_t groups = 64;
  while (groups < 2 * k) groups *= 2;
  if (n < 2 * groups) {
    minima.assign(v, v + n);
  } else {
    minima.assign(v, v + groups);
    T* __restrict least = minima.data();
    int64_t start = groups;
    for (; start + groups <= n; start += groups)
      for (int64_t g = 0; g < groups; ++g) least[g] = v[start + g] < least[g] ? v[start + g] : least[g];
    for (int64_t g = 0; start + g < n; ++g) least[g] = v[start + g] < least[g] ? v[start + g] : least[g];
  }
  std::nth_element(minima.begin(), minima.begin() + (k - 1), minima.end());
  return minima[k - 1];
}

// Indices of all values up to a limit. Few are: whole blocks are passed over by their minimum.
template <typename T>
int64_t within(const T* __restrict v, int64_t n, T limit, int64_t* out) {
  constexpr int64_t SPAN = 32;
  int64_t count = 0;
  for (int64_t start = 0; start < n; start += SPAN) {
    const int64_t end = std::min(n, start + SPAN);
    T least = std::numeric_limits<T>::infinity();
#pragma omp simd reduction(min : least)
    for (int64_t j = start; j < end; ++j) least = v[j] < least ? v[j] : least;
    if (least <= limit)
      for (int64_t j = start; j < end; ++j)
        if (v[j] <= limit) out[count++] = j;
  }
  return count;
}

// The k nearest of the candidates, nearest first; distances closer than the tolerance are equal, lower indices win.
void settle(std::vector<Candidate>& candidates, int64_t k, double size, double ulps, int64_t* out) {
  std::sort(candidates.begin(), candidates.end());
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
void search(const Tensor& x, const Tensor& present, int64_t k, bool include_self, double ulps, Tensor& out) {
  const int64_t clouds = x.size(0), points = x.size(1), dim = x.size(2);
  const Tensor squares = x.square().sum(-1), transposed = x.mT().contiguous();
  const int64_t most = std::clamp<int64_t>(BLOCK / std::max<int64_t>(points, 1), 16, 128);
  const int64_t blocks = (points + most - 1) / most;
  const double unit = std::numeric_limits<T>::epsilon();
  at::parallel_for(0, clouds * blocks, 1, [&](int64_t first, int64_t last) {
    at::NoGradGuard no_grad;
    std::vector<T> scores(most * points), minima;
    std::vector<int64_t> chosen(points);
    std::vector<Candidate> candidates;
    for (int64_t task = first; task < last; ++task) {
      const int64_t cloud = task / blocks, start = task % blocks * most, rows = std::min(most, points - start);
      const int64_t n = present.const_data_ptr<int64_t>()[cloud];
      const T* all = x.const_data_ptr<T>() + cloud * points * dim;
      const T* columns = transposed.const_data_ptr<T>() + cloud * dim * points;
      const T* __restrict square = squares.const_data_ptr<T>() + cloud * points;
      const double widest = std::sqrt(double(*std::max_element(square, square + n)));
      if (dim > NARROW) {
        Tensor product = at::from_blob(scores.data(), {rows, points}, x.options());
        at::mm_out(product, x[cloud].narrow(0, start, rows), transposed[cloud]);
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t self = start + r;
        const T* query = all + self * dim;
        T* __restrict v = scores.data() + r * points;
        const double size = std::sqrt(double(square[self]));
        double error, offset;  // of v, which is the squared distance less `offset`
        if (dim > NARROW) {
          for (int64_t j = 0; j < n; ++j) v[j] = square[j] - 2 * v[j];
          offset = square[self], error = 2 * (dim + 8) * unit * widest * (widest + size);
        } else {
          std::fill(v, v + n, T(0));
          for (int64_t d = 0; d < dim; ++d) {
            const T* __restrict column = columns + d * points;
            for (int64_t j = 0; j < n; ++j) v[j] += (query[d] - column[j]) * (query[d] - column[j]);
          }
          offset = 0, error = 0;
        }
        // What is no number is nobody's neighbour; sorting needs an answer all the same.
        for (int64_t j = 0; j < n; ++j) v[j] = v[j] == v[j] ? v[j] : std::numeric_limits<T>::infinity();
        if (self < n) v[self] = include_self ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
        const double bound = upper_bound(v, n, k, minima);
        if (dim <= NARROW) error = (2 * dim + 8) * unit * std::max(bound, 0.0);
        const double farthest = std::sqrt(std::max(bound + offset + error, 0.0)), tolerance = ulps * (size + farthest);
        const T limit =
            T((bound + 2 * error + 2 * tolerance * (farthest + tolerance)) * (bound > 0 ? 1 + 4 * unit : 1));
        int64_t count = within(v, n, limit, chosen.data());
        if (count < k)
          for (count = 0; count < n; ++count) chosen[count] = count;
        candidates.resize(count);
        for (int64_t i = 0; i < count; ++i) {
          const T* __restrict other = all + chosen[i] * dim;
          double sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t d = 0; d < dim; ++d) sum += (double(query[d]) - other[d]) * (double(query[d]) - other[d]);
          const double own = include_self ? -1.0 : INFINITY;
          candidates[i] = {chosen[i] == self ? own : sum == sum ? std::sqrt(sum) : INFINITY, chosen[i]};
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
