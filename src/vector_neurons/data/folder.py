"""Your own folder of meshes and clouds: one sub-folder for each class, read once."""

import os
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from .._files import first_line
from ..mesh import Mesh, io, surface
from .build import Plan, Rows, build, file_chunks, key_of
from .pack import DataError, listed, open_pack, pack_path, seed_of
from .packed import Packed, Subset
from .reading import Up, at_least, cloud_rows, fit

SPLIT_FOLDERS = {"train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)}
SPLITS = tuple(SPLIT_FOLDERS)
MOST_DAMAGED = 0.5  # files that cannot be read are listed and left out, as long as they are not the majority
ONLY_CLASS = "object"  # the class of files that are in no class folder


class Folder(Packed):
    """Clouds of `class/name.{ply,obj,stl,off,glb,xyz,npy,npz,pcd,csv,pts}` or `train/class/name...`, z up.

    Meshes are sampled by area, clouds taken as they are, all in the unit ball. The folder is read once, to a pack in
    the data root that is made again when a file changes; or `pack` is one that `vn data folder --to` made, by name or
    path. What the folder does not split itself is split by `split_seed`: `test` and `validation` are shares of every
    class. `up` is the axis that is up in the files: y in .glb and z in all others, unless told. A warning lists files
    that could not be read and are left out; `drop_nan` keeps clouds of which some points are NaN, without these.
    Without class folders there is one class, `object`.
    """

    name = "folder"

    def __init__(
        self,
        path: str | Path | None = None,
        split: str = "train",
        root: str | Path | None = None,
        *,
        pack: str | Path | None = None,
        points: int = 1024,
        subset: Subset = "first",
        normals: bool = False,
        seed: int = 0,
        split_seed: int = 0,
        validation: float = 0.1,
        test: float = 0.2,
        up: Up | None = None,
        drop_nan: bool = False,
    ) -> None:
        if (path is None) == (pack is None):
            raise DataError("a folder of files is given by its path, or by the pack that was made of it: say one")
        if path is None and (up is not None or drop_nan):
            raise DataError("up and drop_nan were decided when the pack was made: `vn data folder --up ... --drop-nan`")
        make = f"vn data folder --from {path or 'PATH'}" + ("" if pack is None else f" --to {pack}")
        try:
            made = pack if path is None else convert(path, root, points=max(points, 2048), up=up, drop_nan=drop_nan)
        except OSError as error:
            raise DataError(first_line(error)) from error
        assert made is not None  # one of the two was given
        opened = open_pack(made, root, kind="folder", make=make)
        if damaged := opened.about["damaged"]:
            left_out = f"{len(damaged):,} files of {path or pack} could not be read and are left out"
            warnings.warn(f"{left_out}: {listed(damaged, 2)}", stacklevel=2)
        super().__init__(
            opened,
            split,
            points=points,
            subset=subset,
            normals=normals,
            seed=seed,
            split_seed=split_seed,
            validation=validation,
            test=test,
        )


def convert(
    source: str | Path,
    root: str | Path | None = None,
    *,
    to: str | Path | None = None,
    points: int = 2048,
    up: Up | None = None,
    seed: int = 0,
    workers: int = 0,
    drop_nan: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Convert a folder to a pack, unless it is there already for the same files; gives its path.

    `up` is the axis that is up in the files; by default y in .glb, whose format says so, and z in all others.
    `drop_nan` leaves out points of clouds that are NaN or infinite.
    """
    source = Path(source)
    plan = make_plan(source, points, up, seed, drop_nan)
    name = to if to is not None else _name(source, plan)
    path = pack_path(name, root)
    if to is not None or not path.is_file():
        again = to is not None
        build(path, "folder", plan, workers=workers, skip_damaged=MOST_DAMAGED, again=again, progress=progress)
    return path


def make_plan(source: Path, points: int, up: Up | None = None, seed: int = 0, drop_nan: bool = False) -> Plan:
    """What is to be read from a folder."""
    at_least(1, points=points)
    files, classes = listing(source)
    read = partial(_read, points, up, seed, drop_nan)
    options = (points, up, seed, *(["drop_nan"] if drop_nan else []))
    chunks = [chunk for split in files for chunk in file_chunks(split, files[split], read, *options, by_content=True)]
    return Plan("folder of files", classes, chunks)


def listing(
    source: Path, suffixes: Sequence[str] = io.SUFFIXES
) -> tuple[dict[str, list[tuple[str, Path, int]]], tuple[str, ...]]:
    """The files of every split, `(name, file, label)`, and the classes: names of sub-folders, in alphabetical order.

    Without folders train, val or test there is one split, `all`; without class folders there is one class.
    """
    if not source.is_dir():
        raise DataError(f"there is no folder {source}")
    found = [f for f in _files_below(source) if f.suffix.lower() in suffixes and not _hidden(f, source)]
    holders = {above for file in found for above in file.parent.parents}
    # A table beside class folders is about the shapes, not one of them.
    found = [file for file in found if file.suffix.lower() != ".csv" or file.parent not in holders]
    if not found:
        raise DataError(f"{source} has no files to read: expected class/name.{{{','.join(s[1:] for s in suffixes)}}}")
    folders = {s: next((f for n in names if (f := source / n).is_dir()), None) for s, names in SPLIT_FOLDERS.items()}
    splits = {split: folder for split, folder in folders.items() if folder is not None} or {"all": source}
    files = {split: [file for file in found if folder in file.parents] for split, folder in splits.items()}
    stray = {file.relative_to(source).parts[0] for file in found} - {folder.name for folder in splits.values()}
    if stray and "all" not in splits:
        beside = ", ".join(folder.name for folder in splits.values())
        raise DataError(f"{source} has {listed(sorted(stray))} beside {beside}: move it into one of them, or away")
    inner = {file: file.relative_to(splits[split]) for split, some in files.items() for file in some}
    loose = [str(file) for file, name in inner.items() if len(name.parts) == 1]
    if 0 < len(loose) < len(found):
        raise DataError(f"{source}: some files are in class folders and some in none: {listed(loose, 2)}")
    class_of = {file: ONLY_CLASS if loose else name.parts[0] for file, name in inner.items()}
    classes = tuple(sorted(set(class_of.values())))
    labelled = {
        split: [(str(inner[file]), file, classes.index(class_of[file])) for file in some]
        for split, some in files.items()
        if some
    }
    return labelled, classes


def _files_below(source: Path) -> list[Path]:
    def stop(error: OSError) -> None:
        raise error  # a folder that cannot be listed is not an empty one

    return sorted(Path(folder, name) for folder, _, names in os.walk(source, onerror=stop) for name in names)


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _name(source: Path, plan: Plan) -> str:
    """The name of a folder's pack: it changes when one of the files does."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", source.resolve().name).strip("-") or "files"
    return f"folder-{readable}-{key_of(*(chunk.key for chunk in plan.chunks))[:12]}"


def up_of(file: Path, up: Up | None) -> Up:
    """The axis that is up in a file, if nothing else is said: glTF prescribes y."""
    return up or ("y" if file.suffix.lower() == ".glb" else "z")


def _read(points: int, up: Up | None, seed: int, drop_nan: bool, name: str, file: Path, label: int) -> Rows:
    mesh, generator = io.read(file, drop_nan=drop_nan), torch.Generator().manual_seed(seed_of(seed, name))
    columns = _columns(mesh, points, generator)
    chosen, count = fit(columns, points, generator)
    rows = cloud_rows(chosen["points"][None], up_of(file, up), chosen["normals"][None] if "normals" in chosen else None)
    return rows | {"count": torch.tensor([count])}


def _columns(mesh: Mesh, points: int, generator: torch.Generator) -> Rows:
    if not mesh.is_cloud:
        sampled, normals = surface.sample(mesh, points, generator=generator)
        return {"points": sampled, "normals": normals}
    known = {} if mesh.normals is None else {"normals": mesh.normals}
    return {"points": mesh.vertices} | known
