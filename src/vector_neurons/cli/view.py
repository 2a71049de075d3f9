"""`vn view shapes --png FILE`: a picture of a data set."""

from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from ..data import Shapes
from ..data.families import FAMILIES
from ..viz import gallery
from . import UserError, check_out

MAX_CLOUDS_PER_CLASS, MAX_POINTS = 32, 100_000


def run(
    source: Annotated[Literal["shapes"], tyro.conf.arg(metavar="shapes")],
    /,
    *,
    png: Path,
    each: int = 2,
    points: int = 8000,
    split: Literal["train", "val", "test"] = "train",
    seed: int = 0,
) -> int:
    """Plot clouds of every class, parts in color, to a PNG file.

    Args:
        source: the data set: `shapes`, the embedded set, mirror twins included.
        png: the picture to write.
        each: how many clouds of each class.
        points: points of a cloud.
        split: which split of the set.
        seed: seed of the set.
    """
    if not 1 <= each <= MAX_CLOUDS_PER_CLASS:
        raise UserError(f"--each takes 1 or more, up to {MAX_CLOUDS_PER_CLASS}, got {each}")
    if points > MAX_POINTS:
        raise UserError(f"--points takes at most {MAX_POINTS:,}, got {points:,}")
    check_out(png, (".png",), "a picture")
    try:
        data = Shapes(split, size=each * len(FAMILIES), points=points, seed=seed, mirrors=True)
        by_class = torch.arange(len(data)).view(each, -1).T.flatten()
        clouds, labels = data.batch(by_class), data.labels[by_class]
        assert clouds.parts is not None  # shapes have parts
        within = (data.parts_of.cumsum(1) - 1)[labels[:, None], clouds.parts]  # numbered within their class
        titles = [data.classes[label] for label in labels]
        figure = gallery(clouds.points, within, titles, normals=clouds.normals, columns=8)
    except (ValueError, ImportError) as error:
        raise UserError(str(error)) from error
    try:
        figure.savefig(png, dpi=80)
    except OSError as error:
        raise UserError(f"cannot write {png}: {error.strerror or error}") from error
    print(f"{png}: {len(titles)} clouds of {source}")
    return 0
