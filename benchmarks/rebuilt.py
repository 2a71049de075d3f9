"""Test objects rebuilt by runs of `vn train reconstruction`, beside their input and the truth, in two poses.

python benchmarks/rebuilt.py runs/OCCNET runs/VN-OCCNET --titles OccNet VN-OccNet -o rebuilt.png
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from vector_neurons.mesh import sample
from vector_neurons.models import OccupancyNetwork
from vector_neurons.training import checkpoint, mesh_metrics, read_config
from vector_neurons.viz import gallery

POSES = {"I": "as stored", "SO3": "turned"}
COLORS = {"input": 7, "truth": 6}  # of the palette; methods have the first ones


def main() -> None:
    """Draw a row for each object, chosen at equal distances in the test set."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", type=Path, nargs="+")
    options.add_argument("--titles", nargs="+", required=True)
    options.add_argument("--objects", type=int, default=6)
    options.add_argument("-o", "--out", type=Path, required=True)
    given = options.parse_args()
    if len(given.titles) != len(given.runs):
        options.error(f"{len(given.runs)} runs need as many titles, got {len(given.titles)}")
    config = read_config(given.runs[0])
    data = mesh_metrics.open_surfaces(config.data)
    models = [checkpoint.load(run / "best") for run in given.runs]
    clouds: list[Tensor] = []
    normals: list[Tensor | None] = []
    parts: list[Tensor] = []
    titles: list[str] = []

    def show(title: str, points: Tensor, facing: Tensor | None, color: int, first: bool) -> None:
        clouds.append(points)
        normals.append(facing)
        parts.append(torch.full((len(points),), color))
        titles.append(title if first else "")

    for number, index in enumerate(mesh_metrics.evenly_spaced(data, given.objects)):
        for kind, words in POSES.items():
            few, whole = mesh_metrics.scan(data, index, config, kind)
            show(f"input, {words}", few.points, None, COLORS["input"], number == 0)
            for color, (title, model) in enumerate(zip(given.titles, models, strict=True)):
                assert isinstance(model, OccupancyNetwork)
                made = mesh_metrics.mesh_of(model, few)
                nothing = (torch.zeros(1, 3), None)
                drawn = (
                    nothing
                    if made.is_cloud
                    else sample(made, mesh_metrics.SURFACE_POINTS, generator=torch.Generator().manual_seed(0))
                )
                show(title, *drawn, color, number == 0)
            show("truth", whole.points, whole.normals, COLORS["truth"], number == 0)
    figure = gallery(clouds, parts, titles, normals=normals, columns=len(POSES) * (2 + len(models)), radius=1.1)
    figure.savefig(given.out, dpi=70)


if __name__ == "__main__":
    main()
