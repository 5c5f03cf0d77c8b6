"""Incidents and decisions that happen now, and pages as a browser asks for them."""

import httpx

from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.verdict import Incident
from tests.api.build import Api, bearer
from tests.lockstep.state.build import decision, incident

ATTACK = "<script>alert('x')</script>\"&"
SHOWN = "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&#34;&amp;"


def incident_of(name: str, job: str, now_ns: int, **changes: object) -> Incident:
    """Return an open incident that began a minute ago; changes are those of its verdict."""
    told = incident(name, job=job, opened_ns=now_ns - 55 * NS_PER_S, updated_ns=now_ns)
    times = {"since_ns": now_ns - 60 * NS_PER_S, "last_seen_ns": now_ns}
    return told.model_copy(update={"verdict": told.verdict.model_copy(update=times | changes)})


def decision_of(name: str, about: str, job: str, now_ns: int, **changes: object) -> Decision:
    """Return a decision that waits for a person and holds for a day."""
    made = decision(name, incident=about, job=job, created_ns=now_ns - 50 * NS_PER_S)
    return made.model_copy(update={"mode": "propose", "expires_ns": now_ns + 86_400 * NS_PER_S, **changes})


def browse(api: Api, path: str, token: str | None = None, **query: str | int) -> httpx.Response:
    key = bearer(token or api.make_token("read"))
    return api.client.get(path, params=query or None, headers={"Accept": "text/html", **key}, follow_redirects=False)


def send(api: Api, path: str, token: str, **form: str) -> httpx.Response:
    return api.client.post(path, data=form, headers={"Accept": "text/html", **bearer(token)})
