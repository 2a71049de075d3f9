// What the kernels of a vector-neuron block have in common: batch norm of lengths, leaky ReLU along a direction and, on
// the edges of a graph, the mean over each point's neighbours. One row (the vectors of one edge) is held in registers
// from beginning to end; edges never exist in memory, and the backward pass computes them again.
//
// A row is (3, columns): features q in the first `width` columns, their directions k in the others, as many, one for
// all features, or none. Widths are padded to a multiple of LANES with zeros, so that every loop over channels is made
// of whole SIMD vectors (those of edges must be). Row m is a sum of two rows that do exist:
//   edges of a graph       a[index[m]]: image at the neighbour    b[m / share]: image at the point itself, share = k
//   points and their mean  a[m]: image at the point               b[m / share]: of the cloud's mean, share = its points
//   anything else          a[m] only
// Without a graph, a weight (inputs, columns) can map a[m]. Such images are made for a chunk of rows at a time, which
// stays in cache, unless they are given, too; their gradients always are. Where no gradient is wanted, a weight in
// float64 may map rows of float32: everything is then done in float64, and the result rounded once.
//
// The loops are plain: compilers vectorise them for the machine they are told to build for.

#pragma once

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "noinline.h"
#include "matmul.h"

namespace vector_neurons {

using at::Tensor;
using Maybe = std::optional<Tensor>;

// ---------------------------------------------------------------------------------------------------------- the rows

// The two rows that one is the sum of; coordinates are a step apart.
template <typename T>
struct Row {
  const T *a, *b;
  int64_t step;
  T at(int64_t d, int64_t column) const { return a[d * step + column] + b[d * step + column]; }
  Row from(int64_t column) const { return {a + column, b + column, step}; }
};

// The points of a cloud in an order in which most have a neighbour before them, whose own neighbours are theirs, too:
// what they read is then still in cache. Depth first; a graph that leads out of the points has no such order.
inline void walk(const int64_t* neighbours, int64_t points, int64_t k, int64_t first, int64_t* order) {
  std::vector<int64_t> path, tried(points, 0);
  std::vector<bool> seen(points, false);
  for (int64_t start = 0; start < points; ++start) {
    for (int64_t next = start; next >= 0 && !seen[next];) {
      seen[next] = true, *order++ = first + next, path.push_back(next), next = -1;
      while (!path.empty() && next < 0) {
        const int64_t here = path.back();
        while (tried[here] < k && seen[neighbours[here * k + tried[here]]]) ++tried[here];
        if (tried[here] < k)
          next = neighbours[here * k + tried[here]];
        else
          path.pop_back();
      }
    }
  }
}

// How the rows are made.
struct Rows {
  Tensor a;
  Maybe b, weight, images, index;
  std::optional<Product> map;
  const int64_t* neighbours = nullptr;  // of the graph
  std::vector<int64_t> order;           // in which to go through its points
  int64_t columns, points, per_cloud, share, number;

  Rows(const Tensor& first, const Maybe& second, const Maybe& by, const Maybe& mapped, const Maybe& graph)
      : a(first), b(second), weight(by), images(mapped), index(graph) {
    TORCH_CHECK(a.dim() == 4 && a.size(2) == 3 && a.is_contiguous(),
                "rows must be contiguous (clouds, points, 3, columns)");
    for (const Maybe& other : {b, images})
      TORCH_CHECK(!other || (other->is_contiguous() && other->scalar_type() == type()),
                  "all rows need one type, contiguous");
    TORCH_CHECK(!weight || (!index && weight->dim() == 2 && weight->size(0) == a.size(3)),
                "a weight maps the channels of rows that exist");
    TORCH_CHECK(type() == a.scalar_type() || (type() == at::kDouble && !images), "a weight of ", type(),
                " cannot map rows of ", a.scalar_type());
    if (weight && !images) map.emplace(weight->t());
    columns = weight ? weight->size(1) : a.size(3), points = a.size(1);
    TORCH_CHECK(!images || (weight && images->numel() == a.size(0) * points * 3 * columns), "images need their weight");
    TORCH_CHECK(!b || b->sizes() == at::IntArrayRef({a.size(0), index ? index->size(1) : 1, 3, columns}),
                "the second rows are ", b ? b->sizes() : at::IntArrayRef(), " beside ", a.sizes());
    if (index) {
      TORCH_CHECK(index->dim() == 3 && index->size(0) == a.size(0) && index->is_contiguous() &&
                      index->scalar_type() == at::kLong,
                  "a graph must be int64 (clouds, points, k), got ", index->sizes());
      neighbours = index->const_data_ptr<int64_t>();
      const auto [least, most] = std::minmax_element(neighbours, neighbours + index->numel());
      TORCH_CHECK(index->numel() == 0 || (*least >= 0 && *most < points), "neighbours must be indices 0 to ",
                  points - 1);
    }
    const int64_t each = index ? index->size(1) * index->size(2) : points;
    number = a.size(0) * each, per_cloud = std::max<int64_t>(each, 1);
    share = std::max<int64_t>(index ? index->size(2) : points, 1);
    if (index && index->size(1) == points && index->size(2)) {
      order.resize(a.size(0) * points);
      at::parallel_for(0, a.size(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t cloud = begin; cloud < end; ++cloud)
          walk(neighbours + cloud * each, points, share, cloud * points, order.data() + cloud * points);
      });
    }
  }

  // In which rows are worked on.
  at::ScalarType type() const { return (weight ? *weight : a).scalar_type(); }
  // Rows that belong together: the edges of a point, or groups of others.
  int64_t unit(int64_t group) const { return index ? share : group; }
  // Which of them comes at some place.
  int64_t unit_at(int64_t place) const { return order.empty() ? place : order[place]; }

  // Which row of `a` an edge leads to.
  int64_t end_of(int64_t m) const { return m / per_cloud * points + neighbours[m]; }
  // What some rows are mapped from, in `a` or something like it.
  Tensor sources(const Tensor& x, int64_t begin, int64_t end) const {
    return x.view({-1, a.size(3)}).narrow(0, 3 * begin, 3 * (end - begin));
  }
  // Of rows, in whole groups, such that they stay in cache. Threads do not change it, nor therefore a bit of any sum.
  // There are at least two of more than one group: products of one alone would be divided among threads.
  int64_t chunk(int64_t group) const {
    const int64_t wanted = std::clamp<int64_t>((1 << 18) / (3 * std::max<int64_t>(columns, 1)), 256, 4096);
    return std::max<int64_t>(std::min(wanted, (number + 1) / 2) / group, 1) * group;
  }
};

// A thread's way to the rows, a chunk of them at a time.
template <typename T>
class Reader {
 public:
  explicit Reader(const Rows& rows)
      : rows(rows),
        a(rows.map ? nullptr : (rows.images ? *rows.images : rows.a).const_data_ptr<T>()),
        b(rows.b ? rows.b->const_data_ptr<T>() : nullptr),
        zeros(3 * rows.columns) {}

  void open(int64_t begin, int64_t end) {
    if (!rows.map) return;
    made = rows.map->in(room, rows.sources(rows.a, begin, end).to(rows.type()));
    a = made.const_data_ptr<T>(), start = begin;
  }
  Row<T> operator()(int64_t m) const {
    const int64_t w = rows.columns, source = rows.index ? rows.end_of(m) : m - start;
    return {a + source * 3 * w, b ? b + m / rows.share * 3 * w : zeros.data(), w};
  }

 private:
  const Rows& rows;
  const T *a, *b;
  std::vector<T> zeros;
  Tensor made, room;
  int64_t start = 0;
};

// Rows whose sums are added up in their own precision, unless they are edges: over thousands that would lose digits.
constexpr int64_t FLUSH = 32;

// Rows are worked on several at a time, as far as they share their second: what they have in common is read once.
constexpr int ABREAST = 4;

template <int MOST, typename Body>
inline void abreast(const Rows& rows, int64_t begin, int64_t end, const Body& body) {
  for (int64_t m = begin, stop; m < end;) {
    stop = std::min(end, (m / rows.share + 1) * rows.share);
    for (; m + MOST <= stop; m += MOST) body(m, std::integral_constant<int, MOST>{});
    for (; m < stop; ++m) body(m, std::integral_constant<int, 1>{});
  }
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
inline T length(T x0, T x1, T x2) {
  const T squares = x0 * x0 + x1 * x1 + x2 * x2;
  return std::sqrt(squares < tiny<T>() ? tiny<T>() : squares);
}

// Add up what parts of the work found, (parts, sums, width), always in the same order.
inline Tensor total(const std::vector<double>& partial, int64_t sums, int64_t width, const Tensor& like) {
  Tensor out = at::zeros({sums, width}, like.options().dtype(at::kDouble));
  double* o = out.data_ptr<double>();
  const int64_t n = sums * width;
  for (size_t start = 0; start < partial.size(); start += n)
    for (int64_t i = 0; i < n; ++i) o[i] += partial[start + i];
  return out;
}

// The work of a backward pass, in parts that add up to sums of their own. On a graph a part is a cloud, whose points
// are neighbours of each other only, and threads may share its channels; else it is some chunks of rows. Rows are taken
// in units that belong together.
struct Parts {
  int64_t unit, units, chunk, count, splits, width;
  bool graph;

  Parts(const Rows& rows, int64_t width, int64_t group, bool apart)
      : unit(rows.unit(group)),
        units(rows.number / unit),
        chunk(rows.chunk(unit) / unit),
        splits(1),
        width(width),
        graph(rows.index) {
    const int64_t chunks = (units + chunk - 1) / chunk;
    const int64_t most = std::clamp<int64_t>((1 << 22) / (rows.weight ? rows.weight->numel() + 1 : 1), 4, 64);
    count = graph ? rows.a.size(0) : std::min(chunks, most);
    if (graph && apart && count)
      splits = std::clamp<int64_t>((at::get_num_threads() + count - 1) / count, 1, std::max<int64_t>(width / LANES, 1));
    if (graph) chunk = std::max<int64_t>(units / std::max<int64_t>(count, 1), 1);
  }

  // body(part, first channel, last channel, first unit, last unit), chunk after chunk of a part.
  template <typename Body>
  void operator()(const Body& body) const {
    const int64_t chunks = (units + chunk - 1) / chunk;
    at::parallel_for(0, count * splits, 1, [&](int64_t first, int64_t last) {
      const at::NoGradGuard no_grad;
      auto work = body();
      for (int64_t task = first; task < last; ++task) {
        const int64_t part = task / splits, split = task % splits, lanes = width / LANES;
        const int64_t c0 = lanes * split / splits * LANES,
                      c1 = splits > 1 ? lanes * (split + 1) / splits * LANES : width;
        for (int64_t c = part * chunks / count; c < (part + 1) * chunks / count; ++c)
          work(part, c0, c1, c * chunk, std::min(units, (c + 1) * chunk));
      }
    });
  }
};

// Gradients of what rows are made of.
struct Gradients {
  Tensor a, b, weight;

  // Of the sources of images only if they are wanted: that is a product.
  explicit Gradients(const Rows& rows, bool of_a = true)
      : a(allocate(of_a || !rows.weight ? rows.a.sizes() : at::IntArrayRef({0}), rows.a.options())) {
    if (rows.index) a.zero_();  // edges add to it
    b = allocate(rows.b && rows.index ? rows.b->sizes() : at::IntArrayRef({0}), a.options());
    if (!rows.number) b.zero_();  // no edge will write it
    weight = allocate({0}, a.options());
  }
};

// Where a thread leaves the gradients of rows: on edges they are added to the rows that each is the sum of, at channels
// that the thread has for itself; images go back through their weight, a chunk at a time; others are where they belong.
template <typename T>
class Sink {
 public:
  Sink(const Rows& rows, const Gradients& to)
      : rows(rows), a(to.a.data_ptr<T>()), b(to.b.numel() ? to.b.data_ptr<T>() : nullptr), own(3 * rows.columns) {}

  void open(int64_t begin, int64_t end) {
    if (!rows.weight) return;
    start = begin;
    if (!images.defined() || images.size(0) < 3 * (end - begin))
      images = allocate({3 * (end - begin), rows.columns}, rows.a.options()).zero_();
  }
  // Where the gradient of a row is to be written; an edge's is to be added, there and to what is the point's own.
  T* at(int64_t m) {
    const int64_t row = 3 * rows.columns;
    if (rows.index) return a + row * rows.end_of(m);
    return rows.weight ? images.data_ptr<T>() + row * (m - start) : a + row * m;
  }
  T* mine() { return own.data(); }
  // The edges of point u are through.
  void finish(int64_t u, int64_t c0, int64_t c1) {
    if (!rows.index) return;
    const int64_t w = rows.columns;
    for (int64_t d = 0; d < 3; ++d) {
      if (b) std::copy(own.data() + d * w + c0, own.data() + d * w + c1, b + (u * 3 + d) * w + c0);
      std::fill(own.data() + d * w + c0, own.data() + d * w + c1, T(0));
    }
  }
  // The gradients of a chunk's images.
  Tensor of_images(int64_t begin, int64_t end) const { return images.narrow(0, 0, 3 * (end - begin)); }

 private:
  const Rows& rows;
  T *a, *b;
  std::vector<T> own;
  Tensor images;
  int64_t start = 0;
};

}  // namespace vector_neurons
