"""A cluster that exists only in arithmetic: stories of what breaks, and the telemetry real hosts would send."""
