"""How a query is told of a hundred thousand hosts: as one text, since engines read lists of texts for minutes."""

from collections.abc import Iterable

OF_HOSTS = r"host IN (SELECT arrayJoin(splitByChar('\n', {hosts:String})))"  # no host has a line break in its name


def list_hosts(hosts: Iterable[str]) -> str:
    """Return the parameter `hosts` of a query that asks `OF_HOSTS`."""
    return "\n".join(sorted(hosts))
