"""Is it equivariant? A number (`equivariance_error`), a judgement (`assert_equivariant`), a battery for your own tests
(`EquivarianceTests`) and a table that names the layer at fault (`report`).

Inputs and outputs are declared by what they are: `"points"` `(B, N, 3)`, `"vectors"` `(..., 3, C)`, `"frames"`
`(..., 3, 3)` or `"scalars"`. The first axis is the batch, the second, where there is one, the points.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from .geometry import rotations

Kind = Literal["points", "vectors", "frames", "scalars"]
Group = Literal["SO3", "O3", "SE3", "scale", "permutation"]
Network = Callable[..., Any]

KINDS: tuple[Kind, ...] = ("points", "vectors", "frames", "scalars")
OUTPUT = "(output)"
GROUPS: tuple[Group, ...] = ("SO3", "O3", "SE3", "scale", "permutation")
# Error, relative to the output, up to which rounding alone may be the cause.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Element:
    """One element of a group, acting in float64 so that the test itself adds no rounding of its own."""

    linear: Tensor | None = None
    shift: Tensor | None = None
    scale: float = 1.0
    order: Tensor | None = None

    def act(self, x: Any, kind: Kind, degree: float | None = None) -> Any:
        """Transform one input or output; what is not a floating-point tensor passes unchanged."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        y = x.double()
        if self.linear is not None and kind != "scalars":
            y = y @ self.linear.mT if kind == "points" else self.linear @ y
        if self.shift is not None and kind == "points":
            y = y + self.shift
        if degree is None:
            degree = 0.0 if kind == "scalars" else 1.0
        y = y * self.scale**degree
        # Scalars and points of a whole sample have rank 2, vectors and frames rank 3: nothing there to permute.
        if self.order is not None and x.ndim > (3 if kind in ("vectors", "frames") else 2):
            y = y.index_select(1, self.order)
        return y.to(x.dtype)


def draw(group: Group, x: Tensor, kind: Kind, generator: torch.Generator) -> Element:
    """Draw an element of the group that can act on `x`."""
    if group not in GROUPS:
        raise ValueError(f"unknown group {group!r}: choose one of {', '.join(GROUPS)}")
    if group == "scale":
        return Element(scale=10 ** float(4 * torch.rand((), generator=generator, dtype=torch.float64) - 2))
    if group == "permutation":
        if x.ndim < 3:
            raise ValueError(f"a permutation needs points on the second axis, got {tuple(x.shape)}")
        return Element(order=torch.randperm(x.shape[1], generator=generator).to(x.device))
    if kind == "scalars":
        raise ValueError(f"{group} acts on points, vectors or frames; the first input is declared as scalars")
    dim = x.shape[-1 if kind == "points" else -2]
    linear = rotations.draw("SO3", 1, dim, generator=generator, dtype=torch.float64)[0].to(x.device)
    if group == "O3":
        linear[:, 0] *= -1  # det = -1: a reflection for certain, the rotations being SO3's business
    if group == "SE3":
        size = float(x.abs().max())
        shift = size * torch.randn(dim, generator=generator, dtype=torch.float64)
        return Element(linear, shift.to(x.device))
    return Element(linear)


def equivariance_error(
    module: Network,
    x: Any,
    takes: Kind | Sequence[Kind] = "vectors",
    gives: Kind | Sequence[Kind] = "vectors",
    group: Group = "SO3",
    *,
    times: int = 3,
    seed: int = 0,
    degree: float | None = None,
) -> float:
    """Largest `‖f(g x) - g f(x)‖ / ‖f(x)‖` over `times` random elements g of the group; 0 is perfect, 1 is hopeless.

    `x` is the input or a tuple of inputs, `takes` and `gives` say what inputs and outputs are (one word for all, or one
    each). Group `"scale"` expects vectors and points to scale along and scalars to stay, unless `degree` says with
    which power of the scale the output grows. The module is left as it was, running statistics included; random
    layers draw the same numbers on both sides.

    >>> import vector_neurons as vn
    >>> equivariance_error(vn.Linear(4, 8), torch.randn(2, 10, 3, 4)) < 1e-6
    True
    """
    inputs = x if isinstance(x, tuple) else (x,)
    takes = _kinds(takes, len(inputs), "takes")
    generator = torch.Generator().manual_seed(seed)
    network = copy.deepcopy(module) if isinstance(module, nn.Module) else module
    worst = 0.0
    for _ in range(times):
        g = draw(group, inputs[0], takes[0], generator)
        before = _run(network, inputs)
        after = _run(network, tuple(g.act(i, kind) for i, kind in zip(inputs, takes, strict=True)))
        for a, b, kind in zip(before, after, _kinds(gives, len(before), "gives"), strict=True):
            worst = max(worst, relative_error(b, g.act(a, kind, degree)))
    return worst


def assert_equivariant(
    module: Network,
    x: Any,
    takes: Kind | Sequence[Kind] = "vectors",
    gives: Kind | Sequence[Kind] = "vectors",
    group: Group = "SO3",
    *,
    tolerance: float | None = None,
    **options: Any,
) -> None:
    """Raise `AssertionError` unless the equivariance error is within `tolerance` (by default what rounding allows)."""
    dtype = (x[0] if isinstance(x, tuple) else x).dtype
    bound = TOLERANCE[dtype] if tolerance is None else tolerance
    error = equivariance_error(module, x, takes, gives, group, **options)
    name = type(module).__name__ if isinstance(module, nn.Module) else getattr(module, "__name__", repr(module))
    # Written so that an error of NaN fails.
    if not error <= bound:
        raise AssertionError(f"{name} is not {group}-equivariant: relative error {error:.1e}, allowed {bound:.1e}")


def assert_invariant(module: Network, x: Any, takes: Kind | Sequence[Kind] = "points", **options: Any) -> None:
    """Raise `AssertionError` unless the output stays the same when the input is transformed."""
    assert_equivariant(module, x, takes, "scalars", **options)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """`‖found - expected‖ / ‖expected‖` in float64; NaN anywhere is an infinite error."""
    found, expected = found.detach().double(), expected.detach().double()
    if found.shape != expected.shape:
        raise ValueError(f"the output changed its shape under the transform: {tuple(expected.shape)} → {tuple(found.shape)}")
    difference, size = float((found - expected).norm()), float(expected.norm())
    if not (difference < torch.inf and size < torch.inf):
        return torch.inf
    return difference / size if size > 0 else (0.0 if difference == 0 else torch.inf)


class EquivarianceTests:
    """A battery to inherit: give `module()` and `example()`, and pytest runs the rest.

    ```python
    class TestMine(vn.testing.EquivarianceTests):
        takes, gives = "points", "scalars"
        groups = ("SO3", "permutation")

        def module(self): return Mine()
        def example(self): return torch.randn(2, 64, 3)
    ```
    """

    takes: ClassVar[Kind | Sequence[Kind]] = "vectors"
    gives: ClassVar[Kind | Sequence[Kind]] = "vectors"
    groups: ClassVar[Sequence[Group]] = ("SO3", "permutation")
    tolerance: ClassVar[float | None] = None

    def module(self) -> nn.Module:
        """Build the module under test."""
        raise TypeError(f"{type(self).__name__} must define module()")

    def example(self) -> Any:
        """Build an input, or a tuple of inputs, in float32."""
        raise TypeError(f"{type(self).__name__} must define example()")

    def test_groups(self) -> None:
        """Every group of `groups`, in evaluation and in training mode."""
        for training in (False, True):
            for group in self.groups:
                module = self.module().train(training)
                options = {"group": group, "tolerance": self.tolerance}
                assert_equivariant(module, self.example(), self.takes, self.gives, **options)

    def test_float64(self) -> None:
        """The error shrinks with the precision: what is left in float32 was rounding."""
        example = self.example()
        inputs = tuple(_to_double(x) for x in (example if isinstance(example, tuple) else (example,)))
        for group in self.groups:
            assert_equivariant(self.module().double().eval(), inputs, self.takes, self.gives, group=group)

    def test_samples_are_independent(self) -> None:
        """In evaluation mode a sample's output does not depend on its neighbours in the batch."""
        module, example = self.module().eval(), self.example()
        inputs = example if isinstance(example, tuple) else (example,)
        together = _run(module, inputs)
        alone = _run(module, tuple(x[:1] if isinstance(x, Tensor) else x for x in inputs))
        for all_samples, first in zip(together, alone, strict=True):
            bound = TOLERANCE[first.dtype] if self.tolerance is None else self.tolerance
            assert relative_error(first, all_samples[:1]) <= bound, "a sample's output depends on the others"

    def test_gradients_are_finite(self) -> None:
        """Every parameter gets a gradient, and none is NaN or infinite."""
        module, example = self.module().train(), self.example()
        outputs = module(*(example if isinstance(example, tuple) else (example,)))
        sum(y.float().square().sum() for y in _tensors(outputs)).backward()  # type: ignore[union-attr]
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, f"{name} gets no gradient"
            assert parameter.grad.isfinite().all(), f"{name} has a gradient that is not finite"


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
        return other.layer == OUTPUT or self.layer.startswith(other.layer + ".")


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
        holds = [row for row in self.rows if row.error <= self.tolerance]
        broken = [row for row in self.rows if row not in holds and not any(row.inside(good) for good in holds)]
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
            return f"{self.group}-equivariant: error {self.rows[-1].error:.1e}, allowed {self.tolerance:.0e}"
        row = self.culprit
        place = f"{row.layer} ({row.type}), error {row.error:.1e}"
        if self.cause == "ties":
            return (
                f"{self.group} breaks on this input first at {place}, by ties: with its points moved by a thousandth the "
                f"error is {row.shaken:.1e}. Neighbours or maxima that are equally good are chosen by rounding."
            )
        return f"{self.group} breaks first at {place}: this layer is not equivariant."

    def __str__(self) -> str:
        head = ("layer", "type", "shape", "behaves as", "error")
        body = [(r.layer, r.type, str(r.shape), r.behaviour, f"{r.error:.1e}") for r in self.rows]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (head, *body)]
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
    takes = _kinds(takes, len(inputs), "takes")
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


Layer = tuple[str, str, tuple[int, ...]]


def _trace(
    network: nn.Module, inputs: tuple[Any, ...], takes: Sequence[Kind], gives: Kind | Sequence[Kind] | None, g: Element
) -> list[tuple[Layer, str, float]]:
    before = _record(network, inputs)
    after = _record(network, tuple(g.act(i, kind) for i, kind in zip(inputs, takes, strict=True)))
    own = sum(layer[0] == OUTPUT for layer, _ in before)
    declared = [None] * own if gives is None else _kinds(gives, own, "gives")
    rows = []
    for (layer, a), (_, b), only in zip(before, after, [*[None] * (len(before) - own), *declared], strict=True):
        fits = [(relative_error(b, g.act(a, *how)), name) for name, how in _behaviours(a, g, only)]
        error, name = min(fits)
        rows.append((layer, name, error))
    return rows


def _behaviours(x: Tensor, g: Element, only: Kind | None) -> list[tuple[str, tuple[Kind, float | None]]]:
    """What an output may be, as far as its shape tells: its name, and how `g` acts on it."""
    if g.scale != 1:
        return [(f"scale^{degree}", (only or "scalars", float(degree))) for degree in (0, 1, 2)]
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
            seen.extend(((name, label, tuple(y.shape)), y) for y in _tensors(output) if y.is_floating_point())

        return keep

    named = [(name or OUTPUT, module) for name, module in network.named_modules()]
    handles = [module.register_forward_hook(hook(name, type(module).__name__)) for name, module in named]
    try:
        _run(network, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _run(network: Network, inputs: tuple[Any, ...]) -> list[Tensor]:
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)  # dropout drops the same neurons on both sides
        return list(_tensors(network(*inputs)))


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)


def _kinds(kinds: Kind | Sequence[Kind], count: int, argument: str) -> Sequence[Kind]:
    listed: Sequence[Kind] = [kinds] * count if isinstance(kinds, str) else kinds
    unknown = [kind for kind in listed if kind not in KINDS]
    if unknown or len(listed) != count:
        wrong = f"unknown {unknown[0]!r}" if unknown else f"{len(listed)} kinds for {count} tensors"
        raise ValueError(f"{argument}: {wrong}; name one of {', '.join(KINDS)} for all, or one for each")
    return listed


def _to_double(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
