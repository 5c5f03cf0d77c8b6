"""Alerts: finds what a person must know, and sees to it that receivers get it."""
