import math

import published
import pytest
import torch
import trimesh

from vector_neurons.geometry import rotations
from vector_neurons.mesh import Mesh, MeshError, compare, compare_points, extract, iou, sample, volume_iou

EMPTY = Mesh(torch.zeros(0, 3).double(), torch.zeros(0, 3).long())
CLOUD = Mesh(torch.rand(5, 3).double(), EMPTY.faces)


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def box(*size, at=(0.0, 0.0, 0.0)):
    """1 × 2 × 3 stretched to a size, its lowest corner at a place."""
    unit = torch.from_numpy(published.BOX) / torch.tensor([1, 2, 3])
    return Mesh(unit * torch.tensor(size) + torch.tensor(at), torch.from_numpy(published.BOX_FACES))


def sphere(radius):
    shape = trimesh.creation.icosphere(subdivisions=4, radius=radius)
    return Mesh(torch.tensor(shape.vertices), torch.tensor(shape.faces))


def test_distances_are_those_of_a_slow_computation():
    first, first_normals = sample(sphere(1.0), 60, generator=draws(0))
    second, second_normals = sample(box(1.0, 0.7, 0.6), 45, generator=draws(1))
    result = compare_points(first, first_normals, second, second_normals, threshold=0.4)
    distances = torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
    there, back = distances.min(1), distances.min(0)
    assert result.accuracy == pytest.approx(there.values.mean().item(), abs=1e-12)
    assert result.completeness == pytest.approx(back.values.mean().item(), abs=1e-12)
    assert result.chamfer_l1 == pytest.approx((there.values.mean() + back.values.mean()).item() / 2, abs=1e-12)
    cosines = (first_normals @ second_normals.mT).abs()
    both = (
        [cosines[i, j].item() for i, j in enumerate(there.indices)],
        [cosines[i, j] for j, i in enumerate(back.indices)],
    )
    expected = sum(sum(part) / len(part) for part in both) / 2
    assert result.normal_consistency == pytest.approx(float(expected), abs=1e-12)
    precision, recall = (there.values <= 0.4).double().mean(), (back.values <= 0.4).double().mean()
    assert 0 < precision < 1
    assert result.f_score == pytest.approx((2 / (1 / precision + 1 / recall)).item(), abs=1e-12)


@pytest.mark.parametrize("gap", [0.1, 0.3])
def test_concentric_spheres_are_their_difference_apart(gap):
    result = compare(sphere(1.0), sphere(1.0 + gap), points=20_000, generator=draws())
    assert result.accuracy == pytest.approx(gap, abs=0.005)
    assert result.completeness == pytest.approx(gap, abs=0.005)
    assert result.chamfer_l1 == (result.accuracy + result.completeness) / 2
    assert result.normal_consistency > 0.99
    assert result.f_score == 0  # a threshold of a hundredth of the diameter reaches neither


def test_the_threshold_is_a_fraction_of_the_references_longest_side():
    # Nearest points are 0.1 apart: a little more than 0.045 of the larger diameter, 0.05 of the smaller.
    small, large = sphere(1.0), sphere(1.1)
    few = {"points": 20_000, "generator": draws()}
    assert compare(small, large, threshold=0.04, **few).f_score == 0
    assert compare(small, large, threshold=0.048, **few).f_score > 0.99
    assert compare(large, small, threshold=0.048, **few).f_score < 0.1


def test_a_surface_is_as_close_to_itself_as_its_samples():
    result = compare(sphere(1.0), sphere(1.0), generator=draws())
    spacing = math.sqrt(4 * math.pi / 100_000) / 2
    assert result.chamfer_l1 == pytest.approx(spacing, rel=0.03)
    assert result.f_score == pytest.approx(1, abs=1e-3)
    assert result.normal_consistency > 0.999


def test_a_part_is_accurate_and_incomplete():
    plate, table = box(1.0, 1.0, 1e-6), box(2.0, 1.0, 1e-6)
    result = compare(plate, table, generator=draws())
    assert result.accuracy < 0.01
    assert result.completeness == pytest.approx(0.25, abs=0.01)  # a half at 0, a half between 0 and 1
    # All of the plate is near, and of the table half and a little.
    assert result.f_score == pytest.approx(2 * 0.51 / 1.51, abs=0.015)


def test_shifted_boxes():
    """Along the long axis by 0.2: of an area of 18, the ends move and leave or enter a strip of 0.8 of the sides."""
    result = compare(box(4.0, 1.0, 1.0), box(4.0, 1.0, 1.0, at=(0.2, 0.0, 0.0)), generator=draws())
    strip, outer_end = 0.8 * 0.1, 0.2
    inner_end = (1 - 0.6**3) / 6  # the mean of what is less, 0.2 or the distance from the rim: ∫ (1 - 2s)² ds up to 0.2
    touching = (18 - 2 - 0.8) * math.sqrt(18 / 100_000) / 2
    assert result.chamfer_l1 == pytest.approx((strip + outer_end + inner_end + touching) / 18, rel=0.02)


def test_swapping_swaps_and_units_scale():
    first, second = sphere(1.0), box(1.0, 2.0, 0.5, at=(-0.5, -1.0, 0.0))
    forth = compare(first, second, points=5000, generator=draws())
    back = compare(second, first, points=5000, generator=draws())
    assert forth.accuracy == pytest.approx(back.completeness, rel=0.02)
    assert forth.chamfer_l1 == pytest.approx(back.chamfer_l1, rel=0.02)
    assert forth.normal_consistency == pytest.approx(back.normal_consistency, rel=0.02)
    R = rotations.draw("SO3", 1, generator=draws(1), dtype=torch.float64)[0]
    metres = [Mesh(mesh.vertices @ R.mT / 1000, mesh.faces) for mesh in (first, second)]
    small = compare(*metres, points=5000, generator=draws())
    assert small.chamfer_l1 * 1000 == pytest.approx(forth.chamfer_l1, rel=1e-9)
    assert small.normal_consistency == pytest.approx(forth.normal_consistency, abs=1e-9)
    again = compare(first, second, points=5000, generator=draws())
    assert again == forth


def test_nothing_is_infinitely_far():
    for pair in ((EMPTY, sphere(1.0)), (sphere(1.0), EMPTY), (EMPTY, EMPTY)):
        result = compare(*pair)
        assert result.accuracy == result.completeness == result.chamfer_l1 == math.inf
        assert result.normal_consistency == result.f_score == 0
    with pytest.raises(MeshError, match="0 faces has no area"):
        compare(CLOUD, sphere(1.0))


def test_iou_counts():
    first = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()
    second = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
    torch.testing.assert_close(iou(first, second), torch.tensor([1 / 3, 1, 0, 1]))
    torch.testing.assert_close(iou(first.view(2, 2, 4), second.view(2, 2, 4)), torch.tensor([[1 / 3, 1], [0, 1]]))


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [
        (box(1.0, 1.0, 1.0), box(1.0, 1.0, 1.0), 1),
        (box(1.0, 1.0, 1.0), box(1.0, 1.0, 1.0, at=(0.5, 0.0, 0.0)), 1 / 3),
        (box(1.0, 2.0, 3.0), box(1.0, 2.0, 3.0, at=(0.25, 0.5, 0.75)), 0.75**3 / (2 - 0.75**3)),
        (box(2.0, 2.0, 2.0), box(1.0, 1.0, 1.0, at=(0.3, 0.4, 0.5)), 1 / 8),
        (box(1.0, 1.0, 1.0), box(1.0, 1.0, 1.0, at=(3.0, 0.0, 0.0)), 0),
        (sphere(1.0), sphere(1.2), 1 / 1.2**3),
    ],
)
def test_shares_of_volumes_are_known(first, second, known):
    assert volume_iou(first, second, queries=20_000, generator=draws()) == pytest.approx(known, abs=0.02)
    assert volume_iou(second, first, queries=20_000, generator=draws()) == pytest.approx(known, abs=0.02)


def test_what_has_no_faces_has_no_volume():
    assert volume_iou(EMPTY, EMPTY) == 1
    assert volume_iou(EMPTY, sphere(1.0), queries=100) == 0
    assert volume_iou(sphere(1.0), CLOUD, queries=100) == 0


def test_an_extracted_surface_is_close_to_the_shape_it_is_of():
    mesh = extract(lambda points: 1 - points.norm(dim=-1), low=-1.2, high=1.2, resolution=64)
    result = compare(mesh, sphere(1.0), generator=draws())
    assert result.chamfer_l1 < 1.1 * math.sqrt(4 * math.pi / 100_000) / 2
    assert result.f_score > 0.999
    assert result.normal_consistency > 0.99
