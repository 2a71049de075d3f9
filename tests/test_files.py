"""Whole files, checksums and locks, from several processes."""

import os
import subprocess
import sys

import pytest

from vector_neurons import _files

HOLD = """
import sys
from pathlib import Path
from vector_neurons import _files
with _files.locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    _files.write_file(path, "old")
    monkeypatch.setattr(_files, "flush", lambda path: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        _files.write_file(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_the_cache_is_its_users_own_whatever_the_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0o002)
    try:
        _files.make_folder(_files.cache())
        _files.make_folder(tmp_path / "shared")
    finally:
        os.umask(before)
    assert _files.cache().stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o775


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b"1" * 5_000, b""])
def test_damaged_json_is_one_line(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(_files.FileError, match=r"a\.json is damaged: [^\n]+$"):
        _files.read_json(path)


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "none", tmp_path / ("x" * 300), tmp_path / "a\0b"):
        with pytest.raises(_files.FileError, match=r"no regular file|cannot be read"):
            _files.read_json(path)
        with pytest.raises(_files.FileError):
            _files.sha256(path)
    (tmp_path / "large").write_text("[1, 2, 3]")
    with pytest.raises(_files.FileError, match="more than the 4"):
        _files.read_json(tmp_path / "large", most=4)


def test_a_lock_names_its_holder_and_dies_with_it(tmp_path):
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(_files.LockedError, match=f"process {holder.pid} on "), _files.locked(path, wait=False):
        pass
    holder.kill()
    holder.communicate()
    with _files.locked(path, wait=False):
        assert str(os.getpid()) in path.read_text()
    assert not path.exists()
