"""Occupancy networks: the equations of the three methods, their symmetries, the authors' state dicts."""

import pytest
import torch

from vector_neurons import kernels
from vector_neurons.geometry import rotations
from vector_neurons.models import OccupancyNetwork, reference, store
from vector_neurons.models.occupancy_decoder import Code
from vector_neurons.testing import relative_error

EPS = 1e-6
SMALL = {"code": 48, "hidden": 36, "decoder_hidden": 16, "k": 6}
METHODS = {
    "OccNet": {"neurons": "scalar"},
    "invariant decoder": {"neurons": "scalar", "decoder": "invariant"},
    "VN-OccNet": {"neurons": "vector"},
    "VN-OccNet, products": {"neurons": "vector", "invariants": "product"},
    "VN-OccNet, DGCNN": {"neurons": "vector", "encoder": "dgcnn"},
    "OccNet, DGCNN": {"neurons": "scalar", "encoder": "dgcnn"},
    "OccNet, conditional": {"neurons": "scalar", "conditional": True},
    "VN-OccNet, conditional": {"neurons": "vector", "conditional": True},
    "VN-OccNet, local": {"neurons": "vector", "local": 4},
}
every_method = pytest.mark.parametrize("method", METHODS)
vector_methods = pytest.mark.parametrize("method", [m for m in METHODS if m.startswith("VN")])


def network(method, dtype=torch.float64, **changes):
    torch.manual_seed(0)
    model = OccupancyNetwork(**{**SMALL, **METHODS[method], **changes}).to(dtype)
    for parameter in model.parameters():  # branches that start at zero would hide mistakes
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def draw(*shape, seed=1, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def turn(x, R):
    """Points `(B, N, 3)`, or vectors `(B, N, 3, C)`."""
    return x @ R.mT if x.ndim == 3 else R.unsqueeze(1) @ x


@vector_methods
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_codes_turn_and_logits_stay(method, dtype, bound):
    model, x, queries = network(method, dtype), draw(3, 40, 3, dtype=dtype), draw(3, 9, 3, seed=2, dtype=dtype)
    R = rotations.draw("SO3", 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    code, turned = model.encode(x), model.encode(x @ R.mT)
    assert code.overall.shape == (3, 3, 16)
    assert relative_error(turned.overall, R @ code.overall) <= bound
    assert relative_error(model(x @ R.mT, queries @ R.mT), model(x, queries)) <= bound
    both = Code(R @ code.overall, *(None if x is None else turn(x, R) for x in code[1:]))
    assert relative_error(model.decode(both, queries @ R.mT), model.decode(code, queries)) <= bound


@pytest.mark.parametrize("method", ["OccNet", "invariant decoder"])
def test_scalar_encoders_do_not(method):
    model, x, queries = network(method), draw(3, 40, 3), draw(3, 9, 3, seed=2)
    R = rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)[0]
    assert relative_error(model(x @ R.mT, queries @ R.mT), model(x, queries)) > 1e-2


def test_an_invariant_decoder_is_invariant_whatever_made_the_code():
    model, queries = network("invariant decoder"), draw(2, 9, 3)
    R = rotations.draw("SO3", 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    code = model.encode(draw(2, 30, 3))
    turned = Code(R @ code.overall)
    assert relative_error(model.decode(turned, queries @ R.mT), model.decode(code, queries)) <= 1e-12


@every_method
@pytest.mark.parametrize("body", ["eager", "auto"])
def test_clouds_points_and_queries_are_independent(method, body):
    with kernels.using(body):
        model, x, queries = network(method), draw(3, 40, 3), draw(3, 9, 3, seed=2)
        found = model(x, queries)
        assert relative_error(model(x[1:2], queries[1:2]), found[1:2]) <= 1e-12
        assert relative_error(model(x[:, torch.randperm(40)], queries), found) <= 1e-11
        assert relative_error(model(x, queries[:, 4:6]), found[:, 4:6]) <= 1e-12


@every_method
def test_padding_changes_nothing(method):
    model, x, queries = network(method), draw(2, 40, 3), draw(2, 9, 3, seed=2)
    padded = torch.cat([x, torch.full((2, 7, 3), torch.nan)], dim=1)
    found = model(padded, queries, torch.tensor([40, 40]))
    assert relative_error(found, model(x, queries)) <= 1e-12
    shorter = model(padded, queries, torch.tensor([40, 31]))
    assert relative_error(shorter[1:], model(x[1:, :31], queries[1:])) <= 1e-12


@every_method
def test_a_saved_network_says_the_same(method, tmp_path):
    model, x, queries = network(method), draw(2, 40, 3), draw(2, 9, 3, seed=2)
    store.save(model, tmp_path, store.Metadata(threshold=0.35))
    loaded = store.load(tmp_path)
    assert torch.equal(loaded(x, queries), model(x, queries))
    assert loaded.metadata.threshold == 0.35


@every_method
@pytest.mark.parametrize("body", ["eager", "auto"])
def test_every_parameter_learns(method, body):
    with kernels.using(body):
        model = network(method).train()
        model(draw(3, 40, 3), draw(3, 9, 3, seed=2)).square().sum().backward()
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert all(".norm.bn." in name for name in frozen)
    without = [name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert without == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"decoder": "plain"}, 'vector neurons need decoder="invariant"'),
        ({"encoder": "resnet"}, "encoders are"),
        ({"code": 25}, "a multiple of 3"),
        ({"hidden": 2}, "hidden must be 3 or more"),
        ({"decoder_hidden": 0}, "decoder_hidden 1 or more"),
        ({"neurons": "scalar", "local": 4}, "0 with scalar neurons"),
        ({"invariants": "gram"}, 'choose "frame" or "product"'),
        ({"neurons": "tensor"}, "unknown neurons"),
    ],
)
def test_what_cannot_be_built_is_refused(arguments, words, unchecked):
    with pytest.raises(ValueError, match=words):
        OccupancyNetwork(**arguments)


@pytest.mark.parametrize("shape", [(9, 3), (3, 9, 3), (2, 9, 2)])
def test_queries_of_the_wrong_shape_are_refused(shape, unchecked):
    model = network("VN-OccNet")
    with pytest.raises(ValueError, match="codes need queries"):
        model.decode(model.encode(draw(2, 40, 3)), draw(*shape))


# The three methods as the authors wrote them, (batch, channel, 3, point) and the names of their parameters.


def bend(d, v):
    """ReLU against the directions d, in the authors' form."""
    vd, dd = (v * d).sum(2, keepdim=True), (d * d).sum(2, keepdim=True)
    return torch.where(vd < 0, v - vd / (dd + EPS) * d, v)


def mix(state, name, v):
    return torch.einsum("oc,bc...->bo...", state[name + ".weight"], v)


def affine(state, name, x):
    bias = state.get(name + ".bias")
    return torch.einsum("oc,b...c->b...o", state[name + ".weight"], x) + (0 if bias is None else bias)


def authors_vector_code(state, points, k):
    nearest = torch.cdist(points, points).topk(k, largest=False).indices
    own = points.unsqueeze(2).expand(-1, -1, k, -1)
    other = torch.stack([cloud[index] for cloud, index in zip(points, nearest, strict=True)])
    edges = torch.stack([other - own, own, torch.linalg.cross(other, own)], dim=1).permute(0, 1, 4, 2, 3)
    v = bend(mix(state, "conv_pos.map_to_dir", edges), mix(state, "conv_pos.map_to_feat", edges)).mean(-1)
    v = mix(state, "fc_pos.map_to_feat", v)
    for i in range(5):
        if i:
            v = torch.cat([v, v.mean(-1, keepdim=True).expand_as(v)], dim=1)
        h = mix(state, f"block_{i}.fc_0.map_to_feat", bend(mix(state, f"block_{i}.actvn_0.map_to_dir", v), v))
        h = mix(state, f"block_{i}.fc_1.map_to_feat", bend(mix(state, f"block_{i}.actvn_1.map_to_dir", h), h))
        v = mix(state, f"block_{i}.shortcut.map_to_feat", v) + h
    v = v.mean(-1)
    return mix(state, "fc_c.map_to_feat", bend(mix(state, "actvn_c.map_to_dir", v), v))


def authors_scalar_code(state, points):
    x = affine(state, "fc_pos", points)
    for i in range(5):
        if i:
            x = torch.cat([x, x.amax(1, keepdim=True).expand_as(x)], dim=2)
        h = affine(state, f"block_{i}.fc_0", x.relu())
        x = affine(state, f"block_{i}.shortcut", x) + affine(state, f"block_{i}.fc_1", h.relu())
    return affine(state, "fc_c", x.amax(1).relu())


def authors_logits(state, code, queries):
    if "fc_in.weight" in state:
        vectors = code.reshape(len(code), -1, 3)
        invariant = (vectors * mix(state, "c_in.map_to_feat", vectors)).sum(-1)
        square, product = queries.square().sum(-1, keepdim=True), torch.einsum("bqi,bci->bqc", queries, vectors)
        own = torch.stack([invariant] * queries.shape[1], dim=1)
        x = affine(state, "fc_in", torch.cat([square, product, own], dim=-1))
    else:
        x = affine(state, "fc_p", queries) + affine(state, "fc_c", code)[:, None]
    for i in range(5):
        x = x + affine(state, f"block{i}.fc_1", affine(state, f"block{i}.fc_0", x.relu()).relu())
    return affine(state, "fc_out", x.relu()).squeeze(-1)


def authors_state(turns, invariant, hidden=10, code=12, width=14):
    """A random state dict with the authors' names and shapes."""
    generator, state = torch.Generator().manual_seed(5), {}

    def add(name, out, into, bias=False):
        state[f"{name}.weight"] = torch.randn(out, into, generator=generator, dtype=torch.float64) / into**0.5
        if bias:
            state[f"{name}.bias"] = torch.randn(out, generator=generator, dtype=torch.float64)

    suffix = ".map_to_feat" if turns else ""
    if turns:
        add("encoder.conv_pos.map_to_feat", 128, 3)
        add("encoder.conv_pos.map_to_dir", 128, 3)
    add(f"encoder.fc_pos{suffix}", 2 * hidden, 128 if turns else 3, not turns)
    for i in range(5):
        add(f"encoder.block_{i}.fc_0{suffix}", hidden, 2 * hidden, not turns)
        add(f"encoder.block_{i}.fc_1{suffix}", hidden, hidden, not turns)
        add(f"encoder.block_{i}.shortcut{suffix}", hidden, 2 * hidden)
        if turns:
            add(f"encoder.block_{i}.actvn_0.map_to_dir", 2 * hidden, 2 * hidden)
            add(f"encoder.block_{i}.actvn_1.map_to_dir", hidden, hidden)
    if turns:
        add("encoder.actvn_c.map_to_dir", hidden, hidden)
    add(f"encoder.fc_c{suffix}", code // 3 if turns else code, hidden, not turns)
    if invariant:
        add("decoder.c_in.map_to_feat", code // 3, code // 3)
        add("decoder.fc_in", width, 1 + 2 * (code // 3), True)
    else:
        add("decoder.fc_p", width, 3, True)
        add("decoder.fc_c", width, code, True)
    for i in range(5):
        add(f"decoder.block{i}.fc_0", width, width, True)
        add(f"decoder.block{i}.fc_1", width, width, True)
    add("decoder.fc_out", 1, width, True)
    return state


@pytest.mark.parametrize(("turns", "invariant"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("body", ["eager", "auto"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_authors_state_dicts_load_with_the_same_outputs(turns, invariant, body, wrapped):
    state, points, queries = authors_state(turns, invariant), draw(2, 30, 3), draw(2, 11, 3, seed=2)
    encoder = {k.removeprefix("encoder."): t for k, t in state.items() if k.startswith("encoder.")}
    decoder = {k.removeprefix("decoder."): t for k, t in state.items() if k.startswith("decoder.")}
    code = authors_vector_code(encoder, points, 20) if turns else authors_scalar_code(encoder, points)
    with kernels.using(body):
        model = reference.load({"model": state, "epoch_it": 3} if wrapped else state)
        assert relative_error(model(points, queries), authors_logits(decoder, code, queries)) <= 1e-10
        assert not turns or relative_error(model.encode(points).overall, code.mT) <= 1e-10


def test_half_a_state_dict_is_refused():
    state = authors_state(True, True)
    del state["decoder.fc_out.weight"]
    with pytest.raises(reference.CheckpointError, match="occupancy network, but its parameters do not fit"):
        reference.load(state)


def test_the_papers_widths():
    """342 and 171 vectors, 513 numbers; the decoder reads 1 + 171 + 3 · 171 of them, in the authors' code 343."""
    vector, scalar = OccupancyNetwork(), OccupancyNetwork(neurons="scalar")
    assert vector.encoder.embed.weight.shape == (684, 128)
    assert vector.encoder.blocks[0].shortcut.weight.shape == (342, 684)
    assert vector.to_code.weight.shape == (171, 342)
    assert vector.decoder.queries.linear.in_features == 1 + 171 + 513
    assert OccupancyNetwork(invariants="product").decoder.queries.linear.in_features == 343
    assert scalar.to_code.weight.shape == (513, 513)
    assert len(vector.encoder.blocks) == len(vector.decoder.blocks) == 5


def test_too_few_points_to_ask_are_refused():
    with pytest.raises(ValueError, match="4 nearest points, got a cloud of 3"):
        network("VN-OccNet, local", k=2).encode(draw(1, 3, 3))
    with pytest.raises(ValueError, match="4 nearest points, got a cloud of 3"):
        network("VN-OccNet, local", k=2).encode(draw(2, 9, 3), torch.tensor([9, 3]))


def test_a_local_decoder_asks_the_nearest_points():
    """Against loops over queries and points."""
    model, points, queries = network("VN-OccNet, local"), draw(2, 30, 3), draw(2, 5, 3, seed=2)
    local, code = model.decoder.local, model.encode(points)
    found = local(code.points, code.vectors, queries)
    for b in range(2):
        for q in range(5):
            ways = [queries[b, q] - point for point in points[b]]
            nearest = sorted(range(30), key=lambda n: ways[n].norm())[:4]
            total, weights = 0.0, 0.0
            for n in nearest:
                seen = [ways[n] @ code.vectors[b, n, :, c] for c in range(32)]
                weight = 1 / (ways[n].norm() + 0.01)
                total = total + weight * local.each(torch.stack([*seen, ways[n].norm()])).clamp(min=0)
                weights = weights + weight
            assert relative_error(found[b, q], local.all(total / weights)) <= 1e-12


def test_a_batch_without_clouds():
    for options in ({}, {"neurons": "scalar"}, {"local": 3}):
        model = OccupancyNetwork(k=6, code=24, hidden=24, decoder_hidden=8, **options).eval()
        for lengths in (None, torch.empty(0, dtype=torch.long)):
            assert model(torch.empty(0, 24, 3), torch.empty(0, 7, 3), lengths).shape == (0, 7)
