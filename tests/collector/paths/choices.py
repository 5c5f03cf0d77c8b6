"""What a host is told, for tests that care about a part of it."""

from lockstep.host_paths import HostPaths, PathChoice


def choice(
    connection: str = "f0", sports: tuple[int, ...] = (4000,), links: tuple[str, ...] = ("leaf0--spine0",)
) -> PathChoice:
    return PathChoice(
        connection=connection,
        nic="eth0",
        dst="h1",
        dst_nic="eth0",
        links=links,
        source="10.0.0.1",
        destination="10.0.0.2",
        sports=sports,
    )


def paths(generation: int, *choices: PathChoice) -> HostPaths:
    return HostPaths(
        host="h0",
        generation=generation,
        made_ns=1,
        lease_end_ns=0,
        is_enforceable=True,
        choices=choices or (choice(),),
    )
