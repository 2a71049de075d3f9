"""`vn convert old.pth new/`: the authors' checkpoints as models of this library."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from .._files import check_regular, first_line
from ..models import OccupancyNetwork, reference, store
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
    """Write a checkpoint of the repositories vnn, vnn-pc or vnn-neural-implicits as a folder for `vector_neurons.load`.

    Args:
        checkpoint: the authors' file: VN-PointNet or VN-DGCNN, or their scalar baselines, classification or part
            segmentation, or one of the three occupancy networks.
        folder: where to write model.safetensors and config.json.
        k: neighbours it was trained with; by default the paper's.
        legacy: keep the authors' absolute eps, for identical outputs; --no-legacy follows the paper.
        class_names: a text file with the name of one output a line.
        up: the axis that pointed up in its training data; the authors' ModelNet40 and ShapeNet-Part have y up.
    """
    try:
        names = None if class_names is None else _lines(class_names)
        model = reference.load(checkpoint, k=k, legacy=legacy)
        outputs = model.arguments.get("classes", model.arguments.get("parts", 1))
        if names is not None and len(names) != outputs:
            raise UserError(f"{class_names} names {len(names)} outputs, the model has {outputs}")
        meaning = store.Meaning(classes=names, up=up)
        if isinstance(model, OccupancyNetwork):  # OccNet's frame, and the paper's points and threshold
            meaning = replace(meaning, normalisation="unit_cube", points=300, threshold=0.2)
        store.save(model, folder, meaning)
    except OSError as error:
        raise UserError(first_line(error)) from error
    except ValueError as error:
        raise UserError(str(error)) from error
    count = sum(p.numel() for p in model.parameters())
    pool = f", pool {model.arguments['pool']}" if model.arguments.get("pool") else ""
    print(f"{folder}: {type(model).__name__} with {outputs} outputs, {count:,} parameters{pool}")
    return 0


def _lines(path: Path) -> list[str]:
    check_regular(path, NAMES_MAX_BYTES)
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text file: {first_line(error)}") from error
