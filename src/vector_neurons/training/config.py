"""The configuration of a run, as frozen dataclasses: fields are the flags of `vn train`, their docstrings its help."""

import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ..data.rows import Up
from ..models.occupancy import DecoderName
from ..models.occupancy_decoder import CodeInvariants
from ..typing import DirectionSource, Neurons, Pool, Rotations
from .errors import ConfigError

TaskName = Literal["classification", "segmentation", "reconstruction"]
DataName = Literal["shapes", "modelnet40", "shapenet-part", "occupancy", "folder"]

MAX_INT = 2**31 - 1
MAX_THREADS = 1024
ANOTHER_VERSION = (
    "the file is of another version of the package "
    "(benchmarks/rename_settings.py of the repository converts older ones)"
)


@dataclass(frozen=True)
class Range:
    """The values that a number may take. Upper bounds keep a typo from asking for all the memory there is."""

    low: float
    high: float = math.inf
    excludes_high: bool = False

    def __contains__(self, value: float) -> bool:
        return (
            math.isfinite(value) and self.low <= value <= self.high and not (self.excludes_high and value == self.high)
        )

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{self.low} or more"
        return f"{self.low:,} to {self.high:,}" + (f", {self.high:,} excluded" if self.excludes_high else "")


Count = Annotated[int, Range(1, MAX_INT)]
PointCount = Annotated[int, Range(1, 2**20)]
PointCountOrZero = Annotated[int, Range(0, 2**20)]
Width = Annotated[int, Range(1, 2**16)]
VectorWidth = Annotated[int, Range(3, 2**16)]  # counted in scalar neurons, of which vector neurons take a third
BatchCount = Annotated[int, Range(1, 2**16)]
NonNegative = Annotated[float, Range(0)]
Factor = Annotated[float, Range(1)]
Fraction = Annotated[float, Range(0, 1)]
FractionBelowOne = Annotated[float, Range(0, 1, excludes_high=True)]


@dataclass(frozen=True)
class DataConfig:
    """The data."""

    data: DataName = "shapes"
    """data set; `shapes` is part of the package, the others are packs made by `vn data`"""
    data_root: str | None = None
    """folder of the packs; by default the environment variable VN_DATA, or the platform's cache directory"""
    folder: str | None = None
    """folder of your own files, one sub-folder for each class; with --data folder"""
    pack: str | None = None
    """name or path of the pack that `vn data folder --to NAME` made, in place of --folder"""
    up: Up | None = None
    """vertical axis of the files in --folder; by default y in .glb, z in all others"""
    drop_nan: bool = False
    """drop points that are NaN or infinite in the files of --folder"""
    size: Count | None = None
    """number of training clouds: of --data shapes by default 4200 (validation has a tenth, the test set a fifth); of
    other data by default all, or a random subset, part of every larger one"""
    points: PointCount = 1024
    """points per cloud that the network gets"""
    stored_points: PointCount = 1024
    """points stored per cloud; if more than --points, every epoch samples other ones"""
    noise: NonNegative = 0.0
    """standard deviation of Gaussian noise on the points, in training and testing; clouds have radius 1"""
    queries: PointCountOrZero = 0
    """reconstruction: query points per cloud in a training step; testing uses all that are known"""
    near_fraction: Fraction = 0.5
    """reconstruction: fraction of the training query points near the surface; the test set's are uniform"""
    add_shapes: Count | None = None
    """with --data occupancy: number of embedded shapes to train on as well; validation gets a twentieth as many"""
    normals: Fraction = 0.0
    """reconstruction by framenet: fraction of the training batches whose points have normals; 1: in testing, too"""


@dataclass(frozen=True)
class NetworkConfig:
    """The network; None takes the default of its constructor, which is the paper's."""

    model: str = "dgcnn"
    """architecture: dgcnn, pointnet, framenet; transformer to classify; or your own class as
    my_file.py:MyNet"""
    neurons: Neurons = "vector"
    """vector: rotation-equivariant vector neurons; scalar: the classical network; hybrid: scalars beside vectors"""
    k: PointCount | None = None
    """number of nearest neighbors in the graph"""
    direction: DirectionSource = "input"
    """source of the direction of a non-linearity: input of the block, or output (the paper's detached form)"""
    pooling: Pool | None = None
    """how features of neighbors are aggregated; by default mean for vector neurons, max for others"""
    frame: Literal["mlp", "linear"] = "mlp"
    """layers that produce the frame of the invariant layer"""
    mean: bool = True
    """concatenate the mean over the cloud before the invariant layer"""
    widths: tuple[VectorWidth, ...] | None = None
    """channels of the edge convolutions of a DGCNN, counted in scalar neurons"""
    embedding: VectorWidth | None = None
    """channels before the pooling over points, counted in scalar neurons; the width of a transformer or framenet"""
    hidden: tuple[Width, ...] | None = None
    """widths of the hidden layers of the head"""
    dropout: FractionBelowOne | None = None
    """dropout in the head"""
    depth: Annotated[int, Range(1, 64)] | None = None
    """number of encoder layers of a transformer"""
    heads: Width | None = None
    """number of attention heads of a transformer"""
    decoder: DecoderName | None = None
    """reconstruction: decoder, invariant (with vector neurons) or plain (as in OccNet)"""
    code: VectorWidth | None = None
    """reconstruction: channels of the latent code, counted in scalar neurons"""
    encoder_width: VectorWidth | None = None
    """reconstruction: channels of the encoder, counted in scalar neurons"""
    decoder_width: Width | None = None
    """reconstruction: channels of the decoder"""
    conditional: bool = False
    """reconstruction: conditional batch norm in the decoder, as in OccNet"""
    code_invariants: CodeInvariants = "frame"
    """reconstruction: invariants of the code Z that the decoder gets, VN-In(Z) (the paper) or <Z, W Z> (its code)"""
    local: PointCountOrZero = 0
    """reconstruction, beyond the paper: nearest points whose features the decoder gets at each query point; 0: none"""


@dataclass(frozen=True)
class RecipeConfig:
    """Optimization and augmentation."""

    epochs: Count = 30
    """passes through the training set"""
    batch_size: Annotated[int, Range(2, 2**16)] = 32
    """clouds per step, of all processes together"""
    balance: Fraction = 0.0
    """draw clouds of rare classes or categories more often: 0 takes every cloud once an epoch, 1 all classes alike"""
    accumulate: BatchCount = 1
    """gradient accumulation: parts into which each process splits its share of a batch"""
    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"
    """optimizer; SGD has momentum 0.9, AdamW decays matrices only"""
    lr: NonNegative = 2e-3
    """peak learning rate"""
    schedule: Literal["one-cycle", "cosine", "step", "constant"] = "one-cycle"
    """one-cycle: cosine up and down; cosine: down to --final-lr; step: times --gamma every --step-size epochs"""
    warmup: FractionBelowOne = 0.3
    """fraction of the training in which the learning rate rises"""
    final_lr: NonNegative = 0.0
    """learning rate at the end of one-cycle and cosine"""
    step_size: Count = 20
    """epochs between the steps of the step schedule"""
    gamma: NonNegative = 0.7
    """factor of the step schedule"""
    weight_decay: NonNegative = 1e-2
    """weight decay"""
    label_smoothing: FractionBelowOne = 0.1
    """label smoothing of the cross-entropy"""
    iou_loss: NonNegative = 0.0
    """reconstruction: weight of a soft IoU loss beside the cross-entropy, which thin shapes need"""
    init: str | None = None
    """start from the weights of a run, or of a model of the package such as classification, where they fit"""
    clip_grad_norm: NonNegative = 1.0
    """maximum norm of the gradient; 0 does not clip"""
    ema: FractionBelowOne = 0.0
    """decay of the exponential moving average of the weights, which is then validated and tested; 0: none"""
    anisotropic_scale: Factor = 1.25
    """augmentation: scale each axis by its own factor, at most this and at least its inverse"""
    scale: Factor = 1.0
    """augmentation: scale all axes by one factor, at most this and at least its inverse"""
    shift: NonNegative = 0.1
    """augmentation: translate by at most this along each axis"""
    jitter: NonNegative = 0.0
    """augmentation: standard deviation of noise on every point, in training only"""
    occlude: Fraction = 0.0
    """augmentation: fraction of the clouds that are reduced to what a camera sees from one side; in reconstruction
    also of the validation clouds"""
    outliers: Fraction = 0.0
    """augmentation: replace at most this fraction of the points of a cloud by outliers"""
    vary_noise: bool = False
    """augmentation: draw the noise of each training cloud anew, from none to twice --noise"""
    fewest_points: PointCount | None = None
    """augmentation: draw the number of points of each training batch anew, from this to --points"""
    early_points: PointCount | None = None
    """points per cloud in the first epochs"""
    early_fraction: Fraction = 0.5
    """fraction of the epochs that use --early-points, for training and validation; the best model is of later ones"""
    freeze_norms: Fraction = 0.0
    """fraction of the epochs, the last ones, in which batch norms keep the statistics they have, so that the network is
    trained as it is tested; with --fewest-points, as statistics differ with the number of points"""


@dataclass(frozen=True)
class ProtocolConfig:
    """Rotations: I is none, z about the vertical axis, SO3 arbitrary."""

    train_rotations: Rotations = "z"
    """rotations of the training clouds, new ones in every epoch; validation has one fixed rotation per cloud"""
    test_rotations: tuple[Rotations, ...] = ("z", "SO3")
    """rotations of the test clouds, one per cloud, fixed by --seed and its index"""
    fixed_poses: bool = False
    """keep one rotation per training cloud for the whole training, as in the paper's reconstruction"""


@dataclass(frozen=True)
class RuntimeConfig:
    """How the run executes."""

    seed: Annotated[int, Range(0, MAX_INT)] = 0
    """seed of weights, order, rotations and augmentations"""
    device: str = "cpu"
    """cpu, cuda or cuda:1"""
    threads: Annotated[int, Range(1, MAX_THREADS)] | None = None
    """CPU threads per process"""
    bf16: bool = False
    """bfloat16 autocast"""
    compile: bool = False
    """compile the network with torch.compile"""
    skip_bad_batches: bool = False
    """skip batches whose loss or gradient is not finite, instead of stopping"""
    checkpoint_minutes: NonNegative = 10.0
    """minutes between checkpoints within an epoch"""


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run."""

    task: TaskName = "classification"
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    recipe: RecipeConfig = field(default_factory=RecipeConfig)
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    def as_dict(self) -> dict[str, Any]:
        """Plain containers, for a JSON file."""
        return asdict(self)

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> "RunConfig":
        """Read a configuration from the contents of a JSON file, and check the types of all values."""
        groups = {name: group for name, group in get_type_hints(RunConfig).items() if name != "task"}
        if not isinstance(saved, Mapping) or not all(isinstance(saved.get(name), Mapping) for name in groups):
            raise ConfigError(f"it lacks some of the groups {', '.join(groups)}: {ANOTHER_VERSION}")
        if saved.get("task") not in get_args(TaskName):
            raise ConfigError(f"task must be one of {', '.join(get_args(TaskName))}, got {saved.get('task')!r}")
        return RunConfig(saved["task"], **{name: _typed(group, saved[name]) for name, group in groups.items()})

    def check_ranges(self) -> None:
        """Refuse a number outside the range of its field."""
        for part in (self.data, self.network, self.recipe, self.protocol, self.runtime):
            hints = get_type_hints(type(part), include_extras=True)
            for name in (one.name for one in fields(part)):
                for value, allowed in _ranged(getattr(part, name), hints[name]):
                    if value not in allowed:
                        raise ConfigError(f"--{name.replace('_', '-')} takes {allowed}, got {value}")


def default_config(task: TaskName) -> RunConfig:
    """The defaults of `vn train TASK`."""
    if task != "reconstruction":
        return RunConfig(task)
    return RunConfig(
        task,
        DataConfig(points=300, stored_points=2048, noise=0.01, queries=2048),
        NetworkConfig("pointnet"),
        recipe=RecipeConfig(label_smoothing=0.0, anisotropic_scale=1.0, shift=0.0),
        protocol=ProtocolConfig("I", ("I", "SO3"), fixed_poses=True),
    )


def _ranged(value: Any, hint: Any) -> Iterator[tuple[float, Range]]:
    """The numbers in a value, each with the range that its annotation gives it."""
    if value is None:
        return
    if get_origin(hint) is Annotated:
        yield from ((value, allowed) for allowed in hint.__metadata__ if isinstance(allowed, Range))
    elif get_origin(hint) is tuple:
        for one in value:
            yield from _ranged(one, get_args(hint)[0])
    elif get_origin(hint) in (Union, types.UnionType):
        for option in get_args(hint):
            yield from _ranged(value, option)


def _typed(group: type[Any], saved: Mapping[str, Any]) -> Any:
    """A group of the configuration from a file, every value of the type of its field."""
    hints, values = get_type_hints(group), {}
    for name, value in saved.items():
        if name not in hints:
            raise ConfigError(f"unknown setting {str(name)[:40]!r}: {ANOTHER_VERSION}")
        value = tuple(value) if isinstance(value, list) else value
        if type(value) is int and not _fits(value, hints[name]) and abs(value) <= MAX_INT:
            value = float(value)
        if not _fits(value, hints[name]):
            raise ConfigError(f"{name} must be {_wanted(hints[name])}, got {str(saved[name])[:40]!r}")
        values[name] = value
    return group(**values)


def _wanted(hint: Any) -> str:
    """A type in words."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list, each {_wanted(get_args(hint)[0])}"
    if get_args(hint):
        return " or ".join(map(_wanted, get_args(hint)))
    return "null" if hint is types.NoneType else str(hint.__name__)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type of a field."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if get_origin(hint) is Literal:
        return type(value) is str and value in get_args(hint)
    if get_origin(hint) is tuple:
        return type(value) is tuple and all(_fits(one, get_args(hint)[0]) for one in value)
    return type(value) is hint and (hint is not int or abs(value) <= MAX_INT)
