"""ShapeNet-Part: 16,881 models of 16 categories, every point labeled with one of 50 parts, from any layout."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from .._files import FileError, abbreviate, first_line, read_json
from .convert import convert_plan
from .pack import DataError, Pack, pack_path
from .pack_dataset import PackDataset
from .plan import Chunk, ChunkContent, Plan, file_chunks
from .reading import (
    Array,
    check_labels,
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
from .rows import PackRows, Up, cloud_rows, resample
from .seeding import derive_seed

NAME = "shapenet-part"
# Category: its folder (synset) in ShapeNet, and the number of its parts, which are numbered in this order.
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


class ShapeNetPart(PackDataset):
    """ShapeNet-Part from its pack, z up, each cloud in the unit ball. Convert it: `vn data shapenet-part --from PATH`.

    `parts` of a cloud are numbered 0 to 49; the mask `parts_of[category]` says which parts a category can have.

    Args:
        split: "train", "val", "test", "train+val" or "all", as published.
        root: folder of the packs; by default `$VN_DATA`, or the user's cache directory.
        pack: name or path of another pack.
        points: points of each cloud, at most as many as the pack has (2048 unless converted otherwise).
        subset: which of the points in the pack: "first", "random" (by `seed` and the shape) or "farthest".
        normals: deliver normals too; only the text release has them.
        seed: of the random subset.
        split_seed: not used, and neither are `validation` and `test`: the splits are published.
    """

    name = NAME
    command = f"vn data {NAME} --from PATH"
    parts = PARTS
    parts_of = PARTS_OF

    def _check_pack(self, pack: Pack) -> None:
        if pack.classes != CLASSES or tuple(pack.about.get("parts", ())) != PARTS:
            problem = "its categories or parts are not those of ShapeNet-Part"
            raise DataError(f"{pack.path} is damaged: {problem}; make it again with `{self.command}`")


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
    """Convert a published folder, or `shapenet_part.npz`, to the pack `shapenet-part`; returns its path.

    Args:
        source: the text or HDF5 release, the folder above it, or the .npz file.
        root: folder of the packs; by default `$VN_DATA`, or the user's cache directory.
        points: points kept of each shape; those with fewer repeat some.
        up: axis that is up in the source.
        seed: shuffles the points of the text release, which has them part by part.
        workers: number of processes that read files.
        skip_damaged: leave out missing and damaged files.
        drop_overlap: leave out of one split what is also in a later one.
        progress: called with the number of shapes that have been read, and their total.
    """
    path = pack_path(NAME, root)
    plan = make_plan(Path(source), points, up, seed)
    convert_plan(
        path, NAME, plan, workers=workers, skip_damaged=skip_damaged, drop_overlap=drop_overlap, progress=progress
    )
    return path


def make_plan(source: Path, points: int, up: Up = "y", seed: int = 0) -> Plan:
    """List what is to be read from a source of any layout."""
    check_minimum(1, points=points)
    layouts: dict[str, tuple[str, Callable[[Path], list[Chunk]]]] = {
        "array pack": ("shapenet_part.npz", lambda found: _npz(found, points, up)),
        "text release": ("synsetoffset2category.txt", lambda found: _text(found, points, up, seed)),
        "HDF5 release": ("ply_data_train0.h5", lambda found: _hdf5(found.parent, points, up)),
    }
    layout, found = find_layout(source, {name: landmark for name, (landmark, _) in layouts.items()}, "ShapeNet-Part")
    return Plan(layout, CLASSES, layouts[layout][1](found), PUBLISHED, {"parts": PARTS})


def _check_classes(found: dict[str, str], where: Path) -> None:
    expected = {name: synset for name, (synset, _) in CATEGORIES.items()}
    if found != expected:
        odd = sorted({name for name, _ in set(found.items()) ^ set(expected.items())})
        raise DataError(f"{where}: the class list does not match ShapeNet-Part's 16 categories ({abbreviate(odd)})")


def _check_parts(parts: Array, labels: Array, clouds: tuple[int, ...], file: Path, where: str) -> None:
    """Raise `DataError` for parts that their category does not have: training would run all the same."""
    if parts.shape != clouds[:2] or labels.shape != clouds[:1]:
        found = f"{parts.shape} and {len(labels):,} labels"
        raise DataError(f"{file} is damaged: {where} {found} do not fit its clouds {clouds}")
    check_labels(file, labels, len(CLASSES))
    good = (parts >= 0) & (parts < len(PARTS))
    good &= PARTS_OF.numpy()[labels.reshape(-1, 1), np.where(good, parts, 0)]
    if not good.all():
        row, column = np.argwhere(~good)[0]
        name = CLASSES[labels[row]]
        raise DataError(f"{file}, {where}: a point of {name} has part {parts[row, column]}, which it does not have")


def _npz(file: Path, points: int, up: Up) -> list[Chunk]:
    arrays = read_npz(file, ["names", "synset"])
    _check_classes(dict(zip(arrays["names"].tolist(), arrays["synset"].tolist(), strict=False)), file)
    return npz_chunks(file, PUBLISHED, partial(_read_npz, points, up), NAME, points, up)


def _read_npz(points: int, up: Up, file: Path, split: str) -> ChunkContent:
    arrays = read_npz(file, [f"{a}_{split}" for a in ("x", "y", "pid", "id")] + ["scale"], [f"npts_orig_{split}"])
    x, y, parts, names, scale, *counts = arrays.values()
    clouds = dequantize(file, x, scale, split, points)
    _check_parts(parts, y, x.shape, file, f"'pid_{split}'")
    more = {"parts": parts[:, :points].astype(np.uint8)}
    if counts:
        more["count"] = np.minimum(counts[0], clouds.shape[1]).astype(np.int64)
    return content_of_arrays(file, clouds, y, names.tolist(), len(CLASSES), up, **more)


def _text(categories: Path, points: int, up: Up, seed: int) -> list[Chunk]:
    folder = categories.parent
    pairs = read_words(categories)
    _check_classes(dict(zip(pairs[::2], pairs[1::2], strict=False)), categories)
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
            raise DataError(f"{listing} is truncated or damaged: it is not a JSON list")
        shapes = [str(shape).removeprefix("shape_data/") for shape in found]
        unknown = [shape for shape in shapes if shape.partition("/")[0] not in SYNSETS]
        if unknown:
            raise DataError(f"{listing}: the class list does not match, {unknown[0]!r} is of none of its categories")
        files = [(s, folder / f"{s}.txt", SYNSETS.index(s.partition("/")[0])) for s in shapes]
        chunks += file_chunks(split, files, partial(_read_text, points, up, seed), points, up, seed)
    return chunks


def _read_text(points: int, up: Up, seed: int, name: str, file: Path, label: int) -> PackRows:
    table = torch.from_numpy(read_table(file, 7, None))
    parts = table[:, 6].round().long()
    _check_parts(parts[None].numpy(), np.array([label]), (1, *table.shape), file, "its last column")
    columns = {"points": table[:, :3], "normals": table[:, 3:6], "parts": parts.to(torch.uint8)}
    chosen, count = resample(columns, points, torch.Generator().manual_seed(derive_seed(seed, name)))
    rows = cloud_rows(chosen["points"][None], up, chosen["normals"][None])
    return rows | {"parts": chosen["parts"][None], "count": torch.tensor([count])}


def _hdf5(folder: Path, points: int, up: Up) -> list[Chunk]:
    return hdf5_chunks(folder, HDF5_FILES, partial(_read_hdf5, points, up), NAME, points, up)


def _read_hdf5(points: int, up: Up, file: Path) -> ChunkContent:
    arrays = read_hdf5(file, {"data": 3, "label": 0, "pid": 0})
    clouds, labels, parts = arrays["data"], arrays["label"].reshape(-1), arrays["pid"]
    _check_parts(parts, labels, clouds.shape, file, "'pid'")
    more = {"parts": parts[:, :points].astype(np.uint8)}
    return content_of_arrays(file, clouds[:, :points], labels, content_digests(clouds), len(CLASSES), up, **more)
