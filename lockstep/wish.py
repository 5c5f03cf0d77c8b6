"""The answer to a collector's batch: how far it is safe, and what the server wishes for; each wish expires."""

from typing import Any, Literal

from pydantic import Field

from lockstep.verdict import Frozen

WishKind = Literal["detail", "probe", "last_minutes"]


class Wish(Frozen):
    """One thing that a host's collector is asked to do."""

    id: str
    host: str
    kind: WishKind
    details: dict[str, Any] = Field(description="which ranks, which path, how long; each kind has its own")
    expires_ns: int = Field(ge=0, description="UNIX time; from then on nobody wants it any more")


class Receipt(Frozen):
    """A batch is on the server's disk, and so is everything of its agent and boot up to the watermark."""

    watermark: int = Field(ge=0)
    wishes: tuple[Wish, ...] = ()
