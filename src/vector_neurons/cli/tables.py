"""`vn tables classification --data shapes --recipe fast`: the paper's tables, trained and tested here."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..training import RunConfig, check, distributed, process_group, tables
from ..training.presets import TABLES, RecipeName, TableRow
from ..typing import Rotations
from . import UserError
from .train import one_line

TableName = Literal[
    "classification",
    "segmentation",
    "reconstruction",
    "local",
    "frames",
    "frames-segmentation",
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
    """Train and test the missing runs of a table, and write the table with the paper's numbers beside ours.

    Can be stopped and started again; unfinished cells say so. Exit code 0: the chosen cells are finished.

    Args:
        table: classification, segmentation, reconstruction, aligned-classification, aligned-segmentation, an ablation
            (nonlinearity, pooling, invariance), or a method of ours beside the paper's: local (reconstruction), frames
            and frames-segmentation (FrameNet).
        data: data set; the paper's numbers are on modelnet40, shapenet-part and, for reconstruction, on ShapeNet.
        recipe: paper: the authors' recipe, which takes days on a CPU; fast: ours, which takes hours.
        only: names of rows (vn-dgcnn; VN-OccNet is vn-pointnet) or of runs (vn-dgcnn-z); by default all.
        trials: number of tests of each cell, each with other fixed rotations, reported as mean ± standard deviation.
        out: folder of the runs, TABLE.md and TABLE.png; by default runs/tables/DATA-RECIPE/TASK.
        data_root: folder of the packs; by default the environment variable VN_DATA, or the platform's cache directory.
        epochs: number of epochs, instead of the recipe's.
        size: number of training clouds of --data shapes.
        seed: seed of weights, order, rotations and augmentations.
        device: cpu, cuda or cuda:1.
        threads: CPU threads per process.
    """
    if trials < 1:
        raise UserError(f"--trials takes 1 or more, got {trials}")
    chosen = TABLES[table]

    def plan(row: TableRow, train: Rotations) -> RunConfig:
        config = chosen.config(row, train, data, recipe)
        return replace(
            config,
            data=replace(config.data, data_root=data_root, size=size),
            recipe=config.recipe if epochs is None else replace(config.recipe, epochs=epochs),
            runtime=replace(config.runtime, seed=seed, device=device, threads=threads),
        )

    folder = out or Path("runs") / "tables" / f"{data}-{recipe}" / chosen.task
    linear = recipe == "fast" and not chosen.keeps_frames and chosen.task != "reconstruction"
    flags = {"epochs": epochs, "size": size, "seed": seed or None, "trials": trials if trials > 1 else None}
    changed = "".join(f" --{flag} {value}" for flag, value in flags.items() if value is not None)
    command = f"vn tables {table} --data {data} --recipe {recipe}{changed}"
    about = f"Ours: {data}, `{command}`" + ", with linear frames." * linear
    with one_line():
        for row in chosen.rows:
            check(plan(row, chosen.columns[0][0]), distributed.world_size())
        with process_group(device) as group:
            text = tables.fill(chosen, plan, folder, name=table, only=only, trials=trials, about=about, group=group)
        if group.is_main:
            print(text)
    return 0
