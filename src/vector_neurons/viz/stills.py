"""Still pictures of clouds."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by the colour-blind too; grey in place of black.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#f0e442", "#56b4e9", "#999999")


def gallery(
    points: Float[Tensor, "clouds points 3"] | Sequence[Float[Tensor, "_ 3"]],
    parts: Int[Tensor, "clouds points"] | Sequence[Int[Tensor, " _"]] | None = None,
    titles: Sequence[str] | None = None,
    *,
    normals: Float[Tensor, "clouds points 3"] | Sequence[Float[Tensor, "_ 3"] | None] | None = None,
    columns: int = 6,
    azimuth: float = 35.0,
    elevation: float = 22.0,
    radius: float | None = None,
) -> "Figure":
    """A grid of clouds, z up, seen from the side of +x: parts in colour, far points first and paler.

    Parts are numbers of colours, which repeat after eight. With normals the light falls from above, and what faces
    away is not drawn. Clouds of different sizes come in lists, where one without normals has None.
    Each panel fits its cloud; with a `radius` all show a ball of that size about the origin, to be compared.
    """
    try:
        from matplotlib.colors import to_rgb
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('pictures need matplotlib: pip install "vector-neurons[viz]"') from error
    count = len(points)
    if titles is not None and len(titles) != count:
        raise ValueError(f"{count} clouds need {count} titles, got {len(titles)}")
    for name, given in (("parts", parts), ("normals", normals)):
        if given is not None and len(given) != count:
            raise ValueError(f"{count} clouds need {name} for {count}, got {len(given)}")
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(2.2 * columns, 2.4 * rows), facecolor="white", layout="constrained")
    palette = torch.tensor([to_rgb(colour) for colour in PALETTE])
    right, up, towards = _camera(azimuth, elevation)
    light = torch.nn.functional.normalize(up + 0.6 * towards - 0.3 * right, dim=0)
    for i in range(count):
        axes = figure.add_subplot(rows, columns, i + 1)
        cloud = points[i].detach().cpu().double()
        size, facing = len(cloud), None if normals is None else normals[i]
        place = torch.zeros(size, dtype=torch.long) if parts is None else parts[i].cpu()
        colour = palette[place % len(PALETTE)].double()
        depth = cloud @ towards
        seen = torch.ones(size, dtype=torch.bool)
        if facing is not None:
            facing = facing.detach().cpu().double()
            seen = facing @ towards > 0
            colour = colour * (0.7 + 0.3 * (facing @ light).clamp(min=0)[:, None])
        haze = 0.25 * (1 - (depth - depth.min()) / (depth.max() - depth.min()).clamp(min=1e-9))[:, None]
        colour = colour + (1 - colour) * haze
        order = depth.argsort()
        order = order[seen[order]]
        x, y = cloud @ right, cloud @ up
        middle = [(v.min() + v.max()).item() / 2 for v in (x, y)]
        half = max((v.max() - v.min()).item() for v in (x, y)) / 2 * 1.05 or 1.0
        if radius is not None:
            middle, half = [0.0, 0.0], radius
        axes.scatter(x[order], y[order], s=min(40.0, 88000 / size), c=colour[order].clamp(0, 1).numpy(), linewidths=0)
        axes.set_xlim(middle[0] - half, middle[0] + half)
        axes.set_ylim(middle[1] - half, middle[1] + half)
        axes.set_aspect("equal")
        axes.set_axis_off()
        if titles is not None:
            axes.set_title(titles[i], fontsize=11)
    return figure


def _camera(azimuth: float, elevation: float) -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors to the right, up and towards the eye."""
    a, e = math.radians(azimuth), math.radians(elevation)
    towards = torch.tensor([math.cos(a) * math.cos(e), math.sin(a) * math.cos(e), math.sin(e)], dtype=torch.float64)
    right = torch.tensor([-math.sin(a), math.cos(a), 0], dtype=torch.float64)
    return right, torch.linalg.cross(towards, right), towards
