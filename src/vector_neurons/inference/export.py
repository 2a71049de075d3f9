"""Export networks to ONNX, or to a torch archive, that run without this library; each file is run and compared.

One file takes any number of clouds and of points. Neighbors and farthest-point samples are standard operators, with the
same ties as in the library, so that the exported network keeps its symmetry.
"""

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jaxtyping
import torch
from torch import Tensor, nn

from .. import kernels
from .._files import atomic_replace, first_line
from ..geometry.decompositions import DECOMPOSITIONS
from ..geometry.sampling import unit_ball
from ..models import Model, OccupancyModel, store
from ..testing.measure import random_element

Format = Literal["onnx", "torch"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
SIZES = (256, 2000)  # points of the clouds that an exported file is compared on
MAX_DIFFERENCE = 1e-4  # between outputs of the file and of the network
MAX_INVARIANCE_ERROR = 1e-3  # between outputs of the file for a cloud and for the rotated cloud
METADATA = "metadata.json"  # in a torch archive

Run = Callable[..., Tensor]


class ExportError(ValueError):
    """A network that cannot be exported, or a file whose outputs differ; the message is one line."""


class Check(NamedTuple):
    """Largest differences of outputs, on random clouds of some size.

    Args:
        clouds: number of clouds.
        points: of each.
        difference: between the file and the network.
        invariance_error: of the file, between a cloud and the rotated cloud.
        invariant: whether the network itself is invariant, to within `MAX_INVARIANCE_ERROR`.
    """

    clouds: int
    points: int
    difference: float
    invariance_error: float
    invariant: bool


@dataclass(frozen=True)
class Export:
    """What was written.

    Args:
        path: the file.
        size: of the file, in bytes.
        inputs: for each input its name and axes; axes with names take any size.
        min_points: the smallest cloud that the network takes.
        opset: version of the ONNX operators; None in a torch archive.
        checks: the comparison with the network, for each of `SIZES`.
    """

    path: Path
    size: int
    inputs: dict[str, tuple[int | str, ...]]
    min_points: int
    opset: int | None
    checks: tuple[Check, ...]


def export(model: nn.Module, path: str | Path, to: Format = "onnx") -> Export:
    """Write a network to a file that runs without this library, and compare their outputs.

    The file is run on random clouds of 256 and of 2,000 points. If its outputs differ from the network's by more than
    1e-4, or change by more than 1e-3 under a rotation where the network's do not, it is not kept.

    Args:
        model: a network of this library, or of your own on clouds `(B, N, 3)`; it is exported in float32 and
            evaluation mode, and stays as it is.
        path: of the file, ending in `.onnx` or `.pt2`.
        to: `"onnx"`, standard operators only; `"torch"`, an archive for `torch.export.load`, torch's operators only.

    Raises:
        ExportError: the network cannot be exported, or the outputs differ.
        ImportError: the extra `export` is not installed.
    """
    path = Path(path)
    if path.suffix.lower() != SUFFIXES[to]:
        raise ExportError(f"cannot write {path}: a file for {to} ends in {SUFFIXES[to]}")
    if to == "onnx":
        _import_runtime()  # before any work
    with kernels.using("eager"), torch.no_grad():  # whose operations all have a standard counterpart
        network = _float32(model)
        min_points = _min_points(network)
        program, inputs = _program(network)
        min_points = max(min_points, _min_exported(program))
        # Compared before the file gets its name: a wrong one would be used.
        with atomic_replace(path) as part:
            opset = _write_onnx(program, inputs, network, part) if to == "onnx" else None
            if to == "torch":
                _write_archive(program, network, part)
            run = (_load_onnx if to == "onnx" else _load_archive)(part)
            checks = tuple(_compare(run, network, clouds, points) for clouds, points in enumerate(SIZES, 1))
    return Export(path, path.stat().st_size, inputs, min_points, opset, checks)


def description(model: nn.Module) -> dict[str, str]:
    """What the file says about itself, as text: the class, and what inputs and outputs stand for; lists are JSON."""
    meaning = {name: value for name, value in asdict(store.metadata_of(model)).items() if value is not None}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in meaning.items()}
    return {"model": type(model).__name__, "library": f"vector-neurons {version('vector-neurons')}", **texts}


def _float32(model: nn.Module) -> nn.Module:
    """The network in evaluation mode and float32, on the CPU; a copy unless it is that already."""
    done = not model.training and all(x.dtype == torch.float32 and x.device.type == "cpu" for x in model.parameters())
    return model if done else copy.deepcopy(model).float().cpu().eval()


def _example(model: nn.Module, clouds: int, points: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Random inputs, and the kind of each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(points)
        cloud = unit_ball(torch.randn(clouds, points, 3))
        if isinstance(model, Model):
            return model.example(cloud)
        categories = store.metadata_of(model).categories  # of a user's network that segments
        return (cloud, torch.zeros(clouds, dtype=torch.long)) if categories else (cloud,), ("points", "scalars")


def _min_points(model: nn.Module) -> int:
    """The smallest number of points that the network takes, by bisection."""

    def fails(points: int) -> Exception | None:
        try:
            model(*_example(model, 2, points)[0])
        except (ValueError, RuntimeError, IndexError) as error:
            return error
        return None

    low, high = 0, SIZES[0]
    if error := fails(high):
        raise ExportError(f"{type(model).__name__} does not run on clouds of {high} points: {first_line(error)}")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return high


def _min_exported(program: torch.export.ExportedProgram) -> int:
    """The smallest number of points for which the graph was traced; code may branch below it."""
    points = next(x for x in program.graph.nodes if x.name == program.graph_signature.user_inputs[0]).meta["val"]
    return int(program.range_constraints[points.shape[1].node.expr].lower)


def _program(model: nn.Module) -> tuple[torch.export.ExportedProgram, dict[str, tuple[int | str, ...]]]:
    """The network as a graph of torch's own operators, and the axes of its inputs."""
    example, _ = _example(model, 2, SIZES[0])
    if isinstance(model, OccupancyModel):  # torch.export would take equal numbers of points and queries for the same
        example = (example[0], example[1][:, : SIZES[0] // 2].contiguous())
    inputs: dict[str, tuple[int | str, ...]] = {}
    dynamic: list[dict[int, Any] | None] = []
    for name, x in zip(signature(model.forward).parameters, example, strict=False):
        free = ("batch", "queries" if name == "queries" else "points")[: 0 if x is None else x.ndim]
        dynamic.append(dict.fromkeys(range(len(free)), torch.export.Dim.DYNAMIC) or None)
        if x is not None:
            inputs[name] = (*free, *x.shape[len(free) :])
    try:
        with _quiet():
            program: Any = torch.export.export(model, example, dynamic_shapes=tuple(dynamic), strict=False)
            # Their own `min` would tell which of the two numbers is smaller, and fix it for all clouds.
            program._guards_code = [
                guard for guard in getattr(program, "_guards_code", None) or [] if "min(" not in guard
            ]
            return program.run_decompositions(DECOMPOSITIONS), inputs
    except Exception as error:  # of many kinds; a user's network may do anything
        raise ExportError(f"torch.export does not take {type(model).__name__}: {_cause(error)}") from error


def _write_onnx(
    program: torch.export.ExportedProgram, inputs: dict[str, tuple[int | str, ...]], model: nn.Module, path: Path
) -> int:
    try:
        with _quiet():
            written = torch.onnx.export(program, dynamo=True, verbose=False, output_names=["logits"])
    except Exception as error:
        raise ExportError(f"{type(model).__name__} has no ONNX form: {_cause(error)}") from error
    assert written is not None
    symbols: dict[Any, str] = {}
    for value, axes in zip(written.model.graph.inputs, inputs.values(), strict=True):
        assert value.shape is not None
        symbols |= {value.shape[axis]: size for axis, size in enumerate(axes) if isinstance(size, str)}
    written.rename_axes(symbols)
    written.model.metadata_props.update(description(model))
    path.write_bytes(written.model_proto.SerializeToString())
    opset: int = written.model.opset_imports[""]
    return opset


def _write_archive(program: torch.export.ExportedProgram, model: nn.Module, path: Path) -> None:
    archive = io.BytesIO()
    with _quiet():
        torch.export.save(program, archive, extra_files={METADATA: json.dumps(description(model))})
    path.write_bytes(archive.getvalue())


def _load_onnx(path: Path) -> Run:
    options = _import_runtime().SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = _import_runtime().InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(*inputs: Tensor) -> Tensor:
        given = (x.numpy() for x in inputs if isinstance(x, Tensor))
        return torch.from_numpy(session.run(None, dict(zip(names, given, strict=True)))[0])

    return run


def _load_archive(path: Path) -> Run:
    with _quiet():
        return torch.export.load(io.BytesIO(path.read_bytes())).module()


def _compare(run: Run, model: nn.Module, clouds: int, points: int) -> Check:
    """Compare a file with its network; raises if the outputs differ."""
    inputs, kinds = _example(model, clouds, points)
    rotation = random_element("SO3", inputs[0], "points", torch.Generator().manual_seed(points))
    rotated = tuple(rotation.act(x, kind) for x, kind in zip(inputs, kinds, strict=False))
    try:
        found, found_rotated = run(*inputs), run(*rotated)
    except Exception as error:  # onnxruntime's own
        raise ExportError(f"the exported file does not run on {points} points: {first_line(error)}") from error
    expected, expected_rotated = model(*inputs), model(*rotated)
    invariant = _largest(expected_rotated - expected) <= MAX_INVARIANCE_ERROR
    check = Check(clouds, points, _largest(found - expected), _largest(found_rotated - found), invariant)
    # Written so that NaN fails.
    if not check.difference <= MAX_DIFFERENCE:
        raise ExportError(
            f"the file is not kept: at {points} points its outputs differ by {check.difference:.1e} from those of "
            f"{type(model).__name__}, allowed {MAX_DIFFERENCE:.0e}"
        )
    if invariant and not check.invariance_error <= MAX_INVARIANCE_ERROR:
        raise ExportError(
            f"the file is not kept: at {points} points its outputs change by {check.invariance_error:.1e} under "
            f"a rotation, allowed {MAX_INVARIANCE_ERROR:.0e}"
        )
    return check


def _largest(x: Tensor) -> float:
    return x.abs().max().item()


def _import_runtime() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"ONNX files need {error.name}: pip install 'vector-neurons[export]'") from error
    return onnxruntime


def _cause(error: BaseException) -> str:
    """The first line of the error at the root: those around it say only that there was one."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks on its own internals and on packages that are not needed here, and without the shape
    checks of jaxtyping, if a hook installed them: they would make constants of the sizes."""
    log = logging.getLogger("torch.onnx")
    level, disabled = log.level, jaxtyping.config.jaxtyping_disable
    log.setLevel(logging.ERROR)
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        jaxtyping.config.update("jaxtyping_disable", disabled)


__all__ = ["Check", "Export", "ExportError", "export"]
