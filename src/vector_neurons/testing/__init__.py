"""Is it equivariant? A number (`equivariance_error`), a judgement (`assert_equivariant`), a battery for your own tests
(`EquivarianceTests`) and a table that names the layer at fault (`report`)."""

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
from .report import Layout, Report, Row, report

__all__ = [
    "TOLERANCE",
    "EquivarianceTests",
    "Group",
    "Kind",
    "Layout",
    "Report",
    "Row",
    "assert_equivariant",
    "assert_invariant",
    "check_axis",
    "equivariance_error",
    "group_of",
    "relative_error",
    "report",
]
