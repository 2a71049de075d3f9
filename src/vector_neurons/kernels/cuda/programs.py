"""The mathematics of `cpu/length_sums.cpp` and `cpu/norm_leaky_relu.cpp` as Triton programs; `ops.py` launches them.

Rows are taken in units: the k edges of a point, a group that is averaged, or just a few. A program holds a tile, units
× channels, and goes through the rows of its units one after the other, so what belongs to a unit (its mean, the
gradient at the point itself) adds up in registers. Only gradients at neighbours meet in memory: there programs add
atomically, in no fixed order.

In a tile, `here` (units, 1) says which rows exist and `c` (1, channels) counts channels; vectors are three tiles.
Numbers that must keep float64 are compile-time constants: Triton passes floats in float32. Bounds are comparisons,
because tl.maximum hides NaN. `@no_type_check` keeps the checks of types off what never runs as Python.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _place(index, unit, j, rows, per, per_cloud, points):
    """Number of the j-th row of a unit, where in `a` it comes from, and whether it exists."""
    m = unit * per + j
    source = m
    if index is not None:
        source = m // per_cloud * points + tl.load(index + m, mask=m < rows, other=0)
    return m, source, m < rows


@triton.jit
@no_type_check
def _row(a, b, source, own, columns, first, width, c, here):
    """Rows `a[source] + b[own]`, in `width` of their columns, from the `first` on."""
    inside, at = here & (c < width), a + source * 3 * columns + first + c
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
def _store(x, row, columns, first, width, c, here, x0, x1, x2, add: tl.constexpr):
    inside, at = here & (c < width), x + row * 3 * columns + first + c
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
    """Leave this program's two sums over its units, `(2, width)` in float64."""
    at = partial + tl.program_id(0).to(tl.int64) * 2 * width + c
    tl.store(at, tl.sum(first.to(tl.float64), 0, keep_dims=True), mask=c < width)
    tl.store(at + width, tl.sum(second.to(tl.float64), 0, keep_dims=True), mask=c < width)


@triton.jit
@no_type_check
def _length(x0, x1, x2, tiny: tl.constexpr):
    """Lengths, and which of them have a gradient: squares below `tiny` count as zero."""
    squares = x0 * x0 + x1 * x1 + x2 * x2
    return tl.sqrt(tl.where(squares < tiny, tiny, squares)), squares > tiny


# -------------------------------------------------------------------------------------------- statistics of the lengths


@triton.jit
@no_type_check
def length_sums(a, b, index, partial, rows, per, per_cloud, points, share, columns, width,
            eps: tl.constexpr, tiny: tl.constexpr, G: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Sums of n and n², in float64: the variance is their difference, and small where lengths are nearly equal."""
    unit = (tl.program_id(0).to(tl.int64) * G + tl.arange(0, G))[:, None]
    c = tl.arange(0, B)[None, :]
    first, second = tl.zeros([G, B], tl.float64), tl.zeros([G, B], tl.float64)
    for j in range(per):
        m, source, here = _place(index, unit, j, rows, per, per_cloud, points)
        x0, x1, x2 = _row(a, b, source, m // share, columns, 0, width, c, here)
        length, _ = _length(x0, x1, x2, tiny)
        n = tl.where(here, length + eps, 0.0).to(tl.float64)
        first += n
        second += n * n
    _store_sums(partial, width, c, first, second)


@triton.jit
@no_type_check
def length_sums_back(grad, a, b, index, ga, gb, rows, per, per_cloud, points, share, columns, width,
                 eps: tl.constexpr, tiny: tl.constexpr, G: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Gradients of rows from those of the sums, added to what rows are made of."""
    unit = (tl.program_id(0).to(tl.int64) * G + tl.arange(0, G))[:, None]
    c = tl.arange(0, B)[None, :]
    g = tl.load(grad + c, mask=c < width, other=0.0)
    g_square = tl.load(grad + width + c, mask=c < width, other=0.0)
    own0 = tl.zeros([G, B], a.dtype.element_ty)
    own1, own2 = own0, own0
    for j in range(per):
        m, source, here = _place(index, unit, j, rows, per, per_cloud, points)
        x0, x1, x2 = _row(a, b, source, m // share, columns, 0, width, c, here)
        length, smooth = _length(x0, x1, x2, tiny)
        f = tl.where(smooth, (g + 2 * (length + eps) * g_square) / length, 0.0)
        x0, x1, x2 = f * x0, f * x1, f * x2
        _store(ga, source, columns, 0, width, c, here, x0, x1, x2, index is not None)
        own0, own1, own2 = own0 + x0, own1 + x1, own2 + x2
    if gb is not None:
        _store(gb, unit, columns, 0, width, c, unit * per < rows, own0, own1, own2, False)


# -------------------------------------------------------------------------------------------------- norm and leaky ReLU


@triton.jit
@no_type_check
def _settings(norm, width, c):
    scale = tl.load(norm + c, mask=c < width, other=0.0)
    shift = tl.load(norm + width + c, mask=c < width, other=0.0)
    centre = tl.load(norm + 2 * width + c, mask=c < width, other=0.0)
    floor = tl.load(norm + 3 * width + c, mask=c < width, other=0.0)
    return scale, shift, centre, floor


@triton.jit
@no_type_check
def _squares(k0, k1, k2, count, eps: tl.constexpr, tiny: tl.constexpr):
    """Squared lengths of directions, and which are bounded: those are constants to the gradient."""
    squares = k0 * k0 + k1 * k1 + k2 * k2
    if eps < 0:
        least = 1e-6 * tl.sum(squares, 1, keep_dims=True) / count
        least = tl.where(least < tiny, tiny, least)
        return tl.where(squares < least, least, squares), squares < least
    else:
        return squares + eps, squares < 0


@triton.jit
@no_type_check
def norm_leaky_relu(a, b, index, norm, out, rows, per, per_cloud, points, share, columns, width, width_k, count, channels,
         slope: tl.constexpr, eps: tl.constexpr, tiny: tl.constexpr,
         G: tl.constexpr, B: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Norm of lengths, leaky ReLU along directions (BK > 0), mean over the rows of a unit."""
    unit = (tl.program_id(0).to(tl.int64) * G + tl.arange(0, G))[:, None]
    c = tl.arange(0, B)[None, :]
    scale, shift, centre, floor = _settings(norm, width, c)
    sum0 = tl.zeros([G, B], a.dtype.element_ty)
    sum1, sum2 = sum0, sum0
    for j in range(per):
        m, source, here = _place(index, unit, j, rows, per, per_cloud, points)
        q0, q1, q2 = _row(a, b, source, m // share, columns, 0, width, c, here)
        length, _ = _length(q0, q1, q2, tiny)
        n = length + (eps if eps > 0 else 0.0)
        ratio = (scale * (n - centre) + shift) / tl.where(n < floor, floor, n)
        q0, q1, q2 = ratio * q0, ratio * q1, ratio * q2
        if BK > 0:
            ck = tl.arange(0, BK)[None, :]
            k0, k1, k2 = _row(a, b, source, m // share, columns, width, width_k, ck, here)
            squares, _ = _squares(k0, k1, k2, count, eps, tiny)
            dot = q0 * k0 + q1 * k1 + q2 * k2
            f = tl.where(dot < 0, (slope - 1) * dot / squares, 0.0)
            q0, q1, q2 = q0 + f * k0, q1 + f * k1, q2 + f * k2
        sum0, sum1, sum2 = sum0 + q0, sum1 + q1, sum2 + q2
    _store(out, unit, channels, 0, channels, c, unit * per < rows, sum0 / per, sum1 / per, sum2 / per, False)


@triton.jit
@no_type_check
def norm_leaky_relu_back(grad, a, b, index, norm, more, ga, gb, partial,
              rows, per, per_cloud, points, share, columns, width, width_k, count, channels, pool,
              slope: tl.constexpr, eps: tl.constexpr, tiny: tl.constexpr,
              G: tl.constexpr, B: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Gradients of rows, added to what rows are made of, and the sums of those of scale and shift.

    Only the sums without `ga`. `more` (2, width) is what a length's gradient has beyond that, where the length moves
    the statistics: the first plus the second times its distance from the centre.
    """
    unit = (tl.program_id(0).to(tl.int64) * G + tl.arange(0, G))[:, None]
    c = tl.arange(0, B)[None, :]
    scale, shift, centre, floor = _settings(norm, width, c)
    own0 = tl.zeros([G, B], a.dtype.element_ty)
    own1, own2, gscale, gshift = own0, own0, own0, own0
    if BK > 0:
        ck = tl.arange(0, BK)[None, :]
        own_k0 = tl.zeros([G, BK], a.dtype.element_ty)
        own_k1, own_k2 = own_k0, own_k0
    for j in range(per):
        m, source, here = _place(index, unit, j, rows, per, per_cloud, points)
        q0, q1, q2 = _row(a, b, source, m // share, columns, 0, width, c, here)
        g0, g1, g2 = _row(grad, None, m // pool, 0, channels, 0, channels, c, here)
        g0, g1, g2 = g0 / pool, g1 / pool, g2 / pool
        length, smooth = _length(q0, q1, q2, tiny)
        n = length + (eps if eps > 0 else 0.0)
        least = tl.where(n < floor, floor, n)
        ratio = (scale * (n - centre) + shift) / least
        h0, h1, h2 = g0, g1, g2  # gradient of the normalised feature
        if BK > 0:
            k0, k1, k2 = _row(a, b, source, m // share, columns, width, width_k, ck, here)
            squares, bounded = _squares(k0, k1, k2, count, eps, tiny)
            dot = ratio * (q0 * k0 + q1 * k1 + q2 * k2)
            along = g0 * k0 + g1 * k1 + g2 * k2
            e = tl.where(dot < 0, (slope - 1) / squares, 0.0)
            f, s, t = e * dot, e * along, tl.where(bounded, 0.0, 2 * e * dot * along / squares)
            h0, h1, h2 = h0 + s * k0, h1 + s * k1, h2 + s * k2
            if ga is not None:
                s *= ratio
                d0, d1, d2 = f * g0 + s * q0 - t * k0, f * g1 + s * q1 - t * k1, f * g2 + s * q2 - t * k2
                if BK == 1:  # one direction for all channels
                    d0, d1 = tl.sum(d0, 1, keep_dims=True), tl.sum(d1, 1, keep_dims=True)
                    d2 = tl.sum(d2, 1, keep_dims=True)
                _store(ga, source, columns, width, width_k, ck, here, d0, d1, d2, index is not None)
                own_k0, own_k1, own_k2 = own_k0 + d0, own_k1 + d1, own_k2 + d2
        inner = (h0 * q0 + h1 * q1 + h2 * q2) / least
        gscale += inner * (n - centre)
        gshift += inner
        if ga is not None:
            back = inner * scale - tl.where(n < floor, 0.0, inner * ratio)
            if more is not None:
                back += tl.load(more + c, mask=c < width, other=0.0)
                back += tl.load(more + width + c, mask=c < width, other=0.0) * (n - centre)
            f = tl.where(smooth, back / length, 0.0)
            q0, q1, q2 = ratio * h0 + f * q0, ratio * h1 + f * q1, ratio * h2 + f * q2
            _store(ga, source, columns, 0, width, c, here, q0, q1, q2, index is not None)
            own0, own1, own2 = own0 + q0, own1 + q1, own2 + q2
    if gb is not None:
        _store(gb, unit, columns, 0, width, c, unit * per < rows, own0, own1, own2, False)
        if BK > 0:
            _store(gb, unit, columns, width, width_k, ck, unit * per < rows, own_k0, own_k1, own_k2, False)
    _store_sums(partial, width, c, gscale, gshift)
