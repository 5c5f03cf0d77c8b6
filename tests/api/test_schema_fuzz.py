"""Whatever is asked of the API within its description, and against it, it answers as described and never breaks."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import response_schema_conformance

from api.routes.ingest import PATH as INGEST
from lockstep.batches import CONTENT_TYPE, encode_batch
from lockstep.capture.files import CaptureInfo, dump_info, pack
from lockstep.config import Settings
from lockstep.records import Event
from lockstep.sections import ApiSettings
from lockstep.state.decisions import save_decisions
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.build import Api, batch_headers, bearer, running_api
from tests.api.views.build import load_job
from tests.builders import make, rows
from tests.lockstep.state.build import decision, incident
from tests.tiers import long_except
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.slow

Operation = Any  # mypy does not read schemathesis

_ONE, _MORE = 1, 8  # examples of each operation and kind; there are more than sixty operations
_MOST = {"/api/v1/captures": 2}  # each archive is looked at in a process of its own
_BENT = 40  # of each kind of news, which need no new processes
_DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8"))
_LEFT_OUT = r"^/api/v1/incidents/stream$"  # it does not end
_INTAKE = "/api/v1/intake/"
_SCHEMA = schemathesis.openapi.from_dict(_DOCUMENT).exclude(path_regex=_LEFT_OUT)
OPERATIONS = [found.ok() for found in _SCHEMA.get_all_operations() if isinstance(found, Ok)]


def _small_capture() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "capture"
        capture.mkdir()
        (capture / "capture.json").write_text(dump_info(CaptureInfo(job="j", start_ns=0, end_ns=1)))
        pack(capture, Path(folder) / "packed")
        return (Path(folder) / "packed").read_bytes()


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw a body of a binary kind: as it should be, cut off, with a bit turned, packed nonsense, or any bytes."""
    place = draw(st.integers(0, len(whole) - 1))
    turned = bytearray(whole)
    turned[place] ^= 1 << draw(st.integers(0, 7))
    nonsense = pa.compress(draw(st.binary(max_size=100)), "zstd", asbytes=True)
    return draw(st.sampled_from([whole, whole[:place], bytes(turned), nonsense]) | st.binary(max_size=100))


_BATCH = encode_batch({"events": rows(make(Event, host="h0"))})
schemathesis.openapi.media_type(CONTENT_TYPE, damaged(_BATCH))
schemathesis.openapi.media_type("application/zstd", damaged(_small_capture()))

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def bent(draw: st.DrawFn, document: Any) -> Any:  # Any: JSON
    if not document or not isinstance(document, dict | list) or draw(st.integers(0, 5)) == 0:
        return draw(_JSON)
    place = draw(st.sampled_from(sorted(document) if isinstance(document, dict) else range(len(document))))
    copy = document.copy()
    copy[place] = draw(bent(document[place]))
    return copy


class Fuzzed(NamedTuple):
    api: Api
    by_path: dict[str, dict[str, str]]

    def headers(self, path: str) -> dict[str, str]:
        return self.by_path.get(path, self.by_path[""])


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory, shared_store: Store) -> Iterator[Fuzzed]:
    load_job(shared_store, "train")
    folder = tmp_path_factory.mktemp("fuzz")
    settings = Settings(state_dir=folder, api=ApiSettings(requests_per_s=0, batches_per_s=0))
    with running_api(folder, shared_store, settings=settings) as running:
        save_incidents(running.parts.control, [incident("i1")], None)
        save_decisions(running.parts.control, [decision("d1", incident="i1")], None)
        doors = {"": bearer(running.make_token("admin")), INGEST: bearer(running.make_token("ingest", "h0"))}
        for name in ("alertmanager", "gpud"):
            doors[_INTAKE + name] = bearer(running.make_token("ingest", f"intake:{name}"))
        yield Fuzzed(running, doors)


def test_description_can_be_read_whole() -> None:
    operations = sum(len(methods) for path, methods in _DOCUMENT["paths"].items() if not re.match(_LEFT_OUT, path))
    assert len(OPERATIONS) == operations > 40


@pytest.mark.parametrize("count", long_except([_ONE], [_ONE, _MORE]))
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["within", "against"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.label for operation in OPERATIONS])
def test_every_operation_answers_as_it_is_described(
    fuzzed: Fuzzed, operation: Operation, mode: GenerationMode, count: int
) -> None:
    headers = fuzzed.headers(operation.path)
    if operation.path == INGEST and mode is GenerationMode.POSITIVE:  # within it, so that the body is looked at
        headers = batch_headers(headers["Authorization"].removeprefix("Bearer "))

    @given(case=operation.as_strategy(generation_mode=mode))
    @examples(
        max_examples=min(count, _MOST.get(operation.path, count)),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: "schemathesis.Case[Any]") -> None:
        answer = case.call(base_url=str(fuzzed.api.client.base_url), headers=headers, timeout=LIMIT_S)
        case.validate_response(answer, checks=[not_a_server_error, response_schema_conformance])

    ask()


@pytest.mark.parametrize("path", [path for path in _DOCUMENT["paths"] if path.startswith(_INTAKE)])
def test_news_that_are_bent_anywhere_are_taken_or_refused(fuzzed: Fuzzed, path: str) -> None:
    example = _DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]

    @given(news=bent(example))
    @examples(max_examples=_BENT, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    def tell(news: Any) -> None:  # Any: JSON
        query = {"host": "h0"} if path.endswith("gpud") else {}
        answer = fuzzed.api.client.post(path, params=query, content=json.dumps(news), headers=fuzzed.headers(path))
        assert answer.status_code in (200, 400, 413), f"{answer.status_code} {answer.text} to {news}"

    tell()
