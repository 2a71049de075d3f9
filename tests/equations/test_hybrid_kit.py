"""The hybrid kit against loops over elements, in float64."""

import math

import pytest
import torch

import vector_neurons as vn
from vector_neurons.geometry.neighbors import edge_features
from vector_neurons.nn import hybrid, scalar, vector
from vector_neurons.nn.hybrid import Channels, Features
from vector_neurons.testing import equivariance_error

from .compare import assert_same, draw, norm_of, randomized
from .test_hybrid import columns, dot, mapped, seen, soft_frames

NORMS = ["batch", "log-batch", "layer", "instance", "none"]


def lists(x):
    """Scalars `[sample][element][channel]` and vectors `[sample][element][channel][coordinate]`."""
    return x.scalars.tolist(), [[columns(v) for v in sample] for sample in x.vectors]


def tensors(scalars, vectors):
    return Features(torch.tensor(scalars, dtype=torch.float64), torch.tensor(vectors, dtype=torch.float64).mT)


def affine(layer, x):
    return [dot(row, x) + b for row, b in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)]


def scalar_norm(layer, samples):
    """Norms of scalars `[sample][element][channel]`: batch norm by its running statistics."""
    if isinstance(layer, scalar.BatchNorm):
        bn = layer.bn
        return [[standardize(x, bn.running_mean.tolist(), bn.running_var.tolist(), bn) for x in s] for s in samples]
    if isinstance(layer, scalar.LayerNorm):
        return [[standardize(x, [moments(x)[0]] * len(x), [moments(x)[1]] * len(x), layer) for x in s] for s in samples]
    if isinstance(layer, scalar.InstanceNorm):
        over = [[moments(channel) for channel in zip(*s, strict=True)] for s in samples]
        return [
            [standardize(x, [mean for mean, _ in m], [variance for _, variance in m], layer) for x in s]
            for s, m in zip(samples, over, strict=True)
        ]
    return samples


def moments(numbers):
    mean = sum(numbers) / len(numbers)
    return mean, sum((x - mean) ** 2 for x in numbers) / len(numbers)


def standardize(x, means, variances, layer):
    """`w (x - mean) / sqrt(variance + eps) + b` in every channel."""
    rows = zip(x, means, variances, layer.weight.tolist(), layer.bias.tolist(), strict=True)
    return [w * (y - m) / math.sqrt(v + layer.eps) + b for y, m, v, w, b in rows]


def run_block(layer, scalars, vectors, slope=0.2):
    frames = soft_frames(layer.frame.linear.weight.tolist(), vectors)
    weight, biases = layer.block.linear.weight.tolist(), layer.block.linear.bias
    biases = [0.0] * len(weight) if biases is None else biases.tolist()
    raw = []
    for b, sample in enumerate(scalars):
        inputs = [[*x, *seen(frames[b][n], vectors[b][n])] for n, x in enumerate(sample)]
        raw.append([[dot(row, x) + bias for row, bias in zip(weight, biases, strict=True)] for x in inputs])
    out = [[[y if y > 0 else slope * y for y in x] for x in part] for part in scalar_norm(layer.block.norm, raw)]
    flat = [mapped(layer.linear.weight.tolist(), V) for sample in vectors for V in sample]
    flat = iter(norm_of(layer.vector_norm, len(vectors))(flat))
    gated = [
        [
            [[u / (1 + math.exp(-g)) for u in v] for g, v in zip(affine(layer.gate, x), next(flat), strict=True)]
            for x in part
        ]
        for part in out
    ]
    return out, gated


def example(*sizes, channels=(2, 4)):
    return Features(draw(*sizes, channels[0]), draw(*sizes, 3, channels[1]))


def assert_both(found, expected):
    assert isinstance(found, Features)
    assert_same(found.scalars, expected.scalars)
    assert_same(found.vectors, expected.vectors)


@pytest.mark.parametrize("norm", NORMS)
def test_block(norm):
    layer, x = randomized(hybrid.Block((2, 4), (3, 5), norm=norm)).eval(), example(2, 6)
    assert_both(layer(x), tensors(*run_block(layer, *lists(x))))


def test_block_without_scalars_in():
    layer, x = randomized(hybrid.Block((0, 4), (3, 5), norm="none", negative_slope=0.0)), example(2, 6, channels=(0, 4))
    assert_both(layer(x), tensors(*run_block(layer, *lists(x), slope=0.0)))


def test_a_block_without_its_gate_is_caught():
    layer, x = randomized(hybrid.Block((2, 4), (3, 5), norm="none")), example(2, 6)
    expected = tensors(*run_block(layer, *lists(x)))
    ungated = Features(layer(x).scalars, layer.linear(x.vectors))
    with pytest.raises(AssertionError, match="relative error"):
        assert_both(ungated, expected)


def test_linear_and_mlp():
    layer, x = randomized(hybrid.MLP([(2, 4), (3, 5), (6, 2)], norm="none")), example(2, 6)
    block, linear = layer
    scalars, vectors = run_block(block, *lists(x))
    expected = tensors(
        [[affine(linear.scalars, y) for y in sample] for sample in scalars],
        [[mapped(linear.vectors.weight.tolist(), V) for V in sample] for sample in vectors],
    )
    assert_both(layer(x), expected)


def distance(a, b):
    (s, V), (t, W) = a, b
    return sum((x - y) ** 2 for x, y in zip(s, t, strict=True)) + sum(
        (x - y) ** 2 for v, w in zip(V, W, strict=True) for x, y in zip(v, w, strict=True)
    )


def minus(a, b):
    return [x - y for x, y in zip(a, b, strict=True)]


def crossed(a, b):
    return [a[(i + 1) % 3] * b[(i + 2) % 3] - a[(i + 2) % 3] * b[(i + 1) % 3] for i in range(3)]


@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("cross", [False, True])
def test_edge_conv(pool, cross):
    """The graph too: the nearest in scalars and vectors together."""
    layer = randomized(hybrid.EdgeConv((2, 3), [(4, 5), (3, 2)], k=3, cross=cross, pool=pool, norm="none"))
    x = example(2, 7, channels=(2, 3))
    scalars, vectors = lists(x)
    edge_scalars, edge_vectors = [], []
    for s, V in zip(scalars, vectors, strict=True):
        points = list(zip(s, V, strict=True))
        graph = [sorted(range(7), key=lambda m, n=n: distance(points[m], points[n]))[:3] for n in range(7)]
        pairs = [(m, n) for n, group in enumerate(graph) for m in group]
        edge_scalars.append([[*minus(s[m], s[n]), *s[n]] for m, n in pairs])
        products = [[crossed(v, w) for v, w in zip(V[m], V[n], strict=True)] if cross else [] for m, n in pairs]
        edge_vectors.append(
            [[*map(minus, V[m], V[n]), *V[n], *more] for (m, n), more in zip(pairs, products, strict=True)]
        )
    for block in layer.blocks:
        edge_scalars, edge_vectors = run_block(block, edge_scalars, edge_vectors)
    reduce = max if pool == "max" else (lambda column: sum(column) / 3)
    groups = [[part[3 * n : 3 * n + 3] for n in range(7)] for part in edge_scalars]
    pooled = [[[reduce(column) for column in zip(*group, strict=True)] for group in part] for part in groups]
    means = [
        [
            [[sum(edge[c][i] for edge in part[3 * n : 3 * n + 3]) / 3 for i in range(3)] for c in range(2)]
            for n in range(7)
        ]
        for part in edge_vectors
    ]
    assert_both(layer(x), tensors(pooled, means))


@pytest.mark.parametrize("pool", [hybrid.MeanPool(), hybrid.MaxPool((2, 4))], ids=["mean", "max"])
def test_pools_over_points_that_exist(pool):
    x, mask = example(2, 6), torch.arange(6) < torch.tensor([[6], [4]])
    reduce = max if isinstance(pool, hybrid.MaxPool) else (lambda column: sum(column) / len(column))
    scalars, vectors = [], []
    for (s, V), length in zip(zip(*lists(x), strict=True), (6, 4), strict=True):
        scalars.append([reduce(column) for column in zip(*s[:length], strict=True)])
        vectors.append([[sum(W[c][i] for W in V[:length]) / length for i in range(3)] for c in range(4)])
    assert_both(pool(x, mask), tensors(scalars, vectors))


@pytest.mark.parametrize("project_mean", [False, True])
def test_invariant(project_mean):
    layer, x = randomized(hybrid.Invariant((2, 4), frame="linear", project_mean=project_mean)), example(2, 6)
    expected = []
    for s, V in zip(*lists(x), strict=True):
        mean = [[sum(W[c][i] for W in V) / 6 for i in range(3)] for c in range(4)]
        frames = [mapped(layer.vectors.to_frame[0].weight.tolist(), [*W, *mean]) for W in V]
        expected.append(
            [[*y, *seen(frame, [*W, *mean] if project_mean else W)] for y, W, frame in zip(s, V, frames, strict=True)]
        )
    scalars, frame = layer(x, return_frame=True)
    together = torch.tensor(expected, dtype=torch.float64)
    assert_same(scalars, together)
    assert scalars.shape[-1] == layer.out_channels
    largest, mean, same = layer(x, pool=True)
    assert_same(largest, together.amax(1))
    assert_same(mean, together.mean(1))
    assert torch.equal(frame, same)
    assert_same(layer.project(x, frame), torch.cat([x.scalars, vn.Invariant.project(x.vectors, frame)], dim=-1))


def test_attention():
    """Two heads, each with half of the scalars and half of the vectors, to a padded context."""
    layer = randomized(hybrid.Attention((4, 2), heads=2, context_channels=(3, 5)))
    x, context, lengths = example(2, 6, channels=(4, 2)), example(2, 5, channels=(3, 5)), (5, 3)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]

    def projected(linear, s, V):
        return affine(linear.scalars, s), mapped(linear.vectors.weight.tolist(), V)

    scalars, vectors = [], []
    for b, length in enumerate(lengths):
        (s, V), (t, W) = ([part[b] for part in lists(y)] for y in (x, context))
        queries = [projected(layer.query, *pair) for pair in zip(s, V, strict=True)]
        keys, values = (
            [projected(linear, *pair) for pair in zip(t[:length], W[:length], strict=True)]
            for linear in (layer.key, layer.value)
        )
        for q_s, q_v in queries:
            mixed_s, mixed_v = [], []
            for head in range(2):
                part, one = slice(2 * head, 2 * head + 2), slice(head, head + 1)
                scores = [
                    (dot(q_s[part], k_s[part]) + sum(map(dot, q_v[one], k_v[one]))) / math.sqrt(2 + 3)
                    for k_s, k_v in keys
                ]
                weights = [math.exp(score - max(scores)) for score in scores]
                weights = [w / sum(weights) for w in weights]
                pairs = list(zip(weights, values, strict=True))
                mixed_s += [sum(w * value[0][c] for w, value in pairs) for c in range(2 * head, 2 * head + 2)]
                mixed_v += [[sum(w * value[1][head][i] for w, value in pairs) for i in range(3)]]
            out = projected(layer.out, mixed_s, mixed_v)
            scalars.append(out[0])
            vectors.append(out[1])
    expected = tensors(scalars, vectors).map(lambda y: y.unflatten(0, (2, 6)))
    context = context.map(lambda y: y.where(mask.view(2, 5, *[1] * (y.ndim - 2)), torch.nan))  # anything
    assert_both(layer(x, context, mask), expected)


EACH_KIND = {
    "LeakyReLU": {"negative_slope": 0.1},
    "Activation": {"h": torch.tanh},
    "BatchNorm": {},
    "LayerNorm": {"eps": 1e-3},
    "InstanceNorm": {"eps": 1e-3},
}


@pytest.mark.parametrize("name", EACH_KIND)
def test_each_kind_has_the_layer_of_its_kit(name):
    layer, x = randomized(getattr(hybrid, name)((2, 4), **EACH_KIND[name])), example(2, 6)
    for kit, part, channels, y in ((scalar, "scalars", 2, x.scalars), (vector, "vectors", 4, x.vectors)):
        alone = getattr(kit, name)(channels, **EACH_KIND[name]).double()
        alone.load_state_dict(getattr(layer, part).state_dict())
        assert torch.equal(getattr(layer(x), part), alone(y))


def test_no_norm_is_the_identity():
    x = example(2, 6)
    assert all(map(torch.equal, hybrid.NORMS["none"]((2, 4))(x, None), x))


def test_dropout_zeroes_scalars_and_whole_vectors():
    x = Features(torch.ones(2, 500, 2), torch.ones(2, 500, 3, 4))
    y = hybrid.Dropout(0.4).train()(x)
    assert torch.equal(y.vectors, y.vectors[..., :1, :].expand_as(y.vectors))
    for kind in y:
        assert 0.3 < (kind == 0).double().mean() < 0.5


def test_lift():
    points, normals, colors = draw(2, 6, 3), draw(2, 6, 3), draw(2, 6, 2)
    x = hybrid.lift(points, normals, scalars=colors)
    assert torch.equal(x.scalars, colors)
    assert torch.equal(x.vectors, torch.stack([points, normals], dim=-1))
    assert hybrid.lift(points).channels == hybrid.width(3) == Channels(0, 1)


@pytest.mark.parametrize("channels", [3, 4, 6, 12, 64, 341, 1024])
def test_width_keeps_the_number_of_floats(channels):
    split = hybrid.width(channels)
    assert split.floats == channels
    assert split.vectors == max(1, channels // 6)


def test_channels_add_up_kind_by_kind():
    a, b = Channels(8, 4), Channels(6, 2)
    assert sum([a, b]) == a + b == Channels(14, 6)
    assert 2 * a == a * 2 == a + a
    with pytest.raises(TypeError):
        1 + a


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: hybrid.Block((2, 4), (3, 5))(x.vectors), "takes Features\\(scalars, vectors\\), got a Tensor"),
        (lambda x: hybrid.Block((2, 5), (3, 5))(x), "Block takes vectors"),
        (lambda x: hybrid.Linear((3, 4), (3, 5))(x), "Linear takes features"),
        (lambda x: hybrid.Linear((0, 4), (3, 5)), "there are none in: start with a Block"),
        (lambda x: hybrid.Block((2, 4), (3, 5))(Features(x.scalars[:, :3], x.vectors)), "of the same elements"),
        (lambda x: hybrid.EdgeConv((2, 4), (3, 5), k=0), "needs k >= 1"),
        (lambda x: hybrid.EdgeConv((2, 4), (3, 5), pool="sum"), "unknown pool 'sum'"),
        (lambda x: hybrid.EdgeConv((2, 4), (3, 5))(x, torch.zeros(2, 5, 1).long()), "a graph of"),
        (lambda x: hybrid.Block((2, 4), (3, 5), norm="group"), "unknown norm 'group'"),
        (lambda x: hybrid.Block((2, 4), (3, 5), direction="up"), "unknown direction 'up'"),
        (lambda x: hybrid.Attention((3, 4), heads=2), "3 scalars do not divide among 2 heads"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_errors_say_what_is_wrong(call, words):
    with pytest.raises((ValueError, TypeError), match=words) as error:
        call(example(2, 6))
    assert "\n" not in str(error.value)


def test_a_constant_vector_is_caught():
    """Negative control: with a bias on its vectors a block is not equivariant."""
    layer, x = randomized(hybrid.Block((2, 4), (3, 5), norm="none")), example(2, 6)

    def biased(s, v):
        y = layer(Features(s, v))
        return Features(y.scalars, y.vectors + 1)

    options = (tuple(reversed(x)), ("vectors", "scalars"), ("scalars", "vectors"), "O3")
    assert equivariance_error(lambda v, s: layer(Features(s, v)), *options) <= 1e-12
    assert equivariance_error(lambda v, s: biased(s, v), *options) > 1e-2


def test_edges_are_those_of_each_kind():
    layer, x = hybrid.EdgeConv((2, 4), (3, 5), k=3, norm="none").double(), example(2, 6)
    graph = vn.knn(x.flat(), 3)
    edges = Features(edge_features(x.scalars, graph), edge_features(x.vectors, graph))
    assert_both(layer(x, graph), hybrid.MeanPool()(layer.blocks[0](edges)))


def test_gradients():
    x = example(2, 5).map(lambda y: y.requires_grad_())
    for layer in (hybrid.EdgeConv((2, 4), (3, 2), k=3, norm="none"), hybrid.Attention((2, 4), heads=2)):
        layer.double()
        assert torch.autograd.gradcheck(lambda *kinds, layer=layer: tuple(layer(Features(*kinds))), tuple(x))
