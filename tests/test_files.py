"""Whole files, checksums and locks, from several processes."""

import errno
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


WRITE = """
import sys
from pathlib import Path
from vector_neurons import _files
for number in range(200):
    _files.write_file(Path(sys.argv[1]), sys.argv[2] * 1000)
"""


def test_processes_that_write_the_same_file_do_not_break_each_other(tmp_path):
    path = tmp_path / "a.json"
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, path, word], stderr=subprocess.PIPE) for word in "abc"]
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [(b"", 0)] * 3
    assert path.read_text() in [word * 1000 for word in "abc"]
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_name_may_be_as_long_as_names_can_be(tmp_path):
    _files.write_file(tmp_path / ("x" * 255), "content")
    assert (tmp_path / ("x" * 255)).read_text() == "content"


def test_a_drive_on_which_folders_cannot_be_flushed(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuse)
    _files.flush(tmp_path)
    with pytest.raises(OSError, match="Invalid"):
        _files.write_file(tmp_path / "a", "content")


def test_no_home_folder_is_one_line(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(_files.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home")))
    with pytest.raises(_files.FileError, match="XDG_CACHE_HOME"):
        _files.cache()
    _files.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_whoever_waits_for_a_lock_is_told_for_whom(tmp_path):
    path, told = tmp_path / "lock", []
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"

    def waiting(who):
        told.append(who)
        holder.communicate(b"")

    with _files.locked(path, on_wait=waiting):
        assert f"locked by process {holder.pid}" in told[0]


def test_the_cache_is_its_users_own_whatever_the_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0o002)
    try:
        _files.make_folder(_files.cache() / "inner")
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
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(_files.FileError, match=r"not a regular file|cannot be read: embedded null"):
            _files.read_json(path)
        with pytest.raises(_files.FileError, match=r"not a regular file|cannot be read: embedded null"):
            _files.sha256(path)
    for path, words in ((tmp_path / "none", "No such file"), (tmp_path / ("x" * 300), "File name too long")):
        with pytest.raises(_files.FileError, match=f"cannot be read: {words}"):
            _files.read_json(path)
        with pytest.raises(OSError, match=words):
            _files.sha256(path)
    (tmp_path / "large").write_text("[1, 2, 3]")
    with pytest.raises(_files.FileError, match="at most 4 are read"):
        _files.read_json(tmp_path / "large", max_bytes=4)


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
