"""What ft_launcher is told when it asks why a cycle of its job ended (`--ft-attribution-endpoint`). Pure.

The launcher posts the path of a log and then asks `GET /logs?log_path=…` until the status is completed. It acts on
one word only: STOP ends the job with exit code 93 (do not requeue), and only under `--ft-attribution-stop-action
no-restart`. A wrong STOP costs without bound, a wrong RESTART costs one cycle, so STOP is said only for a decision
that is being carried out and that the launcher cannot bring about by restarting.
"""

from typing import Any, Literal

from lockstep.decision import Decision

Recommendation = Literal["STOP", "RESTART", "CONTINUE", "UNKNOWN"]
_SOURCE = "lockstep"
_NEEDS_NEW_LAYOUT = ("reconfigure", "grow")  # the launcher starts the same command again, with the same layout
_NEEDS_NOTHING = ("none", "reroute")


def answer_submission(log_path: str) -> dict[str, Any]:
    """Return the answer to POST /logs: taken. The log itself is not read; verdicts rest on telemetry."""
    return {"submitted": True, "normalized_path": log_path, "mode": "single"}


def answer_logs(decision: Decision | None, is_settled: bool) -> dict[str, Any]:
    """Return the answer to GET /logs; `is_settled`: without a decision by now, none will come.

    The launcher keeps a single question open at a time, so one that is never settled would silence it for good.
    """
    action, reason = recommend(decision)
    return {
        "status": "completed" if decision is not None or is_settled else "pending",
        "result": {"module": _SOURCE, "result_id": decision.id if decision else "", "result": reason},
        "recommendation": {"action": action, "reason": reason, "source": _SOURCE},
        "wl_restart": decision.attempt if decision else 0,
    }


def recommend(decision: Decision | None) -> tuple[Recommendation, str]:
    """Return the launcher's word for a decision, and the reason."""
    if decision is None:
        return "UNKNOWN", "no incident of this job is known"
    if decision.action in _NEEDS_NOTHING:
        return "CONTINUE", decision.reason
    is_under_way = decision.mode == "execute" and decision.held_because is None
    if decision.action in _NEEDS_NEW_LAYOUT and is_under_way:
        return "STOP", f"the job is started again with another layout: {decision.reason}"
    return "RESTART", decision.reason
