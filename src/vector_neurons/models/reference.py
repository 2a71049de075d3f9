"""The authors' checkpoints (repositories vnn, vnn-pc, vnn-neural-implicits) as models of this library, same outputs.

Theirs and ours differ in the names of parameters and in the order of invariants: there channel by channel, here frame
vector by frame vector. Two PointNets there end in a log-softmax; ours end in logits, so that
`log_softmax(ours) = theirs`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .base import Model
from .dgcnn import DGCNN, DGCNNSegmenter
from .occupancy import OccupancyNetwork
from .pointnet import PointNet, PointNetSegmenter

# Where the authors' code differs from the paper: an absolute eps, and VN-In over [V, mean] instead of V.
LEGACY: dict[str, Any] = {"eps": 1e-6, "read_mean": True}


class CheckpointError(ValueError):
    """Something that is none of the authors' checkpoints; the message is one line."""


class Network(NamedTuple):
    """How to recognise one of the authors' networks, and what becomes of its parameters."""

    model: type[Model]
    marks: tuple[str, ...]  # parameters only this network has
    names: tuple[tuple[str, str], ...]  # their names → ours, tried in this order
    last: str  # the parameter whose first axis counts the outputs
    pool: str  # a parameter it has with max pooling only
    first: str  # our parameter that reads invariants ...
    reads: tuple[tuple[int, int], ...]  # ... in groups: (vectors, or 0 for plain numbers; columns)


FRAME = (
    (r"std_feature\.vn1\.", "encoder.read.to_frame.0."),
    (r"std_feature\.vn2\.", "encoder.read.to_frame.1."),
    (r"std_feature\.vn_lin\.", "encoder.read.to_frame.2."),
)
TRANSFORM = (
    (r"conv_pos\.", "encoder.stem.blocks.0."),
    (r"pool\.map_to_dir\.", "encoder.stem.pool.direction."),
    (r"fstn\.conv1\.", "encoder.transform.every.0."),
    (r"fstn\.conv2\.", "encoder.transform.every.1."),
    (r"fstn\.conv3\.", "encoder.transform.every.2."),
    (r"fstn\.pool\.map_to_dir\.", "encoder.transform.pool.direction."),
    (r"fstn\.fc1\.", "encoder.transform.overall.0."),
    (r"fstn\.fc2\.", "encoder.transform.overall.1."),
    (r"fstn\.fc3\.map_to_feat\.", "encoder.transform.overall.2."),
)
BLOCK = ((r"\.map_to_feat\.", ".linear."), (r"\.map_to_dir\.", ".direction."), (r"\.batchnorm\.bn\.", ".norm.bn."))

NETWORKS = {
    "VN-DGCNN, classification": Network(
        DGCNN,
        ("conv5.map_to_feat.weight", "linear1.weight"),
        (
            *((rf"conv{i + 1}\.", f"encoder.convolutions.{i}.blocks.0.") for i in range(4)),
            *((rf"pool{i + 1}\.map_to_dir\.", f"encoder.convolutions.{i}.pool.direction.") for i in range(4)),
            (r"conv5\.", "encoder.embed."),
            *FRAME,
            *((rf"linear{i + 1}\.", f"head.blocks.{i}.linear.") for i in range(2)),
            *((rf"bn{i + 1}\.", f"head.blocks.{i}.norm.bn.") for i in range(2)),
            (r"linear3\.", "head.logits."),
        ),
        "linear3.weight",
        "pool1.map_to_dir.weight",
        "head.blocks.0.linear.weight",
        ((682, 2046), (682, 2046)),
    ),
    "VN-DGCNN, part segmentation": Network(
        DGCNNSegmenter,
        ("conv6.map_to_feat.weight", "conv11.weight"),
        (
            *((rf"conv{i + 1}\.", f"encoder.convolutions.{i // 2}.blocks.{i % 2}.") for i in range(5)),
            *((rf"pool{i + 1}\.map_to_dir\.", f"encoder.convolutions.{i}.pool.direction.") for i in range(3)),
            (r"conv6\.", "encoder.embed."),
            *FRAME,
            (r"conv7\.0\.", "category.linear."),
            (r"conv7\.1\.", "category.norm.bn."),
            *((rf"conv{i + 8}\.0\.", f"head.blocks.{i}.linear.") for i in range(3)),
            *((rf"conv{i + 8}\.1\.", f"head.blocks.{i}.norm.bn.") for i in range(3)),
            (r"conv11\.", "head.logits."),
            (r"bn\d+\..*", ""),  # the same tensors a second time
        ),
        "conv11.weight",
        "pool1.map_to_dir.weight",
        "head.blocks.0.linear.weight",
        ((682, 2046), (0, 64), (63, 189)),
    ),
    "VN-PointNet, classification": Network(
        PointNet,
        ("feat.conv_pos.map_to_feat.weight", "fc3.weight"),
        (
            *TRANSFORM,
            (r"conv1\.", "encoder.before.0."),
            (r"conv2\.", "encoder.after.0."),
            (r"conv3\.map_to_feat\.", "encoder.embed."),
            (r"bn3\.bn\.", "encoder.norm.bn."),
            *FRAME,
            *((rf"fc{i + 1}\.", f"head.blocks.{i}.linear.") for i in range(2)),
            *((rf"bn{i + 1}\.", f"head.blocks.{i}.norm.bn.") for i in range(2)),
            (r"fc3\.", "head.logits."),
        ),
        "fc3.weight",
        "feat.pool.map_to_dir.weight",
        "head.blocks.0.linear.weight",
        ((682, 2046),),
    ),
    "VN-PointNet, part segmentation": Network(
        PointNetSegmenter,
        ("conv_pos.map_to_feat.weight", "convs4.weight"),
        (
            *TRANSFORM,
            *((rf"conv{i + 1}\.", f"encoder.before.{i}.") for i in range(3)),
            (r"conv4\.", "encoder.after.0."),
            (r"conv5\.map_to_feat\.", "encoder.embed."),
            (r"bn5\.bn\.", "encoder.norm.bn."),
            *FRAME,
            *((rf"convs{i + 1}\.", f"head.blocks.{i}.linear.") for i in range(3)),
            *((rf"bns{i + 1}\.", f"head.blocks.{i}.norm.bn.") for i in range(3)),
            (r"convs4\.", "head.logits."),
        ),
        "convs4.weight",
        "pool.map_to_dir.weight",
        "head.blocks.0.linear.weight",
        ((1364, 4092), (0, 16), (275, 825), (1364, 4092)),
    ),
}


# Their occupancy networks: an encoder of vectors or of numbers, a decoder of invariants or of coordinates.
OCCUPANCY = (
    (r"encoder\.conv_pos\.", "encoder.stem.blocks.0."),
    (r"encoder\.fc_pos\.", "encoder.embed."),
    (r"encoder\.block_(\d)\.actvn_0\.map_to_dir\.", r"encoder.blocks.\1.bend_in.direction."),
    (r"encoder\.block_(\d)\.actvn_1\.map_to_dir\.", r"encoder.blocks.\1.bend_out.direction."),
    (r"encoder\.block_(\d)\.fc_0\.", r"encoder.blocks.\1.linear_in."),
    (r"encoder\.block_(\d)\.fc_1\.", r"encoder.blocks.\1.linear_out."),
    (r"encoder\.block_(\d)\.shortcut\.", r"encoder.blocks.\1.shortcut."),
    (r"encoder\.actvn_c\.map_to_dir\.", "bend.direction."),
    (r"encoder\.fc_c\.", "to_code."),
    (r"decoder\.c_in\.", "decoder.queries.partner."),
    (r"decoder\.fc_in\.", "decoder.queries.linear."),
    (r"decoder\.fc_p\.", "decoder.queries.place."),
    (r"decoder\.fc_c\.", "decoder.queries.code."),
    (r"decoder\.block(\d)\.fc_0\.", r"decoder.blocks.\1.linear_in."),
    (r"decoder\.block(\d)\.fc_1\.", r"decoder.blocks.\1.linear_out."),
    (r"decoder\.fc_out\.", "decoder.logits."),
)


def load(source: str | Path | Mapping[str, Any], *, k: int | None = None, legacy: bool = True) -> Model:
    """Turn one of the authors' checkpoints, a file or a state dict, into our model, in evaluation mode.

    `k` is the number of neighbours it was trained with, which no checkpoint tells (default: the paper's). With
    `legacy` the outputs are the authors' own; without, their absolute eps is left out, as in the paper.
    """
    state = _unwrapped(_read(Path(source)) if isinstance(source, str | Path) else source)
    if "encoder.fc_c.weight" in state or "encoder.fc_c.map_to_feat.weight" in state:
        return _occupancy(state, k=k, legacy=legacy)
    title, network = _recognise(state)
    arguments = dict(LEGACY) if legacy else {**LEGACY, "eps": None}
    arguments["pool"] = "max" if network.pool in state else "mean"
    last = state[network.last]
    model = network.model(last.shape[0], **arguments, **({} if k is None else {"k": k})).to(last.dtype)
    renamed = {ours: tensor for ours, tensor in ((_rename(name, network), t) for name, t in state.items()) if ours}
    # Their layers at points are convolutions of size 1, their matrices have a third axis.
    renamed = {name: t.squeeze(-1) if t.ndim == 3 else t for name, t in renamed.items()}
    try:
        renamed[network.first] = _reorder(renamed[network.first], network.reads)
        model.load_state_dict(renamed)
    except (RuntimeError, KeyError) as error:
        line = " ".join(str(error).split()[:40])
        raise CheckpointError(f"this looks like {title}, but its parameters do not fit: {line}") from error
    return model.eval()


def _occupancy(state: Mapping[str, Tensor], *, k: int | None, legacy: bool) -> Model:
    turns = "encoder.conv_pos.map_to_feat.weight" in state
    renamed = {_first(OCCUPANCY, name).replace(".map_to_feat.", "."): tensor for name, tensor in state.items()}
    renamed = {
        name.replace("stem.blocks.0.weight", "stem.blocks.0.linear.weight").replace(".map_to_dir.", ".direction."): t
        for name, t in renamed.items()
    }
    try:
        code, hidden = renamed["to_code.weight"].shape
        logits = renamed["decoder.logits.weight"]
        model = OccupancyNetwork(
            neurons="vector" if turns else "scalar",
            decoder="plain" if "decoder.queries.place.weight" in renamed else "invariant",
            code=3 * code if turns else code,
            hidden=3 * hidden if turns else hidden,
            decoder_hidden=logits.shape[1],
            invariants="product",
            eps=1e-6 if legacy and turns else None,
            k=20 if k is None else k,
        ).to(logits.dtype)
        for name in ("linear_in", "shortcut") if not turns else ():
            for block in range(1, 5):  # they put the pool after a point's own numbers, we before
                weight = f"encoder.blocks.{block}.{name}.weight"
                renamed[weight] = torch.cat(renamed[weight].tensor_split(2, dim=1)[::-1], dim=1)
        model.load_state_dict(renamed)
    except (RuntimeError, KeyError) as error:
        line = " ".join(str(error).split()[:40])
        raise CheckpointError(f"this looks like an occupancy network, but its parameters do not fit: {line}") from error
    return model.eval()


def _read(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    try:
        with torch.serialization.safe_globals(_numbers()):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path} is not a file of plain weights: save its state_dict() alone, with the code that made it"
        ) from error


def _numbers() -> list[Any]:
    """The authors keep accuracies beside the weights as NumPy numbers, which are harmless."""
    import numpy as np

    scalar = np.float64(0).__reduce__()[0]
    return [scalar, (scalar, "numpy.core.multiarray.scalar"), np.dtype, np.dtypes.Float64DType, np.dtypes.Float32DType]


def _unwrapped(source: Any) -> dict[str, Tensor]:
    for wrapper in ("model_state_dict", "state_dict", "model"):
        if isinstance(source, Mapping) and isinstance(source.get(wrapper), Mapping):
            source = source[wrapper]
    if not isinstance(source, Mapping) or not all(isinstance(value, Tensor) for value in source.values()):
        raise CheckpointError(
            "a checkpoint must be a state dict, or hold one under 'model_state_dict', 'state_dict' or 'model'"
        )
    return {str(name).removeprefix("module."): value for name, value in source.items()}


def _recognise(state: Mapping[str, Tensor]) -> tuple[str, Network]:
    for title, network in NETWORKS.items():
        if all(mark in state for mark in (*network.marks, network.last)):
            return title, network
    titles = "; ".join([*NETWORKS, "occupancy networks"])
    raise CheckpointError(f"the checkpoint is none of the authors' networks ({titles})")


def _rename(name: str, network: Network) -> str:
    name = _first(network.names, name.removeprefix("feat."))
    for pattern, ours in BLOCK:
        name = re.sub(pattern, ours, name)
    return name


def _first(names: tuple[tuple[str, str], ...], name: str) -> str:
    """The name by the first rule that applies to it."""
    for pattern, ours in names:
        name, changes = re.subn(f"^{pattern}", ours, name)
        if changes:
            break
    return name


def _reorder(weight: Tensor, reads: tuple[tuple[int, int], ...]) -> Tensor:
    """Columns from channel by channel to frame vector by frame vector, in each group of invariants."""
    groups = torch.split(weight, [columns for _, columns in reads], dim=1)
    return torch.cat(
        [g.view(-1, c, 3).mT.flatten(1) if c else g for g, (c, _) in zip(groups, reads, strict=True)], dim=1
    )
