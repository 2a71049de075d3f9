"""Readers that published data sets share: .npz and HDF5 arrays, text tables, and the chunks of their files."""

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._files import FileError, abbreviate, check_regular, first_line, read_bytes
from .._npz import load_npz
from ..mesh import describe_nonfinite
from ..mesh.text import LINE_MAX_BYTES
from .pack import DataError
from .plan import PARSE_ERRORS, Chunk, ChunkContent, chunk_key
from .rows import COINCIDE, Up, all_coincide, cloud_rows

Array = NDArray[Any]
DATASET_MAX_BYTES = 2**34  # of the arrays of one file of a data set, in memory
TEXT_MAX_BYTES = 2**28  # of one text file of a data set


def check_minimum(minimum: int, **options: int | float) -> None:
    """Raise `DataError` for options below the minimum."""
    for name, value in options.items():
        if not value >= minimum:
            raise DataError(f"--{name} must be at least {minimum}, got {value}")


def check_finite_points(points: Tensor, source: str) -> None:
    """Raise `DataError` for a cloud with NaN or infinite coordinates."""
    if nonfinite := describe_nonfinite(points):
        raise DataError(f"{source}: {nonfinite}")


def read_npz(file: Path, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Array]:
    """Read these arrays of an `.npz` file, and the optional ones it has; no others are inflated."""

    def select(found: Sequence[str]) -> list[str]:
        missing = [name for name in names if name not in found]
        if missing:
            raise DataError(f"{file} has no array {missing[0]!r}: it has {abbreviate(found, 12)}")
        return [*names, *(name for name in optional if name in found)]

    try:
        return load_npz(file, select, DATASET_MAX_BYTES)
    except (DataError, OSError):
        raise
    except FileError as error:
        raise DataError(str(error)) from error
    except (*PARSE_ERRORS, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{file} is truncated, damaged or not an .npz file: {first_line(error)}") from error


def _read_text(file: Path) -> bytes:
    try:
        return read_bytes(file, TEXT_MAX_BYTES)
    except FileError as error:
        raise DataError(str(error)) from error


def read_words(file: Path) -> list[str]:
    """Read the words of a text file: a list of classes or of shapes."""
    try:
        return _read_text(file).decode("utf-8").split()
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is damaged: it is not a text file") from error


def read_table(
    file: Path, columns: int, separator: str | None, lines: int | None = None, max_rows: int | None = None
) -> Array:
    """Read a table of numbers, `(lines, columns)`, from a text file; at most its first `max_rows` rows."""
    text = _read_text(file)
    if not text.isascii():
        raise DataError(f"{file} is not a text file of numbers")
    rows, mark = text.splitlines(), None if separator is None else separator.encode()
    if not rows:
        raise DataError(f"{file} is empty")
    if max(map(len, rows)) > LINE_MAX_BYTES:
        raise DataError(f"{file} is not a text file of numbers: a line has {max(map(len, rows)):,} bytes")
    if mark is None or text.count(mark) != (columns - 1) * len(rows):  # counting all is faster than line by line
        _check_columns(file, rows, columns, mark)
    if lines is not None and len(rows) != lines:
        kind = "is truncated" if len(rows) < lines else "does not belong to this set"
        raise DataError(f"{file} {kind}: {len(rows):,} lines instead of {lines:,}")
    try:
        table = np.loadtxt(rows[:max_rows], delimiter=separator, ndmin=2)
    except ValueError as error:
        raise DataError(f"{file}: {first_line(error)}") from error
    check_finite_points(torch.from_numpy(table), str(file))
    return table


def _check_columns(file: Path, rows: Sequence[bytes], columns: int, separator: bytes | None) -> None:
    for number, row in enumerate(rows, 1):
        found = len(row.split(separator))
        if found != columns:
            cut = ", where the file is truncated" if 1 < number == len(rows) and found < columns else ""
            raise DataError(f"{file}, line {number:,}{cut}: {found} columns instead of {columns}")


def read_hdf5(file: Path, names: Mapping[str, int], optional: Sequence[str] = ()) -> dict[str, Array]:
    """Read these arrays of an HDF5 file, given the size of their last axis (0: any), and the optional ones it has."""
    try:
        import h5py
    except ImportError as error:
        raise DataError("reading .h5 files needs h5py: pip install 'vector-neurons[data]'") from error
    try:
        check_regular(file)
        with h5py.File(file, "r") as h5:
            missing = [name for name in names if name not in h5]
            if missing:
                raise DataError(f"{file} has no data set {missing[0]!r}: it has {abbreviate(h5, 12)}")
            wanted = [*names, *(n for n in optional if n in h5)]
            for name in wanted:
                is_own = isinstance(h5.get(name, getlink=True), h5py.HardLink) and isinstance(h5[name], h5py.Dataset)
                if not is_own or h5[name].external or h5[name].is_virtual or h5[name].dtype.kind not in "fiub":
                    raise DataError(f"{file} is damaged: {name!r} is not an array of numbers in this file")
                if h5[name].size * max(h5[name].dtype.itemsize, 8) > DATASET_MAX_BYTES:
                    raise DataError(f"{file} is too large: {name!r} is an array {h5[name].shape}")
            arrays = {name: np.asarray(h5[name]) for name in wanted}
    except FileError as error:
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
    folder: Path, files: Mapping[str, int], read: Callable[[Path], ChunkContent], *options: object
) -> list[Chunk]:
    """Return a chunk for each of the files `ply_data_<split><number>.h5`; raises `DataError` if one is missing."""
    found = [(split, folder / f"ply_data_{split}{i}.h5") for split, count in files.items() for i in range(count)]
    missing = [file.name for _, file in found if not file.is_file()]
    if missing:
        raise DataError(f"{folder} is incomplete: missing {abbreviate(missing, 12)}")
    return [
        Chunk(
            split,
            read_hdf5(file, {"label": 0})["label"].size,
            partial(read, file),
            chunk_key(split, *options, files=[file]),
            file,
        )
        for split, file in found
    ]


def npz_chunks(
    file: Path, splits: Iterable[str], read: Callable[[Path, str], ChunkContent], *options: object
) -> list[Chunk]:
    """Return a chunk for each split of an .npz file."""
    labels = read_npz(file, [f"y_{split}" for split in splits])
    return [
        Chunk(
            split, labels[f"y_{split}"].size, partial(read, file, split), chunk_key(*options, split, files=[file]), file
        )
        for split in splits
    ]


def dequantize(file: Path, x: Array, scale: Array, split: str, points: int) -> Array:
    """Return the clouds of an .npz file, which stores them as integers."""
    if x.ndim != 3 or x.shape[-1] != 3:
        raise DataError(f"{file}: {x.shape[-1]} columns in 'x_{split}' instead of 3")
    return x[:, :points].astype(np.float32) * scale


def check_labels(file: Path, labels: Array, classes: int) -> None:
    """Raise `DataError` for labels beyond the class list."""
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(f"{file}: the class list does not match, labels go up to {labels.max()} for {classes} classes")


def content_of_arrays(
    file: Path, points: Array, labels: Array, names: Sequence[str], classes: int, up: Up, **more: Array
) -> ChunkContent:
    """Return the content of a chunk of clouds `(shapes, points, 3)`; those that are not finite are damaged."""
    if points.ndim != 3 or points.shape[2] != 3:
        raise DataError(f"{file}: clouds must be an array (shapes, points, 3), got {points.shape}")
    expected = {"normals": points.shape, "parts": points.shape[:2]}
    for key, array in {"labels": labels, "names": np.asarray(names), **more}.items():
        if array.shape != expected.get(key, points.shape[:1]):
            raise DataError(f"{file} is damaged: {key} {array.shape} do not fit its clouds {points.shape}")
    check_labels(file, labels, classes)
    normals = more.pop("normals", None)
    coordinates = points if normals is None else np.concatenate([points, normals], axis=2)
    finite = np.asarray(np.isfinite(coordinates).all(axis=(1, 2)))
    good = finite & ~all_coincide(torch.from_numpy(points)).numpy()
    damaged = [
        f"{file}, shape {i:,} ({names[i]}): {COINCIDE if finite[i] else 'coordinates are NaN or infinite'}"
        for i in np.flatnonzero(~good).tolist()
    ]
    rows = cloud_rows(
        torch.from_numpy(points[good]), up, None if normals is None else torch.from_numpy(normals[good])
    ) | {"label": torch.from_numpy(labels[good].astype(np.int64))}
    rows |= {key: torch.from_numpy(array[good]) for key, array in more.items()}
    return ChunkContent(rows, [name for name, ok in zip(names, good, strict=True) if ok], damaged)


def content_digests(points: Array) -> list[str]:
    """Return digests of clouds without names, by which the same shape is found in two splits."""
    return [hashlib.sha256(np.ascontiguousarray(cloud).tobytes()).hexdigest()[:16] for cloud in points]


def find_layout(source: Path, landmarks: Mapping[str, str], dataset: str) -> tuple[str, Path]:
    """Return the layout of a source, and the file or folder by which it was recognized.

    Args:
        source: the published folder, the folder above it, or an `.npz` file.
        landmarks: a file or folder of each layout that the others do not have.
        dataset: name of the data set, for the error.
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
    raise DataError(f"{source} does not hold {dataset}: looked there and one folder below for {wanted}")
