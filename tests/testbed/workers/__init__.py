"""Ranks that really send: a job on paper, its processes on hosts, and what they are told while they run."""
