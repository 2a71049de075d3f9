"""The pages of the documentation, and the code in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
NOT_RUN = "# not run here:"  # the first line of a block that needs data or minutes, followed by the reason


def text(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text(page), flags=re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """Every `vn ...` of the page's shell blocks, and of the code in its text, as a list of words."""
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    prose = re.sub(r"^```.*?^```", "", text(page), flags=re.DOTALL | re.MULTILINE)
    lines += [code.replace("\n", " ") for code in re.findall(r"`(vn [a-z][^`]*)`", prose)]
    found = [re.search(r"(?:^|\s)(?:vn|python -m vector_neurons|-m vector_neurons) ([a-z].*)$", line) for line in lines]
    return [hit[1].partition(" #")[0].split() for hit in found if hit]
