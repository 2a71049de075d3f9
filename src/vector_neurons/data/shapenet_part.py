"""ShapeNet-Part: 16,881 models of 16 categories, every point labelled with one of 50 parts, from every layout."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from .._files import FileError, first_line, read_json
from .build import Chunk, Content, Plan, Rows, build, file_chunks
from .pack import DataError, listed, open_pack, pack_path, seed_of
from .packed import Packed, Subset
from .reading import (
    Array,
    Up,
    array_content,
    at_least,
    cloud_rows,
    digests,
    find,
    fit,
    hdf5_chunks,
    known_labels,
    npz_chunks,
    read_arrays,
    read_hdf5,
    scaled_clouds,
    table,
    words,
)

NAME = "shapenet-part"
MAKE = f"vn data {NAME} --from PATH"
# Category: its folder in ShapeNet and the number of its parts, which are numbered through in this order.
CATEGORIES = {
    "Airplane": ("02691156", 4),
    "Bag": ("02773838", 2),
    "Cap": ("02954340", 2),
    "Car": ("02958343", 4),
    "Chair": ("03001627", 4),
    "Earphone": ("03261776", 3),
    "Guitar": ("03467517", 3),
    "Knife": ("03624134", 2),
    "Lamp": ("03636649", 4),
    "Laptop": ("03642806", 2),
    "Motorbike": ("03790512", 6),
    "Mug": ("03797390", 2),
    "Pistol": ("03948459", 3),
    "Rocket": ("04099429", 3),
    "Skateboard": ("04225987", 3),
    "Table": ("04379243", 3),
}
CLASSES = tuple(CATEGORIES)
SYNSETS = tuple(synset for synset, _ in CATEGORIES.values())
PARTS = tuple(f"{name} {i + 1}" for name, (_, count) in CATEGORIES.items() for i in range(count))
PARTS_OF = torch.tensor([[part.rpartition(" ")[0] == name for part in PARTS] for name in CLASSES])
PUBLISHED = {"train": 12137, "val": 1870, "test": 2874}
HDF5_FILES = {"train": 6, "val": 1, "test": 2}


class ShapeNetPart(Packed):
    """ShapeNet-Part from its pack, z up, each cloud in the unit ball; `parts` of a cloud are numbered 0 to 49.

    `parts_of[category]` says which parts a category can have. `split` is "train", "val", "test" or "train+val".
    """

    name = NAME
    parts = PARTS
    parts_of = PARTS_OF

    def __init__(
        self,
        split: str,
        root: str | Path | None = None,
        *,
        points: int = 1024,
        subset: Subset = "first",
        normals: bool = False,
        seed: int = 0,
    ) -> None:
        pack = open_pack(NAME, root, kind=NAME, make=MAKE)
        if pack.classes != CLASSES or tuple(pack.about.get("parts", ())) != PARTS:
            raise DataError(f"{pack.path} is damaged: its categories or parts are others; make it again with `{MAKE}`")
        super().__init__(pack, split, points=points, subset=subset, normals=normals, seed=seed)


def convert(
    source: str | Path,
    root: str | Path | None = None,
    *,
    points: int = 2048,
    up: Up = "y",
    seed: int = 0,
    workers: int = 0,
    skip_damaged: bool = False,
    drop_overlap: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Convert a published folder, or `shapenet_part.npz`, to the pack `shapenet-part`; gives its path.

    At most `points` points of a shape are kept. The text release has its points part by part, so they are shuffled by
    `seed`; shapes with fewer points repeat some. `drop_overlap` leaves out of one split what stands in a later one.
    """
    path = pack_path(NAME, root)
    plan = make_plan(Path(source), points, up, seed)
    build(path, NAME, plan, workers=workers, skip_damaged=skip_damaged, drop_overlap=drop_overlap, progress=progress)
    return path


def make_plan(source: Path, points: int, up: Up = "y", seed: int = 0) -> Plan:
    """What is to be read from a source, whichever layout it has."""
    at_least(1, points=points)
    layouts: dict[str, tuple[str, Callable[[Path], list[Chunk]]]] = {
        "array pack": ("shapenet_part.npz", lambda found: _npz(found, points, up)),
        "text release": ("synsetoffset2category.txt", lambda found: _text(found, points, up, seed)),
        "HDF5 release": ("ply_data_train0.h5", lambda found: _hdf5(found.parent, points, up)),
    }
    layout, found = find(source, {name: landmark for name, (landmark, _) in layouts.items()}, "ShapeNet-Part")
    return Plan(layout, CLASSES, layouts[layout][1](found), PUBLISHED, {"parts": PARTS})


def _same_classes(found: dict[str, str], where: Path) -> None:
    expected = {name: synset for name, (synset, _) in CATEGORIES.items()}
    if found != expected:
        odd = sorted({name for name, _ in set(found.items()) ^ set(expected.items())})
        raise DataError(f"{where}: the class list does not match ShapeNet-Part's 16 categories ({listed(odd)})")


def _same_parts(parts: Array, labels: Array, clouds: tuple[int, ...], file: Path, where: str) -> None:
    """Refuse parts that their category does not have: with numbers mixed up, training would still run."""
    if parts.shape != clouds[:2] or labels.shape != clouds[:1]:
        found = f"{parts.shape} and {len(labels):,} labels"
        raise DataError(f"{file} is damaged: {where} {found} do not fit its clouds {clouds}")
    known_labels(file, labels, len(CLASSES))
    good = (parts >= 0) & (parts < len(PARTS))
    good &= PARTS_OF.numpy()[labels.reshape(-1, 1), np.where(good, parts, 0)]
    if not good.all():
        row, column = np.argwhere(~good)[0]
        name = CLASSES[labels[row]]
        raise DataError(f"{file}, {where}: a point of {name} has part {parts[row, column]}, which is no part of it")


def _npz(file: Path, points: int, up: Up) -> list[Chunk]:
    arrays = read_arrays(file, ["names", "synset"])
    _same_classes(dict(zip(arrays["names"].tolist(), arrays["synset"].tolist(), strict=False)), file)
    return npz_chunks(file, PUBLISHED, partial(_read_npz, points, up), NAME, points, up)


def _read_npz(points: int, up: Up, file: Path, split: str) -> Content:
    arrays = read_arrays(file, [f"{a}_{split}" for a in ("x", "y", "pid", "id")] + ["scale"], [f"npts_orig_{split}"])
    x, y, parts, names, scale, *counts = arrays.values()
    clouds = scaled_clouds(file, x, scale, split, points)
    _same_parts(parts, y, x.shape, file, f"'pid_{split}'")
    more = {"parts": parts[:, :points].astype(np.uint8)}
    if counts:
        more["count"] = np.minimum(counts[0], clouds.shape[1]).astype(np.int64)
    return array_content(file, clouds, y, names.tolist(), len(CLASSES), up, **more)


def _text(categories: Path, points: int, up: Up, seed: int) -> list[Chunk]:
    folder = categories.parent
    pairs = words(categories)
    _same_classes(dict(zip(pairs[::2], pairs[1::2], strict=False)), categories)
    chunks = []
    for split in PUBLISHED:
        listing = folder / "train_test_split" / f"shuffled_{split}_file_list.json"
        if not listing.exists():
            raise DataError(f"{listing} is missing: it says which shapes are in the {split} set")
        try:
            found = read_json(listing)
        except FileError as error:
            raise DataError(f"{listing} is truncated or damaged: {first_line(error)}") from error
        if not isinstance(found, list):
            raise DataError(f"{listing} is truncated or damaged: it is no JSON list")
        shapes = [str(shape).removeprefix("shape_data/") for shape in found]
        unknown = [shape for shape in shapes if shape.partition("/")[0] not in SYNSETS]
        if unknown:
            raise DataError(f"{listing}: the class list does not match, {unknown[0]!r} is of none of its categories")
        files = [(s, folder / f"{s}.txt", SYNSETS.index(s.partition("/")[0])) for s in shapes]
        chunks += file_chunks(split, files, partial(_read_text, points, up, seed), points, up, seed)
    return chunks


def _read_text(points: int, up: Up, seed: int, name: str, file: Path, label: int) -> Rows:
    numbers = torch.from_numpy(table(file, 7, None))
    parts = numbers[:, 6].round().long()
    _same_parts(parts[None].numpy(), np.array([label]), (1, *numbers.shape), file, "its last column")
    columns = {"points": numbers[:, :3], "normals": numbers[:, 3:6], "parts": parts.to(torch.uint8)}
    chosen, count = fit(columns, points, torch.Generator().manual_seed(seed_of(seed, name)))
    rows = cloud_rows(chosen["points"][None], up, chosen["normals"][None])
    return rows | {"parts": chosen["parts"][None], "count": torch.tensor([count])}


def _hdf5(folder: Path, points: int, up: Up) -> list[Chunk]:
    return hdf5_chunks(folder, HDF5_FILES, partial(_read_hdf5, points, up), NAME, points, up)


def _read_hdf5(points: int, up: Up, file: Path) -> Content:
    arrays = read_hdf5(file, {"data": 3, "label": 0, "pid": 0})
    clouds, labels, parts = arrays["data"], arrays["label"].reshape(-1), arrays["pid"]
    _same_parts(parts, labels, clouds.shape, file, "'pid'")
    more = {"parts": parts[:, :points].astype(np.uint8)}
    return array_content(file, clouds[:, :points], labels, digests(clouds), len(CLASSES), up, **more)
