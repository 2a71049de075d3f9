"""The pool of huge pages: what it keeps, its bound, and its off switch."""

import sys

import pytest
import torch
from elsewhere import python

from vector_neurons import kernels
from vector_neurons.kernels.build import flags

pytestmark = [
    pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here"),
    pytest.mark.skipif(sys.platform != "linux" or "-DVN_SANITIZE" in flags(), reason="there is no pool"),
]

MB = 2**20
KEEP = """
    import torch
    from vector_neurons import kernels
    x, weight = torch.ones(1, 4096, 3, 64), torch.ones(64, 64)  # results of 3 MB, in pages of 2 MB
    if kernels.applicable(x):
        results = [torch.ops.vector_neurons.project(x, weight) for _ in range(4)]
        assert all((y == 64).all() for y in results)
        del results
    print(kernels.backend_of(x), torch.ops.vector_neurons.page_pool_bytes() if kernels.applicable(x) else None)
"""


@pytest.mark.parametrize(("limit", "kept"), [(None, 16), ("512", 16), ("9", 8), ("4", 4), ("3", 0), ("0", 0)])
def test_the_environment_bounds_what_is_kept(limit, kept, monkeypatch):
    monkeypatch.delenv("VN_KERNELS_POOL", raising=False)
    environment = {} if limit is None else {"VN_KERNELS_POOL": limit}
    assert python(KEEP, VN_KERNELS="native", **environment) == (0, f"native {kept * MB}\n", "")


@pytest.mark.parametrize("value", ["lots", "", "-1", "1.5", "512MB", "٥", "536870912", "9" * 5000])
def test_a_bad_value_is_one_line(value):
    code, out, err = python(KEEP, VN_KERNELS="auto", VN_KERNELS_POOL=value)
    assert (code, out) == (0, "eager None\n")
    assert err.count("Warning") == 1
    assert f"native kernels: VN_KERNELS_POOL is {value!r}: give the MB of memory to keep" in err
    code, _, err = python(KEEP, VN_KERNELS="native", VN_KERNELS_POOL=value)
    assert code == 1
    assert err.splitlines()[-1].startswith("vector_neurons.kernels.build.BuildError: VN_KERNELS_POOL is ")


@pytest.fixture
def limit():
    yield torch.ops.vector_neurons.set_page_pool_limit
    torch.ops.vector_neurons.set_page_pool_limit(kernels.POOL_MB * MB)


def test_the_limit_holds_for_results_of_all_sizes(limit):
    limit(20 * MB)
    weight = torch.ones(64, 64)
    for points in (1, 3000, 4096, 9000, 90_000, 5000):
        torch.ops.vector_neurons.project(torch.ones(1, points, 3, 64), weight)
        assert torch.ops.vector_neurons.page_pool_bytes() <= 20 * MB
    assert torch.ops.vector_neurons.page_pool_bytes() > 0


def test_a_lower_limit_frees_memory_at_once_and_tensors_in_use_stay(limit):
    x, weight = torch.ones(1, 4096, 3, 64), torch.ones(64, 64)
    torch.ops.vector_neurons.project(x, weight)
    used = torch.ops.vector_neurons.project(x, weight)
    limit(0)
    assert torch.ops.vector_neurons.page_pool_bytes() == 0
    assert (used == 64).all()
    del used
    assert torch.ops.vector_neurons.page_pool_bytes() == 0


def test_freed_memory_is_used_again(limit):
    limit(0)
    limit(64 * MB)
    x, weight = torch.ones(1, 4096, 3, 64), torch.ones(64, 64)
    address = torch.ops.vector_neurons.project(x, weight).data_ptr()
    assert torch.ops.vector_neurons.project(x, weight).data_ptr() == address


def test_a_negative_limit_is_refused(limit):
    with pytest.raises(RuntimeError, match="at least 0 bytes"):
        limit(-1)
