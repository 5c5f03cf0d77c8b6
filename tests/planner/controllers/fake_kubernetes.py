"""A fake Kubernetes API server: real HTTP, objects in memory, and as much of the JobSet controller as restarts need.

It is no Kubernetes. It knows nodes, pods, ConfigMaps and JobSets, merge patches, versions, and the rules that the
JobSet webhook (v0.8 to v0.12) enforces; written after the API reference and the JobSet sources.
"""

import copy
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lockstep.clock import ManualClock
from planner.controllers.kubernetes import KubernetesController, KubernetesOptions
from planner.controllers.protocol import Report
from tests.http_serving import Quiet, serving

Object = dict[str, Any]
DATA = Path(__file__).parents[2] / "data" / "kubernetes"
NODES = "/api/v1/nodes"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/train/jobsets"
KEEPERS = "/api/v1/namespaces/train/configmaps"
_COLLECTION = re.compile(
    r"(/api/v1/nodes|/api/v1/namespaces/[^/]+/(?:pods|configmaps)|"
    r"/apis/jobset.x-k8s.io/v1alpha2/namespaces/[^/]+/jobsets)(?:/([^/]+))?"
)


class FakeKubernetes:
    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = {}
        self.requests: list[str] = []  # such as "PATCH /api/v1/nodes/gpu-1"
        self.faults: dict[str, list[int]] = {}  # by method: statuses to answer next instead of acting
        self.looks_until_stopped = 0  # how often a suspended or deleted JobSet is looked at before its pods are gone
        self.somebody_writes_before_patch = 0  # so many times an object changes between being read and being patched
        self.page_size = 500
        self.tokens: set[str | None] = set()  # that requests came with
        self.hang = threading.Event()
        self.trickles = False  # answers byte by byte, calling byte_sent after each
        self.byte_sent: Callable[[], None] = lambda: None
        self.lock = threading.Lock()
        self.looks: dict[str, int] = {}  # left, by name
        self._numbers = itertools.count(60_000)

    def add(self, collection: str, thing: Object) -> None:
        named = self.objects.setdefault(collection, {})
        thing = copy.deepcopy(thing)
        thing["metadata"].setdefault("uid", f"uid-{next(self._numbers)}")
        thing["metadata"]["resourceVersion"] = str(next(self._numbers))
        named[thing["metadata"]["name"]] = thing

    def answer(self, method: str, path: str, body: Object) -> tuple[int, Object]:
        self.requests.append(f"{method} {path.split('?')[0]}")
        if self.faults.get(method):
            return _status(self.faults[method].pop(0), "told to fail")
        found = _COLLECTION.fullmatch(path.split("?")[0])
        if not found:
            return _status(404, f"no such path {path}")
        collection, name = found.groups()
        things = self.objects.setdefault(collection, {})
        if method == "POST":
            return self._create(collection, body)
        if name is None:
            return 200, self._list(list(things.values()), path)
        if name not in things:
            return _status(404, f'"{name}" not found')
        return {"GET": self._get, "PATCH": self._patch, "DELETE": self._delete}[method](collection, name, body)

    def _list(self, things: list[Object], path: str) -> Object:
        begin = int(parse_qs(urlsplit(path).query).get("continue", ["0"])[0])
        end = begin + self.page_size
        after = {"continue": str(end)} if end < len(things) else {}
        return {"kind": "List", "metadata": after, "items": things[begin:end]}

    def _get(self, collection: str, name: str, _: Object) -> tuple[int, Object]:
        thing = self.objects[collection][name]
        if collection.endswith("/jobsets"):
            self._let_time_pass(collection, name, thing)
        if name not in self.objects[collection]:
            return _status(404, f'"{name}" not found')
        return 200, copy.deepcopy(thing)

    def _create(self, collection: str, body: Object) -> tuple[int, Object]:
        name = body["metadata"]["name"]
        if name in self.objects[collection]:
            return _status(409, f'"{name}" already exists')
        namespace = collection.split("/")[-2]
        body["metadata"]["namespace"] = namespace
        if collection.endswith("/jobsets"):
            body["status"] = {"restarts": 0, "replicatedJobsStatus": [{"name": "workers", "active": 1}]}
        self.add(collection, body)
        return 201, copy.deepcopy(self.objects[collection][name])

    def _patch(self, collection: str, name: str, patch: Object) -> tuple[int, Object]:
        thing = self.objects[collection][name]
        if self.somebody_writes_before_patch:
            self.somebody_writes_before_patch -= 1
            thing["metadata"]["resourceVersion"] = str(next(self._numbers))
        version = patch.get("metadata", {}).get("resourceVersion")
        if version not in (None, thing["metadata"]["resourceVersion"]):
            return _status(409, "the object has been modified; please apply your changes to the latest version")
        changed = merge(copy.deepcopy(thing), patch)
        objection = _webhook(thing, changed) if collection.endswith("/jobsets") else None
        if objection:
            return _status(422, objection)
        changed["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.objects[collection][name] = changed
        self.looks[name] = self.looks_until_stopped
        return 200, copy.deepcopy(changed)

    def _delete(self, collection: str, name: str, options: Object) -> tuple[int, Object]:
        thing = self.objects[collection][name]
        if options.get("preconditions", {}).get("uid") not in (None, thing["metadata"]["uid"]):
            return _status(409, "the UID in the precondition does not match")
        if collection.endswith("/jobsets"):
            thing["metadata"]["deletionTimestamp"] = "2026-06-01T12:00:00Z"
            self.looks[name] = self.looks_until_stopped
        else:
            del self.objects[collection][name]
        return 200, {"kind": "Status", "status": "Success"}

    def _let_time_pass(self, collection: str, name: str, jobset: Object) -> None:
        """Do what the JobSet controller and the garbage collector do, a look at a time."""
        if self.looks.get(name, 0) > 0:
            self.looks[name] -= 1
        elif "deletionTimestamp" in jobset["metadata"]:
            del self.objects[collection][name]
        else:
            is_suspended = bool(jobset["spec"].get("suspend"))
            _set_condition(jobset, "Suspended", is_suspended)
            for one in jobset["status"]["replicatedJobsStatus"]:
                one["active"] = 0 if is_suspended else 1


def merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    target = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merge(target.get(key), value)
    return target


def load(name: str) -> Object:
    loaded: Object = json.loads((DATA / f"{name}.json").read_text())
    return loaded


def fill(fake: FakeKubernetes) -> None:
    """Begin anew with three nodes, a JobSet, and its pods on two of them."""
    fake.objects.clear()
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        node = load("node")
        node["metadata"]["name"] = name
        fake.add(NODES, node)
    fake.add(JOBSETS, load("jobset"))
    fake.objects[KEEPERS] = {}
    for at, host in enumerate(("gpu-1", "gpu-2")):
        pod = {"metadata": {"name": f"llm-workers-0-{at}"}, "spec": {"nodeName": host}}
        fake.add("/api/v1/namespaces/train/pods", pod)


@contextmanager
def serve(fake: FakeKubernetes) -> Iterator[str]:

    class Handler(Quiet, BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: apart, they would wait for the other side's acknowledgement

        def _any(self) -> None:
            if fake.hang.is_set():
                self.connection.recv(1)  # never answers; ends when the other side gives up
                self.close_connection = True
                return
            fake.tokens.add(self.headers.get("Authorization"))
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            with fake.lock:
                status, message = fake.answer(self.command, self.path, body)
            data = json.dumps(message).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if fake.trickles:
                for at in range(len(data)):
                    self.wfile.write(data[at : at + 1])
                    self.wfile.flush()
                    fake.byte_sent()
            else:
                self.wfile.write(data)

        do_GET = do_PATCH = do_POST = do_DELETE = _any  # noqa: N815 (http.server's names)

    with serving(Handler) as url:
        yield url


def _webhook(old: Object, new: Object) -> str | None:
    """Return what the JobSet webhook objects to: only a suspended template's annotations, labels … may change."""
    old_jobs, new_jobs = copy.deepcopy(old["spec"]["replicatedJobs"]), copy.deepcopy(new["spec"]["replicatedJobs"])
    if old["spec"].get("suspend") or new["spec"].get("suspend"):
        for one in (*old_jobs, *new_jobs):
            template = one["template"]["spec"]["template"]
            template.pop("metadata", None)
            for key in ("nodeSelector", "tolerations", "schedulingGates"):
                template["spec"].pop(key, None)
    return None if old_jobs == new_jobs else "spec.replicatedJobs: Invalid value: field is immutable"


def _set_condition(jobset: Object, kind: str, is_true: bool) -> None:
    conditions = jobset["status"].setdefault("conditions", [])
    conditions[:] = [one for one in conditions if one["type"] != kind]
    conditions.append({"type": kind, "status": str(is_true)})


def _status(code: int, message: str) -> tuple[int, Object]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}


def make(api: Any, **options: Any) -> KubernetesController:
    return KubernetesController(api, KubernetesOptions(**options), ManualClock())


def expect(report: Report, outcome: str, *words: str) -> None:
    assert report.outcome == outcome, report
    for word in words:
        assert word in report.what
