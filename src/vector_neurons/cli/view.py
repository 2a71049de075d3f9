"""`vn view FILE|RUN|shapes`: an HTML page to turn shapes in, beside what networks answer; or a picture of shapes."""

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from .. import kernels
from .._files import first_line, write_file
from ..data import Shapes
from ..data.families import FAMILIES
from ..inference import view
from ..training.config import MAX_THREADS
from ..viz import gallery
from . import UserError, check_out
from .progress import progress_of
from .train import one_line

MAX_CLOUDS_PER_CLASS, MAX_POINTS = 32, 100_000
MAX_POSES, MAX_SHAPES = 5000, 40


def run(
    source: Annotated[str, tyro.conf.arg(metavar="FILE|RUN|shapes")],
    /,
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("view.html"),
    model: str | None = None,
    compare: str | None = None,
    poses: int = 600,
    shapes: int = 6,
    category: str | None = None,
    drop_nan: bool = False,
    threads: int | None = None,
    png: Path | None = None,
    each: int = 2,
    points: int = 8000,
    split: Literal["train", "val", "test"] = "train",
    seed: int = 0,
) -> int:
    """Write an HTML page in which shapes are turned by hand, beside what networks answer to them in that pose.

    Careful: of a run that was trained with --model my_file.py:MyNet, this EXECUTES the copy of that file in its folder.

    Args:
        source: a mesh or a cloud (.ply .obj .stl .off .glb .xyz .pts .csv .pcd .npy .npz); the folder of a run, for
            test shapes of its data; or `shapes`, the embedded set.
        out: the page to write.
        model: name of a model in the package, or folder of a run or of a saved model; by default that of the run, and
            `classification` for a file.
        compare: a second network, of a run of the same classes: one of scalar neurons, say.
        poses: in how many poses the networks are run.
        shapes: how many test shapes of a run.
        category: what the shape in a file is, which a model of part segmentation has to be told.
        drop_nan: drop points of clouds that are NaN or infinite, as depth cameras write them.
        threads: CPU threads.
        png: shapes: instead of a page, write a picture of every class to this file.
        each: of the picture: how many clouds of each class.
        points: of the picture: points of a cloud.
        split: of the picture: which split of the set.
        seed: seed of the set, and of the points sampled from a file.
    """
    if png is not None:
        return _picture(source, png, each, points, split, seed)
    for flag, value, most in (("--poses", poses, MAX_POSES), ("--shapes", shapes, MAX_SHAPES)):
        if not 1 <= value <= most:
            raise UserError(f"{flag} takes 1 to {most:,}, got {value:,}")
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UserError(f"--threads takes 1 to {MAX_THREADS:,}, got {threads}")
    if threads is not None:
        torch.set_num_threads(threads)
    if source != "shapes" and not Path(source).exists():
        raise UserError(f"there is no file or folder {source}: give a mesh, a cloud, the folder of a run, or shapes")
    check_out(out, (".html", ".htm"), "a page")
    kernels.prefer_built()  # a few shapes take less time than compiling the kernels
    options: dict[str, Any] = {"poses": poses, "shapes": shapes, "category": category, "drop_nan": drop_nan}
    try:
        with one_line(), progress_of(verb="ran", unit="poses") as progress:
            page = view(source, model, compare, seed=seed, progress=progress, **options)
    except (ValueError, ImportError, RuntimeError) as error:
        raise UserError(first_line(error)) from error
    try:
        write_file(out, page)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or first_line(error)}") from error
    print(f"{out}: {len(page.encode()) / 1e6:.1f} MB, open it in a browser")
    return 0


def _picture(source: str, png: Path, each: int, points: int, split: str, seed: int) -> int:
    """Plot clouds of every class, parts in color, to a PNG file."""
    if source != "shapes":
        raise UserError(f"--png draws the embedded set: vn view shapes --png {png}")
    if not 1 <= each <= MAX_CLOUDS_PER_CLASS:
        raise UserError(f"--each takes 1 or more, up to {MAX_CLOUDS_PER_CLASS}, got {each}")
    if points > MAX_POINTS:
        raise UserError(f"--points takes at most {MAX_POINTS:,}, got {points:,}")
    check_out(png, (".png",), "a picture")
    try:
        data = Shapes(split, size=each * len(FAMILIES), points=points, seed=seed, mirrors=True)
        by_class = torch.arange(len(data)).view(each, -1).T.flatten()
        clouds, labels = data.batch(by_class), data.labels[by_class]
        assert clouds.parts is not None  # shapes have parts
        within = (data.parts_of.cumsum(1) - 1)[labels[:, None], clouds.parts]  # numbered within their class
        titles = [data.classes[label] for label in labels]
        figure = gallery(clouds.points, within, titles, normals=clouds.normals, columns=8)
    except (ValueError, ImportError) as error:
        raise UserError(str(error)) from error
    try:
        figure.savefig(png, dpi=80)
    except OSError as error:
        raise UserError(f"cannot write {png}: {error.strerror or error}") from error
    print(f"{png}: {len(titles)} clouds of {source}")
    return 0
