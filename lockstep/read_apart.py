"""Is a foreign file safe to read here? A child process with little memory, time and stack reads it first.

A pickle of 149 bytes can name one tuple in another sixty times over and ask for its hash, which takes for ever; one
that nests deeply overflows the stack. Neither can be caught in a process that has other work to do.
"""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep.errors import BadInput

_LONGEST_S = 600.0  # by the wall clock, on whatever machine
_STACK_BYTES = 1 << 20  # an eighth of what threads of ours have, so that what passes the child passes here
_MOST_TEXT = 500


@dataclass(frozen=True)
class ReadLimits:
    """What a child may use to read a file."""

    memory_bytes: int  # of address space, with Python's own
    cpu_s: int


def check_apart(name: str, module: str, arguments: Sequence[str], limits: ReadLimits, data: bytes = b"") -> None:
    """Raise BadInput where a child cannot read the file of this name: with its own sentence, or with how it ended."""
    command = [sys.executable, "-m", module, *arguments, str(limits.memory_bytes), str(limits.cpu_s)]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=_LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        raise BadInput(f"{name}: reading it took more than {_LONGEST_S:.0f} s and was given up") from None
    if done.returncode > 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BadInput((lines[-1] if lines else f"{name}: reading it ended with {done.returncode}")[:_MOST_TEXT])
    if done.returncode < 0:
        endings = {
            signal.SIGXCPU: f"reading it takes more than {limits.cpu_s} s of CPU",
            signal.SIGSEGV: "it is nested too deeply",
        }
        ended = signal.Signals(-done.returncode)
        raise BadInput(f"{name}: {endings.get(ended, f'reading it ended by {ended.name}')}")


def read_limited(read: Callable[[], object], memory_bytes: str, cpu_s: str) -> None:
    """In the child: read within the limits, and end with 1 and a sentence on standard error where that fails."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (int(memory_bytes), int(memory_bytes)))
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 1))
    problems: list[str] = []

    def run() -> None:
        try:
            read()
        except MemoryError:
            problems.append("it does not fit into memory")
        except Exception as error:  # noqa: BLE001  # whoever asked raises it as what it is, or reads this
            problems.append(str(error))

    threading.stack_size(_STACK_BYTES)
    reader = threading.Thread(target=run)
    reader.start()
    reader.join()
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    sys.stderr.flush()
    os._exit(1 if problems else 0)  # freeing what was read would take as long again
