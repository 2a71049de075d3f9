"""Packs: what is cut from them, how they are split, and how they come about."""

import json
import os
import pickle
import time
from functools import partial
from threading import Thread

import numpy as np
import published
import pytest
import torch
from safetensors.torch import save_file

from vector_neurons.data import DataError, ModelNet40, Occupancy, PackDataset, modelnet40, pack, plan
from vector_neurons.data.convert import convert_plan
from vector_neurons.data.plan import Chunk, ChunkContent, Plan
from vector_neurons.data.splits import split_rows, stratified


def make(path, points, labels, splits=None, **more):
    """A pack of these clouds."""
    splits = splits or {"all": len(points)}
    about = {"name": "test", "layout": "test", "classes": ["a", "b", "c"], "splits": splits}
    rows = {"points": points, "label": labels, "count": torch.full((len(points),), points.shape[1]), **more}
    pack.write_pack(path, about, [rows])
    return pack.open_pack(path)


@pytest.fixture
def example(tmp_path):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(60, 256, 3, generator=generator)
    labels = torch.arange(60) % 3
    parts = torch.arange(256).to(torch.uint8).repeat(60, 1)
    return make(tmp_path / "a.safetensors", points, labels, parts=parts, normals=points.sign())


def test_arrays_are_mapped_not_read(example):
    before = example.arrays["points"].clone()
    assert example.arrays["points"].dtype == torch.float32
    content = bytearray(example.path.read_bytes())
    with example.path.open("r+b") as file:  # the open pack sees the file change: it is the file
        file.write(content.replace(before.numpy().tobytes()[:4000], bytes(4000), 1))
    assert not torch.equal(example.arrays["points"], before)


def test_another_process_is_sent_a_path_not_the_data(example):
    sent = pickle.dumps(PackDataset("train", pack=example, points=16))
    assert len(sent) < 5000
    torch.testing.assert_close(pickle.loads(sent)[3].points, PackDataset("train", pack=example, points=16)[3].points)


def test_first_random_and_farthest(example):
    order = torch.tensor([5, 0, 5])
    stored = example.arrays["points"]
    sets = {
        s: PackDataset("all", pack=example, points=64, subset=s, normals=True) for s in ("first", "random", "farthest")
    }
    for data in sets.values():
        batch = data.batch(order)
        assert batch.points.shape == (3, 64, 3)
        assert batch.parts.dtype == torch.int64
        assert batch.label.tolist() == [2, 0, 2]
        torch.testing.assert_close(batch.points.mean(1), torch.zeros(3, 3), atol=1e-6, rtol=0)
        torch.testing.assert_close(batch.points.norm(dim=-1).amax(1), torch.ones(3))
        for name in ("points", "parts", "normals"):
            assert torch.equal(getattr(batch, name)[0], getattr(batch, name)[2])  # one shape, one subset
        # Parts number the stored points here, so they tell which ones were taken: normals must be those of the same.
        assert all(len(set(row.tolist())) == 64 for row in batch.parts)
        assert torch.equal(batch.normals[1], stored[0][batch.parts[1]].sign())
        torch.testing.assert_close(data[0].points, batch.points[1])
    assert sets["first"][7].parts.tolist() == list(range(64))
    again = PackDataset("all", pack=example, points=64, subset="random", seed=1)
    assert not torch.equal(again[7].parts, sets["random"][7].parts)
    again.seed = 0
    assert torch.equal(again[7].parts, sets["random"][7].parts)

    def spread(data):
        chosen = stored[7][data[7].parts]
        return torch.cdist(chosen, chosen).fill_diagonal_(9).amin()

    assert spread(sets["farthest"]) > 2 * spread(sets["random"])


def test_whole_clouds_come_as_they_are_stored(example):
    data = PackDataset("all", pack=example, points=256)
    assert torch.equal(data[3].points, example.arrays["points"][3])


def test_splits_are_disjoint_stratified_and_seeded(example):
    rows = {s: split_rows(example, s, seed=3) for s in ("train", "val", "test", "train+val", "all")}
    assert {s: len(r) for s, r in rows.items()} == {"train": 42, "val": 6, "test": 12, "train+val": 48, "all": 60}
    assert sorted(torch.cat([rows["train"], rows["val"], rows["test"]]).tolist()) == list(range(60))
    assert set(rows["train+val"].tolist()) == set(rows["train"].tolist()) | set(rows["val"].tolist())
    for r in rows.values():
        assert len(set(torch.bincount(example.arrays["label"][r]).tolist())) == 1  # the same share of every class
    assert torch.equal(split_rows(example, "val", seed=3), rows["val"])
    assert not torch.equal(split_rows(example, "val", seed=4), rows["val"])
    with pytest.raises(DataError, match="no split 'dev': choose train, val, test"):
        split_rows(example, "dev")
    with pytest.raises(DataError, match="less than 1"):
        split_rows(example, "val", validation=1.0)


def test_seeds_draw_points_and_leave_the_splits_alone(example, tmp_path):
    rows = [PackDataset(s, pack=example, points=8, seed=i).rows for i, s in enumerate(("train", "val", "test"))]
    assert sorted(torch.cat(rows).tolist()) == list(range(60))
    other = PackDataset("val", pack=example, points=8, split_seed=1)
    assert not torch.equal(other.rows, rows[1])


def test_published_splits_stay(tmp_path):
    points, labels = torch.randn(20, 8, 3), torch.zeros(20, dtype=torch.int64)
    two = make(tmp_path / "two.safetensors", points, labels, {"train": 15, "test": 5})
    assert split_rows(two, "test").tolist() == list(range(15, 20))
    assert split_rows(two, "train+val").tolist() == list(range(15))
    assert len(split_rows(two, "val", validation=0.2)) == 3
    assert len(split_rows(two, "train", validation=0.2)) == 12
    assert len(split_rows(two, "val", validation=0.0)) == 0
    one = make(tmp_path / "one.safetensors", points, labels, {"train": 20})
    with pytest.raises(DataError, match="has no split 'test': it has train"):
        split_rows(one, "test")


def test_a_class_of_one_stays_in_training():
    taken = stratified(torch.tensor([0] * 10 + [1] * 2 + [2]), 0.2)
    assert taken[:10].sum() == 2
    assert taken[10:12].sum() == 1
    assert not taken[12]


def test_a_pack_without_rows_of_a_kind_or_with_other_sizes_is_refused(tmp_path):
    chunks = [{"points": torch.zeros(2, 5, 3)}, {"points": torch.zeros(2, 6, 3)}]
    with pytest.raises(DataError, match="need points of one size"):
        pack.write_pack(tmp_path / "x.safetensors", {}, chunks)
    assert not list(tmp_path.iterdir())


def test_a_crash_while_writing_leaves_the_old_pack(tmp_path, example, monkeypatch):
    before = example.path.read_bytes()

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        make(example.path, torch.zeros(3, 4, 3), torch.zeros(3, dtype=torch.int64))
    assert example.path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


def test_the_checksum_covers_header_and_data(example):
    assert len(pack.verify(example.path)) == 64
    content, copy = example.path.read_bytes(), example.path.with_name("copy")
    for place in (content.index(b'"a\\"') + 1, len(content) - 1):  # a class's name, and the last number
        damaged = bytearray(content)
        damaged[place] ^= 1
        copy.write_bytes(damaged)
        with pytest.raises(DataError, match="does not fit its checksum"):
            pack.verify(copy)
    copy.write_bytes(b"hello")
    with pytest.raises(DataError, match="its header cannot be read"):
        pack.verify(copy)


def test_other_files_are_no_packs(tmp_path):
    with pytest.raises(DataError, match=r"there is no pack .*: make it with `vn data modelnet40 --from PATH`"):
        ModelNet40("train", tmp_path)
    (tmp_path / "modelnet40.safetensors").write_bytes(b"hello world, this is not a pack")
    with pytest.raises(DataError, match=r"is not a pack, or is damaged .*make it again"):
        ModelNet40("train", tmp_path)
    make(tmp_path / "occupancy.safetensors", torch.zeros(3, 4, 3), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(DataError, match=r"is a pack of test, not of occupancy: make that with `vn data occupancy"):
        Occupancy("train", tmp_path)
    about = {"splits": {"all": 2}, "format": 99}
    pack.write_pack(tmp_path / "new.safetensors", about, [{"points": torch.zeros(2, 5, 3)}])
    with pytest.raises(DataError, match="has format 99, this version reads 1"):
        pack.open_pack("new", tmp_path)


def test_an_interrupted_conversion_resumes(tmp_path, monkeypatch):
    source = published.modelnet_text(tmp_path / "text")
    monkeypatch.setattr(plan, "FILES_PER_CHUNK", 1)
    reads, original = [], modelnet40._read_text

    def read(points, up, name, file, label):
        reads.append(name)
        if len(reads) == 3:
            raise KeyboardInterrupt
        return original(points, up, name, file, label)

    monkeypatch.setattr(modelnet40, "_read_text", read)
    with pytest.raises(KeyboardInterrupt):
        modelnet40.convert(source, tmp_path)
    assert not (tmp_path / "modelnet40.safetensors").exists()
    assert (tmp_path / "modelnet40.partial").is_dir()
    changed = source / "chair" / "chair_0001.txt"
    np.savetxt(changed, published.cloud(77, 10_000, 6), delimiter=",")  # read already, but replaced in the meantime
    steps = []
    modelnet40.convert(source, tmp_path, progress=lambda done, total: steps.append((done, total)))
    assert reads == ["chair_0001", "table_0001", "night_stand_0001", "chair_0001", "night_stand_0001", "chair_0890"]
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [file.name for file in tmp_path.iterdir() if file != source] == ["modelnet40.safetensors"]
    monkeypatch.setattr(modelnet40, "_read_text", original)
    whole = modelnet40.convert(source, tmp_path / "whole")
    assert whole.read_bytes() == (tmp_path / "modelnet40.safetensors").read_bytes()


def test_a_kept_chunk_that_does_not_load_or_whose_source_changed_is_read_again(tmp_path, monkeypatch):
    source = published.occnet(tmp_path / "source")
    files = [("a", source / "03001627" / "a", 0)]
    keys = {plan.file_chunks("train", files, print, members=("points.npz",))[0].key}
    with (files[0][1] / "points.npz").open("ab") as file:
        file.write(b"more")
    keys.add(plan.file_chunks("train", files, print, members=("points.npz",))[0].key)
    assert len(keys) == 2
    rows = {"points": torch.zeros(1, 4, 3), "label": torch.tensor([0])}
    path = tmp_path / "p.safetensors"
    (tmp_path / "p.partial").mkdir()
    (tmp_path / "p.partial" / "x.safetensors").write_bytes(b"cut short")
    (tmp_path / "p.partial" / "x.json").write_text('{"names": ["x"], "damaged": []}')
    convert_plan(path, "p", Plan("test", ("a",), [Chunk("train", 1, partial(ChunkContent, rows, ["x"]), "x")]))
    assert pack.open_pack(path).arrays["points"].shape == (1, 4, 3)


def test_a_chunk_that_another_version_described_is_read_again(tmp_path):
    rows, reads = {"points": torch.zeros(1, 4, 3), "label": torch.tensor([0])}, []

    def read():
        reads.append(1)
        return ChunkContent(rows, ["x"])

    path, one = tmp_path / "p.safetensors", Plan("test", ("a",), [Chunk("train", 1, read, "x")])
    described = {"names": ["x"], "damaged": [], "notes": [], "digests": [], "without_normals": []}
    for fields, expected in ((described, 0), ({k: x for k, x in described.items() if k != "digests"}, 1)):
        (tmp_path / "p.partial").mkdir()
        save_file(rows, tmp_path / "p.partial" / "x.safetensors")
        (tmp_path / "p.partial" / "x.json").write_text(json.dumps(fields))
        convert_plan(path, "p", one)
        assert len(reads) == expected


def test_a_data_set_opens_another_pack_by_name_path_or_itself(tmp_path):
    other = modelnet40.convert(published.modelnet_npz(tmp_path / "modelnet40.npz"), tmp_path).rename(
        tmp_path / "other.safetensors"
    )
    opened = [
        ModelNet40("test", tmp_path, pack="other"),
        ModelNet40("test", pack=other),
        ModelNet40("test", pack=pack.open_pack(other)),
    ]
    assert [data.pack.path for data in opened] == [other] * 3
    assert all(torch.equal(data[0].points, opened[0][0].points) for data in opened)


def test_what_only_some_shapes_have_is_left_out(tmp_path):
    bare = {"points": torch.zeros(1, 4, 3), "label": torch.tensor([0])}
    rich = bare | {"normals": torch.zeros(1, 4, 3)}
    chunks = [Chunk("train", 1, partial(ChunkContent, rows, [name]), name) for name, rows in (("x", rich), ("y", bare))]
    convert_plan(tmp_path / "p.safetensors", "p", Plan("test", ("a",), chunks))
    assert set(pack.open_pack(tmp_path / "p.safetensors").arrays) == {"points", "label"}
    with pytest.raises(DataError, match="no shapes to convert"):
        convert_plan(tmp_path / "q.safetensors", "q", Plan("test", ("a",), []))


def test_of_two_conversions_to_one_pack_the_second_waits_and_takes_the_first(tmp_path):
    rows, reads = {"points": torch.zeros(1, 4, 3), "label": torch.tensor([0])}, []

    def read():
        reads.append(1)
        time.sleep(0.3)
        return ChunkContent(rows, ["x"])

    path, one = tmp_path / "p.safetensors", Plan("test", ("a",), [Chunk("train", 1, read, "x")])
    threads = [Thread(target=convert_plan, args=(path, "p", one), kwargs={"overwrite": False}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["p.safetensors"]


def test_a_file_where_a_conversion_needs_its_folder_is_told(tmp_path):
    (tmp_path / "p.partial").write_text("not a folder")
    with pytest.raises(FileExistsError, match=r"p\.partial"):
        convert_plan(tmp_path / "p.safetensors", "p", Plan("test", ("a",), [Chunk("train", 1, lambda: None, "x")]))


def test_a_data_root_that_leads_nowhere_is_told(tmp_path):
    (tmp_path / "root").symlink_to(tmp_path / "absent")
    empty = Plan("test", ("a",), [Chunk("train", 1, lambda: None, "x")])
    with pytest.raises(FileExistsError, match="root"):
        convert_plan(tmp_path / "root" / "p.safetensors", "p", empty)
    (tmp_path / "q.safetensors").mkdir()
    with pytest.raises(DataError, match=r"q\.safetensors is a folder: a pack needs another name"):
        convert_plan(tmp_path / "q.safetensors", "q", empty)


def test_a_failure_leaves_neither_lock_nor_folder(tmp_path):
    def read():
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError, match="gone"):
        convert_plan(tmp_path / "p.safetensors", "p", Plan("test", ("a",), [Chunk("train", 1, read, "x")]))
    assert not list(tmp_path.iterdir())
