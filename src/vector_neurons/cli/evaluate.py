"""`vn evaluate RUN --rotations SO3 --trials 5`: the best model of a run on the test set."""

import csv
import io
from functools import reduce
from pathlib import Path
from typing import Annotated

import tyro

from .._files import first_line, write_file
from ..tasks import Counts, add
from ..training import find_run, mesh_metrics, process_group, read_config, results
from ..typing import Rotations
from ..viz import confusion
from . import UserError, check_out
from .train import one_line


def run(
    run: Annotated[Path, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    rotations: tuple[Rotations, ...] | None = None,
    trials: int = 1,
    device: str | None = None,
    confusion: Path | None = None,
    meshes: int = 0,
    save: bool = False,
) -> int:
    """Test the best model of a run on the test set, overall and by class.

    Careful: of a run that was trained with --model my_file.py:MyNet, this EXECUTES the copy of that file in its folder.

    Args:
        run: folder of the run.
        rotations: rotations of the test clouds: I (none), z (about the vertical axis), SO3 (arbitrary); by default the
            --test-rotations of the run.
        trials: number of tests, each with other fixed rotations of the clouds, reported as mean ± standard deviation.
        device: cpu, cuda or cuda:1; by default that of the training.
        confusion: classification: write the confusion matrix to this file, .csv for numbers or .png for a picture.
        meshes: reconstruction: also reconstruct meshes of so many test shapes, and compare them with the true surfaces.
        save: add the results to the run's test.json, and those of --meshes to its meshes.json.
    """
    if meshes < 0:
        raise UserError(f"--meshes takes 0 or more, got {meshes}")
    if trials < 1:
        raise UserError(f"--trials takes 1 or more, got {trials}")
    with one_line():
        run = find_run(run)
        config = read_config(run)
        if confusion is not None:
            _check_matrix(confusion, config.task)
        for name in (results.TEST, mesh_metrics.MESHES) if save else ():
            results.read(run, name)  # a damaged file is reported before all the work
        kinds = rotations or config.protocol.test_rotations
        with process_group(device or config.runtime.device) as group:
            tested = results.measure(run, kinds, trials, group)
        if not group.is_main:
            return 0
        print(results.format_results(tested.reports))
        counts = {kind: reduce(add, every) for kind, every in tested.counts.items()}  # of all trials
        if details := results.format_classes(tested.task, counts, trials):
            print(f"\n{details}")
        if confusion is not None:
            _write_matrix(confusion, counts, tested.task.outputs)
        if save:  # last: a disk may be full
            results.add(run, tested.reports)
        if meshes:
            print("meshes, distances for shapes of radius 1:")
            compared = mesh_metrics.measure(run, kinds, meshes, device or config.runtime.device)
            print(results.format_results(compared))
            if save:
                results.add(run, compared, mesh_metrics.MESHES)
    return 0


def _check_matrix(file: Path, task: str) -> None:
    if task != "classification":
        raise UserError(f"--confusion is for classification, this is a run of {task}")
    check_out(file, (".csv", ".png"), "a confusion matrix")


def _write_matrix(file: Path, counts: dict[Rotations, Counts], names: tuple[str, ...]) -> None:
    matrices = {kind: counted["confusion"] for kind, counted in counts.items()}
    try:
        if file.suffix.lower() == ".png":
            picture = io.BytesIO()
            confusion(list(matrices.values()), list(matrices), names).savefig(picture, format="png", dpi=110)
            write_file(file, picture.getvalue())
        else:
            text = io.StringIO()
            table = csv.writer(text, lineterminator="\n")
            table.writerow(["rotations", "class", *names])
            for kind, matrix in matrices.items():
                table.writerows([kind, name, *row] for name, row in zip(names, matrix.tolist(), strict=True))
            write_file(file, text.getvalue())
    except OSError as error:
        raise UserError(f"cannot write {file}: {first_line(error)}") from error
