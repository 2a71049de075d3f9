// Backward pass of norm_leaky_relu.cpp. It recomputes the rows.

#pragma once

#include <ATen/ops/addmm.h>

#include "norm_leaky_relu.h"

namespace vector_neurons {
namespace {

// What happens to the gradients of rows: not computed (only the sums of those of scale and shift are), written (rows
// that are stored), or added (edges, which share the rows of points).
enum class RowGradients { none, write, add };

template <typename T, RowGradients G>
inline void put_gradient(T value, T* to, T& point_gradient) {
  if constexpr (G == RowGradients::write) *to = value;
  if constexpr (G == RowGradients::add) *to += value, point_gradient += value;
}

// A row of the backward pass: the row itself, the gradient of its output, where its own gradient belongs, and the lower
// bound of its squared direction lengths.
template <typename T>
struct BackwardRow {
  SummedRow<T> row;
  const T* gradient;
  T* to;
  T floor;
};

// Gradients of J rows with the same row of `b`, in channels c0 to c1. Those of scale and shift are added to
// sums (2, w).
template <typename T, Directions D, RowGradients G, int J>
NOINLINE void compute_gradients(const std::array<BackwardRow<T>, J> rows, int64_t c0, int64_t c1, NormParams<T> p,
                                T* __restrict own, int64_t stride, T* __restrict sums, SquaredLengthStats<T>& stats) {
  static_assert(D != Directions::shared || J == 1);
  const T eps = p.added_eps(), slope_minus_1 = p.negative_slope - 1, zero_length = smallest_length<T>();
  const int64_t w = p.width;
  const T* b = rows[0].row.b;
  T s0 = 0, s1 = 0, s2 = 0, total = 0, least = std::numeric_limits<T>::max();
#pragma omp simd reduction(+ : s0, s1, s2, total) reduction(min : least)
  for (int64_t c = c0; c < c1; ++c) {
    const int64_t ck = D == Directions::per_channel ? w + c : w;  // column of the direction
    const T b0 = b[c], b1 = b[stride + c], b2 = b[2 * stride + c];
    T of_scale = 0, of_shift = 0, q_own0 = 0, q_own1 = 0, q_own2 = 0, k_own0 = 0, k_own1 = 0, k_own2 = 0;
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      const T *a = rows[j].row.a, *g = rows[j].gradient;
      T* to = rows[j].to;
      const T floor = rows[j].floor;
      const T q0 = a[c] + b0, q1 = a[stride + c] + b1, q2 = a[2 * stride + c] + b2;
      const T g0 = g[c], g1 = g[w + c], g2 = g[2 * w + c];
      // Divisors are variables of their own: for x / (p ? y : z) compilers would divide twice and select afterwards.
      const T plain = length(q0, q1, q2), n = plain + eps, bounded = n < p.floor[c] ? p.floor[c] : n;
      const T over = T(1) / bounded, r = (p.scale[c] * (n - p.center[c]) + p.shift[c]) * over;
      T h0 = g0, h1 = g1, h2 = g2;  // gradient of the normalized feature r q
      if constexpr (D != Directions::none) {
        const T k0 = a[ck] + b[ck], k1 = a[stride + ck] + b[stride + ck], k2 = a[2 * stride + ck] + b[2 * stride + ck];
        const T dot = r * (q0 * k0 + q1 * k1 + q2 * k2), squares = k0 * k0 + k1 * k1 + k2 * k2 + eps;
        const T divisor = squares < floor ? floor : squares, inverse = T(1) / divisor;
        const T e = dot < 0 ? slope_minus_1 * inverse : T(0);
        const T along = g0 * k0 + g1 * k1 + g2 * k2, l = e * along;
        h0 += l * k0, h1 += l * k1, h2 += l * k2;
        if constexpr (G == RowGradients::none) {
          const T nonzero = max_if_zero(squares);
          total += squares, least = nonzero < least ? nonzero : least;
        } else {
          // A length below the floor has no gradient.
          const T f = e * dot, t = squares < floor ? T(0) : 2 * f * along * inverse, lr = l * r;
          const T p0 = f * g0 + lr * q0 - t * k0, p1 = f * g1 + lr * q1 - t * k1, p2 = f * g2 + lr * q2 - t * k2;
          if constexpr (D == Directions::per_channel) {
            put_gradient<T, G>(p0, to + ck, k_own0);
            put_gradient<T, G>(p1, to + stride + ck, k_own1);
            put_gradient<T, G>(p2, to + 2 * stride + ck, k_own2);
          } else {
            s0 += p0, s1 += p1, s2 += p2;
          }
        }
      }
      const T inner = (h0 * q0 + h1 * q1 + h2 * q2) * over;
      of_scale += inner * (n - p.center[c]), of_shift += inner;
      if constexpr (G != RowGradients::none) {
        const T of_length = inner * p.scale[c] - (n < p.floor[c] ? T(0) : inner * r) + p.grad_constant[c] +
                            p.grad_linear[c] * (n - p.center[c]);
        const T ratio = of_length / plain, f = plain > zero_length ? ratio : T(0);
        put_gradient<T, G>(r * h0 + f * q0, to + c, q_own0);
        put_gradient<T, G>(r * h1 + f * q1, to + stride + c, q_own1);
        put_gradient<T, G>(r * h2 + f * q2, to + 2 * stride + c, q_own2);
      }
    }
    sums[c] += of_scale, sums[w + c] += of_shift;
    if constexpr (G == RowGradients::add) {
      own[c] += q_own0, own[stride + c] += q_own1, own[2 * stride + c] += q_own2;
      if constexpr (D == Directions::per_channel)
        own[ck] += k_own0, own[stride + ck] += k_own1, own[2 * stride + ck] += k_own2;
    }
  }
  stats.add(total, least);
  if constexpr (D == Directions::shared && G != RowGradients::none) {
    T* to = rows[0].to;
    if constexpr (G == RowGradients::write)
      for (int64_t d = 0; d < 3; ++d) std::fill(to + d * stride + w, to + (d + 1) * stride, T(0));  // padding
    put_gradient<T, G>(s0, to + w, own[w]);
    put_gradient<T, G>(s1, to + stride + w, own[stride + w]);
    put_gradient<T, G>(s2, to + 2 * stride + w, own[2 * stride + w]);
  }
}

// Reads factor * gradient (3, channels) into a padded buffer (3, w).
template <typename T>
NOINLINE void load_gradient(const T* __restrict from, int64_t w, int64_t channels, T factor, T* __restrict g) {
  for (int64_t d = 0; d < 3; ++d)
    for (int64_t c = 0; c < channels; ++c) g[d * w + c] = factor * from[d * channels + c];
}

// One pass over all rows: the sums of the gradients of scale and shift, (2, w), and unless G is none the gradients of
// the input. `exact` holds for each unit of rows whether it needs the relative floor of directions; a pass without
// row gradients finds it out for the one with.
template <typename T, Directions D, RowGradients G>
Tensor backward(const BlockInput& input, const NormParams<T>& p, int64_t pool, const Tensor& grad,
                std::vector<uint8_t>& exact, InputGradients& out) {
  const int64_t w = p.width, columns = input.columns, channels = p.channels;
  const T* gradient = grad.const_data_ptr<T>();
  constexpr bool WITH_ROWS = G != RowGradients::none;
  constexpr int MAX_ROWS = D == Directions::shared ? 1 : ROW_BLOCK;
  const bool through_weight = WITH_ROWS && input.weight;
  // The gradient of a shared direction is a sum over channels, so threads must not divide them.
  const BackwardParts parts(input, w, pool, D == Directions::per_channel);
  exact.resize(parts.units, true);
  // Units whose sums are accumulated in T before they are added in float64.
  const int64_t units_per_sum = input.neighbors ? 1 : std::max<int64_t>(ROWS_PER_PARTIAL_SUM / parts.unit, 1);
  std::vector<double> sums(parts.count * 2 * w, 0.0);
  const Tensor weight_grads =
      allocate({through_weight ? parts.count : 0, input.weight ? input.weight->numel() : 0}, grad.options());
  std::vector<uint8_t> has_weight_grad(parts.count, false);
  std::vector<std::vector<std::pair<int64_t, Tensor>>> b_grads(parts.count);  // by part: (cloud, gradient)
  const auto to_a = through_weight && out.a.numel() ? std::optional(Matmul(*input.weight)) : std::nullopt;
  parts([&] {
    return [&, read = RowReader<T>(input), writer = GradientWriter<T>(input, out),
            g = std::vector<T>(3 * w * ROW_BLOCK), unit_sums = std::vector<T>(2 * w)](
               int64_t part, int64_t c0, int64_t c1, int64_t first, int64_t last) mutable {
      const int64_t begin = first * parts.unit, end = last * parts.unit;
      constexpr bool PER_CHANNEL = D == Directions::per_channel;
      const int64_t k0 = PER_CHANNEL ? w + c0 : w, k1 = PER_CHANNEL ? w + c1 : columns;
      read.load_chunk(begin, end);
      if (WITH_ROWS) writer.start_chunk(begin, end);
      for (int64_t position = first, next; position < last; position = next) {
        next = std::min(last, position + units_per_sum);
        const int64_t u = input.unit_at(position), stop = u + next - position;
        const auto compute = [&](bool exact) {
          SquaredLengthStats<T> stats;
          std::fill(unit_sums.begin(), unit_sums.end(), T(0));
          for_row_blocks<MAX_ROWS>(input, u * parts.unit, stop * parts.unit, [&](int64_t m, auto count) {
            constexpr int J = decltype(count)::value;
            std::array<BackwardRow<T>, J> rows;
            for (int j = 0; j < J; ++j) {
              const int64_t group = (m + j) / pool;
              T* to = g.data() + group % ROW_BLOCK * 3 * w;
              if ((m + j) % pool == 0) load_gradient(gradient + group * 3 * channels, w, channels, T(1) / T(pool), to);
              const SummedRow<T> row = read(m + j);
              rows[j] = {row, to, WITH_ROWS ? writer.destination(m + j) : nullptr, squared_floor<T, D>(row, p, exact)};
            }
            compute_gradients<T, D, G, J>(rows, c0, c1, p, writer.point_gradient(), columns, unit_sums.data(), stats);
          });
          return stats;
        };
        // Gradients can be written once only, and threads that divide the channels do not have a row's whole
        // statistics: both rely on `exact` as it is.
        if (WITH_ROWS || parts.channel_splits > 1)
          compute(exact[u]);
        else if ((exact[u] = compute(false).below_floor(p)))
          compute(true);
        double* __restrict part_sums = sums.data() + part * 2 * w;
        for (int64_t c = c0; c < c1; ++c) part_sums[c] += unit_sums[c], part_sums[w + c] += unit_sums[w + c];
        if (WITH_ROWS) writer.finish_point(u, c0, c1);
        if (WITH_ROWS && D != Directions::none) writer.finish_point(u, k0, k1);
      }
      if (!through_weight) return;
      const Tensor of_projected = writer.projected_gradients(begin, end);
      for (int64_t m = begin, stop; input.b && m < end; m = stop) {  // the points of a cloud share a row of b
        const int64_t cloud = m / input.rows_per_b;
        stop = std::min(end, (cloud + 1) * input.rows_per_b);
        const Tensor sum = of_projected.narrow(0, 3 * (m - begin), 3 * (stop - m)).view({-1, 3, columns}).sum(0);
        auto& found = b_grads[part];
        if (found.empty() || found.back().first != cloud)
          found.emplace_back(cloud, sum);
        else
          found.back().second += sum;
      }
      if (to_a) (*to_a)(of_projected, input.unprojected(out.a, begin, end));
      Tensor sum = weight_grads[part].view(input.weight->sizes());
      at::addmm_out(sum, sum, input.unprojected(input.a, begin, end).t(), of_projected, has_weight_grad[part]);
      has_weight_grad[part] = true;
    };
  });
  if (through_weight) out.weight = weight_grads.sum(0).view(input.weight->sizes());
  if (through_weight && input.b) {
    out.b = at::zeros(input.b->sizes(), grad.options());
    for (const auto& found : b_grads)
      for (const auto& [cloud, sum] : found) out.b[cloud][0] += sum;
  }
  if (WITH_ROWS && !input.weight && input.b && !input.neighbors) out.b = out.a.sum(1, true);
  return add_partial_sums(sums, 2, w, grad);
}

}  // namespace
}  // namespace vector_neurons
