"""`vn data modelnet40 --from PATH`: convert published data sets and your own files to packs for training."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar, TextIO

import tyro

from .._files import abbreviate, first_line
from ..data import folder, modelnet40, occupancy, shapenet_part
from ..data.convert import DamagedError
from ..data.pack import DataError, Pack, open_pack, pack_path, verify
from ..data.rows import Up
from ..data.splits import histogram, split_rows
from . import UserError
from .progress import Progress, progress_of

Source = Annotated[Path | None, tyro.conf.arg(name="from", metavar="PATH")]
MAX_DAMAGED_LINES = 20  # printed


@dataclass(frozen=True)
class _Options:
    source: Source = None
    """folder or .npz file to convert; without it the existing pack is described"""
    data_root: Path | None = None
    """folder of packs; by default the environment's VN_DATA, or the user's cache directory"""
    check: bool = False
    """verify the checksum of the pack"""
    workers: int = max(1, os.cpu_count() or 1)
    """number of processes that read files"""
    seed: int = 0
    """of all random samples"""

    verb: ClassVar[str]
    converter: ClassVar[Callable[..., Path]]

    def convert(self, source: Path, progress: Progress) -> Path:
        """Convert the source; all other fields are options of the data set's converter."""
        own = ("source", "data_root", "check")
        options = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in own}
        return type(self).converter(source, self.data_root, **options, progress=progress)

    def path(self) -> Path:
        """Return the file of the pack."""
        return pack_path(self.verb, self.data_root)


@dataclass(frozen=True)
class ModelNet40Options(_Options):
    """ModelNet40: the text, HDF5 or mesh release, or modelnet40.npz."""

    points: int = 2048
    """points kept of each shape, at most"""
    up: Up | None = None
    """axis that is up in the source; by default the publisher's: y for clouds, z for meshes"""
    skip_damaged: bool = False
    """leave out missing and damaged files"""

    verb, converter = modelnet40.NAME, modelnet40.convert


@dataclass(frozen=True)
class ShapeNetPartOptions(_Options):
    """ShapeNet-Part: the text or HDF5 release, or shapenet_part.npz."""

    points: int = 2048
    """points kept of each shape, at most"""
    up: Up = "y"
    """axis that is up in the source"""
    skip_damaged: bool = False
    """leave out missing and damaged files"""
    drop_overlap: bool = False
    """leave out of the training set what is also in the validation or test set, and out of the former what is in the
    latter"""

    verb, converter = shapenet_part.NAME, shapenet_part.convert


@dataclass(frozen=True)
class OccupancyOptions(_Options):
    """Occupancy of a folder of meshes, of scanned_objects.npz, or in OccNet's format."""

    to: str = occupancy.NAME
    """name of the pack, or a path that ends in .safetensors"""
    points: int = 4096
    """surface points of each shape"""
    queries: int = 8192
    """uniform queries of each shape"""
    near: int = 8192
    """queries near the surface of each shape"""
    sigma: float = 0.02
    """standard deviation of the queries near the surface, relative to the longest side of the shape"""
    up: Up | None = None
    """axis that is up in the source; by default y in OccNet's format and .glb, z elsewhere"""
    skip_damaged: bool | None = None
    """leave out missing and damaged files; by default up to half of the meshes, and none of OccNet's files"""

    verb, converter = occupancy.NAME, occupancy.convert

    def path(self) -> Path:
        """Return the file of the pack."""
        return pack_path(self.to, self.data_root)


@dataclass(frozen=True)
class FolderOptions(_Options):
    """Your own files: class/name.{ply,obj,stl,off,glb,xyz,npy,npz,pcd,csv,pts}, or train/class/..."""

    to: str | None = None
    """name of the pack, or a path that ends in .safetensors; by default a name that changes with the files"""
    points: int = 2048
    """points sampled from each mesh, and kept of each cloud"""
    up: Up | None = None
    """axis that is up in the files; by default y in .glb, z in all others"""
    drop_nan: bool = False
    """leave out points of clouds that are NaN or infinite, as depth cameras write them"""

    verb, converter = "folder", folder.convert

    def path(self) -> Path:
        """Return the file of the pack."""
        if self.to is None:
            raise UserError("which folder? give --from PATH, or the name of its pack by --to NAME")
        return pack_path(self.to, self.data_root)


def run(
    what: Annotated[
        Annotated[ModelNet40Options, tyro.conf.subcommand(ModelNet40Options.verb)]
        | Annotated[ShapeNetPartOptions, tyro.conf.subcommand(ShapeNetPartOptions.verb)]
        | Annotated[OccupancyOptions, tyro.conf.subcommand(OccupancyOptions.verb)]
        | Annotated[FolderOptions, tyro.conf.subcommand(FolderOptions.verb)],
        tyro.conf.arg(name=""),
    ],
) -> int:
    """Convert a data set once to a memory-mapped pack, and describe its content.

    A conversion that was interrupted resumes when the same command is run again.
    """
    try:
        if what.source is not None:
            with progress_of() as progress:
                path = what.convert(what.source, progress)
        else:
            path = what.path()
        pack = open_pack(path, command=f"vn data {what.verb} --from PATH")
        _print(describe(pack))
        if what.check:
            print(f"checksum  sha256 {verify(path)}: as written")
    except DamagedError as error:
        for line in error.lines[:MAX_DAMAGED_LINES]:
            _print(line, sys.stderr)
        if len(error.lines) > MAX_DAMAGED_LINES:
            print(f"... and {len(error.lines) - MAX_DAMAGED_LINES:,} more", file=sys.stderr)
        raise UserError(_printable(str(error))) from error
    except KeyboardInterrupt as error:
        raise UserError("interrupted; run the same command to resume") from error
    except BrokenPipeError:  # the reader of the output closed it
        raise
    except MemoryError as error:
        raise UserError("there is not enough memory: run it again with fewer --workers or --points") from error
    except (ValueError, ImportError, OSError) as error:
        raise UserError(_printable(first_line(error))) from error
    return 0


def _print(text: str, file: TextIO | None = None) -> None:
    print(_printable(text), file=file or sys.stdout)


def _printable(text: str) -> str:
    """Escape what a terminal cannot print: file names may be arbitrary bytes."""
    return text.encode(errors="backslashreplace").decode()


def describe(pack: Pack) -> str:
    """Describe a pack: shapes and classes of every split, damaged files and overlap."""
    arrays, about = pack.arrays, pack.about
    holds = ", ".join(f"{name} {'×'.join(map(str, x.shape[1:])) or '1'}" for name, x in sorted(arrays.items()))
    lines = [
        f"{about['name']}  from the {about['layout']}: {sum(pack.splits.values()):,} shapes, z up, in the unit ball"
    ]
    for split in about["published"] | pack.splits:
        count, published = pack.splits.get(split, 0), about["published"].get(split)
        differs = f" (published: {published:,})" if published not in (None, count) else ""
        lines.append(f"{split.ljust(8)}  {count:,} shapes{differs}")
    lines.append(f"training  {_training_splits(pack)}")
    per_class = {split: histogram(arrays["label"][pack.rows(split)], pack.classes) for split in pack.splits}
    counts = [f"{name} {'/'.join(str(per_class[s][name]) for s in pack.splits)}" for name in pack.classes]
    lines.append(f"classes   {len(pack.classes)}: {', '.join(counts)}")
    if "watertight" in arrays:
        lines.append(f"meshes    {int(arrays['watertight'].sum()):,} of {len(arrays['watertight']):,} are watertight")
    lines.append(f"damaged   {len(about['damaged']):,} files left out" if about["damaged"] else "damaged   none")
    lines += [f"          {line}" for line in about["damaged"][:MAX_DAMAGED_LINES]]
    if about["notes"]:
        lines.append(f"notes     {len(about['notes']):,} files were not used in full")
        lines += [f"          {line}" for line in about["notes"][:MAX_DAMAGED_LINES]]
    for pair, names in about["overlap"].items():
        droppable = " (--drop-overlap leaves them out)" if about["name"] == shapenet_part.NAME else ""
        remedy = " (left out of the former)" if about["overlap_dropped"] else droppable
        lines.append(f"overlap   {len(names):,} shapes are in both {pair}{remedy}: {abbreviate(names, 3)}")
    lines.append(f"arrays    {holds}")
    lines.append(f"pack      {pack.path} ({pack.path.stat().st_size / 1e6:,.0f} MB)")
    return "\n".join(lines)


def _training_splits(pack: Pack) -> str:
    """Return the sizes of the splits for training, of which some may be drawn from the others."""
    sizes = {}
    for split in ("train", "val", "test"):
        with suppress(DataError):  # neither in the pack nor drawn from another
            sizes[split] = len(split_rows(pack, split))
    drawn = [split for split in sizes if split not in pack.splits]
    how = f" ({' and '.join(drawn)} drawn by split_seed)" if drawn else ""
    return ", ".join(f"{split} {size:,}" for split, size in sizes.items()) + how
