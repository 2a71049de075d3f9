// Normalization and leaky ReLU of scalar rows, for operators that apply them to rows which are still in cache.

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "noinline.h"

namespace vector_neurons {

// Of a norm (4, channels): scale, shift, center, inverse variance.
template <typename T>
struct Norm {
  const T *scale, *shift, *center, *inverse_variance;
  T slope;

  Norm(const at::Tensor& norm, double slope)
      : scale(norm.const_data_ptr<T>()),
        shift(scale + norm.size(1)),
        center(shift + norm.size(1)),
        inverse_variance(center + norm.size(1)),
        slope(slope) {}
};

// out may be x itself: every element is read before it is written.
template <typename T>
NOINLINE void normalize(const T* x, int64_t rows, int64_t channels, Norm<T> p, T* out) {
  for (int64_t r = 0; r < rows; ++r, x += channels, out += channels) {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const T z = (x[c] - p.center[c]) * p.scale[c] + p.shift[c];
      out[c] = z > 0 ? z : p.slope * z;
    }
  }
}

}  // namespace vector_neurons
