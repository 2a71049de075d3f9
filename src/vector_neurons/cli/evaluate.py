"""`vn evaluate RUN --rotations SO3 --times 5`: the best model of a run on the test set."""

from pathlib import Path
from typing import Annotated

import tyro

from ..training import joined, read_settings, results, surfaces
from ..typing import Rotations
from . import UserError
from .train import one_line


def run(
    run: Annotated[Path, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    rotations: tuple[Rotations, ...] | None = None,
    times: int = 1,
    device: str | None = None,
    meshes: int = 0,
) -> int:
    """Test the best model of a run on the test set; the results are added to its test.json.

    Args:
        run: folder of the run.
        rotations: kinds of poses, by default those the run was to be tested under.
        times: how often, each time with another fixed pose of every cloud: mean ± standard deviation.
        device: cpu, cuda or cuda:1, by default that of the training.
        meshes: of a reconstruction, make meshes of so many test shapes and compare them with the true surfaces, too;
            their means are written to meshes.json.
    """
    if meshes < 0:
        raise UserError(f"--meshes takes 0 or more, got {meshes}")
    if times < 1:
        raise UserError(f"--times takes 1 or more, got {times}")
    with one_line():
        settings = read_settings(run)
        kinds = rotations or settings.protocol.test_rotations
        with joined(device or settings.machine.device) as here:
            tested = results.record(run, kinds, times, here)
        if here.writes:
            print(results.lines(tested.reports))
        if here.writes and meshes:
            print("meshes, distances for a radius of 1:")
            print(results.lines(surfaces.record(run, kinds, meshes, device or settings.machine.device)))
    return 0
