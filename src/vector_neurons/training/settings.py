"""Everything a run depends on, as frozen dataclasses; what they say of themselves is the help of `vn train`."""

import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..data.rows import Up
from ..models.occupancy import CodeInvariants, DecoderName
from ..typing import Neurons, Nonlinearity, Pool, Rotations

TaskName = Literal["classification", "segmentation", "reconstruction"]
DataName = Literal["shapes", "modelnet40", "shapenet-part", "occupancy", "folder"]


LARGEST = 2**31 - 1  # of any whole number in the settings


class SettingsError(ValueError):
    """Settings that cannot go together; the message is one line."""


@dataclass(frozen=True)
class Clouds:
    """The data."""

    data: DataName = "shapes"
    """the data set; `shapes` needs no download"""
    data_root: str | None = None
    """where packs are; by default the environment's VN_DATA, or the platform's cache directory"""
    folder: str | None = None
    """your own files, one sub-folder for each class; with --data folder"""
    pack: str | None = None
    """in place of --folder, the pack that `vn data folder --to NAME` made of it: its name, or its path"""
    up: Up | None = None
    """axis that is up in the files of --folder; by default y in .glb, z in all others"""
    drop_nan: bool = False
    """leave out points of the files of --folder that are NaN or infinite"""
    size: int | None = None
    """number of training clouds of shapes, by default 4200; a tenth and a fifth as many to validate and test"""
    points: int = 1024
    """points of a cloud that the network sees"""
    pool: int = 1024
    """points stored of a cloud; if more than --points, training draws others every time"""
    noise: float = 0.0
    """standard deviation of the noise on the points, in testing as in training; clouds have radius 1"""
    queries: int = 0
    """reconstruction: places with known occupancy that a step sees of each cloud; testing sees all that are known"""
    near: float = 0.5
    """reconstruction: share of the training queries that lie near the surface; testing has uniform ones"""


@dataclass(frozen=True)
class Network:
    """The network; what is None is as in the paper."""

    model: Literal["dgcnn", "pointnet"] = "dgcnn"
    """the architecture"""
    neurons: Neurons = "vector"
    """vector: the paper's; scalar: the classical network"""
    k: int | None = None
    """neighbours in the graph"""
    nonlinearity: Nonlinearity = "built-in"
    """with a linear map of its own, or detached from it"""
    pooling: Pool | None = None
    """how the neighbours of a point are summed up"""
    frame: Literal["mlp", "linear"] = "mlp"
    """what makes the frame of the invariant layer"""
    mean: bool = True
    """join the mean over the cloud before the invariant layer"""
    widths: tuple[int, ...] | None = None
    """channels of the edge convolutions of a DGCNN, counted in scalar neurons"""
    embedding: int | None = None
    """channels before the pool over points"""
    hidden: tuple[int, ...] | None = None
    """widths of the classifier"""
    dropout: float | None = None
    """of the classifier"""
    decoder: DecoderName | None = None
    """reconstruction: invariant, which vector neurons need, or plain, as in OccNet"""
    code: int | None = None
    """reconstruction: channels of the code, counted in scalar neurons"""
    encoder_width: int | None = None
    """reconstruction: channels of the encoder, counted in scalar neurons"""
    decoder_width: int | None = None
    """reconstruction: channels of the decoder"""
    conditional: bool = False
    """reconstruction: conditional batch norm in the decoder, OccNet's stronger one"""
    code_invariants: CodeInvariants = "frame"
    """reconstruction: of the code the decoder sees VN-In(Z), as the paper has it, or its code's <Z, W Z>"""
    local: int = 0
    """reconstruction, beyond the paper: points nearest to a place that the decoder asks, too; 0 is without"""


@dataclass(frozen=True)
class Recipe:
    """How to train."""

    epochs: int = 30
    """times through the training set"""
    batch_size: int = 32
    """clouds of a step, of all processes together"""
    accumulate: int = 1
    """parts in which a process works through its share of a step"""
    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"
    """SGD has momentum 0.9; AdamW decays matrices only"""
    lr: float = 2e-3
    """the largest learning rate"""
    schedule: Literal["one-cycle", "cosine", "step", "constant"] = "one-cycle"
    """one-cycle: up and down in cosines; cosine: down to --final-lr; step: times --gamma every --step-size epochs"""
    warmup: float = 0.3
    """share of the training in which the learning rate rises"""
    final_lr: float = 0.0
    """learning rate at the end, of one-cycle and cosine"""
    step_size: int = 20
    """epochs between the steps of a step schedule"""
    gamma: float = 0.7
    """factor of these steps"""
    weight_decay: float = 1e-2
    """weight decay"""
    label_smoothing: float = 0.1
    """label smoothing"""
    clip_grad_norm: float = 1.0
    """largest norm of the gradient; 0 does not clip"""
    ema: float = 0.0
    """decay of the moving average of the weights, which is then what is tested; 0 is without"""
    anisotropic_scale: float = 1.25
    """augmentation: each axis by its own factor up to this, or down to its inverse"""
    scale: float = 1.0
    """augmentation: all axes by one factor up to this, or down to its inverse"""
    shift: float = 0.1
    """augmentation: a shift of up to this along each axis"""
    jitter: float = 0.0
    """augmentation: standard deviation of noise on every point"""
    occlude: float = 0.0
    """augmentation: share of the clouds of which only what a camera sees is left, as of a scan from one side"""
    early_points: int | None = None
    """points of a cloud at the beginning"""
    early_fraction: float = 0.5
    """share of the epochs that have --early-points"""


@dataclass(frozen=True)
class Protocol:
    """Poses: I is as delivered, z turned about the vertical, SO3 turned anyhow."""

    train_rotations: Rotations = "z"
    """drawn anew for every cloud and epoch; validation has one fixed pose of each cloud, of the same kind"""
    test_rotations: tuple[Rotations, ...] = ("z", "SO3")
    """each test cloud has one pose, fixed by --seed and its number"""
    fixed_poses: bool = False
    """each training cloud has one pose for the whole training, too, as in the paper's reconstruction"""


@dataclass(frozen=True)
class Machine:
    """The run."""

    seed: int = 0
    """of weights, order, poses and augmentations"""
    device: str = "cpu"
    """cpu, cuda or cuda:1"""
    threads: int | None = None
    """processor threads of a process"""
    bf16: bool = False
    """bfloat16 where that is safe"""
    compile: bool = False
    """compile the network with torch.compile"""
    skip_bad_batches: bool = False
    """leave out batches whose loss or gradient is not finite, instead of stopping"""
    checkpoint_minutes: float = 10.0
    """time between checkpoints within an epoch"""


@dataclass(frozen=True)
class Settings:
    """A run."""

    task: TaskName = "classification"
    clouds: Clouds = field(default_factory=Clouds)
    network: Network = field(default_factory=Network)
    recipe: Recipe = field(default_factory=Recipe)
    protocol: Protocol = field(default_factory=Protocol)
    machine: Machine = field(default_factory=Machine)

    def as_dict(self) -> dict[str, Any]:
        """Plain containers, for a file."""
        return asdict(self)

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> "Settings":
        """Back from a file, where tuples are lists, and which may have been changed by hand."""
        groups = {"clouds": Clouds, "network": Network, "recipe": Recipe, "protocol": Protocol, "machine": Machine}
        if not isinstance(saved, Mapping) or not all(isinstance(saved.get(name), Mapping) for name in groups):
            names = ", ".join(groups)
            raise SettingsError(f"there are no groups {names}: the file is of another version of the package")
        parts: dict[str, Any] = {name: _typed(group, saved[name]) for name, group in groups.items()}
        if saved.get("task") not in get_args(TaskName):
            raise SettingsError(f"task must be one of {', '.join(get_args(TaskName))}, got {saved.get('task')!r}")
        return Settings(saved["task"], **parts)


def _typed(group: type[Any], saved: Mapping[str, Any]) -> Any:
    """A group of settings from a file, every value of the type of its field."""
    hints, values = get_type_hints(group), {}
    for name, value in saved.items():
        if name not in hints:
            raise SettingsError(
                f"there is no setting {name!r}: the file is of another version of the package"
                " (benchmarks/rename_settings.py converts older ones)"
            )
        value = tuple(value) if isinstance(value, list) else value
        if type(value) is int and not _fits(value, hints[name]) and abs(value) <= LARGEST:
            value = float(value)
        if not _fits(value, hints[name]):
            raise SettingsError(f"{name} must be {_wanted(hints[name])}, got {str(saved[name])[:40]!r}")
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
    """Whether a value is of a type, as far as settings have types."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if get_origin(hint) is Literal:
        return type(value) is str and value in get_args(hint)
    if get_origin(hint) is tuple:
        return type(value) is tuple and all(_fits(one, get_args(hint)[0]) for one in value)
    return type(value) is hint and (hint is not int or abs(value) <= LARGEST)


def default(task: TaskName) -> Settings:
    """Where the flags of a task start from."""
    if task != "reconstruction":
        return Settings(task)
    return Settings(
        task,
        Clouds(points=300, pool=2048, noise=0.01, queries=2048),
        Network("pointnet"),
        recipe=Recipe(label_smoothing=0.0, anisotropic_scale=1.0, shift=0.0),
        protocol=Protocol("I", ("I", "SO3"), fixed_poses=True),
    )
