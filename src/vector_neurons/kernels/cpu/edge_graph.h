// A graph of scalar features for edge_max.cpp, and how tasks divide its clouds and channels.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "matmul.h"

namespace vector_neurons {
namespace {

constexpr int64_t VECTORS = 2, CHUNK_TILES = 4;  // SIMD vectors of a tile, tiles of a task
template <typename T>
constexpr int64_t TILE = VECTORS * SIMD_WIDTH<T>;
template <typename T>
constexpr int64_t CHUNK = CHUNK_TILES * TILE<T>;

// A SIMD vector, and the integers that comparing two of them gives.
template <typename T>
struct Simd {
  typedef T Values __attribute__((vector_size(SIMD_WIDTH<T> * sizeof(T)), aligned(alignof(T)), may_alias));
  using Index = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  typedef Index Indices __attribute__((vector_size(SIMD_WIDTH<T> * sizeof(T)), aligned(alignof(T)), may_alias));

  static Values load(const T* from, int64_t vector) {
    return *reinterpret_cast<const Values*>(from + vector * SIMD_WIDTH<T>);
  }
  static void store(T* to, int64_t vector, Values values) {
    *reinterpret_cast<Values*>(to + vector * SIMD_WIDTH<T>) = values;
  }
};

struct Graph {
  int64_t clouds, points, k, channels;
  const int64_t* neighbors;

  Graph(const Tensor& projected, const Tensor& graph)
      : clouds(projected.size(0)), points(projected.size(1)), k(graph.size(-1)), channels(projected.size(-1) / 2),
        neighbors(graph.const_data_ptr<int64_t>()) {
    TORCH_CHECK(projected.dim() == 3 && projected.size(2) % 2 == 0 && k > 0 &&
                    graph.sizes() == at::IntArrayRef({clouds, points, k}),
                "projected features (clouds, points, 2 channels) need neighbors (clouds, points, k), got ",
                projected.sizes(), " and ", graph.sizes());
    TORCH_CHECK(projected.is_contiguous() && graph.is_contiguous(), "an edge convolution needs contiguous tensors");
    for (int64_t i = 0; i < graph.numel(); ++i)
      TORCH_CHECK_INDEX(neighbors[i] >= 0 && neighbors[i] < points, "neighbor ", neighbors[i], " is not one of ",
                        points, " points");
  }

  // The points of cloud c whose neighbor is m are sources[starts[m]] to sources[starts[m + 1]].
  void reverse(int64_t c, std::vector<int64_t>& starts, std::vector<int64_t>& sources) const {
    const int64_t* m = neighbors + c * points * k;
    starts.assign(points + 2, 0), sources.resize(points * k);
    for (int64_t e = 0; e < points * k; ++e) ++starts[m[e] + 2];
    for (int64_t i = 2; i < points + 2; ++i) starts[i] += starts[i - 1];
    for (int64_t e = 0; e < points * k; ++e) sources[starts[m[e] + 1]++] = e / k;
  }
};

// Some channels of a cloud, and rows of memory for them, padded with zeros to whole tiles.
template <typename T>
struct Chunk {
  int64_t cloud, first, count, width;
  T *rows, *more;  // (points, width) each

  // Copies the rows of the cloud from (points, stride), each element mapped by `each(value, channel of the chunk)`.
  template <typename Map>
  void load(T* to, const T* from, int64_t stride, int64_t points, const Map& each) const {
    for (int64_t n = 0; n < points; ++n, to += width, from += stride) {
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) to[c] = each(from[c], c);
      std::fill(to + count, to + width, T(0));
    }
  }
};

template <typename T, typename Body>
void for_each_chunk(const Graph& g, const Body& body) {
  const int64_t chunks = (g.channels + CHUNK<T> - 1) / CHUNK<T>;
  at::parallel_for(0, g.clouds * chunks, 1, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<T[]> memory(new T[2 * g.points * CHUNK<T>]);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % chunks * CHUNK<T>, count = std::min(CHUNK<T>, g.channels - first);
      const int64_t width = (count + TILE<T> - 1) / TILE<T> * TILE<T>;
      body(Chunk<T>{task / chunks, first, count, width, memory.get(), memory.get() + g.points * CHUNK<T>});
    }
  });
}

}  // namespace
}  // namespace vector_neurons
