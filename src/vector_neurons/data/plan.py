"""What is to be read from a source: a plan of chunks of shapes, each of which is read independently.

The key of a chunk is a digest of everything that goes into it (names, options, size and time of its source files), so
that a conversion can reuse what it read before.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .._files import first_line, retry_transient, sha256
from ..mesh import MeshWarning
from .pack import FORMAT, DataError
from .rows import PackRows, concatenate_rows

FILES_PER_CHUNK = 64
# Raised by readers of damaged arrays.
PARSE_ERRORS = (
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    RuntimeError,
    ArithmeticError,
    AttributeError,
    EOFError,
)


@dataclass(frozen=True)
class ChunkContent:
    """The result of reading a chunk.

    Attributes:
        rows: the arrays of the shapes, one row for each.
        names: the names of the shapes.
        damaged: one line for every shape that is missing or damaged.
        digests: digests of the shapes, by which the same shape is found in two splits; without them, by name.
        without_normals: names of the shapes without normals.
        notes: one line for every file that was not used in full.
    """

    rows: PackRows
    names: list[str]
    damaged: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    without_normals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Chunk:
    """Some shapes of one split that are read together.

    Attributes:
        split: the split they belong to.
        size: how many there are.
        read: reads them; picklable, as it may run in another process.
        key: a digest of everything that `read` depends on.
        file: named in the error if `read` fails unexpectedly.
    """

    split: str
    size: int
    read: Callable[[], ChunkContent]
    key: str
    file: Path | None = None


@dataclass(frozen=True)
class Plan:
    """What was found in a source, before any shape is read.

    Attributes:
        layout: the layout of the source, in words.
        classes: names of the classes.
        chunks: what is to be read.
        published: how many shapes each of the publisher's splits has.
        about: further entries of the description in the pack.
    """

    layout: str
    classes: tuple[str, ...]
    chunks: list[Chunk]
    published: Mapping[str, int] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many shapes there are to read."""
        return sum(chunk.size for chunk in self.chunks)


def chunk_key(*parts: object, files: Iterable[Path] = ()) -> str:
    """Return the key of a chunk: a digest of these parts, and of the size and time of its files."""

    def state(file: Path) -> tuple[str, int, int]:
        try:
            found = file.stat()
            return str(file), found.st_size, found.st_mtime_ns
        except OSError:
            return str(file), -1, -1

    text = json.dumps([FORMAT, *map(str, parts), [state(file) for file in files]])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def file_chunks(
    split: str,
    files: Sequence[tuple[str, Path, int]],
    read: Callable[[str, Path, int], PackRows],
    *options: object,
    members: Sequence[str] = (),
    by_content: bool = False,
) -> list[Chunk]:
    """Return chunks of shapes that have a file each.

    Args:
        split: the split they belong to.
        files: name, file and label of each shape.
        read: returns the single row of one of them.
        options: whatever else the result of `read` depends on.
        members: of shapes that have a folder each, the files that are read: repairing one does not touch its folder.
        by_content: find the same shape in two splits by the content of its file, where names mean nothing.
    """
    chunks = []
    for start in range(0, len(files), FILES_PER_CHUNK):
        some = files[start : start + FILES_PER_CHUNK]
        labels = [(name, label) for name, _, label in some]
        sources = [source for _, file, _ in some for source in ([file / m for m in members] or [file])]
        key = chunk_key(split, labels, *options, by_content, files=sources)
        chunks.append(Chunk(split, len(some), partial(_read_files, read, some, by_content), key))
    return chunks


def _read_files(
    read: Callable[[str, Path, int], PackRows], files: Sequence[tuple[str, Path, int]], by_content: bool
) -> ChunkContent:
    shapes, names, damaged, digests, notes = [], [], [], [], []
    for name, file, label in files:
        try:
            if not file.exists():
                raise DataError(f"{file} is missing")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", MeshWarning)
                shape = retry_transient(partial(read, name, file, label)) | {"label": torch.tensor([label])}
            if by_content:
                digests.append(retry_transient(partial(sha256, file))[:16])
            shapes.append(shape)
            names.append(name)
            notes += [str(warning.message) for warning in caught if issubclass(warning.category, MeshWarning)]
        except OSError as error:  # which does not show that the file is damaged
            line = first_line(error)
            named = line if str(file) in line else f"{file}: {line}"
            raise DataError(f"{named}; no pack was written: run the same command again when it can be read") from error
        except PARSE_ERRORS as error:
            line = first_line(error)
            damaged.append(line if str(file) in line else f"{file}: {line}")
    without_normals = [name for name, shape in zip(names, shapes, strict=True) if "normals" not in shape]
    return ChunkContent(concatenate_rows(shapes), names, damaged, digests, without_normals, notes)
