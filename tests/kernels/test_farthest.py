"""Native farthest-point samples are those of the eager backend, ties included."""

import pytest
import torch

from vector_neurons import kernels
from vector_neurons.geometry.sampling import farthest_points

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")


def clouds(kind, dtype):
    torch.manual_seed(0)
    if kind == "grid":
        axis = torch.arange(4.0)
        return torch.cartesian_prod(axis, axis, axis)[torch.randperm(64)].expand(2, -1, -1).to(dtype)
    x = torch.randn(2, 64, 3, dtype=dtype)
    if kind == "duplicates":
        x[:, 20:] = x[:, torch.randint(20, (44,))]
    if kind == "one point":
        x = x[:, :1].expand_as(x).contiguous()
    return x * {"huge": 1e30, "tiny": 1e-30}.get(kind, 1.0)


@pytest.mark.parametrize("kind", ["generic", "grid", "duplicates", "one point", "huge", "tiny"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", [None, (64, 40)], ids=["whole", "padded"])
def test_native_samples_are_the_eager_ones(kind, dtype, lengths):
    x, samples = clouds(kind, dtype), []
    mask = None if lengths is None else torch.arange(64) < torch.tensor(lengths).unsqueeze(-1)
    for backend in ("eager", "native"):
        with kernels.using(backend):
            samples.append(farthest_points(x, 40, mask=mask))
    assert torch.equal(*samples)
    assert all(len(set(sample.tolist())) == 40 for sample in samples[1])
    if mask is not None:
        assert mask.gather(1, samples[1]).all()
