"""Lines of NCCL Inspector become communicators and operations, or one sentence with file and line."""

import json
from functools import partial

from importers.traces.inspector import parse_inspector
from importers.traces.readings import Reading
from tests.importers.traces.build import Told, refusal, sound

T0_US = 1_700_000_000_000_000
UNTIMED = "execution times were left out, because nothing tells when they began"


def line(perf: Told | None = None, header: Told | None = None, **metadata: object) -> Told:
    """A line about an all-reduce of rank 2 of 8; `perf`, `header` and the rest say what is different."""
    whole = {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 2}
    about: Told = {"inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin"}
    about |= {"dump_timestamp_us": T0_US + 900, "hostname": "a1", "pid": 4711}
    coll: Told = {"coll": "AllReduce", "coll_sn": 14, "coll_msg_size_bytes": 65536, "coll_exec_time_us": 250}
    coll |= {"coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 1.0, "coll_busbw_gbs": 2.0}
    return {"header": whole | (header or {}), "metadata": about | metadata, "coll_perf": coll | (perf or {})}


def verbose(*channels: tuple[int, int], start: int = T0_US) -> Told:
    """What a verbose line adds: start and stop of each channel, in microseconds."""
    events = [
        {"channel_id": n, "kernel_start_ts": begin, "kernel_stop_ts": end, "kernel_record_ts": end}
        for n, (begin, end) in enumerate(channels)
    ]
    return {"event_trace_ts": {"coll_start_ts": start, "coll_stop_ts": start + 5, "kernel_events": events}}


def as_lines(*told: object) -> list[bytes]:
    return [json.dumps(one).encode() + b"\n" for one in told]


def read(*lines: Told) -> Reading:
    return sound(parse_inspector([("a1.log", as_lines(*lines))], "j"))


def test_plain_line_has_communicator_number_and_size_and_leaves_start_and_end_unknown() -> None:
    reading = read(line())
    (row,) = reading.tables()["collectives"].to_pylist()
    assert (row["host"], row["job"], row["comm"], row["rank"]) == ("a1", "j", 0x7F8C496AE9F661, 2)
    assert (row["func"], row["peer"], row["seq"], row["seq_valid"]) == ("AllReduce", -1, 14, True)
    assert (row["bytes"], row["algo"], row["dtype"], row["channels"]) == (65536, "", "", None)
    assert (row["start_ns"], row["end_ns"], row["clock"]) == (None, None, "none")
    assert row["enqueue_ns"] == (T0_US + 900 - 250) * 1000
    assert reading.unread == {UNTIMED: 1}
    # A channel without begin or end leaves both unknown.
    for channels in ([(T0_US, T0_US + 5), (T0_US, 0)], [(0, T0_US)], [(T0_US, T0_US - 1)], []):
        (row,) = read(line(verbose(*channels, start=0))).tables()["collectives"].to_pylist()
        assert (row["start_ns"], row["end_ns"], row["clock"]) == (None, None, "none")
        assert row["enqueue_ns"] == (T0_US + 650) * 1000, "no older than its dump says"


def test_verbose_line_tells_when_the_first_channel_began_and_the_last_ended_also_of_a_send_to_a_peer() -> None:
    newer = {"coll_algo": "RING", "coll_proto": "LL", **verbose((T0_US + 20, T0_US + 270), (T0_US + 10, T0_US + 260))}
    reading = read(line(newer, inspector_output_format_version="v4.2"))
    row = reading.tables()["collectives"].to_pylist()[0]
    assert (row["enqueue_ns"], row["channels"], row["clock"]) == (T0_US * 1000, 2, "proxy")
    assert (row["start_ns"], row["end_ns"]) == ((T0_US + 10) * 1000, (T0_US + 270) * 1000)
    assert (row["algo"], row["proto"]) == ("RING", "LL")
    assert not reading.unread
    send = line()
    perf = {name.replace("coll", "p2p"): value for name, value in send.pop("coll_perf").items()}
    trace = {"p2p_start_ts": T0_US, "kernel_events": [{"kernel_start_ts": T0_US + 1, "kernel_stop_ts": T0_US + 2}]}
    reading = read(send | {"p2p_perf": perf | {"p2p": "Send", "p2p_peer": 5, "event_trace_ts": trace}})
    (row,) = reading.tables()["collectives"].to_pylist()
    assert (row["func"], row["peer"], row["seq"], row["seq_valid"]) == ("Send", 5, 14, False), "not to be compared"
    assert (row["enqueue_ns"], row["end_ns"]) == (T0_US * 1000, (T0_US + 2) * 1000)


def test_communicator_is_one_row_per_rank_known_from_its_first_operation() -> None:
    later = line({"coll_sn": 15, **verbose(start=T0_US + 7)})
    first = line({"coll_sn": 13, **verbose(start=T0_US)})
    other = line({"coll_sn": 13}, {"rank": 3, "comm_name": "DP"}, pid=4712)
    rows = read(later, first, other).tables()["comms"].to_pylist()
    assert [(r["rank"], r["nranks"], r["nnodes"], r["pid"], r["name"]) for r in rows] == [
        (2, 8, 2, 4711, ""),
        (3, 8, 2, 4712, "DP"),
    ]
    assert rows[0]["init_ns"] == T0_US * 1000
    assert (rows[0]["gpu"], rows[0]["gpu_uuid"], rows[0]["nccl_version"]) == (None, None, None)
    assert rows[0]["plugin_version"] == "inspector v4.0"


def test_what_comes_again_is_cut_off_or_no_operation_is_counted_and_the_others_stand() -> None:
    (whole,) = as_lines(line())
    other = line()
    other["dump_stats"] = other.pop("coll_perf")
    reading = parse_inspector([("a.log", [whole, *as_lines(other)]), ("b.log", [whole, b"\n", whole[:90]])], "j")
    assert reading.tables()["collectives"].num_rows == 1
    assert reading.unread == {
        UNTIMED: 1,
        "operations were left out, because they came again under the same number": 1,
        "lines were left out, because they tell of no operation": 1,
        "last lines of files were cut off in the middle and left out": 1,
    }


def test_what_is_wrong_is_said_with_file_line_and_field() -> None:
    (whole,) = as_lines(line())
    for told, sentence in (
        ([1], "is not a JSON object"),
        (line({"coll_sn": -1}), "perf.sn: Input should be greater than or equal to 0"),
        (line({"coll_msg_size_bytes": None}), "perf.msg_size_bytes: Input should be a valid integer"),
        (line({"coll": None}), "perf.func: Input should be a valid string"),
        (line(header={"id": "zebra"}), "header.id: String should match"),
        (line(header={"rank": -1}), "header.rank: Input should be greater"),
        (line(hostname="a b"), "metadata.hostname: "),
        (line(inspector_output_format_version="v9.0"), "metadata.inspector_output_format_version: String should"),
        (line() | {"coll_perf": 7}, "perf: Input should be a valid dictionary"),
        (line(verbose((-1, 5))), "perf.event_trace_ts.kernel_events.0.kernel_start_ts: "),
        (None, "is not JSON: "),
    ):
        second = as_lines(told) if told else [whole[:90] + b"\n", whole]
        found = refusal(partial(parse_inspector, [("a1.log", [whole, *second])], "j"))
        assert found.startswith(f"a1.log, line 2: {sentence}")
    endless = refusal(lambda: parse_inspector([("a1.log", [b" " * (2 << 20)])], "j"))
    assert endless == "a1.log, line 1: is longer than 1 MiB"
