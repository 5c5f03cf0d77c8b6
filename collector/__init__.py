"""Reads everything on a host and ships it; never judges what it reads."""
