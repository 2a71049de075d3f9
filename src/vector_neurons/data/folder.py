"""A data set from your own folder of meshes and clouds, with one sub-folder for each class."""

import os
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from .._files import abbreviate, first_line
from ..mesh import Mesh, io, surface
from .convert import convert_plan
from .pack import DataError, open_pack, pack_path
from .pack_dataset import PackDataset, SubsetMethod
from .plan import Plan, chunk_key, file_chunks
from .reading import check_minimum
from .rows import PackRows, Up, cloud_rows, resample
from .seeding import derive_seed

SPLIT_FOLDERS = {"train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)}
SPLITS = tuple(SPLIT_FOLDERS)
MAX_DAMAGED_FRACTION = 0.5  # of the files, which are listed and left out
DEFAULT_CLASS = "object"  # of files outside class folders


class Folder(PackDataset):
    """Clouds from your own files, `class/name.{ply,obj,stl,off,glb,xyz,npy,npz,pcd,csv,pts}`, z up.

    Meshes are sampled by area and clouds taken as they are, each in the unit ball. The folder may be divided as
    `train/class/name...`, `val/...`, `test/...`; splits that it lacks are drawn by `split_seed`. Without class folders
    there is one class, `object`. Files that cannot be read are left out with a warning, up to half of them.

    The folder is converted once, to a pack in the data root, and again when a file changes. `vn data folder --from PATH
    --to NAME` converts it ahead of time; then give `pack` instead of `path`.

    Args:
        path: the folder.
        split: "train", "val", "test", "train+val" or "all".
        root: folder of the packs; by default `$VN_DATA`, or the user's cache directory.
        pack: name or path of a pack, instead of `path`.
        points: points of each cloud.
        subset: which of the points in the pack: "first", "random" (by `seed` and the shape) or "farthest".
        normals: deliver normals too; all files must have them.
        seed: of the random subset.
        split_seed: of the splits.
        validation: fraction of every class for "val", if the folder lacks it.
        test: fraction of every class for "test", if the folder has no splits.
        up: axis that is up in the files; by default y in .glb and z in all others.
        drop_nan: leave out points of clouds that are NaN or infinite; otherwise such files count as damaged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for i in range(10):
    ...         file = Path(folder, "scans", "cup", f"{i}.xyz")
    ...         file.parent.mkdir(parents=True, exist_ok=True)
    ...         _ = file.write_text("0 0 0\\n1 0 0\\n0 1 0\\n")
    ...     data = Folder(Path(folder, "scans"), "train", folder, points=3)
    ...     len(data), data.classes, data[0].points.shape
    (7, ('cup',), torch.Size([3, 3]))
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
        subset: SubsetMethod = "first",
        normals: bool = False,
        seed: int = 0,
        split_seed: int = 0,
        validation: float = 0.1,
        test: float = 0.2,
        up: Up | None = None,
        drop_nan: bool = False,
    ) -> None:
        if (path is None) == (pack is None):
            raise DataError("give either the path of a folder, or the pack that it was converted to")
        if path is None and (up is not None or drop_nan):
            raise DataError("up and drop_nan are options of the conversion: `vn data folder --up ... --drop-nan`")
        command = f"vn data folder --from {path or 'PATH'}" + ("" if pack is None else f" --to {pack}")
        try:
            converted = (
                pack if path is None else convert(path, root, points=max(points, 2048), up=up, drop_nan=drop_nan)
            )
        except OSError as error:
            raise DataError(first_line(error)) from error
        assert converted is not None  # one of the two was given
        opened = open_pack(converted, root, kind="folder", command=command)
        if damaged := opened.about["damaged"]:
            left_out = f"{len(damaged):,} files of {path or pack} could not be read and are left out"
            warnings.warn(f"{left_out}: {abbreviate(damaged, 2)}", stacklevel=2)
        super().__init__(
            split,
            pack=opened,
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
    """Convert a folder of files to a pack, unless the data root has one of the same files; returns its path.

    Args:
        source: the folder.
        root: folder of the packs; by default `$VN_DATA`, or the user's cache directory.
        to: name or path of the pack; by default a name that changes with the files.
        points: points sampled from each mesh, and kept of each cloud.
        up: axis that is up in the files; by default y in .glb, whose format says so, and z in all others.
        seed: of the samples.
        workers: number of processes that read files.
        drop_nan: leave out points of clouds that are NaN or infinite.
        progress: called with the number of shapes that have been read, and their total.
    """
    source = Path(source)
    plan = make_plan(source, points, up, seed, drop_nan)
    name = to if to is not None else _name(source, plan)
    path = pack_path(name, root)
    if to is not None or not path.is_file():
        convert_plan(
            path,
            "folder",
            plan,
            workers=workers,
            skip_damaged=MAX_DAMAGED_FRACTION,
            overwrite=to is not None,
            progress=progress,
        )
    return path


def make_plan(source: Path, points: int, up: Up | None = None, seed: int = 0, drop_nan: bool = False) -> Plan:
    """List what is to be read from a folder."""
    check_minimum(1, points=points)
    files, classes = list_files(source)
    read = partial(_read, points, up, seed, drop_nan)
    options = (points, up, seed, *(["drop_nan"] if drop_nan else []))
    chunks = [chunk for split in files for chunk in file_chunks(split, files[split], read, *options, by_content=True)]
    return Plan("folder of files", classes, chunks)


def list_files(
    source: Path, suffixes: Sequence[str] = io.SUFFIXES
) -> tuple[dict[str, list[tuple[str, Path, int]]], tuple[str, ...]]:
    """Return the files of every split, `(name, file, label)`, and the names of the classes in alphabetical order.

    Without folders train, val or test there is one split, `all`; without class folders there is one class.
    """
    found = shape_files(source, suffixes)
    outer = {above for file in found for above in file.parent.parents}
    # A table beside class folders is about the shapes, not one of them.
    found = [file for file in found if file.suffix.lower() != ".csv" or file.parent not in outer]
    if not found:
        raise DataError(f"{source} has no files to read: expected class/name.{{{','.join(s[1:] for s in suffixes)}}}")
    folders = {s: next((f for n in names if (f := source / n).is_dir()), None) for s, names in SPLIT_FOLDERS.items()}
    splits = {split: folder for split, folder in folders.items() if folder is not None} or {"all": source}
    files = {split: [file for file in found if folder in file.parents] for split, folder in splits.items()}
    stray = {file.relative_to(source).parts[0] for file in found} - {folder.name for folder in splits.values()}
    if stray and "all" not in splits:
        beside = ", ".join(folder.name for folder in splits.values())
        raise DataError(f"{source} has {abbreviate(sorted(stray))} beside {beside}: move it into one of them, or away")
    inner = {file: file.relative_to(splits[split]) for split, some in files.items() for file in some}
    loose = [str(file) for file, name in inner.items() if len(name.parts) == 1]
    if 0 < len(loose) < len(found):
        raise DataError(f"{source}: some files are in class folders and some in none: {abbreviate(loose, 2)}")
    class_of = {file: DEFAULT_CLASS if loose else name.parts[0] for file, name in inner.items()}
    classes = tuple(sorted(set(class_of.values())))
    labeled = {
        split: [(str(inner[file]), file, classes.index(class_of[file])) for file in some]
        for split, some in files.items()
        if some
    }
    return labeled, classes


def shape_files(source: Path, suffixes: Sequence[str] = io.SUFFIXES) -> list[Path]:
    """Return all files of a folder and its sub-folders with one of the suffixes, in order, without hidden ones."""
    if not source.is_dir():
        raise DataError(f"there is no folder {source}")
    return [f for f in _files_below(source) if f.suffix.lower() in suffixes and not _hidden(f, source)]


def _files_below(source: Path) -> list[Path]:
    def stop(error: OSError) -> None:
        raise error  # a folder that cannot be listed may have files

    return sorted(Path(folder, name) for folder, _, names in os.walk(source, onerror=stop) for name in names)


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _name(source: Path, plan: Plan) -> str:
    """Return the name of a folder's pack, which changes when one of the files does."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", source.resolve().name).strip("-") or "files"
    return f"folder-{readable}-{chunk_key(*(chunk.key for chunk in plan.chunks))[:12]}"


def up_axis(file: Path, up: Up | None) -> Up:
    """Return the axis that is up in a file: `up` if given, else y in .glb, as glTF prescribes, and z elsewhere."""
    return up or ("y" if file.suffix.lower() == ".glb" else "z")


def _read(points: int, up: Up | None, seed: int, drop_nan: bool, name: str, file: Path, label: int) -> PackRows:
    mesh, generator = io.read(file, drop_nan=drop_nan), torch.Generator().manual_seed(derive_seed(seed, name))
    columns = _columns(mesh, points, generator)
    chosen, count = resample(columns, points, generator)
    rows = cloud_rows(
        chosen["points"][None], up_axis(file, up), chosen["normals"][None] if "normals" in chosen else None
    )
    return rows | {"count": torch.tensor([count])}


def _columns(mesh: Mesh, points: int, generator: torch.Generator) -> PackRows:
    if not mesh.is_cloud:
        sampled, normals = surface.sample(mesh, points, generator=generator)
        return {"points": sampled, "normals": normals}
    known = {} if mesh.normals is None else {"normals": mesh.normals}
    return {"points": mesh.vertices} | known
