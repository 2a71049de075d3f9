"""Every operator passes torch's own checks; those of frames and scalar blocks: gradients, and mistakes that must not
reach memory."""

import pytest
import torch
from maxima import arguments as max_arguments

import vector_neurons as vn
from vector_neurons import kernels

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")
B, N, M, K, C, H = 2, 9, 5, 4, 3, 6
WIDTH = 8  # a whole SIMD vector
POOL = {"set_page_pool_limit", "page_pool_bytes"}  # settings without tensors: there is nothing to trace
DIFFERENTIABLE = {
    "project", "length_sums", "norm_leaky_relu", "frame_pool", "scalar_norm", "frame_project", "frame_linear",
    "frame_mean", "edge_norm", "max_mean",
}  # fmt: skip


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def arguments():
    points = draw(B, N, 3)
    neighbors = vn.knn(points, K)[:, :M].contiguous()
    norm = draw(4, H).abs()
    frame_linear = (draw(B, M, K, 3), draw(B, N, 3, C), draw(B, M, 3, 3), draw(3 * (1 + C) + 1, H))
    return {
        "scalar_norm": (draw(2 * K, H), norm, K, 0.1, 2 * K),
        "scalar_block": (draw(2 * K, C), draw(C, H), norm, K, 0.1),
        "column_moments": (draw(20, H),),
        "frame_project": (draw(7, 3, C), draw(7, 3, 3)),
        "frame_linear": (*frame_linear, draw(B, N, H), neighbors, None, 0.1),
        "frame_mean": (draw(B, M, K, H), draw(B, M, K, 3), draw(B, N, 3, C), neighbors),
        "farthest_canonical": (points.mT.contiguous(), points.norm(dim=-1), torch.full((B,), 1e-9).double(), 4),
        "nearest_canonical": (points, torch.full((B,), N - 2), torch.full((B, 2), -1), 3, 1e-12),
    }


def cases():
    """Arguments of every operator; a forward operator's are also those of its backward, after the gradient."""
    points = draw(B, N, 3)
    mask = torch.arange(N).expand(B, -1) < N - 1
    neighbors = vn.knn(points, K)
    both, norm = draw(B, N, 3, 2 * WIDTH), draw(5, WIDTH).abs()
    sums = (both, both.flip(0), neighbors, WIDTH, 0.0)
    block = (both, both.flip(0), None, None, neighbors, norm, WIDTH, WIDTH, K, 0.2, -1.0, 0)
    pooled = (draw(B, N, 3, C), draw(B, 3, C), draw(B, N, 3, 3))
    argmax = torch.ops.vector_neurons.frame_pool(*pooled)[2]
    given = arguments()
    scalar_norm, frame_linear = given["scalar_norm"], given["frame_linear"]
    largest = torch.ops.vector_neurons.scalar_norm(*scalar_norm)[2]
    maxima = max_arguments()
    places = torch.ops.vector_neurons.max_mean(*maxima["max_mean"])[2]
    return given | {
        **{name: maxima[name] for name in ("edge_max", "edge_norm", "max_mean", "product_argmax")},
        "edge_norm_backward": (draw(*maxima["edge_norm"][2].shape), *maxima["edge_norm"]),
        "max_mean_backward": (draw(*places.shape), draw(*places.shape), places, N),
        "knn": (points, K, True, mask),
        "nearest": (draw(B, M, 3), points, K, mask),
        "ball_query": (points, 1.0, K, torch.arange(M).expand(B, -1).contiguous(), mask),
        "farthest_points": (points, M, mask),
        "knn_canonical": (points, torch.full((B,), N), K, True, 1e-12),
        "project": (both, draw(2 * WIDTH, C)),
        "length_sums": (*sums[:2], None, *sums[2:]),
        "length_sums_backward": (draw(2, WIDTH), *sums),
        "norm_leaky_relu": block,
        "norm_leaky_relu_backward": (draw(B * N, 3, WIDTH), *block, True),
        "frame_pool": pooled,
        "frame_pool_backward": (draw(B, 3, 2 * C), draw(B, 3, 2 * C), argmax, *pooled),
        "scalar_norm_backward": (draw(2 * K, H), draw(2, H), largest, *scalar_norm),
        "frame_project_backward": (draw(7, 3, C), *given["frame_project"]),
        "frame_linear_backward": (draw(B, M, K, H), *frame_linear[:6]),
        "frame_mean_backward": (draw(B, M, 3, H), *given["frame_mean"]),
    }


def registered():
    """Every operator of the namespace, whoever defined it."""
    names = (
        name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("vector_neurons::")
    )
    return sorted({name.partition(".")[0] for name in names})


@pytest.mark.parametrize("name", [name for name in registered() if name not in POOL])
def test_torch_checks_every_operator(name):
    known = cases()
    assert name in known, f"vector_neurons::{name} has no opcheck: add arguments to `cases`"
    given = tuple(
        x.requires_grad_() if name in DIFFERENTIABLE and isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in known[name]
    )
    torch.library.opcheck(getattr(torch.ops.vector_neurons, name).default, given)


def test_operators_are_found():
    assert {"knn", "farthest_points", "norm_leaky_relu", "scalar_norm"} <= set(registered())


@pytest.mark.parametrize("name", ["frame_project", "frame_linear", "frame_mean"])
def test_gradients_are_those_of_finite_differences(name):
    given = arguments()[name]
    tensors = [x.requires_grad_() for x in given if isinstance(x, torch.Tensor) and x.is_floating_point()]

    def function(*inputs):
        rest = iter(inputs)
        filled = (next(rest) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given)
        return getattr(torch.ops.vector_neurons, name)(*filled)

    assert torch.autograd.gradcheck(function, tensors)


@pytest.mark.parametrize("wrong", [-1, N])
@pytest.mark.parametrize("name", ["frame_linear", "frame_mean"])
def test_a_neighbor_that_is_no_point_is_refused(name, wrong):
    given = list(arguments()[name])
    place = next(i for i, x in enumerate(given) if isinstance(x, torch.Tensor) and x.dtype == torch.int64)
    given[place] = given[place].clone()
    given[place][1, 2, 3] = wrong
    with pytest.raises(IndexError, match=f"neighbor {wrong} is not one of {N} points"):
        getattr(torch.ops.vector_neurons, name)(*given)


@pytest.mark.parametrize(
    ("name", "place", "change"),
    [
        ("scalar_norm", 1, lambda x: x[:3]),
        ("scalar_norm", 0, lambda x: x[:-1]),
        ("scalar_block", 1, lambda x: x[:-1]),
        ("frame_project", 1, lambda x: x[:-1]),
        ("frame_linear", 3, lambda x: x[:-1]),
        ("frame_linear", 4, lambda x: x[:, :-1].contiguous()),
        ("frame_mean", 0, lambda x: x[..., :2].contiguous()),
        ("frame_mean", 1, lambda x: x.mT.mT.transpose(1, 2)),
        ("farthest_canonical", 1, lambda x: x[:, :-1].contiguous()),
        ("nearest_canonical", 1, lambda x: x + N),
    ],
)
def test_shapes_that_do_not_fit_are_refused(name, place, change):
    given = list(arguments()[name])
    given[place] = change(given[place])
    with pytest.raises(RuntimeError):
        getattr(torch.ops.vector_neurons, name)(*given)
