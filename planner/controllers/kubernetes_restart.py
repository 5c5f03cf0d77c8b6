"""The steps of a JobSet's restart, each of which can be found again and gone on from after a crash.

Suspending leaves its trace in the JobSet: the mark, and `suspend`. Recreating would lose the job if we died between
deleting and creating, so the new manifest is kept in a ConfigMap before anything is deleted, and the ConfigMap goes
last.
"""

import hashlib
import json
from dataclasses import dataclass

from lockstep.errors import ControllerDown
from planner.controllers.kubernetes_api import Answer, Calls, Object
from planner.controllers.kubernetes_jobsets import (
    API_VERSION,
    MARK,
    has_stopped,
    is_restarted,
    read_mark,
    recreate,
    resume_patch,
    suspend_patch,
)
from planner.controllers.protocol import Report, Restart

_CONFLICT = 409
_KEY = "jobset.json"
_REPLACES = "lockstep.dev/replaces"


@dataclass(frozen=True, slots=True)
class KeptManifest:
    """A restart that was begun: what to create, and in whose place."""

    manifest: Object
    replaces: str  # uid of the JobSet that goes
    uid: str  # of the ConfigMap that holds it


class Restarting:
    """One order on one JobSet."""

    def __init__(self, calls: Calls, namespace: str, name: str, order: Restart, workers: str | None) -> None:
        self._calls, self.order, self._workers = calls, order, workers
        self.is_begun = False  # something of the job is stopped or deleted, or about to be
        self._jobsets, self._path = jobset_path(namespace), jobset_path(namespace, name)
        self._keepers = f"/api/v1/namespaces/{namespace}/configmaps"
        # The name of a ConfigMap allows less than a mark does.
        self._keeper = "lockstep-restart-" + hashlib.sha256(order.mark.encode()).hexdigest()[:16]

    def suspend(self, jobset: Object) -> Report | None:
        """Suspend a JobSet, wait until its pods are gone, and resume it; None when it is no longer as it was seen."""
        answer = self._calls.patch(self._path, suspend_patch(jobset, self.order))
        if answer.status == _CONFLICT:
            return None
        if not answer.is_good:
            return self._failed("suspended", answer)
        return self.finish(answer.body)

    def finish(self, jobset: Object) -> Report:
        """Bring to its end what was begun under this mark; `already` when there is nothing left to do."""
        if is_restarted(jobset, self.order.mark):
            what = f"JobSet {self.order.job} was restarted under {self.order.mark} before"
            return Report("already", what, self.order.job)
        self.is_begun = True
        if not self._calls.wait_until(self._has_stopped):
            what = f"the pods of JobSet {self.order.job} have not stopped yet; ask again to resume it"
            return Report("failed", what)
        answer = self._calls.patch(self._path, resume_patch())
        if not answer.is_good:
            return self._failed("resumed", answer)
        return Report("done", f"JobSet {self.order.job} was suspended and resumed", self.order.job)

    def recreate(self, jobset: Object) -> Report:
        """Delete a JobSet and create it again, changed as ordered."""
        replaces = str(jobset["metadata"]["uid"])
        kept = recreate(jobset, self.order, self._workers)
        answer = self._calls.create(self._keepers, self._keep(kept, replaces))
        if not answer.is_good:
            return self._failed("kept in a ConfigMap, and so not touched", answer)
        return self.replace(KeptManifest(kept, replaces, str(answer.body["metadata"]["uid"])))

    def find_kept(self) -> KeptManifest | None:
        """Return the restart that was begun under this mark and not ended."""
        answer = self._calls.get(f"{self._keepers}/{self._keeper}")
        if not answer.is_good:
            return None
        try:
            metadata = answer.body["metadata"]
            manifest = json.loads(answer.body["data"][_KEY])
            return KeptManifest(manifest, metadata["annotations"][_REPLACES], str(metadata["uid"]))
        except (KeyError, ValueError):
            raise ControllerDown(f"ConfigMap {self._keeper} is damaged: look at it, then delete it") from None

    def replace(self, kept: KeptManifest) -> Report:
        """Go on from wherever an earlier try has come to."""
        self.is_begun = True
        seen = self._calls.get(self._path)
        if seen.is_good and seen.body["metadata"]["uid"] == kept.replaces:
            answer = self._calls.delete(self._path, kept.replaces)
            if not answer.is_good and answer.status != 404:
                return self._failed("deleted", answer)
            if not self._calls.wait_until(lambda: self._calls.get(self._path).status == 404):
                return Report(
                    "failed", f"JobSet {self.order.job} is still being deleted; ask again to create it anew"
                )
        elif seen.is_good:
            return self._end(kept, seen.body)
        answer = self._calls.create(self._jobsets, kept.manifest)
        if not answer.is_good:
            return self._failed(f"created again (its manifest is in ConfigMap {self._keeper})", answer)
        self._calls.delete(f"{self._keepers}/{self._keeper}", kept.uid)
        return Report("done", f"JobSet {self.order.job} was deleted and created again", self.order.job)

    def _has_stopped(self) -> bool:
        answer = self._calls.get(self._path)
        return answer.is_good and has_stopped(answer.body)

    def _end(self, kept: KeptManifest, found: Object) -> Report:
        """Forget the restart: its JobSet has been created, by us or by somebody else."""
        self._calls.delete(f"{self._keepers}/{self._keeper}", kept.uid)
        if read_mark(found) == self.order.mark:
            return self.finish(found)
        return Report("refused", f"somebody else has created JobSet {self.order.job} while it was restarted")

    def _keep(self, manifest: Object, replaces: str) -> Object:
        annotations = {MARK: self.order.mark, _REPLACES: replaces}
        metadata = {"name": self._keeper, "annotations": annotations}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {_KEY: json.dumps(manifest)}}

    def _failed(self, done: str, answer: Answer) -> Report:
        return Report("failed", f"JobSet {self.order.job} was not {done}: {answer.said}")


def jobset_path(namespace: str, name: str = "") -> str:
    """Return where a JobSet is found; without a name, where all are."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/jobsets/{name}".rstrip("/")
