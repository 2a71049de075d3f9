"""The equivariance error of a module under a group: measured, and asserted.

Inputs and outputs are declared by what they are: `"points"` `(B, N, 3)`, `"vectors"` `(..., 3, C)`, `"frames"`
`(..., 3, 3)` or `"scalars"`. The first axis is the batch, the second, where there is one, the points.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..geometry import rotations

Kind = Literal["points", "vectors", "frames", "scalars"]
Group = Literal["SO3", "O3", "SE3", "scale", "permutation"]
Function = Callable[..., Any]  # a module, or any function of tensors

KINDS: tuple[Kind, ...] = ("points", "vectors", "frames", "scalars")
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
        if self.linear is not None:
            check_axis(x.shape, kind, len(self.linear))
        y = x.double()
        if self.linear is not None and kind != "scalars":
            y = y @ self.linear.mT if kind == "points" else self.linear @ y
        if self.shift is not None and kind == "points":
            y = y + self.shift
        if degree is None:
            degree = 0.0 if kind == "scalars" else 1.0
        y = y * self.scale**degree
        # Scalars and points of a whole sample have rank 2, vectors and frames rank 3: nothing there to permute.
        several = x.ndim > (3 if kind in ("vectors", "frames") else 2)
        if self.order is not None and several and x.shape[1] == len(self.order):
            y = y.index_select(1, self.order)
        return y.to(x.dtype)


def check_axis(shape: Sequence[int], kind: Kind, dim: int = 3) -> None:
    """Refuse a shape whose vector axis, where this kind has it, is not of size `dim`.

    >>> vn.testing.check_axis((2, 10, 3, 4), "vectors")
    """
    place = -1 if kind == "points" else -2
    if kind != "scalars" and not (len(shape) >= -place and shape[place] == dim):
        which, axes = ("last", f"(B, N, {dim})") if place == -1 else ("last but one", f"(..., {dim}, C)")
        raise ValueError(f"{kind} are {axes}: the {which} axis must be {dim}, got {tuple(shape)}")


def random_element(group: Group | str, x: Tensor, kind: Kind, generator: torch.Generator) -> Element:
    """A random element of the group that can act on `x`."""
    group = group_of(group)
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
        linear[:, 0] *= -1  # det = -1: a reflection for certain; SO3 tests the rotations
    if group == "SE3":
        size = float(x.abs().max())
        shift = size * torch.randn(dim, generator=generator, dtype=torch.float64)
        return Element(linear, shift.to(x.device))
    return Element(linear)


def equivariance_error(
    module: Function,
    x: Any,
    takes: Kind | Sequence[Kind] = "vectors",
    gives: Kind | Sequence[Kind] = "vectors",
    group: Group | str = "SO3",
    *,
    trials: int = 3,
    seed: int = 0,
    degree: float | None = None,
) -> float:
    """Equivariance error of a module: the largest `‖f(g x) - g f(x)‖ / ‖f(x)‖` over random elements g of a group.

    The module is left as it was, running statistics included. Random layers use the same numbers on both sides.

    Args:
        module: a module, or any function of tensors.
        x: its input, or a tuple of inputs.
        takes: kind of the inputs, `"points"` `(B, N, 3)`, `"vectors"` `(..., 3, C)`, `"frames"` or `"scalars"`; one for
            all or one each.
        gives: kind of the outputs.
        group: `"SO3"`, `"O3"` (reflections), `"SE3"`, `"scale"` or `"permutation"`.
        trials: number of random elements.
        seed: of the random elements.
        degree: for `"scale"`, the power of the scale with which the output grows; by default 1 for vectors and points,
            0 for scalars.

    >>> vn.testing.equivariance_error(vn.Linear(4, 8), torch.randn(2, 10, 3, 4)) < 1e-6
    True
    """
    inputs = x if isinstance(x, tuple) else (x,)
    takes = kinds_of(takes, len(inputs), "takes")
    generator = torch.Generator().manual_seed(seed)
    network = copy.deepcopy(module) if isinstance(module, nn.Module) else module
    worst = 0.0
    for _ in range(trials):
        g = random_element(group, inputs[0], takes[0], generator)
        before = outputs_of(network, inputs)
        after = outputs_of(network, tuple(g.act(i, kind) for i, kind in zip(inputs, takes, strict=True)))
        for a, b, kind in zip(before, after, kinds_of(gives, len(before), "gives"), strict=True):
            worst = max(worst, relative_error(b, g.act(a, kind, degree)))
    return worst


def assert_equivariant(
    module: Function,
    x: Any,
    takes: Kind | Sequence[Kind] = "vectors",
    gives: Kind | Sequence[Kind] = "vectors",
    group: Group | str = "SO3",
    *,
    tolerance: float | None = None,
    **options: Any,
) -> None:
    """Raise `AssertionError` unless the equivariance error is at most `tolerance`, by default what rounding allows.

    Arguments as in `equivariance_error`.

    >>> vn.testing.assert_equivariant(vn.Linear(4, 8), torch.randn(2, 10, 3, 4))
    """
    dtype = (x[0] if isinstance(x, tuple) else x).dtype
    bound = TOLERANCE[dtype] if tolerance is None else tolerance
    error = equivariance_error(module, x, takes, gives, group, **options)
    name = type(module).__name__ if isinstance(module, nn.Module) else getattr(module, "__name__", repr(module))
    # Written so that an error of NaN fails.
    if not error <= bound:
        raise AssertionError(
            f"{name} is not {group_of(group)}-equivariant: relative error {error:.1e}, allowed {bound:.1e}; "
            "vn.testing.report tells which layer breaks it"
        )


def assert_invariant(module: Function, x: Any, takes: Kind | Sequence[Kind] = "points", **options: Any) -> None:
    """Raise `AssertionError` unless the output is unchanged when the input is transformed.

    Arguments as in `equivariance_error`.

    >>> vn.testing.assert_invariant(vn.models.DGCNN(10, k=4).eval(), torch.randn(2, 16, 3))
    """
    assert_equivariant(module, x, takes, "scalars", **options)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """`‖found - expected‖ / ‖expected‖` in float64; NaN anywhere is an infinite error.

    >>> vn.testing.relative_error(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0]))
    0.5
    """
    found, expected = found.detach().double(), expected.detach().double()
    if found.shape != expected.shape:
        raise ValueError(
            f"the output changed its shape under the transform: {tuple(expected.shape)} → {tuple(found.shape)}"
        )
    difference, size = float((found - expected).norm()), float(expected.norm())
    if not (difference < torch.inf and size < torch.inf):
        return torch.inf
    return difference / size if size > 0 else (0.0 if difference == 0 else torch.inf)


def outputs_of(network: Function, inputs: tuple[Any, ...]) -> list[Tensor]:
    """Run without gradients and list the tensors that come out."""
    devices = {x.device for x in inputs if isinstance(x, Tensor) and x.device.type != "cpu"}
    with torch.no_grad(), torch.random.fork_rng(list(devices)):
        torch.manual_seed(0)  # dropout drops the same neurons on both sides
        output = network(*inputs)
    found = list(tensors_in(output))
    if not found:
        raise ValueError(f"the module returned a {type(output).__name__}: return tensors, tuples or dicts of them")
    return found


def tensors_in(output: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples and dicts."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from tensors_in(value)


def group_of(name: str) -> Group:
    """The group of this name, in capitals or not.

    >>> vn.testing.group_of("so3")
    'SO3'
    """
    known: dict[str, Group] = {group.lower(): group for group in GROUPS}
    if name.lower() not in known:
        raise ValueError(f"unknown group {name!r}: choose one of {', '.join(GROUPS)}")
    return known[name.lower()]


def kinds_of(kinds: Kind | Sequence[Kind], count: int, argument: str) -> Sequence[Kind]:
    """One kind for each of `count` tensors."""
    listed: Sequence[Kind] = [kinds] * count if isinstance(kinds, str) else kinds
    unknown = [kind for kind in listed if kind not in KINDS]
    if unknown or len(listed) != count:
        wrong = f"unknown {unknown[0]!r}" if unknown else f"{len(listed)} kinds for {count} tensors"
        raise ValueError(f"{argument}: {wrong}; name one of {', '.join(KINDS)} for all, or one for each")
    return listed
