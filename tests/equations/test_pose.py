"""Rotations from vectors against transcriptions with loops, their gradients, and features that determine none."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vector_neurons as vn
from vector_neurons.geometry import rotations
from vector_neurons.testing import equivariance_error

from . import transcription as paper
from .compare import assert_same, draw, lists, shapes_3d, vectors

METHODS = ["gram-schmidt", "svd"]
forward_mode = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
every_method = pytest.mark.parametrize("method", METHODS)


def top_eigenvector(A):
    """Of a symmetric matrix, by Jacobi rotations."""
    size = len(A)
    A, V = [row[:] for row in A], [[float(i == j) for j in range(size)] for i in range(size)]
    for _ in range(30):
        for p in range(size):
            for q in range(p + 1, size):
                angle = 0.5 * math.atan2(2 * A[p][q], A[q][q] - A[p][p])
                c, s = math.cos(angle), math.sin(angle)
                for M in (A, V):
                    for row in M:
                        row[p], row[q] = c * row[p] - s * row[q], s * row[p] + c * row[q]
                first = paper.minus(paper.times(c, A[p]), paper.times(s, A[q]))
                A[p], A[q] = first, paper.plus(paper.times(s, A[p]), paper.times(c, A[q]))
    top = max(range(size), key=lambda i: A[i][i])
    return [row[top] for row in V]


def nearest_rotation(columns):
    """Horn's quaternion: the rotation R with the largest tr(Rᵀ M), without a singular value decomposition."""
    M = [[columns[j][i] for j in range(3)] for i in range(3)]
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = M
    w, x, y, z = top_eigenvector(
        [
            [xx + yy + zz, zy - yz, xz - zx, yx - xy],
            [zy - yz, xx - yy - zz, xy + yx, xz + zx],
            [xz - zx, xy + yx, yy - xx - zz, yz + zy],
            [yx - xy, xz + zx, yz + zy, zz - xx - yy],
        ]
    )
    return [
        [1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)],
        [2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)],
        [2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)],
    ]


@shapes_3d
@every_method
def test_pose_head(shape, method):
    head, x = vn.nn.PoseHead(4, method=method).double(), draw(*shape)
    rule = nearest_rotation if method == "svd" else lambda columns: paper.orthonormal_frame(*columns)
    expected = [rule(paper.linear(V, head.linear.weight.tolist())) for V in lists(x)]
    assert_same(head(x), vectors(expected, shape[:-2]))


@pytest.mark.parametrize("mutant", ["reflection", "polar-part-transposed", "unsigned"])
def test_a_wrong_nearest_rotation_is_noticed(mutant, monkeypatch):
    def wrong(M):
        u, _, vh = torch.linalg.svd(M)
        sign = torch.linalg.det(u @ vh)[..., None, None]
        return {"reflection": u @ vh, "polar-part-transposed": sign * (u @ vh).mT, "unsigned": sign * (u @ vh)}[mutant]

    monkeypatch.setattr(rotations, "nearest", wrong)
    with pytest.raises(AssertionError, match="relative error"):
        test_pose_head((2, 3, 3, 4), "svd")


def assert_rotations(R, tolerance):
    torch.testing.assert_close(R.mT @ R, torch.eye(3, dtype=R.dtype).expand_as(R), rtol=0, atol=tolerance)
    assert (torch.linalg.det(R) > 0).all()


@given(seed=st.integers(0, 10_000), scale=st.floats(1e-6, 1e6))
def test_the_nearest_rotation_is_nearer_than_others(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    M = scale * torch.randn(3, 3, generator=generator, dtype=torch.float64)
    R = rotations.nearest(M)
    assert_rotations(R, 1e-14)
    axes = torch.randn(200, 3, generator=generator, dtype=M.dtype)
    small = rotations.axis_angle(axes, torch.full((200,), 1e-3, dtype=M.dtype))
    others = torch.cat([rotations.draw("SO3", 200, generator=generator, dtype=M.dtype), small @ R])
    assert (M - R).norm() <= (M - others).flatten(1).norm(dim=1).min()


def of_singular_values(*s, seed=0):
    """A matrix with these singular values; the sign of the last is that of its determinant."""
    u, v = rotations.draw("SO3", 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return u @ torch.diag(torch.tensor(s, dtype=torch.float64)) @ v.mT


# Equal ones make the gradient of a singular value decomposition infinite.
SINGULAR = [(3, 2, 1), (3, 2, -1), (1, 1, 1), (2, 2, 1), (2, 1, 1), (2, 2, -1), (2, 1, 0), (1, 1, 0), (1, 1, -0.5)]


@forward_mode
@pytest.mark.parametrize("s", SINGULAR, ids=str)
def test_gradients_of_the_nearest_rotation(s):
    M = of_singular_values(*s).requires_grad_()
    assert torch.autograd.gradcheck(rotations.nearest, M, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(rotations.nearest, M)


@pytest.mark.parametrize("dim", [2, 4])
def test_gradients_of_the_nearest_rotation_in_other_dimensions(dim):
    assert torch.autograd.gradcheck(rotations.nearest, draw(3, dim, dim).requires_grad_())


def test_the_gradient_of_the_decomposition_would_not_do():
    """The control of the test above: by way of U and V it is not finite for equal singular values."""
    M = torch.eye(3, dtype=torch.float64).requires_grad_()
    u, _, vh = torch.linalg.svd(M)
    (gradient,) = torch.autograd.grad((u @ vh * draw(3, 3)).sum(), M)
    assert not gradient.isfinite().all()


def test_the_gradient_grows_only_with_the_inverse_of_the_gap():
    weights = draw(3, 3)
    sizes = []
    for gap in (1.0, 1e-2, 1e-4, 1e-6):
        M = of_singular_values(2, 1, -1 + gap).requires_grad_()
        (gradient,) = torch.autograd.grad((rotations.nearest(M) * weights).sum(), M)
        sizes.append(gradient.norm().item() * gap)
    assert max(sizes) < 10
    assert sizes[-1] == pytest.approx(sizes[-2], rel=1e-2)


@every_method
def test_gradients_of_the_head(method):
    head = vn.nn.PoseHead(3, method=method).double()
    assert torch.autograd.gradcheck(head, draw(2, 2, 3, 3).requires_grad_())


DEGENERATE = {
    "zero": lambda: torch.zeros(2, 3, 4, dtype=torch.float64),
    "collinear": lambda: draw(2, 1, 4) * draw(3, 1),
    "along-an-axis": lambda: draw(2, 1, 4) * torch.tensor([[0.0], [1.0], [0.0]]).double(),
    "flat": lambda: draw(2, 3, 4) * torch.tensor([[1.0], [1.0], [0.0]]).double(),
    "one-vector": lambda: draw(2, 3, 1) * torch.tensor([0.0, 1.0, 0.0, 0.0]).double(),
    "tiny": lambda: 1e-200 * draw(2, 3, 4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", DEGENERATE)
@every_method
def test_degenerate_features_give_rotations_and_finite_gradients(method, name, dtype):
    head = vn.nn.PoseHead(4, method=method).to(dtype)
    x = DEGENERATE[name]().to(dtype).requires_grad_()
    R = head(x)
    assert_rotations(R, 1e-6 if dtype == torch.float32 else 1e-12)
    assert torch.equal(R, head(x))
    (R * draw(3, 3).to(dtype)).sum().backward()
    assert x.grad.isfinite().all()
    assert head.linear.weight.grad.isfinite().all()
    if name != "tiny":
        assert x.grad.abs().max() < 1e3 / torch.finfo(dtype).eps ** 0.5
    if name == "zero":
        assert torch.equal(R, torch.eye(3, dtype=dtype).expand(2, 3, 3))
    if name == "flat":  # two vectors are enough
        assert equivariance_error(head.double(), x.double()) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_method
def test_nearly_parallel_vectors_give_rotations(method, dtype):
    a, b = draw(200, 3, 1), draw(200, 3, 1)
    x = torch.cat([a, a + 10.0 ** -torch.linspace(0, 20, 200).double().view(-1, 1, 1) * b], dim=-1).to(dtype)
    head = vn.nn.PoseHead(2, method=method).to(dtype)
    assert_rotations(head(x), 1e-6 if dtype == torch.float32 else 1e-7)


@every_method
def test_a_rotation_for_each_point_or_cloud(method):
    head, x = vn.nn.PoseHead(4, method=method), torch.randn(2, 5, 3, 4)
    assert head(x).shape == (2, 5, 3, 3)
    torch.testing.assert_close(head(x)[:, 2], head(x[:, 2]))


@every_method
def test_a_pose_tells_mirror_images_apart(method):
    """No map to rotations commutes with reflections: the control of the symmetry test."""
    assert equivariance_error(vn.nn.PoseHead(4, method=method), torch.randn(8, 3, 4), group="O3") > 0.1


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"unknown method 'qr': choose"):
        vn.nn.PoseHead(4, method="qr")
    with pytest.raises(ValueError, match="at least 2 vectors"):
        vn.nn.PoseHead(1)
    with pytest.raises(ValueError, match=r"square matrices.*\(3, 2\)"):
        rotations.nearest(torch.randn(3, 2))


@forward_mode
def test_it_can_be_vmapped_and_differentiated_by_functions():
    head, x = vn.nn.PoseHead(4, method="svd").double(), draw(6, 3, 4)
    torch.testing.assert_close(torch.func.vmap(head)(x), head(x))
    jacobian = torch.func.vmap(torch.func.jacrev(head))(x)
    torch.testing.assert_close(jacobian, torch.func.vmap(torch.func.jacfwd(head))(x))
