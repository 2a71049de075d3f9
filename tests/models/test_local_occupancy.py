"""FrameNetOccupancy: its equations against slow loops, its symmetries, any number of points, normals."""

import pytest
import torch
from torch.nn import functional as F

from vector_neurons import kernels
from vector_neurons.geometry import rotations
from vector_neurons.models import FrameNetOccupancy, OccupancyNetwork, store
from vector_neurons.models.local_occupancy import (
    MAX_OFFSET,
    MIN_SPACING,
    NearPoints,
    Scale,
    WholeCloud,
    surroundings,
)
from vector_neurons.nn.hybrid import Features
from vector_neurons.testing import relative_error

SMALL = {"k": 6, "centers": (24, 8), "width": 16, "decoder_hidden": 16, "near": (5, 4, 3), "vectors": 6}


def network(dtype=torch.float64, **changes):
    torch.manual_seed(0)
    return FrameNetOccupancy(**{**SMALL, **changes}).to(dtype).eval()


def draw(*shape, seed=1, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def rotation(dtype=torch.float64):
    return rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)[0].to(dtype)


MIRROR = torch.diag(torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64))
CLOUDS = {
    "generic": draw(2, 60, 3),
    "grid": torch.cartesian_prod(*[torch.arange(4.0, dtype=torch.float64)] * 3).expand(2, -1, -1),
    "duplicates": draw(2, 30, 3).repeat(1, 2, 1),
    "flat": draw(2, 60, 3) * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64),
    "few": draw(2, 6, 3),
}


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("with_normals", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_rotations_mirrors_translations_and_scale_change_nothing(cloud, with_normals, dtype, bound):
    model, x, queries = network(dtype), CLOUDS[cloud].to(dtype), draw(2, 20, 3, seed=2, dtype=dtype)
    normals = F.normalize(draw(*x.shape, seed=4, dtype=dtype), dim=-1) if with_normals else None
    found = model(x, queries, None, normals)
    for A in (rotation(dtype), rotation(dtype) @ MIRROR.to(dtype)):
        turned = None if normals is None else normals @ A.mT
        assert relative_error(model(x @ A.mT, queries @ A.mT, None, turned), found) <= bound
    # Of a grid in float32, a translation that is not exact moves ties.
    moved = model(4 * x + 2, 4 * queries + 2, None, normals)
    assert relative_error(moved, found) <= (bound if dtype == torch.float64 else 1e-3)


def test_it_sees_what_it_should():
    model, x, queries = network(), draw(2, 60, 3), draw(2, 20, 3, seed=2)
    normals = F.normalize(draw(2, 60, 3, seed=4), dim=-1)
    found = model(x, queries, None, normals)
    assert relative_error(model(x @ rotation().mT, queries, None, normals), found) > 1e-2
    assert relative_error(model(x, queries, None, -normals), found) > 1e-3
    assert relative_error(model(x, queries), found) > 1e-3
    assert relative_error(model(x * torch.tensor([1.0, 1.0, 1.5]).double(), queries, None, normals), found) > 1e-2


@pytest.mark.parametrize("body", ["eager", "auto"])
def test_clouds_points_and_queries_are_independent(body):
    with kernels.using(body):
        model, x, queries = network(), draw(3, 60, 3), draw(3, 20, 3, seed=2)
        found = model(x, queries)
        order, some = torch.randperm(60), torch.randperm(20)
        torch.testing.assert_close(model(x[:, order], queries), found)
        torch.testing.assert_close(model(x, queries[:, some]), found[:, some])
        torch.testing.assert_close(model(x[1:2], queries[1:2]), found[1:2])
        code = model.encode(x)
        torch.testing.assert_close(torch.cat([model.decode(code, q) for q in queries.split(7, dim=1)], dim=1), found)


def test_padding_is_not_part_of_a_cloud():
    model, x, queries = network(), draw(2, 60, 3), draw(2, 20, 3, seed=2)
    lengths = torch.tensor([60, 41])
    padded = torch.cat([x, 50 * draw(2, 9, 3, seed=7)], dim=1)
    found = model(padded, queries, lengths)
    for i, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(found[i : i + 1], model(x[i : i + 1, :n], queries[i : i + 1]))


@pytest.mark.parametrize("points", [6, 7, 8, 23, 24, 25, 3000])
def test_any_number_of_points(points):
    assert network()(draw(1, points, 3), draw(1, 5, 3)).isfinite().all()


def test_coarse_levels_see_as_much_of_a_denser_cloud():
    # Of a network with few centers, the last level has as many points as centers, whatever the cloud.
    scales = network().encode(draw(1, 500, 3)).scales
    assert [scale.points.shape[1] for scale in scales] == [500, 24, 8]


def test_surroundings_project_onto_the_normal():
    tangent, normal = draw(4, 50, 1, 2), F.normalize(draw(4, 3), dim=-1)
    basis = torch.linalg.svd(normal.unsqueeze(1)).Vh[:, 1:]  # of the plane
    offset = (tangent.squeeze(2).unsqueeze(1) @ basis.unsqueeze(1)).view(1, 4, 50, 3)
    spacing, onto = surroundings(offset)
    values, frame = torch.linalg.eigh(torch.stack([torch.cov(x.T, correction=0) for x in offset[0]]))
    values = values / values.sum(-1, keepdim=True)
    expected = 4 * (values[:, 1] * values[:, 2])[:, None, None] * frame[..., :1] @ frame[..., :1].mT
    torch.testing.assert_close(onto[0], expected)
    torch.testing.assert_close(
        onto[0] @ normal.unsqueeze(-1), onto[0].diagonal(dim1=1, dim2=2).sum(-1)[:, None, None] * normal.unsqueeze(-1)
    )
    torch.testing.assert_close(spacing[0, :, 0], offset[0].norm(dim=-1).square().mean(-1).sqrt())
    assert surroundings(torch.zeros(1, 1, 5, 3))[0].item() == pytest.approx(MIN_SPACING)


def test_what_a_query_asks_is_the_equation():
    torch.manual_seed(0)
    near = NearPoints((5, 4), 8, 3, 6).double()
    scale = Scale(
        draw(1, 9, 3), draw(1, 9, 8, seed=2), draw(1, 9, 3, 6, seed=3), draw(1, 9, 1, seed=4).abs() + 0.1, None
    )
    queries = draw(1, 4, 3, seed=5)
    for q, found in zip(queries[0], near(scale, queries)[0], strict=True):
        messages, scores = [], []
        nearest = sorted(range(9), key=lambda m: (q - scale.points[0, m]).norm().item())[:3]
        for m in nearest:
            r, h = q - scale.points[0, m], scale.spacing[0, m]
            seen = torch.stack([*(r @ scale.vectors[0, m]), r.norm()])
            both = torch.cat([4 * seen, (seen / h).clamp(-MAX_OFFSET, MAX_OFFSET)])
            e = (near.seen.weight @ both + scale.own[0, m]).relu()
            e = (near.hidden.weight @ e + near.hidden.bias).relu()
            messages.append(e)
            scores.append(near.score.weight @ e + near.score.bias - torch.log1p((r.norm() / h).clamp(max=MAX_OFFSET)))
        weights = torch.stack(scores).softmax(0)  # neighbors, heads
        mixed = sum(w.repeat_interleave(2) * e for w, e in zip(weights, messages, strict=True))
        torch.testing.assert_close(found, near.out.weight @ mixed + near.out.bias)


def test_what_a_query_sees_of_the_whole_cloud_is_the_equation():
    torch.manual_seed(0)
    whole = WholeCloud((5, 4), 8, (12, 6)).double().eval()
    x, queries = Features(draw(1, 9, 5), draw(1, 9, 3, 4, seed=2)), draw(1, 4, 3, seed=3)
    s, v = whole.embed(x)
    pooled = torch.cat([torch.stack([column.max() for column in s[0].T]), s[0].sum(0) / 9])
    Z = sum(v[0]) / 9
    for q, found in zip(queries[0], whole(whole.prepare(x, None), queries)[0], strict=True):
        seen = 4 * torch.stack([*(q @ Z), q.norm()])
        e = (whole.seen.weight @ seen + whole.own.weight @ pooled + whole.own.bias).relu()
        e = (whole.hidden.weight @ e + whole.hidden.bias).relu()
        torch.testing.assert_close(found, whole.out.weight @ e + whole.out.bias)


def test_far_queries_see_the_whole_cloud():
    model, x, queries = network(), draw(1, 60, 3), draw(1, 4, 3, seed=2)
    for near in model.near:
        torch.nn.init.zeros_(near.out.weight)
    assert relative_error(model(x * torch.tensor([1.0, 1.0, 1.5]).double(), queries), model(x, queries)) > 1e-3


def test_gradients():
    model = network(width=8, centers=(8, 4), near=(3, 3, 3)).train()
    x, queries = draw(2, 12, 3).requires_grad_(), draw(2, 3, 3, seed=2).requires_grad_()
    model(x, queries).sum().backward()
    assert x.grad.isfinite().all()
    assert queries.grad.abs().sum() > 0
    unused = [name for name, p in model.named_parameters() if p.grad is None]
    assert not unused
    eager = network().eval()
    assert torch.autograd.gradcheck(lambda q: eager(draw(1, 12, 3), q), draw(1, 3, 3, seed=9).requires_grad_())


def test_it_is_saved_and_loaded(tmp_path):
    model, x, queries = network(torch.float32), draw(1, 40, 3).float(), draw(1, 5, 3).float()
    store.save(model, tmp_path / "model")
    again = store.load(tmp_path / "model")
    assert isinstance(again, FrameNetOccupancy)
    torch.testing.assert_close(again(x, queries), model(x, queries))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decoder_hidden": 10}, "multiple of 4"),
        ({"centers": (8, 24)}, "largest first"),
        ({"near": (4, 4)}, "3 numbers of points"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        network(**arguments)


def test_wrong_inputs(unchecked):
    model = network()
    with pytest.raises(ValueError, match=r"1 codes need queries \(1, Q, 3\), got \(2, 5, 3\)"):
        model(draw(1, 20, 3), draw(2, 5, 3))
    with pytest.raises(ValueError, match="k=6 neighbors in a cloud with 5 points"):
        model(draw(1, 5, 3), draw(1, 5, 3))
    assert FrameNetOccupancy.takes_normals
    assert not OccupancyNetwork.takes_normals
