"""Every NCCL connection is told once, with its NIC, from the best source there is; and what failed on it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from collector.connections import log_files as connection_logs
from collector.sources.connections import ConnectionsSource
from lockstep.arrow import schema_of
from lockstep.errors import NotPresent
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import Gpu, Nic, Node, Topology
from tests.builders import SECOND
from tests.collector.sources.imitated_nccl import REAL_LOG, Host, imitate_process, pair, rank_with_log, tcp
from tests.collector.sources.imitated_rdma import imitate_port
from tests.descriptors import open_descriptors

WORLD = 0x4D9619169988DBB4
HEAD = "n1:417:417 [0] NCCL INFO "
IB = f"{HEAD}NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
COMM = f"""{HEAD}NCCL version 2.28.9+cuda13.0
{HEAD}ncclCommInitRank comm 0xaa rank 1 nranks 4 cudaDev 0 nvmlDev 3 busId 60 commId 0x2a - Init START
"""
SEND = f"{HEAD}Channel 00/0 : 1[0] -> 2[0] [send] via NET/IB/1/GDRDMA\n"
ERROR = (
    "\n[2026-11-15 08:57:50] n1:417:530 [0] transport/net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer "
    "10.0.0.9<1> with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_1\n"
)
ERROR_WITHOUT_HCA = ERROR.replace(" hca mlx5_1", "")
SOCKETS = f"{HEAD}NET/Socket : Using [0]lo:127.0.0.1<0>\n{HEAD}Channel 00/0 : 1[0] -> 2[0] [send] via NET/Socket/0\n"


def summary(row: dict[str, Any], names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names.split())


def logged(tmp_path: Path, text: str, **about: Any) -> tuple[Path, Host]:
    """Return the log of a rank, written just now, and its host."""
    log, host = rank_with_log(tmp_path, text, **about), Host(tmp_path)
    os.utime(log, ns=(host.now_ns, host.now_ns))
    return log, host


def topology(*gpu_nics: str) -> Topology:
    gpus = (Gpu(id="gpu3", index=3, nics=gpu_nics),)
    node = Node(id="h0", kind="host", nics=(Nic(id="eth0"), Nic(id="eth1")), gpus=gpus)
    return Topology(routing="ecmp", nodes=(node,), links=())


def test_real_log_gives_each_connection_once_with_its_communicator_and_nic(tmp_path: Path) -> None:
    rank_with_log(tmp_path, REAL_LOG.read_bytes())
    host = Host(tmp_path)
    rows, events = host.look()
    found = {summary(row, "comm rank peer channel direction") for row in rows}
    both_ways = {(peer, channel, way) for peer in (0, 2, 3) for channel in (0, 1) for way in ("send", "recv")}
    assert {key[2:] for key in found if key[0] == WORLD} == both_ways
    splits = {key[:3] for key in found if key[0] != WORLD}
    assert splits == {(0xB4D731B2EF05C336, 1, 0), (0x7067C70C1E5921B1, 0, 1)}
    about = {summary(row, "nic transport source confidence job") for row in rows}
    assert about == {("lo", "socket", "nccl_log", 0.95, "7")}
    assert (len(rows), len(found), len(events)) == (20, 20, 2)
    schemas = {name: schema_of(TABLE_BY_NAME[name]) for name in ("connections", "events")}
    assert {name: rows.schema for name, rows in host.reading.tables.items()} == schemas
    assert host.look() == ([], [])


def test_connection_has_its_nics_joined_or_named_by_the_topology_and_the_rank_of_its_proxy(tmp_path: Path) -> None:
    joined = f"{HEAD}NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=800000 ndevs=2\n"
    proxied = SEND.replace("IB/1", "IB/2(3)").replace("00/0", "05/0")
    inside = f"{HEAD}Channel 00/0 : 1[0] -> 0[0] via P2P/CUMEM\n"
    imitate_port(tmp_path, "mlx5_1", netdev="eth1")
    log = rank_with_log(tmp_path, "")
    for text, named, expected in (
        (IB + COMM + joined + proxied, None, ("mlx5_0,mlx5_1", "ib", 3, 5)),
        (IB + COMM + SEND, topology("eth1"), ("eth1", "ib", None, 0)),
        (COMM + inside, None, (None, "p2p", None, 0)),
    ):
        log.write_text(text)
        (row,) = Host(tmp_path, topology=named).rows()
        assert summary(row, "nic transport proxy_rank channel") == expected


def test_failed_completion_is_an_event_of_its_nic_or_the_only_one_in_use_or_the_host_reported_once(
    tmp_path: Path,
) -> None:
    log, host = logged(tmp_path, IB + COMM)
    assert host.rows() == []
    log.write_text(IB + COMM + SEND)
    (row,) = host.rows()
    assert summary(row, "comm rank peer nic transport") == (0x2A, 1, 2, "mlx5_1", "ib")
    assert row["seen_ns"] == host.reading.watermark_ns == host.now_ns
    log.write_text(IB + COMM + SEND + ERROR)
    os.utime(log, ns=(host.now_ns + SECOND,) * 2)
    (event,) = host.events()
    assert summary(event, "source kind") == ("connections", "ib_completion_error")
    assert summary(event, "component severity ts_ns") == ("nic:h0/mlx5_1", "error", host.now_ns - 4 * SECOND)
    assert event["message"].startswith("rank 1 of job 7 (pid 417): NET/IB: Got completion from peer 10.0.0.9<1>")
    assert event["message"].endswith("(status 12: the other side did not acknowledge, and all retries are used up)")
    assert host.events() == []
    both = SEND + SEND.replace("IB/1", "IB/0").replace("00/0", "01/0")
    for sends, component in ((SEND, "nic:h0/mlx5_1"), (both, "host:h0")):
        shutil.rmtree(tmp_path / "proc")
        _, host = logged(tmp_path, IB + COMM + sends + ERROR_WITHOUT_HCA)
        assert [event["component"] for event in host.events()] == [component]


def test_number_of_a_process_may_come_again_and_its_last_words_are_reported_and_no_file_stays_open(
    tmp_path: Path,
) -> None:
    before = len(open_descriptors())
    log, host = logged(tmp_path, IB + COMM + SEND)
    for _ in range(3):
        host.look()
    stat = tmp_path / "proc/417/stat"
    stat.write_text(stat.read_text().replace(" 100 ", " 999 "))
    assert len(host.rows()) == 1
    assert len(open_descriptors()) == before + 1
    with log.open("a") as file:
        file.write(ERROR_WITHOUT_HCA)
    shutil.rmtree(tmp_path / "proc/417")  # with its root, as when a container ends
    (event,) = host.events()
    assert summary(event, "kind component") == ("ib_completion_error", "nic:h0/mlx5_1")
    assert host.events() == []
    host.source.close()
    assert len(open_descriptors()) == before


def test_old_warnings_are_left_out_a_flood_is_cut_and_a_log_that_was_cut_is_reported_from_its_beginning(
    tmp_path: Path,
) -> None:
    log, host = logged(tmp_path, IB + COMM + ERROR * 300)
    assert len(host.events()) == 64
    assert host.reading.dropped == 300 - 64
    os.utime(log, ns=(host.now_ns - 2 * 3_600 * SECOND,) * 2)
    assert Host(tmp_path).events() == []
    shutil.rmtree(tmp_path / "proc")
    log, host = logged(tmp_path, IB + COMM + SEND + ERROR)
    host.source.resume(f'{{"logs": [[{log.stat().st_dev}, {log.stat().st_ino}, {1 << 20}]]}}'.encode())
    assert len(host.events()) == 1


def test_collector_that_starts_again_reports_connections_and_not_the_same_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, before = logged(tmp_path, IB + COMM + SEND + ERROR)
    assert len(before.events()) == 1
    checkpoint, found = before.reading.checkpoint or b"", log.stat()
    assert json.loads(checkpoint) == {"logs": [[found.st_dev, found.st_ino, found.st_size]]}
    with log.open("a") as file:
        file.write(ERROR.replace("mlx5_1", "mlx5_0"))
    after = Host(tmp_path)
    os.utime(log, ns=(after.now_ns, after.now_ns))
    after.source.resume(checkpoint)
    looks = [after.look(), after.look()]
    assert [row["nic"] for rows, _ in looks for row in rows] == ["mlx5_1"]
    assert [event["component"] for _, events in looks for event in events] == ["nic:h0/mlx5_0"]
    monkeypatch.setattr(connection_logs, "READ_BYTES", 300)  # so that the log takes some looks
    again = Host(tmp_path)
    again.source.resume(after.reading.checkpoint or b"")
    assert again.events() == []
    assert again.reading.checkpoint == after.reading.checkpoint, "it does not fall back behind what was reported"


# A keepalive, storage, the store of torch, a NIC that NCCL does not use.
OTHERS: list[dict[str, Any]] = [{"bytes_sent": 1_000}, {"rport": 443}, {"lport": 29_500}, {"local": "10.9.9.9"}]


def test_socket_that_sends_bulk_data_gives_the_connection_its_port_or_what_several_share_and_others_are_not_nccls(
    tmp_path: Path,
) -> None:
    log, host = logged(tmp_path, COMM + SOCKETS, sockets=[8, 9])
    host.sockets = [tcp(9, bytes_sent=0), tcp(10, bytes_sent=0)]
    assert [row["sport"] for row in host.rows()] == [None]
    for about in OTHERS:
        host.sockets = [tcp(9, **({"bytes_sent": 1 << 20} | about))]
        assert host.rows() == []
        host.sockets = [tcp(9, **(about | {"bytes_sent": 0}))]
        assert host.rows() == []
    host.sockets = [tcp(9, bytes_sent=1 << 20, lport=45_001), tcp(10, bytes_sent=1 << 20)]
    (row,) = host.rows()
    assert summary(row, "comm peer channel nic sport") == (0x2A, 2, 0, "lo", 45_001)
    assert summary(row, "remote source") == ("127.0.0.1", "nccl_log")
    assert host.rows() == []
    log.write_text(COMM + SOCKETS + f"{HEAD}Channel 01/0 : 1[0] -> 2[0] [send] via NET/Socket/0\n")
    host = Host(tmp_path)
    host.sockets = [tcp(8), tcp(9)]
    assert len(host.rows()) == 2
    ports = {8: 45_001, 9: 45_002}
    host.sockets = [tcp(inode, bytes_sent=1 << 20, lport=port) for inode, port in ports.items()]
    found = [summary(row, "comm rank peer channel sport source") for row in host.rows()]
    assert found == [(0x2A, 1, 2, None, port, "inet_diag") for port in ports.values()]


def test_sockets_of_a_job_without_a_log_are_reported_with_less_confidence_and_inherited_ones_are_the_rank_s(
    tmp_path: Path,
) -> None:
    imitate_process(tmp_path, environ={"RANK": "0"}, maps="7f00 r-xp /lib/libnccl.so.2\n", sockets=[9])
    host = Host(tmp_path)
    host.sockets = [tcp(9)]
    assert host.rows() == []
    host.sockets = [tcp(9, bytes_sent=1 << 20)]
    (row,) = host.rows()
    assert summary(row, "nic sport comm source confidence") == ("lo", 40_000, None, "inet_diag", 0.5)
    assert row["job"] == f"uid-{os.getuid()}"
    shutil.rmtree(tmp_path / "proc")
    rank_with_log(tmp_path, COMM + SOCKETS, sockets=[9], start_ticks=200)
    imitate_process(tmp_path, 300, {"NCCL_DEBUG_FILE": "/tmp/nccl.log", "RANK": "1"}, start_ticks=201, sockets=[9])
    host = Host(tmp_path)
    host.sockets = [tcp(9)]
    host.look()
    host.sockets = [tcp(9, bytes_sent=1 << 20)]
    (row,) = host.rows()
    assert row["rank"] == 1


def test_queue_pairs_are_joined_with_those_of_the_log_and_without_one_have_both_directions(tmp_path: Path) -> None:
    imitate_port(tmp_path, "mlx5_0")
    imitate_port(tmp_path, "mlx5_1")
    qpn = f"{HEAD}NET/IB: NCCL Dev 1 IbDev 1 Port 1 qpn 500 mtu 5 LID 4 subnet-prefix 1  FLID 0 fifoRkey=0x1\n"
    log, host = logged(tmp_path, IB + COMM + SEND + qpn)
    host.pairs = [
        pair(500, 900, device="mlx5_1"),
        pair(501, 901, device="mlx5_0"),  # not in the log, which names those that send
        pair(502, 502, device="mlx5_1"),  # flushes the memory of the GPU
        pair(503, None, device="mlx5_1"),
        pair(504, 905, device="mlx5_1", state="INIT"),
        pair(505, 906, device="mlx5_1", pid=1),
    ]
    assert [summary(row, "direction nic channel lqpn rqpn source") for row in host.rows()] == [
        ("send", "mlx5_1", 0, 500, 900, "nccl_log"),
        ("recv", "mlx5_0", None, 501, 901, "rdma"),
    ]
    behind = SEND.replace("IB/1/", "IB/1(3)/").replace("00/0", "01/0")
    log.write_text(IB + COMM + SEND + behind + qpn)
    again = Host(tmp_path)
    again.pairs = host.pairs[:1]
    found = [summary(row, "channel lqpn") for row in again.rows()]
    assert found == [(0, None), (1, None), (None, 500)], "with proxies for others it is nobody's in particular"
    shutil.rmtree(tmp_path / "proc")  # without a log
    imitate_process(tmp_path, environ={"RANK": "0"}, maps="7f00 rw-s /dev/shm/nccl-VFhmaC (deleted)\n")
    host = Host(tmp_path)
    host.pairs = [pair(500, 900)]
    ways = {summary(row, "direction nic lqpn rqpn source confidence") for row in host.rows()}
    assert ways == {(way, "mlx5_0", 500, 900, "rdma", 0.5) for way in ("send", "recv")}


def test_graph_says_which_nic_a_channel_uses_where_there_is_no_log(tmp_path: Path) -> None:
    environ = {"RANK": "0", "NCCL_DEBUG_FILE": "/tmp/none", "NCCL_GRAPH_DUMP_FILE": "/tmp/graph.xml"}
    folder = imitate_process(tmp_path, environ=environ | {"NCCL_TOPO_DUMP_FILE": "/tmp/topo.xml"})
    for name in ("graph.xml", "topo.xml"):
        (folder / "root/tmp" / name).write_bytes((REAL_LOG.parent / name).read_bytes())
    host = Host(tmp_path)
    found = {summary(row, "channel direction nic source confidence") for row in host.rows()}
    assert found == {(0, way, "lo", "graph", 0.6) for way in ("recv", "send")}
    assert host.rows() == []


def test_topology_knows_the_nic_of_a_gpu_once_nothing_better_came_and_a_network_keeps_its_transport(
    tmp_path: Path,
) -> None:
    log = rank_with_log(tmp_path, COMM)
    for nics in (("eth1",), ("eth0", "eth1"), ()):
        host = Host(tmp_path, topology=topology(*nics))
        assert [host.rows(), host.rows()] == [[], []]
        guess = [("topology", "eth1", "send"), ("topology", "eth1", "recv")]
        assert [summary(row, "source nic direction") for row in host.rows()] == (guess if len(nics) == 1 else [])
    log.write_text(COMM + f"{HEAD}Channel 00/0 : 1[0] -> 2[0] [send] via NET/AWS Libfabric/5/GDRDMA\n")
    host = Host(tmp_path, topology=topology("eth1"))
    found = [summary(row, "source transport nic peer") for _ in range(4) for row in host.rows()]
    assert found == [("nccl_log", "ofi", None, 2), *[("topology", "ofi", "eth1", None)] * 2]


def test_only_nic_of_a_host_is_the_last_resort_and_gives_way_to_better(tmp_path: Path) -> None:
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    (tmp_path / "sys/class/net/lo").mkdir()
    log, host = logged(tmp_path, COMM)
    imitate_process(tmp_path, 500, {"NCCL_DEBUG_FILE": "/tmp/nccl.%p.log", "RANK": "0"})  # a launcher gets no guess
    found = [summary(row, "source nic transport direction comm") for _ in range(4) for row in host.rows()]
    assert found == [("only_nic", "eth0", "socket", way, None) for way in ("send", "recv")]
    log.write_text(COMM + IB + SEND)
    assert [summary(row, "source nic comm") for row in host.rows()] == [("nccl_log", "mlx5_1", 0x2A)]


def test_problems_are_reported_once_and_hide_nobody_else(tmp_path: Path) -> None:
    imitate_port(tmp_path, "mlx5_1")
    odd = f"{HEAD}Channel 01/0 : 1[0] -> 2[0] [send] via NET/Carrier Pigeon/0\n"
    _, host = logged(tmp_path, COMM + SOCKETS + odd)
    imitate_process(tmp_path, 500, {"NCCL_DEBUG_FILE": "/tmp"})
    host.sockets, host.pairs = NotPresent("no sockets here"), NotPresent("no pairs here")
    with capture_logs() as lines:
        assert [len(host.rows()), len(host.rows())] == [1, 0]
    assert {(line.get("pid"), line.get("problem") or line["reason"]) for line in lines} == {
        (500, "NCCL_DEBUG_FILE is no regular file"),
        (417, "networks that are not known: Carrier Pigeon"),
        (None, "no sockets here"),
        (None, "no pairs here"),
    }
    assert len(lines) == 4


def test_host_without_processes_says_so_and_one_without_nccl_or_garbage_in_a_log_is_passed_over(
    tmp_path: Path,
) -> None:
    with pytest.raises(NotPresent, match=f"no processes in {tmp_path}/proc"):
        ConnectionsSource("h0", tmp_path).read(1, ())
    imitate_process(tmp_path, 1, {"PATH": "/bin"})
    assert Host(tmp_path).look() == ([], [])
    garbage = b"\x00" * 5_000 + b"\n" + b"\xff\xfe NCCL INFO Channel \n" * 99 + b"n:417:1 [0] NCCL INFO "
    rank_with_log(tmp_path, garbage + b"\n" + (IB + COMM + SEND).encode())
    assert len(Host(tmp_path).rows()) == 1
