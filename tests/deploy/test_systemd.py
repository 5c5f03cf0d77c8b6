"""deploy/systemd: units that systemd understands, that start what exists, and that agree with the settings."""

import re
from pathlib import Path

import pytest

from collector import agent, shipping
from tests.deploy.commands import check_command
from tests.deploy.unit_file import DIRECTORY, Unit, read_unit

HEAD = read_unit("lockstep.service")
COLLECTOR = read_unit("lockstep-collector.service")
UNITS = [pytest.param(unit, id=unit.name) for unit in (HEAD, COLLECTOR)]

# Directives of systemd 247 that we use; one that is not here is a slip of the pen, or needs a newer systemd than the
# units promise. systemd itself only warns about a directive it does not know, and then runs without that protection.
KNOWN = {
    "Unit": {"Description", "Wants", "After", "StartLimitIntervalSec"},
    "Service": {
        *("Type", "User", "ExecStart", "Environment", "EnvironmentFile", "LoadCredential", "UMask"),
        *("StateDirectory", "StateDirectoryMode", "Restart", "RestartSec", "TimeoutStopSec"),
        *("CPUWeight", "CPUQuota", "MemoryMax", "TasksMax", "LimitNOFILE", "Nice", "OOMScoreAdjust"),
        *("ProtectSystem", "ReadWritePaths", "ProtectHome", "PrivateTmp", "NoNewPrivileges"),
        *("AmbientCapabilities", "CapabilityBoundingSet"),
        *("RestrictSUIDSGID", "RestrictRealtime", "RestrictNamespaces", "RestrictAddressFamilies", "LockPersonality"),
        *("ProtectClock", "ProtectControlGroups", "ProtectHostname", "SystemCallArchitectures"),
        *("ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables"),
    },
    "Install": {"WantedBy"},
}
MIB = {"M": 1, "G": 1024}


def mebibytes(size: str) -> int:
    return int(size[:-1]) * MIB[size[-1]]


def test_there_are_no_other_units() -> None:
    assert {file.name for file in DIRECTORY.glob("*.service")} == {HEAD.name, COLLECTOR.name}


@pytest.mark.parametrize("unit", UNITS)
def test_every_directive_is_one_that_systemd_knows(unit: Unit) -> None:
    unknown = [(section, name) for section, name, _ in unit.directives if name not in KNOWN[section]]

    assert unknown == []


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_given_once_is_given_once(unit: Unit) -> None:
    names = [name for _, name, _ in unit.directives if name != "Environment"]

    assert len(names) == len(set(names))


@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_starts_a_command_that_exists_from_where_it_is_installed(unit: Unit) -> None:
    program, *words = unit.command

    assert program == "/opt/lockstep/bin/lockstep"
    check_command(words)


def test_each_unit_starts_its_own_part() -> None:
    assert (HEAD.command[1:], COLLECTOR.command[1:]) == (["up"], ["collect"])


@pytest.mark.parametrize("unit", UNITS)
def test_the_state_directory_is_the_one_that_systemd_makes(unit: Unit) -> None:
    assert unit.settings.state_dir == Path("/var/lib") / unit.only("StateDirectory")


@pytest.mark.parametrize("unit", UNITS)
def test_variables_are_settings_or_the_place_of_temporary_files(unit: Unit) -> None:
    assert {name for name in unit.environment if not name.startswith("LOCKSTEP_")} <= {"TMPDIR"}


@pytest.mark.parametrize("unit", UNITS)
def test_the_administrators_file_may_be_missing_and_wins(unit: Unit) -> None:
    names = [name for _, name, _ in unit.directives]

    assert unit.only("EnvironmentFile") == f"-/etc/default/{unit.name.removesuffix('.service')}"
    assert names.index("EnvironmentFile") > max(i for i, name in enumerate(names) if name == "Environment")


@pytest.mark.parametrize("unit", UNITS)
def test_the_user_is_declared_and_not_root(unit: Unit) -> None:
    declared = re.findall(r"^u (\S+)\s+-", (DIRECTORY / "lockstep.sysusers").read_text(), re.MULTILINE)

    assert unit.only("User") in declared
    assert unit.only("User") != "root"


@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_is_limited_comes_back_and_can_write_in_its_state_directory_only(unit: Unit) -> None:
    assert unit.only("Restart") == "on-failure"
    assert unit.only("ProtectSystem") == "strict"
    assert unit.only("NoNewPrivileges") == "yes"
    assert unit is COLLECTOR or unit.only("CapabilityBoundingSet") == ""
    assert unit.only("PrivateTmp") == "yes", "else temporary files have no place under ProtectSystem=strict"
    assert re.fullmatch(r"\d+%", unit.only("CPUQuota"))


def test_the_collector_can_have_no_more_capabilities_than_it_has_and_each_has_its_reason() -> None:
    text = (DIRECTORY / COLLECTOR.name).read_text()
    granted = COLLECTOR.only("AmbientCapabilities")

    assert granted == COLLECTOR.only("CapabilityBoundingSet")
    assert re.findall(r"^#   (\w+)  +\S", text, re.MULTILINE) == [name[4:] for name in granted.split()]


def test_the_drop_in_takes_every_capability_away() -> None:
    dropped = read_unit("without-capabilities.conf")

    assert dropped.directives == (
        ("Service", "AmbientCapabilities", ""),
        ("Service", "CapabilityBoundingSet", ""),
    )
    assert dropped.name in (DIRECTORY / COLLECTOR.name).read_text()


def test_the_collector_may_write_where_jobs_leave_their_ring_files() -> None:
    assert COLLECTOR.only("ReadWritePaths") == "-/run/lockstep"


def test_the_collector_finds_the_token_where_systemd_puts_it() -> None:
    name, _, source = COLLECTOR.only("LoadCredential").partition(":")

    assert str(COLLECTOR.settings.collector.token_file) == f"/run/credentials/{COLLECTOR.name}/{name}"
    assert Path(source).parent == Path("/etc/lockstep")


def test_the_collector_has_memory_for_itself_and_its_buffer_twice() -> None:
    buffer_mb = COLLECTOR.settings.collector.buffer_mb

    assert mebibytes(COLLECTOR.only("MemoryMax")) >= 150 + 2 * buffer_mb


def test_the_collector_is_given_the_time_that_its_end_may_take() -> None:
    assert int(COLLECTOR.only("TimeoutStopSec")) > agent._LAST_READ_S + 2 * shipping._TIMEOUT_S


def test_the_head_node_has_memory_for_its_engine_twice() -> None:
    assert mebibytes(HEAD.only("MemoryMax")) >= 2 * HEAD.settings.store.memory_mb


def test_nothing_hides_from_the_collector_what_it_reads() -> None:
    # ProtectClock among them: it closes devices (systemd issue 18142) and refuses adjtimex (systemd issue 26413).
    hiding = {"PrivateNetwork", "ProtectProc", "ProcSubset", "PrivateDevices", "ProtectKernelLogs", "PrivateUsers"}
    hiding |= {"ProtectClock"}

    assert hiding.isdisjoint(name for _, name, _ in COLLECTOR.directives)
    assert "AF_NETLINK" in COLLECTOR.only("RestrictAddressFamilies").split()


def test_a_line_that_systemd_would_skip_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.deploy.unit_file.DIRECTORY", tmp_path)
    (tmp_path / "broken.service").write_text("[Service]\nProtectSystem strict\n")

    with pytest.raises(ValueError, match="line 2: neither a section nor a directive"):
        read_unit("broken.service")
