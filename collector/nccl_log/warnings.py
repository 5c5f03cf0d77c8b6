"""What NCCL's warnings and network names mean: collector/data/nccl_log.toml, and the sentence for a person."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from collector.nccl_log.facts import FailedCompletion, Warned
from lockstep.records import Transport

_FLUSHED = 5  # IBV_WC_WR_FLUSH_ERR: follows from another error on the same queue pair
_PORT = re.compile(r"NET/IB ?: ([\w.-]{1,64}:\d{1,3}) ", re.ASCII)


@dataclass(frozen=True)
class WarningKind:
    """Words in a warning, and what an event says of it."""

    contains: str
    kind: str
    severity: str


@dataclass(frozen=True)
class Trouble:
    """A warning as an event will tell it; `port` is an RDMA port as NCCL names it, where it does."""

    kind: str
    severity: str
    port: str | None
    message: str


@dataclass(frozen=True)
class LogWords:
    """The words of NCCL's log that the package knows."""

    networks: Mapping[str, Transport]
    completions: Mapping[int, str]
    warnings: tuple[WarningKind, ...]

    def describe(self, told: FailedCompletion | Warned) -> Trouble | None:
        """Return the trouble that a warning tells; None where it concerns no connection."""
        if isinstance(told, FailedCompletion):
            return self._describe_completion(told)
        kind = next((kind for kind in self.warnings if kind.contains in told.sentence), None)
        port = _PORT.match(told.sentence)
        return Trouble(kind.kind, kind.severity, port[1] if port else None, told.sentence) if kind else None

    def _describe_completion(self, told: FailedCompletion) -> Trouble:
        severity = "warning" if told.status == _FLUSHED else "error"
        meaning = self.completions.get(told.status)
        message = told.sentence + (f" (status {told.status}: {meaning})" if meaning else "")
        return Trouble("ib_completion_error", severity, told.hca, message)


def load_words() -> LogWords:
    """Return the words that the package carries."""
    tables = tomllib.loads((files("collector") / "data/nccl_log.toml").read_text())
    return LogWords(
        networks=tables["networks"],
        completions={int(status): meaning for status, meaning in tables["completions"].items()},
        warnings=tuple(WarningKind(**each) for each in tables["warnings"]),
    )
