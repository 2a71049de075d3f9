"""Doctests read as users write them: with `torch` and `vn` imported."""

import pytest


@pytest.fixture(autouse=True)
def _doctest_names(request):
    if "doctest_namespace" in request.fixturenames or isinstance(request.node, pytest.DoctestItem):
        import torch

        import vector_neurons as vn

        request.getfixturevalue("doctest_namespace").update(torch=torch, vn=vn)
