"""deploy/systemd: units that systemd understands, that start what exists, and that agree with the settings."""

import re
from pathlib import Path

import pytest

from collector import agent, shipping
from tests.deploy.processes import check_command
from tests.deploy.unit_file import DIRECTORIES, Unit, read_unit, unit_path

HEAD = read_unit("lockstep.service")
COLLECTOR = read_unit("lockstep-collector.service")

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
# Among them ProtectClock: it closes devices (systemd issue 18142) and refuses adjtimex (systemd issue 26413).
HIDING = {
    *("PrivateNetwork", "ProtectProc", "ProcSubset", "PrivateDevices", "ProtectKernelLogs", "PrivateUsers"),
    "ProtectClock",
}


def mebibytes(size: str) -> int:
    return int(size[:-1]) * {"M": 1, "G": 1024}[size[-1]]


@pytest.mark.parametrize("unit", [pytest.param(unit, id=unit.name) for unit in (HEAD, COLLECTOR)])
def test_unit_is_understood_limited_and_starts_what_exists(unit: Unit) -> None:
    assert [(section, name) for section, name, _ in unit.directives if name not in KNOWN[section]] == []
    names = [name for _, name, _ in unit.directives]
    once = [name for name in names if name != "Environment"]
    assert len(once) == len(set(once))
    program, *words = unit.command
    assert program == "/opt/lockstep/bin/lockstep"
    check_command(words)
    assert unit.settings.state_dir == Path("/var/lib") / unit.only("StateDirectory")
    assert {name for name in unit.environment if not name.startswith("LOCKSTEP_")} <= {"TMPDIR"}
    assert unit.only("EnvironmentFile") == f"-/etc/default/{unit.name.removesuffix('.service')}"
    assert names.index("EnvironmentFile") > max(i for i, name in enumerate(names) if name == "Environment")
    declared = re.findall(r"^u (\S+)\s+-", unit_path("lockstep.sysusers").read_text(), re.MULTILINE)
    assert unit.only("User") in declared
    assert unit.only("User") != "root"
    assert unit.only("Restart") == "on-failure"
    assert unit.only("ProtectSystem") == "strict"
    assert unit.only("NoNewPrivileges") == "yes"
    assert unit.only("PrivateTmp") == "yes", "else temporary files have no place under ProtectSystem=strict"
    assert re.fullmatch(r"\d+%", unit.only("CPUQuota"))


def test_each_unit_starts_its_own_part_with_capabilities_that_each_have_a_reason() -> None:
    assert {file.name for folder in DIRECTORIES for file in folder.glob("*.service")} == {HEAD.name, COLLECTOR.name}
    assert (HEAD.command[1:], COLLECTOR.command[1:]) == (["up"], ["collect"])
    assert HEAD.only("CapabilityBoundingSet") == ""
    assert mebibytes(HEAD.only("MemoryMax")) >= 2 * HEAD.settings.store.memory_mb, "its engine twice"
    text = unit_path(COLLECTOR.name).read_text()
    granted = COLLECTOR.only("AmbientCapabilities")
    assert granted == COLLECTOR.only("CapabilityBoundingSet")
    assert re.findall(r"^#   (\w+)  +\S", text, re.MULTILINE) == [name[4:] for name in granted.split()]
    dropped = read_unit("without-capabilities.conf")
    taken = (("Service", "AmbientCapabilities", ""), ("Service", "CapabilityBoundingSet", ""))
    assert dropped.directives == taken
    assert dropped.name in text


def test_the_collector_reaches_rings_token_and_kernel_with_memory_and_time_enough() -> None:
    assert COLLECTOR.only("ReadWritePaths") == "-/run/lockstep"
    name, _, source = COLLECTOR.only("LoadCredential").partition(":")
    assert str(COLLECTOR.settings.collector.token_file) == f"/run/credentials/{COLLECTOR.name}/{name}"
    assert Path(source).parent == Path("/etc/lockstep")
    assert mebibytes(COLLECTOR.only("MemoryMax")) >= 150 + 2 * COLLECTOR.settings.collector.buffer_mb
    assert int(COLLECTOR.only("TimeoutStopSec")) > agent._LAST_READ_S + 2 * shipping._TIMEOUT_S
    assert HIDING.isdisjoint(name for _, name, _ in COLLECTOR.directives)
    assert "AF_NETLINK" in COLLECTOR.only("RestrictAddressFamilies").split()


def test_a_line_that_systemd_would_skip_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.deploy.unit_file.DIRECTORIES", (tmp_path,))
    (tmp_path / "broken.service").write_text("[Service]\nProtectSystem strict\n")
    with pytest.raises(ValueError, match="line 2: neither a section nor a directive"):
        read_unit("broken.service")
