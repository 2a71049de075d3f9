"""Rules between the fields of a configuration, checked before any work."""

import inspect

from torch import nn

from .config import RunConfig
from .errors import ConfigError
from .factory import network_class, network_options
from .user_network import is_user_network

MAX_STORED_POINTS = 2**27  # of all clouds of shapes, which are held in memory
MAX_LAYERS = 64

Violations = list[tuple[bool, str]]  # whether a rule is violated, and the message if so


def check(config: RunConfig, processes: int = 1, *, execute: bool = True) -> None:
    """Refuse a configuration that cannot work; the message is one line.

    Args:
        config: configuration to check.
        processes: number of processes that share a batch.
        execute: import the file of a user's network, which executes it, to check its class as well.

    >>> vn.training.check(vn.training.RunConfig("classification"))
    """
    config.check_ranges()
    violations = _data_rules(config)
    violations += _reconstruction_rules(config) if config.task == "reconstruction" else _class_rules(config)
    violations += _network_rules(config) + _recipe_rules(config, processes)
    for violated, message in violations:
        if violated:
            raise ConfigError(message)
    if is_user_network(config.network.model) and not execute:
        return
    network = network_class(config)
    network_options(config.network, network)
    k, fewest = _neighbors(config, network), _fewest_points(config)
    if k is not None and k > fewest:
        raise ConfigError(f"--k {k} neighbors are more than the {fewest} points of a cloud")


def _data_rules(config: RunConfig) -> Violations:
    data = config.data
    return [
        (
            data.data == "folder" and (data.folder is None) == (data.pack is None),
            "--data folder needs the --folder with the files, or the --pack made of it",
        ),
        (
            data.data != "folder" and (data.folder is not None or data.pack is not None),
            "--folder and --pack belong to --data folder",
        ),
        (
            data.folder is None and (data.up is not None or data.drop_nan),
            "--up and --drop-nan are about the files of --folder; a pack was made with its own",
        ),
        (
            (data.size or 0) * data.stored_points > MAX_STORED_POINTS,
            f"--size {data.size} clouds of --stored-points {data.stored_points} are more than the "
            f"{MAX_STORED_POINTS:,} points that are kept in memory",
        ),
        (
            data.points > data.stored_points,
            f"--points {data.points} are more than --stored-points {data.stored_points}",
        ),
    ]


def _class_rules(config: RunConfig) -> Violations:
    """Rules of classification and segmentation."""
    data, task = config.data, config.task
    return [
        (data.data == "occupancy", f"--data occupancy is for reconstruction, not {task}"),
        (data.queries > 0, f"--queries are for reconstruction, not for {task}"),
        (config.recipe.iou_loss > 0, f"--iou-loss is for reconstruction, not for {task}"),
        (
            data.add_shapes is not None or data.normals > 0,
            f"--add-shapes and --normals are for reconstruction, not for {task}",
        ),
        (
            task == "segmentation" and data.data not in ("shapes", "shapenet-part"),
            f"--data {data.data} has no parts to segment",
        ),
    ]


def _reconstruction_rules(config: RunConfig) -> Violations:
    data, network, recipe = config.data, config.network, config.recipe
    fewest, framenet = _fewest_points(config), network.model == "framenet"
    vectors = network.neurons == "vector" or network.decoder == "invariant"
    return [
        (
            data.data not in ("shapes", "occupancy"),
            f"--data {data.data} has no occupancy to learn from: choose shapes or occupancy",
        ),
        (data.queries == 0, "reconstruction needs --queries to learn from"),
        (
            network.neurons == "hybrid",
            "--neurons hybrid has no occupancy network: choose vector or scalar",
        ),
        (data.add_shapes is not None and data.data != "occupancy", "--add-shapes belongs to --data occupancy"),
        (data.normals > 0 and not framenet, f"--model {network.model} takes no --normals: framenet does"),
        (framenet and network.neurons != "vector", "--model framenet has vector neurons in reconstruction"),
        (recipe.shift > 0 or recipe.scale > 1, "--shift and --scale do nothing: every scan is put into the unit ball"),
        (
            (network.neurons, network.decoder) == ("vector", "plain"),
            "--decoder plain takes scalars: vector neurons go with the invariant one",
        ),
        (network.local > 0 and network.neurons == "scalar", "--local needs the features of vector neurons"),
        (network.local > fewest, f"--local {network.local} points are more than the {fewest} of a cloud"),
        (
            vectors and (network.code or 3) % 3 != 0,
            f"--code counts coordinates of vectors: a multiple of 3, got {network.code}",
        ),
    ]


def _network_rules(config: RunConfig) -> Violations:
    network = config.network
    plain = (network.direction, network.frame, network.mean) == ("input", "mlp", True)
    lists = {"widths": network.widths, "hidden": network.hidden}
    return [
        (network.neurons == "scalar" and not plain, "--direction, --frame and --no-mean are about vector neurons"),
        (
            (network.model, network.neurons) == ("framenet", "hybrid"),
            "--model framenet has scalars beside vectors already: choose --neurons vector or scalar",
        ),
        (network.model == "pointnet" and network.widths is not None, "--widths are those of a DGCNN"),
        *(
            (
                widths is not None and not 1 <= len(widths) <= MAX_LAYERS,
                f"--{name} takes 1 to {MAX_LAYERS} layers, got {len(widths or ())}",
            )
            for name, widths in lists.items()
        ),
    ]


def _recipe_rules(config: RunConfig, processes: int) -> Violations:
    recipe, tests, points = config.recipe, config.protocol.test_rotations, config.data.points
    early, fewest = recipe.early_points or points, recipe.fewest_points or 1
    return [
        (fewest > early, f"--fewest-points {fewest} are more than the {early} of a cloud"),
        (early > points, f"--early-points {early} are more than --points {points}"),
        (not tests or len(set(tests)) < len(tests), "--test-rotations takes one or more of I, z and SO3, each once"),
        (
            recipe.batch_size % (recipe.accumulate * processes) != 0,
            f"--batch-size {recipe.batch_size} cannot be shared by {processes} processes in {recipe.accumulate} parts",
        ),
        (recipe.batch_size < 2 * recipe.accumulate, f"--accumulate {recipe.accumulate} leaves single clouds"),
    ]


def _fewest_points(config: RunConfig) -> int:
    return config.recipe.fewest_points or config.recipe.early_points or config.data.points


def _neighbors(config: RunConfig, network: type[nn.Module]) -> int | None:
    """Neighbors in the graph of the network; None if it has no graph, or a user's class chooses them."""
    model, k = config.network.model, config.network.k
    if model == "pointnet" and config.network.neurons == "scalar":
        return None
    if k is not None or is_user_network(model):
        return k
    default: int = inspect.signature(network.__init__).parameters["k"].default
    return default
