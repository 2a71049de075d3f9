"""`vn check file.py:Class`: is a module equivariant?"""

import ast
import inspect
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import nn

from .. import kernels, testing
from .._user_code import UserCodeError, class_names, describe, import_file
from ..models import Model, store
from ..training import factory, find_run, read_config
from . import UserError
from .train import one_line

MAX_NUMBERS = 10**7  # of an input
Precision = Literal["float32", "float64"]


def run(
    target: Annotated[str, tyro.conf.arg(metavar="FILE.py:NAME")],
    /,
    arguments: Annotated[tuple[str, ...], tyro.conf.arg(name="with", metavar="NAME=VALUE")] = (),
    *,
    takes: testing.Kind = "points",
    gives: testing.Kind | None = None,
    group: Annotated[str, tyro.conf.arg(metavar="{SO3,O3,SE3,scale,permutation}")] = "SO3",
    layout: testing.Layout = "bn3",
    shape: tuple[int, ...] | None = None,
    dtype: Precision = "float32",
    tolerance: float | None = None,
    train: bool = False,
    seed: int = 0,
) -> int:
    """Compare a random input and its transform layer by layer, on every backend, and name the first layer that breaks.

    Careful: this EXECUTES the Python file it is given, as `python FILE.py` would, and of a run that was trained with
    --model my_file.py:MyNet the copy of that file in its folder. Other folders execute nothing.

    Exit code 0: equivariant. 1: not. 2: the module could not be loaded or run.

    Args:
        target: the module: a class, a function that builds a module, or a module in a file; or the folder of a saved
            model or of a training run, whose best model is checked.
        arguments: arguments of the class or function, as Python values: --with classes=40 k=20
        takes: kind of the input: points (B, N, 3), vectors (..., 3, C), frames or scalars.
        gives: kind of the output: scalars for an invariant network; by default whatever fits best.
        group: the symmetry: rotations, reflections, rotations and shifts, scaling, order of the points.
        layout: axes of points that the module takes and gives: bn3 for (B, N, 3), b3n for (B, 3, N).
        shape: of the input; points default to 2 128 3, in the layout b3n to 2 3 128.
        dtype: of weights and input; float64 shows whether an error is rounding.
        tolerance: largest error allowed, relative to the output; 1e-4 in float32, 1e-10 in float64.
        train: check in training mode (batch statistics) instead of evaluation mode.
        seed: of the weights, the input and the transform.
    """
    kernels.prefer_built()  # checking one input takes less time than compiling the kernels
    try:
        symmetry = testing.group_of(group)
    except ValueError as error:
        raise UserError(f"--group: {error}") from error
    shape = _shape(shape, takes, layout)
    torch.manual_seed(seed)
    precision = torch.float64 if dtype == "float64" else torch.float32
    module = load(target, arguments).to(precision).train(train)
    x: Any = torch.randn(shape, dtype=precision)
    kinds: Any = takes
    library = isinstance(module, Model) and type(module).example is not Model.example
    if isinstance(module, Model) and library:
        if takes != "points" or layout != "bn3":
            raise UserError(f"{target} is a model of this library: it takes points (B, N, 3)")
        x, kinds = module.example(x)
    if kinds in ("points", ("points",)) and store.metadata_of(module).categories:  # a user's network that segments
        (points,) = x if isinstance(x, tuple) else (x,)
        x, kinds = (points, torch.zeros(len(points), dtype=torch.long)), ("points", "scalars")

    def report(layout: testing.Layout, x: Any) -> testing.Report:
        return testing.report(module, x, kinds, gives, symmetry, layout=layout, tolerance=tolerance, seed=seed)

    def other() -> str:
        """Advice, if the module is equivariant with the axes in another order."""
        if takes != "points" or layout != "bn3" or library:
            return ""
        try:
            holds = report("b3n", x.mT).culprit is None
        except (Exception, SystemExit):  # it does not take them in this order
            return ""
        return "points (B, 3, N), and then is equivariant: write --layout b3n" if holds else ""

    try:
        found = report(layout, x)
    except (Exception, SystemExit) as error:
        hint = other()
        hint = f"; it takes {hint}" if hint else ""
        raise UserError(f"{target} does not run on {takes} {tuple(shape)}: {describe(error)}{hint}") from error
    print(found)
    if kernels.chosen() != "eager" and "native" not in kernels.available():
        print("Only the eager backend was checked: the native kernels are not built (vn kernels build)")
    if found.culprit is not None and (hint := other()):
        print(f"But {target} may take {hint}")
    return 0 if found.culprit is None else 1


def _shape(shape: tuple[int, ...] | None, takes: testing.Kind, layout: testing.Layout) -> tuple[int, ...]:
    """The shape of the input, with the coordinates on the right axis."""
    if shape is None:
        if takes != "points":
            raise UserError(f"--takes {takes} needs the input's --shape, for example --shape 2 128 3 16")
        return (2, 128, 3) if layout == "bn3" else (2, 3, 128)
    if math.prod(shape) > MAX_NUMBERS:
        raise UserError(f"--shape takes at most {MAX_NUMBERS:,} numbers, got {math.prod(shape):,}")
    if not shape or min(shape) < 1:
        raise UserError(f"--shape takes sizes of 1 or more, got {' '.join(map(str, shape))}")
    if takes == "points" and layout == "b3n":
        if len(shape) != 3 or shape[1] != 3:
            raise UserError(f"--layout b3n: points are (B, 3, N): the second of three axes must be 3, got {shape}")
        return shape
    try:
        testing.check_axis(shape, takes)
    except ValueError as error:
        hint = "; for a module that takes (B, 3, N), add --layout b3n" if takes == "points" else ""
        raise UserError(f"--shape: {error}{hint}") from error
    return shape


def load(target: str, arguments: tuple[str, ...]) -> nn.Module:
    """Build the module `path/to/file.py:Name` with `name=value` arguments, or load a saved one from its folder."""
    if Path(target).is_dir():
        if arguments:
            raise UserError(f"{target} is a saved model: leave out --with")
        with one_line():
            run = find_run(Path(target))
            is_run = (run / store.BEST).is_dir() and (run / store.CONFIG).is_file()
            return store.load(target, factory.user_class(read_config(run)) if is_run else None)
    path, _, name = target.rpartition(":")
    if not path or not name:
        raise UserError(f"{target!r} is not a module: write path/to/file.py:ClassName, or a saved model's folder")
    try:
        file = import_file(Path(path))
    except UserCodeError as error:
        raise UserError(str(error)) from error
    found = getattr(file, name, None)
    if found is None:
        raise UserError(f"{path} has no {name!r}; its classes: {class_names(file)}")
    keywords = dict(map(_argument, arguments))
    try:
        makes = inspect.isclass(found) or inspect.isfunction(found)
        if keywords and not makes:
            raise UserError(f"{name} is built already: leave out --with")
        built = found(**keywords) if makes else found
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{name} cannot be built: {describe(error)}; give arguments as --with NAME=VALUE") from error
    if not isinstance(built, nn.Module):
        raise UserError(f"{name} is not a torch.nn.Module but of type {type(built).__name__}")
    return built


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--with takes NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
