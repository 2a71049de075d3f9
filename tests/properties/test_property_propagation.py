"""Feature propagation: symmetries on generic and degenerate clouds, padding, gradients, mistakes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import settle

import vector_neurons as vn
from vector_neurons.geometry import query, rotations
from vector_neurons.geometry.sampling import farthest_points
from vector_neurons.nn.hybrid import FeaturePropagation, Features
from vector_neurons.testing import relative_error

BOUND = {torch.float32: 1e-5, torch.float64: 1e-12}


def layer(dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    module = FeaturePropagation((3, 4), (2, 1), (6, 5), **options)
    settle(module)
    return module.to(dtype).eval()


def generic(generator):
    return torch.randn(2, 60, 3, generator=generator, dtype=torch.float64)


def grid(generator):
    axis = torch.linspace(-1, 1, 4, dtype=torch.float64)
    return torch.cartesian_prod(axis, axis, axis).repeat(2, 1, 1)


def duplicates(generator):
    points = generic(generator)
    points[:, 36:] = points[:, :24]
    return points


def line(generator):
    return generic(generator) * torch.tensor([1.0, 0.0, 0.0])


def one_place(generator):
    return torch.ones(2, 60, 3, dtype=torch.float64) / 3


CLOUDS = [generic, grid, duplicates, line, one_place]


def example(make=generic, dtype=torch.float64, seed=0):
    """Sources that are a sample of the targets, as in a hierarchy, with features of their own."""
    generator = torch.Generator().manual_seed(seed)
    targets = make(generator)
    sources = targets.gather(1, farthest_points(targets, 20).unsqueeze(-1).expand(-1, -1, 3))
    kinds = [(20, 3), (20, 3, 4), (targets.shape[1], 2), (targets.shape[1], 3, 1)]
    s, v, skip_s, skip_v = (torch.randn(2, *kind, generator=generator, dtype=torch.float64) for kind in kinds)
    return [x.to(dtype) for x in (sources, s, v, targets, skip_s, skip_v)]


def run(module, sources, s, v, targets, skip_s, skip_v, **masks):
    return module(sources, Features(s, v), targets, Features(skip_s, skip_v), **masks)


def moved(R, sources, s, v, targets, skip_s, skip_v):
    R = R.to(v.dtype)
    return [sources @ R.mT, s, R @ v, targets @ R.mT, skip_s, R @ skip_v]


def error(module, inputs, R):
    there, here = run(module, *moved(R, *inputs)), run(module, *inputs)
    return max(
        relative_error(there.scalars, here.scalars), relative_error(there.vectors, R.to(inputs[0].dtype) @ here.vectors)
    )


@pytest.mark.parametrize("make", CLOUDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", BOUND, ids=["float32", "float64"])
def test_rotations_and_reflections(make, dtype):
    inputs, module = example(make, dtype), layer(dtype)
    for seed in range(4):
        R = rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)[0]
        for matrix in (R, -R):
            assert error(module, inputs, matrix) <= BOUND[dtype]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), k=st.integers(1, 5))
def test_permutations_of_sources_and_of_targets(seed, k):
    sources, s, v, targets, skip_s, skip_v = example(seed=seed)
    module = layer(k=k)
    generator = torch.Generator().manual_seed(seed)
    i, j = (torch.randperm(n, generator=generator) for n in (20, 60))
    here = run(module, sources, s, v, targets, skip_s, skip_v)
    there = run(module, sources[:, i], s[:, i], v[:, i], targets[:, j], skip_s[:, j], skip_v[:, j])
    assert relative_error(there.scalars, here.scalars[:, j]) < 1e-12
    assert relative_error(there.vectors, here.vectors[:, j]) < 1e-12


@pytest.mark.parametrize("scale", [1e-12, 0.01, 1e12])
def test_units_and_translations_do_not_matter(scale):
    sources, s, v, targets, skip_s, skip_v = example()
    here, there = (
        run(layer(), f(sources), s, v, f(targets), skip_s, skip_v) for f in (lambda x: x, lambda x: scale * x + scale)
    )
    assert relative_error(there.vectors, here.vectors) < 1e-12


def test_orthonormal_frames_tell_mirror_images_apart():
    module, inputs = layer(orthonormal=True), example()
    R = rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[0]
    assert error(module, inputs, R) <= 1e-12
    assert error(module, inputs, -R) > 1e-3
    assert error(layer(fixed=True), inputs, R) > 1e-3


def test_weights_without_a_bound_would_depend_on_rounding(monkeypatch):
    """Control: where sources are duplicated, distances below rounding must count as equal."""
    sources, s, v, *rest = example(duplicates)
    sources, s, v = (torch.cat([x, y], 1) for x, y in ((sources, sources[:, ::2]), (s, -s[:, ::2]), (v, -v[:, ::2])))
    rounding = torch.randn(sources.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rounded = sources * (1 + 1e-16 * rounding)

    def change():
        return relative_error(run(layer(), rounded, s, v, *rest).vectors, run(layer(), sources, s, v, *rest).vectors)

    assert change() <= 1e-12
    monkeypatch.setattr(query, "tie_tolerance", lambda dtype: 0.0)
    assert change() > 1e-3


def test_targets_at_sources_take_their_features():
    sources, _, v, *_ = example()
    neighbors = query.nearest(sources, sources, 3)
    weights = query.interpolation_weights(sources, sources, neighbors)
    assert relative_error(vn.nn.propagation.interpolate(v, neighbors, weights), v) < 1e-14


def test_padding_changes_nothing():
    sources, s, v, targets, skip_s, skip_v = example()
    mask, source_mask = (torch.arange(n) < torch.tensor([[n], [m]]) for n, m in ((60, 41), (20, 2)))
    for training in (False, True):
        padded = [
            x.masked_fill(~(source_mask if x.shape[1] == 20 else mask).view(*x.shape[:2], *[1] * (x.ndim - 2)), 1e3)
            for x in (sources, s, v, targets, skip_s, skip_v)
        ]
        module = layer(norm="layer").train(training)
        together = run(module, *padded, mask=mask, source_mask=source_mask)
        alone = run(module, *(x[1:, : 2 if x.shape[1] == 20 else 41] for x in (sources, s, v, targets, skip_s, skip_v)))
        assert relative_error(together.scalars[1:, :41], alone.scalars) < 1e-12
        assert relative_error(together.vectors[1:, :41], alone.vectors) < 1e-12
        first = run(module, *(x[:1] for x in (sources, s, v, targets, skip_s, skip_v)))
        assert relative_error(together.vectors[:1], first.vectors) < 1e-12


@pytest.mark.parametrize("make", CLOUDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", BOUND, ids=["float32", "float64"])
def test_gradients_are_finite(make, dtype):
    inputs, module = [x.requires_grad_() for x in example(make, dtype)], layer(dtype).train()
    s, v = run(module, *inputs)
    (s.square().sum() + v.square().sum()).backward()
    assert all(x.grad.isfinite().all() for x in (*inputs, *module.parameters()))


def test_gradients_are_right():
    inputs, module = example(), layer(norm="none")
    few = [x[:1, : 5 if x.shape[1] == 20 else 7].clone().requires_grad_() for x in inputs]
    few[3] = (few[3].detach() + 0.1).requires_grad_()  # at a source, weights are constant within rounding only
    assert torch.autograd.gradcheck(lambda *x: tuple(run(module, *x)), few)


def test_without_skip_features_and_with_one_source():
    module = FeaturePropagation((3, 4), (0, 0), (6, 5))
    x = Features(torch.randn(2, 1, 3), torch.randn(2, 1, 3, 4))
    y = module(torch.randn(2, 1, 3), x, torch.randn(2, 9, 3))
    assert torch.equal(y.scalars[:, 0], y.scalars[:, 8])


def test_half_precision():
    inputs, module = example(dtype=torch.float32), layer(torch.float32)
    exact = run(module, *inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert relative_error(run(module, *inputs).vectors, exact.vectors) < 0.05
    x = Features(*(y.bfloat16() for y in inputs[1:3]))
    neighbors = query.nearest(inputs[3], inputs[0], 3)
    weights = query.interpolation_weights(inputs[3].bfloat16(), inputs[0].bfloat16(), neighbors)
    assert vn.nn.propagation.interpolate(x.vectors, neighbors, weights).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: {**a, "skip": None}, "needs skip"),
        (lambda a: {**a, "x": Features(a["x"].scalars[..., :2], a["x"].vectors)}, r"takes features \(B, N, 3\)"),
        (lambda a: {**a, "x": Features(a["x"].scalars, a["x"].vectors.mT)}, r"pass x.mT"),
        (lambda a: {**a, "sources": a["sources"][:, :7]}, "features of source points"),
        (lambda a: {**a, "targets": a["targets"][:, :7]}, "features of target points"),
    ],
)
def test_mistakes_are_explained(unchecked, change, words):
    sources, s, v, targets, skip_s, skip_v = example()
    arguments = {"sources": sources, "x": Features(s, v), "targets": targets, "skip": Features(skip_s, skip_v)}
    with pytest.raises(ValueError, match=words) as raised:
        layer()(**change(arguments))
    assert "\n" not in str(raised.value)


def test_k_is_at_least_one():
    with pytest.raises(ValueError, match="k >= 1"):
        FeaturePropagation((3, 4), (2, 1), (6, 5), k=0)
