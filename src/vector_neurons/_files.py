"""Atomic writes, checksums, locks, bounded reads with retries, and the user's cache directory."""

import errno
import hashlib
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

T = TypeVar("T")
JSON_MAX_BYTES = 64 * 2**20
READ_BLOCK_BYTES = 2**22  # read at once while a checksum is computed
CHECKSUMS = "checksums.json"
TRANSIENT_ERRORS = {
    *(errno.EAGAIN, errno.EINTR, errno.EIO, errno.ENFILE, errno.EMFILE, errno.ESTALE, errno.ETIMEDOUT, errno.EBUSY)
}
RETRY_DELAYS = (0.05, 0.2, 0.8)  # seconds


class FileError(ValueError):
    """A file that cannot be used; the message is one line that names it."""


class LockedError(RuntimeError):
    """Another process holds a lock; the message says which."""


def cache() -> Path:
    """Return the library's directory among the user's caches; it need not exist."""
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
    except RuntimeError as error:  # a container's user without an entry in the user database
        raise FileError("there is no home folder: name a folder for caches in XDG_CACHE_HOME") from error


def make_folder(folder: Path) -> None:
    """Create a folder and its parents. The cache gets mode 700 whatever the umask, because code is loaded from it."""
    with suppress(FileError):  # without a home there is no cache
        if folder == cache() or cache() in folder.parents:
            cache().mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type; of an `OSError`, what the system says and the file.

    >>> first_line(ValueError("wrong shape\\nmore"))
    'wrong shape'
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def abbreviate(words: Iterable[str], count: int = 4) -> str:
    """Join the first few words, and say how many more there are.

    >>> abbreviate("abcdefg")
    'a, b, c, d and 3 more'
    """
    words = list(words)
    more = f" and {len(words) - count:,} more" if len(words) > count else ""
    return ", ".join(words[:count]) + more


def check_regular(path: Path, max_bytes: int | None = None) -> int:
    """Return the size of a regular file in bytes; raise `FileError` for anything else and for files that are too large.

    Reading a FIFO or a device would never end. An `OSError` of the system is raised as it is.
    """
    try:
        found = path.stat()
    except ValueError as error:  # a name with a NUL
        raise FileError(f"{path} cannot be read: {first_line(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"{path} is not a regular file")
    if max_bytes is not None and found.st_size > max_bytes:
        raise FileError(
            f"{path} is too large: {found.st_size:,} bytes, at most {max_bytes:,} are read; reduce it first"
        )
    return found.st_size


def retry_transient(read: Callable[[], T]) -> T:
    """Call a function that reads, again after a while if the system was busy."""
    for delay in RETRY_DELAYS:
        try:
            return read()
        except OSError as error:
            if error.errno not in TRANSIENT_ERRORS:
                raise
            time.sleep(delay)
    return read()


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a regular file of bounded size, with retries while the system is busy."""

    def read() -> bytes:
        check_regular(path, max_bytes)
        return path.read_bytes()

    return retry_transient(read)


def read_json(path: Path, max_bytes: int = JSON_MAX_BYTES) -> Any:
    """Read a JSON file; whatever is wrong with it raises `FileError`."""
    try:
        check_regular(path, max_bytes)
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {first_line(error)}") from error
    except RecursionError as error:
        raise FileError(f"{path} is damaged: it is nested too deeply") from error
    except FileError:
        raise
    except ValueError as error:  # not JSON, not text, or a number of thousands of digits
        raise FileError(f"{path} is damaged: {first_line(error)}") from error


def sha256(path: Path) -> str:
    """Return the SHA-256 checksum of a regular file, in hexadecimal."""
    check_regular(path)
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk (fsync)."""
    folder, windows = path.is_dir(), sys.platform == "win32"
    if folder and windows:
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if not folder or error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # as on some network drives
            raise
    finally:
        os.close(handle)


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` atomically at the end of the block unless it raises."""
    # One for each process, with a short name: that of the file may be as long as names can be.
    part = path.with_name(f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}.{os.getpid()}.part")
    try:
        yield part
        flush(part)
        os.replace(part, path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a small file atomically."""
    with atomic_replace(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write the checksums of these files of a folder to `checksums.json` beside them, and flush all to the disk."""
    names = sorted(names)
    for name in names:
        flush(folder / name)
    write_file(folder / CHECKSUMS, json.dumps({name: sha256(folder / name) for name in names}, indent=2) + "\n")
    flush(folder)


def verify_checksums(folder: Path, needed: Iterable[str]) -> None:
    """Raise `FileError` if a file of a folder is missing or changed; the `needed` files must have a checksum."""
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
def locked(path: Path, *, wait: bool = True, on_wait: Callable[[str], None] = lambda holder: None) -> Iterator[None]:
    """Hold the file lock `path` for the length of a block; the lock file is removed afterwards.

    The system releases the locks of a process that dies. Without `wait` a lock that is held raises `LockedError`; with
    it, `on_wait` is called with the holder. Where locks are not supported (Windows, some network drives), the block
    runs without one.
    """
    try:
        file = _lock(path, wait=False)
    except LockedError as error:
        if not wait:
            raise
        on_wait(str(error))
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
        except OSError:  # a drive without locks
            return file
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                with suppress(OSError):  # a full disk: the lock is held nevertheless
                    file.truncate(0)
                    file.write(f"process {os.getpid()} on {socket.gethostname()}")
                    file.flush()
                return file
        file.close()  # it was removed while this process waited for it
