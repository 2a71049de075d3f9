"""The page where shapes are turned by hand, in a real browser; skipped where none is installed."""

import chromium
import pytest
import torch

from vector_neurons.inference import answer, pose_grid
from vector_neurons.models import DGCNN
from vector_neurons.viz import Answers, Exhibit, Picture, view_page

pytestmark = [
    pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed: apt-get install chromium"),
    pytest.mark.xdist_group("chromium"),
]
READY = "!!document.body && !!document.body.dataset.ready"
CLASSES = ["cup", "mug", "vase"]
BARS = """[...document.querySelectorAll("#answers section")].map((section) =>
    [...section.querySelectorAll("[role=meter]")].map((bar) => bar.getAttribute("aria-valuenow")))"""
INK = """[...document.querySelectorAll("canvas")].map((canvas) => {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return pixels.reduce((sum, value, i) => (sum * 31 + value) % 1000003, 0); })"""
COUNT_PICTURES = """window.pictures = 0;
    const put = CanvasRenderingContext2D.prototype.putImageData;
    CanvasRenderingContext2D.prototype.putImageData = function (...given) { pictures++; put.apply(this, given); };"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two shapes with two untrained networks, sharpened to be as sure as trained ones; and one with parts."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    rotations, exhibits = pose_grid(60), []
    networks = []
    for neurons in ("scalar", "vector"):
        network = DGCNN(3, neurons=neurons, k=6, widths=(6, 6), embedding=12, hidden=(8,)).eval()
        with torch.no_grad():
            last = [module for module in network.modules() if isinstance(module, torch.nn.Linear)][-1]
            last.weight *= 200
        networks.append(network)
    cloud = torch.randn(400, 3, generator=generator) * torch.tensor([1.0, 0.5, 0.2])
    cloud = cloud / cloud.norm(dim=-1).amax()
    faces = torch.randint(400, (500, 3), generator=generator)
    for title, picture in (
        ("a cloud", Picture(cloud, parts=(cloud[:, 0] > 0).long())),
        ("a mesh", Picture(cloud, faces)),
    ):
        answers = [answer(network, cloud[:128], rotations) for network in networks]
        parts = ["left", "right"] if picture.faces is None else []
        exhibits.append(Exhibit(title, picture, answers=answers, classes=CLASSES, truth="cup", parts=parts))
    parts = torch.zeros(60, 400, dtype=torch.int64)
    parts[1:, :100] = 1
    shares = torch.tensor([[1.0, 0.0], *([[0.75, 0.25]] * 59)])
    answers = [Answers("segmenter", torch.ones(60), shares, Picture(cloud, parts=parts))]
    exhibits.append(Exhibit("parts", Picture(cloud), answers=answers, classes=["x", "y"], parts=["x", "y"]))
    file = tmp_path_factory.mktemp("page") / "view.html"
    file.write_text(view_page("Two shapes", exhibits, rotations), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser():
    browser = chromium.Chromium()
    yield browser
    browser.close()


@pytest.fixture
def opened(browser, page):
    browser.prefer(color_scheme="light")
    browser.resize(1280, 900)
    browser.open(page, READY)
    return browser


def middle(browser):
    place = (
        "(() => { const r = document.querySelector('canvas').getBoundingClientRect(); return [r.x, r.y, r.width]; })()"
    )
    x, y, width = browser.run(place)
    return x + width / 2, y + width / 2


def test_it_draws_once_on_its_own_and_fetches_nothing(browser, page):
    browser.resize(1280, 900)
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=COUNT_PICTURES)["identifier"]
    browser.open(page, READY)
    browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    browser.settle()
    assert browser.run("pictures") == 1  # without input, and no pose but the first: this is what makes it quick
    assert browser.run(INK) != [0]
    browser.press("n")
    assert browser.run("pictures") == 2
    assert browser.errors == []
    assert browser.run("document.title") == "Two shapes"
    assert browser.run("document.getElementById('problem').hidden")
    assert browser.run("performance.getEntriesByType('resource').length") == 0


def test_a_drag_moves_the_scalar_bars_and_not_the_vector_bars(opened):
    scalar, vector = opened.run(BARS)
    ink = opened.run(INK)
    x, y = middle(opened)
    opened.drag((x, y), (x + 90, y + 120))
    assert opened.run(INK) != ink
    moved, stood = opened.run(BARS)
    assert moved != scalar
    assert stood == vector
    live, errors = (
        opened.run(f"[...document.querySelectorAll('.{name}')].map((one) => Number(one.textContent))")
        for name in ("live", "largest")
    )
    assert 1e-2 < live[0] <= errors[0] <= 1
    assert live[1] <= errors[1] < 1e-3
    assert "60 of 60" in opened.run("document.querySelectorAll('#answers section')[1].textContent")
    opened.wait("document.getElementById('spoken').textContent.includes('DGCNN, vector neurons: ')")
    assert opened.errors == []


def test_keys_turn_zoom_and_reset(opened):
    first, bars = opened.run(INK), opened.run(BARS)
    opened.run("document.querySelector('canvas').focus()")
    assert opened.run("getComputedStyle(document.activeElement).outlineStyle") in ("solid", "auto")
    seen = [first]
    for key in ("ArrowLeft", "ArrowUp", "+", "-", "n"):
        opened.press(key)
        seen.append(opened.run(INK))
        assert seen[-1] != seen[-2], key
    opened.press("r")
    assert opened.run(INK) == first
    assert opened.run(BARS) == bars
    opened.press("ArrowRight")
    opened.press("ArrowRight")
    assert opened.run("document.body.dataset.pose") == "1"  # two steps are one of the poses about the vertical
    opened.press(" ")
    assert opened.run("document.getElementById('play').getAttribute('aria-pressed')") == "true"
    ink = opened.run(INK)
    opened.wait(f"JSON.stringify({INK}) !== '{str(ink).replace(' ', '')}'")
    opened.press(" ")
    assert opened.run("document.getElementById('play').textContent") == "Play"
    assert opened.errors == []


def choose(browser, number):
    browser.run(f"document.getElementById('shape').value = {number}")
    browser.run("document.getElementById('shape').dispatchEvent(new Event('change'))")
    browser.settle()


def test_parts_change_their_color_with_the_pose(opened):
    choose(opened, 2)
    counted = "document.querySelector('.moved').textContent"
    assert opened.run(counted) == "0.0 %"
    assert opened.run(BARS) == [["100.0", "0.0"]]
    x, y = middle(opened)
    opened.drag((x, y), (x + 90, y + 120))
    assert opened.run(counted) == "25.0 %"
    assert opened.run(BARS) == [["75.0", "25.0"]]
    one, other = opened.run(INK)  # the input in one color, and its parts
    assert one != other
    assert opened.errors == []


def test_the_chooser_shows_the_other_shape(opened):
    assert opened.run("[...document.querySelectorAll('#legend li')].map((one) => one.textContent)") == ["left", "right"]
    choose = (
        "(() => { const s = document.getElementById('shape'); s.value = 1; s.dispatchEvent(new Event('change')); })()"
    )
    ink = opened.run(INK)
    opened.run(choose)
    opened.settle()
    assert opened.run(INK) != ink
    assert opened.run("document.getElementById('legend').hidden")
    assert "a mesh" in opened.run("document.querySelector('canvas').getAttribute('aria-label')")
    assert opened.errors == []


def test_screen_readers_find_names_and_values(opened):
    opened.call("Accessibility.enable")
    tree = opened.call("Accessibility.getFullAXTree")["nodes"]
    opened.call("Accessibility.disable")
    found = {}
    for node in tree:
        found.setdefault(node.get("role", {}).get("value"), []).append(node.get("name", {}).get("value", ""))
    assert sorted(found["meter"]) == sorted(CLASSES * 2)
    assert all(found["button"])
    assert {"Zoom in", "Zoom out", "Play", "Reset", "Random pose"} <= set(found["button"])
    assert any("Shape" in name for name in found["combobox"])
    assert any("Arrow keys turn it" in name for name in found["application"])
    assert found["region"] == ["DGCNN, scalar neurons", "DGCNN, vector neurons"]


def test_dark_and_narrow(opened):
    light, ink = opened.run("getComputedStyle(document.body).backgroundColor"), opened.run(INK)
    opened.prefer(color_scheme="dark")
    opened.settle()
    assert opened.run("getComputedStyle(document.body).backgroundColor") != light
    assert opened.run(INK) != ink  # distant points fade into the other background
    opened.resize(400, 800)
    opened.settle()
    assert opened.run("document.documentElement.scrollWidth") == 400
    assert opened.errors == []


def test_less_motion_if_the_reader_prefers(opened):
    duration = "getComputedStyle(document.querySelector('.bar i')).transitionDuration"
    assert opened.run(duration) != "0s"
    opened.prefer(reduced_motion="reduce")
    assert opened.run(duration) == "0s"


def test_a_damaged_page_says_so(browser, page, tmp_path):
    text = page.read_text(encoding="utf-8")
    start = text.index('id="arrays">') + 40
    damaged = tmp_path / "damaged.html"
    damaged.write_text(text[:start] + "AAAA" + text[start + 4 :], encoding="utf-8")
    browser.open(damaged, "!!document.getElementById('problem') && !document.getElementById('problem').hidden")
    assert "damaged" in browser.run("document.getElementById('problem').textContent")
