import errno
import gc
import json
import os
import resource
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vector_neurons as vn
from vector_neurons import _files
from vector_neurons.models import DGCNN, Inputs, LayerOptions, PointNetSegmenter, store

from . import reference as authors


def small(**arguments):
    torch.manual_seed(0)
    return DGCNN(4, k=5, widths=(12, 12), embedding=24, hidden=(16,), **arguments).eval()


def test_round_trip(tmp_path):
    points = torch.randn(2, 30, 3)
    model = small(inputs=Inputs(scalars=2), layers=LayerOptions(pool="max"))
    store.save(model, tmp_path / "a" / "b", store.Metadata(classes=["cup", "hat", "bed", "car"], up="y"))
    loaded = vn.load(tmp_path / "a" / "b")
    colors = torch.randn(2, 30, 2)
    assert torch.equal(loaded(points, scalars=colors), model(points, scalars=colors))
    assert not loaded.training
    assert loaded.metadata == store.Metadata(classes=["cup", "hat", "bed", "car"], up="y")
    assert loaded.arguments["layers"]["pool"] == "max"


def test_precision_and_segmenters_survive(tmp_path):
    model = PointNetSegmenter(6, 2, k=4, widths=((12,), (24,)), embedding=24).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-12)  # what float32 would lose
    store.save(model, tmp_path)
    points, category = torch.randn(2, 20, 3, dtype=torch.float64), torch.tensor([0, 1])
    assert torch.equal(vn.load(str(tmp_path))(points, category), model(points, category))


@pytest.mark.usefixtures("unchecked")
def test_a_loaded_model_keeps_its_metadata_and_numpy_counts(tmp_path):
    model = DGCNN(np.int64(3), k=5, widths=(12, 12), embedding=24, hidden=(16,))
    store.save(model, tmp_path / "a", store.Metadata(classes=["a", "b", "c"], up="y"))
    store.save(vn.load(tmp_path / "a"), tmp_path / "b")
    assert vn.load(tmp_path / "b").metadata == store.Metadata(classes=["a", "b", "c"], up="y")


def test_a_second_save_replaces_the_first_and_leaves_nothing_behind(tmp_path):
    store.save(small(), tmp_path)
    store.save(small(layers=LayerOptions(pool="max")), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checksums.json", "config.json", "model.safetensors"]
    assert vn.load(tmp_path).arguments["layers"]["pool"] == "max"


def broken(tmp_path, what):
    store.save(small(), tmp_path)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    content = json.loads(config.read_text())
    match what:
        case "empty folder":
            config.unlink()
        case "no weights":
            weights.unlink()
        case "damaged config":
            config.write_text(config.read_text()[:40])
        case "damaged weights":
            weights.write_bytes(weights.read_bytes()[:1000])
        case "unknown class":
            config.write_text(json.dumps({**content, "class": "Perceptron"}))
        case "unknown argument":
            config.write_text(json.dumps({**content, "arguments": {"depth": 3}}))
        case "other weights":
            config.write_text(json.dumps({**content, "arguments": {**content["arguments"], "classes": 9}}))
        case "class of the wrong type":
            config.write_text(json.dumps({**content, "class": ["DGCNN"]}))
        case "future format":
            config.write_text(json.dumps({**content, "format": 99}))
        case "not a description":
            config.write_text("[1, 2]")
        case _:
            config.write_text(json.dumps(content | json.loads(what)))
    if config.exists() and weights.exists():
        _files.write_checksums(tmp_path, (weights.name, config.name))  # what they cannot notice


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("empty folder", "it has no config.json"),
        ("no weights", "has no model.safetensors"),
        ("damaged config", "config.json is damaged"),
        ("damaged weights", "model.safetensors is damaged"),
        ("unknown class", "holds a Perceptron: it is not a network of this library; pass its class"),
        ("unknown argument", "does not describe a DGCNN"),
        ("other weights", "does not fit config.json"),
        ("class of the wrong type", "unknown class"),
        ("future format", "has format 99, this version reads 2: update the package"),
        ("not a description", "is not the config of a model"),
        ('{"arguments": []}', "is not the config of a model"),
        ('{"threshold": "high"}', "threshold is 'high'"),
        ('{"classes": 7}', "classes is '7'"),
        ('{"points": -1}', "points is '-1'"),
        ('{"arguments": {"classes": 4, "widths": []}}', "does not describe a DGCNN"),
        ('{"arguments": {"classes": 4, "widths": [12, "a"]}}', "does not describe a DGCNN"),
        ('{"arguments": {"classes": 4, "embedding": 0}}', "does not (describe a DGCNN|fit config.json)"),
        # Larger than the file: refused before anything of that size is made.
        ('{"arguments": {"classes": 4, "widths": [100000000, 10]}}', "does not fit config.json"),
        ('{"arguments": {"classes": 4, "widths": [100000000, 100000000]}}', "does not fit config.json"),
        (
            '{"class": "VNTransformer", "arguments": {"classes": 4, "depth": 1000000000000}}',
            "depth is 1,000,000,000,000",
        ),
        ('{"class": "OccupancyNetwork", "arguments": {"blocks": 1000000000000}}', "blocks is 1,000,000,000,000"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_unusable_folders_get_one_line(tmp_path, what, words):
    broken(tmp_path, what)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(store.StoreError, match=words) as caught:
        vn.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"format": ' + b"1" * 5_000 + b"}", b"\xff", b" " * 2_000_000])
def test_a_config_that_is_no_json_is_one_line(tmp_path, content):
    store.save(small(), tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(store.StoreError, match=r"config.json (is damaged|is too large)[^\n]*$"):
        vn.load(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_flipped_bit_is_noticed(tmp_path, name):
    store.save(small(), tmp_path, store.Metadata(classes=["a", "b", "c", "d"]))
    content = bytearray((tmp_path / name).read_bytes())
    content[-20 if name == "model.safetensors" else content.index(b'"a"') + 1] ^= 4
    (tmp_path / name).write_bytes(content)
    with pytest.raises(store.StoreError, match=f"{name} changed after it was written"):
        vn.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "no checksum of model.safetensors"),
        ("[]", "must name files of its own folder"),
        ('{"/dev/zero": "0", "model.safetensors": "0", "config.json": "0"}', "must name files of its own folder"),
        ('{"pipe": "0", "model.safetensors": "0", "config.json": "0"}', "pipe is missing"),
        (None, "checksums.json is missing"),
    ],
)
def test_checksums_are_read_and_must_be_whole(tmp_path, content, words):
    store.save(small(), tmp_path)
    os.mkfifo(tmp_path / "pipe")
    if content is None:
        (tmp_path / "checksums.json").unlink()
    else:
        (tmp_path / "checksums.json").write_text(content)
    with pytest.raises(store.StoreError, match=words):
        vn.load(tmp_path)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "given",
    [{"threshold": np.float32(0.3)}, {"threshold": 1}, {"points": 300.0}, {"classes": "abcd"}, {"up": "down"}],
    ids=str,
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, given):
    with pytest.raises(store.StoreError, match=rf"cannot save the model: its {next(iter(given))} is"):
        store.save(small(), tmp_path / "model", store.Metadata(**given))
    assert not (tmp_path / "model").exists()


def test_a_model_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    store.save(small(), tmp_path)
    expected = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(store, "write_checksums", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match="No space"):
        store.save(small(layers=LayerOptions(pool="max")), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == expected


def test_a_run_stands_for_its_best_model(tmp_path):
    store.save(small(), tmp_path / "run" / "best")
    (tmp_path / "run" / "config.json").write_text('{"task": "classification", "recipe": {}}')
    assert isinstance(vn.load(tmp_path / "run"), DGCNN)
    shutil.rmtree(tmp_path / "run" / "best")
    with pytest.raises(store.StoreError, match="without a best model yet"):
        vn.load(tmp_path / "run")
    for none in (tmp_path / "nowhere", tmp_path / ("x" * 300)):
        with pytest.raises(store.StoreError, match="there is no folder"):
            vn.load(none)


@pytest.mark.usefixtures("unchecked")
def test_only_models_are_saved(tmp_path):
    with pytest.raises(store.StoreError, match="cannot save a Linear"):
        store.save(torch.nn.Linear(2, 2), tmp_path)


def test_convert_and_check(tmp_path, vn_command):
    state = authors.random_state("vn_dgcnn_cls", classes=3, generator=torch.Generator().manual_seed(0))
    torch.save({"model_state_dict": state}, tmp_path / "old.pth")
    (tmp_path / "names.txt").write_text("cup\nnight stand\nbed\n")
    arguments = ["--k", "10", "--class-names", tmp_path / "names.txt", "--up", "y"]
    code, out, _ = vn_command("convert", tmp_path / "old.pth", tmp_path / "new", *arguments)
    assert code == 0
    assert "DGCNN with 3 outputs" in out
    model = vn.load(tmp_path / "new")
    assert model.metadata.classes == ["cup", "night stand", "bed"]
    points = torch.randn(2, 32, 3, dtype=torch.float64)
    expected = authors.vn_dgcnn_cls(state, points.mT, k=10)
    torch.testing.assert_close(model(points), expected, rtol=1e-9, atol=1e-10)
    code, out, _ = vn_command(
        "check", tmp_path / "new", "--dtype", "float64", "--gives", "scalars", "--shape", 2, 40, 3
    )
    assert code == 0
    assert "SO3-equivariant" in out


@pytest.mark.parametrize("inputs", [Inputs(), Inputs(vectors=1, scalars=2)], ids=str)
def test_check_gives_a_saved_model_all_the_inputs_it_needs(tmp_path, vn_command, inputs):
    store.save(PointNetSegmenter(6, 2, k=4, widths=((12,), (24,)), embedding=24, inputs=inputs), tmp_path)
    code, out, err = vn_command("check", tmp_path, "--gives", "scalars", "--dtype", "float64")
    assert code == 0, err
    assert "SO3-equivariant" in out
    assert "leave out --with" in vn_command("check", tmp_path, "--with", "k=3")[2]


def test_convert_mistakes_get_one_line(tmp_path, vn_command):
    torch.save({"a": torch.zeros(2)}, tmp_path / "other.pth")
    state = authors.random_state("vn_dgcnn_cls", generator=torch.Generator().manual_seed(0))
    torch.save(state, tmp_path / "old.pth")
    (tmp_path / "names.txt").write_text("cup\n")
    for arguments, words in [
        ([tmp_path / "none.pth", tmp_path / "new"], "there is no file"),
        ([tmp_path / "other.pth", tmp_path / "new"], "none of the authors' networks"),
        ([tmp_path / "old.pth", tmp_path / "new", "--class-names", tmp_path / "names.txt"], "names 1 outputs"),
        ([tmp_path / "old.pth", tmp_path / "new", "--class-names", tmp_path / "no.txt"], "No such file"),
    ]:
        code, _, err = vn_command("convert", *arguments)
        assert code == 2
        assert words in err
        assert err.count("\n") == 1
        assert not (tmp_path / "new").exists()
    assert vn_command("check", tmp_path)[0] == 2


def test_whoever_may_read_the_description_may_read_the_weights(tmp_path):
    store.save(small(), tmp_path)
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert len(modes) == 1


class Own(vn.models.Model):
    """A network of a user's own, with tied weights."""

    def __init__(self, classes, *, width=6, layers=LayerOptions()):  # noqa: B008 - immutable
        super().__init__()
        self.edge, self.read = vn.EdgeConv(1, width, k=4), vn.Invariant(width, norm="none")
        self.head = torch.nn.Linear(self.read.out_channels, classes)
        self.tied = self.head

    def forward(self, points):
        return self.head(self.read(self.edge(vn.lift(points))).amax(1))


def test_a_network_of_ones_own_is_saved_and_loaded(tmp_path):
    model, points = Own(3, width=9).eval(), torch.randn(2, 10, 3)
    vn.save(model, tmp_path)
    for loaded in (vn.load(tmp_path), vn.load(tmp_path, Own)):
        assert isinstance(loaded, Own)
        assert loaded.arguments["width"] == 9
        assert torch.equal(loaded(points), model(points))
    with pytest.raises(store.StoreError, match="holds a Own, not a DGCNN"):
        vn.load(tmp_path, vn.models.DGCNN)


def test_a_name_that_two_classes_have_needs_the_class(tmp_path, monkeypatch):
    vn.save(Own(3), tmp_path)
    rerun = type("Own", (vn.models.Model,), {})  # as a notebook cell leaves behind that ran twice
    twin = type("Own", (vn.models.Model,), {"__module__": "elsewhere"})
    monkeypatch.setitem(sys.modules, "elsewhere", SimpleNamespace(Own=twin))
    assert isinstance(vn.load(tmp_path), Own)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace(f"{Own.__module__}:Own", "gone:Own"))
    _files.write_checksums(tmp_path, ("model.safetensors", "config.json"))
    with pytest.raises(store.StoreError, match=r"several imported classes have this name; .*vn.load\(folder, Own\)"):
        vn.load(tmp_path)
    assert isinstance(vn.load(tmp_path, Own), Own)
    del rerun, twin
    gc.collect()


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_saved_is_refused(tmp_path):
    with pytest.raises(store.StoreError, match=r"cannot save a Linear: derive it from vector_neurons.models.Model"):
        vn.save(torch.nn.Linear(3, 3), tmp_path / "new")
    with pytest.raises(store.StoreError, match="is not a number, string, list, dict or None"):
        vn.save(Own(3, layers=torch.relu), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_model_of_the_old_format_names_the_script(tmp_path):
    vn.save(small(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"format": 1}))
    with pytest.raises(store.StoreError, match=r"has format 1, .*benchmarks/rename_settings.py"):
        vn.load(tmp_path)


class Several(vn.models.Model):
    def __init__(self, *widths):
        super().__init__()
        self.linear = torch.nn.Linear(*widths)


class Options(vn.models.Model):
    def __init__(self, classes, widths=(), **options):
        super().__init__()
        if widths:
            widths.append(9)  # changes what it was given
        self.options = options
        self.linear = torch.nn.Linear(3, classes)


class Stateful(vn.models.Model):
    def __init__(self):
        super().__init__()
        self.linear, self.reference = torch.nn.Linear(3, 3), torch.nn.Parameter(torch.zeros(2))

    def get_extra_state(self):
        return {"more": 1}

    def set_extra_state(self, state):
        pass


def test_constructors_of_ones_own(tmp_path):
    vn.save(Options(3, [4], width=7), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["arguments"] == {"classes": 3, "widths": [4], "width": 7}
    assert vn.load(tmp_path, Options).options == {"width": 7}
    with pytest.raises(store.StoreError, match=r"name the parameters of its constructor, without \* or / \(widths\)"):
        vn.save(Several(3, 4), tmp_path)
    with pytest.raises(store.StoreError, match=r"more than tensors \(_extra_state\); use buffers"):
        vn.save(Stateful(), tmp_path)


def test_a_class_with_the_name_of_a_network_here_is_not_mistaken_for_it(tmp_path):
    own = type("PointNet", (vn.models.PointNet,), {"forward": lambda self, points: points.sum()})
    vn.save(own(3, embedding=24), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["class"] == f"{own.__module__}:PointNet"
    assert isinstance(vn.load(tmp_path, own), own)
    assert isinstance(vn.load(tmp_path), own)
    del own
    gc.collect()


@pytest.mark.usefixtures("unchecked")
def test_wrappers_are_left_out(tmp_path):
    model = small()
    for wrapped in (torch.compile(model), torch.nn.DataParallel(model)):
        vn.save(wrapped, tmp_path)
        assert isinstance(vn.load(tmp_path), DGCNN)
