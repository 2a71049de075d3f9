"""`vn similar FILE --index index/`: the shapes of an index that are most similar to one, in any pose."""

import json as json_module
from pathlib import Path
from typing import Annotated

import tyro

from .. import kernels
from .._files import first_line
from ..inference import load_index
from ..inference.retrieval import similar
from . import UserError


def run(
    file: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    /,
    *,
    index: Path,
    top: int = 10,
    model: str | None = None,
    json: bool = False,
    drop_nan: bool = False,
    seed: int = 0,
) -> int:
    """List the shapes of an index that are most similar to a mesh or a cloud, in any pose and units.

    Args:
        file: .ply .obj .stl .off .glb .xyz .pts .csv .pcd .npy .npz.
        index: folder that `vn embed` has written.
        top: number of shapes to list.
        model: name or folder of the model that made the index, if it is not there anymore.
        json: print JSON.
        drop_nan: drop points of a cloud that are NaN or infinite, as depth cameras write them.
        seed: seed of the sampled points.
    """
    if top < 1:
        raise UserError(f"--top takes 1 or more, got {top}")
    kernels.prefer_built()  # one file takes less time than compiling the kernels
    try:
        matches = similar(file, load_index(index), model=model, top=top, drop_nan=drop_nan, seed=seed)
    except (ValueError, OSError) as error:
        raise UserError(first_line(error)) from error
    if json:
        print(json_module.dumps([match._asdict() for match in matches], indent=2))
    else:
        for match in matches:
            print(f"{match.similarity:.3f}  {match.file}")
    return 0
