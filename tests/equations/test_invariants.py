import pytest

import vector_neurons as vn
from vector_neurons.nn import functional as VF

from . import transcription as paper
from .compare import assert_same, draw, every_shape, lists, numbers, randomized, run_mlp, sets, shapes_3d, vectors


def frame_by_frame(V, T):
    """V Tᵀ in the order of the library's scalars: first all vectors along the first vector of the frame."""
    table = paper.product(V, T)
    return [table[c][j] for j in range(len(T)) for c in range(len(V))]


@every_shape
def test_invariant_product(shape):
    x, frame = draw(*shape), draw(*shape[:-1], 3)
    pairs = list(zip(lists(x), lists(frame), strict=True))
    assert_same(VF.invariant_product(x, frame), vectors([paper.product(V, T) for V, T in pairs], shape[:-2]))
    assert_same(VF.project_onto_frame(x, frame), numbers([frame_by_frame(V, T) for V, T in pairs], shape[:-2]))


@every_shape
def test_gram_and_norm(shape):
    x = draw(*shape)
    assert_same(vn.Invariant(4, kind="gram")(x), numbers([paper.gram(V) for V in lists(x)], shape[:-2]))
    lengths = numbers([[paper.length(v) for v in V] for V in lists(x)], shape[:-2])
    assert_same(vn.Invariant(4, kind="norm")(x), lengths)
    assert_same(VF.norm(x), lengths)
    assert_same(VF.squared_norm(x), lengths.square())


@shapes_3d
def test_orthonormal_frame(shape):
    x = draw(*shape[:-1], 2)
    assert_same(VF.orthonormal_frame(x), vectors([paper.orthonormal_frame(*V) for V in lists(x)], shape[:-2]))


@every_shape
@pytest.mark.parametrize("frame", ["linear", "mlp"])
@pytest.mark.parametrize(("mean", "project_mean"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("norm", ["batch", "none"])
def test_vn_in(shape, frame, mean, project_mean, norm):
    check_vn_in(vn.Invariant(4, frame=frame, mean=mean, project_mean=project_mean, norm=norm), shape)


@shapes_3d
@pytest.mark.parametrize("frame", ["linear", "mlp"])
def test_vn_in_orthonormal(shape, frame):
    check_vn_in(vn.Invariant(4, frame=frame, orthonormal=True), shape)


def check_vn_in(layer, shape):
    randomized(layer)
    if len(layer.to_frame) > 1:
        assert len(layer.to_frame) == 3
    for training in (True, False):
        layer.train(training)
        x = draw(*shape)
        elements = lists(x)
        samples = sets(x) if x.ndim > 3 else [[V] for V in elements]
        seen = [V for sample in samples for V in paper.with_mean(sample)] if layer.mean else elements
        frames = run_mlp(layer.to_frame, seen, shape[0])
        if layer.orthonormal:
            frames = [paper.orthonormal_frame(*T) for T in frames]
        read = seen if layer.project_mean else elements
        assert_same(layer(x, return_frame=True)[1], vectors(frames, shape[:-2]))
        expected = [frame_by_frame(V, T) for V, T in zip(read, frames, strict=True)]
        assert_same(layer(x), numbers(expected, shape[:-2]))
