"""`vn convert`: what it writes, what it says, and that nothing remains when it fails."""

import os

import pytest
import torch
from elsewhere import python

import vector_neurons as vn

from . import reference as authors


@pytest.fixture
def checkpoint(tmp_path):
    state = authors.random_state("vn_dgcnn_cls", classes=3, generator=torch.Generator().manual_seed(0))
    torch.save({k: t.float() if t.is_floating_point() else t for k, t in state.items()}, tmp_path / "old.pth")
    return tmp_path / "old.pth"


def changed(checkpoint, change):
    state = torch.load(checkpoint)
    change(state)
    torch.save(state, checkpoint)


def refused(result, words):
    code, out, err = result
    assert code == 2
    assert not out
    assert err.startswith("vn convert: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_folder_is_written_whole(vn_command, checkpoint, tmp_path):
    (tmp_path / "names.txt").write_text("cup\nhat\nbox\n")
    for _ in range(2):  # the second replaces the first
        code, out, _ = vn_command("convert", checkpoint, tmp_path / "a" / "b", "--class-names", tmp_path / "names.txt")
        assert code == 0
        assert "DGCNN with 3 outputs" in out
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["checksums.json", "config.json", "model.safetensors"]
    model = vn.load(tmp_path / "a" / "b")
    assert model.metadata.classes == ["cup", "hat", "box"]


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_it_says_how_the_network_pools(vn_command, tmp_path, pooling):
    torch.save(authors.random_state("vn_dgcnn_cls", classes=3, pooling=pooling), tmp_path / "old.pth")
    assert vn_command("convert", tmp_path / "old.pth", tmp_path / "new")[1].endswith(
        f" parameters, {pooling} pooling\n"
    )


def test_it_says_which_parameters_differ(vn_command, checkpoint, tmp_path):
    def change(state):
        state.pop("conv1.map_to_dir.weight")
        state.pop("std_feature.vn1.batchnorm.bn.bias")
        state.update({f"more.{i}": torch.zeros(1) for i in range(5)})
        state["conv2.map_to_feat.weight"] = torch.zeros(3, 3)

    changed(checkpoint, change)
    result = vn_command("convert", checkpoint, tmp_path / "new")
    refused(result, "this looks like VN-DGCNN, classification, but its parameters do not fit: ")
    assert "2 missing (conv1.map_to_dir.weight, std_feature.vn1.batchnorm.bn.bias)" in result[2]
    assert "5 unexpected (more.0, more.1, more.2, ...)" in result[2]
    assert "1 of another shape (conv2.map_to_feat.weight is (3, 3), not (21, 42))" in result[2]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["vn_dgcnn_cls", "vn_dgcnn_partseg", "vn_pointnet_cls", "vn_pointnet_partseg"])
def test_every_parameter_is_called_by_the_authors_name(name):
    state = authors.random_state(name, pooling="max", generator=torch.Generator().manual_seed(0))
    _, network = vn.models.reference._recognize(state)  # type: ignore[attr-defined]
    for theirs in state:
        if ours := vn.models.reference._rename(theirs, network):  # type: ignore[attr-defined]
            assert vn.models.reference._undo(network.names, ours) == theirs  # type: ignore[attr-defined]


def test_ndfs_network_is_known_by_name(vn_command, tmp_path):
    names = ("encoder.fc_c.map_to_feat.weight", "decoder.z_in.map_to_feat.weight", "decoder.fc_out.weight")
    torch.save({name: torch.zeros(4, 4) for name in names}, tmp_path / "old.pth")
    refused(vn_command("convert", tmp_path / "old.pth", tmp_path / "new"), "this is NDF's VNNOccNet")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("x" * 300, "File name too long"),
        ("file", "File exists"),
        ("file/new", "Not a directory"),
        ("good/" + "x" * 300, "File name too long"),
    ],
)
def test_targets_that_cannot_be(vn_command, checkpoint, tmp_path, target, words):
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    refused(vn_command("convert", checkpoint, tmp_path / target), words)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("exists", [False, True])
def test_nothing_half_written_remains_on_a_full_disk(checkpoint, tmp_path, exists):
    """Files may not grow beyond a megabyte, which is how a disk without space looks to whoever writes."""
    folder = tmp_path / "new" / "folder"
    if exists:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("old")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = python(
        f"""
        import resource, sys
        from vector_neurons import cli
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        sys.argv = ["vn", "convert", {str(checkpoint)!r}, {str(folder)!r}]
        cli.main()
        """
    )
    refused((code, out, err), "File too large")
    assert sorted(tmp_path.rglob("*")) == before
    assert not exists or (folder / "config.json").read_text() == "old"


def test_class_names_that_are_none(vn_command, checkpoint, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "two").write_text("cup\nhat\n")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**30)
    cases = {
        "fifo": "not a regular file",
        "binary": "is not a text file",
        "two": "names 2 outputs",
        "large": "is too large",
    }
    for name, words in {**cases, "none": "No such file"}.items():
        refused(vn_command("convert", checkpoint, tmp_path / "new", "--class-names", tmp_path / name), words)
    assert not (tmp_path / "new").exists()
