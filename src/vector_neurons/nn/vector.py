"""The kit of vector neurons, for features `(..., 3, C)` of any rank. Same names and arguments as `nn.scalar`.

Unless a layer says otherwise it is equivariant to O(D) in every dimension D, to permutations of the elements, and
(without batch norm, whose statistics have a scale) to scaling.
"""

from ..geometry.sampling import center
from .activation import Activation, LeakyReLU
from .attention import Attention
from .block import MLP, Block
from .edge_conv import EdgeConv
from .invariant import Invariant
from .linear import AffineLinear, Dropout, Linear, lift, width
from .norm import NORMS, BatchNorm, InstanceNorm, LayerNorm
from .pool import POOLS, MaxPool, MeanPool
from .pool import block_pool as block_pool
from .residual import ResidualBlock

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
