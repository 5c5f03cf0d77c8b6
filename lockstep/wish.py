"""The answer to a collector's batch: how far it is safe, and what the server wishes for; each wish expires."""

from typing import Any

from pydantic import ConfigDict, Field

from lockstep.verdict import Frozen


class Wish(Frozen):
    """One thing that a host's collector is asked to do."""

    model_config = ConfigDict(extra="ignore")  # an agent may be older than its server

    id: str
    host: str
    kind: str = Field(description="detail, probe or last_minutes; an agent ignores what it does not know")
    details: dict[str, Any] = Field(description="which ranks, which path, how long; each kind has its own")
    expires_ns: int = Field(ge=0, description="UNIX time; from then on nobody wants it any more")


class Receipt(Frozen):
    """A batch is on the server's disk, and so is everything of its agent and boot up to the watermark."""

    model_config = ConfigDict(extra="ignore")  # an agent may be older than its server

    watermark: int = Field(ge=0)
    wishes: tuple[Wish, ...] = ()
