"""`vn export MODEL --to onnx`: write a network to a file that runs without this library."""

from pathlib import Path
from typing import Annotated

import tyro

from ..inference.export import MAX_DIFFERENCE, MAX_INVARIANCE_ERROR, SUFFIXES, Export, ExportError, Format, export
from ..models import store
from . import UserError, check_out
from .check import load
from .train import one_line


def run(
    model: Annotated[str, tyro.conf.arg(metavar="MODEL")],
    /,
    *,
    to: Format = "onnx",
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
) -> int:
    """Export a network to one file for any number of clouds and points, then run the file and compare the outputs.

    The file takes float32. It is compared on random clouds of 256 and of 2,000 points. If its outputs differ, or change
    under rotations where the network's do not, the exit code is 2 and there is no file.

    Careful: of a run that was trained with --model my_file.py:MyNet, this EXECUTES the copy of that file in its folder.

    Args:
        model: folder of a saved model or of a training run, whose best model is exported; or a name of
            `vn.pretrained`: classification, segmentation or reconstruction.
        to: onnx, standard operators only, for onnxruntime and others; torch, an archive for torch.export.load.
        out: file to write: .onnx, or .pt2 for torch; by default named after the network, in the current folder.
    """
    with one_line():
        network = load(model, ()) if Path(model).exists() or ":" in model else store.pretrained(model)
        name = type(network).__name__
        out = out or Path(name.lower() + SUFFIXES[to])
        check_out(out, (SUFFIXES[to],), f"a network for {to}")
        try:
            written = export(network, out, to)
        except ExportError as error:
            raise UserError(str(error)) from error
    _print(written, name)
    return 0


def _print(written: Export, name: str) -> None:
    opset = "torch.export archive" if written.opset is None else f"ONNX opset {written.opset}"
    print(f"{written.path}: {name}, {opset}, {written.size / 1e6:.1f} MB")
    inputs = ", ".join(f"{name} ({', '.join(map(str, axes))})" for name, axes in written.inputs.items())
    print(f"takes {inputs}; {written.min_points} points or more")
    for check in written.checks:
        note = f"allowed {MAX_INVARIANCE_ERROR:.0e}" if check.invariant else "nor is the network invariant"
        print(
            f"{check.clouds} × {check.points:,} points: largest difference {check.difference:.1e} "
            f"(allowed {MAX_DIFFERENCE:.0e}), under a rotation {check.invariance_error:.1e} ({note})"
        )
