// Batch norm and leaky ReLU of scalar rows (rows, channels) in one pass, optionally with the maximum over groups of
// consecutive rows: the neighbors of a point. Sums over rows are taken over fixed ranges, so no bit depends on the
// number of threads.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "matmul.h"
#include "scalar_norm.h"

using namespace vector_neurons;

namespace {

constexpr int64_t MAX_ROW_PARTS = 64, PART_ELEMENTS = 1 << 14, BLOCK_CHUNK_ELEMENTS = 1 << 17;

// Divides rows into parts of whole groups; body(part, first row, last row). Returns the number of parts.
struct Parts {
  int64_t rows, group, count;

  Parts(int64_t rows, int64_t channels, int64_t group)
      : rows(rows), group(group), count(std::clamp<int64_t>(rows * channels / PART_ELEMENTS, 1, MAX_ROW_PARTS)) {}

  template <typename Body>
  void operator()(const Body& body) const {
    const int64_t groups = rows / group;
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part)
        body(part, part * groups / count * group, (part + 1) * groups / count * group);
    });
  }
};

// Adds the sums of x - shift and of its square. In double, so that a shift far from the mean does no harm.
template <typename T>
NOINLINE void add_moments(const T* x, int64_t rows, int64_t channels, const double* __restrict shift,
                          double* __restrict sum, double* __restrict square) {
  for (int64_t r = 0; r < rows; ++r, x += channels) {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const double d = double(x[c]) - shift[c];
      sum[c] += d, square[c] += d * d;
    }
  }
}

// Mean and biased variance of every column, (2, channels) in float64.
Tensor column_moments(const Tensor& x) {
  TORCH_CHECK(x.dim() == 2 && x.is_contiguous() && x.size(0) > 0, "column_moments takes rows, got ", x.sizes());
  const int64_t rows = x.size(0), channels = x.size(1);
  const Parts parts(rows, channels, 1);
  Tensor out = at::zeros({2, channels}, x.options().dtype(at::kDouble));
  double *mean = out.data_ptr<double>(), *variance = mean + channels;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "column_moments", [&] {
    const scalar_t* data = x.const_data_ptr<scalar_t>();
    for (int64_t c = 0; c < channels; ++c) mean[c] = data[c];
    // In float64 a second pass, about the mean itself, keeps the last digits.
    for (int pass = 0; pass < (sizeof(scalar_t) == 8 ? 2 : 1); ++pass) {
      std::vector<double> sums(parts.count * 2 * channels, 0);
      parts([&](int64_t part, int64_t first, int64_t last) {
        double* to = sums.data() + part * 2 * channels;
        add_moments(data + first * channels, last - first, channels, mean, to, to + channels);
      });
      for (int64_t part = 1; part < parts.count; ++part)
        for (int64_t c = 0; c < 2 * channels; ++c) sums[c] += sums[part * 2 * channels + c];
      for (int64_t c = 0; c < channels; ++c) {
        const double d = sums[c] / rows;
        mean[c] += d, variance[c] = std::max(sums[channels + c] / rows - d * d, 0.0);
        if (std::isnan(sums[channels + c])) variance[c] = sums[channels + c];
      }
    }
  });
  return out;
}

// The maximum over rows, and the first row that has it. A NaN becomes the maximum and stays it, as in torch.
template <typename T>
NOINLINE void max_of_rows(const T* __restrict x, int64_t rows, int64_t channels, T* __restrict max,
                          int32_t* __restrict argmax) {
  std::copy(x, x + channels, max);
  std::fill(argmax, argmax + channels, 0);
  for (int32_t r = 1; r < rows; ++r) {
    x += channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const bool better = !(x[c] <= max[c]) && max[c] == max[c];
      max[c] = better ? x[c] : max[c];
      argmax[c] = better ? r : argmax[c];
    }
  }
}

void check_norm(const Tensor& norm, int64_t rows, int64_t channels, int64_t group) {
  TORCH_CHECK(norm.is_contiguous() && norm.sizes() == at::IntArrayRef({4, channels}) &&
                  (!group || rows % group == 0),
              "scalars need a norm (4, ", channels, ") and whole groups of rows");
}

// norm (4, channels): scale, shift, center, inverse variance. With groups of rows also their maxima, otherwise empty.
std::tuple<Tensor, Tensor, Tensor> scalar_norm(const Tensor& x, const Tensor& norm, int64_t group, double slope,
                                               int64_t) {
  TORCH_CHECK(x.dim() == 2 && x.is_contiguous(), "scalar_norm takes contiguous rows, got ", x.sizes());
  const int64_t rows = x.size(0), channels = x.size(1), pooled = group ? rows / group : 0;
  check_norm(norm, rows, channels, group);
  Tensor out = allocate(x.sizes(), x.options()), max = allocate({pooled, channels}, x.options()),
         argmax = allocate({pooled, channels}, x.options().dtype(at::kInt));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scalar_norm", [&] {
    const Norm<scalar_t> p(norm, slope);
    const int64_t unit = std::max<int64_t>(group, 1);
    Parts(rows, channels, unit)([&](int64_t, int64_t first, int64_t last) {
      const scalar_t* from = x.const_data_ptr<scalar_t>();
      scalar_t* to = out.data_ptr<scalar_t>();
      if (!group) return normalize(from + first * channels, last - first, channels, p, to + first * channels);
      for (int64_t r = first; r < last; r += group) {
        normalize(from + r * channels, group, channels, p, to + r * channels);
        max_of_rows(to + r * channels, group, channels, max.data_ptr<scalar_t>() + r / group * channels,
                    argmax.data_ptr<int32_t>() + r / group * channels);
      }
    });
  });
  return {out, max, argmax};
}

// The same of x (rows, inputs) by weight (inputs, channels), without gradient: a chunk of products stays in cache.
std::tuple<Tensor, Tensor> scalar_block(const Tensor& x, const Tensor& weight, const Tensor& norm, int64_t group,
                                        double slope) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  TORCH_CHECK(x.dim() == 2 && x.is_contiguous() && weight.size(0) == x.size(1), "a weight (", weight.sizes(),
              ") cannot map rows (", x.sizes(), ")");
  const int64_t rows = x.size(0), channels = weight.size(1), unit = std::max<int64_t>(group, 1);
  check_norm(norm, rows, channels, group);
  Tensor out = allocate({rows, channels}, x.options()),
         max = allocate({group ? rows / group : 0, channels}, x.options());
  const Matmul matmul(weight.t());
  // At least two chunks, as in block_input.h.
  const int64_t most = std::min((rows + 1) / 2, BLOCK_CHUNK_ELEMENTS / std::max(channels, x.size(1)));
  const int64_t chunk = std::max(most / unit, int64_t(1)) * unit;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scalar_block", [&] {
    const Norm<scalar_t> p(norm, slope);
    at::parallel_for(0, (rows + chunk - 1) / chunk, 1, [&](int64_t first, int64_t last) {
      const at::NoGradGuard no_grad;
      std::vector<int32_t> argmax(channels);
      Tensor buffer;
      for (int64_t start = first * chunk; start < std::min(rows, last * chunk); start += chunk) {
        const int64_t count = std::min(chunk, rows - start);
        const Tensor product = matmul.into(buffer, x.narrow(0, start, count));
        scalar_t* to = out.data_ptr<scalar_t>() + start * channels;
        normalize(product.const_data_ptr<scalar_t>(), count, channels, p, to);
        for (int64_t r = 0; group && r < count; r += group)
          max_of_rows(to + r * channels, group, channels, max.data_ptr<scalar_t>() + (start + r) / group * channels,
                      argmax.data());
      }
    });
  });
  return {out, max};
}

// The gradient of z, before the leaky ReLU: of the output, and of the maximum where row r has it.
template <typename T, bool MAX>
inline T before(const T* x, const T* g, const T* gmax, const int32_t* argmax, int32_t r, const Norm<T>& p, int64_t c) {
  const T of_out = MAX ? g[c] + (argmax[c] == r ? gmax[c] : T(0)) : g[c];
  return (x[c] - p.center[c]) * p.scale[c] + p.shift[c] > 0 ? of_out : p.slope * of_out;
}

// Adds the sums of the gradient of z and of its product with x - center.
template <typename T, bool MAX>
NOINLINE void add_gradient_sums(const T* __restrict x, const T* __restrict g, const T* __restrict gmax,
                                const int32_t* __restrict argmax, int64_t rows, int64_t channels, Norm<T> p,
                                T* __restrict sum, T* __restrict product) {
  for (int64_t r = 0; r < rows; ++r, x += channels, g += channels) {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const T gz = before<T, MAX>(x, g, gmax, argmax, r, p, c);
      sum[c] += gz, product[c] += gz * (x[c] - p.center[c]);
    }
  }
}

template <typename T, bool MAX>
NOINLINE void write_gradients(const T* __restrict x, const T* __restrict g, const T* __restrict gmax,
                              const int32_t* __restrict argmax, int64_t rows, int64_t channels, Norm<T> p,
                              const T* __restrict constant, const T* __restrict linear, T* __restrict out) {
  for (int64_t r = 0; r < rows; ++r, x += channels, g += channels, out += channels) {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const T gz = before<T, MAX>(x, g, gmax, argmax, r, p, c);
      out[c] = p.scale[c] * (gz - constant[c] - (x[c] - p.center[c]) * linear[c]);
    }
  }
}

// Gradients of x and of the norm. With batch, center and variance are the statistics of these very rows.
std::tuple<Tensor, Tensor> scalar_norm_backward(const Tensor& grad, const Tensor& grad_max, const Tensor& argmax,
                                                const Tensor& x, const Tensor& norm, int64_t group, double slope,
                                                int64_t batch) {
  const int64_t rows = x.size(0), channels = x.size(1), unit = group ? group : 256;
  const Tensor g = grad.contiguous(), gm = grad_max.contiguous();
  const Parts parts(rows, channels, std::max<int64_t>(group, 1));
  Tensor gx = allocate(x.sizes(), x.options()), gnorm = at::zeros(norm.sizes(), norm.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scalar_norm_backward", [&] {
    const Norm<scalar_t> p(norm, slope);
    const scalar_t *xs = x.const_data_ptr<scalar_t>(), *gs = g.const_data_ptr<scalar_t>();
    const auto each = [&](int64_t first, int64_t last, const auto& body) {  // body(row, count, gmax, argmax)
      for (int64_t r = first; r < last; r += unit)
        body(r * channels, std::min(unit, last - r),
             group ? gm.const_data_ptr<scalar_t>() + r / group * channels : nullptr,
             group ? argmax.const_data_ptr<int32_t>() + r / group * channels : nullptr);
    };
    std::vector<double> sums(parts.count * 2 * channels, 0);
    parts([&](int64_t part, int64_t first, int64_t last) {
      std::vector<scalar_t> partial(2 * channels);
      double* to = sums.data() + part * 2 * channels;
      each(first, last, [&](int64_t at, int64_t count, const scalar_t* gmax, const int32_t* where) {
        std::fill(partial.begin(), partial.end(), scalar_t(0));
        (gmax ? add_gradient_sums<scalar_t, true> : add_gradient_sums<scalar_t, false>)(
            xs + at, gs + at, gmax, where, count, channels, p, partial.data(), partial.data() + channels);
        for (int64_t c = 0; c < 2 * channels; ++c) to[c] += partial[c];
      });
    });
    for (int64_t part = 1; part < parts.count; ++part)
      for (int64_t c = 0; c < 2 * channels; ++c) sums[c] += sums[part * 2 * channels + c];
    std::vector<scalar_t> constant(channels, 0), linear(channels, 0);
    scalar_t* gn = gnorm.data_ptr<scalar_t>();
    for (int64_t c = 0; c < channels; ++c) {
      gn[c] = sums[channels + c], gn[channels + c] = sums[c];
      gn[2 * channels + c] = batch ? 0 : -p.scale[c] * sums[c];
      if (batch) constant[c] = sums[c] / batch, linear[c] = sums[channels + c] / batch * p.inverse_variance[c];
    }
    parts([&](int64_t, int64_t first, int64_t last) {
      each(first, last, [&](int64_t at, int64_t count, const scalar_t* gmax, const int32_t* where) {
        (gmax ? write_gradients<scalar_t, true> : write_gradients<scalar_t, false>)(
            xs + at, gs + at, gmax, where, count, channels, p, constant.data(), linear.data(),
            gx.data_ptr<scalar_t>() + at);
      });
    });
  });
  return {gx, gnorm};
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("column_moments", &column_moments);
  m.impl("scalar_block", &scalar_block);
  m.impl("scalar_norm", &scalar_norm);
  m.impl("scalar_norm_backward", &scalar_norm_backward);
}
