"""A cluster that exists only in arithmetic: scenarios of what breaks, and the telemetry real hosts would send."""
