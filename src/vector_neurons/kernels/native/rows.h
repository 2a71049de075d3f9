// What the kernels of a vector-neuron block have in common: batch norm of lengths, leaky ReLU along a direction and, on
// the edges of a graph, the mean over each point's neighbours. One row (the vectors of one edge) is held in cache from
// beginning to end; edges never exist in memory, and the backward pass computes them again.
//
// A row m is a sum of two rows that do exist,  x_m = a[index[m]] + b[m / share]:
//   edges of a graph       a: image at the neighbour    b: image at the point itself    share = k
//   points and their mean  a: image at the point        b: image of the cloud's mean    share = points of a cloud
//   few channels in        a: the input itself          b: a weight (inputs, width) that maps it while it is loaded
//   anything else          a only
// Features q have `width` channels, directions k the same, one for all, or none. Rows are (3, width), the width padded
// to a multiple of LANES with zeros, so that every loop over channels is made of whole SIMD vectors (edges must be).
//
// The loops are plain: compilers vectorise them for the machine they are told to build for.

#pragma once

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace vector_neurons {

constexpr int64_t LANES = 8;
constexpr int64_t CHUNK = 64;  // groups whose sums are added up together: fixed, so that threads do not change a bit

using at::Tensor;
using Maybe = std::optional<Tensor>;

// ---------------------------------------------------------------------------------------------------------- the rows

template <typename T>
struct Rows {
  const T* a;
  const T* b;                                       // or null
  const T* weight;                                  // or null
  const int64_t* index;                             // or null
  int64_t width, inputs, points, per_cloud, share;  // inputs: channels of a

  int64_t from(int64_t m) const { return index ? m / per_cloud * points + index[m] : m; }
  const T* first(int64_t m) const { return a + from(m) * 3 * inputs; }
  const T* second(int64_t m) const { return b + m / share * 3 * width; }

  void load(int64_t m, T* __restrict x) const {
    const T* __restrict p = first(m);
    const int64_t n = 3 * width;
    if (weight) {
      for (int64_t d = 0; d < 3; ++d, x += width) {
        for (int64_t c = 0; c < width; ++c) x[c] = p[d * inputs] * weight[c];
        for (int64_t i = 1; i < inputs; ++i) {
          const T* __restrict row = weight + i * width;
          for (int64_t c = 0; c < width; ++c) x[c] += p[d * inputs + i] * row[c];
        }
      }
    } else if (b) {
      const T* __restrict r = second(m);
      for (int64_t i = 0; i < n; ++i) x[i] = p[i] + r[i];
    } else {
      for (int64_t i = 0; i < n; ++i) x[i] = p[i];
    }
  }
};

struct Shape {
  int64_t rows, groups, k;  // k rows make one group; a pooled group gives one row of output
};

inline bool mapped(const Maybe& b) { return b && b->dim() == 2; }

template <typename T>
Rows<T> rows_of(const Tensor& a, const Maybe& b, const Maybe& index) {
  const int64_t clouds = a.size(0), points = a.size(1);
  const int64_t per_cloud = index ? index->size(1) * index->size(2) : points;
  const int64_t share = index ? index->size(2) : points;
  const T* second = b ? b->const_data_ptr<T>() : nullptr;
  return {a.const_data_ptr<T>(),
          mapped(b) ? nullptr : second,
          mapped(b) ? second : nullptr,
          index ? index->const_data_ptr<int64_t>() : nullptr,
          mapped(b) ? b->size(1) : a.size(3),
          a.size(3),
          points,
          clouds ? per_cloud : 1,
          share};
}

inline Shape shape_of(const Tensor& a, const Maybe& index, int64_t pool) {
  const int64_t rows = a.size(0) * (index ? index->size(1) * index->size(2) : a.size(1));
  TORCH_CHECK(pool > 0 && rows % pool == 0, rows, " rows do not make groups of ", pool);
  return {rows, rows / pool, pool};
}

// Refuse what would be read or written beyond its end.
inline void check(const Tensor& a, const Maybe& b, const Maybe& index, bool feature) {
  const int64_t width = mapped(b) ? b->size(1) : a.size(3);
  TORCH_CHECK(a.dim() == 4 && a.size(2) == 3 && a.is_contiguous(),
              "rows must be contiguous (clouds, points, 3, width)");
  TORCH_CHECK(!b || (b->is_contiguous() && b->scalar_type() == a.scalar_type()), "both rows need one type, contiguous");
  TORCH_CHECK(!mapped(b) || (!index && b->size(0) == a.size(3)), "a weight maps the channels of rows that exist");
  if (b && !mapped(b))
    TORCH_CHECK(b->sizes() == at::IntArrayRef({a.size(0), index ? index->size(1) : 1, 3, width}),
                "the second rows are ", b->sizes(), " beside ", a.sizes());
  if (!index) return;
  TORCH_CHECK(!feature || width % LANES == 0, "the width of edges must be a multiple of ", LANES);
  TORCH_CHECK(
      index->dim() == 3 && index->size(0) == a.size(0) && index->is_contiguous() && index->scalar_type() == at::kLong,
      "a graph must be int64 (clouds, points, k), got ", index->sizes());
}

// Refuse neighbours that do not exist; q and k have one graph, which is looked through once.
inline void check_neighbours(const Maybe& index, int64_t points) {
  if (!index || index->numel() == 0) return;
  const int64_t* first = index->const_data_ptr<int64_t>();
  const auto [least, most] = std::minmax_element(first, first + index->numel());
  TORCH_CHECK(*least >= 0 && *most < points, "neighbours must be indices 0 to ", points - 1);
}

// Squares below this count as zero: the root stays differentiable, and the inverse's square finite.
template <typename T>
inline T tiny() {
  return std::sqrt(std::numeric_limits<T>::min());
}
template <typename T>
inline T shortest() {
  return std::sqrt(tiny<T>());
}

template <typename T>
inline T length(const T* __restrict x, int64_t c, int64_t w) {
  const T squares = x[c] * x[c] + x[w + c] * x[w + c] + x[2 * w + c] * x[2 * w + c];
  return std::sqrt(std::max(squares, tiny<T>()));
}

template <typename Body>
void in_chunks(int64_t groups, const Body& body) {
  const int64_t chunks = (groups + CHUNK - 1) / CHUNK;
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) body(c, c * CHUNK, std::min(groups, (c + 1) * CHUNK));
  });
}

// Add up what the chunks found, (chunks, sums, width), always in the same order.
inline Tensor total(const std::vector<double>& partial, int64_t sums, int64_t width, const Tensor& like) {
  Tensor out = at::zeros({sums, width}, like.options().dtype(at::kDouble));
  double* o = out.data_ptr<double>();
  const int64_t n = sums * width;
  for (size_t start = 0; start < partial.size(); start += n)
    for (int64_t i = 0; i < n; ++i) o[i] += partial[start + i];
  return out;
}

// Where the gradient of a row goes: to the rows it is the sum of, or through the weight that made it.
template <typename T>
struct Sink {
  const Rows<T>& rows;
  T* a;
  T* b;
  std::vector<T> own, weights;  // what gathers for the point the edges start from, and for the weight

  Sink(const Rows<T>& r, T* to_a, T* to_b)
      : rows(r), a(to_a), b(to_b), own(3 * r.width), weights(r.weight ? r.inputs * r.width : 0) {}

  void take(int64_t m, const T* __restrict g, int64_t c0, int64_t c1) {
    const int64_t w = rows.width;
    T* __restrict to = a + rows.from(m) * 3 * rows.inputs;
    if (rows.weight) {
      for (int64_t d = 0; d < 3; ++d)
        for (int64_t i = 0; i < rows.inputs; ++i) {
          const T* __restrict row = rows.weight + i * w;
          T* __restrict sums = weights.data() + i * w;
          const T x = rows.first(m)[d * rows.inputs + i];
          T sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t c = 0; c < w; ++c) sum += g[d * w + c] * row[c], sums[c] += g[d * w + c] * x;
          to[d * rows.inputs + i] = sum;
        }
      return;
    }
    T* __restrict mine = own.data();
    for (int64_t d = 0; d < 3; ++d)
      if (rows.index)
        for (int64_t i = d * w + c0; i < d * w + c1; ++i) to[i] += g[i], mine[i] += g[i];
      else
        for (int64_t i = d * w + c0; i < d * w + c1; ++i) to[i] = g[i];
  }

  // The edges of point u are through.
  void finish(int64_t u, int64_t c0, int64_t c1) {
    if (!rows.index) return;
    for (int64_t d = 0; d < 3; ++d) {
      if (b)
        std::copy(own.data() + d * rows.width + c0, own.data() + d * rows.width + c1,
                  b + (u * 3 + d) * rows.width + c0);
      std::fill(own.data() + d * rows.width + c0, own.data() + d * rows.width + c1, T(0));
    }
  }

  // A chunk is through: hand over what gathered for the weight.
  void hand_over(double* __restrict to) {
    for (size_t i = 0; i < weights.size(); ++i) to[i] += weights[i], weights[i] = T(0);
  }
};

// Work is shared by clouds, whose points are neighbours of each other only, and inside a cloud by channels; without a
// graph by chunks of rows. `unit` rows are taken together.
struct Tasks {
  int64_t unit, units, clouds, splits, count, width;
  bool graph;

  template <typename T>
  Tasks(const Rows<T>& rows, int64_t total, int64_t pool, bool apart)
      : unit(std::max<int64_t>(rows.index ? rows.share : pool, 1)),
        units(total / unit),
        clouds(std::max<int64_t>(total / std::max<int64_t>(rows.per_cloud, 1), 1)),
        width(rows.width),
        graph(rows.index != nullptr) {
    const int64_t most = apart ? width / LANES : 1;
    splits = graph ? std::min<int64_t>(most, (at::get_num_threads() + clouds - 1) / clouds) : 1;
    count = graph ? clouds * splits : (units + CHUNK - 1) / CHUNK;
  }
  int64_t parts() const { return graph ? clouds : count; }  // that add up to sums apart from each other
  int64_t part(int64_t task) const { return task / splits; }
  int64_t begin(int64_t task) const { return graph ? task / splits * (units / clouds) : task * CHUNK; }
  int64_t end(int64_t task) const {
    return graph ? begin(task) + units / clouds : std::min(units, begin(task) + CHUNK);
  }
  int64_t first(int64_t task) const { return graph ? width / LANES * (task % splits) / splits * LANES : 0; }
  int64_t last(int64_t task) const {
    return graph && splits > 1 ? width / LANES * (task % splits + 1) / splits * LANES : width;
  }
};

template <typename T>
T* pointer(const Tensor& t) {
  return t.numel() ? t.data_ptr<T>() : nullptr;
}

// Gradients of the two tensors that rows are made of: memory for the kernels to fill.
struct Pair {
  Tensor a, b;
  Pair(const Tensor& for_a, const Maybe& for_b, const Maybe& index) {
    a = index ? at::zeros(for_a.sizes(), for_a.options()) : at::empty(for_a.sizes(), for_a.options());
    b = at::empty(for_b && index ? for_b->sizes() : at::IntArrayRef({0}), for_a.options());
  }
  // What all rows of a cloud share, or the weight that mapped them.
  void complete(const Maybe& for_b, const Maybe& index, const Tensor& weights) {
    if (!for_b || index) return;
    b = mapped(for_b) ? weights.view(for_b->sizes()).to(a.scalar_type()) : a.sum(1, true);
  }
};

}  // namespace vector_neurons
