"""A row per layer: which one breaks the symmetry, on which backend, and why."""

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from .. import kernels
from ..kernels import Backend
from .measure import TOLERANCE, Group, Kind, group_of, kinds_of, random_element
from .trace import OUTPUT, Flip, flip_points, perturb, trace

Layout = Literal["bn3", "b3n"]


@dataclass(frozen=True)
class LayerResult:
    """One tensor that came out of a layer, or went into it.

    Args:
        layer: name of the layer in the module.
        type: name of its class.
        shape: of the tensor.
        behavior: the kind whose transformation fits it best: points, vectors, scalars, …
        error: its equivariance error.
        perturbed: the same after the input's points were moved by a thousandth, which resolves ties.
        is_input: whether the tensor went into the layer.
        order: position in the order of execution, inputs and outputs together.
        backend: that computed it; `"native"` if any native kernel ran inside the layer.
        difference: of native and eager outputs for the same input, relative; None where they were not compared.
    """

    layer: str
    type: str
    shape: tuple[int, ...]
    behavior: str
    error: float
    perturbed: float
    is_input: bool = False
    order: int = 0
    backend: Backend = "eager"
    difference: float | None = None

    def inside(self, other: "LayerResult") -> bool:
        """Whether this layer is a part of the other."""
        return self.layer != OUTPUT and (other.layer == OUTPUT or self.layer.startswith(other.layer + "."))

    def differs(self, tolerance: float) -> bool:
        """Whether the native backend disagrees with the eager one; NaN does."""
        return self.difference is not None and not self.difference <= tolerance


@dataclass(frozen=True)
class Report:
    """What `report` found: a row per layer, and the verdict.

    Args:
        rows: one per output of a layer, in the order of execution, on the eager backend.
        group: the symmetry.
        tolerance: largest error allowed.
        inputs: one per input of a layer.
        native: the same on the native backend (or Triton), None if no native kernel ran. A fused kernel computes a
            whole block, so its parts have no rows there.
    """

    rows: tuple[LayerResult, ...]
    group: Group
    tolerance: float
    inputs: tuple[LayerResult, ...] = ()
    native: "Report | None" = None

    @property
    def culprit(self) -> LayerResult | None:
        """The first row that breaks the symmetry, if the module does; those that break on every input come first.

        A layer inside another is ignored if the outer layer's output holds. The row of an input is the first where all
        rows before it hold: then a function between layers is at fault. The native backend counts only where the
        eager one holds, first a layer that disagrees with its eager output.
        """
        if self.native is None:
            return self._first_break()
        different = (row for row in self.native.rows if row.differs(self.tolerance))
        return self._first_break() or next(different, None) or self.native._first_break()

    def _first_break(self) -> LayerResult | None:
        bad = {row.layer for row in self.rows if not row.error <= self.tolerance}
        good = [row for row in self.rows if row.layer not in bad]  # of several outputs, all
        broken = [
            row
            for row in sorted((*self.rows, *self.inputs), key=lambda row: row.order)
            if not row.error <= self.tolerance
            and not (row.is_input and row.layer not in bad)  # whatever went in, what came out is right
            and not any(row.inside(outer) for outer in good)
        ]
        return next((row for row in broken if not row.perturbed <= self.tolerance), broken[0] if broken else None)

    @property
    def cause(self) -> Literal["none", "ties", "architecture", "kernel", "rounding"]:
        """Why it breaks: ties depend on this input (a grid, duplicated points), the architecture on none.

        It is a kernel if native and eager outputs of a layer differ, and rounding if they agree but only the native
        ones break.
        """
        row = self.culprit
        if row is None:
            return "none"
        if row.differs(self.tolerance):
            return "kernel"
        if row.perturbed <= self.tolerance:
            return "ties"
        if self._first_break():
            return "architecture"
        return "kernel" if row.is_input else "rounding"  # what computes an input has no row of its own to compare

    @property
    def verdict(self) -> str:
        """One line for people."""
        row = self.culprit
        if row is None:
            return self._holds()
        where = f"{'the input of ' if row.is_input else ''}{row.layer} ({row.type}), error {row.error:.1e}"
        if self.cause == "kernel":
            differ = "" if row.difference is None else f", difference to eager {row.difference:.1e}"
            return (
                f"{self.group} holds on the eager backend, but not on the {self._native_name} one, first at {where}"
                f"{differ}: set VN_KERNELS=eager, and report this"
            )
        if self.cause == "rounding":
            return (
                f"{self.group} holds on the eager backend and breaks on the {self._native_name} one, first at {where}, "
                "where both give the same but for rounding: check in float64"
            )
        if self.cause == "ties":
            return (
                f"{self.group} breaks on this input, by ties, first at {where}: with its points moved by a thousandth "
                f"the error is {row.perturbed:.1e}. Of equally good neighbors or maxima, rounding chooses."
            )
        parts = [part.layer for part in self.rows if part.inside(row)]
        if row.is_input:
            why = f"the input of {row.layer} is already not equivariant; look at the code before it."
        elif parts:
            why = f"all layers in it hold; look at its own code after the last of them, {parts[-1]}."
        else:
            why = "this layer is not equivariant."
        return f"{self.group} breaks first at {where}: {why}"

    @property
    def _native_name(self) -> str:
        return self.native.rows[-1].backend if self.native else ""

    def _holds(self) -> str:
        passes = [self, *([self.native] if self.native else [])]
        worst = " and ".join(
            f"{max(row.error for row in found.rows if row.layer == OUTPUT):.1e} ({found.rows[-1].backend})"
            for found in passes
        )
        inner = max((row for found in passes for row in found.rows), key=lambda row: row.error)
        note = f"; inside it {inner.layer} has {inner.error:.1e}: check in float64 whether that is rounding"
        note = "" if inner.error <= self.tolerance else note
        return f"{self.group}-equivariant: error {worst}, allowed {self.tolerance:.0e}{note}"

    def __str__(self) -> str:
        culprit = self.culprit
        shown = sorted((*self.rows, *(row for row in self.inputs if row is culprit)), key=lambda row: row.order)
        native = dict(_numbered(self.native.rows)) if self.native else {}
        head = ["layer", "type", "shape", "behaves as", "eager"]
        if self.native:
            head += [self._native_name, "difference"]
        body, marks = [], []
        for key, row in _numbered(shown):
            other = native.get(key)
            name = f"input of {row.layer}" if row.is_input else row.layer
            cells = [name, row.type, str(row.shape), row.behavior, f"{row.error:.1e}"]
            if self.native:  # a dash where the layer is part of a fused kernel, or has no native one
                ran = other is not None and other.backend != "eager"
                numbers = (other.error, other.difference) if other and ran else (None, None)
                cells += ["-" if x is None else f"{x:.1e}" for x in numbers]
            body.append(cells)
            marked = culprit is not None and (row is culprit or other is culprit)
            marks.append("  <-- breaks" if marked else "")
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (head, *body)
        ]
        return "\n".join([*(line + mark for line, mark in zip(lines, ["", *marks], strict=True)), "", self.verdict])


def _numbered(rows: Sequence[LayerResult]) -> Iterator[tuple[tuple[str, bool, int], LayerResult]]:
    """Rows with keys that are the same on every backend: a layer may be called several times."""
    count: Counter[tuple[str, bool]] = Counter()
    for row in rows:
        key = (row.layer, row.is_input)
        yield (*key, count[key]), row
        count[key] += 1


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
    """Compare what goes into and comes out of every layer for an input and its transform: which layer breaks?

    A tensor is taken for whichever kind fits it best; the module's own output, in the last row, for what `gives` says,
    if given. The same is done with the input's points moved by a thousandth: an error that goes away came from ties
    between neighbors (or maxima), not from the architecture. All of it runs on the eager backend and, where native
    kernels apply, on the native one, whose layers are also compared with the eager ones on the same input.

    Args:
        module: any module.
        x: its input, or a tuple of inputs.
        takes: the kind of its inputs.
        gives: the kind of its outputs; by default whatever fits best.
        group: `"SO3"`, `"O3"`, `"SE3"`, `"scale"` or `"permutation"`.
        layout: `"b3n"` if points that the module takes or gives are `(B, 3, N)`.
        tolerance: largest relative error allowed; by default what rounding allows.
        seed: of the transform.

    >>> found = vn.testing.report(vn.Block(4, 8), torch.randn(2, 10, 3, 4), "vectors", "vectors")
    >>> found.cause
    'none'
    """
    inputs = x if isinstance(x, tuple) else (x,)
    takes = kinds_of(takes, len(inputs), "takes")
    symmetry = group_of(group)
    flip: Flip = partial(flip_points, on=layout == "b3n")
    inputs = tuple(map(flip, inputs, takes))
    generator = torch.Generator().manual_seed(seed)
    g = random_element(symmetry, inputs[0], takes[0], generator)
    perturbed = (perturb(inputs[0], generator), *inputs[1:])
    bound = TOLERANCE[inputs[0].dtype] if tolerance is None else tolerance

    def run(eager: bool) -> Report:
        with kernels.using("eager") if eager else nullcontext():
            network = copy.deepcopy(module)
            on_input, on_perturbed = (trace(network, i, takes, gives, g, flip) for i in (inputs, perturbed))
        rows = [
            LayerResult(
                layer=seen.layer,
                type=seen.type,
                shape=tuple(seen.x.shape),
                behavior=behavior,
                error=error,
                perturbed=after,
                is_input=seen.is_input,
                order=order,
                backend=seen.backend,
                difference=seen.difference,
            )
            for order, ((seen, behavior, error), (_, _, after)) in enumerate(zip(on_input, on_perturbed, strict=True))
        ]
        outputs, entering = ([row for row in rows if row.is_input == kind] for kind in (False, True))
        return Report(tuple(outputs), symmetry, bound, tuple(entering))

    eager = run(eager=True)
    if kernels.chosen() == "eager":
        return eager
    native = run(eager=False)
    if all(row.backend == "eager" for row in native.rows):
        return eager
    return Report(eager.rows, symmetry, bound, eager.inputs, native)
