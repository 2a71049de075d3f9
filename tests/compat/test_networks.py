"""The authors' networks on compat layers, against the same networks on a plain transcription of theirs."""

import pytest
import torch
from models import reference as authors

from vector_neurons.compat import vnn
from vector_neurons.geometry import rotations
from vector_neurons.testing import relative_error

from . import networks, plain

NETWORKS = {
    "vn_pointnet_cls": networks.VNPointNetCls,
    "vn_pointnet_partseg": networks.VNPointNetPartSeg,
    "vn_dgcnn_cls": networks.VNDGCNNCls,
    "vn_dgcnn_partseg": networks.VNDGCNNPartSeg,
}
EIGHT = [(name, pooling) for name in NETWORKS for pooling in ("mean", "max")]


def points(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def both(build, state, training):
    """The network on compat layers and on plain ones, with the same weights."""
    pair = [build(layers).double().train(training) for layers in (vnn, plain)]
    for network in pair:
        network.load_state_dict(state)
    return pair


def gradients(network, *arguments):
    x = arguments[0].clone().requires_grad_()
    y = network(x, *arguments[1:])
    (y * points(*y.shape, seed=2)).sum().backward()
    found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return y.detach(), {**found, "input": x.grad}


def compare(pair, *arguments):
    """Outputs and gradients agree to 1e-12, or as well as the plain network with itself when its input is rounded.

    (In training some of these networks move by 1e-11, and their gradients by 1e-10, with the last bit of their input.)
    """
    ours, theirs = pair
    (found, own), (expected, gradient) = (gradients(network, *arguments) for network in pair)
    for parameter in theirs.parameters():
        parameter.grad = None
    last_bit = 2**-52 * points(*arguments[0].shape, seed=4).sign()
    moved, moved_gradient = gradients(theirs, arguments[0] * (1 + last_bit), *arguments[1:])
    allowed = max(1e-12, 4 * relative_error(moved, expected))
    assert relative_error(found, expected) <= allowed
    assert own.keys() == {name for name, p in ours.named_parameters() if p.requires_grad} | {"input"}
    largest = max(float(g.norm()) for g in gradient.values())
    for name in own:
        error, conditioning = (float((g[name] - gradient[name]).norm()) for g in (own, moved_gradient))
        assert error <= max(1e-12 * max(float(gradient[name].norm()), 1e-3 * largest), 8 * conditioning), name
    return found, allowed


@pytest.mark.parametrize(("name", "pooling"), EIGHT, ids=["-".join(pair) for pair in EIGHT])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_the_authors_eight_networks_with_only_the_imports_changed(name, pooling, training):
    state = authors.random_state(name, pooling=pooling, generator=torch.Generator().manual_seed(0))
    pair = both(lambda layers: NETWORKS[name](layers, pooling, n_knn=8), state, training)
    labels = [torch.eye(16, dtype=torch.float64)[:3].unsqueeze(1)] if name.endswith("partseg") else []
    y, allowed = compare(pair, points(3, 3, 20), *labels)
    assert training or allowed <= 1e-12
    # A third formulation, which knows no layers: the two above are not wrong together.
    label = [t.squeeze(1) for t in labels]
    expected = getattr(authors, name)(state, points(3, 3, 20), *label, k=8, training=training)
    assert relative_error(y, expected) <= allowed


def randomized(network):
    generator = torch.Generator().manual_seed(0)
    return {k: torch.randn(t.shape, generator=generator, dtype=torch.float64) for k, t in network.state_dict().items()}


def test_ndfs_occupancy_network():
    pair = both(networks.VNOccNet, randomized(networks.VNOccNet(plain)), True)
    cloud, queries = points(2, 30, 3), points(2, 7, 3, seed=3)
    compare(pair, cloud, queries)
    R = rotations.draw("SO3", 1, dtype=torch.float64)[0]
    torch.testing.assert_close(pair[0](cloud @ R.mT, queries @ R.mT), pair[0](cloud, queries))


LAYERS = {
    "VNLinear": ((6, 4), {}),
    "VNSimpleLinear": ((6, 4), {}),
    "VNLeakyReLU": ((6,), {}),
    "VNLeakyReLU shared": ((6, True, 0.1), {}),
    "VNBatchNorm": ((6, 4), {}),
    "VNLinearLeakyReLU": ((6, 4, 4), {}),
    "VNLinearLeakyReLU without norm": ((6, 4), {"use_batchnorm": False}),
    "VNLinearAndLeakyReLU": ((6, 4, 4), {}),
    "VNMaxPool": ((6,), {}),
    "VNMaxPool shared": ((6,), {"share_nonlinearity": True}),
    "VNStdFeature": ((8,), {}),
    "VNStdFeature orthonormal": ((8,), {"normalize_frame": True, "use_batchnorm": False}),
    "VNResnetBlockFC": ((6,), {}),
    "VNResnetBlockFC narrower": ((6, 4, 5), {"negative_slope": 0.0}),
    "VNLayerNorm": ((6,), {}),
    "VNSoftplus": ((6,), {}),
    "VNSoftplus shared": ((6, True, 0.3), {}),
    "VNMeanPool": ((), {}),
    "VNMeanPool of three": ((3,), {}),
}


def layers(name):
    arguments, keywords = LAYERS[name]
    return [getattr(layers, name.split()[0])(*arguments, **keywords).double() for layers in (vnn, plain)]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("order", ["contiguous", "transposed"])
def test_layers_are_the_authors_and_their_results_can_be_viewed(name, order):
    ours, theirs = layers(name)
    state = {k: t + 1 if "running" in k else t for k, t in randomized(theirs).items()}
    state = {k: t.abs() if "running" in k else t for k, t in state.items()}
    ours.load_state_dict(state)
    theirs.load_state_dict(state)
    channels = 8 if name.startswith("VNStdFeature") else 6
    x = points(2, channels, 3, 11) if order == "contiguous" else points(2, 11, 3, channels).transpose(1, -1)
    found, expected = ours(x), theirs(x)
    for a, b in zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]:
        assert relative_error(a, b) <= 1e-12
        assert a.is_contiguous()


FUNCTIONS = {
    "get_graph_feature": {"k": 4},
    "get_graph_feature_cross": {"k": 4},
    "get_graph_mean": {"k": 4},
    "get_shell_mean_cross": {"k": 2, "nk": 3},
    "mean_pool": {},
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("order", ["contiguous", "transposed"])
def test_functions_are_the_authors_and_their_results_can_be_viewed(name, order):
    x = points(2, 5, 3, 11) if order == "contiguous" else points(2, 11, 3, 5).transpose(1, -1)
    found, expected = (getattr(layers, name)(x, **FUNCTIONS[name]) for layers in (vnn, plain))
    assert relative_error(found, expected) <= 1e-12
    assert found.is_contiguous()
    assert vnn.knn(x.reshape(2, 15, 11), 4).is_contiguous()


def test_every_name_is_compared():
    tested = {name.split()[0] for name in [*LAYERS, *FUNCTIONS]} | {"EPS", "VNBilinear", "knn"}
    assert tested == set(vnn.__all__)


def test_bilinear():
    ours, theirs = vnn.VNBilinear(6, 5, 4).double(), plain.VNBilinear(6, 5, 4).double()
    theirs.load_state_dict(ours.state_dict())
    x, labels = points(2, 6, 3), points(2, 1, 5, seed=2)
    torch.testing.assert_close(ours(x, labels), theirs(x, labels))
    at_points = ours(points(2, 6, 3, 9), labels)
    assert at_points.is_contiguous()
    torch.testing.assert_close(at_points[..., 4], ours(points(2, 6, 3, 9)[..., 4], labels))
    with pytest.raises(ValueError, match="one label for each sample"):
        ours(x, points(2, 3, 5))


def test_softplus_has_finite_gradients_where_a_vector_is_parallel_to_its_direction():
    layer = vnn.VNSoftplus(2).double()
    torch.nn.init.eye_(layer.map_to_dir.weight)
    x = (1e6 * points(1, 2, 3, 4)).requires_grad_()
    layer(x).sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: vnn.VNLinearLeakyReLU(6, 4, 5, False, False), "write use_batchnorm=False"),
        (lambda: vnn.VNLinearLeakyReLU(6, 4, 5, False, True), "write use_batchnorm=True"),
        (lambda: vnn.VNStdFeature(8, 4, False, False, False), "write use_batchnorm=False"),
        (lambda: vnn.VNLeakyReLU(6, False, True), "a flag where a slope is expected"),
        (lambda: vnn.VNLinearAndLeakyReLU(6, 4, negative_slope=False), "a flag where a slope is expected"),
        (lambda: vnn.VNSoftplus(6, negative_slope=True), "a flag where a slope is expected"),
        (lambda: vnn.VNResnetBlockFC(6, negative_slope=False), "a flag where a slope is expected"),
        (lambda: vnn.VNLinearLeakyReLU(6, 4, use_batchnorm="norm"), "True or False, got 'norm'"),
        (lambda: vnn.VNLinearAndLeakyReLU(6, 4, use_batchnorm=False), "'norm', 'log' or 'none', got False"),
        (lambda: vnn.VNBatchNorm(6, mode="norm_log"), "unknown batch norm mode 'norm_log'"),
        (lambda: vnn.VNLinear(6, 4, bias=True), "VNLinear has no bias"),
        (lambda: vnn.VNLinear(6, 4, bias_epsilon=1e-6), "VNLinear has no bias"),
        (lambda: vnn.VNSimpleLinear(6, 4, bias=True), "VNSimpleLinear has no bias"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_arguments_of_other_copies_are_refused_in_one_line(build, words):
    with pytest.raises((TypeError, ValueError), match=words) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_a_bias_that_is_switched_off_is_none():
    assert set(vnn.VNLinear(6, 4, bias=False, bias_epsilon=0.0).state_dict()) == {"map_to_feat.weight"}
