"""Packs whose checksum is right and whose content is not: crafted, or of another version."""

import json
import os
import struct

import pytest
import torch
from safetensors.torch import save

from vector_neurons.data import DataError, Folder, Occupancy, ShapeNetPart, pack, shapenet_part

ABOUT = {"format": 1, "name": "folder", "layout": "test", "classes": ["a", "b"], "splits": {"train": 3, "test": 1}}
ARRAYS = {
    "points": torch.rand(4, 8, 3),
    "normals": torch.rand(4, 8, 3),
    "label": torch.tensor([0, 1, 1, 0]),
    "count": torch.tensor([8, 8, 1, 8]),
}
QUERIES = {"queries": torch.rand(4, 6, 3), "occupied": torch.rand(4, 6) > 0.5, "cube": torch.rand(4, 4)}


def craft(path, about=ABOUT, **arrays):
    """A pack with a right checksum; an array that is None is left out."""
    kept = {name: x.contiguous() for name, x in (ARRAYS | arrays).items() if x is not None}
    text = about if isinstance(about, str) else json.dumps(about)
    content = save(kept, {"about": text, "sha256": pack.CHECKSUM_PLACEHOLDER.decode()})
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    digest = __import__("hashlib").sha256(header + content[8 + len(header) :]).hexdigest().encode()
    path.write_bytes(content.replace(pack.CHECKSUM_PLACEHOLDER, digest, 1))
    assert pack.verify(path)
    return path


def without(key):
    return {k: v for k, v in ABOUT.items() if k != key}


def nan(x):
    return torch.where(torch.arange(x.numel()).reshape(x.shape) == 5, torch.nan, x)


WRONG = {
    "list": ([1, 2], {}, "is not a pack"),
    "text": ("hello", {}, "is not a pack"),
    "deep": ("[" * 100_000, {}, "is not a pack"),
    "format": (without("format"), {}, "has format None"),
    "no name": (without("name"), {}, "is a pack of None"),
    "no classes": (without("classes"), {}, "it has no 'classes'"),
    "no splits": (without("splits"), {}, "it has no 'splits'"),
    "no layout": (without("layout"), {}, "it has no 'layout'"),
    "classes": (ABOUT | {"classes": {"a": 1}}, {}, "its 'classes' is {'a': 1}"),
    "class names": (ABOUT | {"classes": ["a", 2]}, {}, "its 'classes' is not a list of strings"),
    "same classes": (ABOUT | {"classes": ["a", "a"]}, {}, "its classes are"),
    "empty classes": (ABOUT | {"classes": []}, {}, "its classes are"),
    "splits": (ABOUT | {"splits": [3, 1]}, {}, "its 'splits' is"),
    "negative": (ABOUT | {"splits": {"train": 5, "test": -1}}, {}, "its test set has -1 shapes"),
    "fraction": (ABOUT | {"splits": {"train": 3.0, "test": 1}}, {}, "its train set has 3.0 shapes"),
    "infinite": (json.dumps(ABOUT).replace('"train": 3', '"train": 1e999'), {}, "its train set has inf shapes"),
    "rows": (ABOUT | {"splits": {"train": 4, "test": 1}}, {}, "differ in length"),
    "published": (ABOUT | {"published": {"train": "all"}}, {}, "its train set has 'all' shapes"),
    "damaged": (ABOUT | {"damaged": "none"}, {}, "its 'damaged' is 'none'"),
    "damaged lines": (ABOUT | {"damaged": [1]}, {}, "its 'damaged' is not a list of strings"),
    "overlap": (ABOUT | {"overlap": {"train and test": 3}}, {}, "its 'train and test' is not a list of strings"),
    "dropped": (ABOUT | {"overlap_dropped": "no"}, {}, "its 'overlap_dropped' is 'no'"),
    "label": (ABOUT, {"label": torch.tensor([0, 1, 2, 0])}, "its label go from 0 to 2, expected 0 to 1"),
    "negative label": (ABOUT, {"label": torch.tensor([0, -1, 1, 0])}, "its label go from -1 to 1"),
    "label type": (ABOUT, {"label": torch.tensor([0.0, 1, 1, 0])}, r"its label are \(4,\) of float32"),
    "label rank": (ABOUT, {"label": torch.zeros(4, 1, dtype=torch.int64)}, r"its label are \(4, 1\) of int64"),
    "no label": (ABOUT, {"label": None}, "it has no array 'label'"),
    "no points": (ABOUT, {"points": None}, "it has no array 'points'"),
    "no count": (ABOUT, {"count": None}, "it has no array 'count'"),
    "columns": (ABOUT, {"points": torch.rand(4, 8, 2)}, r"its points are \(4, 8, 2\)"),
    "points type": (ABOUT, {"points": torch.rand(4, 8, 3).half()}, "of float16"),
    "points rank": (ABOUT, {"points": torch.rand(4, 3)}, r"its points are \(4, 3\)"),
    "empty": (ABOUT, {"points": torch.rand(4, 0, 3), "normals": torch.rand(4, 0, 3)}, "have no points"),
    "normals": (ABOUT, {"normals": torch.rand(4, 7, 3)}, r"its (normals|points) are \(4, [78], 3\)"),
    "number": (ABOUT, {"more": torch.tensor(1.0)}, "differ in length"),
    "count": (ABOUT, {"count": torch.tensor([8, 8, 9, 8])}, "its count go from 8 to 9, expected 1 to 8"),
    "no points of a shape": (ABOUT, {"count": torch.tensor([8, 8, 0, 8])}, "its count go from 0 to 8"),
    "parts": (
        ABOUT | {"parts": ["x", "y"]},
        {"parts": torch.full((4, 8), 2, dtype=torch.uint8)},
        "its parts go from 2 to 2, expected 0 to 1",
    ),
    "parts shape": (ABOUT, {"parts": torch.zeros(4, 7, dtype=torch.uint8)}, "its (parts|points|normals) are"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_one_line(tmp_path, name):
    about, arrays, words = WRONG[name]
    path = craft(tmp_path / "a.safetensors", about, **arrays)
    with pytest.raises(DataError, match=words) as error:
        Folder(pack=path, points=8)
    assert "\n" not in str(error.value)
    assert "a.safetensors" in str(error.value)
    assert "vn data folder" in str(error.value)


def test_what_makes_sense_is_opened(tmp_path):
    path = craft(tmp_path / "mine.safetensors", more=torch.zeros(4, 2))
    assert Folder(pack=path, split="test", points=8).labels.tolist() == [0]
    data = Folder(pack="mine", split="test", root=tmp_path, points=8, subset="random")
    assert data.classes == ("a", "b")
    assert torch.equal(__import__("pickle").loads(__import__("pickle").dumps(data))[0].points, data[0].points)


@pytest.mark.parametrize(
    ("changes", "arrays", "words"),
    [
        ({}, {"queries": None}, "it has no array 'queries'"),
        ({}, {"occupied": QUERIES["occupied"].float()}, r"its occupied are \(4, 6\) of float32"),
        ({}, {"occupied": QUERIES["occupied"][:, :5]}, r"its (occupied|queries) are"),
        ({}, {"cube": QUERIES["cube"][:, :3]}, r"its cube are \(4, 3\)"),
        ({"uniform": 7}, {}, "7 of its 6 queries are uniform"),
        ({"uniform": "all"}, {}, "'all' of its 6 queries are uniform"),
        ({"uniform": None}, {}, "None of its 6 queries are uniform"),
    ],
)
def test_occupancy_packs(tmp_path, changes, arrays, words):
    about = ABOUT | {"name": "occupancy", "uniform": 4}
    good = craft(tmp_path / "good.safetensors", about, **QUERIES)
    assert len(Occupancy("train+val", pack=good, points=8, queries=4)) == 3
    bad = craft(tmp_path / "bad.safetensors", about | changes, **QUERIES | arrays)
    with pytest.raises(DataError, match=words):
        Occupancy("train", pack=bad, points=8, queries=4)


@pytest.mark.parametrize("name", ["points", "normals", "queries"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_coordinates_that_are_no_numbers_are_noticed_when_they_are_used(tmp_path, name, value):
    arrays = ARRAYS | QUERIES
    arrays |= {name: arrays[name].clone().index_fill(0, torch.tensor([1]), value)}
    about = ABOUT | {"name": "occupancy", "uniform": 4}
    data = Occupancy("all", pack=craft(tmp_path / "a.safetensors", about, **arrays), points=8, queries=4, normals=True)
    data.batch(torch.tensor([0]))
    with pytest.raises(DataError, match=f"a.safetensors is damaged: some of its {name} are NaN or infinite"):
        data.batch(torch.tensor([0, 1]))
    if name != "queries":
        folder = craft(tmp_path / "b.safetensors", ABOUT, **{k: x for k, x in arrays.items() if k in ARRAYS})
        with pytest.raises(DataError, match=f"b.safetensors is damaged: some of its {name} are NaN or infinite"):
            Folder(pack=folder, split="all", points=4, normals=True).batch(torch.arange(4))


def test_parts_of_another_set(tmp_path):
    about = ABOUT | {"name": "shapenet-part", "parts": list(shapenet_part.PARTS)}
    parts = torch.zeros(4, 8, dtype=torch.uint8)
    craft(tmp_path / "shapenet-part.safetensors", about, parts=parts)
    with pytest.raises(DataError, match="its categories or parts are not those of ShapeNet-Part"):
        ShapeNetPart("train", tmp_path, points=8)
    craft(tmp_path / "shapenet-part.safetensors", about | {"classes": list(shapenet_part.CLASSES)}, parts=parts)
    assert len(ShapeNetPart("train+val", tmp_path, points=8)) == 3


HEADERS = {
    "long": struct.pack("<Q", 2**62) + b"{}",
    "short": struct.pack("<Q", 3) + b"{}",
    "cut": b"\x10\0\0",
    "empty": b"",
    "no metadata": save(ARRAYS),
    "odd metadata": struct.pack("<Q", 24) + b'{"__metadata__":[1,2,3]}',
    "no object": struct.pack("<Q", 8) + b"[1, 2,3]",
    "deep": struct.pack("<Q", 40_000) + b"[" * 40_000,
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers(tmp_path, name):
    path = tmp_path / "a.safetensors"
    path.write_bytes(HEADERS[name])
    with pytest.raises(DataError, match="is not a pack, or is damaged") as error:
        pack.open_pack(path)
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="its header cannot be read"):
        pack.verify(path)


def test_a_checksum_that_is_none(tmp_path):
    path = tmp_path / "a.safetensors"
    for checksum in ("", "x" * 64, "0" * 63):
        path.write_bytes(save(ARRAYS, {"about": json.dumps(ABOUT), "sha256": checksum}))
        with pytest.raises(DataError, match="its header cannot be read"):
            pack.verify(path)


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "loop.safetensors").symlink_to(tmp_path / "loop.safetensors")
    for name in ("pipe", "folder", "loop", "n" * 300):
        with pytest.raises(DataError, match=f"{name}.safetensors"):
            pack.open_pack(tmp_path / f"{name}.safetensors")
