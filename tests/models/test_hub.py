"""Models in folders with a card, and on a Hub whose HTTP layer is a local fake."""

import base64
import hashlib
import json
import sys

import pytest
import torch
from elsewhere import python

import vector_neurons as vn
from vector_neurons.models import Metadata, Model, OccupancyNetwork, PointNet
from vector_neurons.models.store import StoreError

SMALL = {"k": 4, "widths": ((6,), (12,)), "embedding": 24, "hidden": (8,)}
COMMIT = "c" * 40


def network():
    model = PointNet(2, **SMALL).eval()
    model.metadata = Metadata(classes=["mug", "chair"], points=512)
    return model


def test_a_folder_works_offline_and_without_the_hub(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    model, x = network(), torch.randn(1, 16, 3)
    model.save_pretrained(tmp_path / "model")
    for loaded in (Model.from_pretrained(tmp_path / "model"), PointNet.from_pretrained(str(tmp_path / "model"))):
        assert torch.equal(loaded(x), model(x))
        assert loaded.metadata == Metadata(classes=["mug", "chair"], points=512)
    with pytest.raises(StoreError, match="holds a PointNet, not a OccupancyNetwork"):
        OccupancyNetwork.from_pretrained(tmp_path / "model")
    with pytest.raises(StoreError, match=r"there is no folder .*, and a repository of the Hub is USER/NAME"):
        Model.from_pretrained(tmp_path / "nothing")
    with pytest.raises(ImportError, match=r"pip install 'vector-neurons\[hub\]'"):
        Model.from_pretrained("someone/something")
    with pytest.raises(ImportError, match=r"pip install 'vector-neurons\[hub\]'"):
        model.push_to_hub("someone/something")


def test_the_card_is_filled(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    network().save_pretrained(tmp_path)
    card = hub.ModelCard.load(tmp_path / "README.md")
    assert (card.data.library_name, card.data.license) == ("vector-neurons", "mit")
    assert "point-cloud" in card.data.tags
    for row in ("| outputs | mug, chair |", "| points per cloud in training | 512 |", "| neurons | vector |"):
        assert row in card.text
    vn.pretrained("reconstruction").save_pretrained(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| task | surface reconstruction from point clouds |" in text
    assert "None" not in text


@pytest.fixture
def fake_hub(monkeypatch, tmp_path):
    """A Hub of one process: what is committed to it can be downloaded."""
    pytest.importorskip("huggingface_hub")
    httpx = pytest.importorskip("httpx2")
    from huggingface_hub.utils import _http

    files: dict[str, bytes] = {}

    def answer(request):
        path, headers = request.url.path, {"X-Repo-Commit": COMMIT}
        if path == "/api/repos/create":
            assert json.loads(request.content)["visibility"] == "private"
            return httpx.Response(200, json={"url": "https://huggingface.co/me/net"})
        if path.endswith("/validate-yaml"):
            return httpx.Response(200, json={"errors": [], "warnings": []})
        if "/preupload/" in path:
            names = [file["path"] for file in json.loads(request.content)["files"]]
            return httpx.Response(
                200, json={"files": [{"path": x, "uploadMode": "regular", "shouldIgnore": False} for x in names]}
            )
        if "/commit/" in path:
            for line in map(json.loads, request.content.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return httpx.Response(
                200, json={"commitOid": COMMIT, "commitUrl": f"https://huggingface.co/me/net/commit/{COMMIT}"}
            )
        if path.startswith("/me/net/resolve/"):
            content = files[path.rpartition("/")[2]]
            headers |= {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "Content-Length": str(len(content))}
            return httpx.Response(200, headers=headers, content=b"" if request.method == "HEAD" else content)
        if "/tree/" in path:
            entries = [{"type": "file", "path": x, "size": len(y), "oid": "0" * 40} for x, y in files.items()]
            return httpx.Response(200, json=entries)
        siblings = [{"rfilename": name} for name in files]
        return httpx.Response(200, headers=headers, json={"id": "me/net", "sha": COMMIT, "siblings": siblings})

    before = _http._GLOBAL_CLIENT_FACTORY
    _http.set_client_factory(lambda: httpx.Client(transport=httpx.MockTransport(answer)))
    yield files
    _http.set_client_factory(before)


def test_push_to_the_hub_and_load_from_it(fake_hub, tmp_path):
    model, x = network(), torch.randn(1, 16, 3)
    address = model.push_to_hub("me/net", private=True, token="not a secret")
    assert address == f"https://huggingface.co/me/net/commit/{COMMIT}"
    assert set(fake_hub) == {"README.md", "checksums.json", "config.json", "model.safetensors"}
    loaded = PointNet.from_pretrained("me/net", cache_dir=tmp_path)
    assert torch.equal(loaded(x), model(x))
    assert loaded.metadata.classes == ["mug", "chair"]
    again = Model.from_pretrained("me/net", cache_dir=tmp_path, local_files_only=True)
    assert torch.equal(again(x), model(x))


def test_importing_the_package_does_not_import_the_hub():
    code = "import sys, vector_neurons; print('huggingface_hub' in sys.modules)"
    assert python(code) == (0, "False\n", "")
