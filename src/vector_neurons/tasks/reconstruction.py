"""Saying which places lie inside the shape of a cloud."""

import math
import warnings
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import Cloud
from ..geometry.sampling import ball, box
from ..mesh import Mesh, describe_nonfinite, extract, iou
from ..models import OccupancyNetwork, store
from .task import Counts, Task, fixed, real

THRESHOLDS = tuple(i / 20 for i in range(1, 20))
PAPER = 0.2  # the threshold of the paper's table
FEWEST = 20  # points of a scan, at different places
RESOLVED = 2.0**12  # units of rounding that a scan must be large
FLAT = 1e-5  # of the largest extent of a scan, below which another is rounding
FRAMES = {"unit_ball": ball, "unit_cube": box}
STEEP = 100.0  # logits for a radius
# Places decoded at once. The memory of their features is then used again for those of the next, where larger tensors
# would be new pages each time, which take longer to get than to fill.
PLACES = 6_000
# How far from the middle of a scan a shape may go, in distances of the farthest point. What is seen of a ball from
# three radii away has its middle near the surface, and the other side 1.67 away from there.
REACH = 1.75


class Reconstruction(Task):
    """Binary cross-entropy of every query; the mean over shapes of the volumetric IoU, in percent.

    A query counts as inside if its probability is above a threshold. `iou` is that at `threshold`, which is to be
    chosen on validation shapes; None chooses the best of `THRESHOLDS` for the shapes counted, and reports it. `iou_0.2`
    is that at the paper's.
    """

    name = "reconstruction"
    metric = "iou"
    outputs = ("inside",)

    def __init__(self, threshold: float | None = None) -> None:
        if threshold is not None and threshold not in THRESHOLDS:
            raise ValueError(f"thresholds are 0.05, 0.1, ... 0.95, got {threshold}")
        self.threshold = threshold

    def logits(self, model: nn.Module, cloud: Cloud) -> Float[Tensor, "batch queries"]:
        """What the model says of the queries of a batch."""
        assert cloud.queries is not None  # a data set for reconstruction has some
        if torch.is_grad_enabled() or not isinstance(model, OccupancyNetwork):  # it may be a compiled one
            logits: Tensor = model(cloud.points, cloud.queries)
            return logits
        code, at_once = model.encode(cloud.points), max(1, PLACES // len(cloud.points))
        return torch.cat([model.decode(code, some) for some in torch.split(cloud.queries, at_once, dim=1)], dim=1)

    def loss(self, logits: Float[Tensor, "batch queries"], cloud: Cloud, smoothing: float = 0.0) -> Float[Tensor, ""]:
        """Mean cross-entropy over queries; smoothing moves the truth towards one half."""
        truth = _occupied(cloud).to(torch.float32)
        return F.binary_cross_entropy_with_logits(
            logits.float(), torch.lerp(truth, torch.full_like(truth, 0.5), smoothing)
        )

    def count(self, logits: Float[Tensor, "batch queries"], cloud: Cloud) -> Counts:
        """The sum of the shapes' IoUs at every threshold, and their number."""
        levels = torch.tensor([logit(t) for t in THRESHOLDS], device=logits.device)
        predicted, truth = logits.float() > levels.view(-1, 1, 1), _occupied(cloud)
        each = fixed(iou(predicted, truth.expand_as(predicted)))
        return {"iou": each.sum(-1), "shapes": torch.tensor(len(truth), device=logits.device)}

    def report(self, counts: Counts) -> dict[str, float]:
        """IoU in percent at the threshold, and at the paper's."""
        each = 100 * real(counts["iou"]) / counts["shapes"]
        chosen = int(each.argmax()) if self.threshold is None else THRESHOLDS.index(self.threshold)
        paper = each[THRESHOLDS.index(PAPER)].item()
        return {"iou": each[chosen].item(), f"iou_{PAPER}": paper, "threshold": THRESHOLDS[chosen]}


def logit(probability: float) -> float:
    """The logit of a probability."""
    return math.log(probability / (1 - probability))


def reconstruct(
    model: OccupancyNetwork,
    points: Float[Tensor, "points 3"],
    *,
    threshold: float | None = None,
    resolution: int = 128,
    refine: int = 2,
    batch: int = PLACES,
    seed: int = 0,
    **options: Any,
) -> Mesh:
    """The surface around what an occupancy network takes for the inside of a scan, in the scan's units and pose.

    `model`, in evaluation mode, is loaded from a run, and then knows how many points it was trained on, how they were
    normalised, and the best `threshold`. Of a scan with more points as many are drawn by `seed`: another density would
    be another kind of cloud. Further options are those of `mesh.extract`. The mesh of a turned scan is the turned
    mesh, up to its grid, if the neurons are vectors and clouds are normalised to the unit ball.
    """
    known = model.meaning if isinstance(model.meaning, store.Meaning) else store.Meaning()
    threshold = threshold if threshold is not None else known.threshold if known.threshold is not None else 0.5
    if not 0 < threshold < 1:
        raise ValueError(f"a threshold is a probability between 0 and 1, got {threshold}")
    if points.ndim != 2 or points.shape[1] != 3 or len(points) < FEWEST:
        raise ValueError(f"a scan has points (N, 3), at least {FEWEST} to tell a shape, got {tuple(points.shape)}")
    if known.normalisation not in FRAMES:
        raise ValueError(f"clouds were normalised by {known.normalisation!r}, but scans can be by {', '.join(FRAMES)}")
    like = next(model.parameters())
    number = len(points) if known.points is None else min(known.points, len(points))
    chosen = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:number]
    cloud = points[chosen.to(points.device)].double()
    _check_spread(cloud)
    centre, size = (x[0] for x in FRAMES[known.normalisation](cloud))  # in float64: a scan may lie far from its origin
    cloud = ((cloud - centre) / size).to(like)
    level, reach = logit(threshold), REACH * cloud.norm(dim=-1).amax()
    with torch.no_grad():
        code = model.encode(cloud.unsqueeze(0))

    def occupancy(places: Float[Tensor, "places 3"]) -> Float[Tensor, " places"]:
        # What the network makes up far away ends at a ball, which has no pose, and not at the sides of a box. Steep, so
        # that the cap is lower than logits at the ball only.
        cap = STEEP / reach * (reach - places.norm(dim=-1))
        return torch.minimum(model.decode(code, places.unsqueeze(0))[0] - level, cap)

    corner = reach.expand(3)
    surface = extract(occupancy, low=-corner, high=corner, resolution=resolution, refine=refine, batch=batch, **options)
    return replace(surface, vertices=surface.vertices * size.cpu() + centre.cpu())


def _check_spread(points: Float[Tensor, "points 3"]) -> None:
    """Refuse a scan that has no extent, and warn of one that has no depth."""
    if nonfinite := describe_nonfinite(points):
        raise ValueError(f"the scan is damaged: {nonfinite}")
    extent, far = (points.amax(0) - points.amin(0)).max().item(), points.abs().max().item()
    if extent == 0:
        raise ValueError("all points of the scan are at one place: it has no shape")
    if extent < RESOLVED * torch.finfo(torch.float64).eps * far:
        raise ValueError(
            f"the scan is only {extent:.0e} large and {far:.0e} away from the origin, where float64 cannot tell its "
            "points apart: move it to the origin before it is saved"
        )
    different = len(torch.unique(points, dim=0))
    if different < FEWEST:
        raise ValueError(
            f"the scan has points at {different} places only, at least {FEWEST} are needed to tell a shape"
        )
    centre, size = (x[0] for x in ball(points))
    long, wide, deep = torch.linalg.svdvals((points - centre) / size).tolist()
    if wide < FLAT * long:
        raise ValueError(
            "all points of the scan are on a line, or one of them is very far from all others: it has no shape"
        )
    if deep < FLAT * long:
        warnings.warn("all points of the scan lie in a plane: what is inside is a guess", stacklevel=3)


def _occupied(cloud: Cloud) -> Bool[Tensor, "batch queries"]:
    assert cloud.occupied is not None  # a data set for reconstruction knows its occupancy
    return cloud.occupied
