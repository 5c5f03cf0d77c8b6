"""What seals secrets in the control database, as seen from there: lockstep.sealing has it, where it is installed."""

from pathlib import Path
from typing import NoReturn, Protocol

from lockstep.errors import SealBroken


class Keys(Protocol):
    """Seals and opens; SealBroken where a key is missing."""

    @property
    def file(self) -> Path | None:
        """Where the keys are."""

    def seal(self, content: bytes, about: str) -> str:
        """Return the content sealed with the newest key."""

    def unseal(self, sealed: str, about: str) -> bytes:
        """Return what was sealed."""

    def is_newest(self, sealed: str) -> bool:
        """Return whether a seal is of the key that would be taken today."""


class NoKeys:
    """For processes that neither make receivers of alerts nor send to them."""

    file = None

    def seal(self, content: bytes, about: str) -> NoReturn:
        """Refuse."""
        raise SealBroken(f"{about} cannot be sealed: this process was given no key file")

    def unseal(self, sealed: str, about: str) -> NoReturn:
        """Refuse."""
        raise SealBroken("this process was given no key file")

    def is_newest(self, sealed: str) -> bool:
        """Return that none is."""
        return False
