"""Files that are whole or not there: atomic writes, checksums, locks, bounded reads; and the user's cache directory."""

import errno
import hashlib
import json
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

JSON_MAX_BYTES = 64 * 2**20  # of a file that describes something
BLOCK = 2**22  # bytes that are read at once
CHECKSUMS = "checksums.json"


class FileError(ValueError):
    """A file that cannot be used; the message is one line that names it."""


class LockedError(RuntimeError):
    """Another process holds a lock; the message says which."""


def cache() -> Path:
    """The library's folder among the user's caches."""
    if sys.platform == "darwin":
        home = _home() / "Library" / "Caches"
    elif sys.platform == "win32":
        home = Path(os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local")
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache")
    return home / "vector-neurons"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:  # a container's user without an entry in the list of users
        raise FileError("there is no home folder: name a folder for caches in XDG_CACHE_HOME") from error


def make_folder(folder: Path) -> None:
    """Make a folder and those above it. The cache is for its user alone, whatever the umask: code is loaded from it."""
    with suppress(FileError):  # no home, and then no cache
        if folder == cache() or cache() in folder.parents:
            cache().mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its name; of an error of the system, what the system says.

    >>> first_line(ValueError("wrong shape\\nmore"))
    'wrong shape'
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def check_regular(path: Path, most: int | None = None) -> int:
    """Refuse what is no regular file (a FIFO or a device would never end) or is too large; gives its size in bytes."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:  # a name may be too long, or hold a NUL
        raise FileError(f"{path} cannot be read: {first_line(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"{path} is no regular file")
    if most is not None and found.st_size > most:
        raise FileError(f"{path} has {found.st_size:,} bytes, more than the {most:,} that are read")
    return found.st_size


def read_json(path: Path, most: int = JSON_MAX_BYTES) -> Any:
    """The content of a JSON file, whatever may be wrong with it as one line."""
    check_regular(path, most)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {first_line(error)}") from error
    except RecursionError as error:
        raise FileError(f"{path} is damaged: it is nested too deeply") from error
    except ValueError as error:  # no JSON, no text, or a number of thousands of digits
        raise FileError(f"{path} is damaged: {first_line(error)}") from error


def sha256(path: Path) -> str:
    """The checksum of a regular file."""
    check_regular(path)
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def flush(path: Path) -> None:
    """Wait until a file, or what a folder lists, is on the disk."""
    folder, windows = path.is_dir(), sys.platform == "win32"
    if folder and windows:
        return  # folders cannot be opened there
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if not folder or error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # as on some network drives
            raise
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path`, to be written in a block, which then becomes it: whole or not at all."""
    # Its own for every process, and a short name: that of the file may be as long as names can be.
    part = path.with_name(f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}.{os.getpid()}.part")
    try:
        yield part
        flush(part)
        os.replace(part, path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a small file, whole or not at all."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write the checksums of these files of a folder beside them, and wait until all of it is on the disk."""
    names = sorted(names)
    for name in names:
        flush(folder / name)
    write_file(folder / CHECKSUMS, json.dumps({name: sha256(folder / name) for name in names}, indent=2) + "\n")
    flush(folder)


def verify_checksums(folder: Path, needed: Iterable[str]) -> None:
    """Refuse a folder with a file that is missing or changed; the files that are `needed` must have a checksum."""
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}")
    if not (folder / CHECKSUMS).exists():
        raise FileError(f"{folder} is damaged: {CHECKSUMS} is missing, copy the whole folder")
    expected = read_json(folder / CHECKSUMS)
    if not isinstance(expected, dict) or any(Path(name).name != name for name in expected):
        raise FileError(f"{folder / CHECKSUMS} is damaged: it must name files of its own folder")
    if unknown := [name for name in needed if name not in expected]:
        raise FileError(f"{folder / CHECKSUMS} is damaged: it has no checksum of {unknown[0]}")
    if missing := [name for name in expected if not (folder / name).is_file()]:
        raise FileError(f"{folder} is damaged: {missing[0]} is missing")
    if changed := [name for name, digest in expected.items() if sha256(folder / name) != digest]:
        raise FileError(f"{folder} is damaged: {', '.join(changed)} changed after it was written")


@contextmanager
def locked(path: Path, *, wait: bool = True, waiting: Callable[[str], None] = lambda holder: None) -> Iterator[None]:
    """Hold a lock for the length of a block; the file at `path` is removed afterwards.

    A process that dies loses its locks. Without `wait` a lock that is held raises `LockedError`; with it, `waiting` is
    told who holds it. Where there are no locks (Windows, some network drives), everybody goes on.
    """
    try:
        file = _lock(path, wait=False)
    except LockedError as error:
        if not wait:
            raise
        waiting(str(error))
        file = _lock(path, wait=True)
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            file.close()


def _lock(path: Path, wait: bool) -> TextIO | None:
    try:
        import fcntl
    except ImportError:  # on Windows
        return None
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise LockedError(f"locked by {holder} (lock file {path})") from error
        except OSError:  # a drive that knows no locks
            return file
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                with suppress(OSError):  # a full disk: the lock is held all the same
                    file.truncate(0)
                    file.write(f"process {os.getpid()} on {socket.gethostname()}")
                    file.flush()
                return file
        file.close()  # it was removed while this process waited for it
