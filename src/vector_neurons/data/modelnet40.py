"""ModelNet40: 12,311 CAD models of 40 classes, from every layout it is published in."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from ..mesh import io, surface
from .build import Chunk, Content, Plan, Rows, build, file_chunks
from .pack import DataError, listed, open_pack, pack_path, seed_of
from .packed import Packed, Subset
from .reading import (
    Up,
    array_content,
    at_least,
    cloud_rows,
    digests,
    find,
    hdf5_chunks,
    npz_chunks,
    read_arrays,
    read_hdf5,
    scaled_clouds,
    table,
    words,
)

NAME = "modelnet40"
MAKE = f"vn data {NAME} --from PATH"
CLASSES = (
    *("airplane", "bathtub", "bed", "bench", "bookshelf", "bottle", "bowl", "car", "chair", "cone"),
    *("cup", "curtain", "desk", "door", "dresser", "flower_pot", "glass_box", "guitar", "keyboard", "lamp"),
    *("laptop", "mantel", "monitor", "night_stand", "person", "piano", "plant", "radio", "range_hood", "sink"),
    *("sofa", "stairs", "stool", "table", "tent", "toilet", "tv_stand", "vase", "wardrobe", "xbox"),
)
PUBLISHED = {"train": 9843, "test": 2468}
POINTS_PER_FILE = 10_000
HDF5_FILES = {"train": 5, "test": 2}
SHAPENET_PART = "this is ShapeNet-Part: use `vn data shapenet-part`"


class ModelNet40(Packed):
    """ModelNet40 from its pack, z up, each cloud in the unit ball.

    `split` is "train", "val" or "test"; ModelNet40 has no validation set, so "val" is a share of the published training
    set, the same share of every class, chosen by `split_seed`, and "train" is the rest; "train+val" is all of it.
    """

    name = NAME

    def __init__(
        self,
        split: str,
        root: str | Path | None = None,
        *,
        points: int = 1024,
        subset: Subset = "first",
        normals: bool = False,
        seed: int = 0,
        split_seed: int = 0,
        validation: float = 0.1,
    ) -> None:
        pack = open_pack(NAME, root, kind=NAME, make=MAKE)
        super().__init__(
            pack,
            split,
            points=points,
            subset=subset,
            normals=normals,
            seed=seed,
            split_seed=split_seed,
            validation=validation,
        )


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
    """Convert a published folder, or `modelnet40.npz`, to the pack `modelnet40`; gives its path.

    At most `points` points of a shape are kept: the first ones, or as many sampled from its mesh. `up` is the axis that
    is up in the source, if it differs from the publisher's: y in clouds, z in meshes.
    """
    path = pack_path(NAME, root)
    plan = make_plan(Path(source), points, up, seed)
    build(path, NAME, plan, workers=workers, skip_damaged=skip_damaged, progress=progress)
    return path


def make_plan(source: Path, points: int, up: Up | None = None, seed: int = 0) -> Plan:
    """What is to be read from a source, whichever layout it has."""
    at_least(1, points=points)
    layouts: dict[str, tuple[str, Callable[[Path], list[Chunk]]]] = {
        "array pack": ("modelnet40.npz", lambda found: _npz(found, points, up or "y")),
        "text release": ("modelnet40_shape_names.txt", lambda found: _text(found, points, up or "y")),
        "HDF5 release": ("ply_data_train0.h5", lambda found: _hdf5(found.parent, points, up or "y")),
        "meshes": ("airplane/train", lambda found: _meshes(found.parents[1], points, up or "z", seed)),
    }
    layout, found = find(source, {name: landmark for name, (landmark, _) in layouts.items()}, "ModelNet40")
    return Plan(layout, CLASSES, layouts[layout][1](found), PUBLISHED)


def _same_classes(found: list[str], where: Path, *, ordered: bool = True) -> None:
    if sorted(found) != sorted(CLASSES):
        odd = sorted(set(found) ^ set(CLASSES)) or ["a name stands twice"]
        raise DataError(f"{where}: the class list does not match ModelNet40's 40 classes ({listed(odd)})")
    if ordered and found != list(CLASSES):
        raise DataError(f"{where}: the class list does not match ModelNet40's: its order differs")


def _npz(file: Path, points: int, up: Up) -> list[Chunk]:
    _same_classes(read_arrays(file, ["names"])["names"].tolist(), file)
    return npz_chunks(file, PUBLISHED, partial(_read_npz, points, up), NAME, points, up)


def _read_npz(points: int, up: Up, file: Path, split: str) -> Content:
    x, y, names, scale = read_arrays(file, [f"x_{split}", f"y_{split}", f"id_{split}", "scale"]).values()
    clouds = scaled_clouds(file, x, scale, split, points)
    return array_content(file, clouds, y, names.tolist(), len(CLASSES), up)


def _text(names_file: Path, points: int, up: Up) -> list[Chunk]:
    folder = names_file.parent
    _same_classes(words(names_file), names_file)
    chunks = []
    for split in PUBLISHED:
        listing = folder / f"modelnet40_{split}.txt"
        if not listing.is_file():
            raise DataError(f"{listing} is missing: it says which shapes are in the {split} set")
        shapes = words(listing)
        unknown = [shape for shape in shapes if shape.rpartition("_")[0] not in CLASSES]
        if unknown:
            raise DataError(f"{listing}: the class list does not match, {unknown[0]!r} is of none of its classes")
        files = [(s, folder / (c := s.rpartition("_")[0]) / f"{s}.txt", CLASSES.index(c)) for s in shapes]
        chunks += file_chunks(split, files, partial(_read_text, points, up), points, up)
    return chunks


def _read_text(points: int, up: Up, name: str, file: Path, label: int) -> Rows:
    numbers = torch.from_numpy(table(file, 6, ",", POINTS_PER_FILE, points))
    return cloud_rows(numbers[None, :, :3], up, numbers[None, :, 3:])


def _hdf5(folder: Path, points: int, up: Up) -> list[Chunk]:
    # ShapeNet-Part's files are called the same, and its labels would pass for the first 16 classes.
    if any((folder / f"ply_data_{name}.h5").is_file() for name in ("val0", "train5")):
        raise DataError(f"{folder}: {SHAPENET_PART}")
    names = folder / "shape_names.txt"
    if names.is_file():
        _same_classes(words(names), names)
    return hdf5_chunks(folder, HDF5_FILES, partial(_read_hdf5, points, up), NAME, points, up)


def _read_hdf5(points: int, up: Up, file: Path) -> Content:
    arrays = read_hdf5(file, {"data": 3, "label": 0}, optional=["normal", "pid"])
    if "pid" in arrays:
        raise DataError(f"{file}: {SHAPENET_PART}")
    more = {"normals": arrays["normal"][:, :points]} if "normal" in arrays else {}
    clouds, labels = arrays["data"], arrays["label"].reshape(-1)
    return array_content(file, clouds[:, :points], labels, digests(clouds), len(CLASSES), up, **more)


def _meshes(folder: Path, points: int, up: Up, seed: int) -> list[Chunk]:
    _same_classes(
        [f.name for f in folder.iterdir() if f.is_dir() and not f.name.startswith(".")], folder, ordered=False
    )
    empty = [f"{c}/{split}" for c in CLASSES for split in PUBLISHED if not any((folder / c / split).glob("*.off"))]
    if empty:
        raise DataError(f"{folder} is incomplete: there are no .off files in {listed(empty)}")
    chunks = []
    for split in PUBLISHED:
        files = [
            (file.stem, file, label)
            for label, name in enumerate(CLASSES)
            for file in sorted((folder / name / split).glob("*.off"))
        ]
        chunks += file_chunks(split, files, partial(_read_mesh, points, up, seed), points, up, seed, by_content=True)
    return chunks


def _read_mesh(points: int, up: Up, seed: int, name: str, file: Path, label: int) -> Rows:
    mesh = io.read(file)
    generator = torch.Generator().manual_seed(seed_of(seed, name))
    sampled, normals = surface.sample(mesh, points, generator=generator)
    return cloud_rows(sampled[None], up, normals[None])
