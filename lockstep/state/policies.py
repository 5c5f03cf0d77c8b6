"""What a site changes while the planner runs: what may be done by itself, and how much; older versions are kept."""

import json
from typing import Any, Literal

from pydantic import Field, field_validator
from sqlalchemy import Row, Select, delete, select

from lockstep.decision import Action, Mode
from lockstep.errors import ChangedMeanwhile
from lockstep.sections import PlannerSettings
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import insert_into, read_document, record_within
from lockstep.state.tables import POLICIES
from lockstep.verdict import Frozen

PolicyName = Literal["planner"]
PLANNER: PolicyName = "planner"
MOST_VERSIONS = 1_000  # of one policy; beyond them the oldest go


class PlannerPolicy(Frozen):
    """What the planner may do without a person; the words are those of the section [planner] of the settings."""

    modes: dict[Action, Mode] = Field(description="by action; one that is not named is only observed")
    nodes_per_hour: int = Field(ge=0, description="most nodes that are isolated in an hour without a person")
    restarts_per_hour: int = Field(ge=0, description="most jobs that are restarted in an hour without a person")
    nodes_out: int = Field(ge=0, description="most nodes that are out of service at once without a person")
    share_of_block: float = Field(ge=0, le=1, description="the same within one rack or leaf; one always may be")
    gpu_hour_price: float | None = Field(None, ge=0, allow_inf_nan=False, description="what a GPU-hour costs")
    spares: tuple[str, ...] = Field((), description="nodes kept idle for replacements, best first")

    @field_validator("spares")
    @classmethod
    def _check_spares(cls, spares: tuple[str, ...]) -> tuple[str, ...]:
        if not all(name.strip() == name and name for name in spares):
            raise ValueError("the name of a spare is empty or has blanks around it")
        if len(set(spares)) < len(spares):
            raise ValueError("a spare is named twice")
        return spares


class PolicyVersion(Frozen):
    """A policy as it was at one time; version 0 is what the settings say."""

    name: PolicyName
    version: int = Field(ge=0)
    changed_ns: int = Field(ge=0)
    who: str
    why: str
    policy: PlannerPolicy


def policy_of(settings: PlannerSettings) -> PlannerPolicy:
    """Return what the settings say, which holds until somebody stores another."""
    return PlannerPolicy.model_validate({name: getattr(settings, name) for name in PlannerPolicy.model_fields})


def current_policy(db: ControlDatabase) -> PlannerPolicy | None:
    """Return the planner's policy that somebody stored last; None where the settings hold."""
    found = find_policy(db, PLANNER)
    return found.policy if found else None


def find_policy(db: ControlDatabase, name: PolicyName) -> PolicyVersion | None:
    """Return the version in force; None where nobody has stored one."""
    return next(iter(list_policy_versions(db, name, limit=1)), None)


def list_policy_versions(db: ControlDatabase, name: PolicyName, limit: int) -> list[PolicyVersion]:
    """Return the newest versions first."""
    with db.read() as connection:
        rows = connection.execute(_newest_first(name).limit(limit)).all()
    return [_version(row) for row in rows]


def save_policy(
    db: ControlDatabase, name: PolicyName, policy: PlannerPolicy, *, after: int, who: str, why: str, now_ns: int
) -> PolicyVersion:
    """Store the version after that one, with a line in the audit; ChangedMeanwhile where there is a newer one."""
    made = PolicyVersion(name=name, version=after + 1, changed_ns=now_ns, who=who, why=why, policy=policy)
    row = made.model_dump(exclude={"policy"}) | {"document": policy.model_dump_json()}
    with db.begin() as connection:
        newest = connection.execute(_newest_first(name).limit(1)).one_or_none()
        there = newest.version if newest else 0
        insert = insert_into(connection, POLICIES).values(row).on_conflict_do_nothing().returning(POLICIES.c.version)
        # On PostgreSQL two writers may both see the same newest; then one finds the version taken.
        if there != after or connection.scalar(insert) is None:
            raise ChangedMeanwhile(f"policy {name} is at version {there} by now, not {after}: read it again")
        connection.execute(
            delete(POLICIES).where(POLICIES.c.name == name, POLICIES.c.version <= made.version - MOST_VERSIONS)
        )
        before = _version(newest).policy if newest else None
        reason = f"{why}: {_difference(before, policy)}".removeprefix(": ")
        record_within(connection, who=who, what="change_policy", subject=name, why=reason, now_ns=now_ns)
    return made


def _difference(before: PlannerPolicy | None, after: PlannerPolicy) -> str:
    """Return what changed in words, for the audit."""
    old, new = before.model_dump() if before else {}, after.model_dump(mode="json")
    changed = [f"{name} is now {json.dumps(new[name])}" for name in new if old.get(name, ...) != getattr(after, name)]
    return "; ".join(changed) or "nothing changed"


def _newest_first(name: PolicyName) -> Select[Any]:  # Any: whole rows
    return select(POLICIES).where(POLICIES.c.name == name).order_by(POLICIES.c.version.desc())


def _version(row: Row[Any]) -> PolicyVersion:
    values = {key: value for key, value in row._mapping.items() if key != "document"}
    return PolicyVersion.model_validate(values | {"policy": read_document(PlannerPolicy, row.document)})
