"""Settings that cannot work, refused in one line before any work."""

import math

from .settings import LARGEST, Network, Settings, SettingsError

# Without an upper bound a typo asks for all the memory there is.
MAX_STORED = 2**27  # points of all clouds of shapes, which are held in memory
MAX_POINTS, MAX_WIDTH, MAX_LAYERS, MAX_BATCH, MAX_THREADS = 2**20, 2**16, 64, 2**16, 1024
# What only some tasks have.
CODES = ("decoder", "code", "encoder_width", "decoder_width", "conditional", "code_invariants", "local")
CLASSIFIERS = ("nonlinearity", "pooling", "frame", "mean", "widths", "embedding", "hidden", "dropout")

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
        (recipe.shift > 0 or recipe.scale > 1, "--shift and --scale do nothing: every scan is put into the unit ball"),
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
        (
            clouds.data == "folder" and (clouds.folder is None) == (clouds.pack is None),
            "--data folder needs the --folder with the files, or the --pack made of it",
        ),
        (
            clouds.data != "folder" and (clouds.folder is not None or clouds.pack is not None),
            "--folder and --pack belong to --data folder",
        ),
        (
            clouds.folder is None and (clouds.up is not None or clouds.drop_nan),
            "--up and --drop-nan are about the files of --folder; a pack was made with its own",
        ),
        (clouds.data != "shapes" and clouds.size is not None, "--size belongs to --data shapes"),
        (
            (clouds.size or 0) * clouds.pool > MAX_STORED,
            f"--size {clouds.size} clouds of --pool {clouds.pool} points are more than the {MAX_STORED:,} points kept",
        ),
        (clouds.points > clouds.pool, f"--points {clouds.points} are more than the --pool of {clouds.pool}"),
        (fewest > clouds.points, f"--early-points {fewest} are more than --points {clouds.points}"),
        (graphs and k > fewest, f"--k {k} neighbours are more than the {fewest} points of a cloud"),
        (network.neurons == "scalar" and not plain, "--nonlinearity, --frame and --no-mean are about vector neurons"),
        (network.model != "dgcnn" and network.widths is not None, "--widths are those of a DGCNN"),
        (not tests or len(set(tests)) < len(tests), "--test-rotations takes one or more of I, z and SO3, each once"),
        (
            own > 0 and recipe.batch_size % own != 0,
            f"--batch-size {recipe.batch_size} cannot be shared by {processes} processes in {recipe.accumulate} parts",
        ),
        (not 0 <= recipe.occlude <= 1, f"--occlude is a share, from 0 to 1, got {recipe.occlude}"),
        (
            own > 0 and recipe.batch_size < 2 * recipe.accumulate,
            f"--accumulate {recipe.accumulate} leaves single clouds",
        ),
    ]
    for refused, why in refusals:
        if refused:
            raise SettingsError(why)
    lists = {"widths": network.widths, "hidden": network.hidden}
    for name, widths in lists.items():
        if widths is not None and not 1 <= len(widths) <= MAX_LAYERS:
            raise SettingsError(f"--{name} takes 1 to {MAX_LAYERS} layers, got {len(widths)}")
    # What is None is as in the paper.
    bounds: dict[str, tuple[float | None, float, float]] = {
        "points": (clouds.points, 1, MAX_POINTS),
        "pool": (clouds.pool, 1, MAX_POINTS),
        "size": (clouds.size, 1, LARGEST),
        "k": (network.k, 1, MAX_POINTS),
        "epochs": (recipe.epochs, 1, LARGEST),
        "batch-size": (recipe.batch_size, 2, MAX_BATCH),
        "accumulate": (recipe.accumulate, 1, MAX_BATCH),
        "lr": (recipe.lr, 0, math.inf),
        "step-size": (recipe.step_size, 1, LARGEST),
        "weight-decay": (recipe.weight_decay, 0, math.inf),
        "clip-grad-norm": (recipe.clip_grad_norm, 0, math.inf),
        "anisotropic-scale": (recipe.anisotropic_scale, 1, math.inf),
        "scale": (recipe.scale, 1, math.inf),
        "shift": (recipe.shift, 0, math.inf),
        "jitter": (recipe.jitter, 0, math.inf),
        "noise": (clouds.noise, 0, math.inf),
        "queries": (clouds.queries, 0, MAX_POINTS),
        "code": (network.code, 3, MAX_WIDTH),
        "encoder-width": (network.encoder_width, 3, MAX_WIDTH),
        "local": (network.local, 0, MAX_POINTS),
        "decoder-width": (network.decoder_width, 1, MAX_WIDTH),
        "seed": (settings.machine.seed, 0, LARGEST),
        "threads": (settings.machine.threads, 1, MAX_THREADS),
        "checkpoint-minutes": (settings.machine.checkpoint_minutes, 0, math.inf),
        "embedding": (network.embedding, 3, MAX_WIDTH),
        **{f"widths[{i}]": (width, 3, MAX_WIDTH) for i, width in enumerate(network.widths or ())},
        **{f"hidden[{i}]": (width, 1, MAX_WIDTH) for i, width in enumerate(network.hidden or ())},
    }
    shares = {
        "label-smoothing": recipe.label_smoothing,
        "ema": recipe.ema,
        "warmup": recipe.warmup,
        "dropout": network.dropout or 0,
    }
    for name, (value, least, most) in bounds.items():
        flag = name.partition("[")[0]
        if value is not None and (not value >= least or not math.isfinite(value)):
            raise SettingsError(f"--{flag} takes {least} or more, got {value}")
        if value is not None and value > most:
            raise SettingsError(f"--{flag} takes at most {most:,}, got {value:,}")
    for name, value in shares.items():
        if not 0 <= value < 1:
            raise SettingsError(f"--{name} takes a number from 0 to 1, 1 itself excluded, got {value}")
