"""The control database and lease that tests of the planner have."""

from tests.planner.conftest import control, empty_control, lease

__all__ = ["control", "empty_control", "lease"]
