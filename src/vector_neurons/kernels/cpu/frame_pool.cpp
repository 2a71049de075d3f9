// VN-In followed by pooling: vectors are projected onto the frame of their point, then the maximum and the mean over
// the points of a cloud are taken. The projections themselves are never stored.
//
// Beside its own vectors x (clouds, points, 3, channels), each point can project those of the cloud's mean
// (clouds, 3, mean_channels), which come behind the channels in the result. Frames are (clouds, points, 3, 3), their
// vectors as columns.

#include <torch/library.h>

#include "block_input.h"

using namespace vector_neurons;

namespace {

// Running results of a cloud, (3, all) each.
template <typename T>
struct RunningPools {
  T *max, *sum;
  int32_t* argmax;
  int64_t all;
};

// Adds points `first` to `last`, in channels c0 to c1: their vectors (3, channels), one set for all points if `shared`,
// projected onto their frames (points, 3, 3).
template <typename T>
NOINLINE void pool_points(const T* __restrict x, int64_t channels, bool shared, const T* __restrict frames,
                          int64_t first, int64_t last, int64_t c0, int64_t c1, RunningPools<T> pools) {
  for (int64_t j = 0; j < 3; ++j) {
    T* __restrict max = pools.max + j * pools.all, * __restrict sum = pools.sum + j * pools.all;
    int32_t* __restrict argmax = pools.argmax + j * pools.all;
    for (int64_t n = first; n < last; ++n) {
      const T* __restrict v = shared ? x : x + n * 3 * channels, *f = frames + n * 9 + j;
      const T f0 = f[0], f1 = f[3], f2 = f[6];
      const int32_t point = n;
#pragma omp simd
      for (int64_t c = c0; c < c1; ++c) {
        const T value = f0 * v[c] + f1 * v[channels + c] + f2 * v[2 * channels + c];
        // A NaN becomes the maximum and stays it, as in torch.
        const bool better = !(value <= max[c]) && max[c] == max[c];
        max[c] = better ? value : max[c];
        argmax[c] = better ? point : argmax[c];
        sum[c] += value;
      }
    }
  }
}

// Gradients of the mean over points, for one point: of its vectors, written or (ADD) added, and of its frame, added.
template <typename T, bool ADD>
NOINLINE void projection_gradients(const T* __restrict x, const T* f, int64_t channels, const T* __restrict g,
                                   int64_t all, T* __restrict gx, T* __restrict gframe) {
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

// Maximum and mean over the points, (clouds, 3, channels + mean_channels), and the index of each maximum.
std::tuple<Tensor, Tensor, Tensor> frame_pool(const Tensor& x, const Tensor& mean, const Tensor& frame) {
  TORCH_CHECK(x.dim() == 4 && x.size(2) == 3 && mean.dim() == 3 && mean.size(0) == x.size(0) && mean.size(1) == 3 &&
                  frame.sizes() == at::IntArrayRef({x.size(0), x.size(1), 3, 3}),
              "frame_pool takes (clouds, points, 3, channels), (clouds, 3, mean channels) and (clouds, points, 3, 3)");
  TORCH_CHECK(x.is_contiguous() && mean.is_contiguous() && frame.is_contiguous(),
              "frame_pool needs contiguous tensors");
  const int64_t clouds = x.size(0), points = x.size(1), channels = x.size(3), mean_channels = mean.size(2),
                all = channels + mean_channels;
  Tensor max = at::empty({clouds, 3, all}, x.options()), average = at::zeros({clouds, 3, all}, x.options());
  Tensor argmax = at::zeros({clouds, 3, all}, x.options().dtype(at::kLong));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "frame_pool", [&] {
    max.fill_(-std::numeric_limits<scalar_t>::infinity());
    const scalar_t *vectors = x.const_data_ptr<scalar_t>(), *means = mean.const_data_ptr<scalar_t>();
    // Threads divide the channels of a cloud.
    const int64_t splits = std::clamp<int64_t>(all / 64, 1, 8);
    at::parallel_for(0, clouds * splits, 1, [&](int64_t begin, int64_t end) {
      std::vector<scalar_t> partial(3 * all);  // sums of ROWS_PER_PARTIAL_SUM points
      std::vector<int32_t> index(3 * all);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t cloud = task / splits, split = task % splits;
        const int64_t c0 = all * split / splits, c1 = all * (split + 1) / splits;
        const int64_t own_end = std::clamp(channels, c0, c1);
        const scalar_t* frames = frame.const_data_ptr<scalar_t>() + cloud * points * 9;
        const int64_t start = cloud * 3 * all;
        scalar_t *best = max.data_ptr<scalar_t>() + start, *total = average.data_ptr<scalar_t>() + start;
        std::fill(index.begin(), index.end(), 0);
        for (int64_t n = 0; n < points; n += ROWS_PER_PARTIAL_SUM) {
          const int64_t stop = std::min(points, n + ROWS_PER_PARTIAL_SUM);
          std::fill(partial.begin(), partial.end(), scalar_t(0));
          pool_points(vectors + cloud * points * 3 * channels, channels, false, frames, n, stop, c0, own_end,
                      RunningPools<scalar_t>{best, partial.data(), index.data(), all});
          pool_points(
              means + cloud * 3 * mean_channels, mean_channels, true, frames, n, stop, own_end - channels,
              c1 - channels,
              RunningPools<scalar_t>{best + channels, partial.data() + channels, index.data() + channels, all});
          for (int64_t j = 0; j < 3; ++j)
            for (int64_t c = c0; c < c1; ++c) total[j * all + c] += partial[j * all + c];
        }
        int64_t* found = argmax.data_ptr<int64_t>() + start;
        for (int64_t j = 0; j < 3; ++j)
          for (int64_t c = c0; c < c1; ++c)
            total[j * all + c] /= scalar_t(points), found[j * all + c] = index[j * all + c];
      }
    });
  });
  return {max, average, argmax};
}

std::tuple<Tensor, Tensor, Tensor> frame_pool_backward(const Tensor& grad_max, const Tensor& grad_mean,
                                                       const Tensor& argmax, const Tensor& x, const Tensor& mean,
                                                       const Tensor& frame) {
  const int64_t clouds = x.size(0), points = x.size(1), channels = x.size(3), mean_channels = mean.size(2),
                all = channels + mean_channels;
  Tensor gx = allocate(x.sizes(), x.options()), gframe = at::zeros(frame.sizes(), frame.options());
  Tensor gmean = at::zeros(mean.sizes(), mean.options());
  const Tensor of_max = grad_max.contiguous(), of_each = (grad_mean / points).contiguous();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "frame_pool_backward", [&] {
    at::parallel_for(0, clouds, 1, [&](int64_t begin, int64_t end) {
      for (int64_t cloud = begin; cloud < end; ++cloud) {
        const scalar_t* cloud_mean = mean.const_data_ptr<scalar_t>() + cloud * 3 * mean_channels;
        scalar_t* cloud_gmean = gmean.data_ptr<scalar_t>() + cloud * 3 * mean_channels;
        const scalar_t* g = of_each.const_data_ptr<scalar_t>() + cloud * 3 * all;
        for (int64_t row = cloud * points; row < (cloud + 1) * points; ++row) {
          const scalar_t* f = frame.const_data_ptr<scalar_t>() + row * 9;
          scalar_t* gf = gframe.data_ptr<scalar_t>() + row * 9;
          projection_gradients<scalar_t, false>(x.const_data_ptr<scalar_t>() + row * 3 * channels, f, channels, g, all,
                                                gx.data_ptr<scalar_t>() + row * 3 * channels, gf);
          if (mean_channels)
            projection_gradients<scalar_t, true>(cloud_mean, f, mean_channels, g + channels, all, cloud_gmean, gf);
        }
        // The gradient of a maximum goes to the point that attains it, the first of them.
        for (int64_t j = 0; j < 3; ++j)
          for (int64_t c = 0; c < all; ++c) {
            const int64_t at = (cloud * 3 + j) * all + c, row = cloud * points + argmax.const_data_ptr<int64_t>()[at];
            const scalar_t g = of_max.const_data_ptr<scalar_t>()[at];
            const bool own = c < channels;
            const int64_t width = own ? channels : mean_channels, column = own ? c : c - channels;
            const scalar_t* source = own ? x.const_data_ptr<scalar_t>() + row * 3 * channels : cloud_mean;
            scalar_t* to = own ? gx.data_ptr<scalar_t>() + row * 3 * channels : cloud_gmean;
            for (int64_t d = 0; d < 3; ++d) {
              to[d * width + column] += g * frame.const_data_ptr<scalar_t>()[row * 9 + d * 3 + j];
              gframe.data_ptr<scalar_t>()[row * 9 + d * 3 + j] += g * source[d * width + column];
            }
          }
      }
    });
  });
  return {gx, gmean, gframe};
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("frame_pool", &frame_pool);
  m.impl("frame_pool_backward", &frame_pool_backward);
}
