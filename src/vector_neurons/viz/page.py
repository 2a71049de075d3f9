"""Pages that need nothing beside themselves: pictures are inside."""

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxtyping import Int
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
img { max-width: 100% } table { border-collapse: collapse } th, td { padding: .3rem 1rem; text-align: right }
th:first-child, td:first-child { text-align: left } tr { border-bottom: 1px solid #ccc } code { background: #f3f3f3 }"""


class Page:
    """An HTML page, built from top to bottom."""

    def __init__(self, title: str) -> None:
        self.title, self.parts = title, [f"<h1>{html.escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        """Begin a section."""
        self.parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table."""
        lines = ["".join(f"<th>{html.escape(word)}</th>" for word in head)]
        lines += ["".join(f"<td>{html.escape(word)}</td>" for word in row) for row in rows]
        self.parts.append("<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>")

    def figure(self, figure: "Figure", describe: str, dpi: int = 80) -> None:
        """Add a picture, with words for those who do not see it."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi)
        data = base64.b64encode(buffer.getvalue()).decode()
        self.parts.append(f'<img alt="{html.escape(describe)}" src="data:image/png;base64,{data}">')

    def __str__(self) -> str:
        head = f'<meta charset="utf-8"><title>{html.escape(self.title)}</title><style>{STYLE}</style>'
        return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(self.parts)}</body></html>\n'


def confusion(
    matrices: Sequence[Int[Tensor, "classes classes"]], titles: Sequence[str], names: Sequence[str]
) -> "Figure":
    """Confusion matrices side by side: rows are the truth, in shares of their class."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('pictures need matplotlib: pip install "vector-neurons[viz]"') from error
    figure = Figure(figsize=(5.2 * len(matrices), 5), layout="constrained")
    for i, (matrix, title) in enumerate(zip(matrices, titles, strict=True)):
        axes = figure.add_subplot(1, len(matrices), i + 1)
        shares = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
        axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
        axes.set_title(title)
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)), names if i == 0 else [""] * len(names), fontsize=7)
        axes.set_xlabel("predicted class")
        if i == 0:
            axes.set_ylabel("true class")
    return figure
