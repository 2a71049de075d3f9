"""Self-contained HTML pages: pictures are embedded, and colors follow the light or dark setting of the reader."""

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCREEN_DPI = 96  # CSS pixels per inch

# Dark pages invert the pictures and turn hues back: white becomes the background, dark text light, blue stays blue.
STYLE = """:root { color-scheme: light dark; --back: #fff; --text: #1a1a1a; --faint: #595959; --line: #ccc }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0 }
main { max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1, h2 { line-height: 1.25; margin: 2.2rem 0 .6rem } h1 { margin-top: 0 }
p, dl, figcaption { max-width: 46rem } dt { font-weight: 600 } dd { margin: 0 0 .5rem 1.5rem }
figure { margin: 1.2rem 0 } img { display: block; max-width: 100%; height: auto }
iframe { width: 100%; height: 64rem; border: 1px solid var(--line); border-radius: .5rem }
.wide { overflow-x: auto } table { border-collapse: collapse; margin: 1rem 0 }
tr { border-bottom: 1px solid var(--line) }
th, td { padding: .35rem .8rem; text-align: right; vertical-align: bottom }
th:first-child, td:first-child { text-align: left; white-space: nowrap }
caption, figcaption { color: var(--faint); font-size: .92rem; text-align: left } caption { padding-bottom: .4rem }
@media (prefers-color-scheme: dark) {
  :root { --back: #121212; --text: #ededed; --faint: #b0b0b0; --line: #444 }
  img { filter: invert(.93) hue-rotate(180deg) }
}"""


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

    def definitions(self, terms: Sequence[tuple[str, str]]) -> None:
        """Add a list of terms, each with what it means."""
        items = (f"<dt>{html.escape(term)}</dt><dd>{html.escape(meaning)}</dd>" for term, meaning in terms)
        self.parts.append(f"<dl>{''.join(items)}</dl>")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> None:
        """Add a table."""
        title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
        top = "".join(f'<th scope="col">{html.escape(word)}</th>' for word in head)
        lines = ("".join(f"<td>{html.escape(word)}</td>" for word in row) for row in rows)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        table = f"<table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
        self.parts.append(f'<div class="wide">{table}</div>')

    def figure(self, figure: "Figure", describe: str, caption: str = "", dpi: int = 144) -> None:
        """Add a figure as an embedded PNG; `describe` is its alternative text."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi)
        data = base64.b64encode(buffer.getvalue()).decode()
        width = round(figure.get_figwidth() * SCREEN_DPI)
        image = f'<img alt="{html.escape(describe)}" width="{width}" src="data:image/png;base64,{data}">'
        below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
        self.parts.append(f"<figure>{image}{below}</figure>")

    def embed(self, page: str, describe: str, caption: str = "") -> None:
        """Add another self-contained page, such as that of `view_page`, in a frame; `describe` is its title."""
        frame = f'<iframe title="{html.escape(describe)}" srcdoc="{html.escape(page)}"></iframe>'
        below = f"<p>{html.escape(caption)}</p>" if caption else ""
        self.parts.append(f"{below}{frame}")

    def __str__(self) -> str:
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        head += f"<title>{html.escape(self.title)}</title><style>{STYLE}</style>"
        body = f"<main>{''.join(self.parts)}</main>"
        return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'
