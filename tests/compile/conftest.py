import pytest


@pytest.fixture(autouse=True)
def _best_kernels():
    """Compiled is what users have, also where `make test` runs the other tests with the plain bodies."""
    from vector_neurons import kernels  # not above: the process that hands out the tests does without

    with kernels.using("auto"):
        yield
