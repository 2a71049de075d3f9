"""Surfaces of the scanned test objects from noisy, sparse and one-sided scans, in any pose: ours, and those of others.

    python benchmarks/surfaces.py make scanned_objects.npz -o scans    # the scans, and the truth
    python benchmarks/surfaces.py iou scans                            # volumetric IoU of all objects, without meshes
    python benchmarks/surfaces.py mesh scans -o meshes/ours            # meshes of some objects ...
    python benchmarks/poisson.py scans -o meshes/poisson               # ... by Screened Poisson (Open3D)
    python benchmarks/surfaces.py compare scans meshes/*               # IoU, Chamfer-L1, F-score and time of meshes
    python benchmarks/surfaces.py draw scans meshes/* --objects 6 -o surfaces.jpg
    python benchmarks/surfaces.py solids                               # IoU, bodies and genus of embedded shapes

Radii of the objects are 1, and so are the units of noise, distances and the threshold of the F-score (0.02).
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import vector_neurons as vn
from vector_neurons.data import Shapes, occupancy
from vector_neurons.data.augment import visible
from vector_neurons.geometry import rotations
from vector_neurons.geometry.inside import inside
from vector_neurons.geometry.sampling import noise
from vector_neurons.mesh import iou, read, sample, write
from vector_neurons.mesh.compare import compare_points
from vector_neurons.models import OccupancyModel, store
from vector_neurons.tasks import encode_scan, reconstruct
from vector_neurons.tasks.reconstruction import DECODE_BATCH
from vector_neurons.training.mesh_metrics import evenly_spaced
from vector_neurons.viz import gallery

SURFACE_POINTS, SEEN_POINTS = 30_000, 8192
DISTANCE = 3.0  # of the camera, for objects of radius 1
THRESHOLD = 0.02


class Setting(NamedTuple):
    """A kind of scan."""

    points: int
    noise: float = 0.01
    one_sided: bool = False


SETTINGS = {
    "300": Setting(300),
    "3000": Setting(3000),
    "30000": Setting(30_000),
    "300-clean": Setting(300, 0.0),
    "3000-clean": Setting(3000, 0.0),
    "side": Setting(3000, one_sided=True),
}


def main() -> None:
    """Run one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    names = ("make", "iou", "mesh", "compare", "draw", "solids")
    making, scoring, meshing, comparing, drawing, solid = (steps.add_parser(name) for name in names)
    making.add_argument("source", type=Path)
    making.add_argument("--split", default="test")
    making.add_argument("-o", "--out", type=Path, required=True)
    for step in (scoring, meshing, comparing, drawing):
        step.add_argument("scans", type=Path)
        step.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
        step.add_argument("--objects", type=int, help="so many, evenly spaced; by default all")
    for step in (scoring, meshing, solid):
        step.add_argument("--model", type=Path, help="a run; by default the network of the package")
        step.add_argument("--normals", action="store_true", help="give the true normals, too")
    scoring.add_argument("--threshold", type=float)
    meshing.add_argument("-o", "--out", type=Path, required=True)
    for step in (comparing, drawing):
        step.add_argument("methods", type=Path, nargs="+")
    drawing.add_argument("-o", "--out", type=Path, required=True)
    solid.add_argument("--families", nargs="+", default=["torus", "mug", "chair", "stool"])
    solid.add_argument("--each", type=int, default=3)
    solid.add_argument("--draw", type=Path, help="a picture of scans, meshes and truths")
    given = parser.parse_args()
    steps_of = {"make": make, "iou": score, "mesh": mesh, "compare": compare, "draw": draw, "solids": solids}
    steps_of[given.step](given)


def make(given: argparse.Namespace) -> None:
    """Write `SETTING/INDEX.npz` with points and true normals, and `truth/INDEX.npz`."""
    plan = occupancy.make_plan(given.source, SURFACE_POINTS, 8192, 0, 0.02)
    index = 0
    for name in ("truth", *SETTINGS):
        (given.out / name).mkdir(parents=True, exist_ok=True)
    for chunk in (chunk for chunk in plan.chunks if chunk.split == given.split):
        rows: Any = chunk.read().rows
        for points, normals, queries, occupied in zip(
            *(rows[name] for name in ("points", "normals", "queries", "occupied")), strict=True
        ):
            generator = torch.Generator().manual_seed(index)
            R = rotations.draw("SO3", 1, generator=generator)[0]
            points, normals, queries = (x @ R.mT for x in (points, normals, queries))
            save(given.out / "truth" / f"{index}.npz", points, normals, queries=queries, occupied=occupied)
            for name, setting in SETTINGS.items():
                chosen = torch.randperm(SURFACE_POINTS, generator=generator)
                if setting.one_sided:
                    chosen = chosen[:SEEN_POINTS]
                    chosen = chosen[visible(points[chosen], torch.tensor([[DISTANCE, 0.0, 0.0]]))]
                chosen = chosen[: setting.points]
                noisy = noise(points[chosen], setting.noise, generator=generator)
                save(given.out / name / f"{index}.npz", noisy, normals[chosen])
            index += 1
            print(f"{index} objects", flush=True)


def save(file: Path, points: Tensor, normals: Tensor, **more: Tensor) -> None:
    """Write arrays."""
    np.savez(file, points=points.numpy(), normals=normals.numpy(), **{name: x.numpy() for name, x in more.items()})


def load(file: Path) -> dict[str, Tensor]:
    """Read arrays."""
    return {name: torch.from_numpy(x) for name, x in np.load(file).items()}


def objects(given: argparse.Namespace) -> list[int]:
    """Indices of the objects that are asked for."""
    known = len(list((given.scans / "truth").iterdir()))
    return evenly_spaced(range(known), given.objects or known)


def network(given: argparse.Namespace) -> tuple[OccupancyModel, float]:
    """The network, and its threshold."""
    model = vn.pretrained("reconstruction") if given.model is None else store.load(given.model).float()
    assert isinstance(model, OccupancyModel)
    return model, store.metadata_of(model).threshold or 0.5


def score(given: argparse.Namespace) -> None:
    """Decode the queries, and compare them with the truth."""
    model, threshold = network(given)
    threshold = given.threshold or threshold
    for name in given.settings:
        found = []
        for index in objects(given):
            scan, truth = load(given.scans / name / f"{index}.npz"), load(given.scans / "truth" / f"{index}.npz")
            encoded = encode_scan(model, scan["points"], normals=scan["normals"] if given.normals else None)
            queries = ((truth["queries"] - encoded.center) / encoded.size).float()
            with torch.no_grad():
                some = [model.decode(encoded.code, q[None])[0] for q in queries.split(DECODE_BATCH)]
            found.append(100 * iou(torch.cat(some).sigmoid() > threshold, truth["occupied"]).item())
        print(f"{name}: IoU {mean(found):.1f} % of {len(found)} objects, {min(found):.1f} at least", flush=True)


def mesh(given: argparse.Namespace) -> None:
    """Write `SETTING/INDEX.ply`, and the seconds that each took to `SETTING/times.json`."""
    model, _ = network(given)
    for name in given.settings:
        (given.out / name).mkdir(parents=True, exist_ok=True)
        times = {}
        for index in objects(given):
            scan, started = load(given.scans / name / f"{index}.npz"), time.perf_counter()
            surface = reconstruct(model, scan["points"], normals=scan["normals"] if given.normals else None)
            times[str(index)] = time.perf_counter() - started
            write(surface, given.out / name / f"{index}.ply")
        (given.out / name / "times.json").write_text(json.dumps(times))


def compare(given: argparse.Namespace) -> None:
    """Print a table of the means; an object without a mesh counts as IoU 0, and has no distance."""
    print("| scan | method | IoU, % | Chamfer-L1 | F-score, % | s |\n|---|---|---|---|---|---|")
    for name in given.settings:
        for method in given.methods:
            times = json.loads((method / name / "times.json").read_text())
            rows = list(comparisons(given, name, method))
            shared, distance, close = (mean([x for x in column if x == x]) for column in zip(*rows, strict=True))
            took = mean(times[str(index)] for index in objects(given))
            print(f"| {name} | {method.name} | {shared:.1f} | {distance:.4f} | {close:.1f} | {took:.1f} |", flush=True)


def comparisons(given: argparse.Namespace, name: str, method: Path) -> Iterator[tuple[float, float, float]]:
    """IoU, Chamfer-L1 and F-score of each object."""
    for index in objects(given):
        file, truth = method / name / f"{index}.ply", load(given.scans / "truth" / f"{index}.npz")
        if not file.exists():
            yield 0.0, float("nan"), 0.0
            continue
        surface = read(file)
        occupied = inside(truth["queries"].double(), surface.vertices, surface.faces)
        points, normals = sample(surface, SURFACE_POINTS, generator=torch.Generator().manual_seed(0))
        found = compare_points(
            points, normals, truth["points"].double(), truth["normals"].double(), threshold=THRESHOLD
        )
        yield 100 * iou(occupied, truth["occupied"]).item(), found.chamfer_l1, 100 * found.f_score


Panel = tuple[Tensor, Tensor | None]  # points, and normals if it is a surface


def draw(given: argparse.Namespace) -> None:
    """Draw a row for each object: for each setting the scan and the surface of each method, then the truth."""
    rows = []
    for index in objects(given):
        row: list[Panel] = []
        for name in given.settings:
            row.append((load(given.scans / name / f"{index}.npz")["points"], None))
            row += [panel(method / name / f"{index}.ply") for method in given.methods]
        truth = load(given.scans / "truth" / f"{index}.npz")
        rows.append([*row, (truth["points"], truth["normals"])])
    titles = [title for name in given.settings for title in (name, *(method.name for method in given.methods))]
    save_picture(rows, [*titles, "truth"], given.out)


def panel(file: Path) -> Panel:
    """Points of a mesh in a file; nothing if it was empty."""
    surface = read(file) if file.exists() else None
    return (torch.zeros(1, 3), None) if surface is None or surface.is_cloud else surface_points(surface)


def surface_points(surface: vn.mesh.Mesh) -> Panel:
    """Points and normals of a mesh."""
    points, normals = sample(surface, SURFACE_POINTS, generator=torch.Generator().manual_seed(0))
    return points.float(), normals.float()


def save_picture(rows: list[list[Panel]], titles: list[str], out: Path) -> None:
    """Save a grid of panels, a color for each column."""
    panels = [panel for row in rows for panel in row]
    clouds, normals = [points for points, _ in panels], [facing for _, facing in panels]
    parts = [torch.full((len(points),), number % len(titles)) for number, points in enumerate(clouds)]
    words = [*titles, *[""] * (len(panels) - len(titles))]
    gallery(clouds, parts, words, normals=normals, columns=len(titles), radius=1.1).savefig(out, dpi=60)


def solids(given: argparse.Namespace) -> None:
    """Rebuild embedded test shapes, and a torus, from 3,000 noisy points in a random pose."""
    model, _ = network(given)
    rows = []
    for family in given.families:
        data = Shapes("test", size=given.each, points=3000, families=[family]) if family != "torus" else None
        for index in range(given.each if data is not None else 1):
            generator = torch.Generator().manual_seed(index)
            points, normals = (data[index].points, data[index].normals) if data is not None else torus(generator)
            R = rotations.draw("SO3", 1, generator=generator)[0]
            scan = noise(points, 0.01, generator=generator) @ R.mT
            directions = normals @ R.mT if given.normals and normals is not None else None
            surface = reconstruct(model, scan.double(), normals=directions)
            queries = 2.4 * torch.rand(30_000, 3, generator=generator) - 1.2
            truth = data.inside(index, queries) if data is not None else in_torus(queries)
            if surface.is_cloud:
                print(f"{family} {index}: empty", flush=True)
                continue
            if given.draw is not None:
                facing = None if normals is None else normals @ R.mT
                rows.append([(scan, None), surface_points(surface), (points @ R.mT, facing)])
            found = inside((queries @ R.mT).double(), surface.vertices, surface.faces)
            bodies = int(vn.mesh.bodies(surface).max()) + 1
            print(
                f"{family} {index}: IoU {100 * iou(found, truth).item():.1f} %, {bodies} bodies, "
                f"genus {vn.mesh.genus(surface)}",
                flush=True,
            )
    if given.draw is not None:
        save_picture(rows, ["scan", "mesh", "truth"], given.draw)


def torus(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points and normals of a torus of radii 0.7 and 0.3."""
    surface = vn.mesh.extract(lambda x: 0.3 - tube(x), low=-1.1, high=1.1)
    points, normals = sample(surface, 3000, generator=generator)
    return points.float(), normals.float()


def tube(x: Tensor) -> Tensor:
    """The distance from a circle of radius 0.7 about the z axis."""
    return ((x[:, :2].norm(dim=-1) - 0.7).square() + x[:, 2].square()).sqrt()


def in_torus(x: Tensor) -> Tensor:
    """Which points are inside."""
    return tube(x) < 0.3


if __name__ == "__main__":
    main()
