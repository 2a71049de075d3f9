"""Residual blocks: what a ResNet adds to its input."""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from ..typing import ActivationFunction, Mask, NewScalars, NewVectors, Norm, Scalars, Vectors
from ._factored import ConcatGlobal, ConcatMean
from .activation import Activation, LeakyReLU
from .linear import Linear
from .norm import NORMS


class ResidualBlockBase(nn.Module):
    """`S x + B a(norm(A a(norm(x))))`, of vector or scalar neurons."""

    linear: ClassVar[type[nn.Module]]
    leaky_relu: ClassVar[type[nn.Module]]
    any_activation: ClassVar[type[nn.Module]]
    norms: ClassVar[dict[Norm, Callable[[int], nn.Module]]]
    no_bias: ClassVar[dict[str, bool]] = {}  # arguments of a linear map without bias

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        hidden: int | None = None,
        *,
        norm: Norm = "batch",
        negative_slope: float = 0.2,
        activation: ActivationFunction | None = None,
        shared_direction: bool = False,
        eps: float | None = None,
    ) -> None:
        super().__init__()
        if norm not in self.norms:
            raise ValueError(f"unknown norm {norm!r}: choose one of {', '.join(self.norms)}")
        out_channels = in_channels if out_channels is None else out_channels
        hidden = min(in_channels, out_channels) if hidden is None else hidden
        if min(in_channels, out_channels, hidden) < 1:
            raise ValueError(f"a residual block needs channels, got {in_channels}, {out_channels} and {hidden} hidden")

        def make_norm(channels: int) -> nn.Module:
            made = self.norms[norm](channels)
            if norm in ("batch", "log-batch"):
                made.eps = eps  # type: ignore[assignment]
            return made

        def make_activation(channels: int) -> nn.Module:
            if activation is not None:
                return self.any_activation(channels, activation, shared_direction=shared_direction)
            options = {"negative_slope": negative_slope, "shared_direction": shared_direction, "eps": eps}
            return self.leaky_relu(channels, **options)

        self.norm_in, self.activation_in = make_norm(in_channels), make_activation(in_channels)
        # As in `Block`: a norm removes a bias.
        self.linear_in = self.linear(in_channels, hidden, **({} if norm == "none" else self.no_bias))
        self.norm_out, self.activation_out = make_norm(hidden), make_activation(hidden)
        self.linear_out = self.linear(hidden, out_channels)
        nn.init.zeros_(self.linear_out.get_parameter("weight"))
        same = in_channels == out_channels
        self.shortcut = nn.Identity() if same else self.linear(in_channels, out_channels, **self.no_bias)

    def forward(
        self, x: Vectors | Scalars | ConcatMean | ConcatGlobal, mask: Mask | None = None
    ) -> NewVectors | NewScalars:
        y = self.linear_in(self.activation_in(self.norm_in(x, mask)))
        result: Tensor = self.shortcut(x) + self.linear_out(self.activation_out(self.norm_out(y, mask)))
        return result


class ResidualBlock(ResidualBlockBase):
    """Residual block, `S V + B a(norm(A a(norm(V))))`: adds two linear maps, each after a norm and a non-linearity.

    The shortcut S is the identity if the widths agree, else a linear map. B starts at zero, so that a new block is its
    shortcut. Each non-linearity `a` has a direction computed from its own input, as in `LeakyReLU`. With
    `norm="none", negative_slope=0` this is the block of the paper's occupancy networks.

    Args:
        in_channels: vectors in.
        out_channels: vectors out, by default as many.
        hidden: vectors between the two linear maps, by default the fewer of in and out.
        norm: `"batch"`, `"log-batch"`, `"layer"`, `"instance"` or `"none"`.
        negative_slope: of the leaky ReLUs.
        activation: any scalar function in place of the leaky ReLUs, or its name, see `Activation`.
        shared_direction: learn one direction for all channels.
        eps: the authors' absolute eps (1e-6) in batch norms and leaky ReLUs, for outputs identical to theirs.

    Shape:
        - x: `(..., 3, in_channels)`; with a batch norm `(B, ..., 3, in_channels)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(..., 3, out_channels)`

    Equivariant to O(D) and permutations; to scaling with `norm="none"` and leaky ReLUs.

    >>> vn.ResidualBlock(4, 8)(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 8])
    """

    linear, leaky_relu, any_activation, norms = Linear, LeakyReLU, Activation, NORMS
