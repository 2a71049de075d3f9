"""Occupancy: surface points, and places in space of which it is known whether they lie inside."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from .._files import first_line
from ..geometry.sampling import box
from ..mesh import Mesh, io
from .build import Chunk, Content, Plan, Rows, build, file_chunks, joined, key_of
from .cloud import Cloud, Dataset
from .folder import MOST_DAMAGED, ONLY_CLASS, SPLITS, listing, up_of
from .pack import DataError, Pack, open_pack, pack_path, seed_of
from .packed import check_finite, drawn_from, split_rows
from .queries import Labeller, occupancy_rows
from .reading import Array, Up, at_least, finite, read_arrays, words

NAME = "occupancy"
MAKE = f"vn data {NAME} --from PATH"
Frame = Literal["unit_ball", "unit_cube"]
SCANNED = ("vertices", "faces", "num_vertices", "num_faces", "name", "scale")
SCANS_PER_CHUNK = 16


class Occupancy(Dataset):
    """Surface points and queries from a pack, z up; `occupied` says which queries are inside.

    A batch has `points` surface points and `queries` places of each shape, of which a share `near` lies near the
    surface and the rest is uniform in the shape's cube. They are chosen by `seed` and the shape, so they are the same
    each time; assign another `seed` between epochs for another choice; `split_seed` draws the splits that a pack lacks.
    `frame` is "unit_ball" (about the centre of the
    surface) or "unit_cube" (bounding box centred, longest side 1, as in Occupancy Networks). `points=None` are
    all there are, `queries=None` as many as there are with this share `near`, which is 0 if the pack has none.
    """

    name = NAME

    def __init__(
        self,
        split: str,
        root: str | Path | None = None,
        *,
        pack: str | Path = NAME,
        points: int | None = 1024,
        queries: int | None = 2048,
        near: float = 0.0,
        normals: bool = False,
        frame: Frame = "unit_ball",
        seed: int = 0,
        split_seed: int = 0,
        validation: float = 0.1,
        test: float = 0.2,
    ) -> None:
        if frame not in get_args(Frame):
            raise DataError(f'unknown frame {frame!r}: choose "unit_ball" or "unit_cube"')
        self.pack: Pack = open_pack(pack, root, kind=NAME, make=MAKE)
        self.drawn_from = drawn_from(self.pack)
        self.split, self.normals, self.frame, self.seed = split, normals, frame, seed
        self.classes = self.pack.classes
        self.rows = split_rows(self.pack, split, validation=validation, test=test, seed=split_seed)
        self.labels = self.pack.arrays["label"][self.rows]
        have, uniform = self.pack.arrays["points"].shape[1], int(self.pack.about["uniform"])
        beside = self.pack.arrays["queries"].shape[1] - uniform
        self.points = points = have if points is None else points
        if queries is None:
            near = near if beside else 0.0
            queries = int(min(uniform / (1 - near) if near < 1 else math.inf, beside / near if near else math.inf))
        self.near = round(near * queries)
        self.uniform = queries - self.near
        if not (1 <= points <= have and 0 <= self.uniform <= uniform and 0 <= self.near <= beside):
            raise DataError(
                f"{self.pack.path} has {have:,} surface points, {uniform:,} uniform queries and {beside:,} near the "
                f"surface for each shape, asked for {points:,}, {self.uniform:,} and {self.near:,}"
            )

    def batch(self, indices: Int[Tensor, " batch"]) -> Cloud:
        """The clouds of these indices, stacked."""
        rows, arrays = self.rows[indices], self.pack.arrays
        have, uniform = arrays["points"].shape[1], int(self.pack.about["uniform"])
        points, queries = [], []
        for row in rows.tolist():
            generator = torch.Generator().manual_seed(seed_of(self.seed, row))
            points.append(torch.randperm(have, generator=generator)[: self.points])
            chosen = torch.randperm(uniform, generator=generator)[: self.uniform]
            beside = torch.randperm(arrays["queries"].shape[1] - uniform, generator=generator)[: self.near] + uniform
            queries.append(torch.cat([chosen, beside]))
        at, on, of = rows[:, None], torch.stack(points), torch.stack(queries)
        cut = {
            "points": self._framed(arrays["points"][at, on], rows),
            "normals": arrays["normals"][at, on] if self.normals else None,
            "queries": self._framed(arrays["queries"][at, of], rows),
        }
        check_finite(self.pack, cut)
        return Cloud(label=self.labels[indices], occupied=arrays["occupied"][at, of], **cut)  # type: ignore[arg-type]

    def _framed(self, x: Tensor, rows: Tensor) -> Tensor:
        if self.frame == "unit_ball":
            return x
        cube = self.pack.arrays["cube"][rows].unsqueeze(1)
        return (x - cube[..., :3]) / cube[..., 3:]


def convert(
    source: str | Path,
    root: str | Path | None = None,
    *,
    to: str | Path = NAME,
    points: int = 4096,
    queries: int = 8192,
    near: int = 8192,
    sigma: float = 0.02,
    up: Up | None = None,
    seed: int = 0,
    workers: int = 0,
    skip_damaged: bool | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Convert a folder of meshes, `scanned_objects.npz`, or a folder in OccNet's format to a pack; gives its path.

    Each shape gets `points` surface points with normals, `queries` uniform queries and `near` ones: surface points with
    Gaussian noise of standard deviation `sigma`, relative to the longest side. OccNet's format brings its own queries,
    of which `queries` are kept. `up` is the axis that is up in the source: y in OccNet's format and .glb, z elsewhere.
    Meshes that cannot be read are left out unless they are the majority; OccNet's files must be whole unless
    `skip_damaged`.
    """
    path = pack_path(to, root)
    plan = make_plan(Path(source), points, queries, near, sigma, up, seed)
    own = plan.layout != "OccNet format"
    skip: bool | float = skip_damaged if skip_damaged is not None else MOST_DAMAGED if own else False
    build(path, NAME, plan, workers=workers, skip_damaged=skip, progress=progress)
    return path


def make_plan(
    source: Path, points: int, queries: int, near: int, sigma: float, up: Up | None = None, seed: int = 0
) -> Plan:
    """What is to be read from a source, whichever layout it has."""
    at_least(1, points=points, queries=queries)
    at_least(0, near=near, sigma=sigma)
    label = Labeller(points, queries, near, sigma, up or "z", seed)
    if not source.exists():
        raise DataError(f"there is no {source}")
    if source.suffix == ".npz" or (source / "scanned_objects.npz").is_file():
        file = source if source.suffix == ".npz" else source / "scanned_objects.npz"
        return Plan("array pack", (ONLY_CLASS,), _scanned(file, label), about={"uniform": queries})
    lists = sorted(source.glob("*/train.lst"))
    if lists:
        chunks = _occnet(source, points, queries, up or "y", seed)
        announced = {split: sum(chunk.size for chunk in chunks if chunk.split == split) for split in SPLITS}
        classes = tuple(file.parent.name for file in lists)
        return Plan("OccNet format", classes, chunks, announced, {"uniform": queries})
    files, classes = listing(source, (*io.MESHES, ".npz"))
    read = partial(_read_mesh, label, up)
    chunks = [c for split in files for c in file_chunks(split, files[split], read, label, up, by_content=True)]
    return Plan("folder of meshes", classes, chunks, about={"uniform": queries})


def _read_mesh(label: Labeller, up: Up | None, name: str, file: Path, number: int) -> Rows:
    return replace(label, up=up_of(file, up))(name, io.read(file))


def _scanned(file: Path, label: Labeller) -> list[Chunk]:
    splits = read_arrays(file, ["split"])["split"]
    chunks = []
    for number, split in enumerate(SPLITS):
        members = np.flatnonzero(splits == number).tolist()
        for start in range(0, len(members), SCANS_PER_CHUNK):
            some = members[start : start + SCANS_PER_CHUNK]
            read = partial(_read_scanned, file, some, label)
            chunks.append(Chunk(split, len(some), read, key_of(split, some, label, files=[file]), file))
    return chunks


@lru_cache(maxsize=1)  # a process reads many chunks of one file
def _scans(file: Path) -> tuple[Array, ...]:
    vertices, faces, v, f, names, scale = read_arrays(file, SCANNED).values()
    if v.sum() != len(vertices) or f.sum() != len(faces):
        raise DataError(f"{file} is damaged: its meshes do not add up to its vertices and faces")
    return vertices.astype(np.float64) * scale, faces.astype(np.int64), np.cumsum(v), np.cumsum(f), names


def _read_scanned(file: Path, members: list[int], label: Labeller) -> Content:
    vertices, faces, v_end, f_end, names = _scans(file)
    shapes, kept, damaged = [], [], []
    for i in members:
        own = slice(v_end[i - 1] if i else 0, v_end[i]), slice(f_end[i - 1] if i else 0, f_end[i])
        mesh, name = Mesh(torch.from_numpy(vertices[own[0]]), torch.from_numpy(faces[own[1]])), str(names[i])
        try:
            io.check(mesh)
            shapes.append(label(name, mesh) | {"label": torch.tensor([0])})
            kept.append(name)
        except ValueError as error:
            damaged.append(f"{file}, mesh {name}: {first_line(error)}")
    return Content(joined(shapes), kept, damaged)


def _occnet(source: Path, points: int, queries: int, up: Up, seed: int) -> list[Chunk]:
    folders = sorted(file.parent for file in source.glob("*/train.lst"))
    read = partial(_read_occnet, points, queries, up, seed)
    chunks = []
    for split in SPLITS:
        files = []
        for number, folder in enumerate(folders):
            names = folder / f"{split}.lst"
            if not names.is_file():
                raise DataError(f"{names} is missing: it says which shapes are in the {split} set")
            files += [(f"{folder.name}/{name}", folder / name, number) for name in words(names)]
        chunks += file_chunks(split, files, read, points, queries, up, seed, members=("pointcloud.npz", "points.npz"))
    return chunks


def _read_occnet(points: int, queries: int, up: Up, seed: int, name: str, folder: Path, label: int) -> Rows:
    surface, normals = _pair(folder / "pointcloud.npz", "normals", points)
    places, occupied = _pair(folder / "points.npz", "occupancies", queries)
    generator = torch.Generator().manual_seed(seed_of(seed, name))
    on, at = (torch.randperm(len(x), generator=generator)[:n] for x, n in ((surface, points), (places, queries)))
    cloud = Cloud(points=surface[on], normals=normals[on].double(), queries=places[at], occupied=occupied[at].bool())
    return occupancy_rows(cloud, *box(surface), up)


def _pair(file: Path, name: str, least: int) -> tuple[Tensor, Tensor]:
    """The points of one of OccNet's files and what it knows about them, which may be packed as bits."""
    if not file.is_file():
        raise DataError(f"{file} is missing")
    points, known = read_arrays(file, ["points", name]).values()
    if points.ndim != 2 or points.shape[1] != 3:
        raise DataError(f"{file}: {points.shape[-1]} columns in 'points' instead of 3")
    packed = name == "occupancies" and known.dtype == np.uint8
    if packed and known.shape == (math.ceil(len(points) / 8),):
        known = np.unpackbits(known)[: len(points)]
    if name == "normals" and (known.ndim != 2 or known.shape[1] != 3):
        raise DataError(f"{file}: 'normals' must have 3 columns, got an array {known.shape}")
    if name == "occupancies" and known.ndim != 1:
        raise DataError(f"{file}: 'occupancies' must be one number for each point, got an array {known.shape}")
    if len(known) != len(points):
        raise DataError(f"{file} is truncated: {len(known):,} {name} for {len(points):,} points")
    if len(points) < least:
        raise DataError(f"{file} has {len(points):,} points, asked for {least:,}: lower --points or --queries")
    finite(torch.from_numpy(points), str(file))
    if name == "normals":
        finite(torch.from_numpy(known), f"{file}, normals")
    return torch.from_numpy(points.astype(np.float64)), torch.from_numpy(known)
