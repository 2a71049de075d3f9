"""Linear → norm → non-linearity on scalar features, and stacks of it."""

from typing import ClassVar

from torch import Tensor, nn

from ..typing import ActivationFunction, DirectionSource, Mask, Neighbors, NewScalars, Norm, Scalars
from . import _dispatch_scalar
from ._checks import check_scalars, hooked
from ._factored import ConcatGlobal, EdgeInput
from .activation import scalar_function
from .block import MLPBase
from .residual import ResidualBlockBase
from .scalar_activation import Activation, LeakyReLU
from .scalar_linear import Linear
from .scalar_norm import NORMS, fusable_norm


class Block(nn.Module):
    """Linear → norm → non-linearity.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C_out)`

    Not equivariant.

    >>> vn.nn.scalar.Block(6, 8)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        norm: Norm = "batch",
        direction: DirectionSource = "input",
        negative_slope: float = 0.2,
        activation: ActivationFunction | None = None,
        shared_direction: bool = False,
        eps: float | None = None,
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"unknown norm {norm!r}: choose one of {', '.join(NORMS)}")
        if direction not in ("input", "output"):
            raise ValueError(f'unknown direction {direction!r}: choose "input" or "output"')
        # A norm removes a bias, or brings its own: by default there is one only without norm.
        self.linear = Linear(in_channels, out_channels, bias=norm == "none" if bias is None else bias)
        self.norm = NORMS[norm](out_channels)
        self.activation = nn.LeakyReLU(negative_slope) if activation is None else scalar_function(activation)

    def forward(self, x: Scalars | EdgeInput | ConcatGlobal, mask: Mask | None = None) -> NewScalars:
        return self._apply_all(x, mask, with_max=False)[0]

    def with_max(self, x: Scalars, mask: Mask | None = None) -> tuple[NewScalars, NewScalars]:
        """The block, and its maximum over the axis before the channels."""
        return self._apply_all(x, mask, with_max=True)

    def activate(self, x: NewScalars, mask: Mask | None = None) -> NewScalars:
        """Norm and non-linearity, of scalars that are mapped already."""
        return self._activate(x, mask, with_max=False)[0]

    def constant_norm(self, x: Tensor, mask: Mask | None) -> Tensor | None:
        """The norm for kernels that apply it and the leaky ReLU to a linear map of x, if it is constant."""
        bn = self._fusable_norm(x, mask)
        return None if bn is None or not self._plain_linear() else _dispatch_scalar.constant_norm(bn, self.linear.bias)

    def edge_max(self, x: Scalars, neighbors: Neighbors) -> NewScalars | None:
        """The block on the edges of a graph, and its maximum over the neighbors of each point, if a kernel can."""
        bn, linear = self._fusable_norm(x, None), self.linear
        if bn is None or not self._plain_linear() or linear.bias is not None or linear.weight.dtype != x.dtype:
            return None
        return _dispatch_scalar.edge_max(bn, x, linear.weight, neighbors, self.negative_slope)

    def point_max(self, x: Scalars) -> NewScalars | None:
        """The block, and its maximum over the points `(B, N, C)`, if a kernel can."""
        bn, linear = self._fusable_norm(x, None), self.linear
        if bn is None or not self._plain_linear() or linear.weight.dtype != x.dtype:
            return None
        check_scalars(self, x, linear.in_channels)
        return _dispatch_scalar.block_max(bn, x, linear.weight, linear.bias, self.negative_slope)

    def _apply_all(
        self, x: Scalars | EdgeInput | ConcatGlobal, mask: Mask | None, *, with_max: bool
    ) -> tuple[Tensor, Tensor]:
        if (
            isinstance(x, Tensor)
            and _dispatch_scalar.many_rows(x)
            and (norm := self.constant_norm(x, mask)) is not None
        ):
            check_scalars(self, x, self.linear.in_channels)
            return _dispatch_scalar.scalar_block(x, self.linear.weight, norm, self.negative_slope, with_max=with_max)
        if isinstance(x, Tensor) and self._plain_linear() and (bn := self._fusable_norm(x, mask)) is not None:
            check_scalars(self, x, self.linear.in_channels)
            mapped, bias = _dispatch_scalar.scalar_linear(x, self.linear.weight, None), self.linear.bias
            return _dispatch_scalar.scalar_norm(bn, mapped, self.negative_slope, with_max=with_max, bias=bias)
        return self._activate(self.linear(x), mask, with_max=with_max)

    def _plain_linear(self) -> bool:
        """Whether kernels can take the linear map's parameters instead of calling it."""
        return type(self.linear) is Linear and self.linear.num_elements is None and not hooked(self.linear)

    def _activate(self, x: Tensor, mask: Mask | None, *, with_max: bool) -> tuple[Tensor, Tensor]:
        bn = self._fusable_norm(x, mask)
        if bn is not None:
            return _dispatch_scalar.scalar_norm(bn, x, self.negative_slope, with_max=with_max)
        out = self.activation(self.norm(x, mask))
        return out, out.max(-2).values if with_max else out

    def _fusable_norm(self, x: Tensor, mask: Mask | None) -> nn.BatchNorm1d | None:
        """The batch norm, if a kernel can compute it together with the leaky ReLU."""
        norm, activation = self.norm, self.activation
        # The kernel does not call the norm and the activation: not if they were replaced or have hooks.
        if type(activation) is not nn.LeakyReLU or hooked(norm) or hooked(activation):
            return None
        return norm.bn if fusable_norm(norm, x, mask) else None

    @property
    def negative_slope(self) -> float:
        """Of the leaky ReLU."""
        return getattr(self.activation, "negative_slope", 0.0)


class MLP(MLPBase):
    """Blocks from width to width, and a plain linear map to the last.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C_out)`

    Not equivariant.

    >>> vn.nn.scalar.MLP([6, 16, 8])(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 8])
    """

    linear, block = Linear, Block


class ResidualBlock(ResidualBlockBase):
    """`S x + B a(norm(A a(norm(x))))`: adds two linear maps, each after a norm and a non-linearity.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C_out)`

    Not equivariant.

    >>> vn.nn.scalar.ResidualBlock(6, 8)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 8])
    """

    linear, leaky_relu, any_activation, norms = Linear, LeakyReLU, Activation, NORMS
    no_bias: ClassVar[dict[str, bool]] = {"bias": False}
