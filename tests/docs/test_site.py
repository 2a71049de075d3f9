"""The site: builds without a warning, leads nowhere that is not there, loads nothing, and covers the whole API."""

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest
from blocks import ROOT

import vector_neurons

# All packages, and the modules in them whose names are public as well.
MODULES = [
    "compat.vnn",
    "data",
    "data.augment",
    "data.shapes",
    "geometry",
    "geometry.inside",
    "geometry.neighbors",
    "geometry.query",
    "geometry.rotations",
    "geometry.sampling",
    "geometry.scale",
    "geometry.segments",
    "inference",
    "inference.export",
    "kernels",
    "mesh",
    "models",
    "models.reference",
    "models.store",
    "nn",
    "nn.functional",
    "nn.hybrid",
    "nn.scalar",
    "nn.vector",
    "tasks",
    "testing",
    "training",
    "typing",
    "viz",
]
NOT_DOCUMENTED = {"cli"}  # the command, which has `--help`


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built pages: those of `make docs`, or built here."""
    if built := os.environ.get("VN_SITE"):
        return Path(built).resolve()
    pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "default"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@cache
def html(page: Path) -> str:
    return page.read_text()


@cache
def ids(page: Path) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', html(page)))


def test_every_link_leads_somewhere(site):
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links are absolute: it is shown at any address
            continue
        for link in set(re.findall(r'(?:href|src)="([^"]+)"', html(page))):
            if re.match(r"\w+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / unquote(path)).resolve() if path else page
            assert target.exists(), f"{page.name} leads to {link}"
            if anchor and target.suffix == ".html":
                assert unquote(anchor) in ids(target), f"{page.name} leads to {link}"


def test_nothing_is_loaded_from_the_network(site):
    for page in site.rglob("*.html"):
        loads = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"', html(page))
        loads += re.findall(r'<link[^>]*\srel="(?:stylesheet|preconnect|preload)"[^>]*>', html(page))
        assert not [load for load in loads if "//" in load], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text()), sheet


def test_equations_are_mathml(site):
    assert html(site / "layers.html").count("<math") >= 10
    for page in site.rglob("*.html"):
        assert 'class="arithmatex"' not in html(page), page


def public_names(module: ModuleType) -> list[str]:
    """What a module exports: its `__all__`, or else the functions and classes that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return [
        name
        for name in defined
        if not name.startswith("_") and isinstance(getattr(module, name), type | type(public_names))
    ]


@pytest.mark.parametrize("name", ["", *MODULES])
def test_the_reference_covers_every_public_name(site, name):
    module = importlib.import_module(f"vector_neurons.{name}" if name else "vector_neurons")
    shown = set().union(*(ids(page) for page in (site / "api").glob("*.html")))
    missing = []
    for public in public_names(module):
        value = getattr(module, public)
        if inspect.ismodule(value):
            found = value.__name__ in shown or any(path.startswith(f"{value.__name__}.") for path in shown)
        else:
            home = f"{getattr(value, '__module__', module.__name__)}.{getattr(value, '__qualname__', public)}"
            found = bool(shown & {f"{module.__name__}.{public}", home})
            found = found or any(path.endswith(f".{public}") and resolves(path, value) for path in shown)
        if not found:
            missing.append(public)
    assert not missing, f"not in docs/api: {', '.join(missing)}"


def resolves(path: str, value: object) -> bool:
    """Whether the dotted path leads to this object."""
    found: object = vector_neurons
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
    return found is value


def test_every_package_is_in_the_list():
    packages = {module.name for module in pkgutil.iter_modules(vector_neurons.__path__) if module.name[0] != "_"}
    assert packages - NOT_DOCUMENTED == {name.partition(".")[0] for name in MODULES}
