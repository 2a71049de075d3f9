"""Numbers that the layers, the C++ kernels and the Triton kernels share."""

RELATIVE_FLOOR = 1e-3
"""Lengths below this fraction of the others' typical length are bounded from below, so that divisions stay stable."""
