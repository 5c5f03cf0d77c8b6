"""Problems that last are logged once: when they begin, and when they change."""

from typing import Any


class ChangeLog:
    """Logs a problem when it changes, not each time round; an empty problem means that all is well."""

    def __init__(self, log: Any, level: str = "warning") -> None:  # Any: structlog's loggers have no common type
        self._log, self._level = log, level
        self._known: dict[tuple[object, ...], str] = {}

    def note(self, message: str, problem: str, field: str = "problem", /, **about: object) -> None:
        """Log `problem` as this field of the line; `about` says what it concerns."""
        key = (message, *about.values())
        if not problem:
            self._known.pop(key, None)
        elif self._known.get(key) != problem:
            self._known[key] = problem
            getattr(self._log, self._level)(message, **about, **{field: problem})
