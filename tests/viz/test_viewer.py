"""The page where shapes are turned by hand: what is in it. What it does is tested in test_viewer_chromium.py."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from pages import unpack

from vector_neurons.geometry.rotations import evenly_spaced, geodesic_distance
from vector_neurons.viz import Answers, Exhibit, Picture, view_page
from vector_neurons.viz.viewer import LEVELS, nearest_pose

POSES = 5


@pytest.fixture(scope="module")
def exhibit():
    generator = torch.Generator().manual_seed(0)
    cloud = torch.randn(33, 3, generator=generator)
    parts = torch.randint(3, (POSES, 33), generator=generator)
    p = torch.rand(POSES, 3, generator=generator).softmax(-1)
    answers = [
        Answers("scalar", torch.rand(POSES, generator=generator), p, Picture(cloud, parts=parts)),
        Answers("vector", torch.full((POSES,), 3e-7), p[:1].expand(POSES, 3)),
    ]
    mesh = Picture(cloud, torch.tensor([[0, 1, 2], [2, 1, 32]]), parts[0])
    return Exhibit(
        "a </script><b> cup", mesh, answers=answers, classes=["cup", "<i>", "vase"], truth="cup", parts=["x"]
    )


def test_the_data_survive_the_round_trip(exhibit):
    rotations = evenly_spaced(POSES)
    data = unpack(view_page("t", [exhibit, exhibit], rotations))
    assert np.array_equal(data["rotations"], rotations.numpy())
    assert len(data["exhibits"]) == 2
    for shown in data["exhibits"]:
        assert shown["title"] == exhibit.title
        assert (shown["classes"], shown["truth"], shown["parts"]) == (["cup", "<i>", "vase"], "cup", ["x"])
        assert np.array_equal(shown["picture"]["points"], exhibit.picture.points.numpy())
        assert np.array_equal(shown["picture"]["faces"], exhibit.picture.faces.numpy())
        assert np.array_equal(shown["picture"]["parts"], exhibit.picture.parts.numpy())
        for given, found in zip(exhibit.answers, shown["answers"], strict=True):
            assert found["network"] == given.network
            assert np.array_equal(found["change"], given.change.numpy())
            p = given.probabilities.numpy()
            assert np.abs(found["probabilities"] / LEVELS - p).max() <= 0.5 / LEVELS + 1e-7
        assert np.array_equal(shown["answers"][0]["picture"]["parts"], exhibit.answers[0].picture.parts.numpy())
        assert shown["answers"][1]["picture"] is None
    right, up, toward = data["camera"]
    assert np.allclose(np.cross(right, up), toward, atol=1e-6)


def test_the_page_needs_nothing_beside_itself_and_escapes_names(exhibit):
    page = view_page("R & <D>", [exhibit], evenly_spaced(POSES))
    assert not re.search(r"https?:|//[a-z]+\.|src=|href=|url\(|@import|import\(|fetch\(|{{", page)
    assert "<title>R &amp; &lt;D&gt;</title>" in page
    assert page.count("</script>") == 3

    class Reader(HTMLParser):
        def __init__(self):
            super().__init__()
            self.tags = []

        def handle_starttag(self, tag, attrs):
            self.tags.append(tag)

    reader = Reader()
    reader.feed(page)
    assert "b" not in reader.tags
    assert reader.tags.count("main") == 1
    assert "5 poses" in page
    assert "5 poses" not in view_page("t", [Exhibit("a", exhibit.picture)])  # nothing to explain


def test_a_large_page_stays_small():
    generator = torch.Generator().manual_seed(0)
    cloud, rotations = torch.randn(2048, 3, generator=generator), evenly_spaced(600)
    parts = torch.randint(4, (2048,), generator=generator).repeat(600, 1)
    parts[::7, ::50] = 1  # a network that changes its mind here and there
    shares = torch.rand(600, 4, generator=generator).softmax(-1)
    answers = [Answers("n", torch.zeros(600), shares, Picture(cloud, parts=parts))] * 2
    page = view_page("t", [Exhibit("a", Picture(cloud), answers=answers, classes=list("abcd"))] * 6, rotations)
    assert len(page.encode()) < 5e6


def test_wrong_sizes_are_refused(exhibit):
    rotations = evenly_spaced(POSES)
    with pytest.raises(ValueError, match="one or more shapes"):
        view_page("t", [])
    with pytest.raises(ValueError, match="answers in 6 poses"):
        view_page("t", [exhibit], evenly_spaced(6))
    cloud = exhibit.picture.points
    with pytest.raises(ValueError, match="need parts of each"):
        view_page("t", [Exhibit("a", Picture(cloud, parts=torch.zeros(5, dtype=torch.int64)))], rotations)
    with pytest.raises(ValueError, match="from 0 to 255"):
        view_page("t", [Exhibit("a", Picture(cloud, parts=torch.full((33,), 256)))], rotations)


def test_distances_of_poses_are_those_of_the_rotations():
    rotations = evenly_spaced(50, dtype=torch.float64)
    mean, most = nearest_pose(rotations)
    assert mean < most < 70
    angles = torch.stack([geodesic_distance(rotations, R.expand_as(rotations)) for R in rotations]).rad2deg()
    apart = (angles + 360 * torch.eye(50)).min(1).values
    assert most < 1.6 * apart.max()  # no hole
