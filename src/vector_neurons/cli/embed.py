"""`vn embed FOLDER -o index/`: an index of shapes, for `vn similar`."""

import sys
from pathlib import Path
from typing import Annotated

import torch
import tyro

from .. import kernels
from .._files import first_line
from ..data.folder import shape_files
from ..inference import Index, embed_each
from ..inference.retrieval import find_classifier, weights_checksum
from ..mesh import MeshError
from . import UserError
from .progress import progress_of


def run(
    folder: Annotated[Path, tyro.conf.arg(metavar="FOLDER")],
    /,
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    model: str = "classification",
    batch_size: int = 16,
    drop_nan: bool = False,
    seed: int = 0,
) -> int:
    """Make an index of the meshes and clouds in a folder and its sub-folders, in which `vn similar` searches.

    Exit code 2 if a file cannot be used; the others are in the index nevertheless.

    Args:
        folder: of files .ply .obj .stl .off .glb .xyz .pts .csv .pcd .npy .npz, in any poses and units.
        out: folder to write the index to.
        model: name of a model in the package, or folder of a run or of a saved model, that classifies.
        batch_size: files that the network gets at once.
        drop_nan: drop points of clouds that are NaN or infinite, as depth cameras write them.
        seed: seed of the sampled points.
    """
    if batch_size < 1:
        raise UserError(f"--batch-size takes 1 or more, got {batch_size}")
    if out.exists() and not out.is_dir():
        raise UserError(f"cannot write an index to {out}: it is a file")
    kernels.prefer_built()
    descriptors, names, failed = [], [], []
    try:
        files, network = shape_files(folder), find_classifier(model)
        with progress_of(len(files) > 1) as progress:
            found = embed_each(network, files, batch_size=batch_size, seed=seed, drop_nan=drop_nan)
            for done, (file, descriptor) in enumerate(zip(files, found, strict=True), 1):
                if isinstance(descriptor, MeshError):
                    failed.append(descriptor)
                else:
                    descriptors.append(descriptor)
                    names.append(file.relative_to(folder).as_posix())
                progress(done, len(files))
    except (ValueError, OSError) as error:
        raise UserError(first_line(error)) from error
    for why in failed:
        print(f"vn embed: {first_line(why)}", file=sys.stderr)
    if not names:
        raise UserError(f"no file of {folder} could be read" if failed else f"no files to read in {folder}")
    Index(torch.stack(descriptors), names, model, weights_checksum(network)).save(out)
    left_out = f", {len(failed):,} could not be read" if failed else ""
    print(f"{out}: {len(names):,} shapes{left_out}")
    return 2 if failed else 0
