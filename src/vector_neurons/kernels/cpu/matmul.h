// Products of rows with a weight: small ones here, where BLAS is slow. Large ones on AVX-512 by oneDNN where torch has
// it: measured, that is a seventh faster there on rows of odd widths, as those of vector neurons are, if the weight is
// packed before. It is reached through torch's dispatcher, for its headers do not come with torch. Elsewhere by BLAS,
// which on AVX2 is faster than oneDNN, by up to a third, if rows of the weight are contiguous and in whole lanes.

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

constexpr int64_t LANES = 8;
template <typename T>
constexpr int64_t WIDE = 32 / sizeof(T);  // numbers of a SIMD vector

// R rows by C SIMD vectors of a weight, held in registers. Rows of the result end at `columns`, the weight's are padded.
template <typename T, int R, int C>
NOINLINE void tile(const T* x, int64_t inputs, const T* weight, int64_t padded, T* out, int64_t columns, int64_t left) {
  typedef T Lanes __attribute__((vector_size(WIDE<T> * sizeof(T)), aligned(alignof(T)), may_alias));
  Lanes sums[R][C] = {};
  for (int64_t i = 0; i < inputs; ++i)
    for (int c = 0; c < C; ++c) {
      const Lanes w = *reinterpret_cast<const Lanes*>(weight + i * padded + c * WIDE<T>);
      for (int r = 0; r < R; ++r) sums[r][c] += x[r * inputs + i] * w;
    }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      T* to = out + r * columns + c * WIDE<T>;
      if (left >= (c + 1) * WIDE<T>)
        *reinterpret_cast<Lanes*>(to) = sums[r][c];
      else
        for (int64_t j = 0; j < left - c * WIDE<T>; ++j) to[j] = sums[r][c][j];
    }
}

template <typename T, int R>
void strip(const T* x, int64_t inputs, const T* weight, int64_t padded, T* out, int64_t columns) {
  int64_t c = 0;
  for (; c + 3 * WIDE<T> <= padded; c += 3 * WIDE<T>)
    tile<T, R, 3>(x, inputs, weight + c, padded, out + c, columns, columns - c);
  for (; c < padded; c += WIDE<T>) tile<T, R, 1>(x, inputs, weight + c, padded, out + c, columns, columns - c);
}

// Rows (rows, inputs) by the transpose of a weight (columns, inputs).
class Product {
 public:
  explicit Product(const Tensor& by) : weight(by), columns(by.size(0)), inputs(by.size(1)) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    if (inputs <= 64 && columns <= 192) {
      turned = at::constant_pad_nd(weight.t(), {0, -columns & (LANES - 1)}).contiguous();
      return;
    }
#ifdef __AVX512F__
    if (columns >= 64 && inputs >= 64 && weight.scalar_type() == at::kFloat &&
        at::globalContext().userEnabledMkldnn() && operators()) {
      packed = operators()->pack.call(weight.contiguous(), 0);
      return;
    }
#endif
    weight = at::constant_pad_nd(weight, {0, 0, 0, -columns & (LANES - 1)}).contiguous();
  }

  void operator()(const Tensor& rows, Tensor out) const {
    const at::AutoDispatchBelowADInplaceOrView plain;  // also where `out` was made in inference mode
    if (packed.defined())
      out.copy_(by_onednn(rows));
    else if (turned.defined() && rows.is_contiguous() && out.is_contiguous())
      AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "product", [&] { small<scalar_t>(rows, out); });
    else if (weight.size(0) == columns)
      at::mm_out(out, rows, weight.t());
    else {
      Tensor padded = allocate({rows.size(0), weight.size(0)}, rows.options());
      at::mm_out(padded, rows, weight.t());  // not mm: autocast would round what it is given
      out.copy_(padded.narrow(1, 0, columns));
    }
  }
  // The result, in `room` if it can be.
  Tensor in(Tensor& room, const Tensor& rows) const {
    const at::AutoDispatchBelowADInplaceOrView plain;
    if (packed.defined()) return by_onednn(rows);
    if (!room.defined() || room.size(0) < rows.size(0)) room = allocate({rows.size(0), columns}, rows.options());
    Tensor out = room.narrow(0, 0, rows.size(0));
    (*this)(rows, out);
    return out;
  }

 private:
  using Pack = Tensor(const Tensor&, std::optional<int64_t>);
  using Linear = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, c10::string_view,
                        c10::List<std::optional<at::Scalar>>, std::optional<c10::string_view>);
  struct Operators {
    c10::TypedOperatorHandle<Pack> pack;
    c10::TypedOperatorHandle<Linear> linear;
  };

  // None: torch was built without them, or has others by now.
  static const std::optional<Operators>& operators() {
    static const std::optional<Operators> found = []() -> std::optional<Operators> {
      auto& dispatcher = c10::Dispatcher::singleton();
      const auto pack = dispatcher.findSchema({"mkldnn::_reorder_linear_weight", ""});
      const auto linear = dispatcher.findSchema({"mkldnn::_linear_pointwise", ""});
      if (!pack || !linear) return {};
      try {
        return Operators{pack->typed<Pack>(), linear->typed<Linear>()};
      } catch (const c10::Error&) {
        return {};
      }
    }();
    return found;
  }

  Tensor by_onednn(const Tensor& rows) const {
    return operators()->linear.call(rows, packed, {}, "none", c10::List<std::optional<at::Scalar>>(), "");
  }

  template <typename T>
  void small(const Tensor& rows, const Tensor& out) const {
    const T *x = rows.const_data_ptr<T>(), *w = turned.const_data_ptr<T>();
    T* to = out.data_ptr<T>();
    const int64_t number = rows.size(0), padded = turned.size(1);
    int64_t r = 0;
    for (; r + 4 <= number; r += 4) strip<T, 4>(x + r * inputs, inputs, w, padded, to + r * columns, columns);
    for (; r < number; ++r) strip<T, 1>(x + r * inputs, inputs, w, padded, to + r * columns, columns);
  }

  Tensor weight, turned, packed;
  int64_t columns, inputs;
};

}  // namespace vector_neurons
