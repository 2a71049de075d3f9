"""One self-contained HTML page: shapes to turn by hand, and what networks answer to them in every pose.

The networks do not run in the page. Their answers are computed before, in a few hundred poses, and the page shows those
of the pose nearest to the present one. The page is made of `viewer.html`, `viewer.css`, `drawing.js` and `viewer.js`.
"""

import base64
import html
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from ..geometry.rotations import draw
from .figures import PALETTE, camera

AZIMUTH, ELEVATION = 35.0, 22.0  # of the camera, as in `gallery`
MAX_COLORS = 256  # numbers of parts are bytes
LEVELS = 65_535  # to which probabilities are rounded: bars show 1,000
PROBES = 2000  # random rotations by which the distance to the nearest pose is measured


@dataclass(frozen=True)
class Picture:
    """A cloud or a mesh, which turns with the input.

    Args:
        points: points of the cloud, or vertices of the mesh, around the origin.
        faces: indices of the vertices of triangles; None for a cloud.
        parts: index of the part of each point, of all poses or of each; None for one color.

    Shape:
        - points: `(N, 3)`
        - faces: `(F, 3)`
        - parts: `(N,)` or `(poses, N)`
    """

    points: Float[Tensor, "points 3"]
    faces: Int[Tensor, "faces 3"] | None = None
    parts: Int[Tensor, "..."] | None = None


@dataclass(frozen=True)
class Answers:
    """What a network answers to one shape in every pose.

    Args:
        network: its name.
        change: the largest change of its outputs from the first pose to each: the equivariance error.
        probabilities: of the classes; None if it does not classify.
        picture: what it makes of the shape: the cloud in the colors of the parts, or a reconstructed mesh.

    Shape:
        - change: `(poses,)`
        - probabilities: `(poses, classes)`
    """

    network: str
    change: Float[Tensor, " poses"]
    probabilities: Float[Tensor, "poses classes"] | None = None
    picture: Picture | None = None


@dataclass(frozen=True)
class Exhibit:
    """A shape of the page, with the answers of the networks.

    Args:
        title: in the list of shapes.
        picture: the input.
        caption: of this picture.
        answers: of the networks.
        classes: names of what the probabilities are of.
        truth: the true class, if it is known.
        parts: names of the parts in the pictures, for their legend.
    """

    title: str
    picture: Picture
    caption: str = "input"
    answers: Sequence[Answers] = ()
    classes: Sequence[str] = ()
    truth: str | None = None
    parts: Sequence[str] = field(default=())


def view_page(
    title: str,
    exhibits: Sequence[Exhibit],
    rotations: Float[Tensor, "poses 3 3"] | None = None,
    *,
    quantity: str = "probability",
    change: str = "largest change of a probability",
) -> str:
    """Build the page: one HTML file that needs nothing beside itself.

    Args:
        title: of the page.
        exhibits: the shapes.
        rotations: the poses of the answers, from the first one, which must be the identity.
        quantity: what the bars show.
        change: what the change of the answers is measured by.

    Shape:
        - rotations: `(poses, 3, 3)`

    >>> page = view_page("A cloud", [Exhibit("cup", Picture(torch.rand(100, 3) - 0.5))])
    >>> "http" in page, page.count("<script")
    (False, 3)
    """
    if not exhibits:
        raise ValueError("a page needs one or more shapes")
    rotations = torch.eye(3)[None] if rotations is None else rotations
    arrays = _Arrays()
    data = {
        "camera": arrays.add(torch.stack(camera(AZIMUTH, ELEVATION)).numpy(), "<f4"),
        "rotations": arrays.add(rotations.numpy(), "<f4"),
        "palette": PALETTE,
        "quantity": quantity,
        "change": change,
        "levels": LEVELS,
        "exhibits": [_exhibit(one, len(rotations), arrays) for one in exhibits],
    }
    about = _about(rotations, change) if any(one.answers for one in exhibits) else ""
    page = _resource("viewer.html")
    for name, text in (
        ("title", html.escape(title)),
        ("about", html.escape(about)),
        ("style", _resource("viewer.css")),
        ("data", json.dumps(data).replace("<", "\\u003c")),  # no </script> in a name
        ("arrays", arrays.encode()),
        ("script", _resource("drawing.js") + _resource("viewer.js")),
    ):
        page = page.replace(f"{{{{{name}}}}}", text)
    return page


def nearest_pose(rotations: Float[Tensor, "poses 3 3"]) -> tuple[float, float]:
    """The distance from a random rotation to the nearest of the poses, in degrees: its mean and its maximum.

    >>> mean, most = nearest_pose(torch.eye(3)[None])
    >>> round(mean / 10), round(most / 10)
    (13, 18)
    """
    probes = draw("SO3", PROBES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    trace = (probes.flatten(1) @ rotations.double().flatten(1).mT).amax(1)
    angles = ((trace - 1) / 2).clamp(-1, 1).acos().rad2deg()
    return angles.mean().item(), angles.max().item()


def _about(rotations: Float[Tensor, "poses 3 3"], change: str) -> str:
    mean, most = nearest_pose(rotations)
    return (
        f"The networks were run before, in {len(rotations)} poses, since a page opened from disk cannot load a runtime "
        f"for them. Shown are the answers in the pose nearest to the present one, on average {mean:.0f}° and at most "
        f"{most:.0f}° away. All is compared with the first pose; equivariance error: {change}."
    )


def _exhibit(one: Exhibit, poses: int, arrays: "_Arrays") -> dict[str, Any]:
    return {
        "title": one.title,
        "caption": one.caption,
        "picture": _picture(one.picture, poses, arrays),
        "classes": list(one.classes),
        "truth": one.truth,
        "parts": list(one.parts),
        "answers": [_answers(answers, len(one.classes), poses, arrays) for answers in one.answers],
    }


def _answers(answers: Answers, classes: int, poses: int, arrays: "_Arrays") -> dict[str, Any]:
    p = answers.probabilities
    if answers.change.shape != (poses,) or (p is not None and p.shape != (poses, classes)):
        raise ValueError(f"{answers.network} needs answers in {poses} poses, for {classes} classes")
    levels = None if p is None else (p.double().clamp(0, 1) * LEVELS).round().numpy()
    return {
        "network": answers.network,
        "change": arrays.add(answers.change.numpy(), "<f4"),
        "probabilities": None if levels is None else arrays.add(levels, "<u2"),
        "picture": None if answers.picture is None else _picture(answers.picture, poses, arrays),
    }


def _picture(picture: Picture, poses: int, arrays: "_Arrays") -> dict[str, Any]:
    faces, parts = picture.faces, picture.parts
    if parts is not None and parts.shape not in ((len(picture.points),), (poses, len(picture.points))):
        raise ValueError(f"{len(picture.points)} points in {poses} poses need parts of each, got {tuple(parts.shape)}")
    if parts is not None and parts.numel() and not 0 <= parts.min() <= parts.max() < MAX_COLORS:
        raise ValueError(f"parts are numbered from 0 to {MAX_COLORS - 1}")
    return {
        "points": arrays.add(picture.points.detach().cpu().numpy(), "<f4"),
        "faces": None if faces is None else arrays.add(faces.cpu().numpy(), "<u4"),
        "parts": None if parts is None else arrays.add(parts.cpu().numpy(), "|u1"),
    }


class _Arrays:
    """Arrays of the page, one after the other, compressed."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size = 0

    def add(self, array: NDArray[Any], dtype: str) -> dict[str, Any]:
        """Append an array; gives where it is, for the script."""
        content = np.ascontiguousarray(array, dtype=dtype).tobytes()
        place = {"type": dtype[1:], "start": self.size, "shape": list(array.shape)}
        content += bytes(-len(content) % 4)  # typed arrays start at multiples of their size
        self.chunks.append(content)
        self.size += len(content)
        return place

    def encode(self) -> str:
        """All of them as base64."""
        return base64.b64encode(zlib.compress(b"".join(self.chunks), 9)).decode()


def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
