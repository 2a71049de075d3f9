"""What a file asks for is looked at before it is given: memory, other files, patience."""

import errno
import io
import os
import resource
import sys
import tracemalloc
import zipfile

import numpy as np
import published
import pytest
from busy import failing

from vector_neurons import _files, _npz
from vector_neurons.mesh import Mesh, MeshError, MeshWarning, UnreadableError, mesh, read, write
from vector_neurons.mesh import io as mesh_io

MB = 2**20


def is_a(file):
    return file.name.startswith("a.")


def header(shape, dtype="<f8"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def archive(path, **members):
    """An .npz file of these contents, of which a number stands for so many zero bytes after a header."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(content if isinstance(content, bytes) else header(content))
                if not isinstance(content, bytes):
                    for _ in range(content[0] * 24 // MB):
                        member.write(bytes(MB))
                    member.write(bytes(content[0] * 24 % MB))
    return path


@pytest.fixture
def memory():
    """The most memory that was allocated since, in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def array(x):
    file = io.BytesIO()
    np.save(file, x)
    return file.getvalue()


def test_members_that_are_not_needed_are_not_inflated(tmp_path, memory):
    path = archive(tmp_path / "a.npz", points=array(published.cloud(0, 50)), other=(4 * MB, 3))
    assert path.stat().st_size < MB
    tracemalloc.reset_peak()
    assert len(read(path).vertices) == 50
    assert memory() < 5 * MB


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            {"points": (2 * MB, 3)},
            "is too large: its arrays take 50,331,776 bytes in memory, at most 33,554,432",
        ),
        ({"points": (MB, 3)}, "is refused: [0-9,]+ bytes inflate to 25,165,952"),
        ({"points": header((10**9, 3)) + bytes(72)}, "takes 24,000,000,000 bytes, and 72 are there"),
        ({"points": header((3, 3)) + bytes(80)}, "takes 72 bytes, and 80 are there"),
        ({"points": header((-3, -3)) + bytes(72)}, "is damaged"),
        ({"points": header((60 * MB, 3), "|u1") + bytes(9)}, "and 9 are there"),
    ],
)
def test_an_archive_cannot_ask_for_memory(tmp_path, memory, monkeypatch, members, words):
    assert (mesh.FILE_MAX_BYTES, mesh.ARRAYS_MAX_BYTES, _npz.RATIO_CHECK_MIN_BYTES) == (2**28, 2**29, 2**28)
    monkeypatch.setattr(mesh_io, "ARRAYS_MAX_BYTES", 32 * MB)
    monkeypatch.setattr(_npz, "RATIO_CHECK_MIN_BYTES", 8 * MB)
    path = archive(tmp_path / "a.npz", **members)
    tracemalloc.reset_peak()
    with pytest.raises(MeshError, match=words):
        read(path)
    assert memory() < 5 * MB


def test_an_array_cannot_ask_for_memory(tmp_path, memory):
    path = tmp_path / "a.npy"
    path.write_bytes(header((10**9, 3)) + bytes(72))
    with pytest.raises(MeshError, match="takes 24,000,000,000 bytes, and 72 are there"):
        read(path)
    with path.open("wb") as file:  # whole, but bytes become numbers of eight each
        file.write(header((60 * MB, 3), "|u1"))
        file.truncate(file.tell() + 180 * MB)
    with pytest.raises(MeshError, match="is too large: its arrays take 1,509,949,440 bytes"):
        read(path)
    assert memory() < 5 * MB


CROWDED = {
    "one line.xyz": b"10 " * 60_000,
    "short lines.xyz": b"10\n" * 60_000,
    "one line.off": b"OFF\n1 1 0\n0 0 0\n" + b"10 " * 60_000,
    "short lines.off": b"OFF\n1 1 0\n" + b"10\n" * 60_000,
    "one line.obj": b"v 0 0 0\nf " + b"10 " * 60_000,
    "faces.obj": b"v 0 0 0\n" + b"f 1 1 1\nf 1 1 1 1\n" * 10_000,
    "one line.stl": b"solid " + b"10 " * 60_000,
    "short lines.ply": b"ply\nformat ascii 1.0\nelement vertex 9\nproperty float x\nproperty float y\n"
    b"property float z\nend_header\n" + b"10\n" * 60_000,
    "one line.csv": b"10," * 60_000,
    "blank.csv": b"\n" * 180_000,
    "polygons.ply": b"ply\nformat binary_little_endian 1.0\nelement vertex 1\nproperty float x\nproperty float y\n"
    b"property float z\nelement face 12000\nproperty list uchar int vertex_indices\nend_header\n"
    + bytes(12) + (b"\3" + bytes(12) + b"\4" + bytes(16)) * 6_000,
}  # fmt: skip


@pytest.mark.parametrize("name", CROWDED)
def test_text_needs_no_more_than_twenty_times_its_size(tmp_path, memory, name):
    (tmp_path / name).write_bytes(CROWDED[name])
    tracemalloc.reset_peak()
    try:
        read(tmp_path / name)
    except (MeshError, MeshWarning) as error:
        assert "\n" not in str(error)  # noqa: PT017
    assert memory() < 20 * len(CROWDED[name])


def test_a_line_of_megabytes_is_refused(tmp_path):
    (tmp_path / "a.xyz").write_bytes(b"10 " * 400_000)
    with pytest.raises(MeshError, match="a line has 1,200,000 bytes, at most 1,048,576 are read"):
        read(tmp_path / "a.xyz")


def test_an_obj_file_leads_nowhere(tmp_path):
    os.mkfifo(tmp_path / "pipe.mtl")  # whoever opened it would wait for ever
    (tmp_path / "a.obj").write_text("mtllib pipe.mtl\nusemtl m\nv 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    assert len(read(tmp_path / "a.obj").faces) == 1


@pytest.mark.parametrize("suffix", ["ply", "npz", "npy", "xyz", "glb"])
def test_only_regular_files_are_opened(tmp_path, suffix):
    os.mkfifo(tmp_path / f"pipe.{suffix}")
    (tmp_path / f"folder.{suffix}").mkdir()
    (tmp_path / f"device.{suffix}").symlink_to("/dev/zero")
    (tmp_path / f"loop.{suffix}").symlink_to(tmp_path / f"loop.{suffix}")
    for name in ("pipe", "folder", "device", "loop", "n" * 300, "file/inside"):
        with pytest.raises(MeshError, match=f"{name}.{suffix}") as error:
            read(tmp_path / f"{name}.{suffix}")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EIO, errno.EMFILE, errno.ESTALE, errno.EINTR])
@pytest.mark.parametrize(
    ("suffix", "method"), [("ply", "read_bytes"), ("ply", "stat"), ("npz", "open"), ("npy", "open")]
)
def test_a_busy_system_is_asked_again(tmp_path, monkeypatch, suffix, method, number):
    path = tmp_path / f"a.{suffix}"
    if suffix == "ply":
        write(Mesh(*map(__import__("torch").from_numpy, (published.BOX, published.BOX_FACES))), path)
    elif suffix == "npz":
        np.savez(path, points=published.cloud(0, 8))
    else:
        np.save(path, published.cloud(0, 8))
    failing(monkeypatch, is_a, number, 2, method)
    assert len(read(path).vertices) == 8
    calls = failing(monkeypatch, is_a, number, 99, method)
    with pytest.raises(UnreadableError, match=f"cannot be read: {os.strerror(number)}$") as error:
        read(path)
    assert isinstance(error.value, MeshError)
    assert isinstance(error.value, OSError)
    assert len(calls) == 1 + len(_files.RETRY_DELAYS)


def test_permission_denied_is_no_damage(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", published.cloud(0, 8))
    calls = failing(monkeypatch, is_a, errno.EACCES, 99)
    with pytest.raises(UnreadableError, match=r"a\.npy cannot be read: Permission denied$"):
        read(tmp_path / "a.npy")
    assert len(calls) == 1  # there is no use in waiting


@pytest.mark.skipif(sys.platform != "linux", reason="other systems raise other errors")
def test_a_mesh_is_written_whole_or_not_at_all(tmp_path):
    box = Mesh(*map(__import__("torch").from_numpy, (published.BOX, published.BOX_FACES)))
    write(box, tmp_path / "a.ply")
    before = (tmp_path / "a.ply").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # a disk that is full after 100 bytes
    try:
        with pytest.raises(OSError, match="File too large"):
            write(box, tmp_path / "a.ply")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "a.ply").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.ply"]
