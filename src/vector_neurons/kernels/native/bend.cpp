// Norm of lengths and leaky ReLU along a direction, and the mean over groups of rows that need not exist (rows.h).

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "rows.h"

using namespace vector_neurons;

namespace {

enum class Direction { none, shared, each };

template <typename T>
struct Settings {
  const T *scale, *shift, *centre,
      *floor;        // a length n becomes scale (n - centre) + shift; below floor it counts as that
  T slope, eps;      // eps < 0: short directions are bounded relative to the others of their row
  int64_t channels;  // without padding
  T added() const { return eps < 0 ? T(0) : eps; }
};

constexpr double RELATIVE_FLOOR = 1e-3;

// What the forward and the backward pass both need to know of a row.
template <typename T>
struct Bend {
  std::vector<T> q, k, n, ratio, dot, squares;
  explicit Bend(int64_t w) : q(3 * w), k(3 * w), n(w), ratio(w), dot(w), squares(w) {}
};

template <typename T, Direction D>
inline void prepare(Bend<T>& x, int64_t w, const Settings<T>& s) {
  const T* __restrict q = x.q.data();
  const T* __restrict k = x.k.data();
  const T* __restrict scale = s.scale;
  const T* __restrict shift = s.shift;
  const T* __restrict centre = s.centre;
  const T* __restrict floor = s.floor;
  T* __restrict n = x.n.data();
  T* __restrict ratio = x.ratio.data();
  T* __restrict dot = x.dot.data();
  T* __restrict squares = x.squares.data();
  const T eps = s.added();
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < w; ++c) {
    n[c] = length(q, c, w) + eps;
    ratio[c] = (scale[c] * (n[c] - centre[c]) + shift[c]) / std::max(n[c], floor[c]);
    if constexpr (D == Direction::each) {
      dot[c] = ratio[c] * (q[c] * k[c] + q[w + c] * k[w + c] + q[2 * w + c] * k[2 * w + c]);
      squares[c] = k[c] * k[c] + k[w + c] * k[w + c] + k[2 * w + c] * k[2 * w + c];
      sum += squares[c];
    } else if constexpr (D == Direction::shared) {
      dot[c] = ratio[c] * (q[c] * k[0] + q[w + c] * k[1] + q[2 * w + c] * k[2]);
    }
  }
  if constexpr (D == Direction::each) {
    // Negative marks a bounded direction, whose length then is a constant to the gradient.
    const T least = std::max(T(RELATIVE_FLOOR * RELATIVE_FLOOR) * sum / T(s.channels), tiny<T>());
    if (s.eps < 0)
      for (int64_t c = 0; c < w; ++c) squares[c] = squares[c] < least ? -least : squares[c];
    else
      for (int64_t c = 0; c < w; ++c) squares[c] += s.eps;
  } else if constexpr (D == Direction::shared) {
    const T one = k[0] * k[0] + k[1] * k[1] + k[2] * k[2];
    const T value = s.eps < 0 ? (one < tiny<T>() ? -tiny<T>() : one) : one + s.eps;
    for (int64_t c = 0; c < w; ++c) squares[c] = value;
  }
}

template <typename T, Direction D>
inline void add_bent(const Bend<T>& x, int64_t w, T slope, T* __restrict sum) {
  const T* __restrict q = x.q.data();
  const T* __restrict k = x.k.data();
  const T* __restrict ratio = x.ratio.data();
  const T* __restrict dot = x.dot.data();
  const T* __restrict squares = x.squares.data();
#pragma omp simd
  for (int64_t c = 0; c < w; ++c) {
    const T r = ratio[c];
    T y0 = r * q[c], y1 = r * q[w + c], y2 = r * q[2 * w + c];
    if constexpr (D != Direction::none) {
      constexpr bool each = D == Direction::each;
      const T f = dot[c] < 0 ? (slope - 1) * dot[c] / std::abs(squares[c]) : T(0);
      y0 += f * (each ? k[c] : k[0]), y1 += f * (each ? k[w + c] : k[1]), y2 += f * (each ? k[2 * w + c] : k[2]);
    }
    sum[c] += y0, sum[w + c] += y1, sum[2 * w + c] += y2;
  }
}

template <typename T, Direction D>
void bend_rows(const Rows<T>& q, const Rows<T>& k, const Shape& shape, const Settings<T>& s, T* out) {
  const int64_t w = q.width, channels = s.channels;
  in_chunks(shape.groups, [&](int64_t, int64_t begin, int64_t end) {
    Bend<T> x(w);
    std::vector<T> sums(3 * w);
    for (int64_t g = begin; g < end; ++g) {
      T* sum = sums.data();
      std::fill(sums.begin(), sums.end(), T(0));
      for (int64_t m = g * shape.k; m < (g + 1) * shape.k; ++m) {
        q.load(m, x.q.data());
        if constexpr (D != Direction::none) k.load(m, x.k.data());
        prepare<T, D>(x, w, s);
        add_bent<T, D>(x, w, s.slope, sum);
      }
      const T share = T(1) / T(shape.k);
      for (int64_t d = 0; d < 3; ++d)
        for (int64_t c = 0; c < channels; ++c) out[(g * 3 + d) * channels + c] = share * sum[d * w + c];
    }
  });
}

// Gradients of one row, for channels c0 to c1: left in `gq` and `gk`, and the sums of those of scale and shift.
template <typename T, Direction D>
inline void bend_row_back(const Bend<T>& x, const T* __restrict g, int64_t w, int64_t c0, int64_t c1,
                          const Settings<T>& s, T* __restrict gq, T* __restrict gk, T* __restrict gscale,
                          T* __restrict gshift) {
  const T* __restrict q = x.q.data();
  const T* __restrict k = x.k.data();
  const T* __restrict n = x.n.data();
  const T* __restrict ratio = x.ratio.data();
  const T* __restrict dot = x.dot.data();
  const T* __restrict squares = x.squares.data();
  const T* __restrict scale = s.scale;
  const T* __restrict shift = s.shift;
  const T* __restrict centre = s.centre;
  const T* __restrict floor = s.floor;
  const T eps = s.added(), less = s.slope - 1, least = shortest<T>();
  T s0 = 0, s1 = 0, s2 = 0;
#pragma omp simd reduction(+ : s0, s1, s2)
  for (int64_t c = c0; c < c1; ++c) {
    const T q0 = q[c], q1 = q[w + c], q2 = q[2 * w + c], g0 = g[c], g1 = g[w + c], g2 = g[2 * w + c], r = ratio[c];
    T h0 = g0, h1 = g1, h2 = g2;  // gradient of the normalised feature r q
    if constexpr (D != Direction::none) {
      constexpr bool each = D == Direction::each;
      const T k0 = each ? k[c] : k[0], k1 = each ? k[w + c] : k[1], k2 = each ? k[2 * w + c] : k[2];
      const T e = dot[c] < 0 ? less / std::abs(squares[c]) : T(0);
      const T along = g0 * k0 + g1 * k1 + g2 * k2, f = e * dot[c], l = e * along;
      h0 += l * k0, h1 += l * k1, h2 += l * k2;
      const T t = squares[c] < 0 ? T(0) : 2 * f * along / squares[c];
      const T d0 = f * g0 + l * r * q0 - t * k0, d1 = f * g1 + l * r * q1 - t * k1, d2 = f * g2 + l * r * q2 - t * k2;
      if constexpr (each)
        gk[c] = d0, gk[w + c] = d1, gk[2 * w + c] = d2;
      else
        s0 += d0, s1 += d1, s2 += d2;
    }
    const T bounded = std::max(n[c], floor[c]), inner = (h0 * q0 + h1 * q1 + h2 * q2) / bounded;
    gscale[c] += inner * (n[c] - centre[c]);
    gshift[c] += inner;
    const T plain = n[c] - eps;
    const T back = inner * scale[c] - (n[c] < floor[c] ? T(0) : inner * r);
    const T f = plain > least ? back / plain : T(0);
    gq[c] = r * h0 + f * q0, gq[w + c] = r * h1 + f * q1, gq[2 * w + c] = r * h2 + f * q2;
  }
  if constexpr (D == Direction::shared) gk[0] = s0, gk[1] = s1, gk[2] = s2;
}

template <typename T>
inline void load_gradient(const T* __restrict from, int64_t w, int64_t channels, T share, T* __restrict g) {
  for (int64_t d = 0; d < 3; ++d)
    for (int64_t c = 0; c < channels; ++c) g[d * w + c] = share * from[d * channels + c];
}

template <typename T, Direction D>
std::tuple<Tensor, Tensor, Tensor> bend_rows_back(const Rows<T>& q, const Rows<T>& k, const Shape& shape,
                                                  const Settings<T>& s, const Tensor& grad, const Pair& to_q,
                                                  const Pair& to_k) {
  const int64_t w = q.width, channels = s.channels;
  const int64_t size_q = q.weight ? q.inputs * w : 0,
                size_k = k.weight && D != Direction::none ? k.inputs * k.width : 0;
  const T* gradient = grad.const_data_ptr<T>();
  // A direction that channels share has one gradient, so channels stay together there.
  const Tasks tasks(q, shape.rows, shape.k, D == Direction::each);
  std::vector<double> partial(tasks.parts() * 2 * w, 0.0), partial_q(tasks.parts() * size_q, 0.0),
      partial_k(tasks.parts() * size_k, 0.0);
  at::parallel_for(0, tasks.count, 1, [&](int64_t first_task, int64_t last_task) {
    Bend<T> x(w);
    std::vector<T> g(3 * w, T(0)), gq(3 * w), gk(3 * w), sums(2 * w);
    Sink<T> sink_q(q, pointer<T>(to_q.a), pointer<T>(to_q.b)), sink_k(k, pointer<T>(to_k.a), pointer<T>(to_k.b));
    for (int64_t task = first_task; task < last_task; ++task) {
      const int64_t c0 = tasks.first(task), c1 = tasks.last(task);
      const int64_t k0 = D == Direction::each ? c0 : 0, k1 = D == Direction::each ? c1 : 1, part = tasks.part(task);
      double* __restrict out = partial.data() + part * 2 * w;
      for (int64_t u = tasks.begin(task); u < tasks.end(task); ++u) {
        std::fill(sums.begin(), sums.end(), T(0));
        for (int64_t m = u * tasks.unit; m < (u + 1) * tasks.unit; ++m) {
          if (m % shape.k == 0)
            load_gradient(gradient + m / shape.k * 3 * channels, w, channels, T(1) / T(shape.k), g.data());
          q.load(m, x.q.data());
          if constexpr (D != Direction::none) k.load(m, x.k.data());
          prepare<T, D>(x, w, s);
          bend_row_back<T, D>(x, g.data(), w, c0, c1, s, gq.data(), gk.data(), sums.data(), sums.data() + w);
          sink_q.take(m, gq.data(), c0, c1);
          if constexpr (D != Direction::none) sink_k.take(m, gk.data(), k0, k1);
        }
        for (int64_t c = c0; c < c1; ++c) out[c] += sums[c], out[w + c] += sums[w + c];
        sink_q.finish(u, c0, c1);
        if constexpr (D != Direction::none) sink_k.finish(u, k0, k1);
      }
      sink_q.hand_over(partial_q.data() + part * size_q);
      if constexpr (D != Direction::none) sink_k.hand_over(partial_k.data() + part * size_k);
    }
  });
  return {total(partial, 2, w, grad), total(partial_q, 1, size_q, grad), total(partial_k, 1, size_k, grad)};
}

template <typename Body>
void by_direction(const Maybe& k, const Maybe& kb, const Body& body) {
  if (!k)
    body(std::integral_constant<Direction, Direction::none>{});
  else if ((mapped(kb) ? kb->size(1) : k->size(3)) == 1)
    body(std::integral_constant<Direction, Direction::shared>{});
  else
    body(std::integral_constant<Direction, Direction::each>{});
}

template <typename T>
Settings<T> settings(const Tensor& norm, double slope, double eps, int64_t channels) {
  const T* n = norm.const_data_ptr<T>();
  const int64_t w = norm.size(1);
  return {n, n + w, n + 2 * w, n + 3 * w, T(slope), T(eps), channels};
}

void check_norm(const Tensor& norm, const Tensor& qa, const Maybe& qb, const Maybe& ka, const Maybe& kb) {
  const int64_t width = mapped(qb) ? qb->size(1) : qa.size(3);
  TORCH_CHECK(
      norm.is_contiguous() && norm.scalar_type() == qa.scalar_type() && norm.sizes() == at::IntArrayRef({4, width}),
      "the norm must be (4, ", width, "), got ", norm.sizes());
  if (!ka) return;
  const int64_t directions = mapped(kb) ? kb->size(1) : ka->size(3);
  TORCH_CHECK(directions == 1 || directions == width, "directions need one channel or ", width, ", got ", directions);
}

Tensor bend(const Tensor& qa, const Maybe& qb, const Maybe& ka, const Maybe& kb, const Maybe& index, const Tensor& norm,
            int64_t channels, int64_t pool, double slope, double eps) {
  check(qa, qb, index, true);
  check_neighbours(index, ka ? std::min(qa.size(1), ka->size(1)) : qa.size(1));
  if (ka) check(*ka, kb, index, (mapped(kb) ? kb->size(1) : ka->size(3)) > 1);
  check_norm(norm, qa, qb, ka, kb);
  const Shape shape = shape_of(qa, index, pool);
  Tensor out = at::empty({shape.groups, 3, channels}, qa.options());
  AT_DISPATCH_FLOATING_TYPES(qa.scalar_type(), "bend", [&] {
    const auto s = settings<scalar_t>(norm, slope, eps, channels);
    const auto q = rows_of<scalar_t>(qa, qb, index);
    const auto k = ka ? rows_of<scalar_t>(*ka, kb, index) : q;
    by_direction(ka, kb,
                 [&](auto d) { bend_rows<scalar_t, decltype(d)::value>(q, k, shape, s, out.data_ptr<scalar_t>()); });
  });
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> bend_backward(const Tensor& grad, const Tensor& qa, const Maybe& qb,
                                                                 const Maybe& ka, const Maybe& kb, const Maybe& index,
                                                                 const Tensor& norm, int64_t channels, int64_t pool,
                                                                 double slope, double eps) {
  const Shape shape = shape_of(qa, index, pool);
  const Tensor g = grad.contiguous();
  Pair to_q(qa, qb, index), to_k(ka ? *ka : at::empty({0}, qa.options()), kb, index);
  Tensor sums;
  AT_DISPATCH_FLOATING_TYPES(qa.scalar_type(), "bend_backward", [&] {
    const auto s = settings<scalar_t>(norm, slope, eps, channels);
    const auto q = rows_of<scalar_t>(qa, qb, index);
    const auto k = ka ? rows_of<scalar_t>(*ka, kb, index) : q;
    by_direction(ka, kb, [&](auto d) {
      const auto [found, weight_q, weight_k] =
          bend_rows_back<scalar_t, decltype(d)::value>(q, k, shape, s, g, to_q, to_k);
      sums = found;
      to_q.complete(qb, index, weight_q);
      if (ka) to_k.complete(kb, index, weight_k);
    });
  });
  // Gradients of scale, shift and centre; the floor is a constant.
  const Tensor centre = -norm[0] * sums[1];
  const Tensor of_norm = at::stack({sums[0], sums[1], centre, at::zeros_like(centre)}).to(qa.scalar_type());
  return {to_q.a, to_q.b, to_k.a, to_k.b, of_norm};
}

}  // namespace

// The schemas stand in operators.py: bodies for other devices share them.
TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("bend", &bend);
  m.impl("bend_backward", &bend_backward);
}
