// The factored input of a vector-neuron block, and how forward passes read it. A block is a batch norm of lengths, a
// leaky ReLU along a direction and, on the edges of a graph, the mean over each point's neighbors. One row (the vectors
// of one edge) stays in registers from beginning to end; edges are never stored, and the backward pass recomputes them.
//
// A row is (3, columns): features q in the first `width` columns, behind them their directions k, which are as many as
// the features, one for all of them, or none. Widths are padded with zeros to a multiple of LANES, so that loops over
// channels consist of whole SIMD vectors (this is required of edges). Row m is the sum of two stored rows:
//   edges of a graph       a[neighbors[m]] of the neighbor + b[m / rows_per_b] of the point itself, both projected
//   points and their mean  a[m] of the point               + b[m / rows_per_b] of the cloud's mean, both projected
//   anything else          a[m] only
// Without a graph, a weight (inputs, columns) can project a[m]. Projected features are computed for one chunk of rows
// at a time, which stays in cache, unless they are passed in as well; their gradients are always computed that way.
// Without a gradient, a weight in float64 may project rows in float32: all arithmetic is then in float64, and the
// result is rounded once.
//
// Loops are written in plain C++: compilers vectorize them for the machine given by -march.

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

#include "matmul.h"
#include "noinline.h"

namespace vector_neurons {

using at::Tensor;
using Maybe = std::optional<Tensor>;

// A row as the sum of two stored rows; coordinates are `stride` elements apart.
template <typename T>
struct SummedRow {
  const T *a, *b;
  int64_t stride;
  T at(int64_t d, int64_t column) const { return a[d * stride + column] + b[d * stride + column]; }
  SummedRow from(int64_t column) const { return {a + column, b + column, stride}; }
};

// Depth-first order of a cloud's points along the graph: consecutive points share neighbors, whose rows are then still
// in cache. All edges must lead to points of the cloud.
inline void depth_first_order(const int64_t* neighbors, int64_t points, int64_t k, int64_t first, int64_t* order) {
  std::vector<int64_t> stack, next_edge(points, 0);
  std::vector<bool> visited(points, false);
  for (int64_t start = 0; start < points; ++start) {
    for (int64_t next = start; next >= 0 && !visited[next];) {
      visited[next] = true, *order++ = first + next, stack.push_back(next), next = -1;
      while (!stack.empty() && next < 0) {
        const int64_t here = stack.back();
        while (next_edge[here] < k && visited[neighbors[here * k + next_edge[here]]]) ++next_edge[here];
        if (next_edge[here] < k)
          next = neighbors[here * k + next_edge[here]];
        else
          stack.pop_back();
      }
    }
  }
}

// The checked arguments of an operator, and the layout of their rows.
struct BlockInput {
  Tensor a;
  Maybe b, weight, projected, neighbors;
  std::optional<Matmul> matmul;  // by the weight, unless the projected features are given
  const int64_t* neighbor_data = nullptr;
  std::vector<int64_t> order;  // in which to process the points of a graph; empty: as they are numbered
  int64_t columns, points, rows_per_cloud, rows_per_b, num_rows;

  BlockInput(const Tensor& a_, const Maybe& b_, const Maybe& weight_, const Maybe& projected_, const Maybe& neighbors_)
      : a(a_), b(b_), weight(weight_), projected(projected_), neighbors(neighbors_) {
    TORCH_CHECK(a.dim() == 4 && a.size(2) == 3 && a.is_contiguous(),
                "rows must be contiguous (clouds, points, 3, columns)");
    for (const Maybe& other : {b, projected})
      TORCH_CHECK(!other || (other->is_contiguous() && other->scalar_type() == dtype()),
                  "all rows need one type, contiguous");
    TORCH_CHECK(!weight || (!neighbors && weight->dim() == 2 && weight->size(0) == a.size(3)),
                "a weight maps the channels of points, not of edges");
    TORCH_CHECK(dtype() == a.scalar_type() || (dtype() == at::kDouble && !projected), "a weight of ", dtype(),
                " cannot map rows of ", a.scalar_type());
    if (weight && !projected) matmul.emplace(weight->t());
    columns = weight ? weight->size(1) : a.size(3), points = a.size(1);
    TORCH_CHECK(!projected || (weight && projected->numel() == a.size(0) * points * 3 * columns),
                "projected features need their weight");
    TORCH_CHECK(!b || b->sizes() == at::IntArrayRef({a.size(0), neighbors ? neighbors->size(1) : 1, 3, columns}),
                "the second rows are ", b ? b->sizes() : at::IntArrayRef(), " beside ", a.sizes());
    if (neighbors) {
      TORCH_CHECK(neighbors->dim() == 3 && neighbors->size(0) == a.size(0) && neighbors->is_contiguous() &&
                      neighbors->scalar_type() == at::kLong,
                  "neighbors must be int64 (clouds, points, k), got ", neighbors->sizes());
      neighbor_data = neighbors->const_data_ptr<int64_t>();
      const auto [least, most] = std::minmax_element(neighbor_data, neighbor_data + neighbors->numel());
      TORCH_CHECK(neighbors->numel() == 0 || (*least >= 0 && *most < points), "neighbors must be indices 0 to ",
                  points - 1);
    }
    const int64_t per_cloud = neighbors ? neighbors->size(1) * neighbors->size(2) : points;
    num_rows = a.size(0) * per_cloud, rows_per_cloud = std::max<int64_t>(per_cloud, 1);
    rows_per_b = std::max<int64_t>(neighbors ? neighbors->size(2) : points, 1);
    if (neighbors && neighbors->size(1) == points && neighbors->size(2)) {
      order.resize(a.size(0) * points);
      at::parallel_for(0, a.size(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t cloud = begin; cloud < end; ++cloud)
          depth_first_order(neighbor_data + cloud * per_cloud, points, rows_per_b, cloud * points,
                            order.data() + cloud * points);
      });
    }
  }

  // Of the arithmetic.
  at::ScalarType dtype() const { return (weight ? *weight : a).scalar_type(); }
  // Rows that are processed together: the edges of a point, or a group of points.
  int64_t rows_per_unit(int64_t group) const { return neighbors ? rows_per_b : group; }
  // The unit to process at some position.
  int64_t unit_at(int64_t position) const { return order.empty() ? position : order[position]; }

  // The row of `a` that edge m leads to.
  int64_t neighbor_row(int64_t m) const { return m / rows_per_cloud * points + neighbor_data[m]; }
  // What rows are projected from, of `a` or a tensor of its shape; (3 rows, inputs).
  Tensor unprojected(const Tensor& x, int64_t begin, int64_t end) const {
    return x.view({-1, a.size(3)}).narrow(0, 3 * begin, 3 * (end - begin));
  }
  // Rows of a chunk: whole groups that fit into cache. It does not depend on the number of threads, and therefore
  // neither does the order of any summation. More than one group makes at least two chunks: torch would divide the
  // product of a single one among threads.
  int64_t chunk_rows(int64_t group) const {
    const int64_t wanted = std::clamp<int64_t>((1 << 18) / (3 * std::max<int64_t>(columns, 1)), 256, 4096);
    return std::max<int64_t>(std::min(wanted, (num_rows + 1) / 2) / group, 1) * group;
  }
};

// One thread's access to the rows.
template <typename T>
class RowReader {
 public:
  explicit RowReader(const BlockInput& input)
      : input(input),
        a(input.matmul ? nullptr : (input.projected ? *input.projected : input.a).const_data_ptr<T>()),
        b(input.b ? input.b->const_data_ptr<T>() : nullptr),
        zeros(3 * input.columns) {}

  // Projects a chunk of rows, if there is a weight. Only rows of the current chunk can be read then.
  void load_chunk(int64_t begin, int64_t end) {
    if (!input.matmul) return;
    chunk = input.matmul->into(buffer, input.unprojected(input.a, begin, end).to(input.dtype()));
    a = chunk.const_data_ptr<T>(), chunk_begin = begin;
  }
  SummedRow<T> operator()(int64_t m) const {
    const int64_t w = input.columns, source = input.neighbors ? input.neighbor_row(m) : m - chunk_begin;
    return {a + source * 3 * w, b ? b + m / input.rows_per_b * 3 * w : zeros.data(), w};
  }

 private:
  const BlockInput& input;
  const T *a, *b;
  std::vector<T> zeros;
  Tensor chunk, buffer;
  int64_t chunk_begin = 0;
};

// Points whose sums are accumulated in their own precision before they are added in float64: over thousands of rows,
// float32 would lose digits. (Edges are accumulated point by point.)
constexpr int64_t ROWS_PER_PARTIAL_SUM = 32;

// Row blocking: this many rows with the same row of `b` are processed at once, and what they share is loaded once.
constexpr int ROW_BLOCK = 4;

// Calls body(first row, std::integral_constant<int, rows>) for blocks of MAX_ROWS rows, and for the rest row by row.
template <int MAX_ROWS, typename Body>
inline void for_row_blocks(const BlockInput& input, int64_t begin, int64_t end, const Body& body) {
  for (int64_t m = begin, stop; m < end;) {
    stop = std::min(end, (m / input.rows_per_b + 1) * input.rows_per_b);
    for (; m + MAX_ROWS <= stop; m += MAX_ROWS) body(m, std::integral_constant<int, MAX_ROWS>{});
    for (; m < stop; ++m) body(m, std::integral_constant<int, 1>{});
  }
}

// Squares below this count as this: square roots stay differentiable, and the square of the inverse finite.
template <typename T>
inline T smallest_square() {
  return std::sqrt(std::numeric_limits<T>::min());
}
template <typename T>
inline T smallest_length() {
  return std::sqrt(smallest_square<T>());
}

template <typename T>
inline T length(T x0, T x1, T x2) {
  const T squares = x0 * x0 + x1 * x1 + x2 * x2;
  return std::sqrt(squares < smallest_square<T>() ? smallest_square<T>() : squares);
}

// Adds partial sums (parts, sums, width) in a fixed order.
inline Tensor add_partial_sums(const std::vector<double>& partial, int64_t sums, int64_t width, const Tensor& like) {
  Tensor out = at::zeros({sums, width}, like.options().dtype(at::kDouble));
  double* o = out.data_ptr<double>();
  const int64_t n = sums * width;
  for (size_t start = 0; start < partial.size(); start += n)
    for (int64_t i = 0; i < n; ++i) o[i] += partial[start + i];
  return out;
}

}  // namespace vector_neurons
