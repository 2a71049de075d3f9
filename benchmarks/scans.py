"""Google Scanned Objects as files, of ten kinds that ModelNet40 has and of ten that it has not, for `vn predict`.

    python benchmarks/scans.py scanned_objects.npz scans
    vn predict scans/known --poses 8
    vn predict scans/unknown --poses 8

The files are .stl, .obj, .ply, .off and .glb in turn, in millimeters and away from the origin. The objects are one of
each kind, picked by hand after predictions of all scans had been seen; `benchmarks/calibrate.py --scans` counts all
whose names have the words below.
"""

import argparse
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
import trimesh

from vector_neurons.mesh import Mesh

# Words in the names of Google Scanned Objects, and the class of ModelNet40 that they are.
KNOWN_SCANS = {
    **dict.fromkeys(("_bowl_", "footed_bowl", "cereal_bowl"), "bowl"),
    **dict.fromkeys(("coffee_mug", "mug_"), "cup"),
    **dict.fromkeys(("coq10", "tonic_12", "lutein", "theanine", "inositol", "ltyrosine"), "bottle"),
    **dict.fromkeys(("lenovo_yoga", "notebook"), "laptop"),
    **dict.fromkeys(("urn_55", "pitcher"), "vase"),
    **dict.fromkeys(("airplane_red", "turboprop"), "airplane"),
    **dict.fromkeys(("ecoforms_plant_pot", "ecoforms_planter_pot", "orchid_pot"), "flower_pot"),
    **{"keyboard": "keyboard", "spiderman": "person", "dollhouse_lamp": "lamp", "dollhouse_sofa": "sofa"},
}
UNKNOWN_SCANS = (
    *("shoe", "boot", "sneaker", "slip_on", "flats", "thong", "reebok", "asics", "motherboard", "towel", "mouse"),
    *("dino", "shark", "elephant", "headset", "hammer", "clamp", "backpack", "gloves", "toaster", "scissors"),
    *("flashlight", "schleich", "spatula", "horse", "screwdriver"),
)
KNOWN = {
    "airplane": "Air_Hogs_Wind_Flyers_Set_Airplane_Red",
    "bottle": "Weston_No_22_Cajun_Jerky_Tonic_12_fl_oz_nLj64ZnGwDh",
    "bowl": "Cole_Hardware_Bowl_Scirocco_YellowBlue",
    "cup": "Room_Essentials_Mug_White_Yellow",
    "flower_pot": "Ecoforms_Planter_Pot_GP12AAvocado",
    "keyboard": "Razer_Blackwidow_Tournament_Edition_Keyboard",
    "lamp": "3D_Dollhouse_Lamp",
    "laptop": "Travel_Mate_P_series_Notebook",
    "person": "SpiderMan_Titan_Hero_12Inch_Action_Figure_oo1qph4wwiW",
    "sofa": "3D_Dollhouse_Sofa",
}
UNKNOWN = {
    "backpack": "Jansport_School_Backpack_Blue_Streak",
    "boot": "UGG_Classic_Tall_Womens_Boots_Grey_7",
    "elephant": "Elephant",
    "hammer": "Cole_Hardware_Hammer_Black",
    "motherboard": "Asus_Z97AR_LGA_1150_Intel_ATX_Motherboard",
    "mouse": "Razer_Naga_MMO_Gaming_Mouse",
    "scissors": "Diamond_Visions_Scissors_Red",
    "shark": "Weisshai_Great_White_Shark",
    "shoe": "ASICS_GELResolution_5_Flash_YellowBlackSilver",
    "toaster": "Black_and_Decker_TR3500SD_2Slice_Toaster",
}


TRAIN, REST = (0,), (1, 2)  # splits: scores are compared on the first, and measured on the others


def read_scans(file, splits=TRAIN + REST):
    """Names and meshes of all scans in these splits."""
    data = np.load(file)
    vertex, face = (np.r_[0, data[f"num_{what}"].cumsum()] for what in ("vertices", "faces"))
    vertices, faces = data["vertices"] * float(data["scale"]), data["faces"].astype(np.int64)
    for i in np.flatnonzero(np.isin(data["split"], splits)):
        points, corners = vertices[vertex[i] : vertex[i + 1]], faces[face[i] : face[i + 1]]
        yield str(data["name"][i]), Mesh(torch.from_numpy(points), torch.from_numpy(corners))


def scans_like(file, words, splits):
    """Meshes of Google Scanned Objects whose names have one of these words, and the index of the word."""
    scans = read_scans(file, splits)
    found = [(mesh, [i for i, word in enumerate(words) if word in name.lower()]) for name, mesh in scans]
    return [(mesh, matching[0]) for mesh, matching in found if matching]


def main():
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scans", type=Path, help="scanned_objects.npz")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    meshes, suffixes = dict(read_scans(options.scans)), cycle(("stl", "obj", "ply", "off", "glb"))
    for folder, kinds in (("known", KNOWN), ("unknown", UNKNOWN)):
        (options.out / folder).mkdir(parents=True, exist_ok=True)
        for kind, name in kinds.items():
            millimeters = meshes[name].vertices.numpy() * 137 + [50, -20, 300]
            scan = trimesh.Trimesh(millimeters, meshes[name].faces.numpy(), process=False)
            scan.export(options.out / folder / f"{kind}.{next(suffixes)}")


if __name__ == "__main__":
    main()
