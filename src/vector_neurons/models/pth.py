"""Read a `.pth` file of plain weights, after checking what it would allocate.

`torch.load(weights_only=True)` runs no code of the file, but it does allocate what the file asks for: a few bytes can
declare tensors, or a `bytearray`, of any size. So the pickle is first read by an unpickler that makes nothing, and
everything beyond names, numbers and dense tensors that the file really holds is refused.
"""

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

import torch

from .._files import FileError, check_regular, first_line

PICKLE_MAX_BYTES = 2**20  # of what describes the weights; a large network's has 50 kB
ENCODED_MAX_LENGTH = 64  # of the bytes of one NumPy number
DIMENSIONS_MAX = 64
ITEM_BYTES = {"Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4} | {
    "Long": 8,
    "Double": 8,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
}
TENSOR_KINDS = {
    "_rebuild_sparse_tensor": "a sparse tensor",
    "_rebuild_sparse_csr_tensor": "a sparse tensor",
    "_rebuild_qtensor": "a quantized tensor",
    "_rebuild_meta_tensor_no_storage": "a tensor without values (of the device meta)",
    "_rebuild_nested_tensor": "a nested tensor",
    "bytearray": "a bytearray",
}


class CheckpointError(ValueError):
    """A file or state dict that is not one of the authors' checkpoints; the message is one line."""


class _RefusedError(Exception):
    """What is wrong with a file, without its name."""


def read(path: Path) -> Any:
    """What `torch.save` wrote to the file: dicts of tensors and of numbers. Takes no more memory than the file has."""
    try:
        size = check_regular(path)
    except FileError as error:
        missing = isinstance(error.__cause__, FileNotFoundError)
        raise CheckpointError(f"there is no file {path}" if missing else str(error)) from error
    try:
        with path.open("rb") as file:
            _check(file, size)
        with torch.serialization.safe_globals([(_Ignored, name) for name in NUMPY]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}") from error
    except Exception as error:
        why = f" ({error})" if isinstance(error, _RefusedError) else ""
        raise CheckpointError(
            f"{path} is not a file of plain weights{why}: save its state_dict() alone, with the code that made it"
        ) from error


class _Ignored:
    """In the place of a NumPy number: the authors keep accuracies beside the weights."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


NUMPY = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "numpy.dtype")


class _Dict(OrderedDict[Any, Any]):
    def __init__(self, *content: Any) -> None:
        super().__init__()
        if content:  # content that is remembered could be copied any number of times
            raise _RefusedError("it copies a dict")

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"_metadata"}:
            raise _RefusedError("it changes the methods of a dict")


class _Storage(NamedTuple):
    numbers: int


class _StorageType(NamedTuple):
    item_bytes: int


def _check(file: BinaryIO, size: int) -> None:
    start = file.read(4)
    file.seek(0)
    if start == b"PK\x03\x04":  # torch looks at these bytes, too
        _check_zip(file, size)
    else:  # before torch 1.6: pickles one after the other, the last but one with the weights, and then the numbers
        head = io.BytesIO(file.read(PICKLE_MAX_BYTES))
        for _ in range(3):
            _Dry(head, None, 0).load()
        _Dry(head, None, size).load()
        _Dry(head, None, 0).load()


def _check_zip(file: BinaryIO, size: int) -> None:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(m.file_size for m in members) > size or any(m.compress_type for m in members):
            raise _RefusedError("it unpacks to more than it has")
        sizes = {m.filename: m.file_size for m in members}
        pickles = [name for name in sizes if name.endswith("/data.pkl")]
        if len(sizes) < len(members) or len(pickles) != 1:
            raise _RefusedError("it is another kind of archive")
        root = pickles[0].removesuffix("data.pkl")
        if sizes[pickles[0]] > PICKLE_MAX_BYTES:
            raise _RefusedError("it describes more than weights")
        stored = {name.removeprefix(f"{root}data/"): length for name, length in sizes.items()}
        _Dry(io.BytesIO(archive.read(pickles[0])), stored, size).load()


class _Dry(pickle._Unpickler):  # the one in C allocates what lengths declare
    """Goes through a pickle and makes nothing of what it asks for, but checks it."""

    def __init__(self, file: io.BytesIO, stored: Mapping[str, int] | None, room: int) -> None:
        super().__init__(file, encoding="latin1")
        self.stored, self.room, self.seen = stored, room, dict[str, int]()

    dispatch: ClassVar[dict[int, Any]] = {
        code: load
        for code, load in pickle._Unpickler.dispatch.items()
        if code not in (pickle.BYTEARRAY8[0], pickle.EMPTY_SET[0], pickle.FROZENSET[0])
    }

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.cuda") and (item := ITEM_BYTES.get(name.removesuffix("Storage"))):
            return _StorageType(item)
        if f"{module}.{name}" in NUMPY:
            return _Ignored
        known = {
            "collections.OrderedDict": _Dict,
            "_codecs.encode": _encode,
            "torch._utils._rebuild_tensor": _rebuild,
            "torch._utils._rebuild_tensor_v2": _rebuild,
            "torch._utils._rebuild_parameter": lambda data, *_: data,
        }
        if f"{module}.{name}" not in known:
            what = "a quantized tensor" if name.startswith("Q") and module == "torch" else f"{module}.{name}"
            raise _RefusedError(f"it holds {TENSOR_KINDS.get(name, what)[:100]!r}".replace("'", ""))
        return known[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> _Storage:
        match pid:
            case ("storage", _StorageType(item), str(key), _, int(count), *view) if count >= 0 and view in ([], [None]):
                if key not in self.seen:
                    self.seen[key] = count * item
                    self.room -= count * item
                room = self.room if self.stored is None else min(self.room, self.stored.get(key, -1) - count * item)
                if room < 0 or self.seen[key] != count * item:
                    raise _RefusedError(f"it declares a tensor of {count:,} numbers, which it does not hold")
                return _Storage(count)
        raise _RefusedError("its tensors are not as torch writes them")


def _encode(text: str, *_: Any) -> bytes:
    if len(text) > ENCODED_MAX_LENGTH:
        raise _RefusedError("it encodes a long text")
    return b""


def _rebuild(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> None:
    match storage, offset, size, stride:
        case (_Storage(count), int(), tuple(), tuple()) if len(size) == len(stride) <= DIMENSIONS_MAX:
            if not all(isinstance(n, int) and n >= 0 for n in (offset, *size, *stride)):
                raise _RefusedError("it declares a tensor of an impossible shape")
            last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
            if 0 not in size and (last >= count or math.prod(size) > count):
                raise _RefusedError(f"it declares a tensor of {math.prod(size):,} numbers, which it does not hold")
            return None
    raise _RefusedError("its tensors are not as torch writes them")
