"""`vn kernels [build]`: show or build the native kernels."""

from typing import Annotated, Literal

import torch
import tyro

from .. import kernels
from . import UserError


def run(
    action: Annotated[Literal["show", "build"], tyro.conf.arg(metavar="{show,build}")] = "show",
    /,
    *,
    again: bool = False,
) -> int:
    """Show whether the native kernels are built on this machine, or build them now instead of at first use.

    Args:
        action: show prints their state; build compiles them into the user's cache, unless they are built.
        again: compile them even if they are built.
    """
    if again and action == "show":
        raise UserError("--again belongs to `vn kernels build`")
    if action == "build":
        try:
            print(kernels.build(again=again))
        except kernels.BuildError as error:
            raise UserError(f"cannot be built: {error}") from error
        return 0
    try:
        state = str(kernels.built() or "no: `vn kernels build`, or at first use")
    except kernels.BuildError as error:
        state = f"no: {error}"
    print(f"built   {state}")
    print(f"machine {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}")
    print(f"chosen  {kernels.chosen()} (VN_KERNELS, or vector_neurons.kernels.use)")
    return 0
