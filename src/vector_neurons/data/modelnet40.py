"""ModelNet40: 12,311 CAD models of 40 classes, from any layout in which it is published."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from .._files import abbreviate
from ..mesh import io, surface
from .convert import convert_plan
from .pack import DataError, pack_path
from .pack_dataset import PackDataset
from .plan import Chunk, ChunkContent, Plan, file_chunks
from .reading import (
    check_minimum,
    content_digests,
    content_of_arrays,
    dequantize,
    find_layout,
    hdf5_chunks,
    npz_chunks,
    read_hdf5,
    read_npz,
    read_table,
    read_words,
)
from .rows import PackRows, Up, cloud_rows
from .seeding import derive_seed

NAME = "modelnet40"
CLASSES = (
    *("airplane", "bathtub", "bed", "bench", "bookshelf", "bottle", "bowl", "car", "chair", "cone"),
    *("cup", "curtain", "desk", "door", "dresser", "flower_pot", "glass_box", "guitar", "keyboard", "lamp"),
    *("laptop", "mantel", "monitor", "night_stand", "person", "piano", "plant", "radio", "range_hood", "sink"),
    *("sofa", "stairs", "stool", "table", "tent", "toilet", "tv_stand", "vase", "wardrobe", "xbox"),
)
PUBLISHED = {"train": 9843, "test": 2468}
POINTS_PER_FILE = 10_000
HDF5_FILES = {"train": 5, "test": 2}
IS_SHAPENET_PART = "this is ShapeNet-Part: use `vn data shapenet-part`"


class ModelNet40(PackDataset):
    """ModelNet40 from its pack, z up, each cloud in the unit ball. Convert it once: `vn data modelnet40 --from PATH`.

    Args:
        split: "train", "val", "test", "train+val" or "all". ModelNet40 has no validation set: "val" is a fraction of
            every class of the published training set, "train" is the rest, and "train+val" is all of it.
        root: folder of the packs; by default `$VN_DATA`, or the user's cache directory.
        pack: name or path of another pack.
        points: points of each cloud, at most as many as the pack has (2048 unless converted otherwise).
        subset: which of the points in the pack: "first", "random" (by `seed` and the shape) or "farthest".
        normals: deliver normals too.
        seed: of the random subset.
        split_seed: chooses the validation set.
        validation: fraction of the training set for "val".
        test: not used: the test set is published.
    """

    name = NAME
    command = f"vn data {NAME} --from PATH"


def convert(
    source: str | Path,
    root: str | Path | None = None,
    *,
    points: int = 2048,
    up: Up | None = None,
    seed: int = 0,
    workers: int = 0,
    skip_damaged: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Convert a published folder, or `modelnet40.npz`, to the pack `modelnet40`; returns its path.

    Args:
        source: the text, HDF5 or mesh release, the folder above it, or the .npz file.
        root: folder of the packs; by default `$VN_DATA`, or the user's cache directory.
        points: points kept of each shape: the first ones, or as many sampled from its mesh.
        up: axis that is up in the source; by default y in clouds and z in meshes, as published.
        seed: of the samples from meshes.
        workers: number of processes that read files.
        skip_damaged: leave out missing and damaged files.
        progress: called with the number of shapes that have been read, and their total.
    """
    path = pack_path(NAME, root)
    plan = make_plan(Path(source), points, up, seed)
    convert_plan(path, NAME, plan, workers=workers, skip_damaged=skip_damaged, progress=progress)
    return path


def make_plan(source: Path, points: int, up: Up | None = None, seed: int = 0) -> Plan:
    """List what is to be read from a source of any layout."""
    check_minimum(1, points=points)
    layouts: dict[str, tuple[str, Callable[[Path], list[Chunk]]]] = {
        "array pack": ("modelnet40.npz", lambda found: _npz(found, points, up or "y")),
        "text release": ("modelnet40_shape_names.txt", lambda found: _text(found, points, up or "y")),
        "HDF5 release": ("ply_data_train0.h5", lambda found: _hdf5(found.parent, points, up or "y")),
        "meshes": ("airplane/train", lambda found: _meshes(found.parents[1], points, up or "z", seed)),
    }
    layout, found = find_layout(source, {name: landmark for name, (landmark, _) in layouts.items()}, "ModelNet40")
    return Plan(layout, CLASSES, layouts[layout][1](found), PUBLISHED)


def _check_classes(found: list[str], where: Path, *, ordered: bool = True) -> None:
    if sorted(found) != sorted(CLASSES):
        odd = sorted(set(found) ^ set(CLASSES)) or ["a name is repeated"]
        raise DataError(f"{where}: the class list does not match ModelNet40's 40 classes ({abbreviate(odd)})")
    if ordered and found != list(CLASSES):
        raise DataError(f"{where}: the class list does not match ModelNet40's: its order differs")


def _npz(file: Path, points: int, up: Up) -> list[Chunk]:
    _check_classes(read_npz(file, ["names"])["names"].tolist(), file)
    return npz_chunks(file, PUBLISHED, partial(_read_npz, points, up), NAME, points, up)


def _read_npz(points: int, up: Up, file: Path, split: str) -> ChunkContent:
    x, y, names, scale = read_npz(file, [f"x_{split}", f"y_{split}", f"id_{split}", "scale"]).values()
    clouds = dequantize(file, x, scale, split, points)
    return content_of_arrays(file, clouds, y, names.tolist(), len(CLASSES), up)


def _text(names_file: Path, points: int, up: Up) -> list[Chunk]:
    folder = names_file.parent
    _check_classes(read_words(names_file), names_file)
    chunks = []
    for split in PUBLISHED:
        listing = folder / f"modelnet40_{split}.txt"
        if not listing.is_file():
            raise DataError(f"{listing} is missing: it says which shapes are in the {split} set")
        shapes = read_words(listing)
        unknown = [shape for shape in shapes if shape.rpartition("_")[0] not in CLASSES]
        if unknown:
            raise DataError(f"{listing}: the class list does not match, {unknown[0]!r} is of none of its classes")
        files = [(s, folder / (c := s.rpartition("_")[0]) / f"{s}.txt", CLASSES.index(c)) for s in shapes]
        chunks += file_chunks(split, files, partial(_read_text, points, up), points, up)
    return chunks


def _read_text(points: int, up: Up, name: str, file: Path, label: int) -> PackRows:
    columns = torch.from_numpy(read_table(file, 6, ",", POINTS_PER_FILE, points))
    return cloud_rows(columns[None, :, :3], up, columns[None, :, 3:])


def _hdf5(folder: Path, points: int, up: Up) -> list[Chunk]:
    # ShapeNet-Part's files have the same names, and its labels are valid as the first 16 classes.
    if any((folder / f"ply_data_{name}.h5").is_file() for name in ("val0", "train5")):
        raise DataError(f"{folder}: {IS_SHAPENET_PART}")
    names = folder / "shape_names.txt"
    if names.is_file():
        _check_classes(read_words(names), names)
    return hdf5_chunks(folder, HDF5_FILES, partial(_read_hdf5, points, up), NAME, points, up)


def _read_hdf5(points: int, up: Up, file: Path) -> ChunkContent:
    arrays = read_hdf5(file, {"data": 3, "label": 0}, optional=["normal", "pid"])
    if "pid" in arrays:
        raise DataError(f"{file}: {IS_SHAPENET_PART}")
    more = {"normals": arrays["normal"][:, :points]} if "normal" in arrays else {}
    clouds, labels = arrays["data"], arrays["label"].reshape(-1)
    return content_of_arrays(file, clouds[:, :points], labels, content_digests(clouds), len(CLASSES), up, **more)


def _meshes(folder: Path, points: int, up: Up, seed: int) -> list[Chunk]:
    _check_classes(
        [f.name for f in folder.iterdir() if f.is_dir() and not f.name.startswith(".")], folder, ordered=False
    )
    empty = [f"{c}/{split}" for c in CLASSES for split in PUBLISHED if not any((folder / c / split).glob("*.off"))]
    if empty:
        raise DataError(f"{folder} is incomplete: there are no .off files in {abbreviate(empty)}")
    chunks = []
    for split in PUBLISHED:
        files = [
            (file.stem, file, label)
            for label, name in enumerate(CLASSES)
            for file in sorted((folder / name / split).glob("*.off"))
        ]
        chunks += file_chunks(split, files, partial(_read_mesh, points, up, seed), points, up, seed, by_content=True)
    return chunks


def _read_mesh(points: int, up: Up, seed: int, name: str, file: Path, label: int) -> PackRows:
    mesh = io.read(file)
    generator = torch.Generator().manual_seed(derive_seed(seed, name))
    sampled, normals = surface.sample(mesh, points, generator=generator)
    return cloud_rows(sampled[None], up, normals[None])
