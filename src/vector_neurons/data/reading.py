"""What readers of published files share: arrays, HDF5 files and tables of numbers, checked, turned z-up, normalised."""

import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from .._files import first_line
from ..geometry.sampling import unit_ball
from ..mesh import MeshError
from ..mesh.stored import load_npz, read_bytes, regular
from ..mesh.text import LINE_MAX_BYTES
from .build import UNFORESEEN, Chunk, Content, Rows, key_of
from .pack import DataError, listed

Up = Literal["x", "y", "z"]
Array = NDArray[Any]
ONE_PLACE = "all points at one place"
SET_MAX_BYTES = 2**34  # of the arrays of one file of a data set, in memory
# Turn the axis that is up in a source to z by a rotation, never by a swap, which would mirror the shapes.
UPRIGHT = {
    "z": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "y": ((1, 0, 0), (0, 0, -1), (0, 1, 0)),
    "x": ((0, 0, -1), (0, 1, 0), (1, 0, 0)),
}


def upright(x: Float[Tensor, "*batch points 3"], up: Up) -> Float[Tensor, "*batch points 3"]:
    """Turn shapes whose `up` axis is up so that z is.

    >>> upright(torch.tensor([[1.0, 2.0, 3.0]]), "y").tolist()
    [[1.0, -3.0, 2.0]]
    """
    return x @ torch.tensor(UPRIGHT[up], dtype=x.dtype, device=x.device).mT


def cloud_rows(
    points: Float[Tensor, "shapes points 3"],
    up: Up,
    normals: Float[Tensor, "shapes points 3"] | None = None,
) -> Rows:
    """Rows of clouds as packs hold them: z up, in the unit ball, float32."""
    if collapsed(points).any():
        raise DataError(ONE_PLACE)
    rows = {
        "points": unit_ball(upright(points.double(), up)).float(),
        "count": torch.full((len(points),), points.shape[1]),
    }
    if normals is not None:
        rows["normals"] = upright(normals, up).float()
    return rows


def collapsed(points: Float[Tensor, "shapes points 3"]) -> Bool[Tensor, " shapes"]:
    """Which clouds of several points have them all at one place, and so no unit ball."""
    if points.shape[1] < 2:
        return torch.zeros(len(points), dtype=torch.bool)
    return (points == points[:, :1]).all(-1).all(-1)


def fit(columns: Mapping[str, Tensor], points: int, generator: torch.Generator) -> tuple[Rows, int]:
    """Give one cloud the number of points of its pack, and say how many of them are no repetitions.

    Points are shuffled, so that a prefix of the cloud is a random sample of it. A cloud with fewer points repeats some
    of them at its end.
    """
    have = len(columns["points"])
    order = torch.randperm(have, generator=generator)[torch.arange(points) % have]
    return {name: x[order] for name, x in columns.items()}, min(have, points)


def at_least(least: int, **numbers: int | float) -> None:
    """Refuse options that are too small."""
    for name, number in numbers.items():
        if not number >= least:
            raise DataError(f"--{name} must be at least {least}, got {number}")


def finite(points: Tensor, what: str) -> None:
    """Refuse a cloud with a coordinate that is no number."""
    bad = int((~torch.isfinite(points)).any(-1).sum())
    if bad:
        raise DataError(f"{what}: {bad:,} of {len(points):,} points have coordinates that are NaN or infinite")


def read_arrays(file: Path, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Array]:
    """Arrays of an `.npz` file, all of which must be there, and the optional ones it has; no others are inflated."""

    def pick(found: Sequence[str]) -> list[str]:
        missing = [name for name in names if name not in found]
        if missing:
            raise DataError(f"{file} has no array {missing[0]!r}: it has {listed(found, 12)}")
        return [*names, *(name for name in optional if name in found)]

    try:
        return load_npz(file, pick, SET_MAX_BYTES)
    except (DataError, OSError):
        raise
    except MeshError as error:
        raise DataError(str(error)) from error
    except (*UNFORESEEN, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{file} is truncated, damaged or no .npz file: {first_line(error)}") from error


def content_of(file: Path) -> bytes:
    """The bytes of a regular file."""
    try:
        return read_bytes(file)
    except MeshError as error:
        raise DataError(str(error)) from error


def words(file: Path) -> list[str]:
    """The words of a text file: a list of classes or of shapes."""
    try:
        return content_of(file).decode("utf-8").split()
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is damaged: it is no text file") from error


def table(file: Path, columns: int, separator: str | None, lines: int | None = None, most: int | None = None) -> Array:
    """Numbers of a text file with so many columns, and so many lines if known; at most the first `most` lines."""
    text = content_of(file)
    if not text.isascii():
        raise DataError(f"{file} is no text file of numbers")
    rows, mark = text.splitlines(), None if separator is None else separator.encode()
    if not rows:
        raise DataError(f"{file} is empty")
    if max(map(len, rows)) > LINE_MAX_BYTES:
        raise DataError(f"{file} is no text file of numbers: a line has {max(map(len, rows)):,} bytes")
    if mark is None or text.count(mark) != (columns - 1) * len(rows):  # counting once is quick, lines are not
        _check_columns(file, rows, columns, mark)
    if lines is not None and len(rows) != lines:
        kind = "is truncated" if len(rows) < lines else "is no file of this set"
        raise DataError(f"{file} {kind}: {len(rows):,} lines instead of {lines:,}")
    try:
        numbers = np.loadtxt(rows[:most], delimiter=separator, ndmin=2)
    except ValueError as error:
        raise DataError(f"{file}: {first_line(error)}") from error
    finite(torch.from_numpy(numbers), str(file))
    return numbers


def _check_columns(file: Path, rows: Sequence[bytes], columns: int, separator: bytes | None) -> None:
    for number, row in enumerate(rows, 1):
        found = len(row.split(separator))
        if found != columns:
            cut = ", where the file is truncated" if 1 < number == len(rows) and found < columns else ""
            raise DataError(f"{file}, line {number:,}{cut}: {found} columns instead of {columns}")


def read_hdf5(file: Path, names: Mapping[str, int], optional: Sequence[str] = ()) -> dict[str, Array]:
    """Data sets of an HDF5 file, each with the size of its last axis (0: any), and the optional ones it has."""
    try:
        import h5py
    except ImportError as error:
        raise DataError("reading .h5 files needs h5py: pip install 'vector-neurons[data]'") from error
    try:
        regular(file)
        with h5py.File(file, "r") as h5:
            missing = [name for name in names if name not in h5]
            if missing:
                raise DataError(f"{file} has no data set {missing[0]!r}: it has {listed(h5, 12)}")
            wanted = [*names, *(n for n in optional if n in h5)]
            for name in wanted:
                inside = isinstance(h5.get(name, getlink=True), h5py.HardLink) and isinstance(h5[name], h5py.Dataset)
                if not inside or h5[name].external or h5[name].is_virtual or h5[name].dtype.kind not in "fiub":
                    raise DataError(f"{file} is damaged: {name!r} is no array of numbers in this file")
                if h5[name].size * max(h5[name].dtype.itemsize, 8) > SET_MAX_BYTES:
                    raise DataError(f"{file} is too large: {name!r} is an array {h5[name].shape}")
            arrays = {name: np.asarray(h5[name]) for name in wanted}
    except MeshError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        if error.errno is not None:  # of the system
            raise
        raise DataError(f"{file} is truncated or damaged: {first_line(error)}") from error
    except (KeyError, RuntimeError) as error:  # a damaged index
        raise DataError(f"{file} is truncated or damaged: {first_line(error)}") from error
    for name, width in names.items():
        if width and arrays[name].ndim and arrays[name].shape[-1] != width:
            raise DataError(f"{file}: {arrays[name].shape[-1]} columns in {name!r} instead of {width}")
    if len({array.shape[:1] for array in arrays.values()}) > 1:
        raise DataError(f"{file}: its data sets differ in length")
    return arrays


def hdf5_chunks(
    folder: Path, files: Mapping[str, int], read: Callable[[Path], Content], *options: object
) -> list[Chunk]:
    """A chunk for each of the numbered files `ply_data_<split><number>.h5`, all of which must be there."""
    found = [(split, folder / f"ply_data_{split}{i}.h5") for split, count in files.items() for i in range(count)]
    missing = [file.name for _, file in found if not file.is_file()]
    if missing:
        raise DataError(f"{folder} is incomplete: missing {listed(missing, 12)}")
    return [
        Chunk(
            split,
            read_hdf5(file, {"label": 0})["label"].size,
            partial(read, file),
            key_of(split, *options, files=[file]),
            file,
        )
        for split, file in found
    ]


def npz_chunks(
    file: Path, splits: Iterable[str], read: Callable[[Path, str], Content], *options: object
) -> list[Chunk]:
    """A chunk for each split of an array pack."""
    labels = read_arrays(file, [f"y_{split}" for split in splits])
    return [
        Chunk(split, labels[f"y_{split}"].size, partial(read, file, split), key_of(*options, split, files=[file]), file)
        for split in splits
    ]


def scaled_clouds(file: Path, x: Array, scale: Array, split: str, points: int) -> Array:
    """Clouds of an array pack, which keeps them as whole numbers."""
    if x.ndim != 3 or x.shape[-1] != 3:
        raise DataError(f"{file}: {x.shape[-1]} columns in 'x_{split}' instead of 3")
    return x[:, :points].astype(np.float32) * scale


def known_labels(file: Path, labels: Array, classes: int) -> None:
    """Refuse labels beyond the class list."""
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(f"{file}: the class list does not match, labels go up to {labels.max()} for {classes} classes")


def array_content(
    file: Path, points: Array, labels: Array, names: Sequence[str], classes: int, up: Up, **more: Array
) -> Content:
    """The content of a chunk that comes as arrays `(shapes, points, 3)`; rows that are not finite are damaged."""
    if points.ndim != 3 or points.shape[2] != 3:
        raise DataError(f"{file}: clouds must be an array (shapes, points, 3), got {points.shape}")
    expected = {"normals": points.shape, "parts": points.shape[:2]}
    for key, array in {"labels": labels, "names": np.asarray(names), **more}.items():
        if array.shape != expected.get(key, points.shape[:1]):
            raise DataError(f"{file} is damaged: {key} {array.shape} do not fit its clouds {points.shape}")
    known_labels(file, labels, classes)
    normals = more.pop("normals", None)
    numbers = points if normals is None else np.concatenate([points, normals], axis=2)
    whole = np.asarray(np.isfinite(numbers).all(axis=(1, 2)))
    good = whole & ~collapsed(torch.from_numpy(points)).numpy()
    damaged = [
        f"{file}, shape {i:,} ({names[i]}): {ONE_PLACE if whole[i] else 'coordinates are NaN or infinite'}"
        for i in np.flatnonzero(~good).tolist()
    ]
    rows = cloud_rows(
        torch.from_numpy(points[good]), up, None if normals is None else torch.from_numpy(normals[good])
    ) | {"label": torch.from_numpy(labels[good].astype(np.int64))}
    rows |= {key: torch.from_numpy(array[good]) for key, array in more.items()}
    return Content(rows, [name for name, ok in zip(names, good, strict=True) if ok], damaged)


def digests(points: Array) -> list[str]:
    """Names for shapes that have none: a digest of their points, by which the same shape is found in two splits."""
    import hashlib

    return [hashlib.sha256(np.ascontiguousarray(cloud).tobytes()).hexdigest()[:16] for cloud in points]


def find(source: Path, landmarks: Mapping[str, str], what: str) -> tuple[str, Path]:
    """Which layout a source has, and the file or folder that shows it: `landmarks` has one for each layout.

    The source may be the published folder, the folder above it, or an `.npz` file.
    """
    if not source.exists():
        raise DataError(f"there is no {source}")
    for layout, landmark in landmarks.items():
        if source.suffix == ".npz" and landmark.endswith(".npz"):
            return layout, source
        for found in [source / landmark, *sorted(source.glob(f"*/{landmark}"))]:
            if found.exists():
                return layout, found
    wanted = ", ".join(f"{landmark} ({layout})" for layout, landmark in landmarks.items())
    raise DataError(f"{source} holds no {what}: looked there and one folder below for {wanted}")
