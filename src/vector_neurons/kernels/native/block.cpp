// A vector-neuron block after its linear maps: batch norm of lengths, leaky ReLU along a direction, and, on the edges
// of a graph, the mean over each point's neighbours. One row (the vectors of one edge) is held in registers and cache
// from beginning to end; edges never exist in memory, and the backward pass computes them again.
//
// A row m is a sum of two rows that do exist,  x_m = a[index[m]] + b[m / share]:
//   edges of a graph       a: image at the neighbour    b: image at the point itself    share = k
//   points and their mean  a: image at the point        b: image of the cloud's mean    share = points of a cloud
//   anything else          a only
// Features q have `width` channels, directions k the same, one for all, or none. Rows are (3, width), the width padded
// to a multiple of LANES with zeros, so that every loop over channels is made of whole SIMD vectors.
//
// The loops are plain: compilers vectorise them for the machine they are told to build for.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

constexpr int64_t LANES = 8;
constexpr int64_t CHUNK = 64;  // groups whose sums are added up together: fixed, so that threads do not change a bit

using at::Tensor;
using Maybe = std::optional<Tensor>;

enum class Direction { none, shared, each };

// ---------------------------------------------------------------------------------------------------------- the rows

template <typename T>
struct Rows {
  const T* a;
  const T* b;            // or null
  const int64_t* index;  // or null
  int64_t width, points, per_cloud, share;

  int64_t from(int64_t m) const { return index ? m / per_cloud * points + index[m] : m; }
  const T* first(int64_t m) const { return a + from(m) * 3 * width; }
  const T* second(int64_t m) const { return b + m / share * 3 * width; }

  void load(int64_t m, T* __restrict x) const {
    const T* __restrict p = first(m);
    const int64_t n = 3 * width;
    if (b) {
      const T* __restrict r = second(m);
      for (int64_t i = 0; i < n; ++i) x[i] = p[i] + r[i];
    } else {
      for (int64_t i = 0; i < n; ++i) x[i] = p[i];
    }
  }
};

struct Shape {
  int64_t rows, groups, k;  // k rows make one group; a pooled group gives one row of output
};

template <typename T>
Rows<T> rows_of(const Tensor& a, const Maybe& b, const Maybe& index) {
  const int64_t clouds = a.size(0), points = a.size(1);
  const int64_t per_cloud = index ? index->size(1) * index->size(2) : points;
  const int64_t share = index ? index->size(2) : points;
  return {a.const_data_ptr<T>(), b ? b->const_data_ptr<T>() : nullptr, index ? index->const_data_ptr<int64_t>() : nullptr,
          a.size(3), points, clouds ? per_cloud : 1, share};
}

Shape shape_of(const Tensor& a, const Maybe& index, int64_t pool) {
  const int64_t rows = a.size(0) * (index ? index->size(1) * index->size(2) : a.size(1));
  return {rows, rows / pool, pool};
}

void check(const Tensor& a, const Maybe& b, const Maybe& index, bool feature) {
  TORCH_CHECK(a.dim() == 4 && a.size(2) == 3 && a.is_contiguous(), "rows must be contiguous (clouds, points, 3, width)");
  TORCH_CHECK(!feature || a.size(3) % LANES == 0, "the width must be a multiple of ", LANES);
  TORCH_CHECK(!b || (b->is_contiguous() && b->scalar_type() == a.scalar_type()), "both rows need one type, contiguous");
  TORCH_CHECK(!index || (index->is_contiguous() && index->scalar_type() == at::kLong), "indices must be int64");
}

// Squares below this count as zero: the root stays differentiable, and the inverse's square finite.
template <typename T>
inline T tiny() {
  return std::sqrt(std::numeric_limits<T>::min());
}
template <typename T>
inline T shortest() {
  return std::sqrt(tiny<T>());
}

template <typename T>
inline T length(const T* __restrict x, int64_t c, int64_t w) {
  const T squares = x[c] * x[c] + x[w + c] * x[w + c] + x[2 * w + c] * x[2 * w + c];
  return std::sqrt(std::max(squares, tiny<T>()));
}

template <typename Body>
void in_chunks(int64_t groups, const Body& body) {
  const int64_t chunks = (groups + CHUNK - 1) / CHUNK;
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) body(c, c * CHUNK, std::min(groups, (c + 1) * CHUNK));
  });
}

// Add up what the chunks found, (chunks, sums, width), always in the same order.
Tensor total(const std::vector<double>& partial, int64_t sums, int64_t width, const Tensor& like) {
  Tensor out = at::zeros({sums, width}, like.options().dtype(at::kDouble));
  double* o = out.data_ptr<double>();
  const int64_t n = sums * width;
  for (size_t start = 0; start < partial.size(); start += n)
    for (int64_t i = 0; i < n; ++i) o[i] += partial[start + i];
  return out;
}

// ------------------------------------------------------------------------------------------- statistics of the lengths

template <typename T>
Tensor moments_of(const Tensor& a, const Maybe& b, const Maybe& index, int64_t k, double eps) {
  const Rows<T> rows = rows_of<T>(a, b, index);
  const Shape s = shape_of(a, index, k);
  const int64_t w = rows.width, chunks = (s.groups + CHUNK - 1) / CHUNK;
  std::vector<double> partial(chunks * 2 * w, 0.0);
  in_chunks(s.groups, [&](int64_t chunk, int64_t begin, int64_t end) {
    std::vector<T> x(3 * w), sums(2 * w);
    double* __restrict out = &partial[chunk * 2 * w];
    for (int64_t g = begin; g < end; ++g) {
      T* __restrict sum = sums.data();
      std::fill(sums.begin(), sums.end(), T(0));
      for (int64_t m = g * k; m < (g + 1) * k; ++m) {
        rows.load(m, x.data());
        for (int64_t c = 0; c < w; ++c) {
          const T n = length(x.data(), c, w) + T(eps);
          sum[c] += n;
          sum[w + c] += n * n;
        }
      }
      for (int64_t i = 0; i < 2 * w; ++i) out[i] += sum[i];
    }
  });
  return total(partial, 2, w, a);
}

// Gradient of a row from those of the sums of n and n², added to the two rows it is made of.
template <typename T>
inline void length_back(const T* __restrict x, const T* __restrict g, int64_t w, int64_t c0, int64_t c1, T eps,
                        T* __restrict first, T* __restrict second) {
  const T least = shortest<T>();
#pragma omp simd
  for (int64_t c = c0; c < c1; ++c) {
    const T n = length(x, c, w);
    const T f = n > least ? (g[c] + 2 * (n + eps) * g[w + c]) / n : T(0);
    const T x0 = f * x[c], x1 = f * x[w + c], x2 = f * x[2 * w + c];
    first[c] += x0, first[w + c] += x1, first[2 * w + c] += x2;
    second[c] += x0, second[w + c] += x1, second[2 * w + c] += x2;
  }
}

template <typename T>
void moments_back(const Tensor& a, const Maybe& b, const Maybe& index, int64_t k, double eps, const Tensor& grad,
                  Tensor& grad_a, Maybe& grad_b) {
  const Rows<T> rows = rows_of<T>(a, b, index);
  const int64_t w = rows.width, clouds = a.size(0);
  const T* gradient = grad.const_data_ptr<T>();
  T* ga = grad_a.data_ptr<T>();
  T* gb = grad_b ? grad_b->data_ptr<T>() : nullptr;
  // Neighbours are shared by points of the same cloud only: clouds apart, and inside a cloud channels apart.
  const int64_t splits = index ? std::min<int64_t>(w / LANES, (at::get_num_threads() + clouds - 1) / clouds) : 1;
  const int64_t tasks = index ? clouds * splits : (clouds * rows.points + CHUNK - 1) / CHUNK;
  at::parallel_for(0, tasks, 1, [&](int64_t first_task, int64_t last_task) {
    std::vector<T> loaded(3 * w), own(3 * w);
    for (int64_t task = first_task; task < last_task; ++task) {
      int64_t begin = task * CHUNK, end = std::min(clouds * rows.points, begin + CHUNK), c0 = 0, c1 = w;
      if (index) {
        begin = task / splits * rows.per_cloud, end = begin + rows.per_cloud;
        c0 = w / LANES * (task % splits) / splits * LANES, c1 = w / LANES * (task % splits + 1) / splits * LANES;
      }
      for (int64_t m = begin; m < end; ++m) {
        rows.load(m, loaded.data());
        if (m % k == 0) std::fill(own.begin(), own.end(), T(0));
        length_back(loaded.data(), gradient, w, c0, c1, T(eps), ga + rows.from(m) * 3 * w, own.data());
        if (index && gb && (m + 1) % k == 0)
          for (int64_t d = 0; d < 3; ++d) std::copy(&own[d * w + c0], &own[d * w] + c1, gb + (m / k * 3 + d) * w + c0);
      }
    }
  });
}

// ------------------------------------------------------------------------------------------------ norm and leaky ReLU

template <typename T>
struct Settings {
  const T *scale, *shift, *centre, *floor;  // a length n becomes scale (n - centre) + shift; below floor it counts as that
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

template <typename T>
struct Gradients {
  T *qa, *qb, *ka, *kb;
};

// Gradients of one row, for channels c0 to c1: left in `gq` and `gk`, and the sums of those of scale and shift.
template <typename T, Direction D>
inline void bend_row_back(const Bend<T>& x, const T* __restrict g, int64_t w, int64_t c0, int64_t c1, const Settings<T>& s,
                          T* __restrict gq, T* __restrict gk, T* __restrict gscale, T* __restrict gshift) {
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

// Edges add to their neighbour's row and to that of their own point; other rows are met once.
template <typename T>
inline void add_row(const T* __restrict g, int64_t w, int64_t c0, int64_t c1, bool edge, T* __restrict to, T* __restrict own) {
  for (int64_t d = 0; d < 3; ++d)
    if (edge)
      for (int64_t i = d * w + c0; i < d * w + c1; ++i) to[i] += g[i], own[i] += g[i];
    else
      for (int64_t i = d * w + c0; i < d * w + c1; ++i) to[i] = g[i];
}

template <typename T, Direction D>
Tensor bend_rows_back(const Rows<T>& q, const Rows<T>& k, const Shape& shape, const Settings<T>& s, const Tensor& grad,
                      const Gradients<T>& to) {
  const int64_t w = q.width, channels = s.channels, width_k = D == Direction::each ? w : 1;
  const int64_t clouds = shape.rows / q.per_cloud;
  const T* gradient = grad.const_data_ptr<T>();
  // As in moments_back; a direction that channels share has one gradient, so channels stay together there.
  const int64_t most = D == Direction::each ? w / LANES : 1;
  const int64_t splits = q.index ? std::min<int64_t>(most, (at::get_num_threads() + clouds - 1) / clouds) : 1;
  // The rows of one point are taken together: their gradients at the point itself add up.
  const int64_t unit = q.index ? q.share : shape.k, units = shape.rows / unit;
  const int64_t tasks = q.index ? clouds * splits : (units + CHUNK - 1) / CHUNK;
  std::vector<double> partial((q.index ? clouds : tasks) * 2 * w, 0.0);
  at::parallel_for(0, tasks, 1, [&](int64_t first_task, int64_t last_task) {
    Bend<T> x(w);
    std::vector<T> g(3 * w, T(0)), gq(3 * w), gk(3 * w), own_q(3 * w), own_k(3 * w), sums(2 * w);
    for (int64_t task = first_task; task < last_task; ++task) {
      int64_t begin = task * CHUNK, end = std::min(units, begin + CHUNK), c0 = 0, c1 = w;
      if (q.index) {
        begin = task / splits * (units / clouds), end = begin + units / clouds;
        c0 = w / LANES * (task % splits) / splits * LANES, c1 = w / LANES * (task % splits + 1) / splits * LANES;
      }
      double* __restrict out = &partial[(q.index ? task / splits : task) * 2 * w];
      const int64_t k0 = D == Direction::each ? c0 : 0, k1 = D == Direction::each ? c1 : 1;
      for (int64_t u = begin; u < end; ++u) {
        std::fill(sums.begin(), sums.end(), T(0));
        if (q.index) std::fill(own_q.begin(), own_q.end(), T(0)), std::fill(own_k.begin(), own_k.end(), T(0));
        for (int64_t m = u * unit; m < (u + 1) * unit; ++m) {
          if (m % shape.k == 0) load_gradient(gradient + m / shape.k * 3 * channels, w, channels, T(1) / T(shape.k), g.data());
          q.load(m, x.q.data());
          if constexpr (D != Direction::none) k.load(m, x.k.data());
          prepare<T, D>(x, w, s);
          bend_row_back<T, D>(x, g.data(), w, c0, c1, s, gq.data(), gk.data(), sums.data(), sums.data() + w);
          add_row(gq.data(), w, c0, c1, q.index != nullptr, to.qa + q.from(m) * 3 * w, own_q.data());
          if constexpr (D != Direction::none)
            add_row(gk.data(), width_k, k0, k1, q.index != nullptr, to.ka + q.from(m) * 3 * width_k, own_k.data());
        }
        for (int64_t c = c0; c < c1; ++c) out[c] += sums[c], out[w + c] += sums[w + c];
        if (q.index && to.qb)
          for (int64_t d = 0; d < 3; ++d) {
            std::copy(&own_q[d * w + c0], &own_q[d * w] + c1, to.qb + (u * 3 + d) * w + c0);
            if constexpr (D != Direction::none)
              std::copy(&own_k[d * width_k + k0], &own_k[d * width_k] + k1, to.kb + (u * 3 + d) * width_k + k0);
          }
      }
    }
  });
  return total(partial, 2, w, grad);
}

// ------------------------------------------------------------------------------------------------------ the operators

template <typename Body>
void by_direction(const Maybe& k, const Body& body) {
  if (!k)
    body(std::integral_constant<Direction, Direction::none>{});
  else if (k->size(3) == 1)
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

Tensor zeros_like_maybe(const Tensor& x, bool zero) { return zero ? at::zeros(x.sizes(), x.options()) : at::empty(x.sizes(), x.options()); }

// Sums of n and n² over all rows, (2, width) in float64.
Tensor moments(const Tensor& a, const Maybe& b, const Maybe& index, int64_t pool, double eps) {
  check(a, b, index, true);
  Tensor out;
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "moments", [&] { out = moments_of<scalar_t>(a, b, index, pool, eps); });
  return out;
}

std::tuple<Tensor, Tensor> moments_backward(const Tensor& grad, const Tensor& a, const Maybe& b, const Maybe& index,
                                            int64_t pool, double eps) {
  check(a, b, index, true);
  Tensor grad_a = at::zeros(a.sizes(), a.options());
  Maybe grad_b;
  if (b && index) grad_b = at::empty(b->sizes(), b->options());
  const Tensor g = grad.to(a.scalar_type()).contiguous();
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "moments_backward",
                             [&] { moments_back<scalar_t>(a, b, index, pool, eps, g, grad_a, grad_b); });
  if (b && !index) grad_b = grad_a.sum(1, true);
  return {grad_a, grad_b ? *grad_b : at::empty({0}, a.options())};
}

Tensor bend(const Tensor& qa, const Maybe& qb, const Maybe& ka, const Maybe& kb, const Maybe& index, const Tensor& norm,
            int64_t channels, int64_t pool, double slope, double eps) {
  check(qa, qb, index, true);
  if (ka) check(*ka, kb, index, ka->size(3) > 1);
  const Shape shape = shape_of(qa, index, pool);
  Tensor out = at::empty({shape.groups, 3, channels}, qa.options());
  AT_DISPATCH_FLOATING_TYPES(qa.scalar_type(), "bend", [&] {
    const auto s = settings<scalar_t>(norm, slope, eps, channels);
    const auto q = rows_of<scalar_t>(qa, qb, index);
    const auto k = ka ? rows_of<scalar_t>(*ka, kb, index) : q;
    by_direction(ka, [&](auto d) { bend_rows<scalar_t, decltype(d)::value>(q, k, shape, s, out.data_ptr<scalar_t>()); });
  });
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> bend_backward(const Tensor& grad, const Tensor& qa, const Maybe& qb,
                                                                 const Maybe& ka, const Maybe& kb, const Maybe& index,
                                                                 const Tensor& norm, int64_t channels, int64_t pool,
                                                                 double slope, double eps) {
  const Shape shape = shape_of(qa, index, pool);
  const Tensor none = at::empty({0}, qa.options()), g = grad.contiguous();
  const bool scatter = index.has_value();
  Tensor gqa = zeros_like_maybe(qa, scatter), gka = ka ? zeros_like_maybe(*ka, scatter) : none;
  Tensor gqb = qb && scatter ? at::empty(qb->sizes(), qb->options()) : none;
  Tensor gkb = kb && scatter ? at::empty(kb->sizes(), kb->options()) : none;
  Tensor gnorm;
  AT_DISPATCH_FLOATING_TYPES(qa.scalar_type(), "bend_backward", [&] {
    const auto s = settings<scalar_t>(norm, slope, eps, channels);
    const auto q = rows_of<scalar_t>(qa, qb, index);
    const auto k = ka ? rows_of<scalar_t>(*ka, kb, index) : q;
    const auto pointer = [](const Tensor& t) { return t.numel() ? t.data_ptr<scalar_t>() : nullptr; };
    const Gradients<scalar_t> to{pointer(gqa), pointer(gqb), pointer(gka), pointer(gkb)};
    by_direction(ka, [&](auto d) { gnorm = bend_rows_back<scalar_t, decltype(d)::value>(q, k, shape, s, g, to); });
  });
  if (qb && !scatter) gqb = gqa.sum(1, true);
  if (kb && !scatter) gkb = gka.sum(1, true);
  // Gradients of scale, shift and centre; the floor is a constant.
  const Tensor centre = -norm[0] * gnorm[1];
  return {gqa, gqb, gka, gkb, at::stack({gnorm[0], gnorm[1], centre, at::zeros_like(centre)}).to(qa.scalar_type())};
}

}  // namespace

// Their schemas stand in operators.py: the bodies for other devices share them.
TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("moments", &moments);
  m.impl("moments_backward", &moments_backward);
  m.impl("bend", &bend);
  m.impl("bend_backward", &bend_backward);
}
