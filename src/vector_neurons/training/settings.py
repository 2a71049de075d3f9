"""Everything a run depends on, as frozen dataclasses; what they say of themselves is the help of `vn train`."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..models.occupancy import CodeInvariants, DecoderName
from ..typing import Neurons, Nonlinearity, Pool, Rotations

TaskName = Literal["classification", "segmentation", "reconstruction"]
DataName = Literal["shapes", "modelnet40", "shapenet-part", "occupancy", "folder"]


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
    batch: int = 32
    """clouds of a step, of all processes together"""
    accumulate: int = 1
    """parts in which a process works through its share of a step"""
    optimiser: Literal["sgd", "adam", "adamw"] = "adamw"
    """SGD has momentum 0.9; AdamW decays matrices only"""
    rate: float = 2e-3
    """the largest learning rate"""
    schedule: Literal["one-cycle", "cosine", "step", "constant"] = "one-cycle"
    """one-cycle: up and down in cosines; cosine: down to --final-rate; step: times --factor every --every epochs"""
    warm_up: float = 0.3
    """share of the training in which the rate rises"""
    final_rate: float = 0.0
    """learning rate at the end, of one-cycle and cosine"""
    every: int = 20
    """epochs between the steps of a step schedule"""
    factor: float = 0.7
    """factor of these steps"""
    decay: float = 1e-2
    """weight decay"""
    smoothing: float = 0.1
    """label smoothing"""
    clip: float = 1.0
    """largest norm of the gradient; 0 does not clip"""
    ema: float = 0.0
    """decay of the moving average of the weights, which is then what is tested; 0 is without"""
    stretch: float = 1.25
    """augmentation: each axis by its own factor up to this, or down to its inverse"""
    zoom: float = 1.0
    """augmentation: all axes by one factor up to this, or down to its inverse"""
    shift: float = 0.1
    """augmentation: a shift of up to this along each axis"""
    jitter: float = 0.0
    """augmentation: standard deviation of noise on every point"""
    occlude: float = 0.0
    """augmentation: share of the clouds of which only what a camera sees is left, as of a scan from one side"""
    early_points: int | None = None
    """points of a cloud at the beginning"""
    early_share: float = 0.5
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
        """Back from a file, where tuples are lists."""
        groups = {"clouds": Clouds, "network": Network, "recipe": Recipe, "protocol": Protocol, "machine": Machine}
        try:
            parts: dict[str, Any] = {
                name: group(**{k: tuple(v) if isinstance(v, list) else v for k, v in saved[name].items()})
                for name, group in groups.items()
            }
            return Settings(saved["task"], **parts)
        except (KeyError, TypeError, AttributeError) as error:
            raise SettingsError(f"the settings are of another version of the package: {error}") from error


# What only some tasks have.
CODES = ("decoder", "code", "encoder_width", "decoder_width", "conditional", "code_invariants", "local")
CLASSIFIERS = ("nonlinearity", "pooling", "frame", "mean", "widths", "embedding", "hidden", "dropout")


def default(task: TaskName) -> Settings:
    """Where the flags of a task start from."""
    if task != "reconstruction":
        return Settings(task)
    return Settings(
        task,
        Clouds(points=300, pool=2048, noise=0.01, queries=2048),
        Network("pointnet"),
        recipe=Recipe(smoothing=0.0, stretch=1.0, shift=0.0),
        protocol=Protocol("I", ("I", "SO3"), fixed_poses=True),
    )


Refusals = list[tuple[bool, str]]


def _about_reconstruction(settings: Settings, fewest: int) -> Refusals:
    clouds, network, recipe = settings.clouds, settings.network, settings.recipe
    others = _changed(network, CLASSIFIERS)
    vectors = network.neurons == "vector" or network.decoder == "invariant"
    return [
        (
            clouds.data not in ("shapes", "occupancy"),
            f"--data {clouds.data} does not say what is inside: choose shapes or occupancy",
        ),
        (clouds.queries == 0, "reconstruction needs --queries to learn from"),
        (not 0 <= clouds.near <= 1, f"--near is a share, from 0 to 1, got {clouds.near}"),
        (others != "", f"{others} is not about reconstruction"),
        (recipe.shift > 0 or recipe.zoom > 1, "--shift and --zoom do nothing: every scan is put into the unit ball"),
        (
            (network.neurons, network.decoder) == ("vector", "plain"),
            "--decoder plain takes numbers: vector neurons go with the invariant one",
        ),
        (
            network.local > 0 and network.neurons == "scalar",
            "--local asks points for their vectors, which scalar neurons do not have",
        ),
        (network.local > fewest, f"--local {network.local} points are more than the {fewest} of a cloud"),
        (
            vectors and (network.code or 3) % 3 != 0,
            f"--code counts coordinates of vectors: a multiple of 3, got {network.code}",
        ),
    ]


def _about_others(settings: Settings) -> Refusals:
    own = _changed(settings.network, CODES)
    return [
        (settings.clouds.data == "occupancy", f"--data occupancy is for reconstruction, not {settings.task}"),
        (settings.clouds.queries > 0, f"--queries are for reconstruction, not for {settings.task}"),
        (own != "", f"{own} is about reconstruction, not {settings.task}"),
    ]


def _changed(network: Network, names: tuple[str, ...]) -> str:
    """The flags among these that are not at their defaults."""
    changed = [name for name in names if getattr(network, name) != getattr(Network(), name)]
    return ", ".join("--" + name.replace("_", "-") for name in changed)


def check(settings: Settings, processes: int = 1) -> None:
    """Refuse settings that cannot work, before any work; the message is one line."""
    clouds, network, recipe, tests = (
        settings.clouds,
        settings.network,
        settings.recipe,
        settings.protocol.test_rotations,
    )
    own, fewest = recipe.accumulate * processes, recipe.early_points or clouds.points
    plain = (network.nonlinearity, network.frame, network.mean) == ("built-in", "mlp", True)
    segmentable = clouds.data in ("shapes", "shapenet-part")
    reconstructs, graphs = settings.task == "reconstruction", network.model == "dgcnn" or network.neurons == "vector"
    k = network.k or (40 if (settings.task, network.model) == ("segmentation", "dgcnn") else 20)
    refusals = [
        *(_about_reconstruction(settings, fewest) if reconstructs else _about_others(settings)),
        (settings.task == "segmentation" and not segmentable, f"--data {clouds.data} has no parts to segment"),
        (clouds.data == "folder" and clouds.folder is None, "--data folder needs the --folder with the files"),
        (clouds.data != "folder" and clouds.folder is not None, "--folder belongs to --data folder"),
        (clouds.data != "shapes" and clouds.size is not None, "--size belongs to --data shapes"),
        (clouds.points > clouds.pool, f"--points {clouds.points} are more than the --pool of {clouds.pool}"),
        (fewest > clouds.points, f"--early-points {fewest} are more than --points {clouds.points}"),
        (graphs and k > fewest, f"--k {k} neighbours are more than the {fewest} points of a cloud"),
        (network.neurons == "scalar" and not plain, "--nonlinearity, --frame and --no-mean are about vector neurons"),
        (network.model != "dgcnn" and network.widths is not None, "--widths are those of a DGCNN"),
        (not tests or len(set(tests)) < len(tests), "--test-rotations takes one or more of I, z and SO3, each once"),
        (
            own > 0 and recipe.batch % own != 0,
            f"--batch {recipe.batch} cannot be shared by {processes} processes in {recipe.accumulate} parts each",
        ),
        (not 0 <= recipe.occlude <= 1, f"--occlude is a share, from 0 to 1, got {recipe.occlude}"),
        (own > 0 and recipe.batch < 2 * recipe.accumulate, f"--accumulate {recipe.accumulate} leaves single clouds"),
    ]
    for refused, why in refusals:
        if refused:
            raise SettingsError(why)
    at_least = {
        "points": (clouds.points, 1),
        "size": (1 if clouds.size is None else clouds.size, 1),
        "k": (1 if network.k is None else network.k, 1),
        "epochs": (recipe.epochs, 1),
        "batch": (recipe.batch, 2),
        "accumulate": (recipe.accumulate, 1),
        "rate": (recipe.rate, 0),
        "every": (recipe.every, 1),
        "decay": (recipe.decay, 0),
        "clip": (recipe.clip, 0),
        "stretch": (recipe.stretch, 1),
        "zoom": (recipe.zoom, 1),
        "shift": (recipe.shift, 0),
        "jitter": (recipe.jitter, 0),
        "noise": (clouds.noise, 0),
        "queries": (clouds.queries, 0),
        "code": (3 if network.code is None else network.code, 3),
        "encoder-width": (3 if network.encoder_width is None else network.encoder_width, 3),
        "local": (network.local, 0),
        "decoder-width": (1 if network.decoder_width is None else network.decoder_width, 1),
        "seed": (settings.machine.seed, 0),
        "threads": (1 if settings.machine.threads is None else settings.machine.threads, 1),
        "checkpoint-minutes": (settings.machine.checkpoint_minutes, 0),
        "embedding": (3 if network.embedding is None else network.embedding, 3),
        "widths": (min(network.widths or (3,)), 3),
        "hidden": (min(network.hidden or (1,)), 1),
    }
    shares = {
        "smoothing": recipe.smoothing,
        "ema": recipe.ema,
        "warm-up": recipe.warm_up,
        "dropout": network.dropout or 0,
    }
    for name, (value, least) in at_least.items():
        if not value >= least or not math.isfinite(value):
            raise SettingsError(f"--{name} takes {least} or more, got {value}")
    for name, value in shares.items():
        if not 0 <= value < 1:
            raise SettingsError(f"--{name} takes a number from 0 to 1, 1 itself excluded, got {value}")
