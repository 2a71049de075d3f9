"""Schema of a pack, checked when it is opened: a file with a correct checksum may still have invalid content."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Type, and sizes after the first axis; sizes with the same letter must be equal.
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
REQUIRED_ARRAYS = {
    "modelnet40": ("count",),
    "shapenet-part": ("count", "parts"),
    "folder": ("count",),
    "occupancy": ("normals", "queries", "occupied", "cube"),
}
# Entries of the description, with values of their types.
REQUIRED_ABOUT: dict[str, Any] = {"name": "", "layout": "", "classes": [], "splits": {}}
OPTIONAL_ABOUT: dict[str, Any] = {
    "published": {},
    "damaged": [],
    "overlap": {},
    "overlap_dropped": False,
    "ids": {},
    "notes": [],
}


def find_problem(about: Any, arrays: Mapping[str, Tensor]) -> str | None:
    """Say what is wrong with the content of a pack, or return None. Values are checked in integer arrays only."""
    return _check_about(about) or _check_shapes(about, arrays) or _check_values(about, arrays)


def _check_about(about: Mapping[str, Any]) -> str | None:
    for key, example in (REQUIRED_ABOUT | OPTIONAL_ABOUT).items():
        if key in about and type(about[key]) is not type(example):
            return f"its {key!r} is {_abbreviate(about[key])}"
        if key in REQUIRED_ABOUT and key not in about:
            return f"it has no {key!r}"
    lists = {"classes": about["classes"], "damaged": about.get("damaged", []), "notes": about.get("notes", [])}
    lists |= dict(about.get("overlap", {}).items()) | dict(about.get("ids", {}).items())
    for key, texts in lists.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            return f"its {key!r} is not a list of strings"
    if not about["classes"] or len(set(about["classes"])) < len(about["classes"]):
        return f"its classes are {_abbreviate(about['classes'])}"
    for key in ("splits", "published"):
        for split, count in about.get(key, {}).items():
            if type(count) is not int or count < 0:
                return f"its {split} set has {_abbreviate(count)} shapes"
    return None


def _check_shapes(about: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> str | None:
    missing = [name for name in ("points", "label", *REQUIRED_ARRAYS.get(about["name"], ())) if name not in arrays]
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
        return f"{_abbreviate(uniform)} of its {queries:,} queries are uniform"
    return None


def _check_values(about: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> str | None:
    highest = {"label": len(about["classes"]) - 1, "count": arrays["points"].shape[1]}
    if isinstance(about.get("parts"), list):
        highest["parts"] = len(about["parts"]) - 1
    for name, array in arrays.items():
        if name not in highest or not array.numel():  # coordinates, most of the file, are checked when a batch is read
            continue
        low, high = (x.item() for x in torch.aminmax(array))
        if not (name == "count") <= low <= high <= highest[name]:
            return f"its {name} go from {low} to {high}, expected {int(name == 'count')} to {highest[name]}"
    return None


def _abbreviate(x: object) -> str:
    text = repr(x)
    return text if len(text) < 60 else f"{text[:60]}..."
