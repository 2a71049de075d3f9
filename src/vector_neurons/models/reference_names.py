"""The networks of the authors' repositories: how to recognize them, and the names of their parameters here.

Names are pairs of prefixes, theirs and ours; the first that matches counts. An empty name of ours drops a tensor that
is stored a second time under another name.
"""

from typing import NamedTuple

from ..typing import Neurons
from .base import Model
from .dgcnn import DGCNN, DGCNNSegmenter
from .pointnet import PointNet, PointNetSegmenter

Names = tuple[tuple[str, str], ...]


class ReferenceNetwork(NamedTuple):
    """How to recognize one of the authors' networks, and how to rename its parameters."""

    model: type[Model]
    marks: tuple[str, ...]  # parameters only this network has
    names: Names
    last: str  # the parameter whose first axis counts the outputs
    pool: str = ""  # a parameter it has with max pooling only
    first: str = ""  # our weight whose input are invariants ...
    groups: tuple[tuple[int, int], ...] = ()  # ... in groups: (vectors, or 0 for other scalars; columns)
    neurons: Neurons = "vector"
    identity: str = ""  # our bias that there has an identity matrix added


# The parts of a vector block, after the names of the block.
BLOCK: Names = (("map_to_feat.", "linear."), ("map_to_dir.", "direction."), ("batchnorm.bn.", "norm.bn."))


def _frame(feat: str = "") -> Names:
    names = ("vn1.", "vn2.", "vn_lin.")
    return tuple((f"{feat}std_feature.{name}", f"encoder.read.to_frame.{i}.") for i, name in enumerate(names))


def _transform(feat: str = "") -> Names:
    return (
        (f"{feat}conv_pos.", "encoder.stem.blocks.0."),
        (f"{feat}pool.map_to_dir.", "encoder.stem.pool.direction."),
        *((f"{feat}fstn.conv{i + 1}.", f"encoder.transform.every.{i}.") for i in range(3)),
        (f"{feat}fstn.pool.map_to_dir.", "encoder.transform.pool.direction."),
        *((f"{feat}fstn.fc{i + 1}.", f"encoder.transform.overall.{i}.") for i in range(2)),
        (f"{feat}fstn.fc3.map_to_feat.", "encoder.transform.overall.2."),
    )


def _sequence(theirs: str, ours: str) -> Names:
    """A convolution and its norm, in a row."""
    return (f"{theirs}.0.", f"{ours}.linear."), (f"{theirs}.1.", f"{ours}.norm.bn.")


def _beside(theirs: str, bn: str, ours: str) -> Names:
    """A linear map or convolution and its norm, side by side."""
    return (f"{theirs}.", f"{ours}.linear."), (f"{bn}.", f"{ours}.norm.bn.")


def _t_net(theirs: str, ours: str) -> Names:
    """A T-Net of PointNet."""
    every = (
        pair for i in range(3) for pair in _beside(f"{theirs}conv{i + 1}", f"{theirs}bn{i + 1}", f"{ours}every.{i}")
    )
    overall = (
        pair for i in range(2) for pair in _beside(f"{theirs}fc{i + 1}", f"{theirs}bn{i + 4}", f"{ours}overall.{i}")
    )
    return (*every, *overall, (f"{theirs}fc3.", f"{ours}overall.2."))


def _head(theirs: str, bn: str, count: int, last: str) -> Names:
    """The layers of a head, numbered from 1."""
    layers = (_beside(f"{theirs}{i + 1}", f"{bn}{i + 1}", f"head.blocks.{i}") for i in range(count))
    return (*(pair for layer in layers for pair in layer), (last, "head.logits."))


SEGMENTED: Names = (  # the end of both DGCNNs for part segmentation
    *_sequence("conv7", "category"),
    *(pair for i in range(3) for pair in _sequence(f"conv{i + 8}", f"head.blocks.{i}")),
    ("conv11.", "head.logits."),
    ("bn", ""),
)

NETWORKS = {
    "VN-DGCNN, classification": ReferenceNetwork(
        DGCNN,
        ("conv5.map_to_feat.weight", "linear1.weight"),
        (
            *((f"conv{i + 1}.", f"encoder.convolutions.{i}.blocks.0.") for i in range(4)),
            *((f"pool{i + 1}.map_to_dir.", f"encoder.convolutions.{i}.pool.direction.") for i in range(4)),
            ("conv5.", "encoder.embed."),
            *_frame(),
            *_head("linear", "bn", 2, "linear3."),
        ),
        "linear3.weight",
        "pool1.map_to_dir.weight",
        "head.blocks.0.linear.weight",
        ((682, 2046), (682, 2046)),
    ),
    "VN-DGCNN, part segmentation": ReferenceNetwork(
        DGCNNSegmenter,
        ("conv6.map_to_feat.weight", "conv11.weight"),
        (
            *((f"conv{i + 1}.", f"encoder.convolutions.{i // 2}.blocks.{i % 2}.") for i in range(5)),
            *((f"pool{i + 1}.map_to_dir.", f"encoder.convolutions.{i}.pool.direction.") for i in range(3)),
            ("conv6.", "encoder.embed."),
            *_frame(),
            *SEGMENTED,
        ),
        "conv11.weight",
        "pool1.map_to_dir.weight",
        "head.blocks.0.linear.weight",
        ((682, 2046), (0, 64), (63, 189)),
    ),
    "VN-PointNet, classification": ReferenceNetwork(
        PointNet,
        ("feat.conv_pos.map_to_feat.weight", "fc3.weight"),
        (
            *_transform("feat."),
            ("feat.conv1.", "encoder.before.0."),
            ("feat.conv2.", "encoder.after.0."),
            ("feat.conv3.map_to_feat.", "encoder.embed."),
            ("feat.bn3.bn.", "encoder.norm.bn."),
            *_frame("feat."),
            *_head("fc", "bn", 2, "fc3."),
        ),
        "fc3.weight",
        "feat.pool.map_to_dir.weight",
        "head.blocks.0.linear.weight",
        ((682, 2046),),
    ),
    "VN-PointNet, part segmentation": ReferenceNetwork(
        PointNetSegmenter,
        ("conv_pos.map_to_feat.weight", "convs4.weight"),
        (
            *_transform(),
            *((f"conv{i + 1}.", f"encoder.before.{i}.") for i in range(3)),
            ("conv4.", "encoder.after.0."),
            ("conv5.map_to_feat.", "encoder.embed."),
            ("bn5.bn.", "encoder.norm.bn."),
            *_frame(),
            *_head("convs", "bns", 3, "convs4."),
        ),
        "convs4.weight",
        "pool.map_to_dir.weight",
        "head.blocks.0.linear.weight",
        ((1364, 4092), (0, 16), (275, 825), (1364, 4092)),
    ),
    "DGCNN, classification": ReferenceNetwork(
        DGCNN,
        ("conv5.0.weight", "linear1.weight"),
        (
            *(pair for i in range(4) for pair in _sequence(f"conv{i + 1}", f"encoder.convolutions.{i}.blocks.0")),
            *_sequence("conv5", "encoder.embed"),
            *_beside("linear1", "bn6", "head.blocks.0"),
            *_beside("linear2", "bn7", "head.blocks.1"),
            ("linear3.", "head.logits."),
            ("bn", ""),
        ),
        "linear3.weight",
        neurons="scalar",
    ),
    "DGCNN, part segmentation": ReferenceNetwork(
        DGCNNSegmenter,
        ("transform_net.transform.weight", "conv11.weight"),
        (
            *(pair for i in range(2) for pair in _sequence(f"transform_net.conv{i + 1}", f"turn.edges.blocks.{i}")),
            *_sequence("transform_net.conv3", "turn.every.0"),
            *_beside("transform_net.linear1", "transform_net.bn3", "turn.overall.0"),
            *_beside("transform_net.linear2", "transform_net.bn4", "turn.overall.1"),
            ("transform_net.transform.", "turn.overall.2."),
            ("transform_net.bn", ""),
            *(
                pair
                for i in range(5)
                for pair in _sequence(f"conv{i + 1}", f"encoder.convolutions.{i // 2}.blocks.{i % 2}")
            ),
            *_sequence("conv6", "encoder.embed"),
            *SEGMENTED,
        ),
        "conv11.weight",
        neurons="scalar",
        identity="turn.overall.2.bias",
    ),
    "PointNet, classification": ReferenceNetwork(
        PointNet,
        ("feat.stn.fc3.weight", "fc3.weight"),
        (
            *_t_net("feat.stn.", "encoder.turn."),
            *_t_net("feat.fstn.", "encoder.transform."),
            *_beside("feat.conv1", "feat.bn1", "encoder.before.0"),
            *_beside("feat.conv2", "feat.bn2", "encoder.after.0"),
            ("feat.conv3.", "encoder.embed."),
            ("feat.bn3.", "encoder.norm.bn."),
            *_head("fc", "bn", 2, "fc3."),
        ),
        "fc3.weight",
        neurons="scalar",
    ),
    "PointNet, part segmentation": ReferenceNetwork(
        PointNetSegmenter,
        ("stn.fc3.weight", "convs4.weight"),
        (
            *_t_net("stn.", "encoder.turn."),
            *_t_net("fstn.", "encoder.transform."),
            *(pair for i in range(3) for pair in _beside(f"conv{i + 1}", f"bn{i + 1}", f"encoder.before.{i}")),
            *_beside("conv4", "bn4", "encoder.after.0"),
            ("conv5.", "encoder.embed."),
            ("bn5.", "encoder.norm.bn."),
            *_head("convs", "bns", 3, "convs4."),
        ),
        "convs4.weight",
        neurons="scalar",
    ),
}


def _occupancy(feat: str, act: str) -> Names:
    """Their occupancy networks; vector layers have `feat` and `act` after their names."""
    vector = bool(feat)
    stem: Names = (("encoder.conv_pos.", "encoder.stem.blocks.0."),) if vector else ()
    activations: Names = tuple(
        (f"encoder.block_{i}.actvn_{j}.{act}", f"encoder.blocks.{i}.activation_{way}.direction.")
        for i in range(5)
        for j, way in enumerate(("in", "out"))
    )
    return (
        *stem,
        (f"encoder.fc_pos.{feat}", "encoder.embed."),
        *(activations if vector else ()),
        *(
            (f"encoder.block_{i}.{theirs}.{feat}", f"encoder.blocks.{i}.{ours}.")
            for i in range(5)
            for theirs, ours in (("fc_0", "linear_in"), ("fc_1", "linear_out"), ("shortcut", "shortcut"))
        ),
        *(((f"encoder.actvn_c.{act}", "activation.direction."),) if vector else ()),
        (f"encoder.fc_c.{feat}", "to_code."),
        ("decoder.c_in.map_to_feat.", "decoder.queries.partner."),
        ("decoder.fc_in.", "decoder.queries.linear."),
        ("decoder.fc_p.", "decoder.queries.place."),
        ("decoder.fc_c.", "decoder.queries.code."),
        *(
            (f"decoder.block{i}.fc_{j}.", f"decoder.blocks.{i}.linear_{way}.")
            for i in range(5)
            for j, way in enumerate(("in", "out"))
        ),
        ("decoder.fc_out.", "decoder.logits."),
    )


# An encoder of vectors or of numbers; either decoder.
OCCUPANCY: dict[Neurons, Names] = {"vector": _occupancy("map_to_feat.", "map_to_dir."), "scalar": _occupancy("", "")}
