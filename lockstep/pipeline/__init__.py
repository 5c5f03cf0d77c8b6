"""Schedules that keep a pipeline going while some of its workers are gone (ReCycle)."""
