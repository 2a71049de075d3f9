"""The networks: their sizes, their symmetries, clouds of different sizes, further inputs, every choice of the paper."""

import pytest
import torch

from vector_neurons import kernels, knn
from vector_neurons.models import (
    DGCNN,
    DGCNNSegmenter,
    FrameNet,
    FrameNetSegmenter,
    Inputs,
    LayerOptions,
    OccupancyNetwork,
    PointNet,
    PointNetSegmenter,
    VNTransformer,
)
from vector_neurons.nn import KITS
from vector_neurons.testing import equivariance_error
from vector_neurons.testing.measure import tensors_in

CLASSIFIERS = [DGCNN, PointNet, VNTransformer, FrameNet]
SEGMENTERS = [DGCNNSegmenter, PointNetSegmenter, FrameNetSegmenter]
FRAMENETS = [FrameNet, FrameNetSegmenter]
NETWORKS = [*CLASSIFIERS, *SEGMENTERS]
# The paper's shapes, a tenth of the width: what holds for these holds for those.
SMALL = {
    DGCNN: {"classes": 5, "k": 8, "widths": (12, 12, 24, 24), "embedding": 48, "hidden": (32, 16)},
    PointNet: {"classes": 5, "k": 8, "widths": ((12,), (24,)), "embedding": 48, "hidden": (32, 16)},
    VNTransformer: {"classes": 5, "k": 8, "width": 48, "heads": 4, "depth": 2, "hidden": 32},
    FrameNetSegmenter: {"parts": 7, "categories": 3, "k": 8, "k_last": 3, "width": 16, "hidden": (32, 16)},
    FrameNet: {"classes": 5, "k": 8, "k_last": 3, "width": 16, "hidden": 32},
    DGCNNSegmenter: {"parts": 7, "categories": 3, "k": 8, "widths": ((12, 12), (12, 12), (12,)), "embedding": 48},
    PointNetSegmenter: {"parts": 7, "categories": 3, "k": 8, "widths": ((12, 24, 24), (36,)), "embedding": 48},
}
every_network = pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.__name__)
every_classifier = pytest.mark.parametrize("network", CLASSIFIERS, ids=lambda n: n.__name__)
equivariant = pytest.mark.parametrize("neurons", ["vector", "hybrid"])
every_neurons = pytest.mark.parametrize("neurons", ["vector", "scalar", "hybrid"])


def small(network, dtype=torch.float64, **arguments):
    if network in FRAMENETS and arguments.get("neurons") == "hybrid":
        pytest.skip("FrameNet has scalars beside vectors already")
    torch.manual_seed(0)
    return network(**{**SMALL[network], **arguments}).to(dtype).eval()


def clouds(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs_for(network, points):
    return (points, torch.arange(len(points)) % 3) if network in SEGMENTERS else (points,)


def kinds(network):
    return ("points", "scalars") if network in SEGMENTERS else "points"


@pytest.mark.parametrize(
    ("network", "neurons", "count"),
    [
        (DGCNN, "vector", 2_899_830),
        (DGCNN, "scalar", 1_809_576),
        (PointNet, "vector", 1_972_745),
        (PointNet, "scalar", 3_471_473),
        (DGCNNSegmenter, "vector", 1_306_090),
        (PointNetSegmenter, "vector", 5_080_419),
        # The classical segmenters as published: DGCNN's with its T-Net, PointNet's with two.
        (DGCNNSegmenter, "scalar", 1_460_361),
        (PointNetSegmenter, "scalar", 8_342_395),
        (DGCNN, "hybrid", 2_283_274),
        (PointNet, "hybrid", 1_675_968),
        (DGCNNSegmenter, "hybrid", 919_693),
        (PointNetSegmenter, "hybrid", 3_442_580),
        (VNTransformer, "hybrid", 525_519),
    ],
)
def test_parameter_counts(network, neurons, count):
    assert sum(p.numel() for p in network(neurons=neurons).parameters()) == count


@every_network
@equivariant
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_no_rotation_changes_an_equivariant_network(network, neurons, dtype):
    bound = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    module, inputs = small(network, dtype, neurons=neurons), inputs_for(network, clouds(2, 128, 3, dtype=dtype))
    assert equivariance_error(module, inputs, kinds(network), "scalars") <= bound
    if network is not PointNet and network is not PointNetSegmenter:
        assert equivariance_error(module, inputs, kinds(network), "scalars", "O3") <= bound


@equivariant
@pytest.mark.parametrize("network", [PointNet, PointNetSegmenter], ids=lambda n: n.__name__)
def test_cross_products_see_reflections(network, neurons):
    module, inputs = small(network, neurons=neurons).train(), inputs_for(network, clouds(2, 128, 3))
    assert equivariance_error(module, inputs, kinds(network), "scalars", "O3") > 1e-3
    assert equivariance_error(module, inputs, kinds(network), "scalars", "SO3") <= 1e-11


@every_network
def test_rotations_change_a_scalar_network(network):
    module, inputs = small(network, neurons="scalar"), inputs_for(network, clouds(2, 128, 3))
    assert equivariance_error(module, inputs, kinds(network), "scalars") > 1e-2


@every_network
@every_neurons
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_the_order_of_points_does_not_matter(network, neurons, dtype):
    bound = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    module = small(network, dtype, neurons=neurons)
    inputs = inputs_for(network, clouds(2, 128, 3, dtype=dtype))
    assert equivariance_error(module, inputs, kinds(network), "scalars", "permutation") <= bound


@equivariant
@pytest.mark.parametrize("network", [DGCNN, PointNet, VNTransformer], ids=lambda n: n.__name__)
def test_in_full_size_too(network, neurons):
    module, points = network(neurons=neurons).eval(), clouds(2, 256, 3, dtype=torch.float32)
    assert equivariance_error(module, points, "points", "scalars", trials=1) <= 1e-5
    assert equivariance_error(module.double(), points.double(), "points", "scalars", trials=1) <= 1e-12


@every_network
@equivariant
def test_bfloat16_autocast(network, neurons):
    module = small(network, torch.float32, neurons=neurons)
    inputs = inputs_for(network, clouds(2, 128, 3, dtype=torch.float32))

    def autocast(*inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module(*inputs)

    assert equivariance_error(autocast, inputs, kinds(network), "scalars", trials=2) <= 2e-2


NORMED = [
    (network, {"layers": LayerOptions(norm=norm)})
    for network in (DGCNN, PointNet, DGCNNSegmenter, PointNetSegmenter)
    for norm in ("batch", "layer", "instance")
]


@every_neurons
@pytest.mark.parametrize(("network", "norm"), [(VNTransformer, {}), *NORMED], ids=str)
def test_a_padded_cloud_gives_what_it_gives_alone(network, neurons, norm):
    module, points = small(network, neurons=neurons, **norm), 3 * clouds(3, 60, 3)
    lengths = torch.tensor([60, 37, 20])
    inputs = inputs_for(network, points)
    together = module(*inputs, lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        alone = module(points[b : b + 1, :length], *(i[b : b + 1] for i in inputs[1:]))[0]
        there = together[b, :length] if network in SEGMENTERS else together[b]
        torch.testing.assert_close(there, alone, rtol=1e-9, atol=1e-11)


@every_network
@every_neurons
def test_padding_does_not_enter_the_statistics_of_training(network, neurons):
    points = clouds(4, 40, 3)
    padded = torch.cat([points, 5 + clouds(4, 25, 3, seed=1)], dim=1)
    lengths = torch.full((4,), 40)
    plain, masked = (small(network, neurons=neurons, dropout=0.0).train() for _ in range(2))
    expected = plain(*inputs_for(network, points))
    found = masked(*inputs_for(network, padded), lengths=lengths)
    torch.testing.assert_close(found[:, :40] if network in SEGMENTERS else found, expected, rtol=1e-8, atol=1e-10)
    for (name, a), b in zip(plain.named_buffers(), masked.buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


@every_network
@equivariant
def test_whatever_stands_in_the_padding(network, neurons):
    module, points = small(network, neurons=neurons), clouds(2, 40, 3)
    lengths = torch.tensor([40, 25])
    expected = module(*inputs_for(network, points), lengths=lengths)
    points[1, 25:] = torch.nan
    module.zero_grad()
    found = module(*inputs_for(network, points), lengths=lengths)
    found = found[:, :25] if network in SEGMENTERS else found
    torch.testing.assert_close(found, expected[:, :25] if network in SEGMENTERS else expected)
    found.sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("lengths", "words"),
    [([30], "2 clouds need as many lengths"), ([30, 0], "must be 1 to 30"), ([31, 30], "must be 1 to 30")],
)
def test_impossible_lengths_are_named(lengths, words):
    with pytest.raises(ValueError, match=words):
        small(PointNet)(clouds(2, 30, 3), lengths=torch.tensor(lengths))


@equivariant
@pytest.mark.parametrize("network", SEGMENTERS, ids=lambda n: n.__name__)
def test_a_point_s_own_color_matters_to_its_part(network, neurons):
    module = small(network, neurons=neurons, inputs=Inputs(scalars=3))
    points, colors = clouds(2, 40, 3), clouds(2, 40, 3, seed=1)
    inputs = inputs_for(network, points)
    before = module(*inputs, scalars=colors)
    colors[0, 7] -= 1e-3
    assert (module(*inputs, scalars=colors) - before)[0, 7].abs().max() > 1e-9


@pytest.mark.parametrize("network", [DGCNN, PointNet, DGCNNSegmenter], ids=lambda n: n.__name__)
@pytest.mark.parametrize("norm", ["layer", "instance", "none"])
@equivariant
def test_one_cloud_can_train_a_network_without_batch_norm(network, neurons, norm):
    module = small(network, neurons=neurons, layers=LayerOptions(norm=norm)).train()
    assert module(*inputs_for(network, clouds(1, 40, 3))).isfinite().all()


def test_too_short_a_cloud_is_named():
    with pytest.raises(ValueError, match="k=8 neighbors in a cloud with 5 points"):
        small(DGCNN)(clouds(2, 30, 3), lengths=torch.tensor([30, 5]))


@every_classifier
def test_encode(network):
    module, points = small(network), clouds(2, 64, 3)
    kind = ("vectors", "frames", "scalars")
    assert equivariance_error(module.encode, points, "points", kind) <= 1e-10
    features, frame, descriptor = module.encode(points)
    elements = 8 if network is FrameNet else 64  # its last centers
    assert features.shape[:3] == (2, elements, 3)
    assert frame.shape == (2, elements, 3, 3)
    torch.testing.assert_close(module.head(descriptor), module(points))


@pytest.mark.parametrize("network", [DGCNN, PointNet, VNTransformer], ids=lambda n: n.__name__)
def test_encode_of_a_hybrid_network_has_both_kinds(network):
    module, points = small(network, neurons="hybrid"), clouds(2, 64, 3)
    kind = ("scalars", "vectors", "frames", "scalars")
    assert equivariance_error(module.encode, points, "points", kind) <= 1e-10
    features, frame, descriptor = module.encode(points)
    assert features.scalars.shape[:2] == (2, 64)
    assert features.vectors.shape[:3] == (2, 64, 3)
    assert frame.shape == (2, 64, 3, 3)
    torch.testing.assert_close(module.head(descriptor), module(points))


@every_classifier
def test_encode_of_a_scalar_network_has_no_frame(network):
    features, frame, _ = small(network, neurons="scalar").encode(clouds(2, 64, 3))
    assert features.ndim == 3
    assert frame is None


@every_network
@every_neurons
def test_normals_turn_and_colors_do_not(network, neurons):
    module = small(network, neurons=neurons, inputs=Inputs(vectors=1, scalars=3))
    points, normals, colors = clouds(2, 64, 3), clouds(2, 64, 3, 1, seed=1), clouds(2, 64, 3, seed=2)
    segments = network in SEGMENTERS
    inputs = (*inputs_for(network, points), normals, colors)
    takes = ("points", *(["scalars"] if segments else []), "vectors", "scalars")
    error = equivariance_error(module, inputs, takes, "scalars")
    assert error <= 1e-11 if neurons != "scalar" else error > 1e-3
    plain = module(*inputs)
    other = (*inputs[:-1], colors + 1)
    assert not torch.allclose(module(*other), plain)
    turned = (*inputs[:-2], normals.flip(2), colors)
    assert not torch.allclose(module(*turned), plain)
    with pytest.raises(ValueError, match="1 further vectors per point, got 0"):
        module(*inputs_for(network, points))


@pytest.mark.parametrize("network", [DGCNN, PointNet, DGCNNSegmenter, PointNetSegmenter], ids=lambda n: n.__name__)
@pytest.mark.parametrize(
    "choice",
    [
        {"direction": "output"},
        {"pool": "max"},
        {"frame": "linear"},
        {"mean": False},
        {"frame": "linear", "mean": False},
        {"project_mean": False},
        {"norm": "log-batch"},
        {"norm": "none"},
    ],
    ids=str,
)
@equivariant
def test_every_choice_of_the_paper(network, neurons, choice):
    module = small(network, neurons=neurons, layers=LayerOptions(**choice))
    inputs = inputs_for(network, clouds(2, 64, 3))
    assert equivariance_error(module, inputs, kinds(network), "scalars", trials=1) <= 1e-10
    module.train()(*inputs).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)


@equivariant
@pytest.mark.parametrize("pool", ["mean", "max", "attention"])
def test_pools_of_the_transformer(pool, neurons):
    module = small(VNTransformer, neurons=neurons, pool=pool)
    assert equivariance_error(module, clouds(2, 64, 3), "points", "scalars", trials=1) <= 1e-12


@equivariant
def test_a_graph_in_coordinates_is_one_graph(neurons):
    feature, coordinates = small(DGCNN, neurons=neurons), small(DGCNN, neurons=neurons, graph="coordinates")
    assert not torch.allclose(feature(clouds(2, 64, 3)), coordinates(clouds(2, 64, 3)))
    assert equivariance_error(coordinates, clouds(2, 64, 3), "points", "scalars", trials=1) <= 1e-12


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: DGCNN(graph="spatial"), '"feature" or "coordinates"'),
        (lambda: DGCNN(layers=LayerOptions(pool="sum")), "unknown pool 'sum'"),
        (lambda: VNTransformer(width=100, heads=4), "33 channels do not divide among 4 heads"),
        (lambda: VNTransformer(neurons="hybrid", width=96, heads=5), "48 scalars do not divide among 5 heads"),
        (lambda: FrameNet(neurons="hybrid"), "has scalars beside vectors already: choose vector or scalar"),
        (lambda: OccupancyNetwork(neurons="hybrid"), "has vector or scalar neurons"),
        (lambda: DGCNN(layers=LayerOptions(norm="group")), "unknown norm 'group'"),
        (lambda: DGCNN(neurons="vec"), "unknown neurons 'vec'"),
        (lambda: DGCNN(inputs=Inputs(vectors=-1)), "must not be negative"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_impossible_choices_are_refused(build, words):
    with pytest.raises(ValueError, match=words):
        build()


@pytest.mark.usefixtures("unchecked")
def test_further_inputs_of_the_wrong_shape_are_explained():
    module = small(DGCNN, inputs=Inputs(vectors=1))
    with pytest.raises(ValueError, match=r"one vector per point is \(B, N, 3, 1\)"):
        module(clouds(2, 40, 3), vectors=clouds(2, 40, 3))
    with pytest.raises(ValueError, match="as many category indices"):
        small(DGCNNSegmenter)(clouds(2, 40, 3), torch.eye(3)[:2].long())


@every_network
@equivariant
def test_every_parameter_that_trains_gets_a_gradient(network, neurons):
    """What distributed training waits for."""
    options = {} if network in (VNTransformer, *FRAMENETS) else {"layers": LayerOptions(pool="max")}
    module = small(network, neurons=neurons, **options).train()
    module(*inputs_for(network, clouds(2, 40, 3))).square().sum().backward()
    missing = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
    assert not missing, f"{network.__name__}: {missing}"


@pytest.mark.usefixtures("unchecked")
def test_a_cloud_must_be_a_cloud():
    with pytest.raises(ValueError, match=r"takes clouds \(B, N, 3\), got \(2, 64, 4\)"):
        DGCNN(k=4).eval()(torch.zeros(2, 64, 4))


@pytest.mark.parametrize("body", ["eager", "native"])
@every_neurons
@every_network
def test_a_batch_without_clouds(network, neurons, body):
    model, points = small(network, torch.float32, neurons=neurons), torch.empty(0, 24, 3)
    with kernels.using(body):
        for lengths in (None, torch.empty(0, dtype=torch.long)):
            logits = model(*inputs_for(network, points), lengths=lengths)
            assert logits.shape == (0, 24, 7) if network in SEGMENTERS else (0, 5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's own attention
@every_classifier
@equivariant
def test_networks_under_vmap(network, neurons):
    factor = 3 if network is FrameNet else 1  # it has fewer centers than points
    model, points = small(network, neurons=neurons), clouds(3, 2, 24 * factor, 3)
    together = torch.func.vmap(model)(points)
    assert (together - torch.stack([model(x) for x in points])).abs().max() < 1e-10
    lengths = factor * torch.tensor([[24, 20], [9, 24], [24, 24]])
    together = torch.func.vmap(lambda x, n: model(x, lengths=n))(points, lengths)
    assert (
        together - torch.stack([model(x, lengths=n) for x, n in zip(points, lengths, strict=True)])
    ).abs().max() < 1e-10


@every_neurons
def test_a_given_graph_under_vmap(neurons):
    kit = KITS[neurons]
    points = clouds(3, 2, 24, 3)
    module = kit.EdgeConv(kit.width(3), kit.width(18), k=4).double().eval()
    features, graphs = kit.lift(points), torch.stack([knn(x, 4) for x in points])
    together = torch.func.vmap(module)(features, graphs)
    for b, (x, g) in enumerate(zip(points, graphs, strict=True)):
        for found, expected in zip(tensors_in(together), tensors_in(module(kit.lift(x), g)), strict=True):
            assert (found[b] - expected).abs().max() < 1e-10
