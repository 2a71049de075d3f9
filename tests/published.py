"""Small folders in the layouts that data sets are published in, and the real packs if they are there."""

import json
import os
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
REAL = Path(os.environ.get("VN_SHARED_DATA") or ROOT.parent / "shared" / "data")


def cloud(seed, n, columns=3):
    """An oblong cloud that leans to one side along y, so that mix-ups of its axes show; then unit normals."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(-1, 1, (n, 3)) * [0.2, 1.0, 0.5] + [3, 1, 0]
    points[: n // 4, 1] = 1.9
    normals = rng.normal(size=(n, 3))
    return np.concatenate([points, normals / np.linalg.norm(normals, axis=1, keepdims=True)], axis=1)[:, :columns]


def modelnet_classes():
    from vector_neurons.data.modelnet40 import CLASSES

    return list(CLASSES)


TEXT_SHAPES = {"train": ["chair_0001", "table_0001", "night_stand_0001"], "test": ["chair_0890"]}


def modelnet_text(folder):
    folder.mkdir(parents=True)
    (folder / "modelnet40_shape_names.txt").write_text("\n".join(modelnet_classes()) + "\n")
    for split, shapes in TEXT_SHAPES.items():
        (folder / f"modelnet40_{split}.txt").write_text("\n".join(shapes) + "\n")
        for number, shape in enumerate(shapes):
            path = folder / shape.rpartition("_")[0] / f"{shape}.txt"
            path.parent.mkdir(exist_ok=True)
            np.savetxt(path, cloud(number, 10_000, 6), fmt="%.6f", delimiter=",")
    return folder


def hdf5(file, data, label, **more):
    import h5py

    with h5py.File(file, "w") as h5:
        h5["data"] = np.asarray(data, dtype=np.float32)
        h5["label"] = np.asarray(label, dtype=np.uint8).reshape(-1, 1)
        for name, array in more.items():
            h5[name] = array


def modelnet_hdf5(folder):
    folder.mkdir(parents=True)
    (folder / "shape_names.txt").write_text("\n".join(modelnet_classes()) + "\n")
    for split, count in (("train", 5), ("test", 2)):
        for number in range(count):
            both = np.stack([cloud(10 * number + i + 100 * (split == "test"), 2048, 6) for i in range(2)])
            file = folder / f"ply_data_{split}{number}.h5"
            hdf5(file, both[..., :3], [8, number], normal=both[..., 3:].astype(np.float32))
    return folder


BOX = np.array([[x, y, z] for x in (0, 1) for y in (0, 2) for z in (0, 3)], dtype=float)
BOX_FACES = np.array(
    [
        *([0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1]),
        *([2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]),
    ]
)


def off(file, glued=False, vertices=BOX, faces=BOX_FACES):
    head = f"OFF{'' if glued else chr(10)}{len(vertices)} {len(faces)} 0\n"
    rows = [" ".join(map(str, v)) for v in vertices] + ["3 " + " ".join(map(str, f)) for f in faces]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(head + "\n".join(rows) + "\n")
    return file


def modelnet_off(folder):
    for name in modelnet_classes():
        off(folder / name / "train" / f"{name}_0001.off", glued=name == "bathtub")
        off(folder / name / "test" / f"{name}_0002.off")
    return folder


def modelnet_npz(file, **changes):
    x = {
        split: (cloud(i, 1024) * 5000).astype(np.int16)[None].repeat(2, 0) for i, split in enumerate(("train", "test"))
    }
    arrays = {
        "names": np.array(modelnet_classes()),
        "scale": np.float32(1 / 5000),
        **{f"x_{split}": x[split] for split in x},
        **{f"y_{split}": np.array([8, 33], dtype=np.uint8) for split in x},
        **{f"id_{split}": np.array([f"chair_{split}", f"table_{split}"]) for split in x},
    }
    np.savez(file, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return file


PART_SHAPES = {  # the last one of train stands in test again
    "train": ["03001627/aa", "02691156/bb", "03001627/cc"],
    "val": ["04379243/dd"],
    "test": ["03001627/cc", "02691156/ee"],
}
FIRST_PART = {"03001627": 12, "02691156": 0, "04379243": 47}


def shapenet_text(folder):
    from vector_neurons.data.shapenet_part import CATEGORIES

    (folder / "train_test_split").mkdir(parents=True)
    lines = [f"{name}\t{synset}" for name, (synset, _) in CATEGORIES.items()]
    (folder / "synsetoffset2category.txt").write_text("\n".join(lines) + "\n")
    for split, shapes in PART_SHAPES.items():
        names = json.dumps([f"shape_data/{shape}" for shape in shapes])
        (folder / "train_test_split" / f"shuffled_{split}_file_list.json").write_text(names)
        for shape in shapes:
            synset = shape.partition("/")[0]
            n = 700 if shape.endswith("bb") else 2500
            rows = cloud(sum(map(ord, shape)), n, 6)
            part = FIRST_PART[synset] + (rows[:, 1] > 1)  # the upper half is another part
            (folder / synset).mkdir(exist_ok=True)
            np.savetxt(folder / f"{shape}.txt", np.column_stack([rows, part]), fmt="%.6f")
    return folder


def shapenet_hdf5(folder):
    folder.mkdir(parents=True)
    for split, count in (("train", 6), ("val", 1), ("test", 2)):
        for number in range(count):
            data = np.stack([cloud(number + 10 * len(split), 2048), cloud(7, 2048)])  # the second is in every file
            label = np.array([4, 15])
            parts = np.array([12, 47])[:, None] + (data[..., 1] > 1)
            hdf5(folder / f"ply_data_{split}{number}.h5", data, label, pid=parts.astype(np.uint8))
    return folder


def occnet(folder):
    for category in ("02691156", "03001627"):
        for split, shapes in (("train", ["a", "b"]), ("val", ["c"]), ("test", ["d"])):
            (folder / category).mkdir(parents=True, exist_ok=True)
            (folder / category / f"{split}.lst").write_text("\n".join(shapes) + "\n")
            for shape in shapes:
                place = folder / category / shape
                place.mkdir()
                rng = np.random.default_rng(ord(shape))
                normals = rng.normal(size=(3000, 3))
                normals /= np.linalg.norm(normals, axis=1, keepdims=True)
                axes = np.array([0.2, 0.5, 0.3])  # an ellipsoid, longest along y
                queries = rng.uniform(-0.55, 0.55, (2501, 3)).astype(np.float16)
                occupied = np.square(queries.astype(float) / axes).sum(1) < 1
                more = {"loc": np.zeros(3), "scale": np.float64(1)}
                np.savez(place / "pointcloud.npz", points=(normals * axes).astype(np.float16), normals=normals, **more)
                np.savez(place / "points.npz", points=queries, occupancies=np.packbits(occupied), **more)
    return folder
