"""Directories that one process keeps to itself, and whose names outlive a power cut."""

import fcntl
import os
from pathlib import Path


def lock_directory(directory: Path) -> int:
    """Lock the directory itself and return its descriptor; BlockingIOError when another process holds it.

    No lock file is left behind, and the kernel lets go when we die.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


def sync_directory(directory: Path) -> None:
    """Make sure that files made, renamed and removed in it so far stay so."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
