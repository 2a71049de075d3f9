"""Models on the Hugging Face Hub, as folders of `store` with a model card: what the methods of `Model` call.

The names and arguments are those of `huggingface_hub.PyTorchModelHubMixin`. Only a repository's name needs the package
`huggingface_hub`; a local folder needs neither it nor a network.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from .._files import CHECKSUMS, write_file
from . import store
from .occupancy import OccupancyModel

CARD = "README.md"
FILES = (store.WEIGHTS, store.CONFIG, CHECKSUMS, CARD)
TASKS = {"classes": "point cloud classification", "parts": "part segmentation of point clouds"}
RECONSTRUCTION = "surface reconstruction from point clouds"
PAPER = "https://arxiv.org/abs/2104.12229"


def save_pretrained(model: nn.Module, save_directory: str | Path) -> None:
    """Save a model and its card to a folder, for `from_pretrained` and `vn.load`."""
    store.save(model, save_directory)
    write_file(Path(save_directory) / CARD, card(model))


def from_pretrained(
    cls: type[nn.Module] | None, name: str | Path, *, revision: str | None, local_files_only: bool, **download: Any
) -> nn.Module:
    """Load a model from a folder or, if there is none of this name, from a repository of the Hub."""
    folder = Path(name)
    if not folder.is_dir():
        if not _is_repository(str(name)):
            raise store.StoreError(f"there is no folder {name}, and a repository of the Hub is USER/NAME")
        snapshot = _hub().snapshot_download
        options: dict[str, Any] = {"revision": revision, "local_files_only": local_files_only, **download}
        folder = Path(snapshot(str(name), allow_patterns=list(FILES), **options))
    return store.load(folder, cls)


def push_to_hub(model: nn.Module, repo_id: str, *, private: bool | None, commit_message: str, **options: Any) -> str:
    """Upload a model and its card to a repository of the Hub, created if missing; returns the address of the commit."""
    api = _hub().HfApi(token=options.pop("token", None))
    created = api.create_repo(repo_id, private=private, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder)
        commit = api.upload_folder(
            repo_id=created.repo_id, folder_path=folder, commit_message=commit_message, allow_patterns=FILES, **options
        )
    return str(commit.commit_url)


def card(model: nn.Module) -> str:
    """The model card: fields for the Hub in front, then what the model takes and gives, and how to load it."""
    name, metadata = type(model).__name__, store.metadata_of(model)
    arguments = getattr(model, "arguments", {})
    task = next((text for key, text in TASKS.items() if key in arguments), None)
    task = RECONSTRUCTION if isinstance(model, OccupancyModel) else task or "point clouds"
    fields = {
        "library_name": "vector-neurons",
        "license": "mit",
        "tags": ["point-cloud", "3d", "rotation-equivariant", "vector-neurons", "pytorch"],
    }
    rows = {
        "task": task,
        "neurons": arguments.get("neurons"),
        "parameters": f"{sum(p.numel() for p in model.parameters()):,}",
        "points per cloud in training": metadata.points,
        "normalization of clouds": metadata.normalization,
        "axis that pointed up in training": metadata.up,
        "threshold of occupancy": metadata.threshold,
        "outputs": ", ".join(metadata.classes) if metadata.classes else None,
        "categories": ", ".join(metadata.categories) if metadata.categories else None,
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items() if value is not None)
    header = "\n".join(f"{key}: {json.dumps(value)}" for key, value in fields.items())  # JSON is YAML
    return f"""---
{header}
---

# {name}

A network for {task}, of the library `vector-neurons`, an implementation of
[Vector Neurons]({PAPER}) (Deng et al., ICCV 2021).

| | |
|---|---|
{table}

```python
import vector_neurons as vn

model = vn.models.Model.from_pretrained("USER/NAME")  # or the folder of this file
```

`config.json` has the arguments of the network and the meaning of its outputs.
"""


def _is_repository(name: str) -> bool:
    return name.count("/") == 1 and all(part and not part.startswith(".") for part in name.split("/"))


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError("the Hub needs huggingface_hub: pip install 'vector-neurons[hub]'") from error
    return huggingface_hub
