// What the forward and the backward pass of norm_leaky_relu.cpp share: parameters of the norm, and the floor of short
// directions. (Included by one translation unit: internal linkage lets compilers inline freely.)

#pragma once

#include "block_gradients.h"

#ifndef VN_RELATIVE_FLOOR
#error "build.py defines VN_RELATIVE_FLOOR, from vector_neurons/_constants.py"
#endif

namespace vector_neurons {
namespace {

constexpr double RELATIVE_FLOOR = VN_RELATIVE_FLOOR;

// Directions k beside the features q: none (no non-linearity), one for all channels, or one per channel.
enum class Directions { none, shared, per_channel };

template <typename T>
struct NormParams {
  // A length n becomes scale (n - center) + shift, and is divided by max(n, floor). Where center and scale come from
  // statistics of the batch, n also moves those: this adds grad_constant + grad_linear (n - center) to its gradient.
  const T *scale, *shift, *center, *floor, *grad_constant, *grad_linear;
  T negative_slope, eps;    // eps < 0: short directions are bounded relative to the others of their row
  int64_t width, channels;  // with and without padding
  T added_eps() const { return eps < 0 ? T(0) : eps; }
};

template <typename T>
NOINLINE T mean_square(SummedRow<T> k, int64_t w, int64_t channels) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < w; ++c) {
    const T k0 = k.at(0, c), k1 = k.at(1, c), k2 = k.at(2, c);
    sum += k0 * k0 + k1 * k1 + k2 * k2;
  }
  return sum / T(channels);
}

// Lower bound of a row's squared direction lengths. The relative part needs a pass over the row, so it is left out
// unless `exact`.
template <typename T, Directions D>
T squared_floor(const SummedRow<T>& row, const NormParams<T>& p, bool exact) {
  if (D == Directions::none || p.eps >= 0) return 0;
  const T relative = D == Directions::per_channel && exact
                         ? T(RELATIVE_FLOOR * RELATIVE_FLOOR) * mean_square(row.from(p.width), p.width, p.channels)
                         : T(0);
  return relative < smallest_square<T>() ? smallest_square<T>() : relative;
}

// Sum and minimum of the squared direction lengths of some rows, collected on the fast path to find out whether the
// relative floor would have changed any of them. (Zero directions do not count: along them nothing changes.)
template <typename T>
struct SquaredLengthStats {
  T total = 0, least = std::numeric_limits<T>::max();
  void add(T more_total, T more_least) { total += more_total, least = std::min(least, more_least); }
  bool below_floor(const NormParams<T>& p) const {
    // Negated so that a NaN in one row takes the exact path, and the other rows keep their floor.
    return p.eps < 0 && !(least >= T(RELATIVE_FLOOR * RELATIVE_FLOOR) * total / T(p.channels));
  }
};

template <typename T>
inline T max_if_zero(T square) {
  return square > 0 ? square : std::numeric_limits<T>::max();
}

}  // namespace
}  // namespace vector_neurons
