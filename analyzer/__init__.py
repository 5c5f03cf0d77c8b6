"""Turns closed windows of telemetry into verdicts with reasons; everything but service and reading is pure."""
