"""The mathematics of `../cpu/length_sums.cpp` and `../cpu/norm_leaky_relu.cpp` as Triton programs. Experimental.

Rows are processed in units: the k edges of a point, a group that is averaged, or just a few rows. A program holds a
tile, units × channels, and loops over the rows of its units, so that sums over a unit (its mean, the gradient at the
point itself) accumulate in registers. Only gradients at neighbors are added in memory: atomically, in no fixed order.

In a tile, `valid` (units, 1) masks rows beyond the last and `c` (1, channels) counts channels; vectors are three tiles.
Floats that need float64 precision are compile-time constants, since Triton passes arguments in float32. Bounds are
comparisons, because tl.maximum hides NaN. `@no_type_check` exempts functions that never run as Python.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _row_index(neighbors, unit, j, rows, per_unit, per_cloud, points):
    """Index of the j-th row of each unit, the row of `a` it reads, and whether it exists."""
    m = unit * per_unit + j
    source = m
    if neighbors is not None:
        source = m // per_cloud * points + tl.load(neighbors + m, mask=m < rows, other=0)
    return m, source, m < rows


@triton.jit
@no_type_check
def _row(a, b, source, own, columns, first, width, c, valid):
    """Rows `a[source] + b[own]`: `width` of their columns, from column `first` on."""
    inside, at = valid & (c < width), a + source * 3 * columns + first + c
    x0 = tl.load(at, mask=inside, other=0.0)
    x1 = tl.load(at + columns, mask=inside, other=0.0)
    x2 = tl.load(at + 2 * columns, mask=inside, other=0.0)
    if b is not None:
        at = b + own * 3 * columns + first + c
        x0 += tl.load(at, mask=inside, other=0.0)
        x1 += tl.load(at + columns, mask=inside, other=0.0)
        x2 += tl.load(at + 2 * columns, mask=inside, other=0.0)
    return x0, x1, x2


@triton.jit
@no_type_check
def _store(x, row, columns, first, width, c, valid, x0, x1, x2, add: tl.constexpr):
    inside, at = valid & (c < width), x + row * 3 * columns + first + c
    if add:
        tl.atomic_add(at, x0, mask=inside, sem="relaxed")
        tl.atomic_add(at + columns, x1, mask=inside, sem="relaxed")
        tl.atomic_add(at + 2 * columns, x2, mask=inside, sem="relaxed")
    else:
        tl.store(at, x0, mask=inside)
        tl.store(at + columns, x1, mask=inside)
        tl.store(at + 2 * columns, x2, mask=inside)


@triton.jit
@no_type_check
def _store_sums(partial, width, c, first, second):
    """Store this program's two sums over its units, `(2, width)` in float64."""
    at = partial + tl.program_id(0).to(tl.int64) * 2 * width + c
    tl.store(at, tl.sum(first.to(tl.float64), 0, keep_dims=True), mask=c < width)
    tl.store(at + width, tl.sum(second.to(tl.float64), 0, keep_dims=True), mask=c < width)


@triton.jit
@no_type_check
def _length(x0, x1, x2, tiny: tl.constexpr):
    """Lengths, and which of them have a gradient: squares below `tiny` count as zero."""
    squares = x0 * x0 + x1 * x1 + x2 * x2
    return tl.sqrt(tl.where(squares < tiny, tiny, squares)), squares > tiny


# ---------------------------------------------------------------------------------------------------- sums of lengths


@triton.jit
@no_type_check
def length_sums(a, b, neighbors, partial, rows, per_unit, per_cloud, points, per_b, columns, width,
                eps: tl.constexpr, tiny: tl.constexpr, G: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Sums of n and n², in float64: the variance is their difference, which would cancel for nearly equal lengths."""
    unit = (tl.program_id(0).to(tl.int64) * G + tl.arange(0, G))[:, None]
    c = tl.arange(0, B)[None, :]
    first, second = tl.zeros([G, B], tl.float64), tl.zeros([G, B], tl.float64)
    for j in range(per_unit):
        m, source, valid = _row_index(neighbors, unit, j, rows, per_unit, per_cloud, points)
        x0, x1, x2 = _row(a, b, source, m // per_b, columns, 0, width, c, valid)
        length, _ = _length(x0, x1, x2, tiny)
        n = tl.where(valid, length + eps, 0.0).to(tl.float64)
        first += n
        second += n * n
    _store_sums(partial, width, c, first, second)


@triton.jit
@no_type_check
def length_sums_backward(grad, a, b, neighbors, ga, gb, rows, per_unit, per_cloud, points, per_b, columns, width,
                         eps: tl.constexpr, tiny: tl.constexpr, G: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Gradients of `a` and `b` from those of the sums."""
    unit = (tl.program_id(0).to(tl.int64) * G + tl.arange(0, G))[:, None]
    c = tl.arange(0, B)[None, :]
    g = tl.load(grad + c, mask=c < width, other=0.0)
    g_square = tl.load(grad + width + c, mask=c < width, other=0.0)
    own0 = tl.zeros([G, B], a.dtype.element_ty)
    own1, own2 = own0, own0
    for j in range(per_unit):
        m, source, valid = _row_index(neighbors, unit, j, rows, per_unit, per_cloud, points)
        x0, x1, x2 = _row(a, b, source, m // per_b, columns, 0, width, c, valid)
        length, smooth = _length(x0, x1, x2, tiny)
        f = tl.where(smooth, (g + 2 * (length + eps) * g_square) / length, 0.0)
        x0, x1, x2 = f * x0, f * x1, f * x2
        _store(ga, source, columns, 0, width, c, valid, x0, x1, x2, neighbors is not None)
        own0, own1, own2 = own0 + x0, own1 + x1, own2 + x2
    if gb is not None:
        _store(gb, unit, columns, 0, width, c, unit * per_unit < rows, own0, own1, own2, False)


# -------------------------------------------------------------------------------------------------- norm and leaky ReLU


@triton.jit
@no_type_check
def _norm_params(norm, width, c):
    scale = tl.load(norm + c, mask=c < width, other=0.0)
    shift = tl.load(norm + width + c, mask=c < width, other=0.0)
    center = tl.load(norm + 2 * width + c, mask=c < width, other=0.0)
    floor = tl.load(norm + 3 * width + c, mask=c < width, other=0.0)
    return scale, shift, center, floor


@triton.jit
@no_type_check
def _bounded_squares(k0, k1, k2, count, eps: tl.constexpr, tiny: tl.constexpr, relative_floor: tl.constexpr):
    """Squared lengths of directions, bounded from below, and which are at the bound: those have no gradient."""
    squares = k0 * k0 + k1 * k1 + k2 * k2
    if eps < 0:
        least = relative_floor * relative_floor * tl.sum(squares, 1, keep_dims=True) / count
        least = tl.where(least < tiny, tiny, least)
        return tl.where(squares < least, least, squares), squares < least
    else:
        return squares + eps, squares < 0


@triton.jit
@no_type_check
def norm_leaky_relu(a, b, neighbors, norm, out,
                    rows, per_unit, per_cloud, points, per_b, columns, width, width_k, count, channels,
                    negative_slope: tl.constexpr, eps: tl.constexpr, tiny: tl.constexpr, relative_floor: tl.constexpr,
                    G: tl.constexpr, B: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Norm of lengths, leaky ReLU along directions (BK > 0), mean over the rows of a unit."""
    unit = (tl.program_id(0).to(tl.int64) * G + tl.arange(0, G))[:, None]
    c = tl.arange(0, B)[None, :]
    scale, shift, center, floor = _norm_params(norm, width, c)
    sum0 = tl.zeros([G, B], a.dtype.element_ty)
    sum1, sum2 = sum0, sum0
    for j in range(per_unit):
        m, source, valid = _row_index(neighbors, unit, j, rows, per_unit, per_cloud, points)
        q0, q1, q2 = _row(a, b, source, m // per_b, columns, 0, width, c, valid)
        length, _ = _length(q0, q1, q2, tiny)
        n = length + (eps if eps > 0 else 0.0)
        ratio = (scale * (n - center) + shift) / tl.where(n < floor, floor, n)
        q0, q1, q2 = ratio * q0, ratio * q1, ratio * q2
        if BK > 0:
            ck = tl.arange(0, BK)[None, :]
            k0, k1, k2 = _row(a, b, source, m // per_b, columns, width, width_k, ck, valid)
            squares, _ = _bounded_squares(k0, k1, k2, count, eps, tiny, relative_floor)
            dot = q0 * k0 + q1 * k1 + q2 * k2
            f = tl.where(dot < 0, (negative_slope - 1) * dot / squares, 0.0)
            q0, q1, q2 = q0 + f * k0, q1 + f * k1, q2 + f * k2
        sum0, sum1, sum2 = sum0 + q0, sum1 + q1, sum2 + q2
    sum0, sum1, sum2 = sum0 / per_unit, sum1 / per_unit, sum2 / per_unit
    _store(out, unit, channels, 0, channels, c, unit * per_unit < rows, sum0, sum1, sum2, False)


@triton.jit
@no_type_check
def norm_leaky_relu_backward(grad, a, b, neighbors, norm, gradient_terms, ga, gb, partial,
                             rows, per_unit, per_cloud, points, per_b, columns, width, width_k, count, channels, pool,
                             negative_slope: tl.constexpr, eps: tl.constexpr, tiny: tl.constexpr,
                             relative_floor: tl.constexpr,
                             G: tl.constexpr, B: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Gradients of `a` and `b`, and the sums of those of scale and shift.

    Without `ga`, only the sums. Where lengths move the statistics of the batch, `gradient_terms` (2, width) adds
    constant + linear (n - center) to the gradient of a length n.
    """
    unit = (tl.program_id(0).to(tl.int64) * G + tl.arange(0, G))[:, None]
    c = tl.arange(0, B)[None, :]
    scale, shift, center, floor = _norm_params(norm, width, c)
    own0 = tl.zeros([G, B], a.dtype.element_ty)
    own1, own2, gscale, gshift = own0, own0, own0, own0
    if BK > 0:
        ck = tl.arange(0, BK)[None, :]
        own_k0 = tl.zeros([G, BK], a.dtype.element_ty)
        own_k1, own_k2 = own_k0, own_k0
    for j in range(per_unit):
        m, source, valid = _row_index(neighbors, unit, j, rows, per_unit, per_cloud, points)
        q0, q1, q2 = _row(a, b, source, m // per_b, columns, 0, width, c, valid)
        g0, g1, g2 = _row(grad, None, m // pool, 0, channels, 0, channels, c, valid)
        g0, g1, g2 = g0 / pool, g1 / pool, g2 / pool
        length, smooth = _length(q0, q1, q2, tiny)
        n = length + (eps if eps > 0 else 0.0)
        least = tl.where(n < floor, floor, n)
        ratio = (scale * (n - center) + shift) / least
        h0, h1, h2 = g0, g1, g2  # gradient of the normalized feature
        if BK > 0:
            k0, k1, k2 = _row(a, b, source, m // per_b, columns, width, width_k, ck, valid)
            squares, bounded = _bounded_squares(k0, k1, k2, count, eps, tiny, relative_floor)
            dot = ratio * (q0 * k0 + q1 * k1 + q2 * k2)
            along = g0 * k0 + g1 * k1 + g2 * k2
            e = tl.where(dot < 0, (negative_slope - 1) / squares, 0.0)
            f, s, t = e * dot, e * along, tl.where(bounded, 0.0, 2 * e * dot * along / squares)
            h0, h1, h2 = h0 + s * k0, h1 + s * k1, h2 + s * k2
            if ga is not None:
                s *= ratio
                d0, d1, d2 = f * g0 + s * q0 - t * k0, f * g1 + s * q1 - t * k1, f * g2 + s * q2 - t * k2
                if BK == 1:  # one direction for all channels
                    d0, d1 = tl.sum(d0, 1, keep_dims=True), tl.sum(d1, 1, keep_dims=True)
                    d2 = tl.sum(d2, 1, keep_dims=True)
                _store(ga, source, columns, width, width_k, ck, valid, d0, d1, d2, neighbors is not None)
                own_k0, own_k1, own_k2 = own_k0 + d0, own_k1 + d1, own_k2 + d2
        inner = (h0 * q0 + h1 * q1 + h2 * q2) / least
        gscale += inner * (n - center)
        gshift += inner
        if ga is not None:
            back = inner * scale - tl.where(n < floor, 0.0, inner * ratio)
            if gradient_terms is not None:
                back += tl.load(gradient_terms + c, mask=c < width, other=0.0)
                back += tl.load(gradient_terms + width + c, mask=c < width, other=0.0) * (n - center)
            f = tl.where(smooth, back / length, 0.0)
            q0, q1, q2 = ratio * h0 + f * q0, ratio * h1 + f * q1, ratio * h2 + f * q2
            _store(ga, source, columns, 0, width, c, valid, q0, q1, q2, neighbors is not None)
            own0, own1, own2 = own0 + q0, own1 + q1, own2 + q2
    if gb is not None:
        _store(gb, unit, columns, 0, width, c, unit * per_unit < rows, own0, own1, own2, False)
        if BK > 0:
            _store(gb, unit, columns, width, width_k, ck, unit * per_unit < rows, own_k0, own_k1, own_k2, False)
    _store_sums(partial, width, c, gscale, gshift)
