"""A row per layer: which one breaks the symmetry, and why."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .measure import (
    TOLERANCE,
    Element,
    Group,
    Kind,
    check_axis,
    draw,
    group_of,
    kinds_of,
    outputs_of,
    relative_error,
    tensors_in,
)

OUTPUT = "(output)"  # the module's own row, and the last
Layout = Literal["bn3", "b3n"]


@dataclass(frozen=True)
class Row:
    """One tensor that came out of a layer, or went into it: what it behaves like, how wrong it is, and how wrong after
    ties are shaken off."""

    layer: str
    type: str
    shape: tuple[int, ...]
    behaviour: str
    error: float
    shaken: float
    entry: bool = False  # whether it went in
    time: int = 0  # its place in the order of execution, inputs and outputs together

    def inside(self, other: "Row") -> bool:
        """Whether this layer is a part of the other."""
        return self.layer != OUTPUT and (other.layer == OUTPUT or self.layer.startswith(other.layer + "."))


@dataclass(frozen=True)
class Report:
    """A row per layer's output in the order of execution, the rows of what went into layers, and the verdict."""

    rows: tuple[Row, ...]
    group: Group
    tolerance: float
    inputs: tuple[Row, ...] = ()

    @property
    def culprit(self) -> Row | None:
        """The first row that breaks the symmetry, if the module does; those that break on any input come first.

        What a layer does inside is its own affair as long as its output, and so that of all it is part of, holds. The
        row of an input breaks where all before it holds: there, a function between layers is at fault, and no layer.
        """
        bad = {row.layer for row in self.rows if not row.error <= self.tolerance}
        holds = [row for row in self.rows if row.layer not in bad]  # of several outputs, all
        broken = [
            row
            for row in sorted((*self.rows, *self.inputs), key=lambda row: row.time)
            if not row.error <= self.tolerance
            and not (row.entry and row.layer not in bad)  # whatever went in, what came out is right
            and not any(row.inside(good) for good in holds)
        ]
        return next((row for row in broken if not row.shaken <= self.tolerance), broken[0] if broken else None)

    @property
    def cause(self) -> Literal["none", "ties", "architecture"]:
        """Why it breaks: ties depend on this input (a grid, duplicated points), the architecture on none."""
        if self.culprit is None:
            return "none"
        return "ties" if self.culprit.shaken <= self.tolerance else "architecture"

    @property
    def verdict(self) -> str:
        """One line for people."""
        row = self.culprit
        if row is None:
            worst = max(row.error for row in self.rows if row.layer == OUTPUT)
            inner = max(self.rows, key=lambda row: row.error)
            note = f"; inside it {inner.layer} has {inner.error:.1e}: is that rounding? float64 tells"
            note = "" if inner.error <= self.tolerance else note
            return f"{self.group}-equivariant: error {worst:.1e}, allowed {self.tolerance:.0e}{note}"
        place = f"{'the input of ' if row.entry else ''}{row.layer} ({row.type}), error {row.error:.1e}"
        if self.cause == "ties":
            return (
                f"{self.group} breaks on this input, by ties, first at {place}: with its points moved by a thousandth "
                f"the error is {row.shaken:.1e}. Of neighbours or maxima equally good, rounding chooses."
            )
        parts = [part.layer for part in self.rows if part.inside(row)]
        if row.entry:
            why = f"the input of {row.layer} is already not equivariant; look at what stands before it."
        elif parts:
            why = f"all layers in it hold; look at its own code after the last of them, {parts[-1]}."
        else:
            why = "this layer is not equivariant."
        return f"{self.group} breaks first at {place}: {why}"

    def __str__(self) -> str:
        culprit = self.culprit
        shown = sorted((*self.rows, *(row for row in self.inputs if row is culprit)), key=lambda row: row.time)
        head = ("layer", "type", "shape", "behaves as", "error")
        body = [
            (f"input of {r.layer}" if r.entry else r.layer, r.type, str(r.shape), r.behaviour, f"{r.error:.1e}")
            for r in shown
        ]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (head, *body)
        ]
        marks = ["", *("  <-- breaks" if row is culprit else "" for row in shown)]
        return "\n".join([*(line + mark for line, mark in zip(lines, marks, strict=True)), "", self.verdict])


def report(
    module: nn.Module,
    x: Any,
    takes: Kind | Sequence[Kind] = "points",
    gives: Kind | Sequence[Kind] | None = None,
    group: Group | str = "SO3",
    *,
    layout: Layout = "bn3",
    tolerance: float | None = None,
    seed: int = 0,
) -> Report:
    """Follow one input and its transform through the module and compare what goes into and comes out of every layer.

    A tensor is taken for whichever kind fits it best; the module's own output, in the last row, for what `gives` says,
    if given. The same is done with the input's points moved by a thousandth: an error that goes away came from ties
    between neighbours (or maxima), not from the architecture. With the `layout` `"b3n"`, points that the module takes
    or gives are `(B, 3, N)`.
    """
    inputs = x if isinstance(x, tuple) else (x,)
    takes = kinds_of(takes, len(inputs), "takes")
    symmetry = group_of(group)
    flip: Flip = partial(_flip, on=layout == "b3n")
    inputs = tuple(map(flip, inputs, takes))
    generator = torch.Generator().manual_seed(seed)
    g = draw(symmetry, inputs[0], takes[0], generator)
    network = copy.deepcopy(module)
    moved = (_shake(inputs[0], generator), *inputs[1:])
    bound = TOLERANCE[inputs[0].dtype] if tolerance is None else tolerance
    on_input, on_moved = (_trace(network, i, takes, gives, g, flip) for i in (inputs, moved))
    rows = [
        Row(seen.layer, seen.type, tuple(seen.x.shape), behaviour, error, shaken, seen.entry, time)
        for time, ((seen, behaviour, error), (_, _, shaken)) in enumerate(zip(on_input, on_moved, strict=True))
    ]
    return Report(tuple(row for row in rows if not row.entry), symmetry, bound, tuple(row for row in rows if row.entry))


Flip = Callable[[Any, Kind], Any]


def _flip(x: Any, kind: Kind, *, on: bool) -> Any:
    """Points `(B, 3, N)` from points `(B, N, 3)`, and back."""
    return x.mT if on and kind == "points" else x


def _shake(x: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
    return (x.double() + 1e-3 * x.double().std() * noise).to(x.dtype)


@dataclass(frozen=True)
class _Seen:
    """A tensor at the entry or the exit of a layer."""

    layer: str
    type: str
    entry: bool
    x: Tensor


def _trace(
    network: nn.Module,
    inputs: tuple[Any, ...],
    takes: Sequence[Kind],
    gives: Kind | Sequence[Kind] | None,
    g: Element,
    flip: Flip,
) -> list[tuple[_Seen, str, float]]:
    before = _record(network, tuple(map(flip, inputs, takes)))
    turned = (g.act(i, kind) for i, kind in zip(inputs, takes, strict=True))
    after = _record(network, tuple(map(flip, turned, takes)))
    own = sum(seen.layer == OUTPUT for seen in before)
    declared = [None] * own if gives is None else kinds_of(gives, own, "gives")
    rows = []
    for a, b, only in zip(before, after, [*[None] * (len(before) - own), *declared], strict=True):
        fits = _behaviours(a.x, g) if only is None else [_declared(a.x, g, only, flip)]
        errors = [relative_error(b.x, expected(a.x)) for _, expected in fits]
        best = errors.index(min(errors))
        rows.append((a, fits[best][0], errors[best]))
    return rows


Behaviour = tuple[str, Callable[[Tensor], Tensor]]  # its name, and how it is transformed


def _declared(x: Tensor, g: Element, kind: Kind, flip: Flip) -> Behaviour:
    if g.linear is not None:
        try:
            check_axis(flip(x, kind).shape, kind, len(g.linear))
        except ValueError as error:
            raise ValueError(f"the output {tuple(x.shape)} cannot be what was declared: {error}") from None
    name = f"scale^{0 if kind == 'scalars' else 1}" if g.scale != 1 else kind
    return name, lambda y: flip(g.act(flip(y, kind), kind), kind)


def _behaviours(x: Tensor, g: Element) -> list[Behaviour]:
    """What a tensor may be, as far as its shape tells."""
    if g.scale != 1:
        return [(f"scale^{d}", partial(g.act, kind="scalars", degree=float(d))) for d in (0, 1, 2)]
    if g.order is not None:
        axes = [axis for axis in range(1, x.ndim) if x.shape[axis] == len(g.order)]
        return [
            ("unchanged", lambda y: y),
            *((_name("permuted", axis, 1), partial(torch.index_select, dim=axis, index=g.order)) for axis in axes),
        ]
    found: list[Behaviour] = [("scalars", lambda y: y)]
    assert g.linear is not None  # what else acts
    for axis in reversed(range(x.ndim)):
        if x.shape[axis] == len(g.linear):
            last = axis == x.ndim - 1 and g.shift is None
            name = "points" if last else _name("vectors", axis, x.ndim - 2)
            kinds: list[tuple[str, Kind]] = [(name, "points" if last else "vectors")]
            # A shift moves points, but not the vectors between them.
            kinds += [] if g.shift is None else [(_name("points", axis, x.ndim - 1), "points")]
            found += [(name, partial(_along, g, axis=axis, kind=kind)) for name, kind in kinds]
    return found


def _name(kind: str, axis: int, usual: int) -> str:
    return kind if axis == usual else f"{kind}, axis {axis}"


def _along(g: Element, x: Tensor, *, axis: int, kind: Kind) -> Tensor:
    """Act on the vectors (or points) whose coordinates stand on this axis."""
    moved = x.movedim(axis, -1)
    acted: Tensor = g.act(moved, kind) if kind == "points" else g.act(moved.unsqueeze(-1), kind).squeeze(-1)
    return acted.movedim(-1, axis)


def _record(network: nn.Module, inputs: tuple[Any, ...]) -> list[_Seen]:
    """What goes into and comes out of all submodules, in the order of execution, and last out of the module itself."""
    seen: list[_Seen] = []

    def keep(name: str, label: str, entry: bool, values: Any) -> None:
        for x in tensors_in(values):
            if not entry or x.is_floating_point():  # indices and masks choose, they do not turn
                seen.append(_Seen(name, label, entry, x.detach().clone()))  # a layer may work in place

    def entering(name: str, label: str) -> Callable[..., None]:
        return lambda _module, args, kwargs: keep(name, label, True, (args, kwargs))

    def leaving(name: str, label: str) -> Callable[..., None]:
        return lambda _module, _inputs, output: keep(name, label, False, output)

    handles = []
    for name, module in network.named_modules():
        label = type(module).__name__
        if name:
            handles.append(module.register_forward_pre_hook(entering(name, label), with_kwargs=True))
        handles.append(module.register_forward_hook(leaving(name or OUTPUT, label)))
    try:
        outputs_of(network, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen
