"""`vn predict part.stl`: the class of a shape, or its parts."""

import csv
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from .. import kernels
from .._files import abbreviate, first_line
from ..data.folder import shape_files
from ..inference import Parts, Prediction, pose_spread, predict_each
from ..inference.predict import NONE_OF_THESE, check_model, find_model
from ..mesh import MeshError
from ..models.base import PRECISION, prepare
from ..training.config import MAX_THREADS
from . import UserError, check_out
from .progress import progress_of

MAX_POSES = 1000
MIN_NAME_COLUMNS = 12  # of a file's name in the table
Row = dict[str, Any]


def run(
    files: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")],
    /,
    *,
    model: str = "classification",
    category: str | None = None,
    top: int = 5,
    poses: int = 0,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    json: bool = False,
    csv: bool = False,
    batch_size: int = 16,
    drop_nan: bool = False,
    seed: int = 0,
    threads: int | None = None,
) -> int:
    """Name the shapes in files, or color their parts: meshes or clouds, in any pose and units.

    Exit code 2 if a file cannot be used; the others are predicted nevertheless.

    Args:
        files: meshes or clouds (.ply .obj .stl .off .glb .xyz .pts .csv .pcd .npy .npz), or folders of them.
        model: name of a model in the package, or folder of a run or of a saved model.
        category: what the shapes are, which a model of part segmentation has to be told.
        top: how many of the most likely classes to show for one file, and in --json and --csv.
        poses: also predict each shape in so many random poses, and show how much the answer changes.
        out: part segmentation: the colored .ply file to write, by default parts.ply; of several files, the folder to
            write them to, by default parts.
        json: print JSON.
        csv: print comma-separated values.
        batch_size: files that the network gets at once.
        drop_nan: drop points of clouds that are NaN or infinite, as depth cameras write them.
        seed: seed of the sampled points, and of the poses.
        threads: CPU threads.
    """
    if not files:
        raise UserError("which files? vn predict FILE ...")
    _check(json and csv, top, poses, batch_size, threads)
    kernels.prefer_built()  # a few files take less time than compiling the kernels
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        found = [file for name in files for file in (shape_files(name) if name.is_dir() else [name])]
        network = find_model(model)
        segments = check_model(network, category) is not None
    except (ValueError, OSError) as error:
        raise UserError(first_line(error)) from error
    if not found:
        raise UserError(f"no files to read in {abbreviate(map(str, files))}")
    targets = _targets(found, out) if segments else {}
    network, several = prepare(network, PRECISION), len(found) > 1
    options: dict[str, Any] = {"category": category, "drop_nan": drop_nan, "seed": seed}
    rows: list[Row] = []
    if not segments and getattr(network, "calibration", None) is None:
        print(f'vn predict: {model} is not calibrated: it never answers "{NONE_OF_THESE}"', file=sys.stderr)
    with progress_of(len(found) > batch_size) as progress:
        for file, result in zip(found, predict_each(network, found, batch_size=batch_size, **options), strict=True):
            row = _row(file, result, top)
            if poses and not isinstance(result, MeshError):
                row["same_in_poses"], row["change_in_poses"] = pose_spread(network, file, poses, **options)
            if isinstance(result, Parts):
                row["written"] = _write(result, targets[file])
            rows.append(row)
            progress(len(rows), len(found))
    failed = [row["error"] for row in rows if "error" in row]
    _print_rows(rows, several, "json" if json else "csv" if csv else "text", poses)
    for line in failed:
        print(f"vn predict: {line}", file=sys.stderr)
    return 2 if failed else 0


def _check(two_formats: bool, top: int, poses: int, batch_size: int, threads: int | None) -> None:
    if two_formats:
        raise UserError("choose --json or --csv")
    if top < 1:
        raise UserError(f"--top takes 1 or more, got {top}")
    if not 0 <= poses <= MAX_POSES:
        raise UserError(f"--poses takes 0 to {MAX_POSES:,}, got {poses}")
    if batch_size < 1:
        raise UserError(f"--batch-size takes 1 or more, got {batch_size}")
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UserError(f"--threads takes 1 to {MAX_THREADS:,}, got {threads}")


def _targets(files: Sequence[Path], out: Path | None) -> dict[Path, Path]:
    """The file to write for each of several files, in a folder; for one, the file itself."""
    if len(files) == 1:
        target = out or Path("parts.ply")
        check_out(target, (".ply",), "parts")
        return {files[0]: target}
    folder = out or Path("parts")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"cannot write the parts of several files to {folder}: give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    stems = [file.stem for file in files]
    names = [file.stem if stems.count(file.stem) == 1 else f"{i + 1}-{file.name}" for i, file in enumerate(files)]
    return {file: folder / f"{name}.ply" for file, name in zip(files, names, strict=True)}


def _write(parts: Parts, target: Path) -> str:
    try:
        parts.write(target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or first_line(error)}") from error
    return str(target)


def _row(file: Path, result: Prediction | Parts | MeshError, top: int) -> Row:
    if isinstance(result, MeshError):
        return {"file": str(file), "error": str(result)}
    if isinstance(result, Parts):
        parts = [[name, round(share, 4)] for name, share in result.top(len(result.names))]
        return {"file": str(file), "label": result.category, "parts": parts}
    known = {} if result.known is None else {"known": round(result.known, 4)}
    best = [[name, round(p, 6)] for name, p in result.top(top)]
    return {"file": str(file), "label": result.label, **known, "top": best}


def _print_rows(rows: list[Row], several: bool, form: str, poses: int) -> None:
    if form == "json":
        print(json.dumps(rows, indent=2))
    elif form == "csv":
        _print_csv(rows)
    elif several:
        _print_table([row for row in rows if "error" not in row])
    else:
        for row in rows:
            if "error" not in row:
                _print_one(row, poses)


def _ranked(row: Row) -> list[list[Any]]:
    """The classes of a shape, or its parts, with their probabilities or shares."""
    return row.get("top") or row.get("parts") or []


def _print_csv(rows: list[Row]) -> None:
    width = max(len(_ranked(row)) for row in rows)
    what = ("part", "share") if _any(rows, "parts") else ("name", "probability")
    ranks = [f"{name}_{i + 1}" for i in range(width) for name in what]
    extra = [name for name in ("known", "same_in_poses", "change_in_poses", "written", "error") if _any(rows, name)]
    writer = csv.DictWriter(sys.stdout, ["file", "label", *ranks, *extra], extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        values = [value for pair in _ranked(row) for value in pair]
        writer.writerow(row | dict(zip(ranks, values, strict=False)))


def _any(rows: list[Row], name: str) -> bool:
    return any(name in row for row in rows)


def _print_one(row: Row, poses: int) -> None:
    print(f"{row['file']}: {row['label']}")
    width = max(len(name) for name, _ in _ranked(row))
    for name, share in _ranked(row):
        print(f"  {name.ljust(width)}  {100 * share:5.1f} %")
    if "known" in row:
        print(f"{100 * row['known']:.0f} % of known shapes look less typical of their class")
    if "same_in_poses" in row:
        same = "the same answer" if row["same_in_poses"] else "NOT always the same answer"
        what = "parts of points" if "written" in row else "probabilities"
        print(f"{poses} random poses: {same}, {what} change by at most {row['change_in_poses']:.1e}")
    if "written" in row:
        print(f"{row['written']}: written")


def _print_table(rows: list[Row]) -> None:
    """One line for each file, as wide as the terminal; long names are cut at their start."""
    if not rows:
        return
    heads = {"label": "answer", "top": "probability", "known": "typical", "parts": "parts"}
    heads |= {"change_in_poses": "poses", "written": "written"}
    shown = [name for name in heads if _any(rows, name)]
    cells = [[heads[name] for name in shown], *([_cell(row, name) for name in shown] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    files = ["file", *(row["file"] for row in rows)]
    room = shutil.get_terminal_size().columns - sum(widths) - 2 * len(widths)
    width = min(max(map(len, files)), max(room, MIN_NAME_COLUMNS))
    for file, line in zip(files, cells, strict=True):
        name = file if len(file) <= width else f"…{file[1 - width :]}"
        print("  ".join([name.ljust(width), *(cell.ljust(w) for cell, w in zip(line, widths, strict=True))]).rstrip())


def _cell(row: Row, name: str) -> str:
    if name == "top":
        best, share = row["top"][0]
        return f"{100 * share:.1f} %" + (f" ({best})" if row["label"] == NONE_OF_THESE else "")
    if name == "parts":
        return str(len(row["parts"]))
    if name == "known":
        return f"{100 * row['known']:.0f} %"
    if name == "change_in_poses":
        return f"{'same' if row['same_in_poses'] else 'DIFFER'}, {row[name]:.0e}"
    return str(row[name])
