"""Files that are no checkpoints, or dangerous ones: one line, no traceback, and no more memory than the file has."""

import io
import os
import pickle
import struct
import zipfile

import pytest
import torch
from elsewhere import python

from vector_neurons.models import pth, reference

from . import reference as authors


def archive(path, pickled, **records):
    """A file as torch.save writes it, with any pickle and records."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", pickled)
        file.writestr("x/byteorder", "little")
        for name, content in records.items():
            file.writestr(f"x/data/{name.removeprefix('_')}", content)
        file.writestr("x/version", "3\n")
    return path


class Call:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


class Pickler(pickle.Pickler):
    """Tensors are declared, with storages of the archive behind them, or without."""

    def persistent_id(self, thing):
        return thing[1:] if isinstance(thing, tuple) and thing[:1] == ("persistent",) else None


def pickled(thing):
    file = io.BytesIO()
    Pickler(file, protocol=2).dump(thing)
    return file.getvalue()


def storage(key="0", count=4, kind=torch.FloatStorage):
    return ("persistent", "storage", kind, key, "cpu", count)


def tensor(size, stride, offset=0, **more):
    return Call(torch._utils._rebuild_tensor_v2, storage(**more), offset, size, stride, False, {})


HOSTILE = {
    "bytearray": (Call(bytearray, 3_500_000_000), "a bytearray"),
    "long bytes": (Call(torch.Tensor, 1_000_000_000), "torch.*Tensor"),
    "huge storage": ({"w": tensor((10**9,), (1,), count=10**9)}, "1,000,000,000 numbers, which it does not hold"),
    "huge tensor": ({"w": tensor((10**9,), (1,))}, "1,000,000,000 numbers, which it does not hold"),
    "expanded": ({"w": tensor((10**6, 10**6), (0, 0))}, "numbers, which it does not hold"),
    "behind its end": ({"w": tensor((2,), (1,), offset=3)}, "numbers, which it does not hold"),
    "no such record": ({"w": tensor((2,), (1,), key="7")}, "numbers, which it does not hold"),
    "negative": ({"w": tensor((-2,), (1,))}, "of an impossible shape"),
    "strides": ({"w": tensor((2, 2), (1,))}, "tensors are not as torch writes"),
    "dimensions": ({"w": tensor((1,) * 100, (1,) * 100)}, "tensors are not as torch writes"),
    "two sizes": ({"a": tensor((1,), (1,), count=1), "b": tensor((4,), (1,))}, "which it does not hold"),
    "set": (Call(set, [1]), "builtin.*set"),
    "counter": (Call(__import__("collections").Counter, "aab"), "collections.Counter"),
    "module": (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
    "code": (Call(print, "code in a checkpoint was run"), "builtin.*print"),
}


def refused(path, words):
    with pytest.raises(reference.CheckpointError, match=words) as caught:
        reference.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_pickle_that_asks_for_anything_else_is_refused(tmp_path, capsys, name):
    content, words = HOSTILE[name]
    refused(archive(tmp_path / "x.pth", pickled(content), _0=bytes(16)), f"not a file of plain weights .*{words}")
    assert not capsys.readouterr().out


LONG = struct.pack("<Q", 3_500_000_000)


@pytest.mark.parametrize(
    "code",
    [
        b"\x80\x05\x96" + LONG + b".",  # BYTEARRAY8
        b"\x80\x04\x8e" + LONG + b".",  # BINBYTES8
        b"\x80\x04\x8d" + LONG + b".",  # BINUNICODE8
        b"\x80\x04\x95" + LONG + b".",  # FRAME
        b"\x80\x02T" + struct.pack("<I", 2**31 - 1) + b".",  # BINSTRING
        b"\x80\x02\x8b" + struct.pack("<I", 2**31 - 1) + b".",  # LONG4
        b"\x80\x02Nr\xff\xff\xff\xff.",  # a memo of four thousand million places
        b"\x80\x04" + b"\x8f" * 1000 + b".",  # sets
        b"\x80\x02" + b"(" * 100_000 + b".",
        b"\x80\x02}}}b.",  # changes a dict
        b"",
        b"\x80",
        b"garbage",
    ],
)
@pytest.mark.parametrize("kind", ["zip", "legacy"])
def test_lengths_that_a_pickle_declares_are_not_allocated(tmp_path, code, kind):
    path = tmp_path / "x.pth"
    archive(path, code) if kind == "zip" else path.write_bytes(code)
    with pytest.raises(reference.CheckpointError, match=r"plain weights|must be a state dict"):
        reference.load(path)


def test_memory_is_that_of_the_file(tmp_path):
    """In a process of its own, which may take 300 MB more than it has when it begins to read."""
    paths = []
    for name in ("bytearray", "long bytes", "huge storage", "huge tensor", "expanded"):
        paths.append(archive(tmp_path / f"{name}.pth", pickled(HOSTILE[name][0]), _0=bytes(16)))
    paths.append(archive(tmp_path / "opcode.pth", b"\x80\x05\x96" + LONG + b"."))
    code, out, err = python(
        f"""
        import resource
        from vector_neurons.models import reference
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 300 * 2**20,) * 2)
        for path in {list(map(str, paths))}:
            try:
                reference.load(path)
            except reference.CheckpointError as error:
                print(type(error.__cause__).__name__)
        """
    )
    assert code == 0, err
    assert out.split() == ["_RefusedError"] * 5 + ["KeyError"]  # and not MemoryError


def test_archives_that_unpack_to_more_than_they_have(tmp_path):
    path = tmp_path / "x.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/data.pkl", b"\x80\x02}." + bytes(10**6))
    refused(path, "unpacks to more than it has")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", b"\x80\x02}.")
        file.writestr("y/data.pkl", b"\x80\x02}.")
    refused(path, "another kind of archive")
    archive(path, b"\x80\x02}." + bytes(pth.PICKLE_MAX_BYTES))
    refused(path, "describes more than weights")
    path.write_bytes(archive(path, b"\x80\x02}.").read_bytes()[:-30])
    refused(path, "plain weights")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.eye(3).to_sparse(), "a sparse tensor"),
        (lambda: torch.eye(3).to_sparse_csr(), "a sparse tensor"),
        (lambda: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8), "a quantized tensor"),
        (lambda: torch.empty(3, 3, device="meta"), "of the device meta"),
        (lambda: torch.eye(3, dtype=torch.complex64), "must be a dense tensor of floating-point numbers"),
        (lambda: torch.eye(3, dtype=torch.int32), "must be a dense tensor of floating-point numbers"),
        (lambda: torch.eye(3, dtype=torch.bool), "must be a dense tensor of floating-point numbers"),
        (lambda: torch.tensor(1.0), r"linear3.weight is \(\), not \(1, 256\)"),
        (lambda: torch.zeros(10**12, 0), r"linear3.weight is \(1000000000000, 0\), not \(1, 256\)"),
        (lambda: torch.zeros(40, 256, 1, 2), r"linear3.weight is \(40, 256, 1, 2\), not \(40, 256\)"),
        (lambda: torch.zeros(3), r"linear3.weight is \(3,\), not \(3, 256\)"),
    ],
)
def test_odd_tensors(tmp_path, make, words):
    state = authors.random_state("vn_dgcnn_cls", generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    torch.save({**state, "linear3.weight": make()}, tmp_path / "x.pth")
    with pytest.raises(reference.CheckpointError, match=words) as caught:
        reference.load(tmp_path / "x.pth")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["zip", "legacy"])
def test_real_files_are_read_whatever_is_beside_the_weights(tmp_path, kind):
    import numpy as np

    layers = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    moments = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(3, 4)}
    adam = {"state": {0: moments}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "fused": None, "params": [0]}]}
    content = {
        "epoch": 3,
        "class_acc": np.float64(0.5),
        "loss": np.float32(0.5),
        "model_state_dict": layers.state_dict(),
        "optimizer_state_dict": adam,
        "parameters": dict(layers.named_parameters()),
        "transposed": torch.randn(3, 4).mT,
        "part": torch.randn(10)[3:5],
        "empty": torch.zeros(0, 3),
    }
    torch.save(content, tmp_path / "x.pth", _use_new_zipfile_serialization=kind == "zip")
    found = pth.read(tmp_path / "x.pth")
    for name, expected in layers.state_dict().items():
        assert torch.equal(found["model_state_dict"][name], expected)
    for name in ("transposed", "part", "empty"):
        assert torch.equal(found[name], content[name])
    assert found["epoch"] == 3


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    refused(tmp_path / "fifo", "no regular file")
    refused(tmp_path, "no regular file")
    refused(tmp_path / ("x" * 300), "File name too long")
    with pytest.raises(reference.CheckpointError, match="there is no file"):
        reference.load(tmp_path / "x.pth")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = archive(tmp_path / "x.pth", b"\x80\x02}.")
    opened = type(path).open

    def denied(self, *arguments, **keywords):
        if self == path:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(self, *arguments, **keywords)

    monkeypatch.setattr(type(path), "open", denied)  # whoever runs as root may read everything
    refused(path, "cannot be read: Permission denied")
