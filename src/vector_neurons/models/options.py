"""How the layers of a network are built: of which kit, and with which options."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..nn import KITS
from ..nn.features import AnyChannels, Channels
from ..typing import BlockOptions, DirectionSource, Neurons, Norm, Pool


def kit_of(neurons: Neurons) -> Any:
    """The layers of one kind of neurons."""
    if neurons not in KITS:
        raise ValueError(f"unknown neurons {neurons!r}: choose {' or '.join(KITS)}")
    return KITS[neurons]


@dataclass(frozen=True)
class LayerOptions:
    """How the layers of a network are built; the ablations of the paper.

    Args:
        norm: of every block: `"batch"`, `"log-batch"`, `"layer"`, `"instance"` or `"none"`.
        direction: of every non-linearity, from a block's `"input"` or `"output"` (the paper's detached form).
        pool: over neighbors, `"mean"` or `"max"`; by default mean for vector neurons, max for scalar and hybrid ones.
        frame: how the invariant layer learns its frame, `"mlp"` or `"linear"`.
        mean: whether the frame also depends on the mean over the cloud.
        project_mean: whether the mean is projected onto the frame as well, as in the authors' code; by default if
            there is a mean.
        eps: the authors' absolute eps (1e-6), for outputs identical to theirs, see `Block`.

    >>> network = vn.models.DGCNN(layers=vn.models.LayerOptions(direction="output"))
    """

    norm: Norm = "batch"
    direction: DirectionSource = "input"
    pool: Pool | None = None
    frame: Literal["mlp", "linear"] = "mlp"
    mean: bool = True
    project_mean: bool | None = None
    eps: float | None = None

    @classmethod
    def of(cls, options: "LayerOptions | Mapping[str, Any]") -> "LayerOptions":
        """Options as given, or as read from a saved config."""
        return cls(**options) if isinstance(options, Mapping) else options

    def block(self, negative_slope: float) -> BlockOptions:
        """The options of a block."""
        return {
            "norm": self.norm,
            "direction": self.direction,
            "negative_slope": negative_slope,
            "eps": self.eps,
        }

    def pool_of(self, neurons: Neurons) -> Pool:
        """The pool over neighbors."""
        return self.pool or ("mean" if neurons == "vector" else "max")

    def invariant(self, neurons: Neurons, channels: AnyChannels, negative_slope: float) -> Any:
        """The invariant layer."""
        project_mean = self.mean if self.project_mean is None else self.project_mean
        return kit_of(neurons).Invariant(
            channels, frame=self.frame, mean=self.mean, project_mean=project_mean, **self.block(negative_slope)
        )

    @property
    def head_norm(self) -> Norm:
        """The norm of layers on a whole cloud, which has no elements for an instance norm."""
        return "layer" if self.norm == "instance" else self.norm


def projected_channels(neurons: Neurons, channels: Any) -> int:
    """Number of scalars that the invariant layer's `project` makes of features with these channels."""
    if neurons == "hybrid":
        return Channels(*channels).floats
    return int(channels) * (3 if neurons == "vector" else 1)
