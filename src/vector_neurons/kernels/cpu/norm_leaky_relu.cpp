// Norm of lengths and leaky ReLU along a direction, and the mean over groups of rows that need not exist (rows.h).

#include <ATen/ops/addmm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "block_input.h"

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
NOINLINE T mean_square(Row<T> k, int64_t w, int64_t channels) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < w; ++c) {
    const T k0 = k.at(0, c), k1 = k.at(1, c), k2 = k.at(2, c);
    sum += k0 * k0 + k1 * k1 + k2 * k2;
  }
  return sum / T(channels);
}

// Squares of a row's directions below this count as this. Without a look at the row, it is less than that.
template <typename T, Direction D>
T least_square(const Row<T>& row, const Settings<T>& s, bool look) {
  if (D == Direction::none || s.eps >= 0) return 0;
  const T relative = D == Direction::each && look
                         ? T(RELATIVE_FLOOR * RELATIVE_FLOOR) * mean_square(row.from(s.width), s.width, s.channels)
                         : T(0);
  return relative < tiny<T>() ? tiny<T>() : relative;
}

// The squares that some rows have met without that look: whether it would have made a difference to any. (To those of
// zero it makes none, for what is bent along zero stays.)
template <typename T>
struct Squares {
  T total = 0, least = std::numeric_limits<T>::max();
  void meet(T more, T lesser) { total += more, least = std::min(least, lesser); }
  bool short_of_bound(const Settings<T>& s) const {
    // Written so that one row that is no number does not keep the others from their bound.
    return s.eps < 0 && !(least >= T(RELATIVE_FLOOR * RELATIVE_FLOOR) * total / T(s.channels));
  }
};

template <typename T>
inline T unless_zero(T square) {
  return square > 0 ? square : std::numeric_limits<T>::max();
}

// Normalises and bends J rows that share their second; writes each to a place of its own, a row after the other, or
// adds all to one sum.
template <typename T, Direction D, bool SUM, int J>
NOINLINE void bend_some(const std::array<Row<T>, J> rows, const std::array<T, J> least, Settings<T> s, T* __restrict to,
                     Squares<T>& met) {
  const T eps = s.added(), less = s.slope - 1;
  const int64_t w = s.width, step = rows[0].step;
  const T* b = rows[0].b;
  const T* firsts[J];
  T leasts[J];
  for (int j = 0; j < J; ++j) firsts[j] = rows[j].a, leasts[j] = least[j];
  T total = 0, smallest = std::numeric_limits<T>::max();
#pragma omp simd reduction(+ : total) reduction(min : smallest)
  for (int64_t c = 0; c < w; ++c) {
    const int64_t at = D == Direction::each ? w + c : w;  // its direction
    const T b0 = b[c], b1 = b[step + c], b2 = b[2 * step + c];
    T sum0 = 0, sum1 = 0, sum2 = 0;
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      const T* a = firsts[j];
      const T q0 = a[c] + b0, q1 = a[step + c] + b1, q2 = a[2 * step + c] + b2;
      const T n = length(q0, q1, q2) + eps, bounded = n < s.floor[c] ? s.floor[c] : n;
      const T r = (s.scale[c] * (n - s.centre[c]) + s.shift[c]) / bounded;
      T y0 = r * q0, y1 = r * q1, y2 = r * q2;
      if constexpr (D != Direction::none) {
        const T k0 = a[at] + b[at], k1 = a[step + at] + b[step + at], k2 = a[2 * step + at] + b[2 * step + at];
        const T dot = y0 * k0 + y1 * k1 + y2 * k2, squares = k0 * k0 + k1 * k1 + k2 * k2 + eps;
        const T against = dot < 0 ? dot : T(0), most = squares < leasts[j] ? leasts[j] : squares;
        const T f = less * against / most, some = unless_zero(squares);
        y0 += f * k0, y1 += f * k1, y2 += f * k2;
        total += squares, smallest = some < smallest ? some : smallest;
      }
      if constexpr (SUM)
        sum0 += y0, sum1 += y1, sum2 += y2;
      else
        to[3 * w * j + c] = y0, to[3 * w * j + w + c] = y1, to[3 * w * j + 2 * w + c] = y2;
    }
    if constexpr (SUM) to[c] += sum0, to[w + c] += sum1, to[2 * w + c] += sum2;
  }
  met.meet(total, smallest);
}

template <typename T, typename Out>
NOINLINE void store(const T* __restrict sum, T share, int64_t w, int64_t channels, Out* __restrict out) {
  for (int64_t d = 0; d < 3; ++d)
    for (int64_t c = 0; c < channels; ++c) out[d * channels + c] = Out(share * sum[d * w + c]);
}

template <typename T, Direction D, bool SUM, int J>
void bend_some(const Reader<T>& read, int64_t m, const Settings<T>& s, bool look, T* to, Squares<T>& met) {
  std::array<Row<T>, J> rows;
  std::array<T, J> least;
  for (int j = 0; j < J; ++j) rows[j] = read(m + j), least[j] = least_square<T, D>(rows[j], s, look);
  bend_some<T, D, SUM, J>(rows, least, s, to, met);
}

// Does something without a look at rows, and again with it if that would have made a difference.
template <typename T, typename Body>
void twice_at_most(const Settings<T>& s, const Body& body) {
  if (body(false).short_of_bound(s)) body(true);
}

template <typename T, Direction D, typename Out>
void bend_rows(const Rows& rows, const Settings<T>& s, int64_t pool, Out* out) {
  const int64_t w = s.width, channels = s.channels, unit = rows.unit(pool), units = rows.number / unit;
  const int64_t chunk = rows.chunk(unit) / unit;
  at::parallel_for(0, (units + chunk - 1) / chunk, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    Reader<T> read(rows);
    std::vector<T> bent(3 * w * ABREAST);
    const auto each = [&](int64_t begin, int64_t end) {
      abreast<ABREAST>(rows, begin, end, [&](int64_t m, auto number) {
        constexpr int J = decltype(number)::value;
        twice_at_most(s, [&](bool look) {
          Squares<T> met;
          bend_some<T, D, false, J>(read, m, s, look, bent.data(), met);
          return met;
        });
        for (int j = 0; j < J; ++j) store(bent.data() + j * 3 * w, T(1), w, channels, out + (m + j) * 3 * channels);
      });
    };
    const auto mean = [&](int64_t begin, int64_t end) {
      twice_at_most(s, [&](bool look) {
        Squares<T> met;
        std::fill_n(bent.data(), 3 * w, T(0));
        abreast<ABREAST>(rows, begin, end, [&](int64_t m, auto number) {
          bend_some<T, D, true, decltype(number)::value>(read, m, s, look, bent.data(), met);
        });
        return met;
      });
      store(bent.data(), T(1) / T(pool), w, channels, out + begin / pool * 3 * channels);
    };
    for (int64_t begin = first * chunk; begin < std::min(units, last * chunk); begin += chunk) {
      const int64_t end = std::min(units, begin + chunk);
      read.open(begin * unit, end * unit);
      if (pool == 1 && !rows.index) {
        each(begin, end);
        continue;
      }
      for (int64_t place = begin; place < end; ++place) {
        const int64_t start = rows.unit_at(place) * unit, stop = start + unit;
        if (pool == 1)
          each(start, stop);
        else
          for (int64_t m = start; m < stop; m += pool) mean(m, m + pool);
      }
    }
  });
}

template <typename T, Keep K>
inline void leave(T value, T* to, T& own) {
  if constexpr (K == Keep::rows) *to = value;
  if constexpr (K == Keep::edges) *to += value, own += value;
}

// What the backward pass of a row needs: itself, the gradient of the row bent, and where its own belongs.
template <typename T>
struct Back {
  Row<T> row;
  const T* gradient;
  T* to;
  T least;
};

// Gradients of J rows that share their second, for channels c0 to c1; added to sums (2, width) those of scale and
// shift.
template <typename T, Direction D, Keep K, int J>
NOINLINE void bend_back(const std::array<Back<T>, J> rows, int64_t c0, int64_t c1, Settings<T> s, T* __restrict own,
                     int64_t step, T* __restrict sums, Squares<T>& met) {
  static_assert(D != Direction::shared || J == 1);
  const T eps = s.added(), less = s.slope - 1, zero = shortest<T>();
  const int64_t w = s.width;
  const T* b = rows[0].row.b;
  T s0 = 0, s1 = 0, s2 = 0, total = 0, smallest = std::numeric_limits<T>::max();
#pragma omp simd reduction(+ : s0, s1, s2, total) reduction(min : smallest)
  for (int64_t c = c0; c < c1; ++c) {
    const int64_t at = D == Direction::each ? w + c : w;  // its direction
    const T b0 = b[c], b1 = b[step + c], b2 = b[2 * step + c];
    T of_scale = 0, of_shift = 0, q_own0 = 0, q_own1 = 0, q_own2 = 0, k_own0 = 0, k_own1 = 0, k_own2 = 0;
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      const T *a = rows[j].row.a, *g = rows[j].gradient;
      T* to = rows[j].to;
      const T least = rows[j].least;
      const T q0 = a[c] + b0, q1 = a[step + c] + b1, q2 = a[2 * step + c] + b2;
      const T g0 = g[c], g1 = g[w + c], g2 = g[2 * w + c];
      // Divisors have names: compilers would divide by both values of a choice between two, and choose then.
      const T plain = length(q0, q1, q2), n = plain + eps, bounded = n < s.floor[c] ? s.floor[c] : n;
      const T over = T(1) / bounded, r = (s.scale[c] * (n - s.centre[c]) + s.shift[c]) * over;
      T h0 = g0, h1 = g1, h2 = g2;  // gradient of the normalised feature r q
      if constexpr (D != Direction::none) {
        const T k0 = a[at] + b[at], k1 = a[step + at] + b[step + at], k2 = a[2 * step + at] + b[2 * step + at];
        const T dot = r * (q0 * k0 + q1 * k1 + q2 * k2), squares = k0 * k0 + k1 * k1 + k2 * k2 + eps;
        const T most = squares < least ? least : squares, inverse = T(1) / most, e = dot < 0 ? less * inverse : T(0);
        const T along = g0 * k0 + g1 * k1 + g2 * k2, l = e * along;
        h0 += l * k0, h1 += l * k1, h2 += l * k2;
        if constexpr (K == Keep::nothing) {
          const T some = unless_zero(squares);
          total += squares, smallest = some < smallest ? some : smallest;
        } else {
          // A bounded length is a constant to the gradient.
          const T f = e * dot, t = squares < least ? T(0) : 2 * f * along * inverse, lr = l * r;
          const T p0 = f * g0 + lr * q0 - t * k0, p1 = f * g1 + lr * q1 - t * k1, p2 = f * g2 + lr * q2 - t * k2;
          if constexpr (D == Direction::each) {
            leave<T, K>(p0, to + at, k_own0);
            leave<T, K>(p1, to + step + at, k_own1);
            leave<T, K>(p2, to + 2 * step + at, k_own2);
          } else {
            s0 += p0, s1 += p1, s2 += p2;
          }
        }
      }
      const T inner = (h0 * q0 + h1 * q1 + h2 * q2) * over;
      of_scale += inner * (n - s.centre[c]), of_shift += inner;
      if constexpr (K != Keep::nothing) {
        const T back =
            inner * s.scale[c] - (n < s.floor[c] ? T(0) : inner * r) + s.constant[c] + s.linear[c] * (n - s.centre[c]);
        const T each = back / plain, f = plain > zero ? each : T(0);
        leave<T, K>(r * h0 + f * q0, to + c, q_own0);
        leave<T, K>(r * h1 + f * q1, to + step + c, q_own1);
        leave<T, K>(r * h2 + f * q2, to + 2 * step + c, q_own2);
      }
    }
    sums[c] += of_scale, sums[w + c] += of_shift;
    if constexpr (K == Keep::edges) {
      own[c] += q_own0, own[step + c] += q_own1, own[2 * step + c] += q_own2;
      if constexpr (D == Direction::each) own[at] += k_own0, own[step + at] += k_own1, own[2 * step + at] += k_own2;
    }
  }
  met.meet(total, smallest);
  if constexpr (D == Direction::shared && K != Keep::nothing) {
    T* to = rows[0].to;
    if constexpr (K == Keep::rows)
      for (int64_t d = 0; d < 3; ++d) std::fill(to + d * step + w, to + (d + 1) * step, T(0));  // padding
    leave<T, K>(s0, to + w, own[w]);
    leave<T, K>(s1, to + step + w, own[step + w]);
    leave<T, K>(s2, to + 2 * step + w, own[2 * step + w]);
  }
}

template <typename T>
NOINLINE void load_gradient(const T* __restrict from, int64_t w, int64_t channels, T share, T* __restrict g) {
  for (int64_t d = 0; d < 3; ++d)
    for (int64_t c = 0; c < channels; ++c) g[d * w + c] = share * from[d * channels + c];
}

// Goes through all rows for the sums of the gradients of scale and shift, (2, width), and to keep those of rows, too.
// `look` says for units of rows whether they need a look at the bound of their directions; the first pass finds out.
template <typename T, Direction D, Keep K>
Tensor bend_rows_back(const Rows& rows, const Settings<T>& s, int64_t pool, const Tensor& grad,
                      std::vector<uint8_t>& look, Gradients& out) {
  const int64_t w = s.width, columns = rows.columns, channels = s.channels;
  const T* gradient = grad.const_data_ptr<T>();
  constexpr bool KEEP = K != Keep::nothing;
  constexpr int MOST = D == Direction::shared ? 1 : ABREAST;
  const bool mapped = KEEP && rows.weight;
  // A direction that channels share has one gradient, so channels stay together there.
  const Parts parts(rows, w, pool, D == Direction::each);
  look.resize(parts.units, true);
  // Units whose sums are added up in the precision of the rows.
  const int64_t some_units = rows.index ? 1 : std::max<int64_t>(FLUSH / parts.unit, 1);
  std::vector<double> sums(parts.count * 2 * w, 0.0);
  const Tensor weights = allocate({mapped ? parts.count : 0, rows.weight ? rows.weight->numel() : 0}, grad.options());
  std::vector<uint8_t> begun(parts.count, false);
  std::vector<std::vector<std::pair<int64_t, Tensor>>> second(parts.count);  // of some clouds, by part
  const auto back = mapped && out.a.numel() ? std::optional(Product(*rows.weight)) : std::nullopt;
  parts([&] {
    return [&, read = Reader<T>(rows), sink = Sink<T>(rows, out), g = std::vector<T>(3 * w * ABREAST),
            both = std::vector<T>(2 * w)](int64_t part, int64_t c0, int64_t c1, int64_t first, int64_t last) mutable {
      const int64_t begin = first * parts.unit, end = last * parts.unit;
      const int64_t k0 = D == Direction::each ? w + c0 : w, k1 = D == Direction::each ? w + c1 : columns;
      read.open(begin, end);
      if (KEEP) sink.open(begin, end);
      for (int64_t place = first, next; place < last; place = next) {
        next = std::min(last, place + some_units);
        const int64_t u = rows.unit_at(place), stop = u + next - place;
        const auto through = [&](bool look) {
          Squares<T> met;
          std::fill(both.begin(), both.end(), T(0));
          abreast<MOST>(rows, u * parts.unit, stop * parts.unit, [&](int64_t m, auto number) {
            constexpr int J = decltype(number)::value;
            std::array<Back<T>, J> some;
            for (int j = 0; j < J; ++j) {
              const int64_t group = (m + j) / pool;
              T* to = g.data() + group % ABREAST * 3 * w;
              if ((m + j) % pool == 0) load_gradient(gradient + group * 3 * channels, w, channels, T(1) / T(pool), to);
              const Row<T> row = read(m + j);
              some[j] = {row, to, KEEP ? sink.at(m + j) : nullptr, least_square<T, D>(row, s, look)};
            }
            bend_back<T, D, K, J>(some, c0, c1, s, sink.mine(), columns, both.data(), met);
          });
          return met;
        };
        // Threads that share channels see too few of them to tell.
        if (KEEP || parts.splits > 1)
          through(look[u]);
        else if ((look[u] = through(false).short_of_bound(s)))
          through(true);
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
      Tensor sum = weights[part].view(rows.weight->sizes());
      at::addmm_out(sum, sum, rows.sources(rows.a, begin, end).t(), of_images, begun[part]);
      begun[part] = true;
    };
  });
  if (mapped) out.weight = weights.sum(0).view(rows.weight->sizes());
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
  TORCH_CHECK(norm.dim() == 2 && norm.size(0) == 5 && norm.is_contiguous() && norm.scalar_type() == rows.type(),
              "the norm must be (5, width), got ", norm.sizes());
  const int64_t width = norm.size(1);
  const bool fits = directions == 1 ? width < rows.columns : width + directions == rows.columns;
  TORCH_CHECK((directions == 0 || directions == 1 || directions == width) && fits, "directions need one channel or ",
              width, ", got ", directions, " in rows of ", rows.columns);
  TORCH_CHECK(channels <= width && (!index || width % LANES == 0), "the width of edges must be a multiple of ", LANES);
  TORCH_CHECK(pool > 0 && rows.number % pool == 0 && (!(index || b) || rows.share % pool == 0), rows.number,
              " rows do not make groups of ", pool);
  return rows;
}

Tensor bend(const Tensor& a, const Maybe& b, const Maybe& weight, const Maybe& images, const Maybe& index,
            const Tensor& norm, int64_t directions, int64_t channels, int64_t pool, double slope, double eps, int64_t) {
  const Rows rows = checked(a, b, weight, images, index, norm, directions, channels, pool);
  Tensor out = allocate({rows.number / pool, 3, channels}, a.options());
  AT_DISPATCH_FLOATING_TYPES(rows.type(), "bend", [&] {
    const auto s = settings<scalar_t>(norm, channels, slope, eps, norm);
    by_direction(directions, [&](auto d) {
      if (a.scalar_type() == rows.type())
        bend_rows<scalar_t, decltype(d)::value>(rows, s, pool, out.data_ptr<scalar_t>());
      else
        bend_rows<scalar_t, decltype(d)::value>(rows, s, pool, out.data_ptr<float>());
    });
  });
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> bend_backward(const Tensor& grad, const Tensor& a, const Maybe& b,
                                                         const Maybe& weight, const Maybe& images, const Maybe& index,
                                                         const Tensor& norm, int64_t directions, int64_t channels,
                                                         int64_t pool, double slope, double eps, int64_t batch,
                                                         bool of_a) {
  const Rows rows = checked(a, b, weight, images, index, norm, directions, channels, pool);
  TORCH_CHECK(rows.type() == a.scalar_type(), "rows that a weight of another type maps have no gradient");
  const Tensor g = grad.contiguous();
  Gradients out(rows, of_a);
  Tensor sums, more = at::zeros({2, norm.size(1)}, a.options());
  std::vector<uint8_t> look;
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "bend_backward", [&] {
    by_direction(directions, [&](auto d) {
      constexpr Direction D = decltype(d)::value;
      const auto s = [&] { return settings<scalar_t>(norm, channels, slope, eps, more); };
      if (batch) {
        // Each length has its part in the statistics, hence in the gradients of centre and scale, which are sums.
        const Tensor all =
            bend_rows_back<scalar_t, D, Keep::nothing>(rows, s(), pool, g, look, out) * norm[0] / -double(batch);
        more = at::stack({all[1], all[0] * norm[4]}).to(a.scalar_type());
      }
      sums = index ? bend_rows_back<scalar_t, D, Keep::edges>(rows, s(), pool, g, look, out)
                   : bend_rows_back<scalar_t, D, Keep::rows>(rows, s(), pool, g, look, out);
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
  m.impl("norm_leaky_relu", &bend);
  m.impl("norm_leaky_relu_backward", &bend_backward);
}
