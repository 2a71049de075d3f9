"""Files as other programs write them are read; files whose counts and content differ are refused with both counts."""

import json
import re
import struct

import numpy as np
import published
import pytest
import torch
import trimesh

from vector_neurons.mesh import Mesh, MeshError, read, watertight, write

BOX = Mesh(torch.from_numpy(published.BOX), torch.from_numpy(published.BOX_FACES))
XYZ = "property float x\nproperty float y\nproperty float z\n"
CORNERS = "property list uchar int vertex_indices\n"
TRIANGLE = "0 0 0\n1 0 0\n0 1 0\n"
OFF = "OFF\n3 1 0\n" + TRIANGLE + "3 0 1 2\n"
OBJ = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 1 1 0\n"
FACET = "facet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nvertex 0 1 0\nendloop\nendfacet\n"


def ply(body, *elements, format="ascii", before="", newline="\n"):
    """A .ply file: `elements` are `(name, count, properties)`."""
    head = f"ply\nformat {format} 1.0\n{before}"
    head += "".join(f"element {name} {count}\n{properties}" for name, count, properties in elements) + "end_header\n"
    body = body if isinstance(body, bytes) else body.replace("\n", newline).encode()
    return head.replace("\n", newline).encode() + body


def mesh_ply(body=TRIANGLE + "3 0 1 2\n", vertices=3, faces=1, **options):
    return ply(body, ("vertex", vertices, XYZ), ("face", faces, CORNERS), **options)


def binary(order, rows=((0, 1, 2),)):
    points = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]], f"{order}f4").tobytes()
    return points + b"".join(struct.pack(f"{order}B{len(row)}i", len(row), *row) for row in rows)


def binary_ply(order="<", rows=((0, 1, 2),), faces=None, vertices=4, more=b""):
    kind = f"binary_{'little' if order == '<' else 'big'}_endian"
    return mesh_ply(binary(order, rows) + more, vertices, len(rows) if faces is None else faces, format=kind)


COLORED = XYZ + "property uchar red\nproperty uchar green\nproperty uchar blue\nproperty float quality\n"
TEXTURED = CORNERS + "property list uchar float texcoord\nproperty int texnumber\n"
EDGES = "property int vertex1\nproperty int vertex2\n"
READABLE = {
    "blank and comments.off": (b"# made by hand\n" + OFF.replace("\n", "\n\n").encode() + b"\n# end\n\n", 3, 1),
    "glued.off": (OFF.replace("OFF\n", "OFF").encode(), 3, 1),
    "no edges.off": (OFF.replace("3 1 0", "3 1").encode(), 3, 1),
    "crlf.off": (OFF.replace("\n", "\r\n").encode(), 3, 1),
    "edge count.off": (OFF.replace("3 1 0", "3 1 3").encode(), 3, 1),
    "face colors.off": (OFF.replace("3 0 1 2", "3 0 1 2 0.5 0.5 0.5").encode(), 3, 1),
    "vertex colors.off": (b"COFF\n3 1 0\n" + TRIANGLE.replace("\n", " 255 0 0 255\n").encode() + b"3 0 1 2\n", 3, 1),
    "polygons.off": (b"OFF\n4 2 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n4 0 1 2 3\n3 0 1 2\n", 4, 3),
    "crlf.ply": (mesh_ply(newline="\r\n"), 3, 1),
    "cr.ply": (mesh_ply(newline="\r"), 3, 1),
    "comments.ply": (mesh_ply(before="comment made by\ncomment\nobj_info num_cols 4\n"), 3, 1),
    "blank end.ply": (mesh_ply(TRIANGLE + "3 0 1 2\n\n\n"), 3, 1),
    "no last newline.ply": (mesh_ply(TRIANGLE + "3 0 1 2"), 3, 1),
    "quads.ply": (mesh_ply(TRIANGLE + "1 1 0\n4 0 1 2 3\n3 0 1 2\n", 4, 2), 4, 3),
    "meshlab.ply": (
        ply(
            "0 0 0 255 0 0 0.5\n1 0 0 255 0 0 0.5\n0 1 0 255 0 0 0.5\n3 0 1 2 6 0 0 1 0 0 1 0\n0 1\n",
            ("vertex", 3, COLORED),
            ("face", 1, TEXTURED),
            ("edge", 1, EDGES),
        ),
        3,
        1,
    ),
    "scan.ply": (
        ply(
            "1 2 3 0.9 0.5\n4 5 6 0.9 0.5\n",
            ("vertex", 2, XYZ + "property float confidence\nproperty float intensity\n"),
        ),
        2,
        0,
    ),
    "range grid.ply": (
        ply("1 2 3\n4 5 6\n0\n1 0\n1 1\n", ("vertex", 2, XYZ), ("range_grid", 3, CORNERS)),
        2,
        0,
    ),
    "little.ply": (binary_ply("<"), 4, 1),
    "big.ply": (binary_ply(">"), 4, 1),
    "mixed.ply": (binary_ply(">", ((0, 1, 2), (0, 1, 2, 3), (1, 2, 3))), 4, 4),
    "newline at the end.ply": (binary_ply(more=b"\n"), 4, 1),
    "binary extra.ply": (
        ply(
            struct.pack("<ffffBi", 0, 0, 0, 9, 1, 7)
            + struct.pack("<ffffBii", 1, 0, 0, 9, 2, 7, 7)
            + struct.pack("<ffffB", 0, 1, 0, 9, 0)
            + struct.pack("<fB3iB", 5, 3, 0, 1, 2, 8)
            + struct.pack("<ii", 0, 1),
            ("vertex", 3, XYZ + "property float32 w\nproperty list uint8 int32 near\n"),
            ("face", 1, "property float area\n" + CORNERS.replace("indices", "index") + "property uchar flags\n"),
            ("edge", 1, EDGES),
            format="binary_little_endian",
        ),
        3,
        1,
    ),
    "solid.stl": (f"solid box\n{FACET}{FACET}endsolid box\n".encode(), 6, 2),
    "two solids.stl": (f"solid a\n{FACET}endsolid a\nsolid b\n{FACET}endsolid b\n".upper().encode(), 6, 2),
    "crlf.stl": (f"  solid box\n{FACET}endsolid box\n\n".replace("\n", "\r\n").encode(), 3, 1),
    "binary solid.stl": (
        b"solid exported".ljust(80) + struct.pack("<I", 1) + struct.pack("<12fH", *range(12), 0),
        3,
        1,
    ),
    "normals before colors.off": (  # MeshLab's order of the letters
        b"NCOFF\n3 1 0\n"
        + b"".join(b"%d %d 0 0 0 1 9 9 9 255\n" % at for at in ((0, 0), (1, 0), (0, 1)))
        + b"3 0 1 2\n",
        3,
        1,
    ),
    "plain.obj": ((OBJ + "f 1 2 3\n").encode(), 4, 1),
    "slashes.obj": (
        (OBJ + "vt 0 0\nvn 0 0 1\no a\ng b\ns off\nusemtl m\nf 1/1/1 2/1/1 3/1/1\nf 1//1 2//1 3//1 4//1\n").encode(),
        4,
        3,
    ),
    "from the end.obj": ((OBJ + "f -4 -3 -2\nf -3/-1 -2/-1 -1/-1\n# end").encode(), 4, 2),
    "continued.obj": ((OBJ + "f 1 2 \\\n 3\n").replace("\n", "\r\n").encode(), 4, 1),
    "colored.obj": (OBJ.replace(" 0\n", " 0 0.5 0.5 0.5\n").encode() + b"f 1 2 3", 4, 1),
    "cloud.obj": (OBJ.encode(), 4, 0),
}


@pytest.mark.parametrize("name", READABLE)
def test_files_of_other_programs(tmp_path, name):
    content, vertices, faces = READABLE[name]
    (tmp_path / name).write_bytes(content)
    mesh = read(tmp_path / name)
    assert (len(mesh.vertices), len(mesh.faces)) == (vertices, faces)
    if faces:
        first = mesh.vertices[mesh.faces[0]] if "solid" not in name or "binary" not in name else None
        if first is not None:
            assert first.tolist() == [[0, 0, 0], [1, 0, 0], [0 if "polygons" not in name else 1, 1, 0]]


@pytest.mark.parametrize("order", ["<", ">"])
def test_polygons_keep_their_order_and_are_cut_as_fans(tmp_path, order):
    (tmp_path / "a.ply").write_bytes(binary_ply(order, ((0, 1, 2), (3, 2, 1, 0), (1, 2, 3))))
    assert read(tmp_path / "a.ply").faces.tolist() == [[0, 1, 2], [3, 2, 1], [3, 1, 0], [1, 2, 3]]


def test_files_of_trimesh_give_the_triangles_that_trimesh_reads(tmp_path):
    ball = trimesh.creation.icosphere(subdivisions=2)
    for suffix, options in (
        ("ply", {"encoding": "ascii"}),
        ("ply", {}),
        ("stl_ascii", {}),
        ("stl", {}),
        ("off", {}),
        ("obj", {}),
    ):
        file = tmp_path / f"ball.{suffix[:3]}"
        ball.export(file, file_type=suffix, **options)
        ours = read(file)
        theirs = trimesh.load(file, process=False)
        np.testing.assert_allclose(ours.vertices[ours.faces].numpy(), theirs.triangles, atol=1e-7)  # type: ignore[attr-defined]
        assert watertight(ours)


LYING = {
    "vertices.off": (OFF.replace("3 1 0", "2 1 0"), "it has 5 lines and announces 4"),
    "faces.off": (OFF.replace("3 1 0", "3 2 0"), "is truncated: 5 lines instead of 6"),
    "swapped.off": (OFF.replace("3 1 0", "1 3 0"), "face 1 announces 1 corners and has 2|has 1 corners"),
    "negative.off": (OFF.replace("3 1 0", "-3 1 0"), "announces '-3 1 0' instead of"),
    "words.off": ("OFF\nthree one\n", "announces 'three one'"),
    "corners.off": (OFF.replace("3 0 1 2", "4 0 1 2"), "is truncated: 4 lines instead of 5"),
    "no corners.off": (OFF.replace("3 0 1 2", "2 0 1"), "2 corners"),
    "negative.ply": (mesh_ply(vertices=-1), "announces -1 rows of vertex"),
    "fewer.ply": (mesh_ply(vertices=2), "it has 4 lines and announces 3"),
    "more.ply": (mesh_ply(faces=2), "is truncated: 4 lines instead of 5"),
    "shifted.ply": (
        mesh_ply(vertices=2, faces=2),
        "is damaged: face 1 announces 0 corners and has 2|number of columns",
    ),
    "corners.ply": (mesh_ply(TRIANGLE + "4 0 1 2\n3 0 1 2\n", faces=2), "face 1 announces 4 corners and has 3"),
    "more corners.ply": (mesh_ply(TRIANGLE + "2 0 1 2\n"), "face 1 announces 2 corners and has 3"),
    "columns.ply": (mesh_ply(TRIANGLE.replace("\n", " 7\n") + "3 0 1 2\n"), "4 numbers instead of 3"),
    "extra.ply": (
        ply(TRIANGLE + "3 0 1 2 1 0\n", ("vertex", 3, XYZ), ("face", 1, TEXTURED)),
        "row 1 of face has 6 numbers, announces 7",
    ),
    "strips.ply": (ply(TRIANGLE + "3 0 1 2\n", ("vertex", 3, XYZ), ("tristrips", 1, CORNERS)), "triangle strips"),
    "twice.ply": (ply(TRIANGLE, ("vertex", 1, XYZ), ("vertex", 2, XYZ)), "an element twice"),
    "types.ply": (ply(TRIANGLE, ("vertex", 3, XYZ.replace("float", "number"))), "the line 'property number x'"),
    "huge.ply": (binary_ply(vertices=10**15), "is truncated: 5 rows of vertex instead of 1,000,000,000,000,000"),
    "huge faces.ply": (binary_ply(faces=10**15), "is truncated: 13 rows of face instead of 1,000,000,000,000,000"),
    "short.ply": (binary_ply(faces=2), "is truncated: 1 rows of face instead of 2"),
    "long.ply": (binary_ply(more=bytes(12)), "it has 73 bytes after its header, and announces 61"),
    "fewer binary.ply": (binary_ply(vertices=3), "bytes after its header|has the length|corners|rows of face"),
    "cut.ply": (binary_ply()[:-1], "is truncated: 0 rows of face instead of 1"),
    "list.ply": (
        binary_ply(rows=((0, 1, 2), (0, 1, 2, 3)))[:-20] + b"\xff" * 20,
        "is truncated: 1 rows of face instead of 2",
    ),
    "signed.ply": (
        binary_ply().replace(b"uchar", b"char").replace(b"\x03\0\0\0\0", b"\xff\0\0\0\0"),
        "has the length -1",
    ),
    "cut.stl": (f"solid a\n{FACET}{FACET[:80]}", "is truncated: 1 of 2 facets are complete"),
    "end.stl": (f"solid a\n{FACET}", "is truncated: 1 of 1 facets are complete, and it has no end"),
    "two corners.stl": (f"solid a\n{FACET.replace('vertex 1 0 0', '')}endsolid\n", "1 facets have 2 vertices"),
    "words.stl": (f"solid a\n{FACET}hello\nendsolid\n", "the line 'hello'"),
    "fewer.stl": (bytes(80) + struct.pack("<I", 1) + bytes(100), "it has 184 bytes and announces 134"),
    "more.stl": (bytes(80) + struct.pack("<I", 3) + bytes(100), "is truncated: 184 bytes instead of 234"),
    "corner.obj": (f"{OBJ}f 1 2 3\nf 2 3", "columns changed|has 2 corners"),
    "slash.obj": (f"{OBJ}f 1//1 2//1 3//1\nf 2//1 3//1 4/", "is truncated: its last face is 'f 2//1 3//1 4/'"),
    "form.obj": (f"{OBJ}f 1//1 2//1 3//1\nf 2//1 3//1 4", "is truncated: its last face"),
    "vertex.obj": (f"{OBJ}v 0 1", "is damaged: invalid column index 2"),
    "index.obj": (f"{OBJ}f 0 1 2", "its faces name vertices that do not exist"),
    "absent.obj": (f"{OBJ}f 1 2 9", "its faces name vertices that do not exist"),
}


@pytest.mark.parametrize("name", LYING)
def test_counts_that_lie_are_refused(tmp_path, name):
    content, words = LYING[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(MeshError, match=words) as error:
        read(tmp_path / name)
    assert str(error.value).count(name) == 1
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", ["ply", "stl", "off", "obj", "glb"])
def test_a_file_cut_anywhere_is_refused_or_says_what_it_says_without_its_last_blank(tmp_path, suffix):
    write(BOX, tmp_path / f"box.{suffix}")
    content = (tmp_path / f"box.{suffix}").read_bytes().rstrip(b"\n" if suffix in ("off", "obj") else b"")
    first = content.find(b"f ") if suffix == "obj" else 1  # before that it is a cloud
    for end in range(first, len(content), 1 if suffix == "off" else 7):
        (tmp_path / f"cut.{suffix}").write_bytes(content[:end])
        try:
            found = read(tmp_path / f"cut.{suffix}")
        except MeshError:
            continue
        # An .obj file announces nothing: it may end after any line. The last number of a text may lose its end.
        assert suffix == "obj" or (suffix == "off" and len(found.faces) == 12)


def glb(about, binary=b""):
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 4)
    body = struct.pack("<I4s", len(text), b"JSON") + text
    body += struct.pack("<I4s", len(binary), b"BIN\0") + binary if binary else b""
    return struct.pack("<4sII", b"glTF", 2, 12 + len(body)) + body


BARE = {
    "asset": {"version": "2.0"},
    "scenes": [{"nodes": [0]}],
    "nodes": [{"mesh": 0}],
    "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"buffers": [{"byteLength": 36, "uri": "../../secret.bin"}]},
            r"keeps its triangles in another file, '../../secret.bin': save it as one \.glb file",
        ),
        ({"accessors": [{"componentType": 5126, "count": 10**12, "type": "VEC3"}]}, "is too large: its parts take"),
        ({"accessors": [{"componentType": 5126, "count": "many", "type": "VEC3"}]}, "is damaged"),
        (
            {"accessors": [{"componentType": 5126, "count": 100_000, "type": "VEC3"}], "nodes": [{"mesh": 0}] * 5000},
            "is too large: its parts take 24,000,000,000 bytes|is too large",
        ),
        (
            {"extensionsRequired": ["KHR_materials_unlit", "KHR_draco_mesh_compression"]},
            "needs the glTF extension KHR_draco_mesh_compression, which is not read: save it without compression",
        ),
        (
            {"meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "mode": 6}]}]},
            "has triangle fans, which are not read: save it with triangles",
        ),
        (
            {
                "accessors": [{"componentType": kind, "normalized": True, "count": 3} for kind in (5121, 5123)],
                "meshes": [{"primitives": [{"attributes": {"POSITION": i}} for i in (0, 1)]}],
            },
            "has a mesh whose positions are of several types",
        ),
    ],
)
def test_a_glb_file_cannot_ask_for_other_files_or_for_memory(tmp_path, more, words):
    (tmp_path / "a.glb").write_bytes(glb({"accessors": []} | BARE | more))
    with pytest.raises(MeshError, match=words):
        read(tmp_path / "a.glb")


@pytest.mark.parametrize(("kind", "letter", "largest"), [(5120, "b", 127), (5121, "B", 255), (5123, "H", 65535)])
def test_normalized_positions_of_a_glb_file_are_fractions(tmp_path, kind, letter, largest):
    corners = [(0, 0, 0), (largest, 0, 0), (0, largest, 0)]
    binary = b"".join(struct.pack(f"<3{letter}", *corner).ljust(8, b"\0") for corner in corners)
    about = BARE | {
        # The mesh node is scaled, and has a child with the same mesh that is moved within it.
        "nodes": [{"mesh": 0, "scale": [2, 2, 2], "children": [1]}, {"mesh": 0, "translation": [10, 0, 0]}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "mode": 4}]}],
        "buffers": [{"byteLength": len(binary)}],
        "bufferViews": [{"buffer": 0, "byteLength": len(binary), "byteStride": 8}],
        "accessors": [{"bufferView": 0, "componentType": kind, "normalized": True, "count": 3, "type": "VEC3"}],
        "extensionsRequired": ["KHR_mesh_quantization"],
    }
    (tmp_path / "a.glb").write_bytes(glb(about, binary))
    vertices = read(tmp_path / "a.glb").vertices
    expected = torch.tensor([[0, 0, 0], [2, 0, 0], [0, 2, 0], [20, 0, 0], [22, 0, 0], [20, 2, 0]], dtype=torch.float64)
    assert torch.allclose(vertices[vertices[:, 0].add(vertices[:, 1] / 9).argsort()], expected[[0, 2, 1, 3, 5, 4]])


def test_a_file_of_another_format_or_encoding_is_named(tmp_path):
    triangle = trimesh.Trimesh([[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 1, 2]])
    cases = {
        "ply.stl": (triangle.export(file_type="ply"), "is a .ply file by its content: rename it"),
        "glb.obj": (triangle.export(file_type="glb"), "is a .glb file by its content: rename it"),
        "old.glb": (b"glTF\1\0\0\0" + bytes(40), "only version 2 is read"),
        "wide.obj": (OBJ.encode("utf-16"), "is text in UTF-16: save it as UTF-8"),
        "empty.npy": (b"", "is empty"),
        "empty.npz": (b"", "is empty"),
    }
    for name, (content, words) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(MeshError, match=re.escape(words)):
            read(tmp_path / name)
    (tmp_path / "folder").mkdir()
    for name, words in {"nothing": "there is no file or folder", "folder": "cannot be read: it is a folder"}.items():
        with pytest.raises(MeshError, match=words):
            read(tmp_path / name)


def test_a_face_among_the_vertices_is_noticed(tmp_path):
    (tmp_path / "a.off").write_text("OFF\n5 1 0\n0 0 0\n1 0 0\n0 1 0\n0 0 1\n3 0 1 2\n3 0 1 3\n")
    with pytest.raises(MeshError, match="vertex 5 has 4 columns, and the first 3"):
        read(tmp_path / "a.off")


def test_a_vertex_of_a_text_stl_has_three_coordinates(tmp_path):
    facet = "facet normal 0 0 1\nouter loop\n" + "vertex 9 0 0 1\n" * 3 + "endloop\nendfacet\n"
    (tmp_path / "a.stl").write_text(f"solid a\n{facet}endsolid a\n")
    with pytest.raises(MeshError, match="its vertices have 4 coordinates"):
        read(tmp_path / "a.stl")


@pytest.mark.parametrize("suffix", [".xyz", ".ply", ".stl", ".off", ".obj", ".pcd", ".glb", ".csv"])
def test_a_file_larger_than_is_read_is_refused_unread(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    with path.open("wb") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(MeshError, match="is too large: 268,435,457 bytes"):
        read(path)
