"""Occupancy data: surface points, and query points labeled as inside or outside."""

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
from ..mesh import Mesh, check_mesh, io
from .cloud import Cloud, Dataset
from .convert import convert_plan
from .folder import DEFAULT_CLASS, MAX_DAMAGED_FRACTION, SPLITS, list_files, up_axis
from .pack import DataError, Pack, open_pack, pack_path
from .pack_dataset import check_finite
from .plan import Chunk, ChunkContent, Plan, chunk_key, file_chunks
from .queries import OccupancySampler, occupancy_rows
from .reading import Array, check_finite_points, check_minimum, read_npz, read_words
from .rows import PackRows, Up, concatenate_rows
from .seeding import derive_seed
from .splits import drawn_from, split_rows

NAME = "occupancy"
COMMAND = f"vn data {NAME} --from PATH"
Frame = Literal["unit_ball", "unit_cube"]
SCAN_ARRAYS = ("vertices", "faces", "num_vertices", "num_faces", "name", "scale")
SCANS_PER_CHUNK = 16


class Occupancy(Dataset):
    """Surface points and query points from a pack, z up; `occupied` says which queries are inside the shape.

    Points and queries of a shape are chosen by `seed` and the shape, so they are the same each time; assign to `seed`
    between epochs for another choice. Convert meshes once: `vn data occupancy --from PATH`.

    Args:
        split: "train", "val", "test", "train+val" or "all".
        root: folder of the packs; by default `$VN_DATA`, or the user's cache directory.
        pack: name or path of the pack.
        points: surface points of each shape; None for all.
        queries: query points of each shape; None for as many as there are with this fraction `near`.
        near: fraction of the queries near the surface; the others are uniform in the cube around the shape. With
            `queries=None`, 0 if the pack has none.
        normals: deliver normals too.
        frame: "unit_ball" (centered on the mean of the surface) or "unit_cube" (bounding box centered, longest side 1,
            as in Occupancy Networks).
        seed: of the choice of points and queries.
        split_seed: of splits that the pack lacks.
        validation: fraction of every class for "val", if the pack lacks it.
        test: fraction of every class for "test", if the pack has no splits.
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
        self.pack: Pack = open_pack(pack, root, kind=NAME, command=COMMAND)
        self.drawn_from = drawn_from(self.pack)
        self.split, self.normals, self.frame, self.seed = split, normals, frame, seed
        self.classes = self.pack.classes
        self.rows = split_rows(self.pack, split, validation=validation, test=test, seed=split_seed)
        self.labels = self.pack.arrays["label"][self.rows]
        have, uniform = self.pack.arrays["points"].shape[1], int(self.pack.about["uniform"])
        near_surface = self.pack.arrays["queries"].shape[1] - uniform
        self.points = points = have if points is None else points
        if queries is None:
            near = near if near_surface else 0.0
            queries = int(
                min(uniform / (1 - near) if near < 1 else math.inf, near_surface / near if near else math.inf)
            )
        self.near = round(near * queries)
        self.uniform = queries - self.near
        if not (1 <= points <= have and 0 <= self.uniform <= uniform and 0 <= self.near <= near_surface):
            raise DataError(
                f"{self.pack.path} has {have:,} surface points, {uniform:,} uniform queries and {near_surface:,} near "
                f"the surface for each shape: {points:,}, {self.uniform:,} and {self.near:,} are too many or too few"
            )

    def batch(self, indices: Int[Tensor, " batch"]) -> Cloud:
        """Return the clouds of these indices, stacked."""
        rows, arrays = self.rows[indices], self.pack.arrays
        have, uniform = arrays["points"].shape[1], int(self.pack.about["uniform"])
        points, queries = [], []
        for number in rows.tolist():
            generator = torch.Generator().manual_seed(derive_seed(self.seed, number))
            points.append(torch.randperm(have, generator=generator)[: self.points])
            anywhere = torch.randperm(uniform, generator=generator)[: self.uniform]
            near = torch.randperm(arrays["queries"].shape[1] - uniform, generator=generator)[: self.near] + uniform
            queries.append(torch.cat([anywhere, near]))
        row, point, query = rows[:, None], torch.stack(points), torch.stack(queries)
        chosen = {
            "points": self._to_frame(arrays["points"][row, point], rows),
            "normals": arrays["normals"][row, point] if self.normals else None,
            "queries": self._to_frame(arrays["queries"][row, query], rows),
        }
        check_finite(self.pack, chosen)
        occupied = arrays["occupied"][row, query]
        return Cloud(label=self.labels[indices], occupied=occupied, **chosen)  # type: ignore[arg-type]

    def _to_frame(self, x: Tensor, rows: Tensor) -> Tensor:
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
    """Convert a folder of meshes, `scanned_objects.npz`, or a folder in OccNet's format to a pack; returns its path.

    Args:
        source: the folder or .npz file.
        root: folder of the packs; by default `$VN_DATA`, or the user's cache directory.
        to: name or path of the pack.
        points: surface points of each shape, with normals.
        queries: uniform queries of each shape; OccNet's format has its own, of which so many are kept.
        near: queries near the surface of each mesh: surface points with Gaussian noise.
        sigma: standard deviation of that noise, relative to the longest side.
        up: axis that is up in the source; by default y in OccNet's format and .glb, z elsewhere.
        seed: of the samples.
        workers: number of processes that read files.
        skip_damaged: leave out missing and damaged files; by default up to half of the meshes, and none of OccNet's.
        progress: called with the number of shapes that have been read, and their total.
    """
    path = pack_path(to, root)
    plan = make_plan(Path(source), points, queries, near, sigma, up, seed)
    meshes = plan.layout != "OccNet format"
    skip: bool | float = skip_damaged if skip_damaged is not None else MAX_DAMAGED_FRACTION if meshes else False
    convert_plan(path, NAME, plan, workers=workers, skip_damaged=skip, progress=progress)
    return path


def make_plan(
    source: Path, points: int, queries: int, near: int, sigma: float, up: Up | None = None, seed: int = 0
) -> Plan:
    """List what is to be read from a source of any layout."""
    check_minimum(1, points=points, queries=queries)
    check_minimum(0, near=near, sigma=sigma)
    sampler = OccupancySampler(points, queries, near, sigma, up or "z", seed)
    if not source.exists():
        raise DataError(f"there is no {source}")
    if source.suffix == ".npz" or (source / "scanned_objects.npz").is_file():
        file = source if source.suffix == ".npz" else source / "scanned_objects.npz"
        return Plan("array pack", (DEFAULT_CLASS,), _scan_chunks(file, sampler), about={"uniform": queries})
    lists = sorted(source.glob("*/train.lst"))
    if lists:
        chunks = _occnet_chunks(source, points, queries, up or "y", seed)
        announced = {split: sum(chunk.size for chunk in chunks if chunk.split == split) for split in SPLITS}
        classes = tuple(file.parent.name for file in lists)
        return Plan("OccNet format", classes, chunks, announced, {"uniform": queries})
    files, classes = list_files(source, (*io.MESH_SUFFIXES, ".npz"))
    read = partial(_read_mesh, sampler, up)
    chunks = [c for split in files for c in file_chunks(split, files[split], read, sampler, up, by_content=True)]
    return Plan("folder of meshes", classes, chunks, about={"uniform": queries})


def _read_mesh(sampler: OccupancySampler, up: Up | None, name: str, file: Path, label: int) -> PackRows:
    return replace(sampler, up=up_axis(file, up))(name, io.read(file))


def _scan_chunks(file: Path, sampler: OccupancySampler) -> list[Chunk]:
    splits = read_npz(file, ["split"])["split"]
    chunks = []
    for number, split in enumerate(SPLITS):
        members = np.flatnonzero(splits == number).tolist()
        for start in range(0, len(members), SCANS_PER_CHUNK):
            some = members[start : start + SCANS_PER_CHUNK]
            read = partial(_read_scans, file, some, sampler)
            chunks.append(Chunk(split, len(some), read, chunk_key(split, some, sampler, files=[file]), file))
    return chunks


@lru_cache(maxsize=1)  # a process reads many chunks of one file
def _load_scans(file: Path) -> tuple[Array, ...]:
    vertices, faces, v, f, names, scale = read_npz(file, SCAN_ARRAYS).values()
    if v.sum() != len(vertices) or f.sum() != len(faces):
        raise DataError(f"{file} is damaged: its meshes do not add up to its vertices and faces")
    return vertices.astype(np.float64) * scale, faces.astype(np.int64), np.cumsum(v), np.cumsum(f), names


def _read_scans(file: Path, members: list[int], sampler: OccupancySampler) -> ChunkContent:
    vertices, faces, v_end, f_end, names = _load_scans(file)
    shapes, kept, damaged = [], [], []
    for i in members:
        own = slice(v_end[i - 1] if i else 0, v_end[i]), slice(f_end[i - 1] if i else 0, f_end[i])
        mesh, name = Mesh(torch.from_numpy(vertices[own[0]]), torch.from_numpy(faces[own[1]])), str(names[i])
        try:
            check_mesh(mesh)
            shapes.append(sampler(name, mesh) | {"label": torch.tensor([0])})
            kept.append(name)
        except ValueError as error:
            damaged.append(f"{file}, mesh {name}: {first_line(error)}")
    return ChunkContent(concatenate_rows(shapes), kept, damaged)


def _occnet_chunks(source: Path, points: int, queries: int, up: Up, seed: int) -> list[Chunk]:
    folders = sorted(file.parent for file in source.glob("*/train.lst"))
    read = partial(_read_occnet, points, queries, up, seed)
    chunks = []
    for split in SPLITS:
        files = []
        for number, folder in enumerate(folders):
            names = folder / f"{split}.lst"
            if not names.is_file():
                raise DataError(f"{names} is missing: it says which shapes are in the {split} set")
            files += [(f"{folder.name}/{name}", folder / name, number) for name in read_words(names)]
        chunks += file_chunks(split, files, read, points, queries, up, seed, members=("pointcloud.npz", "points.npz"))
    return chunks


def _read_occnet(points: int, queries: int, up: Up, seed: int, name: str, folder: Path, label: int) -> PackRows:
    surface, normals = _read_pair(folder / "pointcloud.npz", "normals", points)
    positions, occupied = _read_pair(folder / "points.npz", "occupancies", queries)
    generator = torch.Generator().manual_seed(derive_seed(seed, name))
    point, query = (
        torch.randperm(len(x), generator=generator)[:n] for x, n in ((surface, points), (positions, queries))
    )
    cloud = Cloud(
        points=surface[point],
        normals=normals[point].double(),
        queries=positions[query],
        occupied=occupied[query].bool(),
    )
    return occupancy_rows(cloud, *box(surface), up)


def _read_pair(file: Path, name: str, minimum: int) -> tuple[Tensor, Tensor]:
    """Read the points of one of OccNet's files, and their normals or occupancies, which may be packed as bits."""
    if not file.is_file():
        raise DataError(f"{file} is missing")
    points, values = read_npz(file, ["points", name]).values()
    if points.ndim != 2 or points.shape[1] != 3:
        raise DataError(f"{file}: {points.shape[-1]} columns in 'points' instead of 3")
    packed = name == "occupancies" and values.dtype == np.uint8
    if packed and values.shape == (math.ceil(len(points) / 8),):
        values = np.unpackbits(values)[: len(points)]
    if name == "normals" and (values.ndim != 2 or values.shape[1] != 3):
        raise DataError(f"{file}: 'normals' must have 3 columns, got an array {values.shape}")
    if name == "occupancies" and values.ndim != 1:
        raise DataError(f"{file}: 'occupancies' must have one value for each point, got an array {values.shape}")
    if len(values) != len(points):
        raise DataError(f"{file} is truncated: {len(values):,} {name} for {len(points):,} points")
    if len(points) < minimum:
        raise DataError(f"{file} has {len(points):,} points, fewer than {minimum:,}: lower --points or --queries")
    check_finite_points(torch.from_numpy(points), str(file))
    if name == "normals":
        check_finite_points(torch.from_numpy(values), f"{file}, normals")
    return torch.from_numpy(points.astype(np.float64)), torch.from_numpy(values)
