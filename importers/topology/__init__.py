"""Topologies as other tools describe them."""
