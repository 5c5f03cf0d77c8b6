"""One night in observe mode: page, API, alert and command line say alike what to do, and that nobody does it."""

from pathlib import Path

import pytest

from api.alerts.active import find_active
from lockstep.decision import Cost, Decision
from lockstep.state.decisions import list_decisions
from lockstep.state.incidents import list_incidents
from lockstep.words import automation, by_hand, recommendation
from tests.api.build import running_api
from tests.api.dashboard.build import browse
from tests.api.fake_store import AwayStore
from tests.cli.commands import Run
from tests.decisions.handbook import NOBODY, SLURM, Case, answer, large
from tests.planner.build import crash, decision, seconds

WATCHED = Case(
    "a host of 128 dies, Slurm is only watched",
    [crash(component="host:h3", reason="h3 is gone")],
    "replace",
    "somebody has to act, and is told how",
    mode="observe",
    job=large(),
    cluster=SLURM,
)
SAYS = "replace h3: about 213 GPU-hours instead of 24,576"
OFF = "automation is off: planner.modes leaves it at observe"


def test_night_in_observe_mode_is_answered_alike_wherever_somebody_reads(tmp_path: Path, lockstep: Run) -> None:
    with running_api(tmp_path, AwayStore()) as api:
        control = api.parts.control
        made = answer(WATCHED, control, api.lease("planner"))
        page = browse(api, "/incidents/i0").text
        told = api.get("/api/v1/incidents/i0").json()["decisions"][0]
        shown = lockstep(
            "decisions", "show", made.id, "--server", str(api.client.base_url), "--token", api.make_token("read")
        ).out
        alert = find_active(list_incidents(control), list_decisions(control), (), (), seconds(11), 0).alerts["i0"]
    command = "scontrol update NodeName=h3 State=DRAIN Reason='h3 is gone (incident i0)'"
    assert (told["action"], told["manual_because"], told["by_hand"][0]) == ("replace", "observed", command)
    assert told["evidence_age_s"] == 0.0
    assert f"Recommended: {SAYS}" in page
    assert "A" + OFF[1:] in page
    assert "<code>scontrol requeue train</code>" in page
    assert "the fault was last seen 0 s before this was weighed" in page
    assert (alert.facts["recommended"], alert.facts["automation"]) == (SAYS, OFF)
    assert alert.facts["by hand"] == f"{command} && scontrol requeue train"
    assert f"Recommended: {SAYS}" in shown


@pytest.mark.parametrize(
    ("made", "says", "who", "hand"),
    [
        (decision("none"), "Wait", "", ""),
        (decision("none", cost=Cost(gpu_hours=0.0)), "Nothing to do", "", ""),
        (decision("none", inspect=("the storage",)), "Wait, and inspect the storage", "", ""),
        (decision("none", answered_by="d9"), "Answered together with another part, by decision d9", "", ""),
        (
            decision("replace", ("h3", "h5"), manual_because="no_controller"),
            "Recommended: replace h3 and h5",
            "automation is off: no job controller is set",
            "take h3 and h5 out of the scheduler, then start train again from /ckpt/400",
        ),
        (
            decision("reconfigure", manual_because="held", mode="propose", held_because="it is the third"),
            "Recommended: restart on 8 nodes, without h3",
            "it waits for a person: it is the third",
            "lockstep decisions approve d1",
        ),
        (
            decision("restart_process", (), resume=None, manual_because="no_controller"),
            "Recommended: restart on the same nodes",
            "automation is off: no job controller is set",
            "start train again from its newest checkpoint, or the beginning",
        ),
        (decision("reroute", (), mode="execute"), "Recommended: route around it", "automatic", ""),
    ],
)
def test_each_answer_has_its_words(made: Decision, says: str, who: str, hand: str) -> None:
    assert (recommendation(made), automation(made), by_hand(made)) == (says, who, hand)


def test_nothing_to_do_beside_a_hang_is_a_call_for_a_person(tmp_path: Path) -> None:
    stuck = Case(
        "a host dies, the job needs all its nodes and nobody is set",
        WATCHED.verdicts,
        "none",
        "nothing of ours helps",
        mode="observe",
        job={"min_nodes": 8},
        cluster=NOBODY | {"spares": ()},
    )
    with running_api(tmp_path, AwayStore()) as api:
        answer(stuck, api.parts.control, api.lease("planner"))
        page = browse(api, "/incidents/i0").text
    assert "A person is needed: inspect power, console and kernel log of host:h3" in page
    assert "Do nothing" not in page
