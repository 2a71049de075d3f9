"""Clouds of other programs: which of their columns are points and normals, and what is refused."""

import struct
import warnings

import numpy as np
import published
import pytest

from vector_neurons.mesh import MeshError, MeshWarning, read

CLOUD = published.cloud(0, 20, 6)
POINTS, NORMALS = CLOUD[:, :3], CLOUD[:, 3:]
COLORS = np.random.default_rng(0).integers(0, 256, (20, 3))


def rows(*tables, separator=" "):
    return "\n".join(separator.join(f"{x:.9g}" for x in row) for row in np.concatenate(tables, axis=1)) + "\n"


PLAIN, COMMAS = rows(POINTS), rows(POINTS, separator=",")
NUMBERED = rows(np.arange(20)[:, None], POINTS[:, ::-1], separator=",")
CLOUDS = {
    "plain.xyz": (PLAIN, False, ""),
    "normals.xyz": (rows(CLOUD), True, ""),
    "counted.xyz": ("20\n" + PLAIN, False, ""),
    "comment.xyz": ("20\nscan of a cup, 2024\n" + PLAIN, False, ""),
    "blank.xyz": ("20\n\n" + PLAIN + "\n", False, ""),
    "cloudcompare.xyz": ("//X Y Z R G B\n" + rows(POINTS, COLORS), False, "x y z are used"),
    "hash.xyz": ("# a scan\n# x y z nx ny nz\n" + rows(CLOUD), True, ""),
    "sentence.xyz": ("# x y z from a scanner, in mm\n" + rows(CLOUD), True, ""),
    "sentence with names.xyz": ("# exported by a scanner: x y z\n" + PLAIN, False, ""),
    "colors.xyz": (rows(POINTS, COLORS), False, "of 6 columns, x y z are used: columns 4 to 6 are not unit normals"),
    "colors in 1.xyz": (rows(POINTS, COLORS / 255), False, "of 6 columns, x y z are used"),
    "both.xyz": (rows(CLOUD, COLORS), True, "of 9 columns, x y z nx ny nz are used"),
    "crlf.xyz": (PLAIN.replace("\n", "\r\n"), False, ""),
    "counted.pts": ("20\n" + PLAIN, False, ""),
    "leica.pts": ("20\n" + rows(POINTS, COLORS[:, :1], COLORS), False, "of 7 columns, x y z are used"),
    "intensity.pts": ("20\n" + rows(POINTS, COLORS[:, :1]), False, "of 4 columns, x y z are used"),
    "plain.csv": (COMMAS, False, ""),
    "header.csv": ("x,y,z\n" + COMMAS, False, ""),
    "bom.csv": ("\ufeffX,Y,Z\r\n" + COMMAS.replace("\n", "\r\n"), False, ""),
    "order.csv": ("id, z ,y,x\n" + NUMBERED, False, "of its columns id z y x, x y z are used"),
    "paraview.csv": (
        '"Normals:0","Normals:1","Normals:2","Points:0","Points:1","Points:2"\n' + rows(NORMALS, POINTS, separator=","),
        True,
        "",
    ),
    "words.csv": (
        "label;x;y;z\n" + "".join(f"cup;{row}\n" for row in rows(POINTS, separator=";").splitlines()),
        False,
        "of its columns label x y z, x y z are used",
    ),
    "european.csv": ("x;y;z\n" + rows(POINTS, separator=";").replace(".", ","), False, ""),
    "tabs.csv": ("x\ty\tz\n" + rows(POINTS, separator="\t"), False, ""),
}


def as_read(file, note, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cloud = read(file, **options)
    assert [w.category for w in caught] == [MeshWarning] * bool(note)
    assert not note or (note in str(caught[0].message) and file.name in str(caught[0].message))
    assert cloud.is_cloud
    return cloud


@pytest.mark.parametrize("name", CLOUDS)
def test_text(tmp_path, name):
    content, normals, note = CLOUDS[name]
    (tmp_path / name).write_text(content, newline="")
    cloud = as_read(tmp_path / name, note)
    np.testing.assert_allclose(cloud.vertices.numpy(), POINTS, rtol=1e-6)
    assert (cloud.normals is not None) == normals
    if normals:
        np.testing.assert_allclose(cloud.normals.numpy(), NORMALS, rtol=1e-6)


def test_colors_in_arrays_are_no_normals(tmp_path):
    np.save(tmp_path / "a.npy", np.concatenate([POINTS, COLORS], axis=1))
    assert as_read(tmp_path / "a.npy", "columns 4 to 6 are not unit normals").normals is None
    rounded = np.concatenate([POINTS, NORMALS.round(2)], axis=1)
    rounded[3, 3:] = 0  # where nothing could be estimated
    np.savez(tmp_path / "b.npz", rounded)
    assert as_read(tmp_path / "b.npz", "").normals is not None


REFUSED = {
    "fewer.xyz": ("21\n" + PLAIN, "is truncated: 20 points instead of 21"),
    "more.pts": ("19\n" + PLAIN, "it has 20 points and announces 19"),
    "atoms.xyz": ("3\nwater\nO 0 0 0\nH 0 0 1\nH 0 1 0\n", "is a file of atoms"),
    "atoms without a comment.xyz": ("3\n\nO 0 0 0\nH 0 0 1\nH 0 1 0\n", "is a file of atoms"),
    "bare atoms.xyz": ("O 0 0 0\nH 0 0 1\nH 0 1 0\n", "is a file of atoms"),
    "columns.xyz": (rows(POINTS[:, :2]), r"columns must be x y z or x y z nx ny nz, got an array \(20, 2\)"),
    "cut.xyz": (PLAIN.rpartition(" ")[0], "is truncated: its last line has 2 of 3 columns"),
    "short row.xyz": (PLAIN + "1 2\n" + PLAIN, "is damaged: row 21 has 2 columns, and the rows before it 3"),
    "unnamed column.xyz": ("# id x y z\n" + rows(CLOUD), "has 6 columns, and 4 have names"),
    "no names.csv": ("a,b,c\n" + COMMAS, "has the columns 'a,b,c': name those of the points x, y, z"),
    "cut.csv": ("x,y,z,label\n" + COMMAS.replace("\n", ",a\n")[:-3], "is truncated: its last line has 3 of 4 columns"),
    "index.xyz": (" x y z\n" + "".join(f"{i} 0 1 2\n" for i in range(5)), "row 1 has 4 columns, and 3 have names"),
    "index.csv": ("\tx\ty\tz\n" + "".join(f"{i}\t0\t1\t2\n" for i in range(5)), "row 1 has 4 columns, and 3"),
    "an empty cell.csv": ("x\ty\tz\tw\n1\t2\t3\t4\n\t2\t3\t4\n5\t6\t7\t8\n", "row 2 has 3 columns, and 4 have"),
    "only names.csv": ("x,y,z\n", "has no rows of numbers"),
    "nan.xyz": ("0 0 0\nnan 0 0\n1 inf 0\n", r"2 of 3 points .* leave them out with drop_nan=True, or --drop-nan"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_text_that_is_refused(tmp_path, name):
    content, words = REFUSED[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(MeshError, match=words):
        read(tmp_path / name)


def lzf(data):
    """A simple compressor: repetitions of the last bytes where there are some, literals elsewhere."""
    out, literal, at = bytearray(), bytearray(), 0

    def flush():
        for start in range(0, len(literal), 32):
            piece = literal[start : start + 32]
            out.extend(bytes([len(piece) - 1]) + piece)
        literal.clear()

    while at < len(data):
        best, place = 0, 0
        for start in range(max(0, at - 400), at):
            length = 0
            while length < 264 and at + length < len(data) and data[start + length] == data[at + length]:
                length += 1
            best, place = max((best, place), (length, start))
        if best < 3:
            literal.append(data[at])
            at += 1
            continue
        flush()
        back, length = at - place - 1, best - 2
        out.extend([(min(length, 7) << 5) | (back >> 8), *([length - 7] if length >= 7 else []), back & 255])
        at += best
    flush()
    return bytes(out)


FIELDS = np.dtype([("rgb", "<f4"), ("z", "<f8"), ("normal_x", "<f4"), ("y", "<f8"), ("_", "u1", (4,)), ("x", "<f8"),
                   ("normal_y", "<f4"), ("normal_z", "<f4"), ("label", "<u2")])  # fmt: skip


def pcd(kind, fields=FIELDS, data=None, **changes):
    table = np.zeros(20, fields)
    for i, axis in enumerate("xyz"):
        table[axis] = POINTS[:, i]
        if f"normal_{axis}" in fields.names:
            table[f"normal_{axis}"] = NORMALS[:, i]
    head = {
        "VERSION": "0.7",
        "FIELDS": " ".join(fields.names),
        "SIZE": " ".join(str(fields[n].base.itemsize) for n in fields.names),
        "TYPE": " ".join({"f": "F", "u": "U", "i": "I"}[fields[n].base.kind] for n in fields.names),
        "COUNT": " ".join(str(int(np.prod(fields[n].shape))) for n in fields.names),
        "WIDTH": 10,
        "HEIGHT": 2,
        "VIEWPOINT": "1 2 3 1 0 0 0",
        "POINTS": 20,
        "DATA": kind,
    } | changes
    if data is None and kind == "ascii":
        flat = np.column_stack([table[n].reshape(20, -1) for n in fields.names])
        data = rows(flat).encode()
    elif data is None and kind == "binary":
        data = table.tobytes()
    elif data is None:
        columns = b"".join(table[n].tobytes() for n in fields.names)
        packed = lzf(columns)
        data = struct.pack("<II", len(packed), len(columns)) + packed
    lines = [f"{key} {value}" for key, value in head.items() if value is not None]
    return ("# .PCD v0.7 - Point Cloud Data file format\n" + "\n".join(lines) + "\n").encode() + data


@pytest.mark.parametrize("kind", ["ascii", "binary", "binary_compressed"])
def test_pcd(tmp_path, kind):
    (tmp_path / "a.pcd").write_bytes(pcd(kind))
    cloud = as_read(tmp_path / "a.pcd", "x y z and normals are used")
    np.testing.assert_allclose(cloud.vertices.numpy(), POINTS, rtol=1e-7)
    np.testing.assert_allclose(cloud.normals.numpy(), NORMALS, rtol=1e-6)
    bare = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4")])
    (tmp_path / "b.pcd").write_bytes(pcd(kind, bare, COUNT=None, VIEWPOINT=None))
    cloud = as_read(tmp_path / "b.pcd", "")
    np.testing.assert_allclose(cloud.vertices.numpy(), POINTS, rtol=1e-6)
    assert cloud.normals is None


PCD_REFUSED = {
    "points": (pcd("binary", POINTS=21), "announces 21 points, and 10 times 2"),
    "negative": (pcd("binary", WIDTH=-10, HEIGHT=-2), "times -2"),
    "huge": (pcd("binary", WIDTH=10**12, POINTS=2 * 10**12), "is truncated: 920 bytes after its header instead of"),
    "short": (pcd("binary")[:-1], "is truncated: 919 bytes after its header instead of 920"),
    "long": (pcd("binary") + b"more", "it has 924 bytes after its header and announces 920"),
    "rows": (pcd("ascii", WIDTH=11, POINTS=22), "is truncated: 20 points instead of 22"),
    "fields": (pcd("ascii").replace(b"FIELDS rgb", b"FIELDS"), "is damaged: zip"),
    "count": (pcd("ascii", COUNT="1 1 1 1 5 1 1 1 1"), "12 numbers, and its fields announce 13"),
    "cut": (pcd("binary_compressed")[:-1], "bytes after its header"),
    "inflates": (pcd("binary_compressed", WIDTH=11, POINTS=22), "it inflates to 920 bytes, and 22 points take 1,012"),
    "ratio": (
        pcd("binary_compressed", data=struct.pack("<II", 4, 920) + b"\xff\xff\xff\xff"),
        "is damaged|cannot inflate",
    ),
    "repeats": (
        pcd("binary_compressed", data=struct.pack("<II", 20, 920) + b"\x20\xff" * 10),
        "a back-reference points before the start",
    ),
    "literals": (
        pcd("binary_compressed", data=struct.pack("<II", 20, 920) + bytes(20)),
        "is truncated: 10 bytes, inflated",
    ),
    "axes": (pcd("binary").replace(b" x ", b" u "), "has no fields x y z"),
    "kind": (pcd("magic"), "no header of a .pcd file"),
    "text": (b"hello\n", "no header of a .pcd file"),
}


@pytest.mark.parametrize("name", PCD_REFUSED)
def test_pcd_that_is_refused(tmp_path, name):
    content, words = PCD_REFUSED[name]
    (tmp_path / "a.pcd").write_bytes(content)
    with pytest.raises(MeshError, match=words) as error:
        read(tmp_path / "a.pcd")
    assert "\n" not in str(error.value)


def test_points_of_a_depth_camera_that_saw_nothing(tmp_path):
    seen = POINTS.copy()
    seen[[2, 5, 7], 2] = np.nan
    np.savetxt(tmp_path / "a.xyz", seen)
    (tmp_path / "a.pcd").write_bytes(
        pcd("binary", np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4")]), seen.astype("<f4").tobytes())
    )
    for name in ("a.xyz", "a.pcd"):
        with pytest.raises(MeshError, match="3 of 20 points"):
            read(tmp_path / name)
        cloud = as_read(tmp_path / name, "3 of 20 points are NaN or infinite and left out", drop_nan=True)
        assert len(cloud.vertices) == 17
    np.savetxt(tmp_path / "b.xyz", np.full((4, 3), np.nan))
    with pytest.raises(MeshError, match="it has no points"):
        read(tmp_path / "b.xyz", drop_nan=True)
    published.off(tmp_path / "mesh.off", vertices=np.where(published.BOX == 3, np.nan, published.BOX))
    with pytest.raises(MeshError, match=r"4 of 8 points have coordinates that are NaN or infinite$"):
        read(tmp_path / "mesh.off", drop_nan=True)  # without a corner there is no face
