// Coordinates in frames, and the two ends of a convolution in local frames. Its messages begin with a linear map of
// what center n is given of its neighbor m: the offset d and the vectors v of the neighbor in the frame T of the
// center, and the length of d,
//   row = [Tᵀ [d, v_m], |d|],   out = row weight + own[m],
// where `own` holds the projected scalars of the points. They end with means over the neighbors of d and of vectors,
// weighted channel by channel. Rows are formed for some centers at a time, which stay in cache, and never stored.
//
// offset (clouds, centers, k, 3), vectors (clouds, points, 3, channels), frame (clouds, centers, 3, 3) with its vectors
// as columns, weight (3 (1 + channels) + 1, columns), own (clouds, points, columns), neighbors (clouds, centers, k).

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include "block_input.h"
#include "scalar_norm.h"

using namespace vector_neurons;

namespace {

constexpr int64_t FRAME_CHUNK_ELEMENTS = 1 << 16, MAX_CLOUD_PARTS = 16;

struct Sizes {
  int64_t clouds, centers, k, points, channels, row;

  Sizes(const Tensor& offset, const Tensor& vectors, const Tensor& neighbors)
      : clouds(offset.size(0)), centers(offset.size(1)), k(offset.size(2)), points(vectors.size(1)),
        channels(vectors.size(3)), row(3 * (1 + channels) + 1) {
    TORCH_CHECK(offset.dim() == 4 && offset.size(3) == 3 && vectors.dim() == 4 && vectors.size(2) == 3 &&
                    vectors.size(0) == clouds && neighbors.sizes() == at::IntArrayRef({clouds, centers, k}) &&
                    neighbors.scalar_type() == at::kLong,
                "offsets (clouds, centers, k, 3) need vectors (clouds, points, 3, channels) and as many neighbors");
    TORCH_CHECK(offset.is_contiguous() && vectors.is_contiguous() && neighbors.is_contiguous() &&
                    offset.scalar_type() == vectors.scalar_type(),
                "a convolution in frames needs contiguous tensors of one type");
    const int64_t* m = neighbors.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < neighbors.numel(); ++i)
      TORCH_CHECK_INDEX(m[i] >= 0 && m[i] < points, "neighbor ", m[i], " is not one of ", points, " points");
  }

  int64_t centers_per_chunk() const {
    return std::clamp<int64_t>(FRAME_CHUNK_ELEMENTS / (row * std::max<int64_t>(k, 1)), 1, std::max<int64_t>(centers, 1));
  }
};

// Writes the coordinates of one vector or of several, (3, count), in a frame: (3, count) with its own stride.
template <typename T>
void to_frame(const T* __restrict x, int64_t count, const T* f, T* __restrict out, int64_t stride) {
  for (int64_t j = 0; j < 3; ++j) {
    const T f0 = f[j], f1 = f[3 + j], f2 = f[6 + j];
#pragma omp simd
    for (int64_t c = 0; c < count; ++c)
      out[j * stride + c] = f0 * x[c] + f1 * x[count + c] + f2 * x[2 * count + c];
  }
}

// Gradients of to_frame: added to that of the vectors and to that of the frame.
template <typename T>
void to_frame_gradients(const T* __restrict x, int64_t count, const T* f, const T* __restrict g, int64_t stride,
                        T* __restrict gx, T* __restrict gf) {
  T s00 = 0, s01 = 0, s02 = 0, s10 = 0, s11 = 0, s12 = 0, s20 = 0, s21 = 0, s22 = 0;
#pragma omp simd reduction(+ : s00, s01, s02, s10, s11, s12, s20, s21, s22)
  for (int64_t c = 0; c < count; ++c) {
    const T x0 = x[c], x1 = x[count + c], x2 = x[2 * count + c];
    const T g0 = g[c], g1 = g[stride + c], g2 = g[2 * stride + c];
    s00 += g0 * x0, s01 += g1 * x0, s02 += g2 * x0;
    s10 += g0 * x1, s11 += g1 * x1, s12 += g2 * x1;
    s20 += g0 * x2, s21 += g1 * x2, s22 += g2 * x2;
    gx[c] += g0 * f[0] + g1 * f[1] + g2 * f[2];
    gx[count + c] += g0 * f[3] + g1 * f[4] + g2 * f[5];
    gx[2 * count + c] += g0 * f[6] + g1 * f[7] + g2 * f[8];
  }
  gf[0] += s00, gf[1] += s01, gf[2] += s02, gf[3] += s10, gf[4] += s11, gf[5] += s12, gf[6] += s20, gf[7] += s21;
  gf[8] += s22;
}

// The length of an offset, with the floor of functional.norm: at zero it has no gradient.
template <typename T>
struct Length {
  static inline const T FLOOR = std::sqrt(std::numeric_limits<T>::min());
  T squared, value;
  explicit Length(const T* d)
      : squared(d[0] * d[0] + d[1] * d[1] + d[2] * d[2]), value(std::sqrt(std::max(squared, FLOOR))) {}
};

// Rows of the centers `first` to `last`, counted over all clouds.
template <typename T>
NOINLINE void form_rows(const Sizes& s, const T* offset, const T* vectors, const T* frame, const int64_t* neighbors,
                        int64_t first, int64_t last, T* rows) {
  const int64_t stride = 1 + s.channels;
  for (int64_t n = first; n < last; ++n) {
    const T* cloud = vectors + n / s.centers * s.points * 3 * s.channels;
    for (int64_t e = n * s.k; e < (n + 1) * s.k; ++e, rows += s.row) {
      to_frame(offset + 3 * e, 1, frame + 9 * n, rows, stride);
      to_frame(cloud + neighbors[e] * 3 * s.channels, s.channels, frame + 9 * n, rows + 1, stride);
      rows[3 * stride] = Length<T>(offset + 3 * e).value;
    }
  }
}

template <typename T>
NOINLINE void add_own(const Sizes& s, const T* own, const int64_t* neighbors, int64_t columns, int64_t first,
                      int64_t last, T* out) {
  for (int64_t n = first; n < last; ++n) {
    const T* cloud = own + n / s.centers * s.points * columns;
    for (int64_t e = n * s.k; e < (n + 1) * s.k; ++e, out += columns) {
      const T* a = cloud + neighbors[e] * columns;
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) out[c] += a[c];
    }
  }
}

// With a norm (4, columns), the rows are also normalized and activated, as in scalar_norm.h; without gradient.
Tensor frame_linear(const Tensor& offset, const Tensor& vectors, const Tensor& frame, const Tensor& weight,
                    const Maybe& own, const Tensor& neighbors, const Maybe& norm, double slope) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Sizes s(offset, vectors, neighbors);
  const int64_t columns = weight.size(1);
  TORCH_CHECK(weight.size(0) == s.row && frame.sizes() == at::IntArrayRef({s.clouds, s.centers, 3, 3}) &&
                  frame.is_contiguous(),
              "frames (", frame.sizes(), ") and a weight (", weight.sizes(), ") do not fit rows of ", s.row);
  TORCH_CHECK(!own || (own->is_contiguous() && own->sizes() == at::IntArrayRef({s.clouds, s.points, columns})),
              "every point needs ", columns, " projected scalars");
  TORCH_CHECK(!norm || (norm->is_contiguous() && norm->sizes() == at::IntArrayRef({4, columns})),
              "rows need a norm (4, ", columns, ")");
  Tensor out = allocate({s.clouds, s.centers, s.k, columns}, offset.options());
  const Tensor all = out.view({-1, columns});
  const Matmul matmul(weight.t());
  const int64_t chunk = s.centers_per_chunk(), centers = s.clouds * s.centers;
  AT_DISPATCH_FLOATING_TYPES(offset.scalar_type(), "frame_linear", [&] {
    at::parallel_for(0, (centers + chunk - 1) / chunk, 1, [&](int64_t begin, int64_t end) {
      const at::NoGradGuard no_grad;
      const Tensor buffer = at::empty({chunk * s.k, s.row}, offset.options());
      for (int64_t first = begin * chunk; first < std::min(centers, end * chunk); first += chunk) {
        const int64_t last = std::min(centers, first + chunk), count = (last - first) * s.k;
        const Tensor rows = buffer.narrow(0, 0, count), to = all.narrow(0, first * s.k, count);
        const int64_t* m = neighbors.const_data_ptr<int64_t>();
        form_rows(s, offset.const_data_ptr<scalar_t>(), vectors.const_data_ptr<scalar_t>(),
                  frame.const_data_ptr<scalar_t>(), m, first, last, rows.data_ptr<scalar_t>());
        matmul(rows, to);
        scalar_t* mapped = to.data_ptr<scalar_t>();
        if (own) add_own(s, own->const_data_ptr<scalar_t>(), m, columns, first, last, mapped);
        if (norm) normalize(mapped, count, columns, Norm<scalar_t>(*norm, slope), mapped);
      }
    });
  });
  return out;
}

// Gradients of the rows of the centers `first` to `last` are passed on to offsets, vectors and frames; those of `own`
// are the rows of the incoming gradient.
template <typename T>
NOINLINE void row_gradients(const Sizes& s, const T* offset, const T* vectors, const T* frame, const int64_t* neighbors,
                            int64_t first, int64_t last, const T* g, T* goffset, T* gvectors, T* gframe) {
  const int64_t stride = 1 + s.channels;
  for (int64_t n = first; n < last; ++n) {
    const int64_t cloud = n / s.centers * s.points * 3 * s.channels;
    for (int64_t e = n * s.k; e < (n + 1) * s.k; ++e, g += s.row) {
      const T *f = frame + 9 * n, *d = offset + 3 * e;
      const Length<T> length(d);
      T* gd = goffset + 3 * e;
      for (int64_t i = 0; i < 3; ++i)
        gd[i] = length.squared >= Length<T>::FLOOR ? g[3 * stride] * (d[i] / length.value) : T(0);
      to_frame_gradients(d, 1, f, g, stride, gd, gframe + 9 * n);
      const int64_t at = cloud + neighbors[e] * 3 * s.channels;
      to_frame_gradients(vectors + at, s.channels, f, g + 1, stride, gvectors + at, gframe + 9 * n);
    }
  }
}

template <typename T>
NOINLINE void own_gradients(const Sizes& s, const T* g, const int64_t* neighbors, int64_t columns, int64_t first,
                            int64_t last, T* gown) {
  for (int64_t n = first; n < last; ++n) {
    T* cloud = gown + n / s.centers * s.points * columns;
    for (int64_t e = n * s.k; e < (n + 1) * s.k; ++e, g += columns) {
      T* to = cloud + neighbors[e] * columns;
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) to[c] += g[c];
    }
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> frame_linear_backward(const Tensor& grad, const Tensor& offset,
                                                                         const Tensor& vectors, const Tensor& frame,
                                                                         const Tensor& weight, const Maybe& own,
                                                                         const Tensor& neighbors) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Sizes s(offset, vectors, neighbors);
  const int64_t columns = weight.size(1), chunk = s.centers_per_chunk();
  const Tensor g = grad.contiguous().view({-1, columns});
  Tensor goffset = at::zeros(offset.sizes(), offset.options()), gvectors = at::zeros(vectors.sizes(), offset.options()),
         gframe = at::zeros(frame.sizes(), offset.options()),
         gown = at::zeros(own ? own->sizes() : at::IntArrayRef({0}), offset.options());
  // Edges add to the gradients of their cloud's points, so a thread has whole clouds.
  const int64_t parts = std::min(s.clouds, MAX_CLOUD_PARTS);
  const Tensor gweights = at::zeros({parts, s.row, columns}, offset.options());
  const Matmul matmul(weight);
  AT_DISPATCH_FLOATING_TYPES(offset.scalar_type(), "frame_linear_backward", [&] {
    at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
      const at::NoGradGuard no_grad;
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      const Tensor buffer = at::empty({chunk * s.k, s.row}, offset.options());
      Tensor product;
      const int64_t* m = neighbors.const_data_ptr<int64_t>();
      const scalar_t *d = offset.const_data_ptr<scalar_t>(), *v = vectors.const_data_ptr<scalar_t>(),
                     *f = frame.const_data_ptr<scalar_t>();
      for (int64_t part = begin; part < end; ++part) {
        Tensor gweight = gweights[part];
        const int64_t stop = (part + 1) * s.clouds / parts * s.centers;
        for (int64_t first = part * s.clouds / parts * s.centers; first < stop; first += chunk) {
          const int64_t last = std::min(stop, first + chunk), count = (last - first) * s.k;
          const Tensor rows = buffer.narrow(0, 0, count), gout = g.narrow(0, first * s.k, count);
          form_rows(s, d, v, f, m, first, last, rows.data_ptr<scalar_t>());
          at::addmm_out(gweight, gweight, rows.t(), gout);
          const Tensor grows = matmul.into(product, gout);
          row_gradients(s, d, v, f, m, first, last, grows.const_data_ptr<scalar_t>(), goffset.data_ptr<scalar_t>(),
                        gvectors.data_ptr<scalar_t>(), gframe.data_ptr<scalar_t>());
          if (own)
            own_gradients(s, gout.const_data_ptr<scalar_t>(), m, columns, first, last, gown.data_ptr<scalar_t>());
        }
      }
    });
  });
  return {goffset, gvectors, gframe, gweights.sum(0), gown};
}

// Means over the neighbors of a center, (3, columns): of the offset in the first columns, of the neighbors' vectors in
// the last, times the edge's weight of the column. Centers `first` to `last`, counted over all clouds.
template <typename T>
NOINLINE void weighted_means(const Sizes& s, const T* weights, const T* offset, const T* vectors,
                             const int64_t* neighbors, int64_t columns, int64_t first, int64_t last, T* out) {
  const int64_t of_offset = columns - s.channels;
  for (int64_t n = first; n < last; ++n) {
    T* __restrict to = out + n * 3 * columns;
    const T* cloud = vectors + n / s.centers * s.points * 3 * s.channels;
    for (int64_t e = n * s.k; e < (n + 1) * s.k; ++e) {
      const T *__restrict w = weights + e * columns, *__restrict v = cloud + neighbors[e] * 3 * s.channels;
      for (int64_t i = 0; i < 3; ++i) {
        const T d = offset[3 * e + i];
#pragma omp simd
        for (int64_t c = 0; c < of_offset; ++c) to[i * columns + c] += w[c] * d;
#pragma omp simd
        for (int64_t c = 0; c < s.channels; ++c)
          to[i * columns + of_offset + c] += w[of_offset + c] * v[i * s.channels + c];
      }
    }
    for (int64_t c = 0; c < 3 * columns; ++c) to[c] /= T(s.k);
  }
}

Tensor frame_mean(const Tensor& weights, const Tensor& offset, const Tensor& vectors, const Tensor& neighbors) {
  const Sizes s(offset, vectors, neighbors);
  const int64_t columns = weights.size(-1);
  TORCH_CHECK(weights.is_contiguous() && columns >= s.channels &&
                  weights.numel() == s.clouds * s.centers * s.k * columns,
              "weights (", weights.sizes(), ") do not fit ", s.channels, " vectors and offsets (", offset.sizes(), ")");
  Tensor out = at::zeros({s.clouds, s.centers, 3, columns}, offset.options());
  AT_DISPATCH_FLOATING_TYPES(offset.scalar_type(), "frame_mean", [&] {
    at::parallel_for(0, s.clouds * s.centers, 16, [&](int64_t first, int64_t last) {
      weighted_means(s, weights.const_data_ptr<scalar_t>(), offset.const_data_ptr<scalar_t>(),
                     vectors.const_data_ptr<scalar_t>(), neighbors.const_data_ptr<int64_t>(), columns, first, last,
                     out.data_ptr<scalar_t>());
    });
  });
  return out;
}

// Gradients of the weights and offset of one edge, written, and of the neighbor's vectors, added; g (3, columns) is the
// gradient of the sum over neighbors.
template <typename T>
NOINLINE void edge_gradients(const T* __restrict g, int64_t columns, const T* __restrict w, const T* d,
                             const T* __restrict v, int64_t channels, T* __restrict gw, T* gd, T* __restrict gv) {
  const int64_t of_offset = columns - channels;
  const T d0 = d[0], d1 = d[1], d2 = d[2];
  T s0 = 0, s1 = 0, s2 = 0;
#pragma omp simd reduction(+ : s0, s1, s2)
  for (int64_t c = 0; c < of_offset; ++c) {
    const T g0 = g[c], g1 = g[columns + c], g2 = g[2 * columns + c];
    gw[c] = g0 * d0 + g1 * d1 + g2 * d2;
    s0 += g0 * w[c], s1 += g1 * w[c], s2 += g2 * w[c];
  }
  gd[0] = s0, gd[1] = s1, gd[2] = s2;
  g += of_offset, gw += of_offset, w += of_offset;
#pragma omp simd
  for (int64_t c = 0; c < channels; ++c) {
    const T g0 = g[c], g1 = g[columns + c], g2 = g[2 * columns + c];
    gw[c] = g0 * v[c] + g1 * v[channels + c] + g2 * v[2 * channels + c];
    gv[c] += g0 * w[c], gv[channels + c] += g1 * w[c], gv[2 * channels + c] += g2 * w[c];
  }
}

std::tuple<Tensor, Tensor, Tensor> frame_mean_backward(const Tensor& grad, const Tensor& weights, const Tensor& offset,
                                                       const Tensor& vectors, const Tensor& neighbors) {
  const Sizes s(offset, vectors, neighbors);
  const int64_t columns = weights.size(-1);
  const Tensor g = (grad / s.k).contiguous();
  Tensor gweights = allocate(weights.sizes(), offset.options()), goffset = allocate(offset.sizes(), offset.options()),
         gvectors = at::zeros(vectors.sizes(), offset.options());
  AT_DISPATCH_FLOATING_TYPES(offset.scalar_type(), "frame_mean_backward", [&] {
    at::parallel_for(0, s.clouds, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin * s.centers; n < end * s.centers; ++n)
        for (int64_t e = n * s.k; e < (n + 1) * s.k; ++e) {
          const int64_t at = (n / s.centers * s.points + neighbors.const_data_ptr<int64_t>()[e]) * 3 * s.channels;
          edge_gradients(g.const_data_ptr<scalar_t>() + n * 3 * columns, columns,
                         weights.const_data_ptr<scalar_t>() + e * columns, offset.const_data_ptr<scalar_t>() + 3 * e,
                         vectors.const_data_ptr<scalar_t>() + at, s.channels,
                         gweights.data_ptr<scalar_t>() + e * columns, goffset.data_ptr<scalar_t>() + 3 * e,
                         gvectors.data_ptr<scalar_t>() + at);
        }
    });
  });
  return {gweights, goffset, gvectors};
}

// The coordinates of vectors x (rows, 3, channels) in the frames (rows, 3, 3) of their rows.
Tensor frame_project(const Tensor& x, const Tensor& frame) {
  TORCH_CHECK(x.dim() == 3 && x.size(1) == 3 && x.is_contiguous() && frame.is_contiguous() &&
                  frame.sizes() == at::IntArrayRef({x.size(0), 3, 3}) && frame.scalar_type() == x.scalar_type(),
              "frame_project takes vectors (rows, 3, channels) and frames (rows, 3, 3), got ", x.sizes(), " and ",
              frame.sizes());
  Tensor out = allocate(x.sizes(), x.options());
  const int64_t channels = x.size(2);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "frame_project", [&] {
    at::parallel_for(0, x.size(0), 256, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        to_frame(x.const_data_ptr<scalar_t>() + r * 3 * channels, channels, frame.const_data_ptr<scalar_t>() + 9 * r,
                 out.data_ptr<scalar_t>() + r * 3 * channels, channels);
    });
  });
  return out;
}

std::tuple<Tensor, Tensor> frame_project_backward(const Tensor& grad, const Tensor& x, const Tensor& frame) {
  const Tensor g = grad.contiguous();
  Tensor gx = allocate(x.sizes(), x.options()).zero_(), gframe = at::zeros(frame.sizes(), frame.options());
  const int64_t channels = x.size(2);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "frame_project_backward", [&] {
    at::parallel_for(0, x.size(0), 256, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        to_frame_gradients(x.const_data_ptr<scalar_t>() + r * 3 * channels, channels,
                           frame.const_data_ptr<scalar_t>() + 9 * r, g.const_data_ptr<scalar_t>() + r * 3 * channels,
                           channels, gx.data_ptr<scalar_t>() + r * 3 * channels, gframe.data_ptr<scalar_t>() + 9 * r);
    });
  });
  return {gx, gframe};
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("frame_project", &frame_project);
  m.impl("frame_project_backward", &frame_project_backward);
  m.impl("frame_linear", &frame_linear);
  m.impl("frame_linear_backward", &frame_linear_backward);
  m.impl("frame_mean", &frame_mean);
  m.impl("frame_mean_backward", &frame_mean_backward);
}
