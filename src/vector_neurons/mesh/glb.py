"""Checks of .glb files, and what trimesh does not read of them: positions in normalized integers."""

import json
from typing import Any

from .mesh import ARRAYS_MAX_BYTES, MeshError
from .text import count_error

JSON_MAX_BYTES = 2**26
TRIANGLE_FAN = 6
# Extensions that a file may require and that do not change its surface, or that trimesh reads.
KNOWN_EXTENSIONS = ("KHR_mesh_quantization", "KHR_materials_", "KHR_texture_", "EXT_texture_", "KHR_lights_", "KHR_xmp")
LARGEST = {5120: 2**7 - 1, 5121: 2**8 - 1, 5122: 2**15 - 1, 5123: 2**16 - 1}  # by component type


def check(content: bytes) -> bytes:
    """Refuse a .glb file that is cut, refers to other files, needs what is not read, or would take too much memory.

    Returns the file, with normalized positions scaled by nodes of their own.
    """
    if content[:4] == b"glTF" and content[4:8] != b"\2\0\0\0":
        raise MeshError("is of another version of glTF, and only version 2 is read: save it again")
    if content[:4] != b"glTF" or content[16:20] != b"JSON":
        raise MeshError("is damaged: it has no header of a .glb file")
    announced = int.from_bytes(content[8:12], "little")
    if len(content) != announced:
        raise count_error(len(content), announced, "bytes")
    end = 20 + int.from_bytes(content[12:16], "little")
    if end > min(len(content), JSON_MAX_BYTES):
        raise MeshError(f"is damaged: its description takes {end:,} bytes")
    about = json.loads(content[20:end])
    _check_parts(about)
    _check_memory(about)
    if not _scale_normalized(about):
        return content
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 4)
    head = b"glTF" + (2).to_bytes(4, "little") + (20 + len(text) + len(content) - end).to_bytes(4, "little")
    return head + len(text).to_bytes(4, "little") + b"JSON" + text + content[end:]


def _check_parts(about: Any) -> None:
    """Refuse what would be left out in silence."""
    elsewhere = [b["uri"] for b in about.get("buffers", []) if not str(b.get("uri", "data:")).startswith("data:")]
    if elsewhere:
        raise MeshError(f"keeps its triangles in another file, {str(elsewhere[0])[:80]!r}: save it as one .glb file")
    unknown = [x for x in about.get("extensionsRequired", []) if not str(x).startswith(KNOWN_EXTENSIONS)]
    if unknown:
        raise MeshError(
            f"needs the glTF extension {str(unknown[0])[:80]}, which is not read: "
            "save it without compression and instancing"
        )
    if any(p.get("mode") == TRIANGLE_FAN for part in about.get("meshes", []) for p in part["primitives"]):
        raise MeshError("has triangle fans, which are not read: save it with triangles")


def _check_memory(about: Any) -> None:
    counts = [int(accessor["count"]) for accessor in about.get("accessors", [])]
    elements = [
        sum(counts[i] for p in part["primitives"] for i in (*p["attributes"].values(), p.get("indices", 0)))
        for part in about.get("meshes", [])
    ]
    placed = sum(elements[node["mesh"]] for node in about.get("nodes", []) if "mesh" in node)
    memory = 24 * max(sum(counts), placed)  # a part that the scene places several times counts several times
    if min(counts, default=0) < 0 or memory > ARRAYS_MAX_BYTES:
        raise MeshError(
            f"is too large: its parts take {memory:,} bytes in memory, at most {ARRAYS_MAX_BYTES:,} are read"
        )


def _scale_normalized(about: Any) -> bool:
    """Place meshes of normalized integers by a node of their own, which divides them by the largest one.

    The scale cannot go into the node that has the mesh, since that may have children. Returns whether there are any.
    """
    scales: dict[int, float] = {}
    for number, part in enumerate(about.get("meshes", [])):
        positions = [p["attributes"]["POSITION"] for p in part["primitives"] if "POSITION" in p["attributes"]]
        of_parts = {_scale(about["accessors"][i]) for i in positions}
        if len(of_parts) > 1:
            raise MeshError("has a mesh whose positions are of several types, which is not read: save it in floats")
        scales[number] = of_parts.pop() if of_parts else 1.0
    nodes = about.get("nodes", [])
    for node in list(nodes):
        if scales.get(node.get("mesh"), 1.0) != 1:
            mesh = node.pop("mesh")
            node["children"] = [*node.get("children", []), len(nodes)]
            nodes.append({"mesh": mesh, "scale": [scales[mesh]] * 3})
    return any(scale != 1 for scale in scales.values())


def _scale(accessor: Any) -> float:
    return 1 / LARGEST.get(accessor["componentType"], 1) if accessor.get("normalized") else 1.0
