"""Whatever is asked of the API within its description, and against it, it answers as described and never breaks."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import response_schema_conformance

from lockstep.config import Settings
from lockstep.control.decisions import save_decisions
from lockstep.control.incidents import save_incidents
from lockstep.sections import ApiSettings
from lockstep.store.store import Store
from tests.api.build import Api, bearer, running_api
from tests.api.reading.build import load_job
from tests.lockstep.control.build import decision, incident

pytestmark = pytest.mark.slow

Operation = APIOperation[Any, Any, Any, Any]  # Any: of whatever kind of description

_EXAMPLES = 5  # of each operation and kind; there are more than sixty operations
_DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8"))
# These are spoken by machines in a form of their own, or do not end; captures are fuzzed in test_captures.
_LEFT_OUT = r"^/api/v1/(ingest|intake/.*|incidents/stream|captures)$"
_SCHEMA = schemathesis.openapi.from_dict(_DOCUMENT).exclude(path_regex=_LEFT_OUT)
OPERATIONS = [found.ok() for found in _SCHEMA.get_all_operations() if isinstance(found, Ok)]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory, shared_store: Store) -> Iterator[tuple[Api, dict[str, str]]]:
    """An app with a job, an incident and a decision, and the headers of an administrator without a rate limit."""
    load_job(shared_store, "train")
    folder = tmp_path_factory.mktemp("fuzz")
    settings = Settings(state_dir=folder, api=ApiSettings(requests_per_s=0))
    with running_api(folder, shared_store, settings=settings) as running:
        save_incidents(running.parts.control, [incident("i1")], None)
        save_decisions(running.parts.control, [decision("d1", incident="i1")], None)
        yield running, bearer(running.make_token("admin"))


def test_description_can_be_read_whole() -> None:
    operations = sum(len(methods) for path, methods in _DOCUMENT["paths"].items() if not re.match(_LEFT_OUT, path))
    assert len(OPERATIONS) == operations > 40


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["within", "against"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.label for operation in OPERATIONS])
def test_every_operation_answers_as_it_is_described(
    fuzzed: tuple[Api, dict[str, str]], operation: Operation, mode: GenerationMode
) -> None:
    api, headers = fuzzed

    @given(case=operation.as_strategy(generation_mode=mode))
    @examples(
        max_examples=_EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: "schemathesis.Case[Any]") -> None:
        answer = case.call(base_url=str(api.client.base_url), headers=headers)
        case.validate_response(answer, checks=[not_a_server_error, response_schema_conformance])

    ask()
