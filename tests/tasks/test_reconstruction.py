"""Reconstruction: loss and IoU against direct computations, and meshes that turn with their scan."""

import math

import igl
import numpy as np
import pytest
import torch
from pebble import pebble

import vector_neurons as vn
from vector_neurons.data import Cloud, Shapes
from vector_neurons.geometry import rotations
from vector_neurons.mesh import watertight
from vector_neurons.models import FrameNetOccupancy, OccupancyNetwork, store
from vector_neurons.tasks import Reconstruction, add, reconstruct, reconstruction
from vector_neurons.tasks.reconstruction import THRESHOLDS


def answered(n=12, queries=40):
    generator = torch.Generator().manual_seed(1)
    occupied = torch.rand(n, queries, generator=generator) < 0.3
    occupied[0] = False  # an empty shape
    logits = 2 * torch.randn(n, queries, generator=generator)
    logits[1] = -20.0  # nothing seen inside
    logits[0] = -20.0  # rightly
    cloud = Cloud(torch.zeros(n, 2, 3), queries=torch.zeros(n, queries, 3), occupied=occupied)
    return logits, cloud


def slow_iou(logits, occupied, threshold):
    total = 0.0
    for row, truth in zip(logits.tolist(), occupied.tolist(), strict=True):
        inside = [1 / (1 + math.exp(-x)) > threshold for x in row]
        both = sum(a and b for a, b in zip(inside, truth, strict=True))
        either = sum(a or b for a, b in zip(inside, truth, strict=True))
        total += both / either if either else 1.0
    return 100 * total / len(occupied)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_binary_cross_entropy(smoothing):
    logits, cloud = answered()
    expected = []
    for x, inside in zip(logits.flatten().tolist(), cloud.occupied.flatten().tolist(), strict=True):
        truth = (1 - smoothing) * inside + smoothing / 2
        p = 1 / (1 + math.exp(-x))
        expected.append(-truth * math.log(p) - (1 - truth) * math.log1p(-p))
    found = Reconstruction().loss(logits, cloud, smoothing).item()
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-5)


@pytest.mark.parametrize("local", [0, 4])
@pytest.mark.parametrize("queries", [1, 10, 37])
def test_without_gradients_few_query_points_are_decoded_at_once(monkeypatch, local, queries):
    model = OccupancyNetwork(code=24, hidden=24, decoder_hidden=16, k=6, local=local).double().eval()
    cloud = Cloud(torch.randn(2, 30, 3).double(), queries=torch.randn(2, queries, 3).double())
    expected, decode, asked = Reconstruction().logits(model, cloud), model.decode, []
    monkeypatch.setattr(reconstruction, "DECODE_BATCH", 20)
    monkeypatch.setattr(model, "decode", lambda code, some: asked.append(some.shape[1]) or decode(code, some))
    with torch.no_grad():
        torch.testing.assert_close(Reconstruction().logits(model, cloud), expected)
    assert sum(asked) == queries
    assert max(asked) <= 10


@pytest.mark.parametrize("threshold", [None, 0.2, 0.75])
def test_the_iou_is_the_mean_over_shapes(threshold):
    logits, cloud = answered()
    task = Reconstruction(threshold)
    report = task.report(task.count(logits, cloud))
    each = {t: slow_iou(logits, cloud.occupied, t) for t in THRESHOLDS}
    chosen = max(each, key=lambda t: each[t]) if threshold is None else threshold
    assert report["threshold"] == chosen
    assert report["iou"] == pytest.approx(each[chosen], rel=1e-6)
    assert report["iou_0.2"] == pytest.approx(each[0.2], rel=1e-6)


def test_counts_do_not_depend_on_batches():
    logits, cloud = answered()
    task, total = Reconstruction(), None
    for part in torch.arange(12).split(5):
        total = add(total, task.count(logits[part], cloud.map(lambda x, part=part: x[part])))
    assert task.report(total) == task.report(task.count(logits, cloud))


def test_a_threshold_that_is_not_counted_is_refused():
    with pytest.raises(ValueError, match="thresholds are"):
        Reconstruction(0.123)


@pytest.fixture(scope="module")
def network():
    return pebble()


def farthest(first, second):
    """Largest distance of the vertices of one mesh from the triangles of another."""
    squared = igl.point_mesh_squared_distance(
        np.ascontiguousarray(first.vertices.numpy()), second.vertices.numpy(), second.faces.numpy()
    )[0]
    return float(np.sqrt(squared).max())


@pytest.mark.parametrize(("shipped", "number"), [(False, 300), (True, 3000)])
def test_the_mesh_of_a_turned_scan_is_the_turned_mesh(network, shipped, number):
    """In any units, anywhere: within a thousandth of its size, at 64³."""
    network = vn.pretrained("reconstruction") if shipped else network
    points = Shapes("test", size=30, points=number)[0].points.double()
    R = rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(4), dtype=torch.float64)[0]
    made = reconstruct(network, points, resolution=64)
    turned = reconstruct(network, 700 * points @ R.mT + 5000, resolution=64)
    back = type(made)((turned.vertices - 5000) / 700 @ R, turned.faces)
    size = float((made.vertices.amax(0) - made.vertices.amin(0)).max())
    assert watertight(made)
    assert watertight(turned)
    assert max(farthest(back, made), farthest(made, back)) <= 1e-3 * size


def test_a_scalar_network_has_other_logits_in_another_pose():
    model = OccupancyNetwork(neurons="scalar", code=48, hidden=48, decoder_hidden=32).eval()
    with torch.no_grad():
        model.decoder.logits.bias.fill_(0)
    points = Shapes("test", size=30, points=300)[0].points
    R = rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(4))[0]
    code, turned = model.encode(points[None]), model.encode((points @ R.mT)[None])
    queries = torch.rand(1, 50, 3) - 0.5
    found, other = model.decode(code, queries), model.decode(turned, queries @ R.mT)
    assert (found - other).abs().max() > 0.01 * found.abs().max()


def test_a_scan_of_more_points_is_thinned_by_the_seed(network):
    points = Shapes("test", size=30, points=200)[3].points
    one, again, other = (reconstruct(network, points, resolution=32, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.vertices, again.vertices)
    assert one.vertices.shape != other.vertices.shape or not torch.equal(one.vertices, other.vertices)


@pytest.mark.parametrize(
    ("options", "words"), [({"threshold": 1.5}, "between 0 and 1"), ({"resolution": 50}, "doubled")]
)
def test_what_cannot_be_asked_is_refused(network, options, words):
    with pytest.raises(ValueError, match=words):
        reconstruct(network, torch.randn(300, 3), **options)


@pytest.mark.parametrize("shape", [(3, 3), (1, 300, 3), (300, 2)])
def test_what_is_no_scan_is_refused(network, shape, unchecked):
    with pytest.raises(ValueError, match="a scan needs points"):
        reconstruct(network, torch.randn(shape))


def test_the_ball_around_a_scan_does_not_move_the_surface(network):
    """A steep field that reaches nearly to the ball: its surface is where it is, refined or not."""
    points = torch.nn.functional.normalize(torch.randn(80, 3, generator=torch.Generator().manual_seed(1)), dim=-1)

    class Ball(OccupancyNetwork):
        def decode(self, code, queries):
            return (200 * (0.95 - queries.norm(dim=-1))).clamp(-12, 12)

    model = Ball(code=24, hidden=24, k=8).eval()
    model.metadata = store.Metadata(points=80)
    center = points.double().mean(0)
    radius = (points.double() - center).norm(dim=-1).amax()
    for refine in (0, 2):
        made = reconstruct(model, points, refine=refine)
        assert abs((made.vertices - center).norm(dim=-1).mean() / radius - 0.95) < 5e-4


class Ball(FrameNetOccupancy):
    """A ball of radius 0.5 about the origin, sharp where x > 0; it keeps what it was given."""

    def encode(self, points, lengths=None, normals=None):
        self.given = points, normals

    def decode(self, code, queries):
        return torch.where(queries[..., 0] > 0, 400.0, 4.0) * (0.5 - queries.norm(dim=-1))


@pytest.fixture
def ball():
    # In float64 already, so that `reconstruct` uses the network itself and not a copy.
    model = Ball(k=4, centers=(4,), width=8, decoder_hidden=4, near=(2, 2), vectors=2).double().eval()
    model.metadata = store.Metadata(points=200)
    return model


def sphere(number, seed=0):
    points = torch.randn(number, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(points, dim=-1)


def test_confidence_is_high_where_the_occupancy_is_sharp(ball):
    made = reconstruct(ball, sphere(200), resolution=64)
    sharp = made.vertices[:, 0] > 0.05
    assert made.confidence[sharp].min() > 0.99
    blurred = made.confidence[made.vertices[:, 0] < -0.05]
    # A step of 0.04 changes the logit by 0.16: both sides are nearly as likely inside as outside.
    assert blurred.numpy() == pytest.approx(0.5398**2, abs=0.01)


def test_more_points_than_in_training_are_averaged(ball):
    noise = torch.randn(20_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scan = sphere(20_000) + 0.05 * noise
    reconstruct(ball, scan, resolution=32)
    points, normals = ball.given
    assert points.shape == (1, 200, 3)
    assert normals is None
    radii = (points[0] - points[0].mean(0)).norm(dim=-1)
    assert radii.std() / radii.mean() < 0.02  # of the noise, 0.05, a tenth is left: a hundred points each


def test_normals_reach_networks_that_take_them(ball):
    scan = sphere(1000)
    reconstruct(ball, 3 * scan + 7, normals=scan, resolution=32)
    points, normals = ball.given
    cosine = (torch.nn.functional.normalize(points, dim=-1) * normals).sum(-1)
    assert cosine.min() > 0.99


def test_normals_are_those_of_the_points(ball, unchecked):
    with pytest.raises(ValueError, match=r"normals \(5, 3\) are not those of points \(100, 3\)"):
        reconstruct(ball, sphere(100), normals=sphere(5))


def test_networks_that_take_no_normals_do_not_get_them(network):
    scan = sphere(100).float()
    with_normals, without = (reconstruct(network, scan, normals=n, resolution=32) for n in (scan, None))
    assert torch.equal(with_normals.vertices, without.vertices)


def test_the_soft_iou_loss_is_the_equation():
    cloud = Shapes("test", size=3, points=16, queries=50).batch(torch.arange(3))
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).requires_grad_()
    entropy, both = (Reconstruction(iou_loss=weight).loss(logits, cloud) for weight in (0.0, 0.5))
    expected = 0.0
    for row, truth in zip(logits.sigmoid(), cloud.occupied, strict=True):
        shared = sum((p for p, t in zip(row, truth, strict=True) if t), torch.zeros(()))
        union = sum((1.0 if t else p for p, t in zip(row, truth, strict=True)), torch.zeros(()))
        expected = expected + (1 - (1 + shared) / (1 + union)) / 3
    torch.testing.assert_close(both, entropy + 0.5 * expected)
    assert torch.autograd.grad(both, logits)[0].isfinite().all()
