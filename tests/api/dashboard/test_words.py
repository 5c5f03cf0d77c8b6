"""Verdicts in words: hung or slow, whose team, what it costs, and how each kind of part can be proven."""

import pytest

from api.dashboard import addresses, words
from lockstep.verdict import FaultClass
from tests.lockstep.control.build import verdict


@pytest.mark.parametrize(
    ("fault_class", "component", "state", "domain"),
    [
        ("comm_slow", "nic:h3/eth1", "slow", "Communication. The network team is needed."),
        ("comm_hang", "nvlink:h3/1", "hung", "Communication, inside of the host. The network team is not needed."),
        ("noncomm_hang", "host:h3", "hung", "Not communication. The network team is not needed."),
        ("crash", "gpu:h3/1", "crashed", "Not communication. The network team is not needed."),
        ("global_slow", "job:train", "slow", "Not known: everybody is slower, and nobody stands out."),
    ],
)
def test_first_questions_have_an_answer(fault_class: FaultClass, component: str, state: str, domain: str) -> None:
    told = verdict("train").model_copy(update={"fault_class": fault_class, "component": component})
    assert words.state_words(told) == state
    assert words.domain_words(told) == domain
    assert words.proof_of(told) is not None


def test_software_is_no_reason_to_take_hardware_away() -> None:
    told = verdict("train").model_copy(update={"fault_class": "software"})
    assert "No reason to take hardware away" in words.origin_words(told)


def test_command_of_a_closed_server_asks_for_a_token() -> None:
    command = addresses.curl_of("https://head/", addresses.job_call("it's/7", "matrix"), is_open=False)
    assert command.startswith('curl -sS -H "Authorization: Bearer $LOCKSTEP_TOKEN" ')
    assert command.endswith("https://head/api/v1/jobs/it%27s/7/matrix")
