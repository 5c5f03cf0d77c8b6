"""Tests of the allocation of nodes to jobs."""
