"""What controllers are asked for, checked before anything is done: names, marks, orders, command templates."""

import re
import string
from collections.abc import Sequence

from lockstep.errors import BadInput
from planner.controllers.protocol import Restart

RESUME_VARIABLE = "LOCKSTEP_RESUME_FROM"
_MARK = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,252}", re.ASCII)  # as long as a host's name may be
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def check_mark(mark: str) -> str:
    """Return a mark that fits into reasons, comments and file names; BadInput for any other."""
    if not _MARK.fullmatch(mark):
        raise BadInput(f"{mark!r} is no mark: up to 100 letters, digits, dots, dashes and underscores")
    return mark


def check_name(name: str, what: str) -> str:
    """Return a name of one node or job; BadInput for any other, such as a list of hosts."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is no name of a {what}: letters, digits, dots, dashes and underscores")
    return name


def check_order(order: Restart) -> None:
    """Raise BadInput for an order that no command line can carry."""
    check_mark(order.mark)
    check_name(order.job, "job")
    for node in order.exclude:
        check_name(node, "node")
    if order.nnodes is not None and order.nnodes < 1:
        raise BadInput(f"job {order.job} cannot run on {order.nnodes} nodes")
    for name, value in order.environment.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise BadInput(f"{name!r} is no name of a variable, or its value has a zero byte")


def find_variables(order: Restart) -> dict[str, str]:
    """Return what the new attempt finds in its environment."""
    resume = {RESUME_VARIABLE: order.checkpoint} if order.checkpoint is not None else {}
    return dict(order.environment) | resume


def check_template(template: Sequence[str], fields: Sequence[str]) -> None:
    """Raise BadInput for a template with a field that we do not fill."""
    for word in template:
        try:
            unknown = {name for _, name, _, _ in string.Formatter().parse(word) if name is not None} - set(fields)
        except ValueError as failure:
            raise BadInput(f"{word!r} is no template: {failure}") from None
        if unknown:
            raise BadInput(f"{word!r} has unknown fields {sorted(unknown)}; known are {', '.join(fields)}")
