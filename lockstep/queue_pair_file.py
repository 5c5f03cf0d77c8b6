"""The file that says which UDP source port each RoCE queue pair should have.

Stock NCCL takes no source port for a queue pair from anybody. The verbs half of path_shim reads this file in its
place, and reports what it could do; where it is not loaded, the file is advice, and marked so: a net plugin that
opens its own queue pairs can read it. It is text, like the file for sockets (path_file.py), beside which it lies:

    lockstep-queue-pairs 1 GENERATION LEASE_END advisory
    SOURCE DESTINATION PORT WEIGHT CONNECTION
    ...
    end ENTRIES

One line is one queue pair from an address of this host. Those to one DESTINATION are to be taken in their order, one
for each that is opened. WEIGHT, 0 to 1, is the share of its rate that the path of this port can give, so that bytes
can be shared out accordingly. CONNECTION is for people (job/communicator/ranks/channel/queue pair), with odd letters
as %XX. The file is replaced as a whole. A file that does not end with the number of its entries is cut short and
counts as none; so does one with another version.
"""

from pathlib import Path
from urllib.parse import quote

from lockstep.clock import NS_PER_S
from lockstep.host_paths import HostPaths
from lockstep.path_file import replace_file

VERSION = 1


def write_queue_pairs(path: Path, reported: HostPaths) -> None:
    """Replace a host's file: its queue pairs whose port and addresses are known, none where switches choose."""
    known = [each for each in reported.choices if each.proto == "roce" and each.source and each.destination]
    pairs = [
        f"{each.source} {each.destination} {port} {round(each.weight, 3):g} {quote(each.connection)}"
        for each in known
        for port in each.sports[:1]  # those behind the first only stand in for it
        if reported.is_enforceable
    ]
    begin = f"lockstep-queue-pairs {VERSION} {reported.generation} {reported.lease_end_ns // NS_PER_S} advisory"
    replace_file(path, "".join(f"{line}\n" for line in (begin, *pairs, f"end {len(pairs)}")).encode())
