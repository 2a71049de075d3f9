"""The authors' checkpoints (repositories vnn, vnn-pc, vnn-neural-implicits) as models of this library, same outputs.

Theirs and ours differ in the names of parameters and in the order of invariants: there channel by channel, here frame
vector by frame vector. Their PointNets end in a log-softmax; ours end in logits, so that `log_softmax(ours) = theirs`.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..typing import Neurons, Pool
from . import pth
from .base import Model
from .occupancy import OccupancyNetwork
from .options import LayerOptions
from .pth import CheckpointError
from .reference_names import BLOCK, NETWORKS, OCCUPANCY, Names, ReferenceNetwork

LEGACY_EPS = 1e-6  # the authors' code adds it to lengths; the paper has none
REAL = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
SHOWN = 3  # names of each kind in a message

# Networks that are known and not here: a parameter that tells them, and what to do.
ELSEWHERE = {
    "decoder.z_in.map_to_feat.weight": "NDF's VNNOccNet, whose layers have other slopes than the authors' occupancy "
    "networks: keep its code, with its layers from vector_neurons.compat.vnn",
}


def load(source: str | Path | Mapping[str, Any], *, k: int | None = None, legacy: bool = True) -> Model:
    """Turn one of the authors' checkpoints, a file or a state dict, into our model, in evaluation mode.

    Args:
        source: the `.pth` file, or a state dict.
        k: number of neighbors it was trained with, which checkpoints do not record; by default the paper's.
        legacy: reproduce the authors' outputs; False leaves out their absolute eps, as in the paper.
    """
    state = _unwrapped(pth.read(Path(source)) if isinstance(source, str | Path) else source)
    for mark, what in ELSEWHERE.items():
        if mark in state:
            raise CheckpointError(f"this is {what}")
    if "encoder.fc_c.weight" in state or "encoder.fc_c.map_to_feat.weight" in state:
        return _occupancy(state, k=k, legacy=legacy)
    title, network = _recognize(state)
    last = state[network.last]
    outputs = last.shape[0] if last.ndim and last.numel() else 1  # an empty tensor could have any shape
    arguments: dict[str, Any] = {} if k is None else {"k": k}
    if network.neurons == "vector":
        pool: Pool = "max" if network.pool in state else "mean"
        # Their VN-In projects [V, mean], where the paper has V.
        arguments["layers"] = LayerOptions(pool=pool, project_mean=True, eps=LEGACY_EPS if legacy else None)
    else:
        arguments["neurons"] = "scalar"
    renamed = {ours: tensor for ours, tensor in ((_rename(name, network), t) for name, t in state.items()) if ours}

    def change(weights: dict[str, Tensor]) -> None:
        if network.first:
            weights[network.first] = _reorder(weights[network.first], network.groups)
        if network.identity:
            bias = weights[network.identity]
            weights[network.identity] = bias - torch.eye(3, dtype=bias.dtype).flatten()

    return _filled(title, lambda: network.model(outputs, **arguments), renamed, network.names, last.dtype, change)


def _occupancy(state: Mapping[str, Tensor], *, k: int | None, legacy: bool) -> Model:
    neurons: Neurons = "vector" if "encoder.fc_c.map_to_feat.weight" in state else "scalar"
    vector = neurons == "vector"
    renamed = {_rename_by(OCCUPANCY[neurons], name): tensor for name, tensor in state.items()}
    for ours in ("to_code.weight", "decoder.logits.weight"):  # they tell the sizes of all others
        if ours not in renamed or renamed[ours].ndim != 2 or not renamed[ours].numel():
            name = _undo(OCCUPANCY[neurons], ours)
            raise CheckpointError(
                f"this looks like an occupancy network, but its parameters do not fit: there is no matrix {name}"
            )
    to_code, logits = renamed["to_code.weight"], renamed["decoder.logits.weight"]
    code, hidden = to_code.shape

    def build() -> Model:
        return OccupancyNetwork(
            neurons=neurons,
            decoder="plain" if "decoder.queries.place.weight" in renamed else "invariant",
            code=3 * code if vector else code,
            hidden=3 * hidden if vector else hidden,
            decoder_hidden=logits.shape[1],
            invariants="product",
            eps=LEGACY_EPS if legacy and vector else None,
            k=20 if k is None else k,
        )

    def change(weights: dict[str, Tensor]) -> None:
        for name in ("linear_in", "shortcut") if not vector else ():
            for block in range(1, 5):  # they concatenate the pool behind a point's own features, we before them
                weight = f"encoder.blocks.{block}.{name}.weight"
                weights[weight] = torch.cat(weights[weight].tensor_split(2, dim=1)[::-1], dim=1)

    return _filled("an occupancy network", build, renamed, OCCUPANCY[neurons], logits.dtype, change)


def _filled(
    title: str,
    build: Callable[[], Model],
    weights: dict[str, Tensor],
    names: Names,
    dtype: torch.dtype,
    change: Callable[[dict[str, Tensor]], None],
) -> Model:
    """The model with the weights, built only when it is known that all of them fit."""
    # Their layers at points are convolutions of size 1, their matrices have further axes.
    weights = {name: t.flatten(1) if t.ndim > 2 and t.shape[2:].numel() == 1 else t for name, t in weights.items()}
    try:
        with torch.device("meta"):
            expected = build().state_dict()
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"this looks like {title}, but there is none of its sizes: {error}") from error
    if misfit := _misfit(expected, weights, names):
        raise CheckpointError(f"this looks like {title}, but its parameters do not fit: {misfit}")
    change(weights)
    model = build().to(dtype)
    model.load_state_dict(weights)
    return model.eval()


def _misfit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], names: Names) -> str:
    """Which parameters are not as expected, in the authors' names; nothing if all are."""

    def shown(kind: str, which: Iterable[str]) -> list[str]:
        all_of = list(which)
        more = ["..."] if len(all_of) > SHOWN else []
        return [f"{len(all_of)} {kind} ({', '.join([*all_of[:SHOWN], *more])})"] if all_of else []

    def theirs(name: str) -> str:
        line = _undo(names, name)
        return line if line.isprintable() and len(line) <= 100 else repr(line[:100])

    wrong = (
        f"{theirs(name)} is {tuple(found[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    )
    return "; ".join(
        [
            *shown("missing", (theirs(name) for name in expected if name not in found)),
            *shown("unexpected", (theirs(name) for name in found if name not in expected)),
            *shown("of another shape", wrong),
        ]
    )


def _unwrapped(source: Any) -> dict[str, Tensor]:
    for wrapper in ("model_state_dict", "state_dict", "model"):
        if isinstance(source, Mapping) and isinstance(source.get(wrapper), Mapping):
            source = source[wrapper]
    if not isinstance(source, Mapping) or not all(isinstance(value, Tensor) for value in source.values()):
        raise CheckpointError(
            "a checkpoint must be a state dict, or hold one under 'model_state_dict', 'state_dict' or 'model'"
        )
    state = {str(name).removeprefix("module."): value for name, value in source.items()}
    for name, tensor in state.items():
        usual = {torch.int64} if name.endswith("num_batches_tracked") else REAL
        if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in usual:
            kind = f"{tensor.layout}, {tensor.dtype}, {tensor.device}".replace("torch.", "")
            raise CheckpointError(f"{name[:100]!r} must be a dense tensor of floating-point numbers, got {kind}")
        if not tensor.isfinite().all():
            raise CheckpointError(f"{name[:100]!r} holds NaN or infinite numbers: its training had diverged")
    return state


def _recognize(state: Mapping[str, Tensor]) -> tuple[str, ReferenceNetwork]:
    for title, network in NETWORKS.items():
        if all(mark in state for mark in (*network.marks, network.last)):
            return title, network
    titles = "; ".join([*NETWORKS, "occupancy networks"])
    raise CheckpointError(f"the checkpoint is none of the authors' networks ({titles})")


def _rename(name: str, network: ReferenceNetwork) -> str:
    return _rename_by(network.names, name)


def _rename_by(names: Names, name: str) -> str:
    for theirs, ours in names:
        if name.startswith(theirs):
            return ours and ours + _swapped(BLOCK, name.removeprefix(theirs))
    return name


def _undo(names: Names, name: str) -> str:
    """The authors' name of our parameter."""
    for theirs, ours in names:
        if ours and name.startswith(ours):
            return theirs + _swapped(tuple((b, a) for a, b in BLOCK), name.removeprefix(ours))
    return name


def _swapped(names: Names, name: str) -> str:
    for old, new in names:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _reorder(weight: Tensor, groups: tuple[tuple[int, int], ...]) -> Tensor:
    """Columns from channel by channel to frame vector by frame vector, in each group of invariants."""
    columns = torch.split(weight, [count for _, count in groups], dim=1)
    return torch.cat(
        [x.view(-1, c, 3).mT.flatten(1) if c else x for x, (c, _) in zip(columns, groups, strict=True)], dim=1
    )
