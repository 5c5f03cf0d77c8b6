"""Planned paths on the testbed: ports are probed, the shim enforces them, and real flows show what that is worth."""
