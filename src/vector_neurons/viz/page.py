"""Self-contained HTML pages: pictures are embedded."""

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
img { max-width: 100% } table { border-collapse: collapse } th, td { padding: .3rem 1rem; text-align: right }
th:first-child, td:first-child { text-align: left } tr { border-bottom: 1px solid #ccc } code { background: #f3f3f3 }"""


class Page:
    """A self-contained HTML page, written from top to bottom; `str(page)` is its source.

    Args:
        title: of the page.

    >>> page = Page("Results")
    >>> page.table(["network", "accuracy"], [["VN-DGCNN", "90.2"]])
    >>> "<td>90.2</td>" in str(page)
    True
    """

    def __init__(self, title: str) -> None:
        self.title, self.parts = title, [f"<h1>{html.escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        """Start a section."""
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
        """Add a figure as an embedded PNG; `describe` is its alternative text."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi)
        data = base64.b64encode(buffer.getvalue()).decode()
        self.parts.append(f'<img alt="{html.escape(describe)}" src="data:image/png;base64,{data}">')

    def __str__(self) -> str:
        head = f'<meta charset="utf-8"><title>{html.escape(self.title)}</title><style>{STYLE}</style>'
        return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(self.parts)}</body></html>\n'
