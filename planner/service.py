"""The shell around the planner: open incidents in, decisions out, one planner at a time."""

from lockstep.control.database import ControlDatabase
from lockstep.control.decisions import list_decisions, save_decisions
from lockstep.control.incidents import open_incidents
from lockstep.control.leases import Lease
from lockstep.incident import Incident
from planner.recovery.decide import DecideOptions, decide


class PlannerService:
    """Gives every open incident a decision, and a new one when the old one has expired."""

    def __init__(self, control: ControlDatabase, options: DecideOptions) -> None:
        self._control = control
        self._options = options

    def run_once(self, lease: Lease, now_ns: int) -> int:
        """Decide what is undecided, save it under the lease, return how many decisions that were."""
        undecided = [incident for incident in open_incidents(self._control) if not self._is_decided(incident, now_ns)]
        decisions = [
            decide(incident, incident.verdict.impact.ranks_waiting + 1, lease.generation, now_ns, self._options)
            for incident in undecided
        ]
        if decisions:
            save_decisions(self._control, decisions, lease)
        return len(decisions)

    def _is_decided(self, incident: Incident, now_ns: int) -> bool:
        known = list_decisions(self._control, incident=incident.id, limit=1)
        return bool(known) and known[0].expires_ns > now_ns
