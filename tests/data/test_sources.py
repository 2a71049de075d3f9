"""Sources that are damaged, that ask for too much, or that the system does not give."""

import errno
import os

import numpy as np
import published
import pytest
from busy import failing

from vector_neurons import _npz
from vector_neurons.data import DataError, Folder, convert, folder, modelnet40, plan, reading
from vector_neurons.data.pack import open_pack


@pytest.fixture
def own(tmp_path):
    source = tmp_path / "own"
    for number in range(6):
        file = source / ("cup" if number < 3 else "plate") / f"{number}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, published.cloud(number, 50))
    return source


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE])
def test_a_busy_system_is_asked_again_and_no_file_is_left_out(own, tmp_path, monkeypatch, number):
    whole = folder.convert(own, tmp_path / "whole").read_bytes()
    failing(monkeypatch, (own / "cup" / "1.npy").__eq__, number, 2)
    assert folder.convert(own, tmp_path / "again").read_bytes() == whole


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EACCES, errno.EIO])
def test_what_the_system_does_not_give_stops_a_conversion(own, tmp_path, monkeypatch, number):
    whole = folder.convert(own, tmp_path / "whole").read_bytes()
    with monkeypatch.context() as broken:
        failing(broken, (own / "cup" / "1.npy").__eq__, number, 99)
        with pytest.raises(DataError, match=rf"1\.npy cannot be read: {os.strerror(number)}; no pack was written") as e:
            Folder(own, "all", tmp_path / "root")
        assert "\n" not in str(e.value)
        assert not list((tmp_path / "root").glob("*.safetensors"))
    assert folder.convert(own, tmp_path / "root").read_bytes() == whole


def test_a_published_file_that_the_system_does_not_give_is_not_skipped(tmp_path, monkeypatch):
    source = published.modelnet_text(tmp_path / "text")
    failing(monkeypatch, (source / "chair" / "chair_0001.txt").__eq__, errno.EACCES, 99, "read_bytes")
    with pytest.raises(DataError, match=r"Permission denied: .*chair_0001\.txt; no pack was written"):
        modelnet40.convert(source, tmp_path, skip_damaged=True)
    file = published.modelnet_npz(tmp_path / "modelnet40.npz")
    failing(monkeypatch, file.__eq__, errno.EACCES, 99)
    with pytest.raises(PermissionError):
        modelnet40.convert(file, tmp_path)


def test_a_folder_that_cannot_be_listed_is_not_empty(own, tmp_path, monkeypatch):
    original = os.scandir

    def denied(path):
        if str(path).endswith("cup"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(DataError, match=r"Permission denied: .*cup"):
        Folder(own, "all", tmp_path)


def test_what_is_no_regular_file_is_left_out(own, tmp_path):
    os.mkfifo(own / "cup" / "pipe.npy")
    (own / "plate" / "loop.npy").symlink_to(own / "plate" / "loop.npy")
    (own / "plate" / "zero.npy").symlink_to("/dev/zero")
    damaged = open_pack(folder.convert(own, tmp_path)).about["damaged"]
    assert [line.rpartition("/")[2] for line in damaged] == [
        "pipe.npy is not a regular file",
        "loop.npy is missing",
        "zero.npy is not a regular file",
    ]


def test_fifos_in_published_folders(tmp_path):
    for name in ("modelnet40_shape_names.txt", "modelnet40_train.txt", "chair/chair_0001.txt"):
        source = published.modelnet_text(tmp_path / name.replace("/", "-"))
        (source / name).unlink()
        os.mkfifo(source / name)
        with pytest.raises(DataError):
            modelnet40.convert(source, tmp_path)
    os.mkfifo(tmp_path / "modelnet40.npz")
    with pytest.raises(DataError, match="is not a regular file"):
        modelnet40.convert(tmp_path / "modelnet40.npz", tmp_path)


def test_arrays_that_are_not_needed_are_not_read_and_large_ones_are_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.ones(5), bomb=np.zeros(2**21))
    monkeypatch.setattr(reading, "DATASET_MAX_BYTES", 2**20)
    assert reading.read_npz(tmp_path / "a.npz", ["x"])["x"].tolist() == [1] * 5
    with pytest.raises(DataError, match=r"a\.npz is too large: its arrays take 16,777,344 bytes"):
        reading.read_npz(tmp_path / "a.npz", ["bomb"])
    monkeypatch.setattr(reading, "DATASET_MAX_BYTES", 2**40)
    monkeypatch.setattr(_npz, "RATIO_CHECK_MIN_BYTES", 2**20)
    with pytest.raises(DataError, match=r"a\.npz is refused: [0-9,]+ bytes inflate to 16,777,344"):
        reading.read_npz(tmp_path / "a.npz", ["bomb"])


def test_hdf5_files_cannot_ask_for_memory_or_for_other_files(tmp_path):
    import h5py

    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["secret"] = np.ones((3, 3))
    with h5py.File(tmp_path / "a.h5", "w") as h5:
        h5.create_dataset(
            "huge", shape=(10**6, 10**6, 3), chunks=(1, 10**4, 3), dtype="f4"
        )  # nothing of which is stored
        h5["linked"] = h5py.ExternalLink("other.h5", "secret")
        h5["soft"] = h5py.SoftLink("/huge")
        h5.create_group("group")
        h5["words"] = ["a", "b"]
        layout = h5py.VirtualLayout((3, 3), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "secret", (3, 3))
        h5.create_virtual_dataset("virtual", layout)
    for name, line in {"huge": "is too large: 'huge' is an array (1000000, 1000000, 3)"}.items():
        with pytest.raises(DataError) as error:
            reading.read_hdf5(tmp_path / "a.h5", {name: 0})
        assert line in str(error.value)
    for name in ("linked", "soft", "group", "words", "virtual"):
        with pytest.raises(DataError, match=f"'{name}' is not an array of numbers in this file"):
            reading.read_hdf5(tmp_path / "a.h5", {name: 0})


def test_text_of_one_endless_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"1," * 2**20)
    with pytest.raises(DataError, match="a line has 2,097,152 bytes"):
        reading.read_table(tmp_path / "a.txt", 6, ",")


def test_a_pack_by_name_or_path(own, tmp_path):
    path = folder.convert(own, tmp_path, to="mine", points=64)
    for data in (Folder(pack="mine", split="all", root=tmp_path, points=8), Folder(pack=path, split="all", points=8)):
        assert data.labels.tolist() == [0] * 3 + [1] * 3
    assert Folder(pack=path, points=8).split == "train"
    with pytest.raises(DataError, match="give either the path of a folder, or the pack"):
        Folder(points=8)
    with pytest.raises(DataError, match="give either the path of a folder, or the pack"):
        Folder(own, pack="mine")
    with pytest.raises(DataError, match="are options of the conversion"):
        Folder(pack=path, up="y")
    with pytest.raises(DataError, match=r"there is no pack .*make it with `vn data folder --from PATH --to yours`"):
        Folder(pack="yours", root=tmp_path)


def test_one_class_without_class_folders(own, tmp_path):
    assert Folder(own / "cup", "all", tmp_path).classes == ("object",)


def test_tables_beside_class_folders_are_no_shapes(own, tmp_path):
    (own / "labels.csv").write_text("file,class\n0,cup\n")
    np.savetxt(own / "cup" / "scan.csv", published.cloud(9, 40), delimiter=",", header="x,y,z", comments="")
    assert len(Folder(own, "all", tmp_path)) == 7


def test_points_that_are_nan(own, tmp_path):
    cloud = published.cloud(0, 50)
    cloud[:5] = np.nan
    np.save(own / "cup" / "0.npy", cloud)
    with pytest.warns(
        UserWarning, match=r"1 files .*5 of 50 points .*leave them out with drop_nan=True, or --drop-nan"
    ):
        assert len(Folder(own, "all", tmp_path)) == 5
    data = Folder(own, "all", tmp_path, drop_nan=True)
    assert len(data) == 6
    assert data.pack.arrays["count"].tolist()[0] == 45
    (note,) = data.pack.about["notes"]
    assert note.endswith("0.npy: 5 of 50 points are NaN or infinite and left out")


def test_a_chunk_is_kept_whole(tmp_path, own, monkeypatch):
    monkeypatch.setattr(plan, "FILES_PER_CHUNK", 2)
    whole = folder.convert(own, tmp_path / "whole", to="a").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(convert, "write_file", full)
        with pytest.raises(OSError, match="No space left"):
            folder.convert(own, tmp_path / "root", to="a")
        assert not list((tmp_path / "root").glob("a.safetensors"))
        assert not list((tmp_path / "root").rglob("*.part"))
    assert folder.convert(own, tmp_path / "root", to="a").read_bytes() == whole
    assert [file.name for file in (tmp_path / "root").iterdir()] == ["a.safetensors"]
