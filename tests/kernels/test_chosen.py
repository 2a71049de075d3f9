"""Which backend is in force: chosen by the environment, the process or a thread; and what may compile the kernels."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from elsewhere import python

import vector_neurons as vn
from vector_neurons import kernels

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")

PREFER_BUILT = """
    import torch, vector_neurons as vn
    from vector_neurons import kernels
    kernels.prefer_built()
    vn.Block(2, 3)(torch.randn(2, 4, 3, 2))
    print(kernels.chosen(), kernels.applicable(torch.zeros(1)), kernels.available())
"""


def test_the_environment_chooses():
    asks = "from vector_neurons import kernels; import torch; print(kernels.applicable(torch.zeros(1)))"
    assert python(asks, VN_KERNELS="eager")[1] == "False\n"
    assert python(asks, VN_KERNELS="native")[1] == "True\n"
    code, _, err = python(asks, VN_KERNELS="fast")
    assert code == 1
    assert "VN_KERNELS is 'fast': choose one of auto, eager, native" in err


def test_native_by_name_fails_where_it_cannot_be_built(tmp_path):
    ask = "from vector_neurons import kernels; kernels.use('native')"
    code, _, err = python(ask, CXX="no-such-compiler", XDG_CACHE_HOME=str(tmp_path))
    assert code == 1
    assert "BuildError: no C++ compiler was found" in err


def test_unknown_backends_are_refused(unchecked):
    with pytest.raises(ValueError, match="unknown kernels 'quick': choose one of auto, eager, native"):
        kernels.use("quick")


def test_a_choice_for_a_block_is_that_of_its_thread():
    x = torch.zeros(1)
    with ThreadPoolExecutor(1) as other:
        with kernels.using("eager"):
            assert not kernels.applicable(x)
            assert kernels.backend_of(x) == "eager"
            assert other.submit(kernels.applicable, x).result()
            with kernels.using("native"):
                assert kernels.applicable(x)
                assert kernels.backend_of(x) == "native"
            assert not kernels.applicable(x)
        assert kernels.applicable(x)


def test_a_choice_for_the_process_is_that_of_all_threads(monkeypatch):
    monkeypatch.setattr(kernels._State, "default", kernels._State.default)  # and back again
    kernels.use("eager")
    with ThreadPoolExecutor(1) as other, kernels.using("native"):
        assert other.submit(kernels.chosen).result() == "eager"
        assert kernels.chosen() == "native"


def test_a_block_that_fails_leaves_no_choice_behind(unchecked):
    before = kernels.chosen()
    with pytest.raises(ZeroDivisionError), kernels.using("eager"):
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="unknown kernels"), kernels.using("quick"):
        pass
    assert kernels.chosen() == before


@pytest.mark.parametrize("outside", ["eager", "native"])
def test_the_backward_pass_is_that_of_the_forward_pass_wherever_it_runs(outside):
    """Nothing asks again in the backward pass, which may run in another thread and after the block."""
    block, x = vn.Block(2, 3).double(), torch.randn(2, 4, 3, 2, dtype=torch.float64, requires_grad=True)
    gradients = []
    for backend in ("eager", "native"):
        with kernels.using(backend):
            y = block(x).square().sum()
        with kernels.using(outside), ThreadPoolExecutor(1) as other:
            gradients.append(other.submit(torch.autograd.grad, y, x).result()[0])
    torch.testing.assert_close(*gradients)


def test_short_work_does_not_wait_for_the_compiler(tmp_path):
    code, out, err = python(PREFER_BUILT, CXX="false", XDG_CACHE_HOME=str(tmp_path), VN_KERNELS="auto")
    assert (code, out, err) == (0, "built False ('eager',)\n", "")
    assert not list(tmp_path.iterdir())


def test_short_work_uses_what_is_built():
    assert python(PREFER_BUILT, CXX="false", VN_KERNELS="auto") == (0, "built True ('eager', 'native')\n", "")


def test_later_work_may_still_build(tmp_path):
    code, _, err = python(PREFER_BUILT + """
    kernels.use("auto")
    print(kernels.available())""", CXX="false", XDG_CACHE_HOME=str(tmp_path), VN_KERNELS="auto")  # fmt: skip
    assert code == 0
    assert "false could not compile them" in err


def test_short_work_keeps_to_what_the_user_chose(tmp_path):
    assert python(PREFER_BUILT, VN_KERNELS="eager")[1].startswith("eager False")
    code, _, err = python(PREFER_BUILT, CXX="false", XDG_CACHE_HOME=str(tmp_path), VN_KERNELS="native")
    assert code == 1
    assert "false could not compile them" in err  # it was asked to
