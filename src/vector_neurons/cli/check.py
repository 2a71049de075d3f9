"""`vn check file.py:Class`: is a module equivariant?"""

import ast
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import nn

from .. import testing
from ..models import Model, store
from . import UserError

Precision = Literal["float32", "float64"]


def run(
    target: Annotated[str, tyro.conf.arg(metavar="FILE.py:NAME")],
    /,
    arguments: Annotated[tuple[str, ...], tyro.conf.arg(name="with", metavar="NAME=VALUE")] = (),
    *,
    takes: testing.Kind = "points",
    gives: testing.Kind | None = None,
    group: testing.Group = "SO3",
    shape: tuple[int, ...] | None = None,
    dtype: Precision = "float32",
    tolerance: float | None = None,
    train: bool = False,
    seed: int = 0,
) -> int:
    """Follow a random input and its transform through a module, layer by layer, and name the first that breaks.

    Exit code 0: equivariant. 1: not. 2: the module could not be loaded or run.

    Args:
        target: where the module is; the name is that of a class, of a function that builds a module, or of a module.
            A folder is taken for a saved model.
        arguments: what it is built with, as Python values: --with classes=40 k=20
        takes: what the input is: points (B, N, 3), vectors (..., 3, C), frames or scalars.
        gives: what the output must be: scalars for an invariant network; by default whatever fits best.
        group: the symmetry: rotations, reflections, rotations and shifts, scaling, order of the points.
        shape: shape of the input; points default to 2 128 3.
        dtype: precision of weights and input; float64 tells rounding from a mistake.
        tolerance: largest error allowed, relative to the output; 1e-4 in float32, 1e-10 in float64.
        train: check in training mode (batch statistics) instead of evaluation mode.
        seed: of the weights, the input and the transform.
    """
    if shape is None:
        if takes != "points":
            raise UserError(f"--takes {takes} needs the input's --shape, for example --shape 2 128 3 16")
        shape = (2, 128, 3)
    torch.manual_seed(seed)
    precision = torch.float64 if dtype == "float64" else torch.float32
    module = load(target, arguments).to(precision).train(train)
    x: Any = torch.randn(shape, dtype=precision)
    kinds: Any = takes
    if isinstance(module, Model):
        x, kinds = module.example(x)
    try:
        report = testing.report(module, x, kinds, gives, group, tolerance=tolerance, seed=seed)
        print(report)
    except Exception as error:
        raise UserError(f"{target} does not run on {takes} {tuple(shape)}: {_line(error)}") from error
    return 0 if report.culprit is None else 1


def load(target: str, arguments: tuple[str, ...]) -> nn.Module:
    """Build the module `path/to/file.py:Name` with `name=value` arguments, or load a saved one from its folder."""
    if Path(target).is_dir():
        if arguments:
            raise UserError(f"{target} is a saved model: --with has no use for it")
        try:
            return store.load(target)
        except store.StoreError as error:
            raise UserError(str(error)) from error
    path, _, name = target.rpartition(":")
    if not path or not name:
        raise UserError(f"{target!r} names no module: write path/to/file.py:ClassName, or a saved model's folder")
    found = getattr(_import(Path(path)), name, None)
    if found is None:
        raise UserError(f"{path} has no {name!r}")
    keywords = dict(map(_argument, arguments))
    try:
        makes = inspect.isclass(found) or inspect.isfunction(found)
        if keywords and not makes:
            raise UserError(f"{name} is built already: --with has no use for it")
        built = found(**keywords) if makes else found
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{name} cannot be built: {_line(error)}; give arguments as --with NAME=VALUE") from error
    if not isinstance(built, nn.Module):
        raise UserError(f"{name} is a {type(built).__name__}, not a torch.nn.Module")
    return built


def _import(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # As if the file were run in its own folder: its neighbours can be imported, and its classes find their module.
    sys.path[:0] = [str(path.parent), str(Path.cwd())]
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(f"{path} cannot be imported: {_line(error)}") from error
    return module


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--with takes NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _line(error: BaseException) -> str:
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
