"""Tests to inherit for a module of one's own."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .measure import TOLERANCE, Group, Kind, assert_equivariant, group_of, outputs_of, relative_error, tensors_in


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
    groups: ClassVar[Sequence[Group | str]] = ("SO3", "permutation")
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
                for part in module.modules():
                    # Dropout is by position: a permutation of the points does not permute it.
                    if group_of(group) == "permutation" and "Dropout" in type(part).__name__:
                        part.eval()
                assert_equivariant(module, self._inputs(), self.takes, self.gives, group, tolerance=self.tolerance)

    def test_float64(self) -> None:
        """The error shrinks with the precision: what is left in float32 was rounding."""
        inputs = tuple(x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in self._inputs())
        for group in self.groups:
            assert_equivariant(self.module().double().eval(), inputs, self.takes, self.gives, group=group)

    def test_samples_are_independent(self) -> None:
        """In evaluation mode a sample's output does not depend on the rest of the batch."""
        module, inputs = self.module().eval(), self._inputs()
        together = outputs_of(module, inputs)
        alone = outputs_of(module, tuple(x[:1] if isinstance(x, Tensor) else x for x in inputs))
        for all_samples, first in zip(together, alone, strict=True):
            bound = TOLERANCE[first.dtype] if self.tolerance is None else self.tolerance
            assert relative_error(first, all_samples[:1]) <= bound, "a sample's output depends on the others"

    def test_gradients_are_finite(self) -> None:
        """No gradient of a parameter or an input is NaN or infinite."""
        module = self.module().train()
        inputs = [x.detach().clone() if isinstance(x, Tensor) else x for x in self._inputs()]
        leaves = [(f"input {i}", x) for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.is_floating_point()]
        for _, x in leaves:
            x.requires_grad_()
        torch.autograd.backward([y.square().sum() for y in tensors_in(module(*inputs)) if y.is_floating_point()])
        for name, leaf in [*leaves, *module.named_parameters()]:
            assert leaf.grad is None or leaf.grad.isfinite().all(), f"{name} has a gradient that is not finite"

    def _inputs(self) -> tuple[Any, ...]:
        example = self.example()
        return example if isinstance(example, tuple) else (example,)
