// How backward passes divide the rows of a block's input (block_input.h) among threads, and where they write gradients.

#pragma once

#include "block_input.h"

namespace vector_neurons {

// Divides the rows into parts, each with partial sums of its own. On a graph a part is a cloud, since edges add to the
// gradients of their neighbors, which are in the same cloud; threads may then also divide the channels of a cloud.
// Otherwise a part is a range of chunks. The parts do not depend on the number of threads.
struct BackwardParts {
  int64_t unit, units, chunk, count, channel_splits, width;
  bool graph;

  BackwardParts(const BlockInput& input, int64_t width, int64_t group, bool split_channels)
      : unit(input.rows_per_unit(group)),
        units(input.num_rows / unit),
        chunk(input.chunk_rows(unit) / unit),
        channel_splits(1),
        width(width),
        graph(input.neighbors) {
    const int64_t chunks = (units + chunk - 1) / chunk;
    // Each part has a gradient of the weight: the larger that is, the fewer parts.
    const int64_t max_parts = std::clamp<int64_t>((1 << 22) / (input.weight ? input.weight->numel() + 1 : 1), 4, 64);
    count = graph ? input.a.size(0) : std::min(chunks, max_parts);
    if (graph && split_channels && count)
      channel_splits =
          std::clamp<int64_t>((at::get_num_threads() + count - 1) / count, 1, std::max<int64_t>(width / LANES, 1));
    if (graph) chunk = std::max<int64_t>(units / std::max<int64_t>(count, 1), 1);
  }

  // make_worker() is called once per thread; worker(part, first channel, last channel, first unit, last unit) then for
  // each chunk of a part in turn.
  template <typename MakeWorker>
  void operator()(const MakeWorker& make_worker) const {
    const int64_t chunks = (units + chunk - 1) / chunk;
    at::parallel_for(0, count * channel_splits, 1, [&](int64_t first, int64_t last) {
      const at::NoGradGuard no_grad;
      auto worker = make_worker();
      for (int64_t task = first; task < last; ++task) {
        const int64_t part = task / channel_splits, split = task % channel_splits, vectors = width / LANES;
        const int64_t c0 = vectors * split / channel_splits * LANES,
                      c1 = channel_splits > 1 ? vectors * (split + 1) / channel_splits * LANES : width;
        for (int64_t c = part * chunks / count; c < (part + 1) * chunks / count; ++c)
          worker(part, c0, c1, c * chunk, std::min(units, (c + 1) * chunk));
      }
    });
  }
};

// Gradients of a, b and weight; empty where not needed.
struct InputGradients {
  Tensor a, b, weight;

  // With a weight, the gradient of `a` costs a product, so it is computed only if needed.
  explicit InputGradients(const BlockInput& input, bool needs_grad_a = true)
      : a(allocate(needs_grad_a || !input.weight ? input.a.sizes() : at::IntArrayRef({0}), input.a.options())) {
    if (input.neighbors) a.zero_();  // edges add to it
    b = allocate(input.b && input.neighbors ? input.b->sizes() : at::IntArrayRef({0}), a.options());
    if (!input.num_rows) b.zero_();  // no edge will write it
    weight = allocate({0}, a.options());
  }
};

// One thread's access to the gradients of rows. On edges they are added to both rows that an edge is the sum of, in
// channels that no other thread touches. With a weight they are collected for a chunk and then multiplied by it.
// Otherwise they are written directly to the gradient of `a`.
template <typename T>
class GradientWriter {
 public:
  GradientWriter(const BlockInput& input, const InputGradients& to)
      : input(input), a(to.a.data_ptr<T>()), b(to.b.numel() ? to.b.data_ptr<T>() : nullptr), own(3 * input.columns) {}

  void start_chunk(int64_t begin, int64_t end) {
    if (!input.weight) return;
    chunk_begin = begin;
    if (!buffer.defined() || buffer.size(0) < 3 * (end - begin))
      buffer = allocate({3 * (end - begin), input.columns}, input.a.options()).zero_();
  }
  // Where to write the gradient of row m; that of an edge is to be added, there and to point_gradient().
  T* destination(int64_t m) {
    const int64_t row = 3 * input.columns;
    if (input.neighbors) return a + row * input.neighbor_row(m);
    return input.weight ? buffer.data_ptr<T>() + row * (m - chunk_begin) : a + row * m;
  }
  // Sum over the edges of the current point: the gradient of its row of `b`.
  T* point_gradient() { return own.data(); }
  // Writes point_gradient() of point u and resets it, in some columns.
  void finish_point(int64_t u, int64_t c0, int64_t c1) {
    if (!input.neighbors) return;
    const int64_t w = input.columns;
    for (int64_t d = 0; d < 3; ++d) {
      if (b) std::copy(own.data() + d * w + c0, own.data() + d * w + c1, b + (u * 3 + d) * w + c0);
      std::fill(own.data() + d * w + c0, own.data() + d * w + c1, T(0));
    }
  }
  // The gradients of a chunk's projected features.
  Tensor projected_gradients(int64_t begin, int64_t end) const { return buffer.narrow(0, 0, 3 * (end - begin)); }

 private:
  const BlockInput& input;
  T *a, *b;
  std::vector<T> own;
  Tensor buffer;
  int64_t chunk_begin = 0;
};

}  // namespace vector_neurons
