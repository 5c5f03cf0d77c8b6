"""Lines of the kernel's log are recognized in the forms drivers write them; everything else is no event."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.sources.kernel_lines import Finding, Part, Record, load_xids, parse_records, read_line
from collector.sources.kernel_log import MAX_ALIKE, MAX_EVENTS, FloodGate
from lockstep.records import Event
from tests.builders import T0, make

GPU = Part("gpu", "0000:41:00.0")
NIC = Part("nic", "0000:5c:00.0")
ETH2 = Part("nic", "eth2")
HOST = Part("host")
MARKERS = ["NVRM: Xid (PCI:0000:41:00): ", " SXid (PCI:", "mlx5_core 0000:5c:00.0: ", "PCIe Bus Error: severity="]


def look(text: str, *, from_kernel: bool = True) -> Finding | None:
    return read_line(Record(seq=1, since_boot_ns=0, from_kernel=from_kernel, text=text), load_xids())


NO_RECORDS = [b"", b"no record", b"6,1,10,-", b"6,1;text", b"-6,1,10,-;text", b"6,x,10,-;text", b"\xff\xfe\x00"]
NO_RECORDS += [b"6,99999999999999999999,10,-;text", b"6,1,18446744073709551615,-;text", "6,\u0661,10,-;text".encode()]


def test_record_has_its_number_time_text_and_writer_and_what_is_none_is_left_out() -> None:
    (whole,) = parse_records(b"4,1234,5000001,-;NVRM: all is well; really\n")
    assert whole == Record(1234, 5_000_001_000, True, "NVRM: all is well; really")
    chunk = b"3,1,10,-;mlx5_core: x\n SUBSYSTEM=pci\n DEVICE=+pci:0000:5c:00.0\n6,2,11,c,caller=T123;hello\n"
    assert [(record.seq, record.text) for record in parse_records(chunk)] == [(1, "mlx5_core: x"), (2, "hello")]
    writers = {priority: parse_records(b"%d,1,10,-;text\n" % priority)[0].from_kernel for priority in (0, 7, 8, 14)}
    assert writers == {0: True, 7: True, 8: False, 14: False}
    (record,) = parse_records(b"6,1,10,-;\xff" + b"x" * 5_000 + b"\n")
    assert record.text.startswith("\ufffdx")
    assert len(record.text) == 1024
    assert parse_records(b"\n".join(NO_RECORDS)) == []


PIECES = st.lists(st.sampled_from([*MARKERS, "AER: "]) | st.text(max_size=20), max_size=6)


@given(st.binary(max_size=300), PIECES.map("".join))
def test_no_bytes_and_no_mixture_of_known_pieces_make_it_fail(chunk: bytes, text: str) -> None:
    for record in parse_records(b"6,1,10,-;" + chunk):
        look(record.text)
    look(text)


@pytest.mark.parametrize(
    ("text", "part", "severity", "code"),
    [
        ("NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python, GPU has fallen off the bus.", GPU, "critical", "79"),
        ("NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen", GPU, "critical", "79"),
        ("NVRM: Xid (0000:41:00): 13, Graphics SM Warp Exception on (GPC 7)", GPU, "warning", "13"),
        ("NVRM: Xid (PCI:00000018:01:00.0): 63, Row Remapper", Part("gpu", "0018:01:00.0"), "info", "63"),
        ("NVRM: Xid (PCI:0000:CB:00): 48, DBE", Part("gpu", "0000:cb:00.0"), "critical", "48"),
        ("NVRM: Xid (PCI:0000:41:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6)", GPU, "critical", "149"),
        ("NVRM: Xid (PCI:0000:41:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x1)", GPU, "warning", "149"),
        ("NVRM: Xid (PCI:0000:41:00): 999, something new", GPU, "warning", "999"),
    ],
)
def test_xid_names_its_gpu_and_is_as_bad_as_the_table_says(text: str, part: Part, severity: str, code: str) -> None:
    finding = look(text)
    assert finding is not None
    assert (finding.kind, finding.part, finding.severity, finding.code) == ("xid", part, severity, code)


def test_xid_carries_its_line_the_action_and_whom_to_blame_and_that_of_a_program_is_distinguished() -> None:
    abouts = {31: "memory page fault; RESTART_APP; blame application", 999: "not in our table"}
    abouts[167] = "PCIe fatal time-out; no action named; blame hardware"
    for number, about in abouts.items():
        line = f"NVRM: Xid (PCI:0000:41:00): {number}, pid=7, name=python, x"
        finding = look(line)
        assert finding is not None
        assert finding.message == f"{line} [XID {number}: {about}]"
    finding = look("Out of memory: Killed process 1 (drill)", from_kernel=False)
    assert finding is not None
    assert finding.message == "(written by a program) Out of memory: Killed process 1 (drill)"


PARTS = {"gpu": GPU, "nic": NIC, "eth2": ETH2, "host": HOST}
RECOGNIZED = """\
gpu_lost gpu critical: NVRM: GPU 0000:41:00.0: GPU has fallen off the bus.
sxid host critical: nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM
sxid host warning: nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32
link_down eth2 warning: mlx5_core 0000:5c:00.0 eth2: Link down
link_down eth2 warning: e1000e 0000:00:1f.6 eth2: NIC Link is Down
link_down eth2 warning: bnxt_en 0000:5c:00.0 eth2: NIC Link is Down
link_down eth2 warning: virtio_net virtio0 eth2: link is down
link_up eth2 info: mlx5_core 0000:5c:00.0 eth2: Link up
link_up eth2 info: igb 0000:01:00.0 eth2: igb: eth2 NIC Link is Up 1000 Mbps Full Duplex
link_down nic warning: mlx5_core 0000:5c:00.0: Port: 1 Link DOWN
link_up nic info: mlx5_core 0000:5c:00.0: Port: 1 Link ACTIVE
link_up nic info: ixgbe 0000:5c:00.0: NIC Link is Up 10 Gbps
nic_health nic critical: mlx5_core 0000:5c:00.0: poll_health:834:(pid 0): device's health compromised
nic_health nic critical: mlx5_core 0000:5c:00.0: mlx5_health_try_recover: Fatal error 3 detected
nic_health nic critical: mlx5_core 0000:5c:00.0: mlx5_enter_error_state:190:(pid 1): start
nic_timeout nic error: mlx5_core 0000:5c:00.0: wait_func:1132:(pid 9): CREATE_DCT(0x710) timeout. Will cause a leak
nic_timeout eth2 error: mlx5_core 0000:5c:00.0 eth2: TX timeout detected
nic_timeout eth2 error: NETDEV WATCHDOG: eth2 (mlx5_core): transmit queue 3 timed out
nic_timeout eth2 error: mlx5_core 0000:5c:00.0 eth2: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5088 ms
nic_module nic error: mlx5_core 0000:5c:00.0: mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0
nic_module nic warning: mlx5_core 0000:5c:00.0: Port module event: module 0, Cable unplugged
nic_power nic warning: mlx5_core 0000:5c:00.0: mlx5_pcie_event:299: Detected insufficient power on the PCIe slot (27W)
nic_error eth2 error: mlx5_core 0000:5c:00.0 eth2: Error cqe on cqn 0x46e, ci 0x1c
pcie_aer gpu warning: nvidia 0000:41:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)
pcie_aer nic error: mlx5_core 0000:5c:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer
pcie_aer gpu critical: nvidia 0000:41:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible
pcie_aer host warning: pcieport 0000:03:04.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)
pcie_aer host critical: pcieport 0000:03:04.0: AER: device recovery failed
pcie_lost host error: pcieport 0000:00:01.0: pciehp: Slot(6): Link Down
oom host error: Out of memory: Killed process 2222 (python) total-vm:1kB
oom host error: Memory cgroup out of memory: Killed process 19636 (python)
oom host error: Out of memory: Kill process 13536 (python) score 1000 or sacrifice child
"""


NOTHING_OF_OURS = """
NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d
NVRM: Xid (PCI:garbage): 79, x
NVRM: Xid (PCI:0000:41:00): soon
nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Data {0x50610002, 0x10100030}
nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 10002, Severity 5 Engine instance 00 Sub-engine instance 00
nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing
mlx5_core 0000:5c:00.0: firmware version: 28.39.1002
mlx5_core 0000:5c:00.0: Port module event: module 0, Cable plugged
pcieport 0000:00:1b.2: AER: Correctable error message received from 0000:03:04.0
pcieport 0000:03:04.0:   device [111d:8063] error status/mask=00000001/00002000
IPv6: ADDRCONF(NETDEV_CHANGE): eth2: link becomes ready
python invoked oom-killer: gfp_mask=0xcc0
the symbolic link is upside down
"""


def test_line_is_recognized_with_its_part_and_severity_and_one_of_nothing_of_ours_is_no_event() -> None:
    for line in RECOGNIZED.splitlines():
        seen, _, text = line.partition(": ")
        kind, part, severity = seen.split()
        finding = look(text)
        assert finding is not None, text
        assert (finding.kind, finding.part, finding.severity) == (kind, PARTS[part], severity), text
    assert [found for line in NOTHING_OF_OURS.split("\n") if (found := look(line))] == []


def test_every_entry_of_the_table_uses_our_words_stands_there_once_and_has_nvidia_s_actions() -> None:
    xids = load_xids()
    for number, xid in xids.items():
        assert xid.severity in ("info", "warning", "error", "critical"), number
        assert xid.nonfatal_severity in (None, "info", "warning"), number
        assert xid.blame in ("application", "hardware", "unclear"), number
        assert (bool(xid.name), bool(xid.meaning)) == (True, True), number
    text = (Path(__file__).parents[3] / "collector/data/xid.toml").read_text()
    listed = [line.partition("[")[2].rstrip("]") for line in text.splitlines() if line.startswith("numbers")]
    numbers = [int(number) for line in listed for number in line.split(",")]
    assert len(numbers) == len(set(numbers)) == len(xids)
    application = {number: xid.severity for number, xid in xids.items() if xid.blame == "application"}
    assert application == dict.fromkeys((11, 13, 25, 31, 43, 45, 68, 69), "warning")
    actions = {13: "RESTART_APP", 43: "IGNORE", 79: "RESTART_BM", 95: "RESET_GPU", 119: "RESET_GPU"}
    assert {number: xids[number].action for number in actions} == actions


def test_real_log_of_a_hanging_gsp_is_five_xids_of_one_gpu_and_nothing_else() -> None:
    if "LOCKSTEP_PUBLIC_DATA" not in os.environ:
        pytest.skip("no public data here: set LOCKSTEP_PUBLIC_DATA to the folder that holds it")
    text = Path(os.environ["LOCKSTEP_PUBLIC_DATA"], "host_health_gpud/dmesg-with-xid-119.log").read_text()
    findings = [finding for line in text.splitlines() if (finding := look(line.split("] ", 1)[-1]))]
    assert [(found.kind, found.code, found.part.id) for found in findings] == [("xid", "119", "0000:9b:00.0")] * 5


def event(kind: str = "xid", component: str = "gpu:h0/a", severity: str = "warning", ts_ns: int = T0) -> Event:
    about = {"kind": kind, "component": component, "severity": severity}
    return make(Event, host="h0", ts_ns=ts_ns, source="s", message=f"m{ts_ns - T0}", **about)


def test_flood_becomes_one_count_with_the_last_line_hides_no_other_xid_or_gpu_and_ends_with_its_second() -> None:
    gate = FloodGate()
    sent = [gate.admit(event(ts_ns=T0 + number), "31", second=1) for number in range(MAX_ALIKE)]
    assert sent == [[event(ts_ns=T0 + number)] for number in range(MAX_ALIKE)]
    assert (gate.oldest_held_ns, gate.close()) == (None, [])
    for number in range(1_000):
        gate.admit(event(ts_ns=T0 + number), "31", second=2)
    held_ns = gate.oldest_held_ns
    assert held_ns == T0 + MAX_ALIKE
    fallen, other = event(severity="critical"), event(component="gpu:h0/b")
    assert gate.admit(fallen, "79", second=2) == [fallen]
    assert gate.admit(other, "31", second=2) == [other]
    count, xid = gate.admit(event(), "31", second=3)
    assert (count.kind, count.component, count.ts_ns) == ("folded", "host:h0", T0 + MAX_ALIKE)
    assert count.message == f"{1_000 - MAX_ALIKE} more xid lines in one second, the last of them: m999"
    assert (xid.kind, gate.oldest_held_ns, gate.close()) == ("xid", None, [])
    for kind in ("xid", "oom"):
        for _ in range(MAX_ALIKE + 2):
            gate.admit(event(kind=kind), "", second=4)
    counts = [count.message.partition(" in one")[0] for count in gate.close()]
    assert counts == ["2 more xid lines", "2 more oom lines"], "each kind is counted for itself"
    gate = FloodGate()  # of different things
    sent = [gate.admit(event(component=f"gpu:h0/{number}"), "31", second=1) for number in range(5_000)]
    gate.admit(event(severity="critical"), "79", second=1)
    gate.admit(event(severity="info"), "63", second=1)
    (count,) = gate.close()
    assert (sum(map(len, sent)), count.severity) == (MAX_EVENTS, "critical")
    assert count.message.startswith(f"{5_000 - MAX_EVENTS + 2} more xid lines")
