"""Markdown: links lead somewhere, lines have at most 100 columns, words are the field's."""

import re

import pytest
from blocks import PAGES, ROOT, text

ALL = [*PAGES, "CONTRIBUTING.md"]
WIDTH = 100


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text(page), flags=re.DOTALL | re.MULTILINE), re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", ALL)
def test_links_between_pages_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page} links to {link}"
        if anchor:
            assert anchor in anchors(str(target.resolve().relative_to(ROOT.resolve()))), f"{page} links to {link}"


@pytest.mark.parametrize("page", ALL)
def test_lines_are_wrapped(page):
    prose = re.sub(r"^```.*?^```", "", text(page), flags=re.DOTALL | re.MULTILINE)
    long = [line for line in prose.splitlines() if len(line) > WIDTH and not line.startswith("|")]
    assert not long, f"{page}: {long[0]}"


@pytest.mark.parametrize("page", ALL)
def test_spelling_is_american(page):
    british = r"\b\w*(?:neighbour|colour|normalis|initialis|centre|behaviour|optimis|recognis|generalis)\w*"
    assert not re.findall(british, text(page), flags=re.IGNORECASE)
