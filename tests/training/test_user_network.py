"""`--model`: the transformer, and networks of the user's own."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import killed_run, metrics, same, tiny

from vector_neurons.models import VNTransformer, store
from vector_neurons.tasks import reconstruct
from vector_neurons.training import ConfigError, TrainingError, check, checkpoint, evaluate, factory, fit, read_config
from vector_neurons.training.factory import NETWORKS

SOURCE = """
import torch
from dataclasses import dataclass
from torch import nn
import vector_neurons as vn

@dataclass
class Sizes:  # dataclasses look up the module they are defined in
    width: int = 12

class Tiny(nn.Module):
    def __init__(self, classes, k=6, width=Sizes().width, dropout=0.0):
        super().__init__()
        self.edge = vn.EdgeConv(1, width, k=k)
        self.read = vn.Invariant(width, frame="linear")
        self.drop = nn.Dropout(torch.linspace(0, dropout, 2)[1].item())  # not on the meta device
        self.head = nn.Linear(self.read.out_channels, classes)
        self.reference = self.arguments = self.metadata = nn.Identity()  # names are free for its own use

    def forward(self, points):
        return self.head(self.drop(self.read(self.edge(vn.lift(points))).amax(dim=1)))

class TinyModel(vn.models.Model):
    def __init__(self, num_classes: int, *, k: int = 6, activation=torch.relu) -> None:
        super().__init__()
        self.net, self.activation = Tiny(num_classes, k), activation

    def forward(self, points):
        return self.net(points)

class Parts(nn.Module):
    def __init__(self, parts, categories, **options):
        super().__init__()
        self.options = options
        self.edge = vn.EdgeConv(1, 12, k=options.get("k", 6))
        self.read = vn.Invariant(12, frame="linear")
        self.category = nn.Embedding(categories, 8)
        self.head = nn.Linear(self.read.out_channels + 8, parts)

    def forward(self, points, category):
        x = self.read(self.edge(vn.lift(points)))
        kind = self.category(category).unsqueeze(1).expand(-1, x.shape[1], -1)
        return self.head(torch.cat([x, kind], dim=-1))

class Solid(vn.models.OccupancyModel):  # inside is what is near the mean of a cloud
    def __init__(self, outputs=None):
        super().__init__()
        self.outputs = outputs
        self.slope, self.radius = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))

    def encode(self, points, lengths=None):
        return points.mean(1, keepdim=True)

    def decode(self, code, queries):
        return (self.slope * (self.radius - (queries - code).norm(dim=-1)))[:, : self.outputs]

    def forward(self, points, queries, lengths=None):
        return self.decode(self.encode(points), queries)

class Few(Solid):
    def __init__(self):
        super().__init__(3)

class Broken(Tiny):
    def forward(self, points):
        raise KeyError("no such layer")

class Wide(Tiny):
    def forward(self, points):
        return super().forward(points)[:, :3]

class Dictionary(Tiny):
    def forward(self, points):
        return {"logits": super().forward(points)}

class Fails(Tiny):
    def __init__(self, classes):
        raise RuntimeError(f"cannot have {classes} classes\\nbecause")

class Star(Tiny):
    def __init__(self, *args):
        super().__init__(*args)

class Late(Tiny):
    def forward(self, points):
        if len(points) > 2:
            raise ValueError(f"{len(points)} clouds are too many")
        return super().forward(points)

class Lazy(Tiny):
    def __init__(self, classes):
        super().__init__(classes)
        self.head = nn.LazyLinear(classes)

class Deep(Tiny):
    def __init__(self, classes, layers=2):  # a number, not the LayerOptions of the networks of the package
        super().__init__(classes)

class NoArgument(Tiny):
    def __init__(self):
        super().__init__(3)

class NoArgumentModel(vn.models.Model):
    def __init__(self):
        super().__init__()

class Empty(nn.Module):
    def __init__(self, classes):
        super().__init__()

def function(classes):
    return Tiny(classes)
"""
PLAIN = {"k": None, "widths": None, "embedding": None, "hidden": None}
REBUILD = {"task": "reconstruction", "queries": 8, "shift": 0.0}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "code" / "my_file.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


def own(file, name="Tiny", **changes):
    return tiny(**PLAIN | {"model": f"{file}:{name}"} | changes)


@pytest.mark.parametrize(("name", "changes"), [("Tiny", {"k": 5, "dropout": 0.1}), ("TinyModel", {"k": 7})])
def test_a_network_of_ones_own_is_trained_tested_and_resumed(file, tmp_path, name, changes):
    run = tmp_path / "run"
    fit(own(file, name, epochs=1, **changes), run)
    assert json.loads((run / "config.json").read_text())["network"]["model"] == f"my_file.py:{name}"
    assert (run / "my_file.py").read_text() == SOURCE
    assert {path.name for path in run.iterdir()} >= {"config.json", "metrics.jsonl", "last", "best"}
    assert not (run / "__pycache__").exists()
    model = checkpoint.load(run / "best", factory.user_class(read_config(run)))
    assert (model.net if name == "TinyModel" else model).edge.k == changes["k"]
    assert store.metadata_of(model).points == 64
    file.unlink()  # the run has its own copy
    moved = run.rename(tmp_path / "moved")
    _, counts = evaluate(moved, ["SO3"])
    assert counts["SO3"][0]["clouds"] == 16
    fit(own(file, name, epochs=2, **changes), moved, resume=True)
    assert [line["epoch"] for line in metrics(moved)] == [1, 2]
    assert evaluate(moved, ["z"])[1]["z"]


def test_a_killed_run_is_resumed_bit_for_bit(file, tmp_path):
    config = own(file, dropout=0.2)
    fit(config, tmp_path / "straight")
    code, _, err = killed_run(tmp_path / "killed", 8, **PLAIN, model=f"{file}:Tiny", dropout=0.2)
    assert code == -signal.SIGKILL, err
    assert len(metrics(tmp_path / "killed")) == 1
    fit(read_config(tmp_path / "killed"), tmp_path / "killed", resume=True)
    same(tmp_path / "straight", tmp_path / "killed")


def test_it_segments_parts(file, tmp_path, vn_command):
    fit(own(file, "Parts", task="segmentation", epochs=1, k=4), tmp_path / "run")
    model = checkpoint.load(tmp_path / "run" / "best", factory.user_class(read_config(tmp_path / "run")))
    assert model.options == {"k": 4}
    assert "instance_miou" in metrics(tmp_path / "run")[0]["val"]
    assert evaluate(tmp_path / "run", ["SO3"])[1]["SO3"]
    code, out, err = vn_command("check", tmp_path / "run", "--gives", "scalars")
    assert code == 0, err
    assert "SO3-equivariant" in out


def test_it_rebuilds_shapes(file, tmp_path):
    """As one of this package does: trained, tested in any pose, and used on a scan."""
    run = tmp_path / "run"
    fit(own(file, "Solid", **REBUILD, epochs=1), run)
    _, counts = evaluate(run, ["I", "SO3"])
    assert counts["I"][0]["clouds"] == counts["SO3"][0]["clouds"] == 16
    assert metrics(run)[0]["val"]["iou"] > 0
    model = checkpoint.load(run / "best", factory.user_class(read_config(run)))
    ball = torch.nn.functional.normalize(torch.randn(300, 3, generator=torch.Generator().manual_seed(0)), dim=-1)
    surface = reconstruct(model, ball, resolution=32)
    assert len(surface.faces)
    assert 0 < (surface.vertices - surface.vertices.mean(0)).norm(dim=-1).std() < 0.05  # a ball


def test_only_options_that_were_set_are_passed(file):
    config = own(file, k=5)
    assert factory.network_options(config.network, factory.network_class(config)) == {"k": 5}
    config = own(file)
    assert factory.network_options(config.network, factory.network_class(config)) == {}


@pytest.mark.parametrize(
    ("model", "changes", "why"),
    [
        ("nowhere.py:Tiny", {}, r"nowhere.py:Tiny: the file cannot be read: No such file"),
        ("{file}", {}, r"does not name a class: write it as my_file.py:MyNet"),
        ("{file}:", {}, r"does not name a class"),
        ("{file}:Tine", {}, r"the file has no class Tine, only Sizes, Tiny, TinyModel, "),
        ("{file}:function", {}, r"function is not a subclass of torch.nn.Module"),
        ("{file}:Sizes", {}, r"Sizes is not a subclass of torch.nn.Module"),
        ("{file}:Tiny", {"frame": "linear"}, r"^Tiny does not take --frame$"),
        ("{file}:Deep", {"frame": "linear"}, r"^Deep does not take --frame$"),
        ("{file}:Tiny", {"hidden": (4,), "embedding": 12}, r"^Tiny does not take --embedding, --hidden$"),
        ("{file}:Tiny", {"k": 100}, r"--k 100 neighbors are more than"),
        ("{file}:Fails", {}, r"^Fails\(21\) failed: RuntimeError: cannot have 21 classes$"),
        ("{file}:Parts", {}, r"^Parts\(21\) failed: TypeError: .*'categories'; it is given the number of classes"),
        ("{file}:NoArgument", {}, r"^NoArgument\(21\) failed: TypeError: .*given; it is given the number of classes"),
        ("{file}:NoArgumentModel", {}, r"^NoArgumentModel\(21\) failed: TypeError: .*; it is given the number of"),
        ("{file}:Star", {}, r"takes \*args or has a /: name its parameters"),
        ("{file}:Lazy", {}, r"^Lazy\(21\) has lazy layers"),
        ("{file}:Empty", {}, r"^Empty\(21\) has no parameters to train$"),
        ("{file}:Broken", {}, r"my_file.py:Broken failed on clouds of shape \(2, 64, 3\): KeyError: 'no such layer'$"),
        ("{file}:Wide", {}, r"must give logits of shape \(2, 21\) for clouds of shape \(2, 64, 3\), got \(2, 3\)$"),
        ("{file}:Dictionary", {}, r"must give logits of shape \(2, 21\) .*, got dict$"),
        ("{file}:Few", REBUILD, r"must give logits of shape \(2, 8\) for clouds of shape \(2, 64, 3\), got \(2, 3\)$"),
        ("{file}:Tiny", REBUILD, r"Tiny is not a subclass of .*OccupancyModel"),
        ("dgcn", {}, r"^--model dgcn is not available for classification: choose dgcnn, .*, framenet, or"),
    ],
)
def test_mistakes_are_one_line(file, tmp_path, unchecked, model, changes, why):
    config = own(file, **changes | {"model": model.format(file=file)})
    with pytest.raises((ConfigError, TrainingError), match=why) as caught:
        fit(config, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "config.json").exists()  # it can be started again


def test_a_network_that_fails_later_is_one_line(file, tmp_path):
    with pytest.raises(TrainingError, match=r"Late failed on clouds of shape \(14, 64, 3\): ValueError: 14 clouds are"):
        fit(own(file, "Late"), tmp_path / "run")
    checkpoint.verify(tmp_path / "run" / "last")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("class Tiny(", "SyntaxError: "),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("\0", "my_file.py cannot be imported"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line(file, source, why):
    file.write_text(source)
    with pytest.raises(ConfigError, match=why) as caught:
        check(own(file))
    assert "\n" not in str(caught.value)


def test_a_changed_file_is_imported_again(file):
    first = factory.network_class(own(file))
    assert factory.network_class(own(file)) is first
    file.write_text(SOURCE.replace("k=6", "k=4"))
    assert factory.network_class(own(file)) is not first


def test_the_command(file, tmp_path, vn_command, monkeypatch):
    monkeypatch.chdir(file.parent)
    small = ["--size", 42, "--epochs", 1, "--points", 64, "--batch-size", 14, "--k", 6]
    code, out, err = vn_command("train", "classification", "--model", "my_file.py:Tiny", *small)
    assert code == 0, err
    run = Path("runs") / "classification-shapes-Tiny-vector-z"
    assert f"{run}: epoch 1 was best" in out
    file.unlink()
    code, out, err = vn_command("evaluate", run, "--rotations", "SO3")
    assert code == 0, err
    code, out, err = vn_command("train", "--resume", run, "--epochs", 2)
    assert code == 0, err
    for folder in (run, run / "best"):
        code, out, err = vn_command("check", folder, "--gives", "scalars")
        assert code == 0, err
        assert "edge.blocks.0.linear" in out
    commands = (["evaluate", run], ["train", "--resume", run], ["check", run])
    (run / "my_file.py").write_text(SOURCE + "raise SystemExit('executed')")
    for arguments in commands:
        code, out, err = vn_command(*arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert "my_file.py changed after it was written; put it back, or delete" in err
    (run / "checksums.json").unlink()
    for arguments in commands:
        code, out, err = vn_command(*arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert "my_file.py cannot be imported: SystemExit: executed" in err
    (run / "my_file.py").unlink()
    for arguments in commands:
        code, out, err = vn_command(*arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert "my_file.py:Tiny: the file cannot be read" in err


def test_reading_the_configuration_executes_nothing(file, tmp_path):
    fit(own(file, epochs=1), tmp_path / "run")
    executed = tmp_path / "executed"
    (tmp_path / "run" / "my_file.py").write_text(f"import os\nos.mkdir({str(executed)!r})\n{SOURCE}")
    (tmp_path / "run" / "checksums.json").unlink()
    config = read_config(tmp_path / "run")
    assert not executed.exists()
    check(config)
    assert executed.exists()


def test_the_copy_is_the_source_that_was_executed(file, tmp_path):
    source = (
        SOURCE
        + f"""
from pathlib import Path

class Rewritten(Tiny):
    def __init__(self, classes):
        super().__init__(classes)
        Path({str(file)!r}).write_text("edited after it was imported")
"""
    )
    file.write_text(source)
    fit(own(file, "Rewritten", epochs=1), tmp_path / "run")
    assert (tmp_path / "run" / "my_file.py").read_text() == source


def test_every_task_has_networks():
    assert {task for task, _ in NETWORKS} == {"classification", "segmentation", "reconstruction"}
    assert NETWORKS["classification", "transformer"] is VNTransformer


SMALL = {**PLAIN, "model": "transformer", "k": 6, "embedding": 24, "hidden": (16,), "depth": 2, "heads": 2}


@pytest.mark.parametrize("neurons", ["vector", "scalar"])
def test_the_transformer_learns_shapes(tmp_path, neurons):
    fit(tiny(**SMALL, neurons=neurons, epochs=2, lr=1e-2), tmp_path / "run")
    first, last = metrics(tmp_path / "run")
    assert last["train"]["loss"] < first["train"]["loss"]
    arguments = store.load(tmp_path / "run").arguments
    assert {name: arguments[name] for name in ("width", "hidden", "depth", "heads", "k")} == {
        "width": 24,
        "hidden": 16,
        "depth": 2,
        "heads": 2,
        "k": 6,
    }
    assert evaluate(tmp_path / "run", ["SO3"])[1]["SO3"]


def test_the_transformer_learns_a_folder_of_files(tmp_path):
    for number in range(40):
        path = tmp_path / "files" / ("ball" if number % 2 else "stick") / f"{number}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.random.default_rng(number).normal(size=(80, 3)) * (1, 1, 1 if number % 2 else 9))
    where = {"data": "folder", "folder": str(tmp_path / "files"), "data_root": str(tmp_path / "packs"), "size": None}
    fit(tiny(**SMALL, **where, epochs=1), tmp_path / "run")
    assert len(metrics(tmp_path / "run")) == 1
    shutil.rmtree(tmp_path / "run" / "last")
    assert evaluate(tmp_path / "run", ["SO3"])[1]["SO3"][0]["confusion"].shape == (2, 2)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"task": "segmentation"},
            "--model transformer is not available for segmentation: choose dgcnn, pointnet, frame",
        ),
        ({"hidden": (16, 16)}, "--hidden takes one width with --model transformer, got 2"),
        ({"widths": (12,)}, "VNTransformer does not take --widths"),
        ({"pooling": "max", "direction": "output"}, "VNTransformer does not take --direction, --pooling"),
        ({"k": 65}, "--k 65 neighbors"),
        ({"depth": 65}, "--depth takes 1 to 64"),
    ],
)
def test_what_a_transformer_does_not_take(changes, why):
    with pytest.raises(ConfigError, match=why):
        check(tiny(**SMALL | changes))
    with pytest.raises(ConfigError, match=r"not available for reconstruction: choose dgcnn, pointnet, framenet, or"):
        check(tiny(**SMALL, task="reconstruction", queries=8, shift=0.0))


def test_heads_that_do_not_divide_the_channels_are_one_line(tmp_path):
    with pytest.raises(ConfigError, match="--model transformer cannot be built: 8 channels do not divide among 3"):
        fit(tiny(**SMALL | {"heads": 3}), tmp_path / "run")
    with pytest.raises(ConfigError, match="DGCNN does not take --depth, --heads"):
        check(tiny(depth=2, heads=2))
