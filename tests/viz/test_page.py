"""Pages that need nothing beside themselves."""

import pytest
import torch

from vector_neurons.viz import Page, confusion


def test_a_page_escapes_what_it_shows():
    built = Page("a < b")
    built.heading("R & D")
    built.text("<script>")
    built.table(["name", "z"], [["x > y", "1"]])
    text = str(built)
    assert "<title>a &lt; b</title>" in text
    assert "<script>" not in text
    assert "<td>x &gt; y</td><td>1</td>" in text


def test_confusion_is_drawn_in_shares_of_the_truth():
    matrix = torch.tensor([[3, 1], [0, 0]])
    figure = confusion([matrix, matrix], ["a", "b"], ["cup", "mug"])
    *panels, scale = figure.axes
    assert len(panels) == 2
    assert scale.get_ylabel() == "share of the clouds of the true class"
    figure.draw_without_rendering()
    assert {"0%", "100%"} <= {label.get_text() for label in scale.get_yticklabels()}
    assert panels[0].get_ylabel() == "true class"
    assert all(axes.get_xlabel() == "predicted class" for axes in panels)
    assert figure.axes[0].images[0].get_array().tolist() == [[0.75, 0.25], [0.0, 0.0]]
    built = Page("t")
    built.figure(figure, "matrices")
    assert 'alt="matrices"' in str(built)
    grid = confusion([matrix] * 4, list("abcd"), ["cup", "mug"], columns=2)
    assert [axes.get_ylabel() for axes in grid.axes[:4]] == ["true class", "", "true class", ""]
    with pytest.raises(ValueError, match="zip"):
        confusion([matrix], ["a", "b"], ["cup", "mug"])


def test_tables_figures_and_terms_have_their_legends():
    built = Page("t")
    built.table(["name"], [["x"]], "a < caption")
    built.definitions([("z/z", "upright & upright")])
    built.figure(confusion([torch.eye(2, dtype=torch.int64)], ["a"], ["cup", "mug"]), "matrices", "rows > columns")
    text = str(built)
    assert "<caption>a &lt; caption</caption>" in text
    assert '<th scope="col">name</th>' in text
    assert "<dt>z/z</dt><dd>upright &amp; upright</dd>" in text
    assert "<figcaption>rows &gt; columns</figcaption>" in text


def test_a_page_in_a_page_is_escaped():
    built = Page("t")
    built.embed('<p id="a">1 & 2</p>', 'a "frame"', "turn <it>")
    text = str(built)
    assert "<p>turn &lt;it&gt;</p>" in text
    assert 'title="a &quot;frame&quot;" srcdoc="&lt;p id=&quot;a&quot;&gt;1 &amp; 2&lt;/p&gt;"' in text


def test_pages_follow_the_light_or_dark_setting():
    text = str(Page("t"))
    assert "color-scheme: light dark" in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
