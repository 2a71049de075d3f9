"""`vn convert old.pth new/`: convert a checkpoint of the paper's authors to a model of this library."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from .._files import check_regular, first_line
from ..models import LayerOptions, OccupancyNetwork, reference, store
from . import UserError

NAMES_MAX_BYTES = 2**20  # of a text file of class names


def run(
    checkpoint: Annotated[Path, tyro.conf.arg(metavar="OLD.pth")],
    folder: Annotated[Path, tyro.conf.arg(metavar="NEW/")],
    /,
    *,
    k: int | None = None,
    legacy: bool = True,
    class_names: Path | None = None,
    up: Literal["x", "y", "z"] = "y",
) -> int:
    """Convert a checkpoint of the repositories vnn, vnn-pc or vnn-neural-implicits to a folder that `vn.load` reads.

    Args:
        checkpoint: file written by the authors' code: VN-PointNet or VN-DGCNN, or their scalar baselines, for
            classification or part segmentation, or one of the three occupancy networks.
        folder: folder to write model.safetensors and config.json to.
        k: number of nearest neighbors it was trained with; by default the paper's.
        legacy: keep the absolute eps of the authors' code, for identical outputs; --no-legacy uses a relative eps.
        class_names: text file with the name of one output per line.
        up: vertical axis of its training data; the authors' ModelNet40 and ShapeNet-Part have y up.
    """
    try:
        names = None if class_names is None else _lines(class_names)
        model = reference.load(checkpoint, k=k, legacy=legacy)
        outputs = model.arguments.get("classes", model.arguments.get("parts", 1))
        if names is not None and len(names) != outputs:
            raise UserError(f"{class_names} names {len(names)} outputs, the model has {outputs}")
        metadata = store.Metadata(classes=names, up=up)
        if isinstance(model, OccupancyNetwork):  # OccNet's frame, and the paper's points and threshold
            metadata = replace(metadata, normalization="unit_cube", points=300, threshold=0.2)
        store.save(model, folder, metadata)
    except OSError as error:
        raise UserError(first_line(error)) from error
    except ValueError as error:
        raise UserError(str(error)) from error
    count = sum(p.numel() for p in model.parameters())
    pool = LayerOptions.of(model.arguments.get("layers", {})).pool
    pooling = f", {pool} pooling" if pool else ""
    print(f"{folder}: {type(model).__name__} with {outputs} outputs, {count:,} parameters{pooling}")
    return 0


def _lines(path: Path) -> list[str]:
    check_regular(path, NAMES_MAX_BYTES)
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a text file: {first_line(error)}") from error
