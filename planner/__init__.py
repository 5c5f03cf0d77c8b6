"""Turns incidents into decisions with their cost; pure except for the service."""
