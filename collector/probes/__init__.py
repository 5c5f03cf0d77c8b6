"""Probe packets: which, when, and what their answers mean."""
