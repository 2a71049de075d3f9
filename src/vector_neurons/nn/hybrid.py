"""The kit of features of both kinds, scalars beside vectors: the names and arguments of `nn.vector`, on `Features`.

An invariant scalar stream learns faster than vectors alone; vectors carry the directions, and a learned frame turns
them into scalars wherever they are needed. The idea of VN-In, applied at every layer and every edge. Channels are
pairs, `Channels(scalars, vectors)`.
"""

from ..geometry.sampling import center
from .features import Channels, Features
from .frame import FixedFrame, Frame
from .frame_conv import FrameConv
from .hybrid_block import MLP, Block, HybridBlock, Linear, ResidualBlock, width
from .hybrid_edges import Attention, EdgeConv
from .hybrid_layers import (
    NORMS,
    POOLS,
    Activation,
    AffineLinear,
    BatchNorm,
    Dropout,
    InstanceNorm,
    Invariant,
    LayerNorm,
    LeakyReLU,
    MaxPool,
    MeanPool,
    lift,
)
from .hybrid_layers import block_pool as block_pool
from .propagation import FeaturePropagation

__all__ = [
    "MLP",
    "NORMS",
    "POOLS",
    "Activation",
    "AffineLinear",
    "Attention",
    "BatchNorm",
    "Block",
    "Channels",
    "Dropout",
    "EdgeConv",
    "FeaturePropagation",
    "Features",
    "FixedFrame",
    "Frame",
    "FrameConv",
    "HybridBlock",
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
