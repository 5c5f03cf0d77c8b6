"""The graph of NCCL says which device a channel uses, and no file of a job can make its reader grow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.connections.log_files import GRAPH_BYTES, DeviceUse, parse_device_names, parse_graph
from lockstep.errors import BadInput
from tests.collector.sources.imitated_nccl import REAL_LOG

CHANNELS = b"""<graphs version="1"><graph id="1"><channel><net dev="9"/><gpu dev="0"/><net dev="9"/></channel></graph>
<graph id="0" nchannels="2"><channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="1"/></channel>
<channel><net dev="1"/><gpu dev="1"/><gpu dev="0"/><net dev="0"/></channel></graph></graphs>"""


def test_real_files_are_read() -> None:
    folder = REAL_LOG.parent
    assert parse_graph((folder / "graph.xml").read_bytes()) == [DeviceUse(0, "recv", 0), DeviceUse(0, "send", 0)]
    assert parse_device_names((folder / "topo.xml").read_bytes()) == {0: "lo"}


def test_data_comes_in_at_the_first_device_of_a_ring_and_goes_out_at_the_last() -> None:
    assert parse_graph(CHANNELS) == [
        DeviceUse(0, "recv", 0),
        DeviceUse(0, "send", 1),
        DeviceUse(1, "recv", 1),
        DeviceUse(1, "send", 0),
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"<graphs/>",
        b'<graphs><graph id="0"><channel><gpu dev="0"/><gpu dev="1"/></channel></graph></graphs>',
        b'<graphs><graph id="0"><channel><net dev="-1"/><gpu dev="0"/><net dev="x"/></channel></graph></graphs>',
        b'<graphs><graph id="0"><channel><net/><gpu/><net dev="99999999999"/></channel></graph></graphs>',
    ],
)
def test_graph_without_networks_says_nothing(content: bytes) -> None:
    assert parse_graph(content) == []


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "no XML"),
        (b"<graphs", "no XML"),
        (b"\xff\xfe", "no XML"),
        (b'<!DOCTYPE a [<!ENTITY b "bb">]><graphs>&b;</graphs>', "declaration"),
        (b" " * (GRAPH_BYTES + 1), "more than"),
    ],
)
def test_file_that_is_no_graph_is_refused(content: bytes, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        parse_graph(content)


@given(st.binary(max_size=200) | st.lists(st.sampled_from(CHANNELS.split(b"<")), max_size=20).map(b"<".join))
def test_whatever_a_file_holds_only_bad_input_comes_out(content: bytes) -> None:
    for parse in (parse_graph, parse_device_names):
        try:
            parse(content)
        except BadInput:
            continue
