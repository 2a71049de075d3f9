"""The table of layers: every configuration the library offers, and what `docs/layers.md` claims of it.

Tests that hold for every layer are parametrized over `LAYERS`:

    @pytest.mark.parametrize("layer", LAYERS, ids=str)
    def test_something(layer):
        x = layer.example()
        y = layer.module_for(x)(x)

Modules built here have random norm weights and running statistics: as constructed, a batch norm in evaluation mode is
the identity and would prove nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import vector_neurons as vn
from vector_neurons.nn import functional, hybrid
from vector_neurons.nn.hybrid import FeaturePropagation, Features

CHANNELS = 4
# Batch, points, neighbors, by rank. From two or three elements a batch norm learns next to nothing but rounding.
SIZES = {3: (32,), 4: (2, 16), 5: (2, 8, 6)}
K = 4  # neighbors in the graphs of `EdgeConv`


@dataclass(frozen=True)
class Layer:
    """One configuration of one layer, the inputs it takes and the symmetries it claims."""

    name: str
    make: Callable[[int, int], nn.Module]  # channels, elements (size of the axis before the vectors) -> module
    gives: Literal["vectors", "scalars"] = "vectors"
    ranks: tuple[int, ...] = (3, 4, 5)  # of (B, 3, C), (B, N, 3, C), (B, N, K, 3, C); all layers take 4
    dims: tuple[int, ...] = (2, 3, 5)  # of the space; a cross product leaves 3
    least: int = 1  # points needed
    least_channels: int = 1
    pools: bool = False  # the axis before the vectors goes
    chooses: bool = False  # picks neighbors or maxima, so that ties and coarse rounding change the output
    reflection: bool = True
    scale: float | None = 1.0  # degree d of f(s x) = s**d f(x); None where the layer has a scale of its own
    permutation: bool = True
    batch: bool = False  # training uses statistics over the batch
    random: bool = False  # training draws random numbers

    def __str__(self) -> str:
        return self.name

    def example(
        self,
        rank: int = 4,
        *,
        sizes: tuple[int, ...] | None = None,
        dim: int = 3,
        channels: int = CHANNELS,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> Tensor:
        """Draw a generic input, independent Gaussian vectors; a seed gives the same numbers in every dtype."""
        shape = (*(sizes or SIZES[rank]), dim, channels)
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)

    def module(
        self,
        channels: int = CHANNELS,
        *,
        elements: int = SIZES[4][1],
        dtype: torch.dtype = torch.float32,
        training: bool = False,
        seed: int = 0,
    ) -> nn.Module:
        """Build the layer, its norms away from where they start; a seed gives the same numbers in every dtype."""
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed takes milliseconds
            module = self.make(channels, elements)
            settle(module)
        return module.to(dtype).train(training)

    def module_for(self, x: Tensor, *, training: bool = False, seed: int = 0) -> nn.Module:
        """Build the layer so that it takes this input."""
        return self.module(x.shape[-1], elements=x.shape[-3], dtype=x.dtype, training=training, seed=seed)


def settle(module: nn.Module) -> None:
    """Move the norms to where training might leave them."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d):
            nn.init.uniform_(part.weight, 0.3, 0.6)
            nn.init.uniform_(part.running_mean, 0.2, 1.4)
            nn.init.uniform_(part.running_var, 0.2, 0.8)
        elif isinstance(part, vn.LayerNorm | vn.InstanceNorm):
            nn.init.uniform_(part.weight, 0.5, 1.5)
        elif isinstance(part, vn.ResidualBlock):
            part.linear_out.reset_parameters()  # from 0
        elif isinstance(part, hybrid.ResidualBlock):
            part.linear_out.vectors.reset_parameters()
            nn.init.uniform_(part.linear_out.scalars.weight, -0.5, 0.5)


Make = Callable[[int, int], nn.Module]


def block(**options: Any) -> Make:
    return lambda c, n: vn.Block(c, c + 2, **options)


def edge_conv(*, include_self: bool = True, **options: Any) -> Make:
    def make(c: int, n: int) -> nn.Module:
        k = min(K, n if include_self else n - 1)
        return vn.EdgeConv(c, c + 2, k=k, include_self=include_self, **options)

    return make


def invariant(**options: Any) -> Make:
    return lambda c, n: vn.Invariant(c, **options)


def attention(c: int, n: int) -> nn.Module:
    return vn.Attention(c, heads=2 if c % 2 == 0 else 1)


def residual(**options: Any) -> Make:
    return lambda c, n: vn.ResidualBlock(c, **options)


class Propagation(nn.Module):
    """Feature propagation between two clouds of as many points, the first and the last channel of its input."""

    def __init__(self, channels: int, **options: Any) -> None:
        super().__init__()
        self.propagation = FeaturePropagation((0, channels), (0, channels), (6, channels + 2), **options)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        features = Features(x.new_zeros(*x.shape[:2], 0), x)
        sources, targets = x[..., 0], x[..., -1]
        return self.propagation(sources, features, targets, features, mask, mask).vectors


class OnVectors(nn.Module):
    """A layer of the hybrid kit as one of vectors: lengths are its scalars in, its scalars out scale its vectors."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *more: Any, **options: Any) -> Tensor:
        scalars = functional.norm(x.double()).tanh().to(x.dtype)
        y = self.layer(hybrid.Features(scalars, x), *more, **options)
        if isinstance(y, Tensor):
            return y
        weights = torch.linspace(-1, 2, y.scalars.shape[-1], dtype=x.dtype)
        return y.vectors * (1.5 + (y.scalars @ weights).tanh())[..., None, None]


def on_vectors(make: Callable[[int, int], nn.Module]) -> Make:
    return lambda c, n: OnVectors(make(c, n))


def hybrid_block(**options: Any) -> Make:
    return on_vectors(lambda c, n: hybrid.Block((c, c), (c + 1, c + 2), **options))


def hybrid_edge_conv(**options: Any) -> Make:
    return on_vectors(lambda c, n: hybrid.EdgeConv((c, c), (c + 1, c + 2), min(K, n), **options))


def hybrid_attention(c: int, n: int) -> nn.Module:
    """After a norm, as in networks: the softmax of huge scores has no gradient in torch's attention."""
    return nn.Sequential(hybrid.LayerNorm((c, c)), hybrid.Attention((c, c), heads=2 - c % 2))


# Claims that come together.
ELEMENTS: dict[str, Any] = {"ranks": (4, 5)}  # needs elements to pool or normalize over
GRAPH: dict[str, Any] = {"ranks": (4,), "chooses": True}
BATCH: dict[str, Any] = {"scale": None, "batch": True}
CHIRAL: dict[str, Any] = {"dims": (3,), "reflection": False}  # uses a cross product
SCALARS: dict[str, Any] = {"gives": "scalars"}
NORMS: dict[str, dict[str, Any]] = {
    "batch": BATCH,
    "log-batch": BATCH,
    "layer": {"scale": 0.0},
    "instance": {"scale": 0.0, **ELEMENTS},
    "none": {},
}

HYBRID: dict[str, Any] = {"scale": None}

LAYERS = [
    Layer("linear", lambda c, n: vn.Linear(c, c + 2)),
    Layer("linear-elements", lambda c, n: vn.Linear(c, c + 2, num_elements=n), permutation=False, **ELEMENTS),
    Layer("relu", lambda c, n: vn.LeakyReLU(c, negative_slope=0.0)),
    Layer("leaky-relu", lambda c, n: vn.LeakyReLU(c, negative_slope=0.2)),
    Layer("leaky-relu-shared", lambda c, n: vn.LeakyReLU(c, shared_direction=True)),
    Layer("activation-relu", lambda c, n: vn.Activation(c, torch.relu)),
    Layer("activation-relu-unsigned", lambda c, n: vn.Activation(c, torch.relu, signed=False)),
    Layer("activation-tanh", lambda c, n: vn.Activation(c, torch.tanh), scale=None),
    Layer("activation-tanh-unsigned", lambda c, n: vn.Activation(c, torch.tanh, signed=False), scale=None),
    Layer("activation-tanh-shared", lambda c, n: vn.Activation(c, torch.tanh, shared_direction=True), scale=None),
    *(Layer(f"block-{norm}", block(norm=norm), **claims) for norm, claims in NORMS.items()),
    *(
        Layer(f"block-{norm}-detached", block(norm=norm, direction="output"), **claims)
        for norm, claims in NORMS.items()
    ),
    Layer("block-relu", block(norm="none", negative_slope=0.0)),
    Layer("block-tanh", block(activation=torch.tanh), **BATCH),
    Layer("block-layer-tanh", block(norm="layer", activation=torch.tanh), scale=0.0),
    Layer("block-shared", block(shared_direction=True), **BATCH),
    Layer("batch-norm", lambda c, n: vn.BatchNorm(c), **BATCH),
    Layer("batch-norm-log", lambda c, n: vn.BatchNorm(c, mode="log"), **BATCH),
    Layer("layer-norm", lambda c, n: vn.LayerNorm(c), scale=0.0),
    Layer("instance-norm", lambda c, n: vn.InstanceNorm(c), scale=0.0, **ELEMENTS),
    Layer("mean-pool", lambda c, n: vn.MeanPool(), pools=True, **ELEMENTS),
    Layer("max-pool", lambda c, n: vn.MaxPool(c), pools=True, chooses=True, **ELEMENTS),
    Layer("edge-conv", edge_conv(), **GRAPH, **BATCH),
    Layer("edge-conv-none", edge_conv(norm="none"), **GRAPH),
    Layer("edge-conv-max", edge_conv(norm="none", pool="max"), **GRAPH),
    Layer("edge-conv-without-self", edge_conv(norm="none", include_self=False), least=2, **GRAPH),
    Layer("edge-conv-cross", edge_conv(norm="none", cross=True), scale=None, **GRAPH, **CHIRAL),
    # The four rows of the paper's ablation of VN-In; an MLP holds batch norms, and with them a scale.
    Layer("invariant-mlp-mean", invariant(frame="mlp", mean=True), **SCALARS, **BATCH),
    Layer("invariant-mlp", invariant(frame="mlp", mean=False), **SCALARS, **BATCH),
    Layer("invariant-linear-mean", invariant(frame="linear", mean=True), scale=2.0, **SCALARS),
    Layer("invariant-linear", invariant(frame="linear", mean=False), scale=2.0, **SCALARS),
    Layer("invariant-mlp-none", invariant(norm="none"), scale=2.0, **SCALARS),
    Layer("invariant-read-mean", invariant(frame="linear", project_mean=True), scale=2.0, **SCALARS),
    Layer("invariant-orthonormal", invariant(frame="linear", orthonormal=True), **SCALARS, **CHIRAL),
    Layer("invariant-gram", invariant(kind="gram"), scale=2.0, **SCALARS),
    Layer("invariant-norm", invariant(kind="norm"), **SCALARS),
    Layer("feature-propagation", lambda c, n: Propagation(c), **GRAPH, **BATCH),
    # From one vector, or from one point, two directions are parallel and their plane is rounding.
    Layer(
        "feature-propagation-orthonormal",
        lambda c, n: Propagation(c, orthonormal=True),
        **{**GRAPH, **BATCH, **CHIRAL, "least": 3, "least_channels": 3},
    ),
    Layer("pose-head", lambda c, n: vn.nn.PoseHead(c), scale=0.0, least_channels=2, **CHIRAL),
    Layer("pose-head-svd", lambda c, n: vn.nn.PoseHead(c, method="svd"), scale=0.0, least_channels=2, **CHIRAL),
    Layer("dropout", lambda c, n: vn.Dropout(0.4), random=True),
    Layer("mlp", lambda c, n: vn.MLP([c, c + 2, c + 1, 2]), **BATCH),
    Layer("mlp-none", lambda c, n: vn.MLP([c, c + 2, c + 1, 2], norm="none")),
    Layer("affine-linear", lambda c, n: vn.AffineLinear(c, c + 2)),
    Layer("activation-softplus", lambda c, n: vn.Activation(c, "softplus"), scale=None),
    Layer("activation-gelu", lambda c, n: vn.Activation(c, "gelu"), scale=None),
    Layer("activation-silu", lambda c, n: vn.Activation(c, "silu"), scale=None),
    Layer("block-layer-softplus", block(norm="layer", activation="softplus"), scale=0.0),
    Layer("residual", residual(), **BATCH),
    Layer("residual-layer", residual(out_channels=6, norm="layer"), scale=None),
    Layer("residual-none", residual(out_channels=5, hidden=7, norm="none")),
    Layer("residual-gelu", residual(norm="none", activation="gelu", shared_direction=True), scale=None),
    Layer("attention", attention, ranks=(4,), scale=None),
    *(Layer(f"hybrid-block-{norm}", hybrid_block(norm=norm), **{**claims, **HYBRID}) for norm, claims in NORMS.items()),
    Layer("hybrid-block-tanh", hybrid_block(norm="none", activation=torch.tanh), **HYBRID),
    Layer("hybrid-linear", on_vectors(lambda c, n: hybrid.Linear((c, c), (c + 1, c + 2))), **HYBRID),
    Layer("hybrid-mlp", on_vectors(lambda c, n: hybrid.MLP([(c, c), (c, 3), (2, 2)])), **BATCH | HYBRID),
    Layer("hybrid-affine-linear", on_vectors(lambda c, n: hybrid.AffineLinear((c, c), (c + 1, c + 2))), **HYBRID),
    Layer("hybrid-residual", on_vectors(lambda c, n: hybrid.ResidualBlock((c, c), (c + 1, c + 2))), **BATCH | HYBRID),
    Layer("hybrid-leaky-relu", on_vectors(lambda c, n: hybrid.LeakyReLU((c, c))), **HYBRID),
    Layer("hybrid-activation", on_vectors(lambda c, n: hybrid.Activation((c, c), torch.tanh)), **HYBRID),
    Layer("hybrid-batch-norm", on_vectors(lambda c, n: hybrid.BatchNorm((c, c))), **BATCH | HYBRID),
    Layer("hybrid-layer-norm", on_vectors(lambda c, n: hybrid.LayerNorm((c, c))), **HYBRID),
    Layer("hybrid-instance-norm", on_vectors(lambda c, n: hybrid.InstanceNorm((c, c))), **ELEMENTS, **HYBRID),
    Layer("hybrid-mean-pool", on_vectors(lambda c, n: hybrid.MeanPool()), pools=True, **ELEMENTS, **HYBRID),
    Layer("hybrid-max-pool", on_vectors(lambda c, n: hybrid.MaxPool((c, c))), pools=True, **ELEMENTS, **HYBRID),
    Layer("hybrid-edge-conv", hybrid_edge_conv(pool="max"), **GRAPH, **BATCH | HYBRID),
    Layer("hybrid-edge-conv-none", hybrid_edge_conv(norm="none"), **GRAPH, **HYBRID),
    Layer("hybrid-edge-conv-cross", hybrid_edge_conv(norm="none", cross=True), **GRAPH, **CHIRAL | HYBRID),
    Layer("hybrid-attention", on_vectors(hybrid_attention), ranks=(4,), **HYBRID),
    Layer("hybrid-invariant", on_vectors(lambda c, n: hybrid.Invariant((c, c))), **SCALARS, **BATCH | HYBRID),
    Layer("hybrid-dropout", on_vectors(lambda c, n: hybrid.Dropout(0.4)), random=True, **HYBRID),
]
