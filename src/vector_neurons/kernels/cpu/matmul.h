// Products of many rows with a weight. Three implementations, by measured speed:
//   - small weights: register tiles here, where BLAS is slow;
//   - large ones on AVX-512: oneDNN with a prepacked weight, a seventh faster than BLAS on rows of odd widths, which
//     vector neurons have. It is called through torch's dispatcher, since its headers do not come with torch;
//   - otherwise BLAS, which on AVX2 is up to a third faster than oneDNN if the weight's rows are contiguous and padded
//     to whole SIMD vectors.

#pragma once

#include <ATen/Context.h>
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/mm.h>

#include <optional>

#include "noinline.h"
#include "page_pool.h"

namespace vector_neurons {

using at::Tensor;

constexpr int64_t LANES = 8;  // channels are padded to a multiple of this, as in ops.py
template <typename T>
constexpr int64_t SIMD_WIDTH = 32 / sizeof(T);  // elements of a SIMD vector

// Weights up to this size are multiplied by register tiles.
constexpr int64_t TILED_MAX_INPUTS = 64, TILED_MAX_COLUMNS = 192;
// Weights from this size on are multiplied by oneDNN, where it is the faster one.
[[maybe_unused]] constexpr int64_t ONEDNN_MIN_INPUTS = 64, ONEDNN_MIN_COLUMNS = 64;

// R rows of x by C SIMD vectors of the weight's columns, accumulated in registers. The weight is padded to whole
// vectors; of the result only the remaining columns are stored.
template <typename T, int R, int C>
NOINLINE void multiply_tile(const T* x, int64_t inputs, const T* weight, int64_t padded, T* out, int64_t columns,
                            int64_t remaining) {
  typedef T Vector __attribute__((vector_size(SIMD_WIDTH<T> * sizeof(T)), aligned(alignof(T)), may_alias));
  Vector sums[R][C] = {};
  for (int64_t i = 0; i < inputs; ++i)
    for (int c = 0; c < C; ++c) {
      const Vector w = *reinterpret_cast<const Vector*>(weight + i * padded + c * SIMD_WIDTH<T>);
      for (int r = 0; r < R; ++r) sums[r][c] += x[r * inputs + i] * w;
    }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      T* to = out + r * columns + c * SIMD_WIDTH<T>;
      if (remaining >= (c + 1) * SIMD_WIDTH<T>)
        *reinterpret_cast<Vector*>(to) = sums[r][c];
      else
        for (int64_t j = 0; j < remaining - c * SIMD_WIDTH<T>; ++j) to[j] = sums[r][c][j];
    }
}

// R rows of x by all columns of the weight.
template <typename T, int R>
void multiply_rows(const T* x, int64_t inputs, const T* weight, int64_t padded, T* out, int64_t columns) {
  int64_t c = 0;
  for (; c + 3 * SIMD_WIDTH<T> <= padded; c += 3 * SIMD_WIDTH<T>)
    multiply_tile<T, R, 3>(x, inputs, weight + c, padded, out + c, columns, columns - c);
  for (; c < padded; c += SIMD_WIDTH<T>)
    multiply_tile<T, R, 1>(x, inputs, weight + c, padded, out + c, columns, columns - c);
}

// Multiplies rows (rows, inputs) by the transpose of a weight (columns, inputs), which is prepared once.
class Matmul {
 public:
  explicit Matmul(const Tensor& by) : weight(by), columns(by.size(0)), inputs(by.size(1)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (inputs <= TILED_MAX_INPUTS && columns <= TILED_MAX_COLUMNS) {
      transposed = at::constant_pad_nd(weight.t(), {0, -columns & (LANES - 1)}).contiguous();
      return;
    }
#ifdef __AVX512F__
    if (columns >= ONEDNN_MIN_COLUMNS && inputs >= ONEDNN_MIN_INPUTS && weight.scalar_type() == at::kFloat &&
        at::globalContext().userEnabledMkldnn() && onednn()) {
      packed = onednn()->pack.call(weight.contiguous(), 0);
      return;
    }
#endif
    weight = at::constant_pad_nd(weight, {0, 0, 0, -columns & (LANES - 1)}).contiguous();
  }

  void operator()(const Tensor& rows, Tensor out) const {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // also for an `out` made in inference mode
    if (packed.defined())
      out.copy_(multiply_by_onednn(rows));
    else if (transposed.defined() && rows.is_contiguous() && out.is_contiguous())
      AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "matmul", [&] { multiply_by_tiles<scalar_t>(rows, out); });
    else if (weight.size(0) == columns)
      at::mm_out(out, rows, weight.t());
    else {
      Tensor padded = allocate({rows.size(0), weight.size(0)}, rows.options());
      at::mm_out(padded, rows, weight.t());  // not mm: autocast would round its arguments
      out.copy_(padded.narrow(1, 0, columns));
    }
  }
  // The product, written to `buffer` where the implementation allows it; the buffer grows as needed.
  Tensor into(Tensor& buffer, const Tensor& rows) const {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (packed.defined()) return multiply_by_onednn(rows);
    if (!buffer.defined() || buffer.size(0) < rows.size(0)) buffer = allocate({rows.size(0), columns}, rows.options());
    Tensor out = buffer.narrow(0, 0, rows.size(0));
    (*this)(rows, out);
    return out;
  }

 private:
  using Pack = Tensor(const Tensor&, std::optional<int64_t>);
  using Linear = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, c10::string_view,
                        c10::List<std::optional<at::Scalar>>, std::optional<c10::string_view>);
  struct OneDNN {
    c10::TypedOperatorHandle<Pack> pack;
    c10::TypedOperatorHandle<Linear> linear;
  };

  // None if torch was built without these operators, or a later version changed their schemas.
  static const std::optional<OneDNN>& onednn() {
    static const std::optional<OneDNN> found = []() -> std::optional<OneDNN> {
      auto& dispatcher = c10::Dispatcher::singleton();
      const auto pack = dispatcher.findSchema({"mkldnn::_reorder_linear_weight", ""});
      const auto linear = dispatcher.findSchema({"mkldnn::_linear_pointwise", ""});
      if (!pack || !linear) return {};
      try {
        return OneDNN{pack->typed<Pack>(), linear->typed<Linear>()};
      } catch (const c10::Error&) {
        return {};
      }
    }();
    return found;
  }

  Tensor multiply_by_onednn(const Tensor& rows) const {
    return onednn()->linear.call(rows, packed, {}, "none", c10::List<std::optional<at::Scalar>>(), "");
  }

  template <typename T>
  void multiply_by_tiles(const Tensor& rows, const Tensor& out) const {
    const T *x = rows.const_data_ptr<T>(), *w = transposed.const_data_ptr<T>();
    T* to = out.data_ptr<T>();
    const int64_t count = rows.size(0), padded = transposed.size(1);
    int64_t r = 0;
    for (; r + 4 <= count; r += 4) multiply_rows<T, 4>(x + r * inputs, inputs, w, padded, to + r * columns, columns);
    for (; r < count; ++r) multiply_rows<T, 1>(x + r * inputs, inputs, w, padded, to + r * columns, columns);
  }

  Tensor weight, transposed, packed;  // one of the last two, or a padded weight
  int64_t columns, inputs;
};

}  // namespace vector_neurons
