"""A row per layer: which one breaks the symmetry, and why."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .measure import TOLERANCE, Element, Group, Kind, draw, kinds_of, outputs_of, relative_error, tensors_in

OUTPUT = "(output)"  # the module's own row, and the last
Layer = tuple[str, str, tuple[int, ...]]  # name, class, shape of the output


@dataclass(frozen=True)
class Row:
    """One layer's output: what it behaves like, how wrong it is, and how wrong after ties are shaken off."""

    layer: str
    type: str
    shape: tuple[int, ...]
    behaviour: str
    error: float
    shaken: float

    def inside(self, other: "Row") -> bool:
        """Whether this layer is a part of the other."""
        return self.layer != OUTPUT and (other.layer == OUTPUT or self.layer.startswith(other.layer + "."))


@dataclass(frozen=True)
class Report:
    """A row per layer in the order of execution, and the verdict."""

    rows: tuple[Row, ...]
    group: Group
    tolerance: float

    @property
    def culprit(self) -> Row | None:
        """The first layer that breaks the symmetry, if the module does; layers that break on any input come first.

        What a layer does inside is its own affair as long as its output, and so that of all it is part of, holds.
        """
        bad = {row.layer for row in self.rows if not row.error <= self.tolerance}
        holds = [row for row in self.rows if row.layer not in bad]  # of several outputs, all
        broken = [
            row for row in self.rows if not row.error <= self.tolerance and not any(row.inside(good) for good in holds)
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
        if self.culprit is None:
            worst = max(row.error for row in self.rows if row.layer == OUTPUT)
            return f"{self.group}-equivariant: error {worst:.1e}, allowed {self.tolerance:.0e}"
        row = self.culprit
        place = f"{row.layer} ({row.type}), error {row.error:.1e}"
        if self.cause == "ties":
            return (
                f"{self.group} breaks on this input, by ties, first at {place}: with its points moved by a thousandth "
                f"the error is {row.shaken:.1e}. Of neighbours or maxima equally good, rounding chooses."
            )
        return f"{self.group} breaks first at {place}: this layer is not equivariant."

    def __str__(self) -> str:
        head = ("layer", "type", "shape", "behaves as", "error")
        body = [(r.layer, r.type, str(r.shape), r.behaviour, f"{r.error:.1e}") for r in self.rows]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (head, *body)
        ]
        marks = ["", *("  <-- breaks" if row is self.culprit else "" for row in self.rows)]
        return "\n".join([*(line + mark for line, mark in zip(lines, marks, strict=True)), "", self.verdict])


def report(
    module: nn.Module,
    x: Any,
    takes: Kind | Sequence[Kind] = "points",
    gives: Kind | Sequence[Kind] | None = None,
    group: Group = "SO3",
    *,
    tolerance: float | None = None,
    seed: int = 0,
) -> Report:
    """Follow one input and its transform through the module and compare every layer's outputs.

    A layer's output is taken for whichever kind fits it best; the module's own, last row for what `gives` says, if
    given. The same is done with the input's points moved by a thousandth: an error that goes away came from ties
    between neighbours (or maxima), not from the architecture.
    """
    inputs = x if isinstance(x, tuple) else (x,)
    takes = kinds_of(takes, len(inputs), "takes")
    generator = torch.Generator().manual_seed(seed)
    g = draw(group, inputs[0], takes[0], generator)
    network = copy.deepcopy(module)
    moved = (_shake(inputs[0], generator), *inputs[1:])
    bound = TOLERANCE[inputs[0].dtype] if tolerance is None else tolerance
    on_input, on_moved = (_trace(network, i, takes, gives, g) for i in (inputs, moved))
    rows = (
        Row(*layer, behaviour, error, shaken)
        for (layer, behaviour, error), (_, _, shaken) in zip(on_input, on_moved, strict=True)
    )
    return Report(tuple(rows), group, bound)


def _shake(x: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
    return (x.double() + 1e-3 * x.double().std() * noise).to(x.dtype)


def _trace(
    network: nn.Module, inputs: tuple[Any, ...], takes: Sequence[Kind], gives: Kind | Sequence[Kind] | None, g: Element
) -> list[tuple[Layer, str, float]]:
    before = _record(network, inputs)
    after = _record(network, tuple(g.act(i, kind) for i, kind in zip(inputs, takes, strict=True)))
    own = sum(layer[0] == OUTPUT for layer, _ in before)
    declared = [None] * own if gives is None else kinds_of(gives, own, "gives")
    rows = []
    for (layer, a), (_, b), only in zip(before, after, [*[None] * (len(before) - own), *declared], strict=True):
        fits = [(relative_error(b, g.act(a, *how)), name) for name, how in _behaviours(a, g, only)]
        error, name = min(fits)
        rows.append((layer, name, error))
    return rows


def _behaviours(x: Tensor, g: Element, only: Kind | None) -> list[tuple[str, tuple[Kind, float | None]]]:
    """What an output may be, as far as its shape tells: its name, and how `g` acts on it."""
    if g.scale != 1:
        degrees = (0, 1, 2) if only is None else (0,) if only == "scalars" else (1,)
        return [(f"scale^{degree}", (only or "scalars", float(degree))) for degree in degrees]
    kinds: list[Kind] = ["scalars"]
    if g.linear is not None:
        dim = g.linear.shape[-1]
        kinds += ["vectors"] if x.ndim >= 2 and x.shape[-2] == dim else []
        kinds += ["points"] if x.shape[-1] == dim else []
    elif x.ndim == 3:
        kinds += ["vectors"]  # (B, 3, C): one list of vectors for the sample, nothing to permute
    return [(kind, (kind, None)) for kind in ([only] if only else kinds)]


def _record(network: nn.Module, inputs: tuple[Any, ...]) -> list[tuple[Layer, Tensor]]:
    """Outputs of all submodules in the order they finish, and last of the module itself."""
    seen: list[tuple[Layer, Tensor]] = []

    def hook(name: str, label: str) -> Callable[..., None]:
        def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
            seen.extend(((name, label, tuple(y.shape)), y) for y in tensors_in(output))

        return keep

    named = [(name or OUTPUT, module) for name, module in network.named_modules()]
    handles = [module.register_forward_hook(hook(name, type(module).__name__)) for name, module in named]
    try:
        outputs_of(network, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen
