"""A network that depends on the pose, wrapped: invariant in every layout, with masks, and as accurate when rotated."""

from typing import NamedTuple

import pytest
import torch
from torch import nn

import vector_neurons as vn
from vector_neurons.data import Shapes
from vector_neurons.geometry import rotations
from vector_neurons.models import Canonicalize, PoseEncoder
from vector_neurons.testing import equivariance_error

BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}
every_dtype = pytest.mark.parametrize("dtype", BOUND, ids=str)
methods = pytest.mark.parametrize("method", ["svd", "gram-schmidt"])


class PointNetCls(nn.Module):
    """Somebody's PointNet: convolutions of width 1 on (B, 3, N), a maximum, a head."""

    def __init__(self, num_classes=5):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32)
        self.conv2, self.bn2 = nn.Conv1d(32, 64, 1), nn.BatchNorm1d(64)
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.fc(torch.max(x, 2)[0])


def plain(classes=5, width=64):
    """The same on (B, N, 3), as a Sequential."""

    class Max(nn.Module):
        def forward(self, x):
            return x.max(dim=1).values

    return nn.Sequential(
        nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), Max(), nn.Linear(width, classes)
    )


def clouds(dtype=torch.float32, count=4, points=100, seed=0):
    """Generic clouds: noise, stretched and bent so that no symmetry is left."""
    x = torch.randn(count, points, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x * torch.tensor([1.0, 0.6, 0.3])
    x[..., 1] += 0.4 * x[..., 0] ** 2
    x[..., 2] += 0.3 * x[..., 0] * x[..., 1] + 0.2 * x[..., 0] ** 2
    return x.to(dtype)


@every_dtype
@methods
@pytest.mark.parametrize("cross", [False, True])
def test_a_plain_network_becomes_invariant(method, cross, dtype):
    network, x = plain().to(dtype), clouds(dtype)
    wrapped = Canonicalize(network, PoseEncoder(method=method, cross=cross).to(dtype))
    assert equivariance_error(network, x, "points", "scalars") > 0.1  # the control
    for group in ("SO3", "SE3", "permutation"):
        assert equivariance_error(wrapped, x, "points", "scalars", group, trials=5) <= BOUND[dtype], group
    assert equivariance_error(wrapped, x, "points", "scalars", "O3") > 1e-3  # a rotation cannot undo a reflection


@every_dtype
@pytest.mark.parametrize("training", [False, True])
def test_channels_first(dtype, training):
    wrapped = Canonicalize(PointNetCls(), channels_first=True).to(dtype).train(training)
    x = clouds(dtype).mT
    assert equivariance_error(wrapped, x, "vectors", "scalars") <= BOUND[dtype]
    assert equivariance_error(wrapped.network, x, "vectors", "scalars") > 0.05


def test_the_pose_is_equivariant_and_leads_back():
    x, wrapped = clouds(torch.float64), Canonicalize(plain()).double()
    points, rotation, center = wrapped.canonicalize(x)
    torch.testing.assert_close(points @ rotation.mT + center, x)
    assert equivariance_error(wrapped.pose, x, "points", "frames", "SE3") <= 1e-10
    assert equivariance_error(wrapped.pose, x, "points", "frames", "scale", degree=0) <= 1e-10
    assert equivariance_error(lambda x: wrapped.canonicalize(x).points, x, "points", "scalars", "SE3") <= 1e-10
    out, pose = wrapped(x, return_pose=True)
    assert torch.equal(out, wrapped(x))
    assert torch.equal(pose.rotation, rotation)


@methods
def test_the_pose_does_not_depend_on_the_scale_however_extreme(method):
    x, pose = clouds(), PoseEncoder(method=method)
    for exponent in (-95, -40, 40, 63, 95):
        torch.testing.assert_close(pose(x * 2.0**exponent), pose(x), rtol=0, atol=1e-5)


class Outputs(NamedTuple):
    logits: torch.Tensor
    moved: torch.Tensor


class Anything(nn.Module):
    """Not equivariant in any way; several outputs, of every kind."""

    def __init__(self, kind=dict, channels_first=False):
        super().__init__()
        self.kind, self.axis = kind, 1 if channels_first else -1
        self.linear = nn.Linear(3, 3)

    def forward(self, points, offset=0.0, *, normals=None):
        rows = self.linear(points.movedim(self.axis, -1)).relu() + offset
        rows = rows if normals is None else rows + normals.movedim(self.axis, -1).relu()
        turned = rows.movedim(-1, self.axis)
        out = {"logits": rows.mean(1), "moved": turned, "flow": turned * 2, "frame": rows.mT @ rows + torch.eye(3)}
        return out if self.kind is dict else self.kind(*[out[name] for name in ("logits", "moved")])


@pytest.mark.parametrize("channels_first", [False, True])
def test_outputs_rotate_back_by_their_kind(channels_first):
    gives = {"moved": "points", "flow": "directions", "frame": "vectors"}
    wrapped = Canonicalize(Anything(channels_first=channels_first), channels_first=channels_first, gives=gives).double()

    def rows(x):
        if not channels_first:
            return wrapped(x)
        out = wrapped(x.mT)
        return {**out, "moved": out["moved"].mT, "flow": out["flow"].mT}

    x = clouds(torch.float64)
    kinds = ["scalars", "points", "points", "frames"]  # of logits, moved, flow, frame
    assert equivariance_error(rows, x, "points", kinds, "SO3") <= 1e-10
    shift = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    before, after = rows(x), rows(x + shift)
    for name, by in {"logits": 0, "moved": shift, "flow": 0, "frame": 0}.items():
        torch.testing.assert_close(after[name], before[name] + by, rtol=0, atol=1e-10)


def test_tuples_lists_and_single_outputs():
    x = clouds(torch.float64)
    wrapped = Canonicalize(Anything(Outputs), gives=["scalars", "points"]).double()
    out = wrapped(x)
    assert isinstance(out, Outputs)
    assert equivariance_error(wrapped, x, "points", ["scalars", "points"], "SE3") <= 1e-10
    single = Canonicalize(nn.Linear(3, 3), gives="points").double()
    assert equivariance_error(single, x, "points", "points", "SE3") <= 1e-10
    assert equivariance_error(single.network, x, "points", "points", "SE3") > 0.1
    center = Canonicalize(plain(3), gives="points").double()  # a point (B, 3) of each cloud
    assert equivariance_error(center, x, "points", "points", "SE3") <= 1e-10


def test_vectors_beside_the_points_are_turned_and_the_rest_passes():
    x, normals = clouds(torch.float64), clouds(torch.float64, seed=1)
    wrapped = Canonicalize(Anything(Outputs), takes={"normals": "directions"}).double()
    error = lambda module: equivariance_error(  # noqa: E731
        lambda x, normals: module(x, 0.5, normals=normals)[0], (x, normals), "points", "scalars", "SO3"
    )
    assert error(wrapped) <= 1e-10
    assert error(Canonicalize(Anything(Outputs)).double()) > 1e-3  # the control: normals passed unchanged
    pose = wrapped.canonicalize(x)
    expected = wrapped.network(pose.points, 0.5)
    assert torch.equal(wrapped(x, 0.5).logits, expected.logits)


@every_dtype
def test_padding_changes_nothing(dtype):
    x, lengths = clouds(dtype, count=2), torch.tensor([100, 60])
    padded = x.clone()
    padded[1, 60:] = torch.nan
    network = vn.models.PointNet(5, neurons="scalar", embedding=24, hidden=(8,)).to(dtype).eval()
    wrapped = Canonicalize(network, pass_lengths=True).to(dtype).eval()
    found = wrapped(padded, lengths=lengths)
    torch.testing.assert_close(found[1], wrapped(x[1:, :60])[0], rtol=0, atol=10 * BOUND[dtype])
    torch.testing.assert_close(found[0], wrapped(x[:1])[0], rtol=0, atol=10 * BOUND[dtype])
    pose = wrapped.canonicalize(padded, lengths)
    assert not pose.points[1, 60:].any()
    unaware = Canonicalize(plain().to(dtype), wrapped.pose)  # gets zeros as padding, whatever the pose
    masked = lambda points: unaware(points, lengths=lengths)  # noqa: E731
    assert equivariance_error(masked, x, "points", "scalars", "SE3") <= BOUND[dtype]


@methods
def test_gradients_reach_both_parts(method):
    wrapped = Canonicalize(plain(), PoseEncoder(method=method)).double()
    x = clouds(torch.float64).requires_grad_()
    wrapped(x).square().sum().backward()
    for name, parameter in wrapped.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    assert x.grad.isfinite().all()
    small = Canonicalize(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), PoseEncoder(4, k=4, method=method)).double()
    assert torch.autograd.gradcheck(small, clouds(torch.float64, count=1, points=8).requires_grad_())


def grid():
    axis = torch.arange(4, dtype=torch.float64)
    return torch.cartesian_prod(axis, axis, axis)[None]


DEGENERATE = {
    "grid": grid,
    "one point": lambda: torch.ones(1, 64, 3, dtype=torch.float64),
    "line": lambda: torch.randn(1, 64, 1, dtype=torch.float64) * torch.tensor([1.0, 2.0, 3.0]),
    "flat": lambda: torch.randn(1, 64, 3, dtype=torch.float64) * torch.tensor([1.0, 1.0, 0.0]),
}


@methods
@every_dtype
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_clouds_stay_finite(name, dtype, method):
    wrapped = Canonicalize(plain(), PoseEncoder(method=method)).to(dtype)
    x = DEGENERATE[name]().to(dtype).requires_grad_()
    rotation = wrapped.canonicalize(x).rotation
    torch.testing.assert_close(rotation @ rotation.mT, torch.eye(3, dtype=dtype)[None], rtol=0, atol=1e-6)
    wrapped(x).sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in wrapped.parameters())
    if name == "flat":
        assert equivariance_error(wrapped, x.detach(), "points", "scalars") <= BOUND[dtype]


def test_a_pose_of_ones_own():
    """Any equivariant module: here the frame of the points that are farthest from the center and from each other."""

    class Farthest(nn.Module):
        def forward(self, points, mask=None):
            first = points[torch.arange(len(points)), points.norm(dim=-1).argmax(1)]
            across = torch.linalg.cross(points, first.unsqueeze(1).expand_as(points), dim=-1)
            second = points[torch.arange(len(points)), across.norm(dim=-1).argmax(1)]
            return vn.nn.functional.orthonormal_frame(torch.stack([first, second], -1))

    wrapped = Canonicalize(plain(), Farthest()).double()
    assert equivariance_error(wrapped, clouds(torch.float64), "points", "scalars", "SE3") <= 1e-10


@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_named():
    x = clouds()
    with pytest.raises(ValueError, match=r"clouds \(B, N, 3\), got \(4, 3, 100\); is it channels_first=True\?"):
        Canonicalize(plain())(x.mT)
    with pytest.raises(ValueError, match=r"clouds \(B, 3, N\), got \(4, 100, 3\)"):
        Canonicalize(plain(), channels_first=True)(x)
    with pytest.raises(ValueError, match="unknown kind 'normals': choose one of scalars, points"):
        Canonicalize(plain(), gives="normals")
    with pytest.raises(ValueError, match=r"points are \(B, ..., 3\), got \(4, 5\)"):
        Canonicalize(plain(), gives="points")(x)
    with pytest.raises(ValueError, match=r"gives names outputs of a dict, but the network returned a Tensor"):
        Canonicalize(plain(), gives={"flow": "points"})(x)
    with pytest.raises(ValueError, match=r"gives lists outputs of a tuple, but the network returned a dict"):
        Canonicalize(Anything(), gives=["points"])(x)
    with pytest.raises(ValueError, match=r"gives names an output 'flaw'; the network returned logits, moved"):
        Canonicalize(Anything(), gives={"flaw": "points"})(x)
    with pytest.raises(ValueError, match=r"gives lists 1 kinds, the network returned 2 outputs"):
        Canonicalize(Anything(Outputs), gives=["points"])(x)
    with pytest.raises(ValueError, match=r"must be rotations \(4, 3, 3\), got \(4, 5\)"):
        Canonicalize(plain(), plain())(x)
    with pytest.raises(ValueError, match="4 clouds need as many lengths"):
        Canonicalize(plain())(x, lengths=torch.tensor([3]))
    with pytest.raises(ValueError, match="cannot save a Canonicalize: derive it from"):
        vn.save(Canonicalize(plain()), "nowhere")


class Saved(vn.models.Model):
    """How a wrapped network is saved: built in the constructor of a model."""

    def __init__(self, classes):
        super().__init__()
        self.network = Canonicalize(PointNetCls(classes), channels_first=True)

    def forward(self, points):
        return self.network(points.mT)


def test_saving(tmp_path):
    x, model = clouds(), Saved(7).eval()
    vn.save(model, tmp_path / "model")
    assert torch.equal(vn.load(tmp_path / "model", Saved)(x), model(x))
    pose = PoseEncoder(8, k=6, cross=True).eval()
    vn.save(pose, tmp_path / "pose")
    assert torch.equal(vn.load(tmp_path / "pose")(x), pose(x))
    again = Canonicalize(plain())
    again.load_state_dict(Canonicalize(plain()).state_dict())


FAMILIES = ["guitar", "mug", "helicopter"]


def fit(network, steps, lr, loss):
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)
    for step in range(steps):
        optimizer.zero_grad()
        loss(network, step).backward()
        optimizer.step()
    return network.eval()


def test_trained_upright_it_is_as_accurate_in_any_pose():
    """Trained on aligned shapes only. The same network without the wrapper is the control."""
    sets = (Shapes(split, size=120, points=96, families=FAMILIES) for split in ("train", "test"))
    train, test = (data.batch(torch.arange(120)) for data in sets)
    rotated = rotations.rotate(test.points, rotations.draw("SO3", 120, generator=torch.Generator().manual_seed(3)))
    order = torch.randperm(120).split(24)

    def loss(network, step):
        chosen = order[step % len(order)]
        return nn.functional.cross_entropy(network(train.points[chosen]), train.label[chosen])

    accuracy = {}
    for name in ("plain", "canonical"):
        torch.manual_seed(0)
        network = plain(3) if name == "plain" else Canonicalize(plain(3), PoseEncoder(16, k=8))
        fit(network, 100, 3e-3, loss)
        accuracy[name] = [(network(x).argmax(-1) == test.label).float().mean().item() for x in (test.points, rotated)]
    upright, turned = accuracy["plain"]
    assert upright >= 0.9
    assert turned <= 0.6
    upright, turned = accuracy["canonical"]
    assert abs(upright - turned) <= 1 / 120  # rounding may decide one tie
    assert turned >= 0.75


@methods
def test_poses_are_regressed_to_a_few_degrees(method):
    shapes = Shapes("train", size=12, points=64, families=["chair", "mug", "airplane"]).batch(torch.arange(12)).points
    torch.manual_seed(0)

    def loss(network, step):
        R = rotations.draw("SO3", 12)
        return rotations.geodesic_loss(network(rotations.rotate(shapes, R)), R)

    network = PoseEncoder(16, k=8, method=method)
    R = rotations.draw("SO3", 12, generator=torch.Generator().manual_seed(9))
    before = rotations.geodesic_loss(network(rotations.rotate(shapes, R)), R).rad2deg()
    fit(network, 250, 3e-3, loss)
    after = rotations.geodesic_distance(network(rotations.rotate(shapes, R)), R).rad2deg()
    assert before > 30
    assert after.mean() < 5
    # Two scans of one object, in different poses: the relative rotation, exactly.
    other = rotations.draw("SO3", 12)
    found = network(rotations.rotate(shapes, other)) @ network(rotations.rotate(shapes, R)).mT
    assert rotations.geodesic_distance(found, other @ R.mT).rad2deg().max() < 0.1
