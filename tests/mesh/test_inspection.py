"""What is measured of a reconstructed surface, on surfaces whose answers are known."""

import math

import numpy as np
import pytest
import torch
import trimesh

from vector_neurons.mesh import Mesh, bodies, extract, genus, largest_body, quality, sample, vertex_normals


def of(shape):
    return Mesh(torch.tensor(shape.vertices, dtype=torch.float64), torch.tensor(shape.faces, dtype=torch.int64))


def joined(*shapes):
    return of(trimesh.util.concatenate(shapes))


BALL = trimesh.creation.icosphere(subdivisions=4)
TORUS = trimesh.creation.torus(1.0, 0.3)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (of(BALL), (1, 0)),
        (of(TORUS), (1, 1)),
        (of(trimesh.creation.annulus(0.5, 1.0, 1.0)), (1, 1)),
        (joined(BALL, TORUS.copy().apply_translation([5, 0, 0])), (2, 1)),
        (joined(TORUS, TORUS.copy().apply_translation([5, 0, 0])), (2, 2)),
    ],
    ids=["ball", "torus", "tube", "ball and torus", "two tori"],
)
def test_bodies_and_genus(shape, expected):
    found = quality(shape, sample(shape, 2000)[0])
    assert (found.bodies, found.genus) == expected
    assert genus(shape) == expected[1]


def test_genus_of_an_extracted_surface():
    def double_torus(p):
        rings = [
            ((p[:, :2] - p.new_tensor([x, 0.0])).norm(dim=-1) - 0.6).square() + p[:, 2].square() for x in (-0.7, 0.7)
        ]
        return 0.25 - torch.minimum(*rings).sqrt()

    assert genus(extract(double_torus, low=-2.0, high=2.0, start=32, resolution=64)) == 2


def test_the_largest_body_is_kept_with_what_belongs_to_it():
    small = trimesh.creation.icosphere(subdivisions=1).apply_translation([4, 0, 0])
    both = joined(small, BALL)
    both = Mesh(both.vertices, both.faces, vertex_normals(both), both.vertices[:, 0].float())
    kept = largest_body(both)
    assert len(kept.faces) == len(BALL.faces)
    assert kept.vertices.norm(dim=-1).numpy() == pytest.approx(1)
    torch.testing.assert_close(kept.normals, kept.vertices, atol=0.02, rtol=0)
    assert torch.equal(kept.confidence, kept.vertices[:, 0].float())
    assert bodies(both).tolist() == [1] * len(small.faces) + [0] * len(BALL.faces)


def test_a_half_that_no_point_supports_is_invented():
    ball = of(BALL)
    points = sample(ball, 20_000, generator=torch.Generator().manual_seed(0))[0]
    half = points[points[:, 0] > 0]
    found = quality(ball, half)
    # Beyond the rim by 5 % of the largest side, 2: a cap that lacks a zone of height 0.1 of a half.
    assert found.invented == pytest.approx(0.45, abs=0.02)
    assert found.missed == 0
    assert quality(ball, points).invented == 0


def test_points_far_from_the_surface_are_missed():
    points = torch.cat([sample(of(BALL), 900)[0], torch.full((100, 3), 2.0)])
    assert quality(of(BALL), points).missed == pytest.approx(0.1)


@pytest.mark.parametrize("thickness", [0.02, 0.1])
def test_the_thinnest_part_of_a_plate(thickness):
    plate = of(trimesh.creation.box([2.0, 1.5, thickness]))
    assert quality(plate, plate.vertices).thinnest == pytest.approx(thickness, rel=0.1)
    dumbbell = joined(
        trimesh.creation.box([2.0, 1.5, 1.0]), trimesh.creation.box([0.8, 0.8, thickness]).apply_translation([3, 0, 0])
    )
    assert quality(dumbbell, dumbbell.vertices).thinnest == pytest.approx(thickness, rel=0.1)


def test_a_ball_has_no_thin_part():
    assert quality(of(BALL), of(BALL).vertices).thinnest == math.inf


def test_vertex_normals_are_those_of_trimesh():
    shape = trimesh.creation.capsule(1.0, 0.5)
    np.testing.assert_allclose(vertex_normals(of(shape)), shape.vertex_normals, atol=0.05)
