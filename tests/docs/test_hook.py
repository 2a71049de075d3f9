import jaxtyping
import pytest
import torch

import vector_neurons as vn


def test_the_hook_checks_shapes(request):
    """Guards the guard: were the package imported before the hook, no shape would be checked."""
    if not request.config.getoption("--jaxtyping-packages"):
        pytest.skip("run without the hook")
    with pytest.raises(jaxtyping.TypeCheckError):
        vn.geometry.neighbors.gather(torch.zeros(2, 5, 3), torch.zeros(2, 5))
