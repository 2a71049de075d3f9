"""The Triton operators without a GPU: run in Triton's interpreter against eager operations and C++, and compiled.

Triton decides at its import whether to interpret, so both happen in processes of their own, which run this file.
"""

import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import pytest
import torch
from torch.nn import functional as F

import vector_neurons as vn
from vector_neurons import kernels
from vector_neurons.geometry import neighbors
from vector_neurons.nn import functional as VF

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.xdist_group("triton"),  # one interpreter runs all cases
]

CLOUDS, POINTS = 2, 7


class Case(NamedTuple):
    """The arguments of an operator: rows on the edges of a graph, or points."""

    graph: bool = True
    second: bool = True
    direction: str = "each"
    eps: float = -1.0
    pool: bool = True
    k: int = 3
    channels: int = 21
    weight: bool = False  # rows are projected by a weight
    batch: int = 0


CASES = {
    "edges": Case(),
    "edges-unpooled": Case(pool=False),
    "edges-shared": Case(direction="shared"),
    "edges-none": Case(direction="none"),
    "edges-eps": Case(eps=1e-2),
    "edges-batch": Case(batch=CLOUDS * POINTS * 3),
    "edges-shared-eps-unpooled": Case(direction="shared", eps=1e-2, pool=False),
    "edges-without-second": Case(second=False),
    "edges-k-1": Case(k=1),
    "edges-one-channel": Case(channels=1),
    "points": Case(graph=False, pool=False),
    "points-shared": Case(graph=False, pool=False, direction="shared"),
    "points-pooled-eps": Case(graph=False, eps=1e-2, k=POINTS),
    "points-alone": Case(graph=False, pool=False, second=False),
    "points-wide": Case(graph=False, pool=False, channels=300),
    "points-weight": Case(graph=False, pool=False, weight=True),
    "points-weight-batch": Case(graph=False, pool=False, weight=True, batch=CLOUDS * POINTS),
    "points-weight-alone": Case(graph=False, pool=False, weight=True, second=False),
    "points-weight-shared": Case(graph=False, pool=False, weight=True, direction="shared"),
    "points-none": Case(graph=False, pool=False, second=False, direction="none"),
}
# All in float64, and those in float32 that read, sum and write in ways of their own.
SINGLE = ["edges", "edges-batch", "edges-shared-eps-unpooled", "edges-without-second"]
SINGLE += ["points", "points-pooled-eps", "points-wide", "points-weight-batch"]
RUNS = [(name, torch.float64) for name in CASES] + [(name, torch.float32) for name in SINGLE]
COMPILED = {"edges": torch.float32, "edges-shared": torch.float64, "edges-k-1": torch.float32, "points": torch.float32}
LAYERS = {
    "edge-conv": lambda: vn.EdgeConv(6, 21, k=4),
    "edge-conv-max": lambda: vn.EdgeConv(6, 21, k=4, pool="max"),
    "block": lambda: vn.Block(6, 21),
    "block-eps-shared": lambda: vn.Block(6, 21, eps=1e-6, shared_direction=True),
    "batch-norm": lambda: vn.BatchNorm(6),
    "invariant": lambda: vn.Invariant(6),
}


def given(case, dtype):
    """Operands with a zero row, a zero direction, and directions too short beside the others of their row."""
    make = torch.Generator().manual_seed(0)
    width, along = case.channels + -case.channels % 8, {"each": case.channels, "shared": 1, "none": 0}[case.direction]

    def rows(*shape):
        features, directions = (torch.randn(*shape, n, dtype=dtype, generator=make) for n in (case.channels, along))
        if along > 1:
            directions[..., 0] *= 1e-5
        both = [F.pad(x, (0, -x.shape[-1] % 8)) for x in (features, directions)]
        return torch.cat(both, dim=-1)

    a = rows(CLOUDS, POINTS, 3)
    b = rows(CLOUDS, POINTS if case.graph else 1, 3) if case.second else None
    weight = rows(2) if case.weight else None
    a = torch.randn(CLOUDS, POINTS, 3, 2, dtype=dtype, generator=make) if case.weight else a
    a[0, 0] = 0
    if b is not None:
        b[0, 0] = 0
    index = torch.randint(POINTS, (CLOUDS, POINTS, case.k), generator=make) if case.graph else None
    if index is not None:
        index[0, 0, 0] = 0  # the zero row
    scale, shift, center, inverse = torch.rand(4, case.channels, dtype=dtype, generator=make) + 0.5
    norm = torch.stack([scale, shift, center, torch.full_like(scale, 0.7), inverse])
    return a, b, weight, index, F.pad(norm, (0, width - case.channels)), width if along > 1 else along


def run(operators, case, dtype):
    """The results of the four operators."""
    a, b, weight, index, norm, directions = given(case, dtype)
    width, pool = norm.shape[1], case.k if case.pool else 1
    arguments = a, b, weight, None, index, norm, directions, case.channels, pool, 0.2, case.eps, case.batch
    out = operators.norm_leaky_relu(*arguments)
    sums = operators.length_sums(a, b, weight, index, width, max(case.eps, 0.0))
    found = {"norm_leaky_relu": out, "length_sums": sums}
    back = operators.norm_leaky_relu_backward(gradient(out), *arguments, True)
    found |= zip(("a", "b", "weight", "norm"), back, strict=True)
    if weight is None:
        back = operators.length_sums_backward(gradient(sums), a, b, index, width, max(case.eps, 0.0))
        found |= zip(("length_sums a", "length_sums b"), back, strict=True)
    return found


def mixed(operators, of_a):
    """Results for a weight in float64 and rows in float32, or the same rows in float64."""
    case = CASES["points-weight"]
    a, b, weight, index, norm, directions = given(case, torch.float64)
    a = a.float().to(of_a)
    out = operators.norm_leaky_relu(a, b, weight, None, index, norm, directions, case.channels, 1, 0.2, case.eps, 0)
    return {"norm_leaky_relu": out, "length_sums": operators.length_sums(a, b, weight, index, norm.shape[1], 0.0)}


def gradient(y):
    return torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(y.dtype)


def eager(case, dtype):
    """The same by autograd, in float64, rows and all."""
    a, b, weight, index, norm, directions = given(case, dtype)
    tensors = [None if x is None else x.double().requires_grad_() for x in (a, b, weight, norm)]
    a, b, weight, norm = tensors
    projected = a if weight is None else a @ weight
    if index is None:
        rows = (projected if b is None else projected + b).flatten(0, 1)
    else:
        rows = neighbors.gather(projected, index)
        rows = (rows if b is None else rows + b.unsqueeze(2)).flatten(0, 2)
    width = norm.shape[1]
    q, k = rows[..., :width], rows[..., width : width + directions]
    n = VF.norm(q) + max(case.eps, 0.0)
    scale, shift, center, floor, inverse = norm
    if case.batch:
        # A function of the lengths that has the center's value, and their mean's gradient; likewise of the scale.
        mean = n.sum(0) / case.batch
        spread = (n - center.detach()).square().sum(0) / case.batch
        moving = 1 - 0.5 * inverse.detach() * (spread - spread.detach())
        scale, center = scale * moving, center.detach() + mean - mean.detach()
    y = (q * ((scale * (n - center) + shift) / n.maximum(floor.detach())).unsqueeze(1))[..., : case.channels]
    if directions:
        k = k[..., : case.channels]
        squares = k.square().sum(1, keepdim=True)
        least = (1e-6 * squares.mean(-1, keepdim=True)).clamp_min(torch.finfo(dtype).tiny ** 0.5).detach()
        squares = squares.where(squares >= least, least) if case.eps < 0 else squares + case.eps
        y = y - 0.8 * (y * k).sum(1, keepdim=True).clamp_max(0) / squares * k
    out = y.unflatten(0, (-1, case.k if case.pool else 1)).mean(1)
    sums = torch.stack([n.sum(0), n.square().sum(0)])
    weights = gradient(out.to(dtype)).double()
    known = [x for x in tensors if x is not None]
    back = iter(torch.autograd.grad((out * weights).sum(), known, retain_graph=True))
    found = {"norm_leaky_relu": out, "length_sums": sums}
    found |= {
        name: torch.zeros(0) if x is None else next(back)
        for name, x in zip(("a", "b", "weight", "norm"), tensors, strict=True)
    }
    if weight is None:
        of_sums = iter(torch.autograd.grad((sums * gradient(sums)).sum(), [x for x in (a, b) if x is not None]))
        found |= {"length_sums a": next(of_sums), "length_sums b": next(of_sums, torch.zeros(0))}
    return found


def run_layer(name):
    """Output and gradients of a layer in training."""
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    x = torch.randn(CLOUDS, POINTS, 3, 6, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    y = y[0] if isinstance(y, tuple) else y
    (y * gradient(y)).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters() if p.grad is not None), *layer.buffers()]


def interpret(path):
    """In a process of its own: run the operators, and layers on them."""
    from vector_neurons.kernels.cuda import ops

    ops.ROWS_PER_UNIT = 3  # several programs, the last of them with rows that do not exist, also on so few points
    found = {(name, dtype): run(ops, CASES[name], dtype) for name, dtype in RUNS}
    found["mixed"] = {dtype: mixed(ops, dtype) for dtype in (torch.float32, torch.float64)}
    ops.register("cpu")
    torch.library.impl(
        "vector_neurons::knn_canonical", "cpu", lambda x, _, k, own, __: neighbors._search(x, k, own, None)
    )
    kernels._State.native = "loaded"  # the operators are now implemented, though not in C++
    launch, launched = ops._Launch.__call__, []
    ops._Launch.__call__ = lambda *args, **kwargs: launched.append(args[1]) or launch(*args, **kwargs)
    for name in LAYERS:
        launched.clear()
        result = run_layer(name)
        found[name] = result, len(launched)
    torch.save(found, path)


def compile(path):
    """In a process of its own: compile what a launch would, for a GPU that is not there."""
    import triton
    from triton.backends.compiler import GPUTarget

    from vector_neurons.kernels.cuda import ops

    class Driver:
        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

        def get_current_target(self):
            return GPUTarget("cuda", 80, 32)

    class Compiled(NamedTuple):
        kernel: object

        def __getitem__(self, grid):
            return lambda *args, **kwargs: sizes.append(
                len(self.kernel.warmup(*args, grid=grid, **kwargs).asm["cubin"])  # type: ignore[attr-defined]
            )

    sizes = []
    triton.runtime.driver.set_active(Driver())
    for name in ("length_sums", "length_sums_backward", "norm_leaky_relu", "norm_leaky_relu_backward"):
        setattr(ops.programs, name, Compiled(getattr(ops.programs, name)))
    for name, dtype in COMPILED.items():
        run(ops, CASES[name], dtype)
    torch.save(sizes, path)


def elsewhere(what, folder, **environment):
    path = folder / f"{what}.pt"
    environment = os.environ | {"TRITON_CACHE_DIR": str(folder), "PYTHONWARNINGS": "error"} | environment
    done = subprocess.run([sys.executable, __file__, what, path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(path)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    return elsewhere("interpret", tmp_path_factory.mktemp("triton"), TRITON_INTERPRET="1")


def assert_near(found, wanted, tolerance):
    assert found.keys() == wanted.keys()
    for name, x in found.items():
        y = wanted[name]
        assert x.shape == y.shape, name
        assert x.isfinite().all(), name
        assert x.numel() == 0 or (x - y).abs().max() <= tolerance * y.abs().max(), name


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(("name", "dtype"), RUNS, ids=str)
def test_operators(interpreted, name, dtype, backend):
    if backend == "native":
        if "native" not in kernels.available():
            pytest.skip("no C++ compiler here")
        wanted = run(torch.ops.vector_neurons, CASES[name], dtype)
        assert all(interpreted[name, dtype][key].dtype == x.dtype for key, x in wanted.items())
    else:
        wanted = eager(CASES[name], dtype)
    assert_near(interpreted[name, dtype], wanted, 1e-5 if dtype == torch.float32 else 1e-13)


def test_rows_of_float32_use_float64_arithmetic_where_their_weight_does(interpreted):
    found, wanted = interpreted["mixed"][torch.float32], interpreted["mixed"][torch.float64]
    assert found["norm_leaky_relu"].dtype == torch.float32
    assert torch.equal(found["norm_leaky_relu"], wanted["norm_leaky_relu"].float())
    assert torch.equal(found["length_sums"], wanted["length_sums"])


@pytest.mark.parametrize("name", LAYERS)
def test_layers(interpreted, name):
    found, launched = interpreted[name]
    with kernels.using("eager"):
        wanted = run_layer(name)
    assert launched >= 4  # of each kernel one
    assert_near(dict(enumerate(found)), dict(enumerate(wanted)), 1e-11)


def test_compiles_for_cuda(tmp_path):
    sizes = elsewhere("compile", tmp_path)
    assert len(sizes) == 4 * len(COMPILED)
    assert min(sizes) > 1000


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_not_used(monkeypatch):
    monkeypatch.setattr(kernels._State, "triton", None)
    with pytest.warns(UserWarning, match="without its Triton kernels"):
        assert not kernels._try_triton()


def test_which_tensors_use_triton(monkeypatch):
    monkeypatch.setattr(kernels, "_try_triton", lambda: True)
    with torch._subclasses.FakeTensorMode():
        cuda = partial(torch.empty, 1, device="cuda")
        assert kernels.applicable(cuda())
        assert kernels.backend_of(cuda()) == "triton"
        assert kernels.applicable(cuda(dtype=torch.float64))
        assert not kernels.applicable(cuda(dtype=torch.float16))
        assert not kernels.applicable(torch.empty(1, device="meta"))
        with kernels.using("eager"):
            assert not kernels.applicable(cuda())
        torch.use_deterministic_algorithms(True)
        try:
            assert not kernels.applicable(cuda())
        finally:
            torch.use_deterministic_algorithms(False)


if __name__ == "__main__":
    {"interpret": interpret, "compile": compile}[sys.argv[1]](sys.argv[2])
