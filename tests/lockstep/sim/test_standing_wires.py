"""Connections that stand still show in which state, since when, and nobody but the cause waits for itself."""

import numpy as np
import pytest

from lockstep.sim.collectives import Kernels, run_ring
from lockstep.sim.wires import GPU_WAIT, NEVER, PEER_WAIT, RECV_GPU_WAIT, RECV_WAIT, WIRE, Outage
from tests.lockstep.sim.rings import head_states, replaced, started, uniform


@pytest.mark.parametrize(("has_credits", "held"), [(True, PEER_WAIT), (False, WIRE)])
def test_dead_wire_stands_in_wire_and_those_after_it_wait_for_data(has_credits: bool, held: int) -> None:
    edges = uniform(6, has_credits)
    out = Outage(np.full((1, 6), NEVER), np.full((1, 6), NEVER))
    out.begin[0, 2] = 250.0
    send, recv = head_states(replaced(edges, wire_out=out), started(edges), 10)
    assert (send[2], recv[3]) == (WIRE, RECV_WAIT)  # the link itself
    assert (send[1], recv[2]) == (held, RECV_GPU_WAIT)  # the sender does not read any more: look further on
    assert [(send[place], recv[place]) for place in (4, 5, 0)] == [(GPU_WAIT, RECV_WAIT)] * 3


@pytest.mark.parametrize("has_credits", [True, False])
def test_stuck_gpu_is_the_only_place_that_waits_for_itself_on_both_sides(has_credits: bool) -> None:
    edges = uniform(6, has_credits)
    out = Outage(np.full((1, 6), NEVER), np.full((1, 6), NEVER))
    out.begin[0, 3] = 250.0
    kernels = Kernels(np.zeros((1, 6)), 1.0, out)
    send, recv = head_states(edges, kernels, 10)
    both = [place for place in range(6) if send[place] == GPU_WAIT and recv[place] == RECV_GPU_WAIT]
    assert both == [3]
    assert [recv[place] for place in (4, 5, 0)] == [RECV_WAIT] * 3


def test_place_before_one_that_never_comes_waits_for_its_credit_on_ib_and_not_on_a_socket() -> None:
    never = np.zeros((1, 6))
    never[0, 3] = NEVER
    for has_credits, expected in ((True, PEER_WAIT), (False, GPU_WAIT)):
        edges = replaced(
            uniform(6, has_credits, 0 if has_credits else 8), send_from=never, recv_from=np.roll(never, -1, axis=1)
        )
        send, recv = head_states(edges, Kernels(never), 10)
        assert send[2] == expected
        assert (send[3], recv[3]) == (0, 0)  # it has no step at all
        assert recv[4] == RECV_WAIT


@pytest.mark.parametrize("has_credits", [True, False])
def test_stopped_process_stays_in_the_state_in_which_it_was_stopped(has_credits: bool) -> None:
    """Its GPU goes on, but nobody marks what it does; with a kernel that takes long to read, that is RecvGPUWait."""
    edges = uniform(6, has_credits)
    kernels = Kernels(np.zeros((1, 6)), 50.0)
    for moment, expected in ((160.0, RECV_GPU_WAIT), (230.0, RECV_WAIT)):
        out = Outage(np.full((1, 6), NEVER), np.full((1, 6), NEVER))
        out.begin[0, 3] = moment
        stopped = replaced(
            edges,
            send_proxy_out=out,
            recv_proxy_out=Outage(np.roll(out.begin, -1, axis=1), np.roll(out.end, -1, axis=1)),
        )
        _, recv = head_states(stopped, kernels, 10)
        assert recv[3] == expected
        assert [recv[place] for place in (4, 5, 0)] == [RECV_WAIT] * 3


def test_since_when_a_side_stands_is_when_it_entered_its_state() -> None:
    edges = uniform(6)
    out = Outage(np.full((1, 6), NEVER), np.full((1, 6), NEVER))
    out.begin[0, 2] = 60.0  # in the middle of the first step, which was filled and handed over at 50
    wires, _ = run_ring(replaced(edges, wire_out=out), Kernels(np.full((1, 6), 50.0)), 10)
    assert wires.stuck_since[0, 0, 2] == 50.0
    assert wires.stuck_since[0, 0, 3] == pytest.approx(152.0)  # acknowledged, and nothing came to be sent


def test_wire_that_comes_back_sends_again_what_was_under_way() -> None:
    edges = uniform(4)
    out = Outage(np.full((1, 4), NEVER), np.full((1, 4), NEVER))
    out.begin[0, 1], out.end[0, 1] = 150.0, 1_000.0
    _, whole = run_ring(edges, started(edges), 6)
    flapped, late = run_ring(replaced(edges, wire_out=out), started(edges), 6)
    assert late.max() == pytest.approx(whole.max() + 1_000.0 - 101.0)  # its second step began at 101 and is repeated
    assert flapped.wire[0, 1] > 1_000.0 - 101.0
    assert (np.delete(flapped.wire[0], 1) < 700.0).all()
    assert flapped.send_state.max() == 0
