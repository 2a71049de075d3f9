"""Record what goes into and comes out of every layer, and compare it for an input and its transform."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .. import kernels
from ..kernels.ops import SCHEMAS
from .measure import Element, Kind, check_axis, kinds_of, outputs_of, relative_error, tensors_in

OUTPUT = "(output)"  # the name of the module itself, whose output comes last

Flip = Callable[[Any, Kind], Any]


def flip_points(x: Any, kind: Kind, *, on: bool) -> Any:
    """Points `(B, 3, N)` from points `(B, N, 3)`, and back."""
    return x.mT if on and kind == "points" else x


def perturb(x: Tensor, generator: torch.Generator) -> Tensor:
    """Move points by a thousandth of their spread."""
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
    return (x.double() + 1e-3 * x.double().std() * noise).to(x.dtype)


@dataclass(frozen=True)
class Traced:
    """A tensor at the entry or the exit of a layer."""

    layer: str
    type: str
    is_input: bool
    x: Tensor
    backend: kernels.Backend = "eager"
    difference: float | None = None


def trace(
    network: nn.Module,
    inputs: tuple[Any, ...],
    takes: Sequence[Kind],
    gives: Kind | Sequence[Kind] | None,
    g: Element,
    flip: Flip,
) -> list[tuple[Traced, str, float]]:
    """The tensors at every layer for an input: what each behaves like under the transform `g`, and its error."""
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
            # The operators of `geometry` are Python; of these, knn calls a native one where it can.
            self.count += name in SCHEMAS or (name == "knn" and kernels.applicable(args[0]))
        return func(*args, **(kwargs or {}))


@dataclass
class _Recorder:
    """Records what goes into and comes out of all submodules, by hooks that leave fused kernels in place."""

    seen: list[Traced] = field(default_factory=list)
    calls: _NativeCalls = field(default_factory=_NativeCalls)
    before: list[int] = field(default_factory=list)  # native calls at the entry of the layers that are running
    comparing: bool = False

    def attach(self, name: str, module: nn.Module) -> list[Any]:
        """Hook into a layer; hooks marked `_vn_passive` do not switch the layers that hold it to the eager backend."""
        label = type(module).__name__

        def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
            if not self.comparing:
                self.before.append(self.calls.count)
                self.keep(name, label, (args, kwargs), is_input=True)

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if not self.comparing:
                native = self.calls.count > self.before.pop()
                device = next(tensors_in(output), torch.empty(0)).device.type
                backend: kernels.Backend = "eager" if not native else "triton" if device == "cuda" else "native"
                difference = self.compare(module, args, kwargs, output) if native else None
                self.keep(name or OUTPUT, label, output, backend=backend, difference=difference)

        enter._vn_passive = leave._vn_passive = True  # type: ignore[attr-defined]
        hooks = [module.register_forward_hook(leave, with_kwargs=True)]
        return [*hooks, module.register_forward_pre_hook(enter, with_kwargs=True)]

    def keep(self, layer: str, label: str, values: Any, *, is_input: bool = False, **more: Any) -> None:
        """Record the tensors in a layer's inputs or outputs."""
        for x in tensors_in(values) if layer else ():
            if not is_input or x.is_floating_point():  # indices and masks do not rotate
                self.seen.append(Traced(layer, label, is_input, x.detach().clone(), **more))  # it may work in place

    def compare(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> float | None:
        """Relative difference to the eager backend on the same input, for layers of this library."""
        if not type(module).__module__.startswith("vector_neurons.nn."):
            return None
        self.comparing = True
        try:
            with kernels.using("eager"):
                expected = copy.deepcopy(module).forward(*args, **kwargs)  # a copy: statistics are updated once
        finally:
            self.comparing = False
        return max(map(relative_error, tensors_in(output), tensors_in(expected)), default=0.0)


def _record(network: nn.Module, inputs: tuple[Any, ...]) -> list[Traced]:
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
