"""Data sets, tasks and networks from the configuration of a run."""

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._files import abbreviate, first_line
from ..data import Cloud, DataError, Dataset, Folder, ModelNet40, Occupancy, ShapeNetPart, Shapes
from ..models import (
    DGCNN,
    DGCNNSegmenter,
    FrameNet,
    FrameNetOccupancy,
    FrameNetSegmenter,
    LayerOptions,
    OccupancyModel,
    OccupancyNetwork,
    PointNet,
    PointNetSegmenter,
    VNTransformer,
    store,
)
from ..tasks import Classification, Reconstruction, Segmentation, Task
from . import user_network
from .config import DataConfig, NetworkConfig, RunConfig, TaskName
from .errors import ConfigError, TrainingError

# Every network that `vn train --model` takes by name. Constructors take the number of classes (segmentation: of parts
# and of categories), then options by keyword.
NETWORKS: dict[tuple[TaskName, str], type[nn.Module]] = {
    ("classification", "dgcnn"): DGCNN,
    ("classification", "pointnet"): PointNet,
    ("classification", "transformer"): VNTransformer,
    ("classification", "framenet"): FrameNet,
    ("segmentation", "dgcnn"): DGCNNSegmenter,
    ("segmentation", "pointnet"): PointNetSegmenter,
    ("segmentation", "framenet"): FrameNetSegmenter,
    ("reconstruction", "dgcnn"): OccupancyNetwork,
    ("reconstruction", "pointnet"): OccupancyNetwork,
    ("reconstruction", "framenet"): FrameNetOccupancy,
}
# Options of NetworkConfig that are fields of LayerOptions, for networks that take these as `layers`.
LAYER_OPTIONS = {"direction": "direction", "pooling": "pool", "frame": "frame", "mean": "mean"}
# Options of NetworkConfig whose constructor argument has another name.
ARGUMENTS: dict[type[nn.Module], dict[str, str]] = {
    VNTransformer: {"embedding": "width"},
    FrameNet: {"embedding": "width"},
    FrameNetSegmenter: {"embedding": "width"},
    FrameNetOccupancy: {"embedding": "width", "decoder_width": "decoder_hidden"},
    OccupancyNetwork: {
        "encoder_width": "hidden",
        "decoder_width": "decoder_hidden",
        "code_invariants": "invariants",
    },
}
QUERY_POOL = 4  # of shapes, training samples its query points from so many times as many
SHAPES_QUERIES = {"val": 4096, "test": 8192}  # uniform query points per shape
ADDED_VAL_DIVISOR = 20  # of --add-shapes, for validation
SHAPES_SIZE_DIVISOR = {"train": 1, "val": 10, "test": 5}  # --size counts the training clouds of shapes


class Derived(Dataset):
    """A data set made of another, with its names and labels."""

    def __init__(self, source: Dataset) -> None:
        self.name, self.split, self.classes, self.labels = source.name, source.split, source.classes, source.labels  # type: ignore[misc]
        self.parts, self.parts_of = source.parts, source.parts_of
        self.pack, self.drawn_from = source.pack, source.drawn_from


class InMemory(Derived):
    """All clouds of another data set, held in memory."""

    def __init__(self, source: Dataset) -> None:
        super().__init__(source)
        self.clouds = source.batch(torch.arange(len(source)))

    def batch(self, indices: Tensor) -> Cloud:
        """The clouds of these indices, stacked."""
        return self.clouds.map(lambda x: x[indices])


class Both(InMemory):
    """The clouds of two data sets for reconstruction, those of the second after those of the first."""

    def __init__(self, first: InMemory, second: Dataset) -> None:
        super().__init__(first)
        more = second.batch(torch.arange(len(second)))
        own = {name: getattr(self.clouds, name) for name in ("points", "normals", "queries", "occupied")}
        joined = {name: None if x is None else torch.cat([x, getattr(more, name)]) for name, x in own.items()}
        self.labels = torch.cat([first.labels, torch.zeros_like(second.labels)])
        self.clouds = Cloud(label=self.labels, **joined)  # type: ignore[arg-type]


class RandomSubset(Derived):
    """Some clouds of another data set, drawn at random; a smaller subset is part of a larger one."""

    def __init__(self, source: Dataset, size: int) -> None:
        if size > len(source):
            raise DataError(f"{source.name} has {len(source):,} training clouds, fewer than --size {size:,}")
        super().__init__(source)
        self.source = source
        self.rows = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:size]
        self.labels = source.labels[self.rows]

    def batch(self, indices: Tensor) -> Cloud:
        """The clouds of these indices, stacked."""
        return self.source.batch(self.rows[indices])


def open_dataset(config: DataConfig, split: str) -> Dataset:
    """Open a split of the data: "train", "val" or "test"; of the first, `--size` clouds."""
    data = _open_whole(config, split)
    drawn = split == "train" and config.size is not None and config.data != "shapes"
    return RandomSubset(data, config.size or 0) if drawn else data


def _open_whole(config: DataConfig, split: str) -> Dataset:
    train = split == "train"
    near = config.near_fraction if train else 0.0
    if config.data == "shapes":
        queries = 0 if not config.queries else QUERY_POOL * config.queries if train else SHAPES_QUERIES[split]
        return InMemory(
            Shapes(split, size=shapes_size(config, split), points=config.stored_points, queries=queries, near=near)
        )
    if config.data == "occupancy":
        return _open_occupancy(config, split, near)
    if config.data == "modelnet40":
        return ModelNet40(split, config.data_root, points=config.stored_points)
    if config.data == "shapenet-part":
        return ShapeNetPart(split, config.data_root, points=config.stored_points)
    return Folder(
        config.folder,
        split,
        config.data_root,
        pack=config.pack,
        points=config.stored_points,
        up=config.up,
        drop_nan=config.drop_nan,
    )


def _open_occupancy(config: DataConfig, split: str, near: float) -> Dataset:
    stored = config.stored_points
    data = InMemory(
        Occupancy(split, config.data_root, points=stored, queries=None, near=near, normals=config.normals > 0)
    )
    queries, occupied = data.clouds.queries, data.clouds.occupied
    assert queries is not None
    assert occupied is not None
    if queries.shape[1] < config.queries:
        raise DataError(
            f"the pack has {queries.shape[1]:,} queries of a shape, fewer than --queries {config.queries:,}"
        )
    if split == "val":  # they are in random order
        queries, occupied = queries[:, : SHAPES_QUERIES["val"]], occupied[:, : SHAPES_QUERIES["val"]]
        data.clouds = replace(data.clouds, queries=queries, occupied=occupied)
    if config.add_shapes is None or split == "test":
        return data
    size = max(1, config.add_shapes // (1 if split == "train" else ADDED_VAL_DIVISOR))
    return Both(data, Shapes(split, size=size, points=stored, queries=queries.shape[1], near=near))


def shapes_size(config: DataConfig, split: str) -> int | None:
    """Number of clouds in a split of shapes; None is the default of the data set."""
    return None if config.size is None else max(1, config.size // SHAPES_SIZE_DIVISOR[split])


def build_task(config: RunConfig, data: Dataset, threshold: float | None = None) -> Task:
    """Build the task for this data; `threshold` is the probability at which a reconstruction is tested."""
    if config.task == "classification":
        if len(data.classes) < 2:
            raise DataError(
                f"there is one class only, {data.classes[0]!r}: put the files of each class into a folder of its own"
            )
        return Classification(data.classes)
    if config.task == "reconstruction":
        return Reconstruction(threshold, config.recipe.iou_loss)
    assert data.parts_of is not None  # checked with the configuration
    return Segmentation(data.parts, data.parts_of, data.classes)


def metadata(config: RunConfig, task: Task, data: Dataset) -> store.Metadata:
    """What a model that is trained on this data takes and gives."""
    categories = data.classes if config.task == "segmentation" else None
    return store.Metadata(
        classes=task.outputs,
        points=config.data.points,
        fewest_points=config.recipe.fewest_points,
        categories=categories,
        drawn_from=data.drawn_from,
    )


def check_data(model: nn.Module, data: store.Metadata, where: Path) -> None:
    """Refuse data whose classes, their order, or whose split differ from those of the model's training."""
    learned = store.metadata_of(model)
    for what, old, new in (
        ("classes", learned.classes, data.classes),
        ("categories", learned.categories, data.categories),
    ):
        if old is None or new is None or list(old) == list(new):
            continue
        gone, come = [x for x in old if x not in new], [x for x in new if x not in old]
        sides = (("model", gone), ("data", come))
        how = "; ".join(f"only the {side} has {abbreviate(some)}" for side, some in sides if some) or "in another order"
        raise TrainingError(f"{where} was trained on other {what} than those of the data: {how}")
    if None not in (learned.drawn_from, data.drawn_from) and learned.drawn_from != data.drawn_from:
        raise TrainingError(
            f"{where} was trained on other files: with them the split is drawn anew, and what was trained on would be "
            "tested; put them back, or into folders train and test of your own"
        )


def network_class(config: RunConfig) -> type[nn.Module]:
    """The class of the network: one of `NETWORKS`, or that of the user's file."""
    task, model = config.task, config.network.model
    if user_network.is_user_network(model):
        found = user_network.import_class(model)
        if task == "reconstruction" and not issubclass(found, OccupancyModel):
            raise ConfigError(
                f"--model {model}: {found.__name__} is not a subclass of vector_neurons.models.OccupancyModel, which "
                "encodes clouds and decodes query points"
            )
        return found
    if (task, model) not in NETWORKS:
        names = ", ".join(name for known, name in NETWORKS if known == task)
        own = "a class of your own as my_file.py:MyNet"
        raise ConfigError(f"--model {model} is not available for {task}: choose {names}, or {own}")
    return NETWORKS[task, model]


def user_class(config: RunConfig) -> type[nn.Module] | None:
    """The class that `store.load` needs to rebuild a user's network; None for the networks of this package."""
    return network_class(config) if user_network.is_user_network(config.network.model) else None


def network_options(config: NetworkConfig, network: type[nn.Module]) -> dict[str, Any]:
    """The options that differ from their defaults, as arguments of the constructor.

    All others are left to the constructor. An option that it does not take is refused.
    """
    parameters, renamed = inspect.signature(network.__init__).parameters, ARGUMENTS.get(network, {})
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    names = [one.name for one in fields(config) if one.name != "model"]
    changed = {name: x for name in names if (x := getattr(config, name)) != getattr(NetworkConfig(), name)}
    layers: dict[str, Any] = {}
    if "layers" in parameters and isinstance(parameters["layers"].default, LayerOptions):
        layers = {field: changed.pop(name) for name, field in LAYER_OPTIONS.items() if name in changed}
    refused = [
        f"--{name.replace('_', '-')}"
        for name in changed
        if not takes_all
        and (renamed.get(name, name) not in parameters or (name in renamed.values() and name not in renamed))
    ]
    if refused:
        raise ConfigError(f"{network.__name__} does not take {', '.join(refused)}")
    options = {renamed.get(name, name): value for name, value in changed.items()}
    head = parameters.get("hidden")
    if "hidden" in options and head is not None and isinstance(head.default, int):  # a head with one hidden layer
        if len(options["hidden"]) != 1:
            raise ConfigError(f"--hidden takes one width with --model {config.model}, got {len(options['hidden'])}")
        (options["hidden"],) = options["hidden"]
    return {**options, "layers": LayerOptions(**layers)} if layers else options


def build_network(config: RunConfig, data: Dataset) -> nn.Module:
    """Build the network, its weights initialized by the seed."""
    network = network_class(config)
    options = network_options(config.network, network)
    if network is OccupancyNetwork:
        options["encoder"] = config.network.model
    if network in (DGCNNSegmenter, PointNetSegmenter) and "widths" in options:
        options["widths"] = tuple((width,) for width in options["widths"])
    counts = {"classification": (data.classes,), "segmentation": (data.parts, data.classes), "reconstruction": ()}
    sizes = tuple(map(len, counts[config.task]))
    torch.manual_seed(config.runtime.seed)
    if user_network.is_user_network(config.network.model):
        return _build_user_network(network, sizes, options, user_network.relative_to_run(config.network.model))
    try:
        return network(*sizes, **options)
    except ValueError as error:  # channels that do not divide among heads, say
        raise ConfigError(f"--model {config.network.model} cannot be built: {first_line(error)}") from error


def _build_user_network(
    network: type[nn.Module], sizes: tuple[int, ...], options: dict[str, Any], reference: Any
) -> nn.Module:
    """Build a network of the user's, and record its reference and arguments, by which `store` can build it again."""
    call = f"{network.__name__}({', '.join([*map(str, sizes), *(f'{k}={v!r}' for k, v in options.items())])})"
    parameters = list(inspect.signature(network.__init__).parameters.values())[1 : 1 + len(sizes)]
    if any(parameter.kind in store.UNNAMED for parameter in parameters):
        raise TrainingError(
            f"{network.__name__}.__init__ takes *args or has a /: name its parameters to have it rebuilt"
        )
    try:
        built = network(*sizes, **options)
    except Exception as error:
        raise TrainingError(f"{call} failed: {user_network.describe(error)}") from error
    if any(is_lazy(parameter) for parameter in built.parameters()):
        raise TrainingError(f"{call} has lazy layers: give their sizes, so that its weights can be loaded")
    if not all(isinstance(value, Tensor) for value in built.state_dict().values()):
        raise TrainingError(f"{call} has extra state: keep it in buffers, so that it can be saved")
    if not any(parameter.requires_grad for parameter in built.parameters()):
        raise TrainingError(f"{call} has no parameters to train")
    arguments: Any = dict(zip((parameter.name for parameter in parameters), sizes, strict=True)) | options
    store.record(built, store.Origin(reference, arguments))
    return built
