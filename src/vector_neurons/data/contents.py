"""What a pack must hold: checked when it is opened, because a file may be whole and still say nonsense."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Type, and sizes after the rows: a letter stands for any size, which is the same wherever the letter stands.
ARRAYS: dict[str, tuple[torch.dtype, tuple[str | int, ...]]] = {
    "points": (torch.float32, ("n", 3)),
    "normals": (torch.float32, ("n", 3)),
    "parts": (torch.uint8, ("n",)),
    "label": (torch.int64, ()),
    "count": (torch.int64, ()),
    "queries": (torch.float32, ("q", 3)),
    "occupied": (torch.bool, ("q",)),
    "cube": (torch.float32, (4,)),
    "watertight": (torch.bool, ()),
}
REQUIRED = {
    "modelnet40": ("count",),
    "shapenet-part": ("count", "parts"),
    "folder": ("count",),
    "occupancy": ("normals", "queries", "occupied", "cube"),
}
# What packs say about themselves; all but the first four may be missing.
ABOUT: dict[str, Any] = {"name": "", "layout": "", "classes": [], "splits": {}}
MORE: dict[str, Any] = {"published": {}, "damaged": [], "overlap": {}, "overlap_dropped": False, "ids": {}, "notes": []}


def complaint(about: Any, arrays: Mapping[str, Tensor]) -> str | None:
    """What is wrong with the content of a pack, if anything. Of its numbers, only the whole ones are looked at."""
    return _about(about) or _shapes(about, arrays) or _values(about, arrays)


def _about(about: Mapping[str, Any]) -> str | None:
    for key, example in (ABOUT | MORE).items():
        if key in about and type(about[key]) is not type(example):
            return f"its {key!r} is {_short(about[key])}"
        if key in ABOUT and key not in about:
            return f"it has no {key!r}"
    words = {"classes": about["classes"], "damaged": about.get("damaged", []), "notes": about.get("notes", [])}
    words |= dict(about.get("overlap", {}).items()) | dict(about.get("ids", {}).items())
    for key, texts in words.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            return f"its {key!r} is no list of words"
    if not about["classes"] or len(set(about["classes"])) < len(about["classes"]):
        return f"its classes are {_short(about['classes'])}"
    for key in ("splits", "published"):
        for split, count in about.get(key, {}).items():
            if type(count) is not int or count < 0:
                return f"its {split} set has {_short(count)} shapes"
    return None


def _shapes(about: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> str | None:
    missing = [name for name in ("points", "label", *REQUIRED.get(about["name"], ())) if name not in arrays]
    if missing:
        return f"it has no array {missing[0]!r}"
    rows, sizes = sum(about["splits"].values()), dict[str, int]()
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) != rows:
            return f"its arrays and its splits differ in length: {name} {tuple(array.shape)}, {rows:,} shapes"
        if name not in ARRAYS:
            continue
        dtype, shape = ARRAYS[name]
        fits = array.dtype == dtype and array.ndim == 1 + len(shape)
        for size, expected in zip(array.shape[1:], shape, strict=False):
            fits &= size == (sizes.setdefault(expected, size) if isinstance(expected, str) else expected)
        if not fits:
            return f"its {name} are {tuple(array.shape)} of {str(array.dtype).removeprefix('torch.')}"
    if not sizes["n"]:
        return "its clouds have no points"
    uniform, queries = about.get("uniform"), sizes.get("q")
    if queries is not None and (type(uniform) is not int or not 0 <= uniform <= queries):
        return f"{_short(uniform)} of its {queries:,} queries are uniform"
    return None


def _values(about: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> str | None:
    most = {"label": len(about["classes"]) - 1, "count": arrays["points"].shape[1]}
    if isinstance(about.get("parts"), list):
        most["parts"] = len(about["parts"]) - 1
    for name, array in arrays.items():
        if name not in most or not array.numel():  # coordinates are checked batch by batch: they are most of the file
            continue
        least, largest = (x.item() for x in torch.aminmax(array))
        if not (name == "count") <= least <= largest <= most[name]:
            return f"its {name} go from {least} to {largest}, expected {int(name == 'count')} to {most[name]}"
    return None


def _short(x: object) -> str:
    text = repr(x)
    return text if len(text) < 60 else f"{text[:60]}..."
