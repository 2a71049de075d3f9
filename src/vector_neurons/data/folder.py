"""Your own folder of meshes and clouds: one sub-folder for each class, read once."""

import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

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
    """Clouds of `class/name.{ply,obj,stl,off,glb,xyz,npy,npz}` or `train/class/name...`, in the unit ball, z up.

    Meshes are sampled by area, clouds taken as they are. The folder is read once, to a pack in the data root that is
    made again when a file changes. What the folder does not split itself is split by `split_seed`: `test` and
    `validation` are shares of every class. `up` is the axis that is up in the files: y in .glb and z in all others,
    unless told. A warning lists files that could not be read and are left out.
    """

    name = "folder"

    def __init__(
        self,
        path: str | Path,
        split: str,
        root: str | Path | None = None,
        *,
        points: int = 1024,
        subset: Subset = "first",
        normals: bool = False,
        seed: int = 0,
        split_seed: int = 0,
        validation: float = 0.1,
        test: float = 0.2,
        up: Up | None = None,
    ) -> None:
        file = convert(path, root, points=max(points, 2048), up=up)
        pack = open_pack(file, kind="folder", make=f"vn data folder --from {path}")
        if damaged := pack.about["damaged"]:
            left_out = f"{len(damaged):,} files of {path} could not be read and are left out"
            warnings.warn(f"{left_out}: {listed(damaged, 2)}", stacklevel=2)
        super().__init__(
            pack,
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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Convert a folder to a pack, unless it is there already for the same files; gives its path.

    `up` is the axis that is up in the files; by default y in .glb, whose format says so, and z in all others.
    """
    source = Path(source)
    plan = make_plan(source, points, up, seed)
    name = to if to is not None else _name(source, plan)
    path = pack_path(name, root)
    if to is not None or not path.is_file():
        again = to is not None
        build(path, "folder", plan, workers=workers, skip_damaged=MOST_DAMAGED, again=again, progress=progress)
    return path


def make_plan(source: Path, points: int, up: Up | None = None, seed: int = 0) -> Plan:
    """What is to be read from a folder."""
    at_least(1, points=points)
    files, classes = listing(source)
    read = partial(_read, points, up, seed)
    chunks = [
        chunk for split in files for chunk in file_chunks(split, files[split], read, points, up, seed, by_content=True)
    ]
    return Plan("folder of files", classes, chunks)


def listing(
    source: Path, suffixes: Sequence[str] = io.SUFFIXES
) -> tuple[dict[str, list[tuple[str, Path, int]]], tuple[str, ...]]:
    """The files of every split, `(name, file, label)`, and the classes: names of sub-folders, in alphabetical order.

    Without folders train, val or test there is one split, `all`; without class folders there is one class.
    """
    if not source.is_dir():
        raise DataError(f"there is no folder {source}")
    found = sorted(f for f in source.rglob("*") if f.suffix.lower() in suffixes and not _hidden(f, source))
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


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _name(source: Path, plan: Plan) -> str:
    """The name of a folder's pack: it changes when one of the files does."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", source.resolve().name).strip("-") or "files"
    return f"folder-{readable}-{key_of(*(chunk.key for chunk in plan.chunks))[:12]}"


def up_of(file: Path, up: Up | None) -> Up:
    """The axis that is up in a file, if nothing else is said: glTF prescribes y."""
    return up or ("y" if file.suffix.lower() == ".glb" else "z")


def _read(points: int, up: Up | None, seed: int, name: str, file: Path, label: int) -> Rows:
    mesh, generator = io.read(file), torch.Generator().manual_seed(seed_of(seed, name))
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
