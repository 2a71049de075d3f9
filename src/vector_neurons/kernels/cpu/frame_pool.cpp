// VN-In and the pools after it: vectors read in the frame of their point, then maximum and mean over the points of a
// cloud. The readings, six numbers for every vector of every point, are never stored.
//
// Beside its own vectors x (clouds, points, 3, channels) a point can read those of the cloud's mean,
// (clouds, 3, more): channels then come before more. Frames are (clouds, points, 3, 3), vectors as columns.

#include <torch/library.h>

#include "block_input.h"

using namespace vector_neurons;

namespace {

// What was read of channels c0 to c1 so far, (3, all) each.
template <typename T>
struct Pools {
  T *best, *sum;
  int32_t* where;
  int64_t all;
};

// Reads the vectors (3, channels) of some points, or those that they share, in their frames (points, 3, 3).
template <typename T>
NOINLINE void read_some(const T* __restrict x, int64_t channels, bool shared, const T* __restrict frames, int64_t first,
                     int64_t last, int64_t c0, int64_t c1, Pools<T> pools) {
  for (int64_t j = 0; j < 3; ++j) {
    T* __restrict best = pools.best + j * pools.all, * __restrict sum = pools.sum + j * pools.all;
    int32_t* __restrict where = pools.where + j * pools.all;
    for (int64_t n = first; n < last; ++n) {
      const T* __restrict v = shared ? x : x + n * 3 * channels, *f = frames + n * 9 + j;
      const T f0 = f[0], f1 = f[3], f2 = f[6];
      const int32_t point = n;
#pragma omp simd
      for (int64_t c = c0; c < c1; ++c) {
        const T value = f0 * v[c] + f1 * v[channels + c] + f2 * v[2 * channels + c];
        // What is no number wins, and stays: it must not be hidden.
        const bool better = !(value <= best[c]) && best[c] == best[c];
        best[c] = better ? value : best[c];
        where[c] = better ? point : where[c];
        sum[c] += value;
      }
    }
  }
}

// Gradients of the vectors of a point, written or added, and of its frame, added.
template <typename T, bool ADD>
NOINLINE void read_back(const T* __restrict x, const T* f, int64_t channels, const T* __restrict g, int64_t all,
                     T* __restrict gx, T* __restrict gframe) {
  const T f00 = f[0], f01 = f[1], f02 = f[2], f10 = f[3], f11 = f[4], f12 = f[5], f20 = f[6], f21 = f[7], f22 = f[8];
  T s00 = 0, s01 = 0, s02 = 0, s10 = 0, s11 = 0, s12 = 0, s20 = 0, s21 = 0, s22 = 0;
#pragma omp simd reduction(+ : s00, s01, s02, s10, s11, s12, s20, s21, s22)
  for (int64_t c = 0; c < channels; ++c) {
    const T x0 = x[c], x1 = x[channels + c], x2 = x[2 * channels + c];
    const T g0 = g[c], g1 = g[all + c], g2 = g[2 * all + c];
    s00 += g0 * x0, s01 += g1 * x0, s02 += g2 * x0;
    s10 += g0 * x1, s11 += g1 * x1, s12 += g2 * x1;
    s20 += g0 * x2, s21 += g1 * x2, s22 += g2 * x2;
    const T y0 = g0 * f00 + g1 * f01 + g2 * f02, y1 = g0 * f10 + g1 * f11 + g2 * f12,
            y2 = g0 * f20 + g1 * f21 + g2 * f22;
    gx[c] = ADD ? gx[c] + y0 : y0;
    gx[channels + c] = ADD ? gx[channels + c] + y1 : y1;
    gx[2 * channels + c] = ADD ? gx[2 * channels + c] + y2 : y2;
  }
  gframe[0] += s00, gframe[1] += s01, gframe[2] += s02, gframe[3] += s10, gframe[4] += s11, gframe[5] += s12;
  gframe[6] += s20, gframe[7] += s21, gframe[8] += s22;
}

// Maximum and mean over the points, (clouds, 3, channels + more), and which point was the largest.
std::tuple<Tensor, Tensor, Tensor> read_pool(const Tensor& x, const Tensor& mean, const Tensor& frame) {
  TORCH_CHECK(x.dim() == 4 && x.size(2) == 3 && mean.dim() == 3 && mean.size(0) == x.size(0) && mean.size(1) == 3 &&
                  frame.sizes() == at::IntArrayRef({x.size(0), x.size(1), 3, 3}),
              "read_pool takes (clouds, points, 3, channels), (clouds, 3, more) and (clouds, points, 3, 3)");
  TORCH_CHECK(x.is_contiguous() && mean.is_contiguous() && frame.is_contiguous(), "read_pool needs contiguous tensors");
  const int64_t clouds = x.size(0), points = x.size(1), channels = x.size(3), more = mean.size(2),
                all = channels + more;
  Tensor largest = at::empty({clouds, 3, all}, x.options()), average = at::zeros({clouds, 3, all}, x.options());
  Tensor where = at::zeros({clouds, 3, all}, x.options().dtype(at::kLong));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "read_pool", [&] {
    largest.fill_(-std::numeric_limits<scalar_t>::infinity());
    const scalar_t *vectors = x.const_data_ptr<scalar_t>(), *means = mean.const_data_ptr<scalar_t>();
    // Threads share the channels of a cloud.
    const int64_t parts = std::clamp<int64_t>(all / 64, 1, 8);
    at::parallel_for(0, clouds * parts, 1, [&](int64_t begin, int64_t end) {
      std::vector<scalar_t> sum(3 * all);
      std::vector<int32_t> place(3 * all);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t cloud = task / parts, c0 = all * (task % parts) / parts, c1 = all * (task % parts + 1) / parts;
        const scalar_t* frames = frame.const_data_ptr<scalar_t>() + cloud * points * 9;
        const int64_t start = cloud * 3 * all, split = std::clamp(channels, c0, c1);
        scalar_t *best = largest.data_ptr<scalar_t>() + start, *total = average.data_ptr<scalar_t>() + start;
        std::fill(place.begin(), place.end(), 0);
        for (int64_t n = 0; n < points; n += FLUSH) {
          const int64_t stop = std::min(points, n + FLUSH);
          std::fill(sum.begin(), sum.end(), scalar_t(0));
          read_some(vectors + cloud * points * 3 * channels, channels, false, frames, n, stop, c0, split,
                    Pools<scalar_t>{best, sum.data(), place.data(), all});
          read_some(means + cloud * 3 * more, more, true, frames, n, stop, split - channels, c1 - channels,
                    Pools<scalar_t>{best + channels, sum.data() + channels, place.data() + channels, all});
          for (int64_t j = 0; j < 3; ++j)
            for (int64_t c = c0; c < c1; ++c) total[j * all + c] += sum[j * all + c];
        }
        int64_t* found = where.data_ptr<int64_t>() + start;
        for (int64_t j = 0; j < 3; ++j)
          for (int64_t c = c0; c < c1; ++c)
            total[j * all + c] /= scalar_t(points), found[j * all + c] = place[j * all + c];
      }
    });
  });
  return {largest, average, where};
}

std::tuple<Tensor, Tensor, Tensor> read_pool_backward(const Tensor& grad_largest, const Tensor& grad_average,
                                                      const Tensor& where, const Tensor& x, const Tensor& mean,
                                                      const Tensor& frame) {
  const int64_t clouds = x.size(0), points = x.size(1), channels = x.size(3), more = mean.size(2),
                all = channels + more;
  Tensor gx = allocate(x.sizes(), x.options()), gframe = at::zeros(frame.sizes(), frame.options());
  Tensor gmean = at::zeros(mean.sizes(), mean.options());
  const Tensor top = grad_largest.contiguous(), every = (grad_average / points).contiguous();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "read_pool_backward", [&] {
    at::parallel_for(0, clouds, 1, [&](int64_t begin, int64_t end) {
      for (int64_t cloud = begin; cloud < end; ++cloud) {
        const scalar_t* overall = mean.const_data_ptr<scalar_t>() + cloud * 3 * more;
        scalar_t* goverall = gmean.data_ptr<scalar_t>() + cloud * 3 * more;
        const scalar_t* g = every.const_data_ptr<scalar_t>() + cloud * 3 * all;
        for (int64_t row = cloud * points; row < (cloud + 1) * points; ++row) {
          const scalar_t* f = frame.const_data_ptr<scalar_t>() + row * 9;
          scalar_t* gf = gframe.data_ptr<scalar_t>() + row * 9;
          read_back<scalar_t, false>(x.const_data_ptr<scalar_t>() + row * 3 * channels, f, channels, g, all,
                                     gx.data_ptr<scalar_t>() + row * 3 * channels, gf);
          if (more) read_back<scalar_t, true>(overall, f, more, g + channels, all, goverall, gf);
        }
        for (int64_t j = 0; j < 3; ++j)
          for (int64_t c = 0; c < all; ++c) {
            const int64_t at = (cloud * 3 + j) * all + c, row = cloud * points + where.const_data_ptr<int64_t>()[at];
            const scalar_t g = top.const_data_ptr<scalar_t>()[at];
            const bool own = c < channels;
            const int64_t width = own ? channels : more, place = own ? c : c - channels;
            const scalar_t* seen = own ? x.const_data_ptr<scalar_t>() + row * 3 * channels : overall;
            scalar_t* to = own ? gx.data_ptr<scalar_t>() + row * 3 * channels : goverall;
            for (int64_t d = 0; d < 3; ++d) {
              to[d * width + place] += g * frame.const_data_ptr<scalar_t>()[row * 9 + d * 3 + j];
              gframe.data_ptr<scalar_t>()[row * 9 + d * 3 + j] += g * seen[d * width + place];
            }
          }
      }
    });
  });
  return {gx, gmean, gframe};
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("frame_pool", &read_pool);
  m.impl("frame_pool_backward", &read_pool_backward);
}
