"""Answers of receivers that we do not know (webhooks, commands), parsed once into what a controller returns."""

import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lockstep.errors import ControllerDown
from planner.controllers.protocol import JobView, Node, Report

_NODES = TypeAdapter(tuple[Node, ...])
_JOB = TypeAdapter(JobView)
_REPORT = TypeAdapter(Report)


def parse_nodes(text: str, where: str) -> tuple[Node, ...]:
    """Return nodes from {"nodes": [{"name", "is_usable", "mark"?, "reason"?}]}."""
    try:
        return _NODES.validate_python(_parse_object(text).get("nodes"))
    except (ValueError, ValidationError) as error:
        raise ControllerDown(f"the nodes that {where} told cannot be understood: {_first_line(error)}") from None


def parse_job(text: str, where: str) -> JobView | None:
    """Return a job from {"id", "state", "nodes"?, "restarts"?, "mark"?}; None from an empty object."""
    try:
        told = _parse_object(text)
        return _JOB.validate_python(told) if told else None
    except (ValueError, ValidationError) as error:
        raise ControllerDown(f"the job that {where} told cannot be understood: {_first_line(error)}") from None


def parse_report(text: str, where: str) -> Report:
    """Return a report from {"outcome", "what", "job"?}; `failed` when it makes no sense."""
    try:
        return _REPORT.validate_python(_parse_object(text))
    except (ValueError, ValidationError) as error:
        return Report("failed", f"the answer of {where} cannot be understood: {_first_line(error)}")


def _parse_object(text: str) -> dict[str, Any]:
    told = json.loads(text)
    if not isinstance(told, dict):
        raise ValueError(f"not an object: {text[:200]!r}")
    return told


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
