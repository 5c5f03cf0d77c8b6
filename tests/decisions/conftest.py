"""The lease that tests of the planner have, and the command line."""

from tests.cli.conftest import lockstep, state
from tests.planner.conftest import lease

__all__ = ["lease", "lockstep", "state"]
