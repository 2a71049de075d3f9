import pytest

import vector_neurons as vn
from vector_neurons.nn import functional as VF

from . import transcription as paper
from .compare import assert_same, draw, every_shape, lists, norm_of, numbers, randomized, set_shapes, sets, vectors

modes = pytest.mark.parametrize("mode", ["norm", "log"])


@every_shape
@modes
def test_batch_norm(shape, mode):
    layer, x, y = randomized(vn.BatchNorm(4, mode=mode)), draw(*shape), draw(*shape)
    bn, log = layer.bn, mode == "log"
    learned = bn.weight.tolist(), bn.bias.tolist()
    running = paper.running_statistics(
        lists(x), bn.running_mean.tolist(), bn.running_var.tolist(), momentum=0.1, log=log
    )
    assert_same(layer(x), vectors(paper.batch_norm(lists(x), *learned, log=log), shape[:-2]))
    assert_same(bn.running_mean, numbers(running[0], (4,)))
    assert_same(bn.running_var, numbers(running[1], (4,)))
    layer.eval()
    expected = vectors(paper.batch_norm(lists(y), *learned, running=running, log=log), shape[:-2])
    assert_same(layer(y), expected)
    assert_same(VF.batch_norm(y, bn, log=log), expected)


@modes
def test_batch_norm_authors_eps(mode):
    bn, log = randomized(vn.BatchNorm(4)).bn, mode == "log"
    for scale in (1.0, 1e-5):
        x = scale * draw(2, 3, 3, 4)
        expected = paper.batch_norm(lists(x), bn.weight.tolist(), bn.bias.tolist(), log=log, eps=1e-6)
        assert_same(VF.batch_norm(x, bn, log=log, eps=1e-6), vectors(expected, (2, 3)))


@modes
def test_batch_norm_of_short_vectors(mode):
    bn, log, x = randomized(vn.BatchNorm(4)).bn, mode == "log", draw(5, 3, 4)
    x[..., 0] *= 2e-3 * VF.norm(x).square().mean(-1, keepdim=True).sqrt() / VF.norm(x)[..., :1]
    expected = paper.batch_norm(lists(x), bn.weight.tolist(), bn.bias.tolist(), log=log)
    assert_same(VF.batch_norm(x, bn, log=log), vectors(expected, (5,)))


@every_shape
@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_layer_norm(shape, eps):
    layer, x = randomized(vn.LayerNorm(4, eps=eps)), draw(*shape) + 1
    expected = vectors(norm_of(layer, shape[0])(lists(x)), shape[:-2])
    assert_same(layer(x), expected)
    assert_same(VF.layer_norm(x, layer.weight, eps=eps), expected)
    unscaled = [paper.layer_norm(V, [1.0] * 4, 1e-5) for V in lists(x)]
    assert_same(VF.layer_norm(x), vectors(unscaled, shape[:-2]))


@set_shapes
@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_instance_norm(shape, eps):
    layer, x = randomized(vn.InstanceNorm(4, eps=eps)), draw(*shape) + 1
    expected = vectors(norm_of(layer, shape[0])(lists(x)), shape[:-2])
    assert_same(layer(x), expected)
    assert_same(VF.instance_norm(x, layer.weight, eps=eps), expected)
    unscaled = [V for sample in sets(x) for V in paper.instance_norm(sample, [1.0] * 4, 1e-5)]
    assert_same(VF.instance_norm(x), vectors(unscaled, shape[:-2]))
