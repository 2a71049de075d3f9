import subprocess
import sys
import textwrap

import pytest
from mutated import NOT_EQUIVARIANT, mutated

import vector_neurons as vn
from vector_neurons import cli, kernels

NETWORKS = """
    import torch
    from torch import nn
    import vector_neurons as vn

    class Good(nn.Module):
        def __init__(self, channels=8):
            super().__init__()
            self.edge, self.read = vn.EdgeConv(1, channels, k=8), vn.Invariant(channels)
        def forward(self, points):
            return self.read(self.edge(vn.lift(points)))

    class Bad(Good):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()
        def forward(self, points):
            return self.read(self.act(self.edge(vn.lift(points))))

    def make(channels):
        return Good(channels)

    class Two(nn.Module):
        def forward(self, points):
            return points.amax(1), points.norm(dim=-1).sum(1, keepdim=True)

    class Empty(nn.Module):
        def forward(self, points):
            return "nothing"

    ready = vn.Block(4, 4)
    number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "networks.py"
    path.write_text(textwrap.dedent(NETWORKS))
    return path


def test_a_good_module_passes(vn_command, file):
    code, out, _ = vn_command("check", f"{file}:Good", "--gives", "scalars")
    assert code == 0
    assert "edge.blocks.0.linear" in out
    assert "SO3-equivariant" in out


def test_a_bad_module_fails_and_names_the_layer(vn_command, file):
    code, out, _ = vn_command("check", f"{file}:Bad")
    assert code == 1
    assert "SO3 breaks first at act (ReLU)" in out
    assert "<-- breaks" in next(line for line in out.splitlines() if line.startswith("act "))


def test_one_good_output_does_not_excuse_another(vn_command, file):
    code, out, _ = vn_command("check", f"{file}:Two", "--gives", "scalars")
    assert code == 1
    assert "SO3 breaks first at (output)" in out


def test_files_beside_it_are_found_on_the_import_path_only(vn_command, file, monkeypatch, tmp_path):
    """As in `vn train`, where a run keeps a copy of one file."""
    (tmp_path / "user.py").write_text("from networks import Good\n")
    for command in (
        ["check", f"{tmp_path}/user.py:Good"],
        ["train", "classification", "--model", f"{tmp_path}/user.py:Good"],
    ):
        code, _, err = vn_command(*command)
        assert code == 2
        assert f"No module named 'networks'; files beside it are found only with PYTHONPATH={tmp_path}\n" in err
    monkeypatch.syspath_prepend(tmp_path)
    assert vn_command("check", f"{tmp_path}/user.py:Good")[0] == 0


def test_a_file_does_not_shadow_the_standard_library(vn_command, file, tmp_path):
    import random

    before = list(sys.path)
    file.rename(tmp_path / "random.py")
    assert vn_command("check", f"{tmp_path}/random.py:Good")[0] == 0
    assert sys.modules["random"] is random
    assert sys.path == before


def test_arguments_functions_and_ready_modules(vn_command, file):
    code, out, _ = vn_command(
        "check", f"{file}:make", "--with", "channels=5", "--dtype", "float64", "--group", "permutation"
    )
    assert code == 0
    assert "(2, 128, 15)" in out
    assert vn_command("check", f"{file}:ready", "--takes", "vectors", "--shape", "2", "9", "3", "4", "--train")[0] == 0


@pytest.mark.parametrize(
    ("target", "arguments", "words"),
    [
        ("networks.py", [], "write path/to/file.py:ClassName"),
        ("nowhere.py:Good", [], "the file cannot be read: No such file or directory: nowhere.py"),
        ("networks.py:Missing", [], "networks.py has no 'Missing'; its classes: Good, Bad, Two, Empty\n"),
        ("networks.py:number", [], "number is not a torch.nn.Module but of type int"),
        ("networks.py:make", [], "--with NAME=VALUE"),
        ("networks.py:Good", ["--with", "channels"], "NAME=VALUE"),
        ("networks.py:Good", ["--shape", "2", "5", "3"], "1 <= k <= 5"),
        ("networks.py:Good", ["--takes", "vectors"], "needs the input's --shape"),
        ("broken.py:Good", [], "cannot be imported: ModuleNotFoundError"),
        ("leaves.py:Good", [], "cannot be imported: SystemExit"),
        ("networks.py:ready", ["--with", "k=3"], "leave out --with"),
        ("networks.py:Empty", [], "the module returned a str: return tensors"),
        ("notes.txt:Good", [], "is not a Python file"),
    ],
)
def test_what_cannot_be_checked_gets_one_line(vn_command, file, monkeypatch, target, arguments, words):
    monkeypatch.chdir(file.parent)
    (file.parent / "broken.py").write_text("import no_such_package_anywhere\n")
    (file.parent / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    (file.parent / "notes.txt").write_text("hello")
    code, out, err = vn_command("check", target, *arguments)
    assert code == 2
    assert not out
    assert words in err
    assert err.count("\n") == 1
    assert err.startswith("vn check: ")


def test_help_and_typos(vn_command):
    assert "check" in vn_command("--help")[1]
    assert vn_command()[0] == 2
    code, _, err = vn_command("chekc")
    assert code == 2
    assert "did you mean `vn check`?" in err
    code, _, err = vn_command("check", "x.py:X", "--tolerence", "1")
    assert code == 2
    assert "--tolerance" in err


def test_version(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["vn", "--version"])
    cli.main()
    assert capsys.readouterr().out.strip() == "0.1.0"


def test_help_imports_nothing_beyond_torch_and_the_layers():
    code = "import sys, torch; before = set(sys.modules); sys.argv = ['vn', '--help']\nfrom vector_neurons import cli\n"
    code += "try: cli.main()\nexcept SystemExit: print('LOADED', *set(sys.modules) - before)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split("LOADED")[1].split())
    assert not loaded & {"tyro", "trimesh", "safetensors", "tqdm", "rich"}


BETWEEN = """
    import torch
    from torch import nn
    import vector_neurons as vn

    class Net(nn.Module):
        '''Equivariant, but for a function at one place.'''
        def __init__(self, place):
            super().__init__()
            self.place = place
            self.edge, self.inner, self.last = vn.EdgeConv(1, 8, k=8), Inner(place), vn.Linear(8, 4)
        def at(self, place, x):
            return torch.relu(x) if self.place == place else x
        def forward(self, points):
            x = self.at("before", vn.lift(points))
            x = self.at("between", self.edge(x))
            return self.at("after", self.last(self.inner(x)))

    class Inner(nn.Module):
        def __init__(self, place):
            super().__init__()
            self.place, self.one, self.two = place, vn.Block(8, 8), vn.Block(8, 8)
        def forward(self, x):
            x = self.one(x)
            x = self.two(torch.relu(x) if self.place == "nested" else x)
            return torch.relu(x) if self.place == "end" else x

    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.edge, self.act, self.last = vn.EdgeConv(1, 8, k=8), nn.ReLU(inplace=True), vn.Linear(8, 4)
        def forward(self, points):
            return self.last(self.act(self.edge(vn.lift(points))))

    class Shifts(nn.Module):
        '''Knows how to take a shift out, and so what goes into its layers is vectors without one.'''
        def __init__(self):
            super().__init__()
            self.keep, self.edge = nn.Identity(), vn.EdgeConv(1, 8, k=8)
        def forward(self, points):
            return torch.relu(self.edge(vn.lift(self.keep(points - points.mean(1, keepdim=True)))))
"""


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("none", "SO3-equivariant"),
        ("before", "the input of edge is already not equivariant; look at the code before it"),
        ("between", "the input of inner is already not equivariant; look at the code before it"),
        ("nested", "the input of inner.two is already not equivariant; look at the code before it"),
        ("end", "first at inner (Inner), error"),
        ("end", "look at its own code after the last of them, inner.two"),
        ("after", "first at (output) (Net), error"),
        ("after", "look at its own code after the last of them, last"),
    ],
)
def test_functions_between_layers_are_found(vn_command, tmp_path, place, words):
    (tmp_path / "between.py").write_text(textwrap.dedent(BETWEEN))
    code, out, _ = vn_command("check", f"{tmp_path}/between.py:Net", "--with", f"place={place}")
    assert words in out
    assert code == (0 if place == "none" else 1)
    assert out.count("<-- breaks") == code


def test_layers_that_work_in_place_do_not_shift_the_blame(vn_command, tmp_path):
    (tmp_path / "between.py").write_text(textwrap.dedent(BETWEEN))
    assert "breaks first at act (ReLU)" in vn_command("check", f"{tmp_path}/between.py:InPlace")[1]


def test_vectors_without_a_shift_are_equivariant(vn_command, tmp_path):
    (tmp_path / "between.py").write_text(textwrap.dedent(BETWEEN))
    out = vn_command("check", f"{tmp_path}/between.py:Shifts", "--group", "se3")[1]
    assert "SE3 breaks first at (output)" in out
    assert "vectors, axis 2" in out


CHANNELS_FIRST = """
    import torch
    from torch import nn
    import vector_neurons as vn
    from vector_neurons.compat import vnn

    class Read(nn.Module):
        '''Takes and gives (B, 3, N).'''
        def __init__(self):
            super().__init__()
            self.edge, self.last = vn.EdgeConv(1, 8, k=8), vn.Linear(8, 1)
        def forward(self, points):
            return self.last(self.edge(vn.lift(points.mT.contiguous()))).squeeze(-1).mT

    class Norms(nn.Module):
        '''Lengths of what it takes for points (B, 3, N), whatever the size of the axis.'''
        def forward(self, points):
            return points.norm(dim=1)

    class Edges(nn.Module):
        '''The authors' axis order: (B, C, 3, N, K).'''
        def __init__(self):
            super().__init__()
            self.layer = vnn.VNLinear(1, 5)
        def forward(self, points):
            return self.layer(points[:, None, :, :, None].expand(-1, -1, -1, -1, 4))
"""


@pytest.mark.parametrize("group", ["so3", "O3", "permutation", "SE3"])
def test_points_with_coordinates_before_points(vn_command, tmp_path, group):
    (tmp_path / "first.py").write_text(textwrap.dedent(CHANNELS_FIRST))
    target, flags = f"{tmp_path}/first.py", ["--layout", "b3n", "--group", group]
    centered = group != "SE3"  # no network here takes shifts out
    assert vn_command("check", f"{target}:Read", *flags, "--gives", "points")[0] == (0 if centered else 1)
    assert vn_command("check", f"{target}:Norms", *flags)[0] == (0 if centered else 1)
    code, out, _ = vn_command("check", f"{target}:Edges", *flags, "--shape", 2, 3, 20)
    assert code == (0 if centered else 1)
    assert not centered or ("permuted, axis 3" if group == "permutation" else "axis 2") in out


def test_a_module_for_the_other_layout_is_told_so(vn_command, tmp_path):
    (tmp_path / "first.py").write_text(textwrap.dedent(CHANNELS_FIRST))
    code, out, _ = vn_command("check", f"{tmp_path}/first.py:Norms")
    assert code == 1
    assert "then is equivariant: write --layout b3n" in out
    code, _, err = vn_command("check", f"{tmp_path}/first.py:Read")
    assert code == 2
    assert "write --layout b3n" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shape", 2, 3, 128], "the last axis must be 3, got (2, 3, 128); for a module that takes (B, 3, N), add"),
        (["--shape", 2, 128, 3, "--layout", "b3n"], "the second of three axes must be 3"),
        (["--takes", "vectors", "--shape", 2, 5, 4], "the last but one axis must be 3, got (2, 5, 4)"),
        (["--takes", "frames", "--shape", 3], "the last but one axis must be 3"),
        (["--shape", 0, 5, 3], "sizes of 1 or more"),
        (["--group", "so4"], "unknown group 'so4': choose one of SO3, O3"),
        (["--gives", "points"], "the output (2, 128, 24) cannot be what was declared: points are (B, N, 3)"),
        (["--gives", "vectors"], "cannot be what was declared: vectors are (..., 3, C)"),
    ],
)
def test_shapes_that_do_not_fit_get_one_line(vn_command, file, arguments, words):
    code, out, err = vn_command("check", f"{file}:Good", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_help_says_that_the_file_is_executed(vn_command):
    def words(verb):
        return " ".join(vn_command(verb, "--help")[1].replace("│", " ").split())

    assert "EXECUTES the Python file" in words("check")
    assert "EXECUTES the copy of that file" in words("evaluate")
    assert "EXECUTES the file, and --resume the copy" in words("train")


def test_a_folder_goes_to_the_store_as_it_is(vn_command, tmp_path, monkeypatch):
    """Which knows runs, too."""
    from vector_neurons.models import DGCNN, store

    seen = []
    model = DGCNN(3, widths=(12,), embedding=24, hidden=(8,), k=5)
    monkeypatch.setattr(store, "load", lambda folder, model_class: (seen.append(folder), model)[1])
    (tmp_path / "run" / "best").mkdir(parents=True)
    assert vn_command("check", tmp_path / "run", "--gives", "scalars")[0] == 0
    assert seen == [str(tmp_path / "run")]


def test_a_module_that_leaves_is_not_equivariant(tmp_path, vn_command):
    (tmp_path / "leaves.py").write_text(
        "import sys\nfrom torch import nn\nclass L(nn.Module):\n    def forward(self, x):\n        sys.exit(0)\n"
    )
    code, _, err = vn_command("check", f"{tmp_path / 'leaves.py'}:L")
    assert code == 2
    assert "does not run on points" in err


def test_errors_inside_an_equivariant_module_are_mentioned(tmp_path, vn_command):
    (tmp_path / "nearly.py").write_text(
        "import torch\nimport vector_neurons as vn\nclass N(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.inner = vn.Linear(1, 1)\n"
        "    def forward(self, x):\n        y = self.inner(vn.lift(x) + 1e-3)\n"
        "        return x.norm(dim=-1).sum(1, keepdim=True) + 1e-9 * y.sum()\n"
    )
    code, out, _ = vn_command("check", f"{tmp_path / 'nearly.py'}:N", "--gives", "scalars")
    assert code == 0
    assert "inside it inner has" in out


def test_an_input_has_a_largest_size(file, vn_command):
    code, _, err = vn_command("check", f"{file}:Good", "--shape", 2, 100_000_000, 3)
    assert code == 2
    assert "--shape takes at most 10,000,000 numbers" in err


NETWORKS_OF_THE_LIBRARY = {
    "DGCNN": lambda: vn.models.DGCNN(5, k=6, widths=(12, 12), embedding=24, hidden=(8,)),
    "DGCNNSegmenter": lambda: vn.models.DGCNNSegmenter(5, 3, k=6, embedding=24),
    "PointNet": lambda: vn.models.PointNet(5, k=6, embedding=24, hidden=(8,)),
    "PointNetSegmenter": lambda: vn.models.PointNetSegmenter(5, 3, k=6, embedding=24, hidden=(8,)),
    "VNTransformer": lambda: vn.models.VNTransformer(5, k=6, width=24, heads=2, depth=1, hidden=8),
    "OccupancyNetwork": lambda: vn.models.OccupancyNetwork(k=6, code=24, hidden=24, decoder_hidden=8),
}
needs_native = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")


@needs_native
@pytest.mark.parametrize("name", NETWORKS_OF_THE_LIBRARY)
def test_every_network_has_a_row_for_its_invariant_layer_on_both_backends(vn_command, tmp_path, name):
    vn.save(NETWORKS_OF_THE_LIBRARY[name](), tmp_path)
    with kernels.using("native"):
        code, out, _ = vn_command("check", tmp_path)
    assert code == 0, out
    head, *rows = out.splitlines()
    assert head.split()[-3:] == ["eager", "native", "difference"]
    invariant = [row for row in rows if " Invariant " in row]
    assert invariant
    assert name == "OccupancyNetwork" or not invariant[0].split("  <--")[0].endswith("-"), invariant
    with kernels.using("eager"):
        code, out, _ = vn_command("check", tmp_path)
    assert code == 0
    assert out.splitlines()[0].split()[-1] == "eager"


def small_dgcnn():
    return vn.models.DGCNN(5, k=6, widths=(12, 12), embedding=24, hidden=(8,))


@needs_native
@pytest.mark.parametrize("name", NOT_EQUIVARIANT)
def test_a_wrong_native_kernel_is_caught(vn_command, tmp_path, name):
    frames = name.startswith("f") and name != "frame_pool"
    network = vn.models.FrameNet(5, k=6, k_last=3, width=16, hidden=8) if frames else small_dgcnn()
    vn.save(network, tmp_path)
    if name == "project":  # of a Linear, on its own
        (tmp_path / "own.py").write_text("import vector_neurons as vn\ndef make(): return vn.Linear(4, 8)\n")
    target = (
        [f"{tmp_path}/own.py:make", "--takes", "vectors", "--shape", 2, 8, 3, 4] if name == "project" else [tmp_path]
    )
    with kernels.using("native"), mutated(name, NOT_EQUIVARIANT[name]):
        code, out, _ = vn_command("check", *target)
    assert code == 1
    assert "holds on the eager backend, but not on the native one, first at" in out
    if name != "farthest_canonical":  # which stands between layers, in no row of its own
        assert sum("<-- breaks" in line for line in out.splitlines()) == 1


@needs_native
def test_a_wrong_native_kernel_that_is_equivariant_is_caught(vn_command, tmp_path):
    vn.save(small_dgcnn(), tmp_path)
    with kernels.using("native"), mutated("norm_leaky_relu", lambda out, *_: 1.01 * out):
        code, out, _ = vn_command("check", tmp_path)
    assert code == 1
    assert "first at encoder.convolutions.0.blocks.0 (Block)" in out
    assert "difference to eager 1.0e-02" in out


def test_a_check_on_one_backend_says_so(vn_command, file, monkeypatch):
    monkeypatch.setattr(kernels, "available", lambda: ("eager",))
    assert "Only the eager backend was checked" in vn_command("check", f"{file}:Good")[1]
