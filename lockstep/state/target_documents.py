"""How a receiver of alerts lies in the control database: its address and secrets sealed, the rest in clear."""

import json
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from lockstep.alert_settings import Target
from lockstep.errors import SealBroken, StoreVersionMismatch
from lockstep.state.database import Keys

_HIDDEN = ("url", "secrets")  # the path of a chat's webhook is as good as a password
_SEALED = "sealed"

Kind = TypeVar("Kind", bound=Target)


class LostTarget(Target):
    """A receiver whose address and secrets cannot be opened, so nothing is sent to it."""

    lost_because: str = Field(description="one sentence: which key is missing, and what to do")

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:  # what would be checked is what was lost
        return self

    @property
    def shown_address(self) -> str:
        return ""


def write_target(keys: Keys, target: Target) -> str:
    """Return the document of a receiver; its name is sealed in, so that no row opens in another's place."""
    document = target.model_dump(mode="json")
    hidden = {name: document.pop(name) for name in _HIDDEN}
    sealed = keys.seal(json.dumps(hidden).encode(), _about(target.name))
    return json.dumps(document | {_SEALED: sealed}, ensure_ascii=False)


def read_target(keys: Keys, name: str, text: str) -> Target:
    """Return the receiver of a document, also of one in clear; a LostTarget where its key is not there."""
    document = _parse(name, text)
    if (sealed := document.pop(_SEALED, None)) is None:
        return _checked(Target, name, document)
    try:
        hidden = json.loads(keys.unseal(str(sealed), _about(name)))
    except SealBroken as broken:
        because = (
            f"the address and the secrets of {name} cannot be opened: {broken}; "
            "put the key back, or give `url` and `secrets` anew"
        )
        return _checked(LostTarget, name, document | {"lost_because": because})
    return _checked(Target, name, document | hidden)


def is_sealed_anew(keys: Keys, name: str, text: str) -> bool:
    """Return whether a document is sealed with the newest key already."""
    sealed = _parse(name, text).get(_SEALED)
    return sealed is not None and keys.is_newest(str(sealed))


def _about(name: str) -> str:
    return f"target:{name}"


def _parse(name: str, text: str) -> dict[str, Any]:  # Any: not yet checked
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise StoreVersionMismatch(f"the control database holds a target {name!r} that is no document")
    return document


def _checked(kind: type[Kind], name: str, document: dict[str, Any]) -> Kind:
    try:
        return kind.model_validate(document)
    except ValidationError as error:  # without the values, which may be secrets
        first = error.errors()[0]
        raise StoreVersionMismatch(
            f"the control database holds a target {name!r} that this version cannot read: "
            f"{first['msg']} at {first['loc']}"
        ) from None
