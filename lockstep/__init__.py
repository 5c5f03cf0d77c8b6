"""The vocabulary that every part of Lockstep shares; imports nothing of ours from outside this package."""

__version__ = "0.1.0"
