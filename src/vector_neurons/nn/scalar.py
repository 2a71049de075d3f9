"""The kit of scalar neurons, for features `(..., C)`: the names and arguments of `nn.vector`, none of it equivariant.

A network written over a kit becomes its classical twin with this one. Arguments that only apply to vectors
(`shared_direction`, `direction`, `orthonormal`, …) are accepted and ignored.
"""

from ..geometry.sampling import center
from .scalar_activation import Activation, LeakyReLU
from .scalar_block import MLP, Block, ResidualBlock
from .scalar_edges import Attention, EdgeConv
from .scalar_invariant import Invariant
from .scalar_linear import AffineLinear, Dropout, Linear, lift, width
from .scalar_norm import NORMS, BatchNorm, InstanceNorm, LayerNorm
from .scalar_pool import POOLS, MaxPool, MeanPool
from .scalar_pool import block_pool as block_pool

__all__ = [
    "MLP",
    "NORMS",
    "POOLS",
    "Activation",
    "AffineLinear",
    "Attention",
    "BatchNorm",
    "Block",
    "Dropout",
    "EdgeConv",
    "InstanceNorm",
    "Invariant",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool",
    "MeanPool",
    "ResidualBlock",
    "center",
    "lift",
    "width",
]
