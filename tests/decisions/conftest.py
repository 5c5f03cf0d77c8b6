"""The control database and lease that tests of the planner have, and the command line."""

from tests.cli.conftest import lockstep, state
from tests.planner.conftest import control, empty_control, lease

__all__ = ["control", "empty_control", "lease", "lockstep", "state"]
