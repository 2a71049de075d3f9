"""Exported files give the outputs of their networks, in every pose, at any size, without this library."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import vector_neurons as vn
from vector_neurons import kernels
from vector_neurons.geometry.decompositions import DECOMPOSITIONS
from vector_neurons.geometry.neighbors import gather
from vector_neurons.geometry.query import ball_query, nearest
from vector_neurons.geometry.sampling import farthest_points
from vector_neurons.inference import export as module
from vector_neurons.inference.export import ExportError, export
from vector_neurons.models import (
    DGCNN,
    DGCNNSegmenter,
    FrameNet,
    FrameNetOccupancy,
    FrameNetSegmenter,
    Inputs,
    Metadata,
    OccupancyNetwork,
    PointNet,
    PointNetSegmenter,
    VNTransformer,
)

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

SMALL = {"k": 8, "widths": (12, 24), "embedding": 48, "hidden": (16,)}


def tiny():
    torch.manual_seed(0)
    return DGCNN(3, **SMALL).eval()


def session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


# ------------------------------------------------------------------------------------------------ plain graph operators


def clouds(kind):
    if kind == "grid":
        axis = torch.arange(5.0) - 2
        return torch.cartesian_prod(axis, axis, axis)[torch.randperm(125)].expand(2, -1, -1)
    if kind == "features":
        return torch.randn(2, 100, 63)
    x = torch.randn(2, 120, 3)
    return x[:, :40].repeat(1, 3, 1) if kind == "duplicates" else x


@pytest.mark.parametrize("kind", ["generic", "grid", "duplicates", "features"])
def test_plain_operators_choose_the_same_points(kind):
    x = clouds(kind)
    queries = x[:, :30] + 0.5
    centers = torch.arange(10).expand(2, -1)
    calls: dict[str, list[tuple]] = {
        "knn": [(x, 9, True, None), (x, 9, False, None), (x, x.shape[1], True, None)],
        "nearest": [(queries, x, 3, None)],
        "ball_query": [(x, 1.0, 9, None, None), (x, torch.inf, 9, centers, None), (x[:, :5], torch.inf, 9, None, None)],
        "farthest_points": [(x, 40, None), (x, x.shape[1], None)],
    }
    with kernels.using("eager"):
        for name, arguments in calls.items():
            operator = getattr(torch.ops.vector_neurons, name).default
            for given in arguments:
                assert torch.equal(DECOMPOSITIONS[operator](*given), operator(*given)), (name, given[1:])


def test_plain_operators_take_no_mask():
    with pytest.raises(ValueError, match="clouds of one size"):
        DECOMPOSITIONS[torch.ops.vector_neurons.knn.default](torch.randn(1, 9, 3), 2, True, torch.ones(1, 9).bool())


# ------------------------------------------------------------------------------------------------------- exported files


class Every(vn.models.Model):
    """A small segmenter with every graph operator; each changes the output."""

    def __init__(self, parts=4):
        super().__init__()
        self.edges, self.invariant = vn.EdgeConv(1, 6, k=8), vn.Invariant(6)
        self.head, self.kind = nn.Linear(self.invariant.out_channels + 3, parts), nn.Embedding(3, parts)

    def forward(self, points, category):
        x = self.invariant(self.edges(vn.lift(points)))
        centers = farthest_points(points, points.shape[1] // 2)
        ball = ball_query(points, 0.4, 12, centers)
        at = gather(points, centers.unsqueeze(-1))
        inside = (gather(points, ball) - at).norm(dim=-1).sum(-1, keepdim=True)
        near = nearest(points, at.squeeze(2), 3)
        x = torch.cat([x, gather(inside, near).squeeze(-1)], dim=-1)
        return self.head(x) + self.kind(category).unsqueeze(1)

    def example(self, points):
        return (points, torch.zeros(len(points), dtype=torch.long)), ("points", "scalars")


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """A file with every graph operator in it, the network, and what was reported."""
    torch.manual_seed(0)
    network = Every().eval()
    network.metadata = Metadata(classes=list("abcd"), points=1024, categories=["mug", "bag", "cap"])
    path = tmp_path_factory.mktemp("export") / "every.onnx"
    return path, network, export(network, path)


def test_a_file_has_standard_operators_only_and_says_what_it_is(every):
    path, _, written = every
    onnx.checker.check_model(path, full_check=True)
    proto = onnx.load(path)
    assert [(x.domain, x.version) for x in proto.opset_import] == [("", written.opset)]
    assert not proto.functions
    assert {"TopK", "Scan"} <= {node.op_type for node in proto.graph.node}
    about = {x.key: x.value for x in proto.metadata_props}
    assert about["model"] == "Every"
    assert about["normalization"] == "unit_ball"
    assert about["points"] == "1024"
    assert json.loads(about["classes"]) == ["a", "b", "c", "d"]
    assert written.size == path.stat().st_size
    assert written.inputs == {"points": ("batch", "points", 3), "category": ("batch",)}
    assert [(x.name, x.shape) for x in session(path).get_inputs()] == [
        ("points", ["batch", "points", 3]),
        ("category", ["batch"]),
    ]
    assert session(path).get_outputs()[0].name == "logits"


@pytest.mark.parametrize(("clouds", "points"), [(1, 8), (3, 200), (2, 333)])
def test_one_file_takes_all_sizes(every, clouds, points):
    path, network, _ = every
    x, category = torch.randn(clouds, points, 3), torch.arange(clouds) % 3
    (found,) = session(path).run(None, {"points": x.numpy(), "category": category.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), network(x, category), atol=1e-5, rtol=1e-5)


def test_a_file_is_compared_at_256_and_2000_points(every):
    _, _, written = every
    assert [(x.clouds, x.points, x.invariant) for x in written.checks] == [(1, 256, True), (2, 2000, True)]
    assert all(x.difference <= 1e-4 and x.invariance_error <= 1e-3 for x in written.checks)
    assert written.min_points == 8


def test_a_cloud_below_the_smallest_is_refused(every):
    path, _, _ = every
    x, category = torch.randn(1, 7, 3), torch.zeros(1, dtype=torch.long)
    with pytest.raises(Exception, match="k argument"):
        session(path).run(None, {"points": x.numpy(), "category": category.numpy()})


ALONE = """
import sys, torch
class Blocked:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "vector_neurons":
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
about = {"metadata.json": ""}
network = torch.export.load(sys.argv[1], extra_files=about).module()
x = torch.load(sys.argv[2])
torch.save(network(x, torch.tensor([0, 1, 2])), sys.argv[2])
print("vector_neurons" in sys.modules, about["metadata.json"])
"""


def test_a_torch_archive_runs_without_this_library(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SIZES", (64, 100))
    network, x = Every().double(), torch.randn(3, 77, 3)
    written = export(network, tmp_path / "network.pt2", "torch")
    assert (written.opset, written.min_points) == (None, 8)
    assert network.training  # the network stays as it is
    assert next(network.parameters()).dtype == torch.float64
    torch.save(x, tmp_path / "x.pt")
    given = [sys.executable, "-W", "ignore", "-c", ALONE, tmp_path / "network.pt2", tmp_path / "x.pt"]
    run = subprocess.run(given, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stderr
    imported, _, about = run.stdout.partition(" ")
    assert imported == "False"
    assert json.loads(about)["model"] == "Every"
    category = torch.tensor([0, 1, 2])
    torch.testing.assert_close(torch.load(tmp_path / "x.pt"), network.float().eval()(x, category).detach())


def test_levels_have_as_many_points_as_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SIZES", (64, 200))  # fewer and more than the centers of the first level
    torch.manual_seed(0)
    network = FrameNetOccupancy(k=8, centers=(100, 16), width=16, decoder_hidden=16, near=(5, 4, 3), vectors=6)
    written = export(network, tmp_path / "network.pt2", "torch")
    assert all(check.invariant and check.difference <= 1e-4 for check in written.checks)


class Turned(vn.models.Model):
    """Invariant in torch, and not in a file: export takes the other branch."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong, self.linear = wrong, nn.Linear(3, 1, bias=False)

    def forward(self, points):
        if torch.compiler.is_compiling() and self.wrong == "not invariant":
            return 1e-5 * self.linear(points).sum(1) + 9e3 * points[:, :1, 0].clamp(max=1e-8)
        bias = 2e-4 if torch.compiler.is_compiling() else 0.0
        return points.norm(dim=-1, keepdim=True).mean(1) + bias


def test_a_file_with_other_outputs_is_not_kept(tmp_path):
    path = tmp_path / "network.onnx"
    path.write_bytes(b"the file of before")
    with pytest.raises(ExportError, match=r"not kept: at 256 points its outputs differ by 2\.0e-04"):
        export(Turned("different"), path)
    assert path.read_bytes() == b"the file of before"
    assert [x.name for x in tmp_path.iterdir()] == ["network.onnx"]


def test_a_file_that_is_not_invariant_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_DIFFERENCE", torch.inf)
    monkeypatch.setattr(module, "MAX_INVARIANCE_ERROR", 1e-6)
    with pytest.raises(ExportError, match=r"change by .* under a rotation, allowed 1e-06"):
        export(Turned("not invariant"), tmp_path / "network.onnx")


class Branching(vn.models.Model):
    def forward(self, points):
        return points.sum((1, 2)) if points.sum() > 0 else points.amax((1, 2))


def test_a_network_that_cannot_be_exported_is_one_line(tmp_path):
    with pytest.raises(ExportError, match=r"torch\.export does not take Branching: ") as raised:
        export(Branching(), tmp_path / "network.onnx")
    assert "\n" not in str(raised.value)
    with pytest.raises(ExportError, match=r"a file for onnx ends in \.onnx"):
        export(tiny(), tmp_path / "network.pt2")
    with pytest.raises(ExportError, match="DGCNN does not run on clouds of 256 points: k=300 neighbors"):
        export(DGCNN(3, **{**SMALL, "k": 300}), tmp_path / "network.onnx")


# ------------------------------------------------------------------------------------------------------------ vn export


def test_the_command_prints_what_it_measured(tmp_path, vn_command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "SIZES", (64, 100))
    options = {"widths": ((12,), (24,)), "embedding": 48, "hidden": (16,), "inputs": Inputs(scalars=2)}
    network = PointNet(3, neurons="scalar", **options)
    for p in network.parameters():  # untrained, it hardly depends on the pose
        nn.init.normal_(p, std=0.3)
    vn.save(network, tmp_path / "model")
    code, out, err = vn_command("export", "model")
    assert (code, err) == (0, "")
    first, takes, *checks = out.splitlines()
    assert first.startswith("pointnet.onnx: PointNet, ONNX opset ")
    assert takes == "takes points (batch, points, 3), scalars (batch, points, 2); 2 points or more"
    assert [line.split(":")[0] for line in checks] == ["1 × 64 points", "2 × 100 points"]
    assert all("(allowed 1e-04), under a rotation" in line for line in checks)
    assert all("nor is the network invariant" in line for line in checks)
    assert [x.name for x in session("pointnet.onnx").get_inputs()] == ["points", "scalars"]


def test_mistakes_are_one_line(tmp_path, vn_command, monkeypatch):
    vn.save(tiny(), tmp_path / "model")
    for arguments, message in {
        ("nowhere",): "unknown pretrained model 'nowhere': choose classification or reconstruction",
        (tmp_path,): "is not a saved model: it has no config.json",
        (tmp_path / "model", "-o", tmp_path / "x.pt2"): "cannot write a network for onnx to",
        (tmp_path / "model", "-o", tmp_path / "no" / "x.onnx"): "there is no folder",
    }.items():
        code, out, err = vn_command("export", *arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, _, err = vn_command("export", tmp_path / "model", "-o", tmp_path / "x.onnx")
    assert (code, err) == (2, "vn export: ONNX files need onnxruntime: pip install 'vector-neurons[export]'\n")


# -------------------------------------------------------------------------------------------------- every kind, minutes

SHIPPED = "classification", "segmentation", "reconstruction"
RESULTS = "results/modelnet40-vn-dgcnn-z", "results/scanned-objects-vn-occnet"
KINDS = ("vector", "scalar", "hybrid")
EVERY = {
    **{name: lambda name=name: vn.pretrained(name) for name in SHIPPED},
    **{name: lambda name=name: vn.load(name) for name in RESULTS},
    **{f"DGCNN {kind}": lambda kind=kind: DGCNN(40, neurons=kind) for kind in KINDS},
    **{f"PointNet {kind}": lambda kind=kind: PointNet(40, neurons=kind) for kind in KINDS},
    **{f"VNTransformer {kind}": lambda kind=kind: VNTransformer(40, neurons=kind) for kind in KINDS},
    **{f"DGCNNSegmenter {kind}": lambda kind=kind: DGCNNSegmenter(neurons=kind) for kind in KINDS},
    **{f"PointNetSegmenter {kind}": lambda kind=kind: PointNetSegmenter(neurons=kind) for kind in KINDS},
    "FrameNet orthonormal": lambda: FrameNet(40, orthonormal=True),
    "FrameNet scalar": lambda: FrameNet(40, neurons="scalar"),
    "FrameNetSegmenter": lambda: FrameNetSegmenter(),
    "OccupancyNetwork DGCNN": lambda: OccupancyNetwork(encoder="dgcnn", invariants="product", conditional=True),
    "OccupancyNetwork scalar": lambda: OccupancyNetwork(neurons="scalar"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_every_network_exports(name, tmp_path, monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    written = export(EVERY[name](), tmp_path / "network.onnx")
    print(f"{name:24} opset {written.opset} {written.size / 1e6:5.1f} MB", *(tuple(x) for x in written.checks))
    assert all(check.invariant != ("scalar" in name) for check in written.checks) or "scalar" in name
