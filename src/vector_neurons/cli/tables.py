"""`vn tables classification --data shapes --recipe fast`: the paper's tables, trained and tested here."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..training import Settings, check, joined, tables, world
from ..training.presets import TABLES, RecipeName, Row
from ..typing import Rotations
from . import UserError
from .train import one_line

TableName = Literal[
    "classification",
    "segmentation",
    "reconstruction",
    "local",
    "aligned-classification",
    "aligned-segmentation",
    "nonlinearity",
    "pooling",
    "invariance",
]


def run(
    table: Annotated[TableName, tyro.conf.arg(metavar="TABLE")],
    /,
    *,
    data: Literal["shapes", "modelnet40", "shapenet-part", "occupancy"] = "shapes",
    recipe: RecipeName = "fast",
    only: tuple[str, ...] = (),
    trials: int = 1,
    out: Path | None = None,
    data_root: str | None = None,
    epochs: int | None = None,
    size: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
) -> int:
    """Train what a table still lacks, test it, and write the table with the paper's numbers beside ours.

    Can be stopped and started again; cells that are not finished say so. Exit code 0: the chosen cells are finished.

    Args:
        table: classification, segmentation, reconstruction, aligned-classification, aligned-segmentation, an ablation
            (nonlinearity, pooling, invariance), or ours: local, the local decoder of reconstruction.
        data: the data set; the paper's numbers are on modelnet40, shapenet-part and, of reconstruction, on ShapeNet.
        recipe: paper is the authors', of days on a processor; fast is ours, of hours.
        only: some rows (vn-dgcnn; VN-OccNet is vn-pointnet) or runs (vn-dgcnn-z).
        trials: how often each cell is tested, each with other poses: mean ± standard deviation.
        out: folder of runs, TABLE.md and TABLE.png, by default runs/tables/DATA-RECIPE/TASK.
        data_root: where packs are; by default the environment's VN_DATA, or the platform's cache directory.
        epochs: other than the recipe's.
        size: number of training clouds of shapes.
        seed: of weights, order, poses and augmentations.
        device: cpu, cuda or cuda:1.
        threads: processor threads of a process.
    """
    if trials < 1:
        raise UserError(f"--trials takes 1 or more, got {trials}")
    chosen = TABLES[table]

    def plan(row: Row, train: Rotations) -> Settings:
        made = chosen.settings(row, train, data, recipe)
        return replace(
            made,
            clouds=replace(made.clouds, data_root=data_root, size=size),
            recipe=made.recipe if epochs is None else replace(made.recipe, epochs=epochs),
            machine=replace(made.machine, seed=seed, device=device, threads=threads),
        )

    folder = out or Path("runs") / "tables" / f"{data}-{recipe}" / chosen.task
    linear = recipe == "fast" and not chosen.about_frames and chosen.task != "reconstruction"
    flags = {"epochs": epochs, "size": size, "seed": seed or None, "trials": trials if trials > 1 else None}
    changed = "".join(f" --{flag} {value}" for flag, value in flags.items() if value is not None)
    command = f"vn tables {table} --data {data} --recipe {recipe}{changed}"
    about = f"Ours: {data}, `{command}`" + ", with linear frames." * linear
    with one_line():
        for row in chosen.rows:
            check(plan(row, chosen.columns[0][0]), world.expected())
        with joined(device) as here:
            text = tables.fill(chosen, plan, folder, name=table, only=only, trials=trials, about=about, world=here)
        if here.writes:
            print(text)
    return 0
