// VN-In and the pools after it: vectors read in the frame of their point, then maximum and mean over the points of a
// cloud. The readings, six numbers for every vector of every point, are never stored.
//
// Beside its own vectors x (clouds, points, 3, channels) a point can read those of the cloud's mean,
// (clouds, 3, more): channels then come before more. Frames are (clouds, points, 3, 3), vectors as columns.

#include <torch/library.h>

#include "rows.h"

using namespace vector_neurons;

namespace {

template <typename T>
inline void read_row(const T* __restrict x, const T* __restrict frame, int64_t j, int64_t channels, int64_t point,
                     T* __restrict best, T* __restrict sum, int64_t* __restrict where) {
  const T f0 = frame[j], f1 = frame[3 + j], f2 = frame[6 + j];
  for (int64_t c = 0; c < channels; ++c) {
    const T value = f0 * x[c] + f1 * x[channels + c] + f2 * x[2 * channels + c];
    // What is no number wins, and stays: it must not be hidden.
    const bool better = !(value <= best[c]) && best[c] == best[c];
    best[c] = better ? value : best[c];
    where[c] = better ? point : where[c];
    sum[c] += value;
  }
}

template <typename T>
inline void read_row_back(const T* __restrict x, const T* __restrict frame, int64_t j, int64_t channels,
                          const T* __restrict g, T* __restrict gx, T* __restrict gframe) {
  const T f0 = frame[j], f1 = frame[3 + j], f2 = frame[6 + j];
  T s0 = 0, s1 = 0, s2 = 0;
#pragma omp simd reduction(+ : s0, s1, s2)
  for (int64_t c = 0; c < channels; ++c) {
    s0 += g[c] * x[c], s1 += g[c] * x[channels + c], s2 += g[c] * x[2 * channels + c];
    gx[c] += g[c] * f0, gx[channels + c] += g[c] * f1, gx[2 * channels + c] += g[c] * f2;
  }
  gframe[j] += s0, gframe[3 + j] += s1, gframe[6 + j] += s2;
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
    at::parallel_for(0, clouds * 3, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t cloud = task / 3, j = task % 3;
        scalar_t* best = largest.data_ptr<scalar_t>() + task * all;
        scalar_t* sum = average.data_ptr<scalar_t>() + task * all;
        int64_t* place = where.data_ptr<int64_t>() + task * all;
        // Sums of a few points are added up apart: a running sum over thousands would lose digits.
        std::vector<scalar_t> part(all);
        for (int64_t n = 0; n < points; ++n) {
          const scalar_t* f = frame.const_data_ptr<scalar_t>() + (cloud * points + n) * 9;
          read_row(x.const_data_ptr<scalar_t>() + (cloud * points + n) * 3 * channels, f, j, channels, n, best,
                   part.data(), place);
          read_row(mean.const_data_ptr<scalar_t>() + cloud * 3 * more, f, j, more, n, best + channels,
                   part.data() + channels, place + channels);
          if (n % 32 == 31 || n + 1 == points)
            for (int64_t c = 0; c < all; ++c) sum[c] += part[c], part[c] = 0;
        }
        for (int64_t c = 0; c < all; ++c) sum[c] /= scalar_t(points);
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
  Tensor gx = fresh(x.sizes(), x.options()).zero_(), gframe = at::zeros(frame.sizes(), frame.options());
  Tensor gmean = at::zeros(mean.sizes(), mean.options());
  const Tensor top = grad_largest.contiguous(), every = (grad_average / points).contiguous();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "read_pool_backward", [&] {
    at::parallel_for(0, clouds, 1, [&](int64_t begin, int64_t end) {
      for (int64_t cloud = begin; cloud < end; ++cloud) {
        const scalar_t* overall = mean.const_data_ptr<scalar_t>() + cloud * 3 * more;
        scalar_t* goverall = gmean.data_ptr<scalar_t>() + cloud * 3 * more;
        for (int64_t n = 0; n < points; ++n)
          for (int64_t j = 0; j < 3; ++j) {
            const int64_t row = cloud * points + n;
            const scalar_t* g = every.const_data_ptr<scalar_t>() + (cloud * 3 + j) * all;
            const scalar_t* f = frame.const_data_ptr<scalar_t>() + row * 9;
            scalar_t* gf = gframe.data_ptr<scalar_t>() + row * 9;
            read_row_back(x.const_data_ptr<scalar_t>() + row * 3 * channels, f, j, channels, g,
                          gx.data_ptr<scalar_t>() + row * 3 * channels, gf);
            read_row_back(overall, f, j, more, g + channels, goverall, gf);
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
  m.impl("read_pool", &read_pool);
  m.impl("read_pool_backward", &read_pool_backward);
}
