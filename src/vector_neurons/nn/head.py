"""The scalar end of a network: from invariants to logits."""

from collections.abc import Sequence
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from ..typing import Mask, Norm
from . import scalar
from ._factored import ConcatGlobal


class Head(nn.Module):
    """Linear → norm → leaky ReLU → dropout for each hidden width, then a linear map to the logits, at any rank.

    `dropout` is one rate for each hidden width, `bias` one answer for each linear map, the last included.
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        dropout: Sequence[float],
        bias: Sequence[bool],
        negative_slope: float = 0.2,
        norm: Norm = "batch",
    ) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        if len(dropout) != len(pairs) - 1 or len(bias) != len(pairs):
            raise ValueError(
                f"{len(pairs)} linear maps need as many biases and one dropout less, got {bias}, {dropout}"
            )
        *hidden, (last, out) = pairs
        self.blocks = nn.ModuleList(
            scalar.Block(a, b, negative_slope=negative_slope, norm=norm, bias=own)
            for (a, b), own in zip(hidden, bias, strict=False)
        )
        self.dropouts = nn.ModuleList(map(nn.Dropout, dropout))
        self.logits = nn.Linear(last, out, bias=bias[-1])

    def forward(
        self, x: Float[Tensor, "... channels"] | ConcatGlobal, mask: Mask | None = None
    ) -> Float[Tensor, "... logits"]:
        return self.logits(self.hidden(x, mask))

    def hidden(
        self, x: Float[Tensor, "... channels"] | ConcatGlobal, mask: Mask | None = None
    ) -> Float[Tensor, "... features"]:
        """Features of the last hidden layer."""
        for block, dropout in zip(self.blocks, self.dropouts, strict=True):
            x = dropout(block(x, mask))
        assert isinstance(x, Tensor)  # a block made one of what is concatenated
        return x
