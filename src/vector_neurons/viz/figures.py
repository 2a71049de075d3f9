"""Matplotlib figures of clouds and of confusion matrices."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The color-blind-safe palette of Okabe and Ito, with gray in place of black.
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
    """Plot a grid of clouds, z up, seen from the side of +x, with parts in color and far points paler.

    Args:
        points: the clouds; a list if they differ in size.
        parts: index of the color of every point; the eight colors repeat.
        titles: of the panels.
        normals: shade the points by light from above, and hide those that face away; in a list, None for a cloud
            without normals.
        columns: of the grid.
        azimuth: of the camera, in degrees.
        elevation: of the camera, in degrees.
        radius: show a ball of this radius around the origin in every panel; by default each panel fits its cloud.

    Shape:
        - points, normals: `(clouds, points, 3)`, or a list of `(points, 3)`
        - parts: `(clouds, points)`, or a list of `(points,)`

    >>> figure = gallery(torch.rand(2, 50, 3), titles=["a", "b"])
    >>> len(figure.axes)
    2
    """
    count = len(points)
    if titles is not None and len(titles) != count:
        raise ValueError(f"{count} clouds need {count} titles, got {len(titles)}")
    for name, given in (("parts", parts), ("normals", normals)):
        if given is not None and len(given) != count:
            raise ValueError(f"{count} clouds need {name} for {count}, got {len(given)}")
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = _new_figure(2.2 * columns, 2.4 * rows)
    palette = torch.tensor([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in PALETTE])
    right, up, toward = camera(azimuth, elevation)
    light = torch.nn.functional.normalize(up + 0.6 * toward - 0.3 * right, dim=0)
    for i in range(count):
        axes = figure.add_subplot(rows, columns, i + 1)
        cloud = points[i].detach().cpu().double()
        size, facing = len(cloud), None if normals is None else normals[i]
        part = torch.zeros(size, dtype=torch.long) if parts is None else parts[i].cpu()
        color = palette[part % len(PALETTE)].double()
        depth = cloud @ toward
        shown = torch.ones(size, dtype=torch.bool)
        if facing is not None:
            facing = facing.detach().cpu().double()
            shown = facing @ toward > 0
            color = color * (0.7 + 0.3 * (facing @ light).clamp(min=0)[:, None])
        haze = 0.25 * (1 - (depth - depth.min()) / (depth.max() - depth.min()).clamp(min=1e-9))[:, None]
        color = color + (1 - color) * haze
        order = depth.argsort()
        order = order[shown[order]]
        x, y = cloud @ right, cloud @ up
        center = [(v.min() + v.max()).item() / 2 for v in (x, y)]
        half = max((v.max() - v.min()).item() for v in (x, y)) / 2 * 1.05 or 1.0
        if radius is not None:
            center, half = [0.0, 0.0], radius
        axes.scatter(x[order], y[order], s=min(40.0, 88000 / size), c=color[order].clamp(0, 1).numpy(), linewidths=0)
        axes.set_xlim(center[0] - half, center[0] + half)
        axes.set_ylim(center[1] - half, center[1] + half)
        axes.set_aspect("equal")
        axes.set_axis_off()
        if titles is not None:
            axes.set_title(titles[i], fontsize=11)
    return figure


def confusion(
    matrices: Sequence[Int[Tensor, "classes classes"]],
    titles: Sequence[str],
    names: Sequence[str],
    *,
    columns: int | None = None,
) -> "Figure":
    """Plot confusion matrices with a color scale; every row is normalized to fractions of its true class.

    Args:
        matrices: counts, with true classes as rows and predicted ones as columns.
        titles: of the matrices.
        names: of the classes.
        columns: matrices side by side; by default all.

    Shape:
        - matrices: each `(classes, classes)`

    >>> figure = confusion([torch.eye(2, dtype=torch.int64)], ["VN-DGCNN"], ["cup", "mug"])
    >>> figure.axes[0].get_title()
    'VN-DGCNN'
    """
    columns = min(columns or len(matrices), len(matrices))
    rows = math.ceil(len(matrices) / columns)
    figure = _new_figure(5.2 * columns + 0.8, 5.0 * rows)
    panels = []
    for i, (matrix, title) in enumerate(zip(matrices, titles, strict=True)):
        axes = figure.add_subplot(rows, columns, i + 1)
        fractions = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
        image = axes.imshow(fractions.numpy(), cmap="Blues", vmin=0, vmax=1)
        axes.set_title(title)
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axes.set_yticks(range(len(names)), names if i % columns == 0 else [""] * len(names), fontsize=8)
        axes.set_xlabel("predicted class")
        axes.set_ylabel("true class" if i % columns == 0 else "")
        panels.append(axes)
    scale = figure.colorbar(image, ax=panels, shrink=0.8 / rows, pad=0.02, format="{x:.0%}")
    scale.set_label("share of the clouds of the true class")
    return figure


def _new_figure(width: float, height: float) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('pictures need matplotlib: pip install "vector-neurons[viz]"') from error
    return Figure(figsize=(width, height), facecolor="white", layout="constrained")


def camera(azimuth: float, elevation: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return unit vectors to the right, up and toward the camera."""
    a, e = math.radians(azimuth), math.radians(elevation)
    toward = torch.tensor([math.cos(a) * math.cos(e), math.sin(a) * math.cos(e), math.sin(e)], dtype=torch.float64)
    right = torch.tensor([-math.sin(a), math.cos(a), 0], dtype=torch.float64)
    return right, torch.linalg.cross(toward, right), toward
