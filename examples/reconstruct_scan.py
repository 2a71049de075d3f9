"""Reconstruct a closed mesh from a file of points, in the pose and the units of the scan.

    python examples/reconstruct_scan.py scan.ply mesh.ply        any format that vn.mesh.read reads
    python examples/reconstruct_scan.py                          a scan of an embedded shape, in millimeters

Needs the extra `mesh`. The network comes with the package; `vn reconstruct` does the same from the shell.
"""

import sys

import numpy as np

import vector_neurons as vn
from vector_neurons.data import Shapes
from vector_neurons.tasks import reconstruct

scan, out = sys.argv[1:] if len(sys.argv) > 1 else ("scan.xyz", "mesh.ply")
if len(sys.argv) == 1:
    cloud = Shapes("test", size=21, points=1000)[12]
    rotation = vn.geometry.rotations.draw("SO3", 1)[0]
    np.savetxt(scan, 80 * cloud.points @ rotation.mT + 500)

points = vn.mesh.read(scan).vertices
mesh = reconstruct(vn.pretrained("reconstruction"), points.float(), resolution=64)
vn.mesh.write(mesh, out)
print(f"{out}: {len(mesh.vertices):,} vertices, {len(mesh.faces):,} faces, watertight: {vn.mesh.watertight(mesh)}")
size = (mesh.vertices.amax(0) - mesh.vertices.amin(0)).tolist()
print(f"center {[round(x) for x in mesh.vertices.mean(0).tolist()]}, size {[round(x) for x in size]}")
