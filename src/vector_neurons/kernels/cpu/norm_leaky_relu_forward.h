// Forward pass of norm_leaky_relu.cpp.

#pragma once

#include "norm_leaky_relu.h"

namespace vector_neurons {
namespace {

// Normalizes J rows with the same row of `b` and applies the non-linearity. Writes them one after the other, (J, 3, w),
// or with SUM adds all to one (3, w).
template <typename T, Directions D, bool SUM, int J>
NOINLINE void compute_rows(const std::array<SummedRow<T>, J> rows, const std::array<T, J> floors, NormParams<T> p,
                           T* __restrict to, SquaredLengthStats<T>& stats) {
  const T eps = p.added_eps(), slope_minus_1 = p.negative_slope - 1;
  const int64_t w = p.width, stride = rows[0].stride;
  const T* b = rows[0].b;
  const T* a_of[J];
  T floor_of[J];
  for (int j = 0; j < J; ++j) a_of[j] = rows[j].a, floor_of[j] = floors[j];
  T total = 0, least = std::numeric_limits<T>::max();
#pragma omp simd reduction(+ : total) reduction(min : least)
  for (int64_t c = 0; c < w; ++c) {
    const int64_t ck = D == Directions::per_channel ? w + c : w;  // column of the direction
    const T b0 = b[c], b1 = b[stride + c], b2 = b[2 * stride + c];
    T sum0 = 0, sum1 = 0, sum2 = 0;
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      const T* a = a_of[j];
      const T q0 = a[c] + b0, q1 = a[stride + c] + b1, q2 = a[2 * stride + c] + b2;
      const T n = length(q0, q1, q2) + eps, bounded = n < p.floor[c] ? p.floor[c] : n;
      const T r = (p.scale[c] * (n - p.center[c]) + p.shift[c]) / bounded;
      T y0 = r * q0, y1 = r * q1, y2 = r * q2;
      if constexpr (D != Directions::none) {
        const T k0 = a[ck] + b[ck], k1 = a[stride + ck] + b[stride + ck], k2 = a[2 * stride + ck] + b[2 * stride + ck];
        const T dot = y0 * k0 + y1 * k1 + y2 * k2, squares = k0 * k0 + k1 * k1 + k2 * k2 + eps;
        const T negative = dot < 0 ? dot : T(0), divisor = squares < floor_of[j] ? floor_of[j] : squares;
        const T f = slope_minus_1 * negative / divisor, nonzero = max_if_zero(squares);
        y0 += f * k0, y1 += f * k1, y2 += f * k2;
        total += squares, least = nonzero < least ? nonzero : least;
      }
      if constexpr (SUM)
        sum0 += y0, sum1 += y1, sum2 += y2;
      else
        to[3 * w * j + c] = y0, to[3 * w * j + w + c] = y1, to[3 * w * j + 2 * w + c] = y2;
    }
    if constexpr (SUM) to[c] += sum0, to[w + c] += sum1, to[2 * w + c] += sum2;
  }
  stats.add(total, least);
}

template <typename T, Directions D, bool SUM, int J>
void compute_rows(const RowReader<T>& read, int64_t m, const NormParams<T>& p, bool exact, T* to,
                  SquaredLengthStats<T>& stats) {
  std::array<SummedRow<T>, J> rows;
  std::array<T, J> floors;
  for (int j = 0; j < J; ++j) rows[j] = read(m + j), floors[j] = squared_floor<T, D>(rows[j], p, exact);
  compute_rows<T, D, SUM, J>(rows, floors, p, to, stats);
}

// Writes factor * sum (3, w) without padding, (3, channels).
template <typename T, typename Out>
NOINLINE void store_output(const T* __restrict sum, T factor, int64_t w, int64_t channels, Out* __restrict out) {
  for (int64_t d = 0; d < 3; ++d)
    for (int64_t c = 0; c < channels; ++c) out[d * channels + c] = Out(factor * sum[d * w + c]);
}

// Fast path without the relative floor; recompute exactly if any direction falls below it.
template <typename T, typename Body>
void recompute_if_below_floor(const NormParams<T>& p, const Body& body) {
  if (body(false).below_floor(p)) body(true);
}

template <typename T, Directions D, typename Out>
void forward(const BlockInput& input, const NormParams<T>& p, int64_t pool, Out* out) {
  const int64_t w = p.width, channels = p.channels, unit = input.rows_per_unit(pool), units = input.num_rows / unit;
  const int64_t chunk = input.chunk_rows(unit) / unit;
  at::parallel_for(0, (units + chunk - 1) / chunk, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    RowReader<T> read(input);
    std::vector<T> result(3 * w * ROW_BLOCK);
    const auto each_row = [&](int64_t begin, int64_t end) {
      for_row_blocks<ROW_BLOCK>(input, begin, end, [&](int64_t m, auto count) {
        constexpr int J = decltype(count)::value;
        recompute_if_below_floor(p, [&](bool exact) {
          SquaredLengthStats<T> stats;
          compute_rows<T, D, false, J>(read, m, p, exact, result.data(), stats);
          return stats;
        });
        for (int j = 0; j < J; ++j)
          store_output(result.data() + j * 3 * w, T(1), w, channels, out + (m + j) * 3 * channels);
      });
    };
    const auto mean_of_rows = [&](int64_t begin, int64_t end) {
      recompute_if_below_floor(p, [&](bool exact) {
        SquaredLengthStats<T> stats;
        std::fill_n(result.data(), 3 * w, T(0));
        for_row_blocks<ROW_BLOCK>(input, begin, end, [&](int64_t m, auto count) {
          compute_rows<T, D, true, decltype(count)::value>(read, m, p, exact, result.data(), stats);
        });
        return stats;
      });
      store_output(result.data(), T(1) / T(pool), w, channels, out + begin / pool * 3 * channels);
    };
    for (int64_t begin = first * chunk; begin < std::min(units, last * chunk); begin += chunk) {
      const int64_t end = std::min(units, begin + chunk);
      read.load_chunk(begin * unit, end * unit);
      if (pool == 1 && !input.neighbors) {
        each_row(begin, end);
        continue;
      }
      for (int64_t position = begin; position < end; ++position) {
        const int64_t start = input.unit_at(position) * unit, stop = start + unit;
        if (pool == 1)
          each_row(start, stop);
        else
          for (int64_t m = start; m < stop; m += pool) mean_of_rows(m, m + pool);
      }
    }
  });
}

}  // namespace
}  // namespace vector_neurons
