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
    assert len(figure.axes) == 2
    assert figure.axes[0].images[0].get_array().tolist() == [[0.75, 0.25], [0.0, 0.0]]
    built = Page("t")
    built.figure(figure, "matrices")
    assert 'alt="matrices"' in str(built)
    with pytest.raises(ValueError, match="zip"):
        confusion([matrix], ["a", "b"], ["cup", "mug"])
