"""Telemetry in ClickHouse: embedded in this process, on a server, or on a cluster, behind one Store."""
