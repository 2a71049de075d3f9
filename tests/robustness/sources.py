"""Whole files to be damaged, and small programs that use them."""

import hashlib
import importlib
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import harness
import numpy as np

TRAIN = (
    "train classification --size 28 --points 32 --stored-points 32 --k 4 --batch-size 14 --widths 12 --embedding 24 "
    "--hidden 8"
)
TRAIN = (*TRAIN.split(), "--threads", "1", "--test-rotations", "SO3")


def preload() -> None:
    """Import everything that cases need, once."""
    import torch

    torch.set_num_threads(1)
    verbs = ("check", "convert", "data", "evaluate", "reconstruct", "train")
    more = ("trimesh", "trimesh.exchange.ply", "h5py", "matplotlib.figure", "matplotlib.backends.backend_agg", "tyro")
    for name in (
        *(f"vector_neurons.cli.{verb}" for verb in verbs),
        *more,
        "torch._dynamo",
        "scipy.spatial",
    ):
        importlib.import_module(name)


def digest(file: Path) -> str:
    """The checksum of a file, or what it is instead."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "no file"


def metrics(folder: Path, longer: bool = False) -> list[dict]:
    """The metrics of a run without their times; of one that is a copy trained for an epoch more."""
    if longer:
        import shutil

        copy = folder.with_name("longer")
        shutil.copytree(folder, copy)
        assert harness.run(harness.command("train", "--resume", copy, "--epochs", 3), folder).code == 0
        folder = copy
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{name: x for name, x in line.items() if name != "time"} for line in lines]


def count_writes(function: Callable[[], object], folder: Path) -> None:
    """Run something, and print how often it changed a file."""
    last = [0]
    harness.at_write(None, harness.crash, folder, lambda count: last.__setitem__(0, count))
    try:
        function()
    except SystemExit as stop:
        print(f"\n{last[0]}", flush=True)
        raise stop from None


# Meshes and clouds


def mesh_files(folder: Path) -> Path:
    """One small shape in every format, as different programs write them."""
    import trimesh

    folder.mkdir(parents=True)
    ball = trimesh.creation.icosphere(subdivisions=1)
    v, f = np.asarray(ball.vertices), np.asarray(ball.faces)
    for name in ("binary.ply", "a.obj", "binary.stl", "a.off", "a.glb"):
        ball.export(folder / name)
    ball.export(folder / "ascii.ply", encoding="ascii")
    ball.export(folder / "ascii.stl", file_type="stl_ascii")
    trimesh.PointCloud(v).export(folder / "cloud.ply")
    rows = "".join(f"{x:.6f} {y:.6f} {z:.6f}\n" for x, y, z in v)
    (folder / "a.xyz").write_text(rows)
    (folder / "normals.xyz").write_text("".join(" ".join(f"{a:.6f}" for a in (*p, *p)) + "\n" for p in v))
    (folder / "a.csv").write_text("x,y,z\n" + rows.replace(" ", ","))
    np.save(folder / "a.npy", v)
    np.savez_compressed(folder / "a.npz", points=v.astype(np.float32))
    np.savez(folder / "mesh.npz", vertices=v, faces=f)
    head = "# .PCD v0.7\nVERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\n"
    head += f"WIDTH {len(v)}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {len(v)}\nDATA "
    (folder / "ascii.pcd").write_text(f"{head}ascii\n{rows}")
    (folder / "binary.pcd").write_bytes(f"{head}binary\n".encode() + v.astype("<f4").tobytes())
    big = f"ply\nformat binary_big_endian 1.0\ncomment by hand\nelement vertex {len(v)}\nproperty float x\n"
    big += f"property float y\nproperty float z\nelement face {len(f)}\n"
    big += "property list uchar int vertex_indices\nend_header\n"
    faces = b"".join(struct.pack(">Biii", 3, *map(int, face)) for face in f)
    (folder / "big.ply").write_bytes(big.encode() + v.astype(">f4").tobytes() + faces)
    return folder


def print_mesh(file: Path) -> None:
    """Read a file as the commands do, and say what is in it."""
    from vector_neurons import mesh
    from vector_neurons.cli import UserError  # noqa: F401 - as they do

    try:
        read = mesh.read(file)
    except mesh.MeshError as error:
        print(error, file=__import__("sys").stderr)
        raise SystemExit(2) from error
    content = read.vertices.numpy().tobytes() + read.faces.numpy().tobytes()
    print(len(read.vertices), len(read.faces), hashlib.sha256(content).hexdigest())


# Models


def model(folder: Path) -> Path:
    """A small saved model."""

    def make() -> None:
        import torch

        from vector_neurons.models import DGCNN, store

        torch.manual_seed(0)
        small = DGCNN(4, k=4, widths=(12, 12), embedding=24, hidden=(8,))
        store.save(small, folder, store.Metadata(classes=["a", "b", "c", "d"]))

    folder.mkdir(parents=True)
    assert harness.run(make, folder).code == 0
    return folder


def print_logits(folder: Path) -> None:
    """Load a model and use it."""
    import sys

    import torch

    import vector_neurons as vn
    from vector_neurons.models.store import StoreError

    try:
        loaded = vn.load(folder)
    except StoreError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error
    points = torch.randn(1, 16, 3, generator=torch.Generator().manual_seed(0))
    try:
        logits = loaded(points)
    except ValueError as error:  # a description may ask for more neighbors than there are points
        print(error, file=sys.stderr)
        raise SystemExit(2) from error
    print(logits.tolist(), loaded.metadata)


def forge_checksums(folder: Path) -> None:
    """Make the checksums right again."""
    names = [name for name in ("config.json", "model.safetensors") if (folder / name).is_file()]
    sums = {name: digest(folder / name) for name in names if not (folder / name).is_symlink()}
    (folder / "checksums.json").write_text(json.dumps(sums))


# Packs


def class_folders(folder: Path) -> Path:
    """Files of two classes."""
    for number in range(8):
        file = folder / ("ball" if number % 2 else "stick") / f"{number}.xyz"
        file.parent.mkdir(parents=True, exist_ok=True)
        points = np.random.default_rng(number).normal(size=(40, 3)) * (1, 1, 1 if number % 2 else 9)
        file.write_text("".join(f"{x:.5f} {y:.5f} {z:.5f}\n" for x, y, z in points))
    return folder


def pack(folder: Path) -> Path:
    """A small pack."""
    folder.mkdir(parents=True)
    files = class_folders(folder.with_name("pack files"))
    flags = ("--from", files, "--to", "mine", "--data-root", folder, "--points", 32, "--workers", 1)
    made = harness.run(harness.command("data", "folder", *flags), folder)
    assert made.code == 0, made.err
    return folder


def use_pack(folder: Path) -> None:
    """Open the pack of a folder, and take a batch of it."""
    import sys

    import torch

    from vector_neurons.data.pack import DataError, open_pack
    from vector_neurons.data.pack_dataset import PackDataset

    try:
        opened = open_pack(folder / "mine.safetensors", kind="folder")
        data = PackDataset("train", pack=opened, points=16, subset="random")
        data.batch(torch.arange(len(data)))
    except DataError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error


def _forgery(name: str, change: Callable[[dict, dict, random.Random], object]) -> Callable[[Path, random.Random], None]:
    """A pack written anew, checksum and all, with something wrong in it."""

    def forge(file: Path, rng: random.Random) -> None:
        from safetensors.torch import load_file

        from vector_neurons.data.pack import open_pack, write_pack

        opened = open_pack(file)
        about, arrays = json.loads(json.dumps(opened.about)), {k: x.clone() for k, x in load_file(file).items()}
        about.pop("format", None)
        change(about, arrays, rng)
        write_pack(file, about, [arrays])

    forge.__name__ = name
    return forge


FORGERIES = [
    _forgery(name, change)
    for name, change in {
        "no classes": lambda about, arrays, rng: about.pop("classes"),
        "classes of another type": lambda about, arrays, rng: about.update(classes=7),
        "no splits": lambda about, arrays, rng: about.pop("splits"),
        "negative splits": lambda about, arrays, rng: about.update(splits={"all": -8, "train": 16}),
        "splits of another type": lambda about, arrays, rng: about.update(splits=[["all", 8]]),
        "labels beyond the classes": lambda about, arrays, rng: arrays["label"].fill_(99),
        "negative labels": lambda about, arrays, rng: arrays["label"].fill_(-1),
        "labels that are no numbers": lambda about, arrays, rng: arrays.update(label=arrays["label"].double()),
        "no labels": lambda about, arrays, rng: arrays.pop("label"),
        "no points": lambda about, arrays, rng: arrays.pop("points"),
        "points of the plane": lambda about, arrays, rng: arrays.update(points=arrays["points"][..., :2].contiguous()),
        "points that are NaN": lambda about, arrays, rng: arrays["points"].fill_(float("nan")),
        "counts beyond the points": lambda about, arrays, rng: arrays["count"].fill_(10**6),
        "counts of nothing": lambda about, arrays, rng: arrays["count"].fill_(0),
        "no counts": lambda about, arrays, rng: arrays.pop("count"),
        "another kind": lambda about, arrays, rng: about.update(name="modelnet40"),
        "no name": lambda about, arrays, rng: about.pop("name"),
    }.items()
]


# The authors' checkpoints


def authors_checkpoint(folder: Path) -> Path:
    """VN-DGCNN as the authors save it, with random weights."""

    def make() -> None:
        import torch
        from models import reference as authors

        state = authors.random_state("vn_dgcnn_cls", classes=3, generator=torch.Generator().manual_seed(0))
        torch.save({"model_state_dict": state}, folder / "old.pth")

    folder.mkdir(parents=True)
    made = harness.run(make, folder)
    assert made.code == 0, made.err
    return folder


def _odd(name: str, change: Callable[[dict, str], object]) -> Callable[[Path, random.Random], None]:
    """A checkpoint with one tensor that is odd."""

    def make(file: Path, rng: random.Random) -> None:
        import torch

        state = torch.load(file, weights_only=True)["model_state_dict"]
        key = rng.choice(sorted(k for k, x in state.items() if x.ndim == 2))
        change(state, key)
        torch.save({"model_state_dict": state}, file)

    make.__name__ = name
    return make


def _larger(state: dict, key: str) -> None:
    import torch

    state[key] = torch.zeros(1).expand(10**6, 10**6)  # one number in the file


ODD_CHECKPOINTS = [
    _odd(name, change)
    for name, change in {
        "sparse": lambda state, key: state.update({key: state[key].to_sparse()}),
        "complex": lambda state, key: state.update({key: state[key].cfloat()}),
        "whole numbers": lambda state, key: state.update({key: state[key].long()}),
        "one number": lambda state, key: state.update({key: state[key].sum()}),
        "of rank four": lambda state, key: state.update({key: state[key][None, None].clone()}),
        "transposed": lambda state, key: state.update({key: state[key][:, :1].clone()}),
        "missing": lambda state, key: state.pop(key),
        "of another name": lambda state, key: state.update({f"{key}.x": state.pop(key)}),
        "huge": _larger,
        "NaN": lambda state, key: state[key].fill_(float("nan")),
    }.items()
]


# Published data


def releases(folder: Path) -> dict[str, tuple[Path, tuple[str, ...]]]:
    """Small copies of the layouts in which sets are published, and how each is converted."""
    text, arrays, files = (folder / name for name in ("text", "arrays", "files"))
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        names = [f"{name}_{i:04d}" for name in ("cup", "bed") for i in (range(1, 4) if split == "train" else (9,))]
        for name in names:
            file = text / "modelnet40_normal_resampled" / name.rpartition("_")[0] / f"{name}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savetxt(file, rng.normal(size=(10_000, 6))[:, :6], fmt="%.4f", delimiter=",")
        (text / "modelnet40_normal_resampled" / f"modelnet40_{split}.txt").write_text("\n".join(names) + "\n")
    (text / "modelnet40_normal_resampled" / "modelnet40_shape_names.txt").write_text("cup\nbed\n")
    arrays.mkdir(parents=True)
    shapes = {"train": 6, "test": 4}
    clouds = {f"x_{s}": rng.integers(-999, 999, (n, 64, 3)).astype(np.int16) for s, n in shapes.items()}
    labels = {f"y_{s}": (np.arange(n) % 2).astype(np.uint8) for s, n in shapes.items()}
    ids = {f"id_{s}": np.array([f"{s}{i}" for i in range(n)]) for s, n in shapes.items()}
    np.savez_compressed(
        arrays / "modelnet40.npz", **clouds, **labels, **ids, scale=np.float32(1e-3), names=np.array(["cup", "bed"])
    )
    class_folders(files)
    return {
        "text": (text, ("modelnet40", "--from", ".", "--points", "64")),
        "arrays": (arrays, ("modelnet40", "--from", "modelnet40.npz", "--points", "64")),
        "folder": (files, ("folder", "--from", ".", "--to", "mine")),
    }
