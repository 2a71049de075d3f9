"""A row per layer: which one breaks the symmetry, on which backend, and why."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .. import kernels
from .measure import (
    TOLERANCE,
    Element,
    Group,
    Kind,
    check_axis,
    group_of,
    kinds_of,
    outputs_of,
    random_element,
    relative_error,
    tensors_in,
)

OUTPUT = "(output)"  # the module's own row, and the last
Layout = Literal["bn3", "b3n"]
Backend = Literal["eager", "native", "triton"]


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
        """The first row that breaks the symmetry, if the module does; those that break on any input come first.

        A layer inside another is not blamed if the outer layer's output holds. The row of an input is blamed where all
        rows before it hold: then a function between layers is at fault. The native backend is blamed only where the
        eager one holds, first for a layer that disagrees with its eager twin.
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
    def cause(self) -> Literal["none", "ties", "architecture", "kernel"]:
        """Why it breaks: ties depend on this input (a grid, duplicated points), the architecture and kernels do not."""
        row = self.culprit
        if row is None:
            return "none"
        if row.perturbed <= self.tolerance and not row.differs(self.tolerance):
            return "ties"
        return "architecture" if self._first_break() else "kernel"

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
        note = f"; inside it {inner.layer} has {inner.error:.1e}: is that rounding? float64 tells"
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
            blamed = culprit is not None and (row is culprit or other is culprit)
            marks.append("  <-- breaks" if blamed else "")
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
    flip: Flip = partial(_flip, on=layout == "b3n")
    inputs = tuple(map(flip, inputs, takes))
    generator = torch.Generator().manual_seed(seed)
    g = random_element(symmetry, inputs[0], takes[0], generator)
    perturbed = (_perturb(inputs[0], generator), *inputs[1:])
    bound = TOLERANCE[inputs[0].dtype] if tolerance is None else tolerance

    def run(eager: bool) -> Report:
        with kernels.using("eager") if eager else nullcontext():
            network = copy.deepcopy(module)
            on_input, on_perturbed = (_trace(network, i, takes, gives, g, flip) for i in (inputs, perturbed))
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


Flip = Callable[[Any, Kind], Any]


def _flip(x: Any, kind: Kind, *, on: bool) -> Any:
    """Points `(B, 3, N)` from points `(B, N, 3)`, and back."""
    return x.mT if on and kind == "points" else x


def _perturb(x: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
    return (x.double() + 1e-3 * x.double().std() * noise).to(x.dtype)


@dataclass(frozen=True)
class _Seen:
    """A tensor at the entry or the exit of a layer."""

    layer: str
    type: str
    is_input: bool
    x: Tensor
    backend: Backend = "eager"
    difference: float | None = None


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
        fits = _behaviors(a.x, g) if only is None else [_declared(a.x, g, only, flip)]
        errors = [relative_error(b.x, expected(a.x)) for _, expected in fits]
        best = errors.index(min(errors))
        rows.append((a, fits[best][0], errors[best]))
    return rows


Behavior = tuple[str, Callable[[Tensor], Tensor]]  # its name, and how it is transformed


def _declared(x: Tensor, g: Element, kind: Kind, flip: Flip) -> Behavior:
    if g.linear is not None:
        try:
            check_axis(flip(x, kind).shape, kind, len(g.linear))
        except ValueError as error:
            raise ValueError(f"the output {tuple(x.shape)} cannot be what was declared: {error}") from None
    name = f"scale^{0 if kind == 'scalars' else 1}" if g.scale != 1 else kind
    return name, lambda y: flip(g.act(flip(y, kind), kind), kind)


def _behaviors(x: Tensor, g: Element) -> list[Behavior]:
    """What a tensor may be, as far as its shape tells."""
    if g.scale != 1:
        return [(f"scale^{d}", partial(g.act, kind="scalars", degree=float(d))) for d in (0, 1, 2)]
    if g.order is not None:
        axes = [axis for axis in range(1, x.ndim) if x.shape[axis] == len(g.order)]
        return [
            ("unchanged", lambda y: y),
            *((_name("permuted", axis, 1), partial(torch.index_select, dim=axis, index=g.order)) for axis in axes),
        ]
    found: list[Behavior] = [("scalars", lambda y: y)]
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


class _NativeCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls of native operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if namespace == "vector_neurons":
            # vector_neurons::knn chooses its backend itself.
            self.count += kernels.applicable(args[0]) if name == "knn" else 1
        return func(*args, **(kwargs or {}))


@dataclass
class _Recorder:
    """Records what goes into and comes out of all submodules, by hooks that leave fused kernels in place."""

    seen: list[_Seen] = field(default_factory=list)
    calls: _NativeCalls = field(default_factory=_NativeCalls)
    before: list[int] = field(default_factory=list)  # native calls at the entry of the layers that are running
    comparing: bool = False

    def attach(self, name: str, module: nn.Module) -> list[Any]:
        """Hook into a layer; hooks marked passive do not switch the layers that hold it to the eager backend."""
        label = type(module).__name__

        def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
            if not self.comparing:
                self.before.append(self.calls.count)
                self.keep(name, label, (args, kwargs), is_input=True)

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if not self.comparing:
                native = self.calls.count > self.before.pop()
                device = next(tensors_in(output), torch.empty(0)).device.type
                backend: Backend = "eager" if not native else "triton" if device == "cuda" else "native"
                difference = self.compare(module, args, kwargs, output) if native else None
                self.keep(name or OUTPUT, label, output, backend=backend, difference=difference)

        enter.passive = leave.passive = True  # type: ignore[attr-defined]
        hooks = [module.register_forward_hook(leave, with_kwargs=True)]
        return [*hooks, module.register_forward_pre_hook(enter, with_kwargs=True)]

    def keep(self, layer: str, label: str, values: Any, *, is_input: bool = False, **more: Any) -> None:
        """Record the tensors in a layer's inputs or outputs."""
        for x in tensors_in(values) if layer else ():
            if not is_input or x.is_floating_point():  # indices and masks do not rotate
                self.seen.append(_Seen(layer, label, is_input, x.detach().clone(), **more))  # it may work in place

    def compare(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> float | None:
        """Relative difference to the eager backend on the same input, for layers of this library."""
        if not type(module).__module__.startswith("vector_neurons.nn."):
            return None
        self.comparing = True
        with kernels.using("eager"):
            expected = copy.deepcopy(module).forward(*args, **kwargs)  # a copy: statistics are updated once
        self.comparing = False
        return max(map(relative_error, tensors_in(output), tensors_in(expected)), default=0.0)


def _record(network: nn.Module, inputs: tuple[Any, ...]) -> list[_Seen]:
    """What goes into and comes out of all submodules, in the order of execution, and last out of the module itself."""
    recorder = _Recorder()
    handles = [handle for name, module in network.named_modules() for handle in recorder.attach(name, module)]
    try:
        with recorder.calls:
            outputs_of(network, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return recorder.seen
