// Norm of lengths and leaky ReLU along a direction, and the mean over groups of rows that need not exist (rows.h).

#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "rows.h"

using namespace vector_neurons;

namespace {

enum class Direction { none, shared, each };
enum class Keep { nothing, rows, edges };  // of gradients: what belongs to rows is written, what to edges added

template <typename T>
struct Settings {
  // A length n becomes scale (n - centre) + shift; below floor it counts as that. The length's gradient has these
  // more, constant + linear (n - centre), where it moves the statistics that centre and scale come from.
  const T *scale, *shift, *centre, *floor, *constant, *linear;
  T slope, eps;             // eps < 0: short directions are bounded relative to the others of their row
  int64_t width, channels;  // with and without padding
  T added() const { return eps < 0 ? T(0) : eps; }
};

constexpr double RELATIVE_FLOOR = 1e-3;

template <typename T>
APART T mean_square(Row<T> k, int64_t w, int64_t channels) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < w; ++c) {
    const T k0 = k.at(0, c), k1 = k.at(1, c), k2 = k.at(2, c);
    sum += k0 * k0 + k1 * k1 + k2 * k2;
  }
  return sum / T(channels);
}

// Squares of a row's directions below this count as this.
template <typename T, Direction D>
T least_square(const Row<T>& k, const Settings<T>& s) {
  if (D == Direction::none || s.eps >= 0) return 0;
  const T relative =
      D == Direction::each ? T(RELATIVE_FLOOR * RELATIVE_FLOOR) * mean_square(k, s.width, s.channels) : T(0);
  return relative < tiny<T>() ? tiny<T>() : relative;
}

// Adds one row, normalised and bent, to a sum.
template <typename T, Direction D>
APART void add_bent(Row<T> q, Row<T> k, Settings<T> s, T least, T* __restrict sum) {
  const T eps = s.added(), less = s.slope - 1;
  const int64_t w = s.width;
#pragma omp simd
  for (int64_t c = 0; c < w; ++c) {
    const T q0 = q.at(0, c), q1 = q.at(1, c), q2 = q.at(2, c);
    const T n = length(q0, q1, q2) + eps, bounded = n < s.floor[c] ? s.floor[c] : n;
    const T r = (s.scale[c] * (n - s.centre[c]) + s.shift[c]) / bounded;
    T y0 = r * q0, y1 = r * q1, y2 = r * q2;
    if constexpr (D != Direction::none) {
      const int64_t j = D == Direction::each ? c : 0;
      const T k0 = k.at(0, j), k1 = k.at(1, j), k2 = k.at(2, j);
      const T dot = y0 * k0 + y1 * k1 + y2 * k2, squares = k0 * k0 + k1 * k1 + k2 * k2 + eps;
      const T against = dot < 0 ? dot : T(0), most = squares < least ? least : squares, f = less * against / most;
      y0 += f * k0, y1 += f * k1, y2 += f * k2;
    }
    sum[c] += y0, sum[w + c] += y1, sum[2 * w + c] += y2;
  }
}

template <typename T>
APART void store(const T* __restrict sum, T share, int64_t w, int64_t channels, T* __restrict out) {
  for (int64_t d = 0; d < 3; ++d)
    for (int64_t c = 0; c < channels; ++c) out[d * channels + c] = share * sum[d * w + c];
}

template <typename T, Direction D>
void bend_rows(const Rows& rows, const Settings<T>& s, int64_t pool, T* out) {
  const int64_t w = s.width, groups = rows.number / pool, chunk = rows.chunk(pool) / pool;
  at::parallel_for(0, (groups + chunk - 1) / chunk, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    Reader<T> read(rows);
    std::vector<T> sum(3 * w);
    for (int64_t begin = first * chunk; begin < std::min(groups, last * chunk); begin += chunk) {
      const int64_t end = std::min(groups, begin + chunk);
      read.open(begin * pool, end * pool);
      for (int64_t g = begin; g < end; ++g) {
        std::fill(sum.begin(), sum.end(), T(0));
        for (int64_t m = g * pool; m < (g + 1) * pool; ++m) {
          const Row<T> q = read(m), k = q.from(w);
          add_bent<T, D>(q, k, s, least_square<T, D>(k, s), sum.data());
        }
        store(sum.data(), T(1) / T(pool), w, s.channels, out + g * 3 * s.channels);
      }
    }
  });
}

template <typename T, Keep K>
inline void leave(T value, T* __restrict to, T* __restrict own, int64_t at) {
  if constexpr (K == Keep::rows) to[at] = value;
  if constexpr (K == Keep::edges) to[at] += value, own[at] += value;
}

// Gradients of one row, for channels c0 to c1, from that of the row, bent; added to sums (2, width) those of scale and
// shift.
template <typename T, Direction D, Keep K>
APART void bend_row_back(Row<T> q, Row<T> k, const T* g, int64_t c0, int64_t c1, Settings<T> s, T least,
                         T* __restrict to, T* __restrict own, int64_t step, T* __restrict sums) {
  const T eps = s.added(), less = s.slope - 1, zero = shortest<T>();
  const int64_t w = s.width;
  T s0 = 0, s1 = 0, s2 = 0;
#pragma omp simd reduction(+ : s0, s1, s2)
  for (int64_t c = c0; c < c1; ++c) {
    const T q0 = q.at(0, c), q1 = q.at(1, c), q2 = q.at(2, c);
    const T g0 = g[c], g1 = g[w + c], g2 = g[2 * w + c];
    // Divisors have names: compilers would divide by both values of a choice between two, and choose then.
    const T plain = length(q0, q1, q2), n = plain + eps, bounded = n < s.floor[c] ? s.floor[c] : n;
    const T over = T(1) / bounded, r = (s.scale[c] * (n - s.centre[c]) + s.shift[c]) * over;
    T h0 = g0, h1 = g1, h2 = g2;  // gradient of the normalised feature r q
    if constexpr (D != Direction::none) {
      const int64_t j = D == Direction::each ? c : 0;
      const T k0 = k.at(0, j), k1 = k.at(1, j), k2 = k.at(2, j);
      const T dot = r * (q0 * k0 + q1 * k1 + q2 * k2), squares = k0 * k0 + k1 * k1 + k2 * k2 + eps;
      const T most = squares < least ? least : squares, inverse = T(1) / most, e = dot < 0 ? less * inverse : T(0);
      const T along = g0 * k0 + g1 * k1 + g2 * k2, l = e * along;
      h0 += l * k0, h1 += l * k1, h2 += l * k2;
      if constexpr (K != Keep::nothing) {
        // A bounded length is a constant to the gradient.
        const T f = e * dot, t = squares < least ? T(0) : 2 * f * along * inverse, lr = l * r;
        const T p0 = f * g0 + lr * q0 - t * k0, p1 = f * g1 + lr * q1 - t * k1, p2 = f * g2 + lr * q2 - t * k2;
        if constexpr (D == Direction::each) {
          leave<T, K>(p0, to, own, w + c);
          leave<T, K>(p1, to, own, step + w + c);
          leave<T, K>(p2, to, own, 2 * step + w + c);
        } else {
          s0 += p0, s1 += p1, s2 += p2;
        }
      }
    }
    const T inner = (h0 * q0 + h1 * q1 + h2 * q2) * over;
    sums[c] += inner * (n - s.centre[c]);
    sums[w + c] += inner;
    if constexpr (K != Keep::nothing) {
      const T back =
          inner * s.scale[c] - (n < s.floor[c] ? T(0) : inner * r) + s.constant[c] + s.linear[c] * (n - s.centre[c]);
      const T each = back / plain, f = plain > zero ? each : T(0);
      leave<T, K>(r * h0 + f * q0, to, own, c);
      leave<T, K>(r * h1 + f * q1, to, own, step + c);
      leave<T, K>(r * h2 + f * q2, to, own, 2 * step + c);
    }
  }
  if constexpr (D == Direction::shared) {
    if constexpr (K == Keep::rows)
      for (int64_t d = 0; d < 3; ++d) std::fill(to + d * step + w, to + (d + 1) * step, T(0));  // padding
    leave<T, K>(s0, to, own, w);
    leave<T, K>(s1, to, own, step + w);
    leave<T, K>(s2, to, own, 2 * step + w);
  }
}

template <typename T>
APART void load_gradient(const T* __restrict from, int64_t w, int64_t channels, T share, T* __restrict g) {
  for (int64_t d = 0; d < 3; ++d)
    for (int64_t c = 0; c < channels; ++c) g[d * w + c] = share * from[d * channels + c];
}

// Goes through all rows for the sums of the gradients of scale and shift, (2, width), and to keep those of rows, too.
template <typename T, Direction D, Keep K>
Tensor bend_rows_back(const Rows& rows, const Settings<T>& s, int64_t pool, const Tensor& grad, Gradients& out) {
  const int64_t w = s.width, columns = rows.columns, channels = s.channels;
  const T* gradient = grad.const_data_ptr<T>();
  constexpr bool KEEP = K != Keep::nothing;
  const bool mapped = KEEP && rows.weight;
  // A direction that channels share has one gradient, so channels stay together there.
  const Parts parts(rows, w, pool, D == Direction::each);
  std::vector<double> sums(parts.count * 2 * w, 0.0);
  std::vector<T> weights(mapped ? parts.count * rows.weight->numel() : 0);
  std::vector<std::vector<std::pair<int64_t, Tensor>>> second(parts.count);  // of some clouds, by part
  const auto back = mapped && out.a.numel() ? std::optional(Product(*rows.weight)) : std::nullopt;
  parts([&] {
    return [&, read = Reader<T>(rows), sink = Sink<T>(rows, out), g = std::vector<T>(3 * w),
            both = std::vector<T>(2 * w)](int64_t part, int64_t c0, int64_t c1, int64_t first, int64_t last) mutable {
      const int64_t begin = first * parts.unit, end = last * parts.unit;
      const int64_t k0 = D == Direction::each ? w + c0 : w, k1 = D == Direction::each ? w + c1 : columns;
      read.open(begin, end);
      if (KEEP) sink.open(begin, end);
      for (int64_t u = first; u < last; ++u) {
        std::fill(both.begin(), both.end(), T(0));
        for (int64_t m = u * parts.unit; m < (u + 1) * parts.unit; ++m) {
          if (m % pool == 0) load_gradient(gradient + m / pool * 3 * channels, w, channels, T(1) / T(pool), g.data());
          const Row<T> q = read(m), k = q.from(w);
          T* to = KEEP ? sink.at(m) : nullptr;
          bend_row_back<T, D, K>(q, k, g.data(), c0, c1, s, least_square<T, D>(k, s), to, sink.mine(), columns,
                                 both.data());
        }
        double* __restrict found = sums.data() + part * 2 * w;
        for (int64_t c = c0; c < c1; ++c) found[c] += both[c], found[w + c] += both[w + c];
        if (KEEP) sink.finish(u, c0, c1);
        if (KEEP && D != Direction::none) sink.finish(u, k0, k1);
      }
      if (!mapped) return;
      const Tensor of_images = sink.of_images(begin, end);
      for (int64_t m = begin, stop; rows.b && m < end; m = stop) {  // what the points of a cloud share
        const int64_t cloud = m / rows.share;
        stop = std::min(end, (cloud + 1) * rows.share);
        const Tensor some = of_images.narrow(0, 3 * (m - begin), 3 * (stop - m)).view({-1, 3, columns}).sum(0);
        auto& found = second[part];
        if (found.empty() || found.back().first != cloud)
          found.emplace_back(cloud, some);
        else
          found.back().second += some;
      }
      if (back) (*back)(of_images, rows.sources(out.a, begin, end));
      Tensor sum = at::from_blob(weights.data() + part * rows.weight->numel(), rows.weight->sizes(), rows.a.options());
      at::addmm_out(sum, sum, rows.sources(rows.a, begin, end).t(), of_images);
    };
  });
  if (mapped) out.weight = total(weights, rows.weight->size(0), columns, grad).to(grad.scalar_type());
  if (mapped && rows.b) {
    out.b = at::zeros(rows.b->sizes(), grad.options());
    for (const auto& found : second)
      for (const auto& [cloud, some] : found) out.b[cloud][0] += some;
  }
  if (KEEP && !rows.weight && rows.b && !rows.index) out.b = out.a.sum(1, true);
  return total(sums, 2, w, grad);
}

template <typename T>
Settings<T> settings(const Tensor& norm, int64_t channels, double slope, double eps, const Tensor& more) {
  const int64_t w = norm.size(1);
  const T *n = norm.const_data_ptr<T>(), *m = more.const_data_ptr<T>();
  return {n, n + w, n + 2 * w, n + 3 * w, m, m + w, T(slope), T(eps), w, channels};
}

template <typename Body>
void by_direction(int64_t directions, const Body& body) {
  if (directions == 0)
    body(std::integral_constant<Direction, Direction::none>{});
  else if (directions == 1)
    body(std::integral_constant<Direction, Direction::shared>{});
  else
    body(std::integral_constant<Direction, Direction::each>{});
}

Rows checked(const Tensor& a, const Maybe& b, const Maybe& weight, const Maybe& images, const Maybe& index,
             const Tensor& norm, int64_t directions, int64_t channels, int64_t pool) {
  Rows rows(a, b, weight, images, index);
  TORCH_CHECK(norm.dim() == 2 && norm.size(0) == 5 && norm.is_contiguous() && norm.scalar_type() == a.scalar_type(),
              "the norm must be (5, width), got ", norm.sizes());
  const int64_t width = norm.size(1);
  const bool fits = directions == 1 ? width < rows.columns : width + directions == rows.columns;
  TORCH_CHECK((directions == 0 || directions == 1 || directions == width) && fits, "directions need one channel or ",
              width, ", got ", directions, " in rows of ", rows.columns);
  TORCH_CHECK(channels <= width && (!index || width % LANES == 0), "the width of edges must be a multiple of ", LANES);
  TORCH_CHECK(pool > 0 && rows.number % pool == 0 && (!index || rows.per_cloud % pool == 0), rows.number,
              " rows do not make groups of ", pool);
  return rows;
}

Tensor bend(const Tensor& a, const Maybe& b, const Maybe& weight, const Maybe& images, const Maybe& index,
            const Tensor& norm, int64_t directions, int64_t channels, int64_t pool, double slope, double eps, int64_t) {
  const Rows rows = checked(a, b, weight, images, index, norm, directions, channels, pool);
  Tensor out = fresh({rows.number / pool, 3, channels}, a.options());
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "bend", [&] {
    const auto s = settings<scalar_t>(norm, channels, slope, eps, norm);
    by_direction(directions,
                 [&](auto d) { bend_rows<scalar_t, decltype(d)::value>(rows, s, pool, out.data_ptr<scalar_t>()); });
  });
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> bend_backward(const Tensor& grad, const Tensor& a, const Maybe& b,
                                                         const Maybe& weight, const Maybe& images, const Maybe& index,
                                                         const Tensor& norm, int64_t directions, int64_t channels,
                                                         int64_t pool, double slope, double eps, int64_t batch,
                                                         bool of_a) {
  const Rows rows = checked(a, b, weight, images, index, norm, directions, channels, pool);
  const Tensor g = grad.contiguous();
  Gradients out(rows, of_a);
  Tensor sums, more = at::zeros({2, norm.size(1)}, a.options());
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "bend_backward", [&] {
    by_direction(directions, [&](auto d) {
      constexpr Direction D = decltype(d)::value;
      const auto s = [&] { return settings<scalar_t>(norm, channels, slope, eps, more); };
      if (batch) {
        // Each length has its part in the statistics, hence in the gradients of centre and scale, which are sums.
        const Tensor all =
            bend_rows_back<scalar_t, D, Keep::nothing>(rows, s(), pool, g, out) * norm[0] / -double(batch);
        more = at::stack({all[1], all[0] * norm[4]}).to(a.scalar_type());
      }
      sums = index ? bend_rows_back<scalar_t, D, Keep::edges>(rows, s(), pool, g, out)
                   : bend_rows_back<scalar_t, D, Keep::rows>(rows, s(), pool, g, out);
    });
  });
  // Gradients of scale and shift, and of a centre that is not the batch's; the rest are constants.
  const Tensor none = at::zeros_like(sums[0]), centre = batch ? none : -norm[0] * sums[1];
  const Tensor of_norm = at::stack({sums[0], sums[1], centre, none, none}).to(a.scalar_type());
  return {out.a, out.b, out.weight, of_norm};
}

}  // namespace

// The schemas stand in operators.py: bodies for other devices share them.
TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("bend", &bend);
  m.impl("bend_backward", &bend_backward);
}
