"""Writes a C program that says where the compiler puts what abi.h declares, to hold it against NCCL's own facts."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from importers.traces.nccl_abi.layouts import ReleaseFacts, StructureFacts


class Fact(NamedTuple):
    """One fact: what it is of (`v5 descriptor coll.seq offset`), the number that NCCL has, how C asks for ours."""

    of: str
    value: int
    expression: str


def facts_of(facts: ReleaseFacts) -> Iterator[Fact]:
    """Yield everything that a release says and abi.h must say too.

    Our tables end in reserved members that NCCL does not know, so a table's size is not asked for.
    """
    for name, value in (facts["events"] | facts["states"]).items():
        yield Fact(name, value, name)
    for number, version in facts["versions"].items():
        yield from _fields_of(f"v{number} table", "struct lockstep_profiler", version["table"])
        yield from _structure(f"v{number} descriptor", f"struct abi_descriptor_v{number}", version["descriptor"])
        arguments = "abi_state_arguments_v1" if int(number) < 4 else "abi_state_arguments"
        yield from _structure(f"v{number} arguments", f"union {arguments}", version["arguments"])


def _structure(label: str, kind: str, facts: StructureFacts) -> Iterator[Fact]:
    yield Fact(f"{label} size", facts["size"], f"sizeof({kind})")
    yield from _fields_of(label, kind, facts)


def _fields_of(label: str, kind: str, facts: StructureFacts) -> Iterator[Fact]:
    for field, (offset, size) in facts["fields"].items():
        yield Fact(f"{label} {field} offset", offset, f"offsetof({kind}, {field})")
        yield Fact(f"{label} {field} size", size, f"sizeof((({kind} *)0)->{field})")


def probe_source(asked: Iterable[Fact]) -> str:
    """Return a program that prints one line for each fact: the number that abi.h has, a tab, and what it is of."""
    lines = "\n".join(f'    printf("%ld\\t{fact.of}\\n", (long)({fact.expression}));' for fact in asked)
    return f'#include "abi.h"\n\n#include <stddef.h>\n#include <stdio.h>\n\nint main(void)\n{{\n{lines}\n}}\n'


def parse_answers(printed: str) -> dict[str, int]:
    """Return the numbers that the program printed, by what each is of."""
    rows = (line.split("\t") for line in printed.splitlines())
    return {of: int(number) for number, of in rows}


def differences(asked: Iterable[Fact], answers: dict[str, int]) -> list[str]:
    """Return a sentence for each fact on which abi.h and NCCL do not say the same."""
    return [
        f"{fact.of}: NCCL has {fact.value}, abi.h {answers.get(fact.of, 'nothing')}"
        for fact in asked
        if answers.get(fact.of) != fact.value
    ]
