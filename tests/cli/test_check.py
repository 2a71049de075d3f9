import subprocess
import sys
import textwrap

import pytest

from vector_neurons import cli

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


def test_a_file_that_imports_from_the_current_folder(vn_command, file, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "user.py").write_text("from networks import Good\n")
    assert vn_command("check", "inner/user.py:Good")[0] == 0


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
        ("nowhere.py:Good", [], "there is no file"),
        ("networks.py:Missing", [], "has no 'Missing'"),
        ("networks.py:number", [], "is a int, not a torch.nn.Module"),
        ("networks.py:make", [], "--with NAME=VALUE"),
        ("networks.py:Good", ["--with", "channels"], "NAME=VALUE"),
        ("networks.py:Good", ["--shape", "2", "5", "3"], "1 <= k <= 5"),
        ("networks.py:Good", ["--takes", "vectors"], "needs the input's --shape"),
        ("broken.py:Good", [], "cannot be imported: ModuleNotFoundError"),
        ("leaves.py:Good", [], "cannot be imported: SystemExit"),
        ("networks.py:ready", ["--with", "k=3"], "--with has no use"),
        ("networks.py:Empty", [], "gave no tensors but a str"),
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
