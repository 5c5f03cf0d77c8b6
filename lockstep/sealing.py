"""Seals what nobody may read who copies a database: AES-256-GCM, under one key or the newest in a key file."""

import base64
import binascii
import hashlib
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lockstep.directories import sync_directory
from lockstep.errors import SealBroken

_log = structlog.get_logger("sealing")

KEY_BYTES = 32  # AES-256
_NONCE_BYTES = 12  # as AES-GCM wants; random ones serve for 2**32 seals of one key (NIST SP 800-38D, 8.3)
_NAME_LENGTH = 8  # characters of a key's digest, which tell the few keys of a file apart


def seal(key: bytes, content: bytes, about: str = "") -> str:
    """Return the content as text that only this key opens, and only for the same `about`."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, content, about.encode())).decode()


def unseal(key: bytes, sealed: str, about: str = "") -> bytes:
    """Return what was sealed, or raise SealBroken for another key, another `about`, or text that was changed."""
    try:
        raw = base64.b64decode(sealed, validate=True)
        return AESGCM(key).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], about.encode())
    except (InvalidTag, binascii.Error, ValueError) as error:
        raise SealBroken("it was sealed with another key, or changed since") from error


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys in a file, base64 of 32 bytes a line: the first one seals, and all of them open.

    The file is read at each use, so that a key which is put into it counts at once. What is sealed carries the name
    of its key, which is no secret.
    """

    file: Path
    is_made: bool = False  # at its first use, where there is none

    def seal(self, content: bytes, about: str) -> str:
        """Return the content sealed with the newest key, which is made where that is allowed and there is none."""
        if self.is_made and not self.file.exists():
            _make_file(self.file)
        name, key = next(iter(self._read().items()))
        return f"{name}.{seal(key, content, about)}"

    def unseal(self, sealed: str, about: str) -> bytes:
        """Return what was sealed, or raise SealBroken with the reason: which key is missing, and where."""
        name, _, text = sealed.partition(".")
        key = self._read().get(name)
        if key is None:
            raise SealBroken(f"key {name} is not in {self.file}")
        return unseal(key, text, about)

    def is_newest(self, sealed: str) -> bool:
        """Return whether a seal is of the key that would be taken today."""
        try:
            return next(iter(self._read())) == sealed.partition(".")[0]
        except SealBroken:
            return False

    def _read(self) -> dict[str, bytes]:
        """Return the keys by name, the newest first; at least one."""
        try:
            lines = self.file.read_text(encoding="ascii").split()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not plain text"
            raise SealBroken(f"the key file {self.file} cannot be read: {reason}") from error
        keys = [_parse(line, f"line {number} of {self.file}") for number, line in enumerate(lines, 1)]
        if not keys:
            raise SealBroken(f"there is no key in {self.file}")
        return {hashlib.sha256(key).hexdigest()[:_NAME_LENGTH]: key for key in keys}


def _parse(line: str, where: str) -> bytes:
    try:
        key = base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise SealBroken(f"{where} is no key: a key is base64 of {KEY_BYTES} bytes")
    return key


def _make_file(file: Path) -> None:
    """Make a file with one key, whole and on disk, or leave the one that another process made first."""
    try:
        descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")  # for nobody else: 0600
        try:
            with os.fdopen(descriptor, "wb") as out:
                out.write(base64.b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n")
                out.flush()
                os.fsync(out.fileno())
            os.link(draft, file)
        finally:
            os.unlink(draft)
        sync_directory(file.parent)
    except FileExistsError:
        return
    except OSError as error:
        raise SealBroken(f"the key file {file} cannot be made: {error.strerror}") from error
    _log.warning("key file made: back it up, and apart from the control database", file=str(file))
