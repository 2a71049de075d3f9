"""A page that shows shapes and what networks answer to them in every pose: `vn view`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..data import Dataset, Shapes
from ..geometry.rotations import axis_angle, evenly_spaced
from ..mesh import sample
from ..models import OccupancyModel, store
from ..models.base import prepare
from ..models.inputs import Inputs, inputs_of
from ..tasks import reconstruct
from ..training import batches, checkpoint, factory, find_run, read_config, run
from ..viz import Answers, Exhibit, Picture, view_page
from .inputs import Source, name_source, read_mesh, sample_for
from .predict import PredictError, check_model, find_model

POSES = 600
UPRIGHT = 24  # of the poses are about the vertical axis, where networks that know only upright shapes are right
BATCH = 20  # poses that a network gets at once
MAX_POINTS, MAX_FACES = 4000, 20_000  # of a picture
SHAPES_POINTS = 4000  # of the embedded shapes, if no network says how many
QUERIES, QUERY_SPREAD = 512, 0.05  # query points of an occupancy network, and their distance from the cloud
RESOLUTION = 64  # of reconstructed meshes
CHANGES = {
    "classification": "largest change of a probability",
    "segmentation": "largest change of a probability of any point",
    "reconstruction": f"largest change of the occupancy at {QUERIES} query points, which turn with the input",
}
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Input:
    """A shape for the page: the cloud that each network gets, and what is known of it."""

    exhibit: Exhibit  # without answers
    clouds: Sequence[Float[Tensor, "_ 3"]]
    category: int | None = None
    own: Bool[Tensor, " parts"] | None = None  # which parts are those of the category


def view(
    source: Source,
    model: nn.Module | str | Path | None = None,
    compare: nn.Module | str | Path | None = None,
    *,
    poses: int = POSES,
    shapes: int = 6,
    category: str | None = None,
    drop_nan: bool = False,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> str:
    """Build an HTML page in which the input is turned by hand, beside the answers of one or two networks.

    Args:
        source: `"shapes"`, the embedded set; the folder of a run, for test shapes of its data; or a mesh or a cloud, as
            for `vn.predict`.
        model: a network, a folder, or a name of `vn.pretrained`; by default the run's own, `"classification"` for a
            mesh or a cloud, and none for shapes.
        compare: a second network, for the same classes.
        poses: in which the networks are run.
        shapes: how many test shapes of a run.
        category: what the shape is, which part segmentation has to be told.
        drop_nan: leave out points of a cloud that are NaN or infinite.
        seed: of the points that are sampled.
        progress: is called with the number of poses done, and of all.

    >>> page = vn.inference.view(torch.rand(600, 3), vn.models.FrameNet(3, k=8, width=16), poses=4)
    >>> page.startswith("<!doctype html>")
    True
    """
    given = [] if model is None else [_network(model)]
    named = isinstance(source, str | Path)
    folder = find_run(Path(source)) if named and Path(source).is_dir() else None
    if folder is not None:
        given = given or [_run_network(folder)]
    elif model is None and not (named and str(source) == "shapes"):
        given = [_network("classification")]
    networks = given + ([] if compare is None else [_network(compare)])
    if compare is not None and not given:
        raise PredictError("there is nothing to compare with: give a model, too")
    task = _check_networks(networks)
    if folder is not None:
        title, inputs = f"Test shapes of {folder.resolve().name}", _run_inputs(folder, len(networks), task, shapes)
    elif named and str(source) == "shapes":
        title, inputs = "Embedded shapes", _shapes_inputs(networks, task, seed)
    else:
        title = Path(source).name if named else "A shape"
        inputs = [_file_input(source, networks, task, title, category, drop_nan, seed)]
    rotations = pose_grid(poses)
    done, total = 0, len(inputs) * len(networks) * poses

    def count(some: int) -> None:
        nonlocal done
        done += some
        progress(done, total)

    exhibits = []
    for one in inputs:
        answers = [
            answer(network, cloud, rotations, category=one.category, own=one.own, progress=count)
            for network, cloud in zip(networks, one.clouds, strict=True)
        ]
        exhibits.append(_with_answers(one.exhibit, answers))
    quantity = "share of the points" if task == "segmentation" else "probability"
    return view_page(
        f"{title}, turned by hand", exhibits, rotations if networks else None, quantity=quantity, change=CHANGES[task]
    )


def pose_grid(poses: int) -> Float[Tensor, "poses 3 3"]:
    """Rotations in which networks are run: the identity first, some about the vertical axis, the rest evenly spaced.

    >>> pose_grid(100).shape
    torch.Size([100, 3, 3])
    """
    upright = min(UPRIGHT, poses)
    angles = torch.arange(upright, dtype=torch.float64) * (2 * torch.pi / upright)
    vertical = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64).expand(upright, 3)
    return torch.cat([axis_angle(vertical, angles), evenly_spaced(poses - upright + 1, dtype=torch.float64)[1:]])


@torch.no_grad()
def answer(
    network: nn.Module,
    cloud: Float[Tensor, "points 3"],
    rotations: Float[Tensor, "poses 3 3"],
    *,
    name: str | None = None,
    category: int | None = None,
    own: Bool[Tensor, " parts"] | None = None,
    progress: Callable[[int], None] = lambda poses: None,
) -> Answers:
    """Run a network on a cloud in every pose.

    Args:
        network: a classifier, a part segmenter or an occupancy network.
        cloud: normalized as in its training.
        rotations: the poses; changes are measured from the first one.
        name: of the network on the page; by default its class and its kind of neurons.
        category: of the cloud, for part segmentation.
        own: which parts are those of this category; by default all.
        progress: is called with the number of poses of each batch.

    Shape:
        - cloud: `(N, 3)`
        - rotations: `(poses, 3, 3)`
        - own: `(parts,)`
    """
    network, name = prepare(network), name or _name(network)
    device = next((p.device for p in network.parameters()), torch.device("cpu"))

    def turned() -> Iterator[tuple[Tensor, Tensor]]:
        for some in torch.split(rotations.double(), BATCH):
            # In float64: rounding of the rotation would be mistaken for an error of the network.
            yield some, (cloud.double() @ some.mT).float().to(device)
            progress(len(some))

    if isinstance(network, OccupancyModel):
        queries = _queries(cloud)
        occupancy = [network(clouds, (queries @ some.mT).float().to(device)).cpu() for some, clouds in turned()]
        surface = reconstruct(network, cloud, resolution=RESOLUTION, faces=MAX_FACES)
        picture = None if surface.is_cloud else Picture(surface.vertices.float(), surface.faces)
        return Answers(name, _change(torch.cat(occupancy).double().sigmoid()), picture=picture)
    if category is None:
        logits = torch.cat([network(clouds).cpu() for _, clouds in turned()]).double()
        calibration = getattr(network, "calibration", None)
        probabilities = logits.softmax(-1) if calibration is None else calibration.probabilities(logits)
        return Answers(name, _change(probabilities), probabilities)
    own = torch.ones(len(store.metadata_of(network).classes or ()), dtype=torch.bool) if own is None else own
    given = torch.tensor(category, device=device)
    of_points = torch.cat([network(clouds, given.expand(len(clouds))).cpu()[..., own] for _, clouds in turned()])
    parts = of_points.argmax(-1)
    shares = torch.stack([(parts == part).double().mean(-1) for part in range(of_points.shape[-1])], dim=-1)
    return Answers(name, _change(of_points.double().softmax(-1)), shares, Picture(cloud, parts=parts))


def _with_answers(exhibit: Exhibit, answers: Sequence[Answers]) -> Exhibit:
    """The shape with its answers; classes of networks that do not name them are numbered."""
    p = answers[0].probabilities if answers else None
    classes = exhibit.classes or (() if p is None else [f"class {i}" for i in range(p.shape[1])])
    return replace(exhibit, classes=classes, answers=answers)


def _change(outputs: Float[Tensor, "poses *outputs"]) -> Float[Tensor, " poses"]:
    return (outputs - outputs[0]).abs().flatten(1).amax(1)


def _queries(cloud: Float[Tensor, "points 3"]) -> Float[Tensor, "queries 3"]:
    """Query points near the surface, where the occupancy changes most."""
    generator = torch.Generator().manual_seed(0)
    near = cloud[torch.randint(len(cloud), (QUERIES,), generator=generator)].double()
    return near + QUERY_SPREAD * torch.randn(QUERIES, 3, generator=generator, dtype=torch.float64)


def _name(network: nn.Module) -> str:
    neurons = getattr(network, "arguments", {}).get("neurons")
    return type(network).__name__ + (f", {neurons} neurons" if isinstance(neurons, str) else "")


def _network(model: nn.Module | str | Path) -> nn.Module:
    """A network as given, or that of a run or a name."""
    if isinstance(model, str | Path) and str(model) not in store.pretrained_names():
        folder = find_run(Path(model))
        if (folder / store.BEST).is_dir() and (folder / run.CONFIG).is_file():
            return _run_network(folder)
    return find_model(model)


def _run_network(folder: Path) -> nn.Module:
    return checkpoint.load(folder / store.BEST, factory.user_class(read_config(folder)))


def _check_networks(networks: Sequence[nn.Module]) -> str:
    """Refuse networks that do not go together, or need more than points; gives their task."""
    found = []
    for network in networks:
        if any(inputs_of(getattr(network, "arguments", {}).get("inputs", Inputs()))):
            raise PredictError(f"this {type(network).__name__} needs normals or other inputs of each point")
        known = store.metadata_of(network)
        parts = "segmentation" if known.categories is not None else "classification"
        found.append(("reconstruction" if isinstance(network, OccupancyModel) else parts, list(known.classes or ())))
    if len(found) == 2 and found[0] != found[1]:
        (task, _), (other, _) = found
        what = "other classes" if task == other else f"{other}, the other for {task}"
        raise PredictError(f"the two networks cannot be compared: one is for {what}")
    return found[0][0] if found else "classification"


def _run_inputs(folder: Path, networks: int, task: str, shapes: int) -> list[Input]:
    """Test shapes of a run, spread over its test set, with the points of its evaluation."""
    config = read_config(folder)
    data = factory.open_dataset(config.data, "test")
    chosen = torch.linspace(0, len(data) - 1, min(shapes, len(data))).round().long()
    clouds = batches.evaluation_batch(data, chosen, config.data, "I", config.runtime.seed)
    inputs = []
    for i, index in enumerate(chosen.tolist()):
        label, parts = int(data.labels[index]), None if clouds.parts is None else clouds.parts[i]
        title = f"{data.classes[label]} (number {index} of the test set)"
        inputs.append(_labeled_input(data, clouds.points[i], parts, label, title, task, networks))
    return inputs


def _shapes_inputs(networks: Sequence[nn.Module], task: str, seed: int) -> list[Input]:
    """One embedded shape of every class that the networks know; of all, if there are none."""
    known = store.metadata_of(networks[0]) if networks else None
    classes = None if known is None else known.categories if task == "segmentation" else known.classes
    if classes is not None and task != "reconstruction":
        classes = [name for name in classes if name in Shapes(size=1, points=1, mirrors=True).classes]
        if not classes:
            raise PredictError("the network knows none of the classes of shapes: give one that was trained on them")
    points = (known.points if known else None) or SHAPES_POINTS
    data = Shapes("test", points=points, seed=seed, families=classes, mirrors=True)
    clouds = data.batch(torch.arange(len(data.classes)))
    assert clouds.parts is not None  # shapes have parts
    return [
        _labeled_input(data, clouds.points[i], clouds.parts[i], i, name, task, len(networks))
        for i, name in enumerate(data.classes)
    ]


def _labeled_input(
    data: Dataset,
    cloud: Float[Tensor, "points 3"],
    parts: Tensor | None,
    label: int,
    title: str,
    task: str,
    networks: int,
) -> Input:
    """An input of a data set, its true parts in color."""
    own = None if data.parts_of is None else data.parts_of[label]
    names = [] if own is None else [name for name, is_own in zip(data.parts, own, strict=True) if is_own]
    within = None if parts is None or own is None else (own.cumsum(0) - 1)[parts]  # numbered within the class
    exhibit = Exhibit(
        title,
        Picture(cloud, parts=within),
        caption="true parts" if within is not None else "input",
        classes=names if task == "segmentation" else data.classes,
        truth=data.classes[label] if task == "classification" else None,
        parts=names if within is not None else (),
    )
    return Input(exhibit, [cloud] * networks, label if task == "segmentation" else None, own)


def _file_input(
    source: Source,
    networks: Sequence[nn.Module],
    task: str,
    title: str,
    category: str | None,
    drop_nan: bool,
    seed: int,
) -> Input:
    """A mesh or a cloud, sampled for each network as in its training."""
    chosen = None if task == "reconstruction" else check_model(networks[0], category)
    with name_source(source):
        mesh = read_mesh(source, drop_nan=drop_nan)
        sampled = []
        for network in networks:
            sampled.append(sample_for(mesh, store.metadata_of(network), seed=seed))
        generator = torch.Generator().manual_seed(seed)
        vertices, faces = mesh.vertices, mesh.faces
        if len(faces) > MAX_FACES:
            (vertices, _), faces = sample(mesh, MAX_POINTS, generator=generator), faces[:0]
        elif mesh.is_cloud:
            vertices = vertices[torch.randperm(len(vertices), generator=generator)[:MAX_POINTS]]
    clouds = [one.clouds[0] for one in sampled]
    known = store.metadata_of(networks[0])
    names, own = list(known.classes or ()), None
    if chosen is not None and known.categories is not None:
        own = torch.tensor([name.startswith(f"{known.categories[chosen]} ") for name in names])
        own = own if own.any() else torch.ones(len(names), dtype=torch.bool)
        names = [name for name, is_own in zip(names, own, strict=True) if is_own]
    picture = Picture(((vertices - sampled[0].center) / sampled[0].size).float(), faces if len(faces) else None)
    caption = "input"
    if task == "reconstruction":
        picture, caption = Picture(clouds[0]), f"input: {len(clouds[0])} points"
    exhibit = Exhibit(title, picture, caption, classes=names, parts=names if chosen is not None else ())
    return Input(exhibit, clouds, chosen, own)
