// Batch norm of lengths, leaky ReLU along a direction, and the mean over groups of rows, of a factored input
// (block_input.h).

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "norm_leaky_relu_backward.h"
#include "norm_leaky_relu_forward.h"

using namespace vector_neurons;

namespace {

// norm (5, width) as in ops.py; gradient_terms (2, width): grad_constant and grad_linear, for the backward pass only.
template <typename T>
NormParams<T> norm_params(const Tensor& norm, int64_t channels, double negative_slope, double eps,
                          const Tensor& gradient_terms) {
  const int64_t w = norm.size(1);
  const T *n = norm.const_data_ptr<T>(), *g = gradient_terms.const_data_ptr<T>();
  return {n, n + w, n + 2 * w, n + 3 * w, g, g + w, T(negative_slope), T(eps), w, channels};
}

template <typename Body>
void dispatch_directions(int64_t directions, const Body& body) {
  if (directions == 0)
    body(std::integral_constant<Directions, Directions::none>{});
  else if (directions == 1)
    body(std::integral_constant<Directions, Directions::shared>{});
  else
    body(std::integral_constant<Directions, Directions::per_channel>{});
}

BlockInput checked_input(const Tensor& a, const Maybe& b, const Maybe& weight, const Maybe& projected,
                         const Maybe& neighbors, const Tensor& norm, int64_t directions, int64_t channels,
                         int64_t pool) {
  BlockInput input(a, b, weight, projected, neighbors);
  TORCH_CHECK(norm.dim() == 2 && norm.size(0) == 5 && norm.is_contiguous() && norm.scalar_type() == input.dtype(),
              "the norm must be (5, width), got ", norm.sizes());
  const int64_t width = norm.size(1);
  const bool fits = directions == 1 ? width < input.columns : width + directions == input.columns;
  TORCH_CHECK((directions == 0 || directions == 1 || directions == width) && fits, "directions need one channel or ",
              width, ", got ", directions, " in rows of ", input.columns);
  TORCH_CHECK(channels <= width && (!neighbors || width % LANES == 0), "the width of edges must be a multiple of ",
              LANES);
  TORCH_CHECK(pool > 0 && input.num_rows % pool == 0 && (!(neighbors || b) || input.rows_per_b % pool == 0),
              input.num_rows, " rows do not make groups of ", pool);
  return input;
}

Tensor norm_leaky_relu(const Tensor& a, const Maybe& b, const Maybe& weight, const Maybe& projected,
                       const Maybe& neighbors, const Tensor& norm, int64_t directions, int64_t channels, int64_t pool,
                       double negative_slope, double eps, int64_t) {
  const BlockInput input = checked_input(a, b, weight, projected, neighbors, norm, directions, channels, pool);
  Tensor out = allocate({input.num_rows / pool, 3, channels}, a.options());
  AT_DISPATCH_FLOATING_TYPES(input.dtype(), "norm_leaky_relu", [&] {
    const auto params = norm_params<scalar_t>(norm, channels, negative_slope, eps, norm);
    dispatch_directions(directions, [&](auto d) {
      if (a.scalar_type() == input.dtype())
        forward<scalar_t, decltype(d)::value>(input, params, pool, out.data_ptr<scalar_t>());
      else
        forward<scalar_t, decltype(d)::value>(input, params, pool, out.data_ptr<float>());
    });
  });
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> norm_leaky_relu_backward(
    const Tensor& grad, const Tensor& a, const Maybe& b, const Maybe& weight, const Maybe& projected,
    const Maybe& neighbors, const Tensor& norm, int64_t directions, int64_t channels, int64_t pool,
    double negative_slope, double eps, int64_t batch, bool needs_grad_a) {
  const BlockInput input = checked_input(a, b, weight, projected, neighbors, norm, directions, channels, pool);
  TORCH_CHECK(input.dtype() == a.scalar_type(), "rows that a weight of another type maps have no gradient");
  const Tensor g = grad.contiguous();
  InputGradients out(input, needs_grad_a);
  Tensor sums, gradient_terms = at::zeros({2, norm.size(1)}, a.options());
  std::vector<uint8_t> exact;
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "norm_leaky_relu_backward", [&] {
    dispatch_directions(directions, [&](auto d) {
      constexpr Directions D = decltype(d)::value;
      const auto params = [&] { return norm_params<scalar_t>(norm, channels, negative_slope, eps, gradient_terms); };
      if (batch) {
        // Each length moves the batch's mean and variance, whose gradients are sums over all rows: a pass for those.
        const Tensor all =
            backward<scalar_t, D, RowGradients::none>(input, params(), pool, g, exact, out) * norm[0] / -double(batch);
        gradient_terms = at::stack({all[1], all[0] * norm[4]}).to(a.scalar_type());
      }
      sums = neighbors ? backward<scalar_t, D, RowGradients::add>(input, params(), pool, g, exact, out)
                       : backward<scalar_t, D, RowGradients::write>(input, params(), pool, g, exact, out);
    });
  });
  // Gradients of scale and shift, and of a center that is not the batch's mean. Floor and inverse variance have none.
  const Tensor zero = at::zeros_like(sums[0]), of_center = batch ? zero : -norm[0] * sums[1];
  const Tensor of_norm = at::stack({sums[0], sums[1], of_center, zero, zero}).to(a.scalar_type());
  return {out.a, out.b, out.weight, of_norm};
}

}  // namespace

// Schemas are in ops.py, since implementations for other devices share them.
TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("norm_leaky_relu", &norm_leaky_relu);
  m.impl("norm_leaky_relu_backward", &norm_leaky_relu_backward);
}
