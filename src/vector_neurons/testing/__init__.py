"""Test equivariance: measure it (`equivariance_error`), assert it (`assert_equivariant`), inherit a test suite
(`EquivarianceTests`), or find the layer that breaks it (`report`)."""

from .battery import EquivarianceTests
from .measure import (
    TOLERANCE,
    Group,
    Kind,
    assert_equivariant,
    assert_invariant,
    check_axis,
    equivariance_error,
    group_of,
    relative_error,
)
from .report import LayerResult, Layout, Report, report

__all__ = [
    "TOLERANCE",
    "EquivarianceTests",
    "Group",
    "Kind",
    "LayerResult",
    "Layout",
    "Report",
    "assert_equivariant",
    "assert_invariant",
    "check_axis",
    "equivariance_error",
    "group_of",
    "relative_error",
    "report",
]
