// An edge convolution of scalars with a maximum over the neighbors, without a tensor of edges. The edge from point n to
// its neighbor m maps to a_m + b_n. Batch norm and leaky ReLU are monotone in every channel, so that
//   max over m of act(norm(a_m + b_n)) = act(norm(max over m of a_m + b_n)),
// with the minimum where the norm's scale is negative. The statistics of a batch are those of all edges: sums over the
// neighbors of a point, which stay in registers, are all that is needed of them, forward and backward.
//
// projected (clouds, points, 2 channels): a and, behind it, b; neighbors (clouds, points, k). A task is some channels of
// one cloud, so few that a copy of its rows stays in cache, where edges lead from anywhere to anywhere. All sums are
// taken in an order that does not depend on the threads.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "edge_graph.h"
#include "scalar_norm.h"

using namespace vector_neurons;

namespace {

template <typename T>
struct Scanned {  // of the edges of one point
  T best[CHUNK<T>], sum[CHUNK<T>], square[CHUNK<T>];
  typename Simd<T>::Index where[CHUNK<T>];
};

// With v = flip a_m + b: flip times the largest v, the first neighbor that has it, and with STATS flip times the sum of
// v, and the sum of its square. A NaN becomes the maximum and stays it, as in torch.
template <typename T, bool STATS>
NOINLINE void scan_neighbors(const T* rows, int64_t width, const int64_t* neighbors, int64_t k, const T* flips,
                             const T* own, Scanned<T>& out) {
  using S = Simd<T>;
  using Values = typename S::Values;
  using Indices = typename S::Indices;
  for (int64_t tile = 0; tile < width; tile += TILE<T>) {
    Values flip[VECTORS], b[VECTORS], best[VECTORS], sum[VECTORS], square[VECTORS];
    Indices where[VECTORS];
    for (int64_t i = 0; i < VECTORS; ++i) {
      flip[i] = S::load(flips + tile, i), b[i] = S::load(own + tile, i);
      best[i] = sum[i] = flip[i] * S::load(rows + neighbors[0] * width + tile, i) + b[i];
      square[i] = sum[i] * sum[i], where[i] = Indices{} + typename S::Index(neighbors[0]);
    }
    for (int64_t j = 1; j < k; ++j) {
      const T* row = rows + neighbors[j] * width + tile;
      const Indices here = Indices{} + typename S::Index(neighbors[j]);
      for (int64_t i = 0; i < VECTORS; ++i) {
        const Values v = flip[i] * S::load(row, i) + b[i];
        const Indices stays = Indices(v <= best[i]) | Indices(best[i] != best[i]);
        best[i] = stays ? best[i] : v;
        where[i] = stays ? where[i] : here;
        if (STATS) sum[i] += v, square[i] += v * v;
      }
    }
    for (int64_t i = 0; i < VECTORS; ++i) {
      S::store(out.best + tile, i, flip[i] * best[i]);
      *reinterpret_cast<Indices*>(out.where + tile + i * SIMD_WIDTH<T>) = where[i];
      if (STATS) S::store(out.sum + tile, i, flip[i] * sum[i]), S::store(out.square + tile, i, square[i]);
    }
  }
}

// The means over all edges of a_m + b_n and of a_m, from the points and how often each is a neighbor.
template <typename T>
void means_of_edges(const Graph& g, const T* projected, double* mean, double* mean_a) {
  std::vector<double> sums(g.clouds * 2 * g.channels, 0);
  at::parallel_for(0, g.clouds, 1, [&](int64_t begin, int64_t end) {
    for (int64_t cloud = begin; cloud < end; ++cloud) {
      std::vector<int64_t> degree(g.points, 0);
      for (int64_t e = 0; e < g.points * g.k; ++e) ++degree[g.neighbors[cloud * g.points * g.k + e]];
      double *sum = sums.data() + cloud * 2 * g.channels, *sum_a = sum + g.channels;
      for (int64_t n = 0; n < g.points; ++n) {
        const T *a = projected + (cloud * g.points + n) * 2 * g.channels, *b = a + g.channels;
        const double times_a = degree[n], times_b = g.k;
#pragma omp simd
        for (int64_t c = 0; c < g.channels; ++c)
          sum[c] += times_a * double(a[c]) + times_b * double(b[c]), sum_a[c] += times_a * double(a[c]);
      }
    }
  });
  const double edges = double(g.clouds * g.points * g.k);
  for (int64_t c = 0; c < g.channels; ++c) {
    for (int64_t cloud = 0; cloud < g.clouds; ++cloud)
      mean[c] += sums[cloud * 2 * g.channels + c], mean_a[c] += sums[(cloud * 2 + 1) * g.channels + c];
    mean[c] /= edges, mean_a[c] /= edges;
  }
}

// Splits a center between a and b, so that both lose what they have in common before they are rounded: the offset of a,
// in its precision, and the rest for b.
template <typename T>
struct Center {
  std::vector<T> of_a;
  std::vector<double> of_b;

  Center(const double* mean, const double* mean_a, int64_t channels) : of_a(channels), of_b(channels) {
    for (int64_t c = 0; c < channels; ++c) of_a[c] = mean_a[c], of_b[c] = mean[c] - double(of_a[c]);
  }
};

// Of d = a_m + b_n - center over the neighbors m of each point n, (clouds, points, channels): the largest, or the
// smallest where sign < 0; which point m has it; and the sum. Without a center it is the mean of all edges: then also
// their mean and biased variance, and the mean of a, (3, channels) in float64. With a center, sums and statistics are
// empty.
std::tuple<Tensor, Tensor, Tensor, Tensor> edge_max(const Tensor& projected, const Tensor& neighbors,
                                                    const Tensor& sign, const std::optional<Tensor>& center) {
  const Graph g(projected, neighbors);
  TORCH_CHECK(sign.sizes() == at::IntArrayRef({g.channels}), "an edge convolution needs ", g.channels, " signs");
  TORCH_CHECK(!center || (center->sizes() == at::IntArrayRef({g.channels}) && center->is_contiguous() &&
                          center->scalar_type() == at::kDouble),
              "an edge convolution needs ", g.channels, " centers in float64");
  const std::vector<int64_t> shape = {g.clouds, g.points, g.channels};
  Tensor largest = allocate(shape, projected.options()),
         argmax = allocate(shape, projected.options().dtype(at::kInt)),
         sums = center ? at::zeros({0}, projected.options()) : allocate(shape, projected.options()),
         moments = at::zeros({center ? 0 : 3, g.channels}, projected.options().dtype(at::kDouble));
  const Tensor signs = sign.to(projected.scalar_type()).contiguous();
  AT_DISPATCH_FLOATING_TYPES(projected.scalar_type(), "edge_max", [&] {
    const scalar_t *data = projected.const_data_ptr<scalar_t>(), *sign_of = signs.const_data_ptr<scalar_t>();
    std::vector<double> mean(g.channels, 0), mean_a(g.channels, 0);
    if (center)
      std::copy_n(center->const_data_ptr<double>(), g.channels, mean.data());
    else
      means_of_edges(g, data, mean.data(), mean_a.data());
    const Center<scalar_t> centers(mean.data(), mean_a.data(), g.channels);
    std::vector<double> totals(center ? 0 : g.clouds * 2 * g.channels, 0);  // of each cloud
    for_each_chunk<scalar_t>(g, [&](const Chunk<scalar_t>& chunk) {
      const auto [cloud, first, count, width, rows, _] = chunk;
      const scalar_t* from = data + cloud * g.points * 2 * g.channels + first;
      const scalar_t* of_a = centers.of_a.data() + first;
      const double* of_b = centers.of_b.data() + first;
      chunk.load(rows, from, 2 * g.channels, g.points, [&](scalar_t value, int64_t c) { return value - of_a[c]; });
      scalar_t flip[CHUNK<scalar_t>] = {}, b[CHUNK<scalar_t>] = {};
      for (int64_t c = 0; c < count; ++c) flip[c] = sign_of[first + c] < 0 ? -1 : 1;
      double sum[CHUNK<scalar_t>] = {}, square[CHUNK<scalar_t>] = {};
      Scanned<scalar_t> found;
      for (int64_t n = 0; n < g.points; ++n) {
        const scalar_t* own = from + n * 2 * g.channels + g.channels;
        for (int64_t c = 0; c < count; ++c) b[c] = flip[c] * scalar_t(double(own[c]) - of_b[c]);
        (center ? scan_neighbors<scalar_t, false> : scan_neighbors<scalar_t, true>)(
            rows, width, g.neighbors + (cloud * g.points + n) * g.k, g.k, flip, b, found);
        const int64_t to = (cloud * g.points + n) * g.channels + first;
        std::copy_n(found.best, count, largest.data_ptr<scalar_t>() + to);
        std::copy_n(found.where, count, argmax.data_ptr<int32_t>() + to);
        if (center) continue;
        std::copy_n(found.sum, count, sums.data_ptr<scalar_t>() + to);
        for (int64_t c = 0; c < width; ++c) sum[c] += found.sum[c], square[c] += found.square[c];
      }
      if (center) return;
      double* total = totals.data() + cloud * 2 * g.channels + first;
      std::copy_n(sum, count, total), std::copy_n(square, count, total + g.channels);
    });
    if (center) return;
    const double edges = double(g.clouds * g.points * g.k);
    for (int64_t c = 0; c < g.channels; ++c) {
      double sum = 0, square = 0;
      for (int64_t cloud = 0; cloud < g.clouds; ++cloud)
        sum += totals[cloud * 2 * g.channels + c], square += totals[(cloud * 2 + 1) * g.channels + c];
      const double variance = square / edges - (sum / edges) * (sum / edges);  // the sum is zero up to rounding
      double* to = moments.data_ptr<double>() + c;
      to[0] = mean[c], to[g.channels] = variance < 0 ? 0 : variance, to[2 * g.channels] = mean_a[c];
    }
  });
  return {largest, argmax, sums, moments};
}

void check_edge_norm(const Graph& g, const Tensor& largest, const Tensor& argmax, const Tensor& sums,
                     const Tensor& moments, const Tensor& norm, int64_t batch) {
  const std::vector<int64_t> shape = {g.clouds, g.points, g.channels};
  const bool statistics = sums.sizes() == shape && moments.sizes() == at::IntArrayRef({3, g.channels});
  TORCH_CHECK(largest.sizes() == shape && argmax.sizes() == shape && (!batch || statistics) &&
                  argmax.scalar_type() == at::kInt && moments.scalar_type() == at::kDouble &&
                  norm.sizes() == at::IntArrayRef({4, g.channels}) && norm.scalar_type() == largest.scalar_type() &&
                  largest.is_contiguous() && argmax.is_contiguous() && sums.is_contiguous() && norm.is_contiguous() &&
                  moments.is_contiguous(),
              "edge_norm takes what edge_max returns, and a norm (4, ", g.channels, ")");
}

// norm (4, channels): scale, shift, center, inverse variance, of which `largest` is centered already.
template <typename T>
NOINLINE void scale_and_activate(const T* x, int64_t rows, int64_t channels, Norm<T> p, T* out) {
  for (int64_t r = 0; r < rows; ++r, x += channels, out += channels) {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const T z = x[c] * p.scale[c] + p.shift[c];
      out[c] = z > 0 ? z : p.slope * z;
    }
  }
}

// Norm and leaky ReLU of what edge_max found.
Tensor edge_norm(const Tensor& projected, const Tensor& neighbors, const Tensor& largest, const Tensor& argmax,
                 const Tensor& sums, const Tensor& moments, const Tensor& norm, double slope, int64_t batch) {
  const Graph g(projected, neighbors);
  check_edge_norm(g, largest, argmax, sums, moments, norm, batch);
  Tensor out = allocate(largest.sizes(), largest.options());
  AT_DISPATCH_FLOATING_TYPES(largest.scalar_type(), "edge_norm", [&] {
    const Norm<scalar_t> p(norm, slope);
    at::parallel_for(0, g.clouds * g.points, 256, [&](int64_t begin, int64_t end) {
      scale_and_activate(largest.const_data_ptr<scalar_t>() + begin * g.channels, end - begin, g.channels, p,
                         out.data_ptr<scalar_t>() + begin * g.channels);
    });
  });
  return out;
}

// The gradient of z, before the leaky ReLU.
template <typename T>
inline T before(T g, T x, const Norm<T>& p, int64_t c) {
  return x * p.scale[c] + p.shift[c] > 0 ? g : p.slope * g;
}

// Adds the sums over rows of the gradient of z and of its product with x.
template <typename T>
NOINLINE void add_gradient_sums(const T* __restrict x, const T* __restrict g, int64_t rows, int64_t channels, Norm<T> p,
                                double* __restrict sum, double* __restrict product) {
  for (int64_t r = 0; r < rows; ++r, x += channels, g += channels) {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const double gz = before(g[c], x[c], p, c);
      sum[c] += gz, product[c] += gz * double(x[c]);
    }
  }
}

// The sums over the sources n of a + b_n.
template <typename T>
NOINLINE void add_sources(const T* a, const T* rows, int64_t width, const int64_t* sources, int64_t count, T* out) {
  using S = Simd<T>;
  for (int64_t tile = 0; tile < width; tile += TILE<T>) {
    typename S::Values own[VECTORS], sum[VECTORS] = {};
    for (int64_t i = 0; i < VECTORS; ++i) own[i] = S::load(a + tile, i);
    for (int64_t s = 0; s < count; ++s)
      for (int64_t i = 0; i < VECTORS; ++i) sum[i] += own[i] + S::load(rows + sources[s] * width + tile, i);
    for (int64_t i = 0; i < VECTORS; ++i) S::store(out + tile, i, sum[i]);
  }
}

// Gradients of the projected features and of the norm. With batch, the number of edges, center and variance are their
// statistics: the gradient of d is then scale (gz [m is the one] - constant - d linear) on every edge, which is summed
// over the edges that share a point.
std::tuple<Tensor, Tensor> edge_norm_backward(const Tensor& grad, const Tensor& projected, const Tensor& neighbors,
                                              const Tensor& largest, const Tensor& argmax, const Tensor& sums,
                                              const Tensor& moments, const Tensor& norm, double slope, int64_t batch) {
  const Graph g(projected, neighbors);
  check_edge_norm(g, largest, argmax, sums, moments, norm, batch);
  const int32_t* where = argmax.const_data_ptr<int32_t>();
  TORCH_CHECK_INDEX(std::all_of(where, where + argmax.numel(), [&](int32_t m) { return m >= 0 && m < g.points; }),
                    "a maximum is not at one of ", g.points, " points");
  const Tensor incoming = grad.contiguous();
  Tensor gprojected = allocate(projected.sizes(), projected.options()), gnorm = at::zeros(norm.sizes(), norm.options());
  AT_DISPATCH_FLOATING_TYPES(projected.scalar_type(), "edge_norm_backward", [&] {
    const Norm<scalar_t> p(norm, slope);
    const scalar_t *gs = incoming.const_data_ptr<scalar_t>(), *found = largest.const_data_ptr<scalar_t>();
    const int64_t per_cloud = g.points * g.channels;
    std::vector<double> totals(g.clouds * 2 * g.channels, 0);
    std::vector<std::vector<int64_t>> starts(g.clouds), sources(g.clouds);
    at::parallel_for(0, g.clouds, 1, [&](int64_t begin, int64_t end) {
      for (int64_t cloud = begin; cloud < end; ++cloud) {
        double* total = totals.data() + cloud * 2 * g.channels;
        add_gradient_sums(found + cloud * per_cloud, gs + cloud * per_cloud, g.points, g.channels, p, total,
                          total + g.channels);
        if (batch) g.reverse(cloud, starts[cloud], sources[cloud]);
      }
    });
    const Tensor known = batch ? moments : at::zeros({3, g.channels}, moments.options());
    const double* mean = known.const_data_ptr<double>();
    const Center<scalar_t> centers(mean, mean + 2 * g.channels, g.channels);
    std::vector<scalar_t> constant(g.channels, 0), linear(g.channels, 0);
    scalar_t* gn = gnorm.data_ptr<scalar_t>();
    for (int64_t c = 0; c < g.channels; ++c) {
      double sum = 0, product = 0;
      for (int64_t cloud = 0; cloud < g.clouds; ++cloud)
        sum += totals[cloud * 2 * g.channels + c], product += totals[(cloud * 2 + 1) * g.channels + c];
      gn[c] = product, gn[g.channels + c] = sum;
      if (batch) constant[c] = sum / batch, linear[c] = product / batch * p.inverse_variance[c];
    }
    for_each_chunk<scalar_t>(g, [&](const Chunk<scalar_t>& chunk) {
      const auto [cloud, first, count, width, b, ga] = chunk;
      const scalar_t* from = projected.const_data_ptr<scalar_t>() + cloud * g.points * 2 * g.channels + first;
      const scalar_t *scale = p.scale + first, *of_all = constant.data() + first, *of_each = linear.data() + first;
      if (batch) {
        const scalar_t* of_a = centers.of_a.data() + first;
        const double* of_b = centers.of_b.data() + first;
        chunk.load(b, from + g.channels, 2 * g.channels, g.points,
                   [&](scalar_t value, int64_t c) { return scalar_t(double(value) - of_b[c]); });
        scalar_t a[CHUNK<scalar_t>] = {};
        for (int64_t m = 0; m < g.points; ++m) {
          const int64_t start = starts[cloud][m], degree = starts[cloud][m + 1] - start;
          scalar_t* to = ga + m * width;
          for (int64_t c = 0; c < count; ++c) a[c] = from[m * 2 * g.channels + c] - of_a[c];
          add_sources(a, b, width, sources[cloud].data() + start, degree, to);
          for (int64_t c = 0; c < count; ++c)
            to[c] = -scale[c] * (scalar_t(degree) * of_all[c] + of_each[c] * to[c]);
        }
      } else {
        std::fill_n(ga, g.points * width, scalar_t(0));
      }
      scalar_t* out = gprojected.data_ptr<scalar_t>() + cloud * g.points * 2 * g.channels + first;
      scalar_t gz[CHUNK<scalar_t>];
      for (int64_t n = 0; n < g.points; ++n) {
        const int64_t at = cloud * per_cloud + n * g.channels + first;
        scalar_t* gb = out + n * 2 * g.channels + g.channels;
        for (int64_t c = 0; c < count; ++c)
          gb[c] = gz[c] = scale[c] * before(gs[at + c], found[at + c], p, first + c);
        if (batch) {
          const scalar_t* sum = sums.const_data_ptr<scalar_t>() + at;
          for (int64_t c = 0; c < count; ++c)
            gb[c] -= scale[c] * (scalar_t(g.k) * of_all[c] + of_each[c] * sum[c]);
        }
        for (int64_t c = 0; c < count; ++c) ga[where[at + c] * width + c] += gz[c];
      }
      for (int64_t m = 0; m < g.points; ++m) std::copy_n(ga + m * width, count, out + m * 2 * g.channels);
    });
  });
  return {gprojected, gnorm};
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("edge_max", &edge_max);
  m.impl("edge_norm", &edge_norm);
  m.impl("edge_norm_backward", &edge_norm_backward);
}
