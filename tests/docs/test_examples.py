"""The scripts of `examples/` run, are short, and show what they promise."""

import re
import runpy
import sys

import pytest
import torch
from blocks import ROOT

SCRIPTS = sorted(script for script in (ROOT / "examples").glob("*.py") if script.name != "demo.py")  # its own test


@pytest.fixture
def output_of(monkeypatch, tmp_path, capsys):
    """Run a script in an empty folder; gives what it prints."""

    def run(name, *arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        torch.manual_seed(0)
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_there_are_eight_and_they_are_short():
    assert len(SCRIPTS) == 8
    assert max(len(script.read_text().splitlines()) for script in SCRIPTS) <= 40


@pytest.mark.parametrize("name", ["own_network.py", "accelerate_training.py"])
def test_a_network_of_ones_own_learns_and_has_one_accuracy(output_of, name):
    upright, rotated = (float(found) for found in re.findall(r"([\d.]+)%", output_of(name)))
    assert upright == rotated >= 60


def test_a_wrapped_network_has_one_accuracy_and_the_plain_one_has_not(output_of):
    rows = re.findall(r"(plain|wrapped): ([\d.]+)% upright, ([\d.]+)% rotated", output_of("own_pointnet.py"))
    (_, upright, rotated), (_, wrapped, wrapped_rotated) = ((name, float(a), float(b)) for name, a, b in rows)
    assert rotated < upright - 25
    assert abs(wrapped - wrapped_rotated) <= 1
    assert wrapped_rotated >= rotated + 15


def test_two_kinds_of_neurons_change_as_promised(output_of):
    out = output_of("two_kinds.py")
    change = {kind: float(re.search(rf"{kind} neurons .*: (\S+)", out).group(1)) for kind in ("vector", "scalar")}
    assert change["vector"] <= 1e-5
    assert change["scalar"] >= 1e-1


def test_the_layer_at_fault_is_named(output_of):
    out = output_of("check_equivariance.py")
    assert re.search(r"^second .*<-- breaks", out, flags=re.MULTILINE)
    assert float(re.search(r"repaired: relative error (\S+)", out).group(1)) < 1e-5


def test_an_old_checkpoint_loads(output_of, tmp_path):
    out = output_of("old_checkpoint.py")
    assert "All keys matched" in out
    assert float(re.search(r"change under rotation: (\S+)", out).group(1)) < 1e-5


def test_a_scan_becomes_a_closed_mesh_where_it_was(output_of, tmp_path):
    out = output_of("reconstruct_scan.py")
    assert "watertight: True" in out
    center = [float(x) for x in re.search(r"center \[(.*?)\]", out).group(1).split(",")]
    assert all(abs(x - 500) < 40 for x in center)
    out = output_of("reconstruct_scan.py", tmp_path / "scan.xyz", tmp_path / "again.ply")
    assert "watertight: True" in out
