// Products of rows with a weight, by oneDNN where torch has it: measured, it is a seventh faster than BLAS on rows of
// odd widths, as those of vector neurons are, if the weight is packed before. It is reached through torch's dispatcher,
// for its headers do not come with torch.

#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>

#include <optional>

namespace vector_neurons {

using at::Tensor;

// rows (rows, inputs) by the transpose of a weight (columns, inputs).
class Product {
 public:
  explicit Product(const Tensor& by) : weight(by) {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    // Packing pays from here on.
    const bool large = weight.size(0) >= 64 && weight.size(1) >= 64;
    if (large && weight.scalar_type() == at::kFloat && at::globalContext().userEnabledMkldnn() && operators())
      packed = operators()->pack.call(weight.contiguous(), 0);
  }

  Tensor operator()(const Tensor& rows) const {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    if (!packed.defined()) return rows.mm(weight.t());
    return operators()->linear.call(rows, packed, {}, "none", c10::List<std::optional<at::Scalar>>(), "");
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

  Tensor weight, packed;
};

}  // namespace vector_neurons
