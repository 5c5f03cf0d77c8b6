"""Ports of switches as exporters tell of them."""
