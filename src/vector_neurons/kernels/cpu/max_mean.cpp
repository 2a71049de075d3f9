// Maximum and mean of scalars over the axis before the channels, in one pass; and where the maximum of a linear map is.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "matmul.h"
#include "noinline.h"
#include "page_pool.h"

using namespace vector_neurons;

namespace {

// Rows of a partial sum: longer running sums would lose digits. Channels and elements of a task.
constexpr int64_t PARTIAL_ROWS = 64, TASK_CHANNELS = 256, TASK_ELEMENTS = 1 << 14;
constexpr int64_t PRODUCT_CHUNK_ELEMENTS = 1 << 17;  // of a product, which stays in cache

struct Groups {
  int64_t groups, rows, channels, splits;

  explicit Groups(const Tensor& x) : groups(x.size(0)), rows(x.size(1)), channels(x.size(2)) {
    splits = std::max<int64_t>(channels / TASK_CHANNELS, 1);
  }

  // body(group, first channel, last channel)
  template <typename Body>
  void operator()(const Body& body) const {
    const int64_t grain = std::max<int64_t>(TASK_ELEMENTS * splits / std::max<int64_t>(rows * channels, 1), 1);
    at::parallel_for(0, groups * splits, grain, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t split = task % splits;
        body(task / splits, channels * split / splits, channels * (split + 1) / splits);
      }
    });
  }
};

// Updates the maximum, the first row that has it, and the sum, with the rows `first` to `last`. A NaN becomes the
// maximum and stays it, as in torch.
template <typename T>
NOINLINE void pool_rows(const T* __restrict x, int64_t channels, int32_t first, int32_t last, int64_t count,
                        T* __restrict max, int32_t* __restrict argmax, T* __restrict sum) {
  for (int32_t r = first; r < last; ++r) {
    const T* __restrict row = x + r * channels;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) {
      const bool better = !(row[c] <= max[c]) && max[c] == max[c];
      max[c] = better ? row[c] : max[c];
      argmax[c] = better ? r : argmax[c];
      sum[c] += row[c];
    }
  }
}

// x (groups, rows, channels) to maximum, mean and the first row of the maximum, (groups, channels).
std::tuple<Tensor, Tensor, Tensor> max_mean(const Tensor& x) {
  TORCH_CHECK(x.dim() == 3 && x.size(1) > 0 && x.is_contiguous(), "max_mean takes groups of rows, got ", x.sizes());
  const Groups each(x);
  const std::vector<int64_t> shape = {each.groups, each.channels};
  Tensor max = allocate(shape, x.options()), mean = allocate(shape, x.options()),
         argmax = allocate(shape, x.options().dtype(at::kInt));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "max_mean", [&] {
    each([&](int64_t group, int64_t first, int64_t last) {
      const int64_t count = last - first, at = group * each.channels + first;
      const scalar_t* from = x.const_data_ptr<scalar_t>() + group * each.rows * each.channels + first;
      scalar_t *largest = max.data_ptr<scalar_t>() + at, *average = mean.data_ptr<scalar_t>() + at;
      int32_t* where = argmax.data_ptr<int32_t>() + at;
      std::copy_n(from, count, largest), std::fill_n(where, count, 0), std::fill_n(average, count, scalar_t(0));
      std::vector<scalar_t> partial(count);
      for (int64_t r = 0; r < each.rows; r += PARTIAL_ROWS) {
        std::fill(partial.begin(), partial.end(), scalar_t(0));
        pool_rows(from, each.channels, r, std::min(each.rows, r + PARTIAL_ROWS), count, largest, where, partial.data());
        for (int64_t c = 0; c < count; ++c) average[c] += partial[c];
      }
      for (int64_t c = 0; c < count; ++c) average[c] /= scalar_t(each.rows);
    });
  });
  return {max, mean, argmax};
}

// The gradient of x, which has this number of rows in every group.
Tensor max_mean_backward(const Tensor& grad_max, const Tensor& grad_mean, const Tensor& argmax, int64_t rows) {
  const int64_t groups = argmax.size(0), channels = argmax.size(1);
  TORCH_CHECK(argmax.dim() == 2 && argmax.is_contiguous() && argmax.scalar_type() == at::kInt && rows > 0 &&
                  grad_max.sizes() == argmax.sizes() && grad_mean.sizes() == argmax.sizes(),
              "max_mean_backward takes gradients of a maximum and of a mean, and where the maximum is");
  Tensor out = allocate({groups, rows, channels}, grad_max.options());
  const Groups each(out);
  const Tensor of_max = grad_max.contiguous(), of_mean = grad_mean.contiguous();
  AT_DISPATCH_FLOATING_TYPES(grad_max.scalar_type(), "max_mean_backward", [&] {
    each([&](int64_t group, int64_t first, int64_t last) {
      const int64_t count = last - first, at = group * channels + first;
      scalar_t* to = out.data_ptr<scalar_t>() + group * rows * channels + first;
      const scalar_t *gmax = of_max.const_data_ptr<scalar_t>() + at, *gmean = of_mean.const_data_ptr<scalar_t>() + at;
      std::vector<scalar_t> share(gmean, gmean + count);
      for (scalar_t& value : share) value /= scalar_t(rows);
      for (int64_t r = 0; r < rows; ++r) std::copy_n(share.data(), count, to + r * channels);
      const int32_t* where = argmax.const_data_ptr<int32_t>() + at;
      for (int64_t c = 0; c < count; ++c) {
        TORCH_CHECK_INDEX(where[c] >= 0 && where[c] < rows, "row ", where[c], " is not one of ", rows);
        to[where[c] * channels + c] += gmax[c];
      }
    });
  });
  return out;
}

// Updates the maximum of flip x, and the first row that has it; rows are counted from `first`.
template <typename T>
NOINLINE void update_argmax(const T* __restrict x, int64_t rows, int64_t channels, int32_t first,
                            const T* __restrict flip, T* __restrict max, int32_t* __restrict argmax) {
  for (int32_t r = 0; r < rows; ++r, x += channels) {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const T value = flip[c] * x[c];
      const bool better = !(value <= max[c]) && max[c] == max[c];
      max[c] = better ? value : max[c];
      argmax[c] = better ? first + r : argmax[c];
    }
  }
}

// The first of the rows of each group of x (groups, rows, inputs) whose product with weight (inputs, channels) is the
// largest, or the smallest where sign < 0: (groups, channels).
Tensor product_argmax(const Tensor& x, const Tensor& weight, const Tensor& sign) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  TORCH_CHECK(x.dim() == 3 && x.size(1) > 0 && x.is_contiguous() && weight.dim() == 2 && weight.size(0) == x.size(2) &&
                  sign.sizes() == weight.sizes().slice(1),
              "product_argmax takes groups of rows, a weight and signs, got ", x.sizes(), ", ", weight.sizes(), " and ",
              sign.sizes());
  const int64_t groups = x.size(0), rows = x.size(1), channels = weight.size(1);
  const int64_t chunk = std::clamp<int64_t>(PRODUCT_CHUNK_ELEMENTS / std::max(channels, x.size(2)), 1, rows);
  Tensor out = at::empty({groups, channels}, x.options().dtype(at::kLong));
  const Matmul matmul(weight.t());
  const Tensor signs = sign.to(x.scalar_type()).contiguous();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "product_argmax", [&] {
    std::vector<scalar_t> flip(channels);
    for (int64_t c = 0; c < channels; ++c) flip[c] = signs.const_data_ptr<scalar_t>()[c] < 0 ? -1 : 1;
    at::parallel_for(0, groups, 1, [&](int64_t begin, int64_t end) {
      const at::NoGradGuard no_grad;
      std::vector<scalar_t> max(channels);
      std::vector<int32_t> argmax(channels);
      Tensor buffer;
      for (int64_t group = begin; group < end; ++group) {
        std::fill(max.begin(), max.end(), -std::numeric_limits<scalar_t>::infinity());
        std::fill(argmax.begin(), argmax.end(), 0);
        for (int64_t first = 0; first < rows; first += chunk) {
          const int64_t count = std::min(chunk, rows - first);
          const Tensor product = matmul.into(buffer, x[group].narrow(0, first, count));
          update_argmax(product.const_data_ptr<scalar_t>(), count, channels, first, flip.data(), max.data(),
                        argmax.data());
        }
        std::copy(argmax.begin(), argmax.end(), out.data_ptr<int64_t>() + group * channels);
      }
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("product_argmax", &product_argmax);
  m.impl("max_mean", &max_mean);
  m.impl("max_mean_backward", &max_mean_backward);
}
