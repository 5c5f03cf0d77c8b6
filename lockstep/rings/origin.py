"""Whose rows these are: what the one who reads a ring knows and the process does not."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """Host and job as the reader vouches for them, and what it knows of the rank's GPU and NIC."""

    host: str
    job: str
    attempt: int = 0
    pid: int | None = None  # on the host, where that is known; a process knows only the number in its container
    gpu: int = 0
    nic: str | None = None  # where the host has only one
    transport: str | None = None

    def columns(self) -> dict[str, object]:
        """Return the columns with which every row of a job begins."""
        return {"host": self.host, "job": self.job, "attempt": self.attempt}
