"""Draw the two pictures of docs/concepts.md: `python docs/pictures.py` writes docs/assets/*.svg.

All arrows and numbers are outputs of layers of this library in the plane (they work in every dimension), on a cloud in
the shape of an F and on the same cloud, rotated.
"""

from collections.abc import Sequence
from math import cos, radians, sin
from pathlib import Path

import torch
from torch import Tensor

import vector_neurons as vn

ASSETS = Path(__file__).parent / "assets"
ANGLE = 110
BLUE, ORANGE, GREEN, INK, GRAY = "#0072b2", "#d55e00", "#009e73", "#222222", "#777777"
CHANNELS = 4


def letter() -> Tensor:
    """Points of an F, centered, about 1 in size."""
    strokes = [((0, 0), (0, 1.5)), ((0, 1.5), (0.9, 1.5)), ((0, 0.8), (0.65, 0.8))]
    points = [
        torch.lerp(torch.tensor(a), torch.tensor(b), t)
        for a, b in (((*map(float, a),), (*map(float, b),)) for a, b in strokes)
        for t in torch.linspace(0, 1, 9)
    ]
    cloud = torch.stack(points)
    return (cloud - cloud.mean(0)) / 0.95


def text(
    x: float, y: float, words: str, color: str = INK, size: int = 15, anchor: str = "middle", more: str = ""
) -> str:
    """One line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" font-size="{size}" text-anchor="{anchor}" {more}>{words}</text>'
    )


def cloud_at(x: float, y: float, points: Tensor, size: float = 52) -> str:
    """A cloud as dots."""
    return "".join(
        f'<circle cx="{x + size * a:.1f}" cy="{y - size * b:.1f}" r="3.4" fill="{INK}"/>' for a, b in points.tolist()
    )


def arrow(x: float, y: float, vector: Sequence[float], color: str, size: float, width: float = 3) -> str:
    """An arrow from a point."""
    a, b = size * vector[0], -size * vector[1]
    marker = {BLUE: "blue", ORANGE: "orange", GREEN: "green"}[color]
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{x + a:.1f}" y2="{y + b:.1f}"'
    return f'<line {ends} stroke="{color}" stroke-width="{width}" marker-end="url(#{marker})"/>'


def page(width: int, height: int, title: str, parts: list[str]) -> str:
    """An SVG on a white card, so that it can be read on dark pages, too."""
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 10 10" refX="6" refY="5" markerWidth="4" markerHeight="4" '
        f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{color}"/></marker>'
        for name, color in (("blue", BLUE), ("orange", ORANGE), ("green", GREEN))
    )
    card = f'<rect width="{width}" height="{height}" rx="10" fill="white" stroke="#dddddd"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, Helvetica, Arial, sans-serif"><title>{title}</title><defs>{heads}</defs>'
        + "\n".join([card, *parts])
        + "</svg>\n"
    )


def vector_neurons(cloud: Tensor, rotation: Tensor) -> str:
    """Features of scalar and of vector neurons, of a cloud and of the rotated cloud."""
    torch.manual_seed(330)
    scalar = vn.KITS["scalar"].EdgeConv(2, CHANNELS, k=9, norm="none")
    torch.manual_seed(429)
    vector = vn.KITS["vector"].EdgeConv(1, CHANNELS, k=9, norm="none")
    parts = [
        text(120, 34, "point cloud", more='font-weight="600"'),
        text(350, 34, f"{CHANNELS} scalar neurons", BLUE, more='font-weight="600"'),
        text(650, 34, f"{CHANNELS} vector neurons", ORANGE, more='font-weight="600"'),
    ]
    for row, points in enumerate((cloud, cloud @ rotation.mT)):
        y = 120 + 200 * row
        parts.append(cloud_at(120, y, points))
        with torch.no_grad():
            numbers = scalar(points[None]).amax(1)[0]
            arrows = vector(points[None, ..., None]).mean(1)[0].mT
        for c, value in enumerate(numbers.tolist()):
            parts.append(text(370, y - 42 + 30 * c, f"{value:.2f}".replace("-", "−"), BLUE, 18, "end"))
        for c, value in enumerate((arrows / arrows.norm(dim=-1).max()).tolist()):
            x = 525 + 84 * c
            parts.append(f'<circle cx="{x}" cy="{y}" r="36" fill="none" stroke="#dddddd"/>')
            parts.append(arrow(x, y, value, ORANGE, 32))
    parts.append(text(120, 222, f"rotated by {ANGLE}°", GRAY, 13))
    parts.append(text(350, 222, "other numbers", GRAY, 13))
    parts.append(text(650, 222, "the same vectors, rotated along", GRAY, 13))
    return page(880, 410, "What a vector neuron is", parts)


def invariant_frame(cloud: Tensor, rotation: Tensor) -> str:
    """Vectors, the frame that is computed from them, and their coordinates in it."""
    torch.manual_seed(53)
    features, to_frame = vn.EdgeConv(1, 3, k=9, norm="none"), vn.Linear(3, 2)
    parts = [
        text(110, 34, "point cloud", more='font-weight="600"'),
        text(310, 34, "vector features V", ORANGE, more='font-weight="600"'),
        text(520, 34, "frame T of V", GREEN, more='font-weight="600"'),
        text(740, 34, "coordinates V Tᵀ", BLUE, more='font-weight="600"'),
    ]
    for row, points in enumerate((cloud, cloud @ rotation.mT)):
        y = 120 + 200 * row
        with torch.no_grad():
            x = features(points[None, ..., None]).mean(1)
            frame = to_frame(x)[0]
        x, frame = x[0] / x.norm(dim=-2).max(), frame / frame.norm(dim=-2).max()
        parts.append(cloud_at(110, y, points))
        parts += [arrow(310, y, value, ORANGE, 62) for value in x.mT.tolist()]
        parts += [arrow(520, y, value, GREEN, 62, 4) for value in frame.mT.tolist()]
        for c, numbers in enumerate((x.mT @ frame).tolist()):
            words = ", ".join(f"{value:.2f}".replace("-", "−") for value in numbers)
            parts.append(text(740, y - 24 + 30 * c, f"( {words} )", BLUE, 18))
    parts.append(text(110, 222, f"rotated by {ANGLE}°", GRAY, 13))
    parts.append(text(310, 222, "rotate along", GRAY, 13))
    parts.append(text(520, 222, "rotates along", GRAY, 13))
    parts.append(text(740, 222, "stay the same", GRAY, 13))
    return page(880, 410, "What the invariant frame does", parts)


def main() -> None:
    """Write both."""
    angle = radians(ANGLE)
    rotation = torch.tensor([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]])
    (ASSETS / "vector-neuron.svg").write_text(vector_neurons(letter(), rotation))
    (ASSETS / "invariant-frame.svg").write_text(invariant_frame(letter(), rotation))


if __name__ == "__main__":
    main()
