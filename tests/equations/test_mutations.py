"""Would the equation checks notice a wrong equation? Each one below is swapped in for the right one.

Most of them are equivariant, which is measured, too: a test of the symmetry alone would let them pass.
"""

import inspect

import pytest
import torch

import vector_neurons as vn

from . import test_attention_and_residual as blocks
from . import test_invariants as invariants
from . import test_linear_and_activation as activations
from . import test_norms as norms
from . import test_pooling_and_edges as edges
from .compare import draw, randomized


@pytest.fixture(autouse=True)
def _eager_backend():
    """Mutations replace the eager functions, so these are what must run."""
    from vector_neurons import kernels

    with kernels.using("eager"):
        yield


SHAPE = (2, 3, 3, 4)

leaky_checks = [
    lambda: activations.test_leaky_relu(SHAPE, 0.2, False),
    lambda: activations.test_block(SHAPE, "none", 0.2, "input"),
    lambda: activations.test_block(SHAPE, "batch", 0.2, "output"),
    lambda: edges.test_edge_conv("mean", 0.2, "none", 3, False),
    lambda: invariants.test_vn_in(SHAPE, "mlp", True, False, "batch"),
]
relu_checks = [
    *leaky_checks,
    lambda: activations.test_relu(SHAPE, False),
    lambda: activations.test_leaky_relu((4, 3, 4), 0.0, True),
    lambda: activations.test_block(SHAPE, "none", 0.0, "input"),
]
h_checks = [
    lambda: activations.test_activation(SHAPE, True, False),
    lambda: activations.test_block_with_activation("input"),
]
literal_h_checks = [lambda: activations.test_activation(SHAPE, False, False)]
batch_checks = [
    lambda: norms.test_batch_norm(SHAPE, "norm"),
    lambda: activations.test_block(SHAPE, "batch", 0.2, "input"),
]
log_batch_checks = [
    lambda: norms.test_batch_norm(SHAPE, "log"),
    lambda: activations.test_block(SHAPE, "log-batch", 0.2, "input"),
]
max_checks = [
    lambda: edges.test_max_pool((2, 6, 3, 4)),
    lambda: edges.test_max_pool((2, 3, 4, 3, 4)),
    lambda: edges.test_edge_conv("max", 0.2, "none", 3, False),
]
mean_checks = [lambda: edges.test_mean_pool(SHAPE), lambda: edges.test_edge_conv("mean", 0.2, "none", 3, True)]
instance_checks = [
    lambda: norms.test_instance_norm(SHAPE, 0.3),
    lambda: activations.test_block(SHAPE, "instance", 0.2, "output"),
]
standardize_checks = [
    *instance_checks,
    lambda: norms.test_layer_norm(SHAPE, 0.3),
    lambda: activations.test_block(SHAPE, "layer", 0.2, "output"),
]
frame_checks = [lambda: invariants.test_vn_in(SHAPE, "linear", True, False, "none")]
orthonormal_checks = [
    lambda: invariants.test_orthonormal_frame(SHAPE),
    lambda: invariants.test_vn_in_orthonormal(SHAPE, "mlp"),
]
affine_checks = [lambda: activations.test_affine_linear(SHAPE)]
attention_checks = [
    lambda: blocks.test_attention(2, 3),
    lambda: blocks.test_cross_attention(3),
]
masked_checks = [lambda: blocks.test_attention(2, 3), lambda: blocks.test_attention(1, 5)]
residual_checks = [
    lambda: blocks.test_residual_block(SHAPE, "none", (4,)),
    lambda: blocks.test_residual_block(SHAPE, "layer", (4, 3)),
]
edge_checks = [
    lambda: edges.test_edge_conv("mean", 0.0, "none", 3, True),
    lambda: edges.test_edge_conv("max", 0.2, "batch", 3, True),
]


def wrong(path, checks, *, equivariant=True, **mutants):
    return [pytest.param(path, broken, checks, equivariant, id=f"{path}-{name}") for name, broken in mutants.items()]


def inner(a, b):
    return (a * b).sum(-2, keepdim=True)


def squares(x):
    return inner(x, x)


def sizes(x):
    return squares(x).sqrt()


def against(q, k):
    return (inner(q, k) < 0).double()


def bend(q, k, factor):
    return q - factor * inner(q, k) * k


def bent_over_channels(q, k, slope):
    return q - (1 - slope) * (q * k).sum(-1, keepdim=True).clamp_max(0) / k.square().sum(-1, keepdim=True) * k


def along(q, k):
    return inner(q, k / sizes(k))


def renormed(x, normalize, lengths):
    return x * normalize(lengths.flatten(0, -2)).view_as(lengths) / sizes(x)


def chosen(x, agreement, choose=torch.argmax):
    best = choose(agreement, dim=-3, keepdim=True)
    return x.gather(-3, best.expand(*x.shape[:-3], 1, *x.shape[-2:])).squeeze(-3)


def standardized(x, weight, middle, spread):
    return (x - middle) / spread.sqrt() * (1 if weight is None else weight)


def middle(x, dims):
    return x.mean(dims, keepdim=True)


def square_size(x, dims):
    return squares(x).mean(dims, keepdim=True)


def left_handed(x):
    first = x[..., :1] / sizes(x[..., :1])
    second = x[..., 1:] - inner(first, x[..., 1:]) * first
    second = second / sizes(second)
    return torch.cat([first, second, second.cross(first, dim=-2)], -1)


def edge_parts(x, graphs):
    other = torch.stack([cloud[graph] for cloud, graph in zip(x, graphs, strict=True)])
    own = x.unsqueeze(2).expand_as(other)
    return other - own, own, other.cross(own, dim=-2)


def mixed(q, k, v, heads, scores, mask=None):
    """Attention by other scores `(B, heads, N, M)`."""
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    mixed = torch.einsum("bhnm,bmdhc->bndhc", scores.softmax(-1), v.unflatten(-1, (heads, -1)))
    return mixed.flatten(-2)


def scores(q, k, heads, power=-0.5):
    q, k = (x.unflatten(-1, (heads, -1)) for x in (q, k))
    return torch.einsum("bndhc,bmdhc->bhnm", q, k) * (q.shape[-1] * q.shape[-3]) ** power


def interleaved(x, heads):
    return x.unflatten(-1, (-1, heads)).transpose(-1, -2).flatten(-2)


def without(x, axis):
    return x * (torch.arange(x.shape[-2]) != axis).double().view(-1, 1)


def residual_parts(layer, x):
    y = layer.linear_in(layer.activation_in(layer.norm_in(x, None)))
    return layer.shortcut(x), layer.linear_out(layer.activation_out(layer.norm_out(y, None)))


def adapted(broken):
    """Call it with the arguments it knows; the real function has more (masks, eps) that these checks leave alone."""
    known = inspect.signature(broken).parameters
    loose = any(p.kind is p.VAR_KEYWORD for p in known.values())
    return lambda *a, **kw: broken(*a[: len(known)], **{n: v for n, v in kw.items() if loose or n in known})


MUTANTS = [
    *wrong(
        "functional.leaky_relu",
        relu_checks,
        k_for_its_unit=lambda q, k, slope: bend(q, k, (1 - slope) * against(q, k)),
        divides_by_the_length_once=lambda q, k, slope: bend(q, k, (1 - slope) * against(q, k) / sizes(k)),
        absolute_eps=lambda q, k, slope: bend(q, k, (1 - slope) * against(q, k) / (squares(k) + 1e-6)),
        always_removes_the_part_along_k=lambda q, k, slope: bend(q, k, (1 - slope) / squares(k)),
        removes_what_agrees_with_k=lambda q, k, slope: bend(q, k, (1 - slope) * against(-q, k) / squares(k)),
        reflects=lambda q, k, slope: bend(q, k, 2 * (1 - slope) * against(q, k) / squares(k)),
        shrinks_the_whole_vector=lambda q, k, slope: q * (1 - (1 - slope) * against(q, k)),
    ),
    *wrong(
        "functional.leaky_relu",
        leaky_checks,
        forgets_the_slope=lambda q, k, slope: bend(q, k, against(q, k) / squares(k)),
        slope_for_one_minus_slope=lambda q, k, slope: bend(q, k, slope * against(q, k) / squares(k)),
    ),
    *wrong("functional.leaky_relu", relu_checks, equivariant=False, sums_over_channels=bent_over_channels),
    *wrong(
        "functional.activation",
        h_checks,
        drops_the_part_across=lambda q, k, h, signed=True: h(along(q, k)) * k / sizes(k),
        k_for_its_unit=lambda q, k, h, signed=True: q + (h(inner(q, k)) - inner(q, k)) * k,
        of_the_length=lambda q, k, h, signed=True: bend(
            q, k, (1 - h(along(q, k).abs()) / along(q, k).abs()) / squares(k)
        ),
    ),
    *wrong(
        "functional.activation",
        literal_h_checks,
        of_the_signed_part=lambda q, k, h, signed=True: q + (h(along(q, k)) - along(q, k)) * k / sizes(k),
    ),
    *wrong(
        "functional.batch_norm",
        batch_checks,
        of_squares=lambda x, normalize, **_: renormed(x, normalize, squares(x)),
        keeps_the_old_length=lambda x, normalize, **_: renormed(x, normalize, sizes(x)) * sizes(x),
        never_flips=lambda x, normalize, **_: renormed(x, lambda n: normalize(n).abs(), sizes(x)),
    ),
    *wrong(
        "functional.batch_norm",
        log_batch_checks,
        without_logarithm=lambda x, normalize, **_: renormed(x, normalize, sizes(x)),
        without_exponential=lambda x, normalize, **_: renormed(x, normalize, sizes(x).log()),
    ),
    *wrong(
        "functional.max_pool",
        max_checks,
        argmin=lambda x, k: chosen(x, inner(x, k), torch.argmin),
        longest=lambda x, k: chosen(x, squares(x)),
        along_the_unit_direction=lambda x, k: chosen(x, along(x, k)),
        one_element_for_all_channels=lambda x, k: chosen(x, inner(x, k).sum(-1, keepdim=True)),
    ),
    *wrong(
        "functional.max_pool",
        max_checks,
        equivariant=False,
        sums_over_channels=lambda x, k: chosen(x, (x * k).sum(-1, keepdim=True)),
    ),
    *wrong("functional.mean_pool", mean_checks, sum=lambda x: x.sum(-3)),
    *wrong(
        "functional_norm._standardize",
        standardize_checks,
        not_centered=lambda x, dims, weight, eps: standardized(x, weight, 0, (1 + eps) * square_size(x, dims)),
        spread_about_the_origin=lambda x, dims, weight, eps: standardized(
            x, weight, middle(x, dims), (1 + eps) * square_size(x, dims)
        ),
        eps_not_relative=lambda x, dims, weight, eps: standardized(
            x, weight, middle(x, dims), square_size(x - middle(x, dims), dims) + eps
        ),
        spread_of_a_coordinate=lambda x, dims, weight, eps: standardized(
            x, weight, middle(x, dims), (square_size(x - middle(x, dims), dims) + eps * square_size(x, dims)) / 3
        ),
    ),
    *wrong(
        "functional_norm._standardize",
        instance_checks,
        equivariant=False,
        mean_across_the_batch=lambda x, dims, weight, eps: standardized(
            x, weight, middle(x, [0, *dims]), square_size(x - middle(x, [0, *dims]), dims) + eps * square_size(x, dims)
        ),
    ),
    *wrong(
        "functional.project_onto_frame",
        frame_checks,
        equivariant=False,
        not_transposed=lambda x, frame: (frame @ x).flatten(-2),
    ),
    *wrong("functional.orthonormal_frame", orthonormal_checks, left_handed=left_handed),
    *wrong(
        "functional.linear",
        [lambda: activations.test_linear(SHAPE), lambda: activations.test_block(SHAPE, "none", 0.2, "input")],
        channels_moved=lambda x, weight: x.roll(1, -1) @ weight.mT,
    ),
    *wrong(
        "functional.linear",
        [lambda: activations.test_linear_unshared(SHAPE)],
        one_matrix_for_all=lambda x, weight: x @ (weight[0] if weight.ndim == 3 else weight).mT,
    ),
    *wrong(
        "linear.AffineLinear.affine_weight",
        affine_checks,
        not_constrained=lambda layer: layer.weight,
        sums_to_zero=lambda layer: layer.weight - layer.weight.mean(-1, keepdim=True),
        columns_for_rows=lambda layer: layer.weight - layer.weight.mean(0) + 1 / layer.in_channels,
        divides_by_the_sum=lambda layer: layer.weight / layer.weight.sum(-1, keepdim=True),
    ),
    *wrong(
        "attention.attend",
        attention_checks,
        without_scale=lambda q, k, v, heads, mask=None: mixed(q, k, v, heads, scores(q, k, heads, 0), mask),
        scale_of_channels_only=lambda q, k, v, heads, mask=None: mixed(
            q, k, v, heads, scores(q, k, heads) * q.shape[-2] ** 0.5, mask
        ),
        keys_and_values_exchanged=lambda q, k, v, heads, mask=None: mixed(q, v, k, heads, scores(q, v, heads), mask),
        other_channels_of_a_head=lambda q, k, v, heads, mask=None: mixed(
            q, k, v, heads, scores(interleaved(q, heads), interleaved(k, heads), heads), mask
        ),
        one_head=lambda q, k, v, heads, mask=None: mixed(q, k, v, 1, scores(q, k, 1), mask),
    ),
    *wrong(
        "attention.attend",
        masked_checks,
        without_mask=lambda q, k, v, heads: mixed(q, k, v, heads, scores(q, k, heads)),
    ),
    *wrong(
        "attention.attend",
        attention_checks,
        equivariant=False,
        scores_of_two_coordinates=lambda q, k, v, heads, mask=None: mixed(
            q, k, v, heads, scores(without(q, 0), k, heads), mask
        ),
    ),
    *wrong(
        "residual.ResidualBlockBase.forward",
        residual_checks,
        without_shortcut=lambda layer, x: residual_parts(layer, x)[1],
        shortcut_only=lambda layer, x: residual_parts(layer, x)[0],
        shortcut_subtracted=lambda layer, x: residual_parts(layer, x)[1] - residual_parts(layer, x)[0],
        one_activation=lambda layer, x: (
            layer.shortcut(x) + layer.linear_out(layer.activation_out(layer.norm_out(layer.linear_in(x))))
        ),
    ),
    *wrong(
        "edge_conv.edge_features",
        edge_checks,
        n_minus_m=lambda x, graphs, cross: torch.cat([-edge_parts(x, graphs)[0], *edge_parts(x, graphs)[1:]], -1),
        n_cross_m=lambda x, graphs, cross: torch.cat([*edge_parts(x, graphs)[:2], -edge_parts(x, graphs)[2]], -1),
        matrices_exchanged=lambda x, graphs, cross: torch.cat([edge_parts(x, graphs)[i] for i in (1, 0, 2)], -1),
    ),
    *wrong(
        "edge_conv.knn",
        edge_checks,
        farthest=lambda x, k, include_self=True: torch.cdist(x.flatten(2), x.flatten(2)).topk(k).indices,
    ),
]

AFFINE, RESIDUAL = randomized(vn.AffineLinear(4, 5)), randomized(vn.ResidualBlock(4, norm="none"))
CALLS = {
    "linear.AffineLinear.affine_weight": lambda f, x, k: x @ f(AFFINE).detach().mT,
    "attention.attend": lambda f, x, k: f(x, k, x + k, 2),
    "residual.ResidualBlockBase.forward": lambda f, x, k: f(RESIDUAL, x).detach(),
    "functional.leaky_relu": lambda f, x, k: f(x, k, 0.2),
    "functional.activation": lambda f, x, k: f(x, k, activations.cubic),
    "functional.batch_norm": lambda f, x, k: f(x, lambda n: (n - n.mean(0)) / n.std(0) + 0.5),
    "functional.max_pool": lambda f, x, k: f(x, k),
    "functional.mean_pool": lambda f, x, k: f(x),
    "functional_norm._standardize": lambda f, x, k: f(x, [1], None, 1e-5),
    "functional.project_onto_frame": lambda f, x, k: f(x, k[..., :3]),
    "functional.orthonormal_frame": lambda f, x, k: f(x[..., :2]),
    "functional.linear": lambda f, x, k: f(x, torch.arange(12, dtype=torch.float64).view(3, 4)),
    "edge_conv.edge_features": lambda f, x, k: f(x, torch.tensor([[[0, 1], [2, 1], [0, 2]]] * 2), cross=True),
    "edge_conv.knn": lambda f, x, k: f(x, 2),
}
INVARIANT = ("functional.project_onto_frame", "edge_conv.knn")


def equivariance_error(path, broken):
    """Under a rotation of its own for each sample."""
    x, k, R = draw(*SHAPE), draw(*SHAPE), torch.linalg.qr(draw(2, 3, 3)).Q
    R = R * torch.linalg.det(R).view(2, 1, 1)
    before, after = CALLS[path](broken, x, k), CALLS[path](broken, R.unsqueeze(1) @ x, R.unsqueeze(1) @ k)
    if path not in INVARIANT:
        before = R.view(2, *[1] * (before.ndim - 3), 3, 3) @ before
    return (after - before).abs().max() / before.abs().max()


@pytest.mark.parametrize(("path", "broken", "checks", "equivariant"), MUTANTS)
def test_wrong_equation_is_noticed(path, broken, checks, equivariant, monkeypatch):
    assert (equivariance_error(path, broken) < 1e-10) == equivariant
    for check in checks:
        check()
    monkeypatch.setattr(f"vector_neurons.nn.{path}", adapted(broken))
    for check in checks:
        with pytest.raises(AssertionError, match="relative error"):
            check()
