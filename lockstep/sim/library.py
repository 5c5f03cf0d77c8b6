"""The stories that come with Lockstep: families in files, each told in several strengths, on several transports.

A family `nic-tx` with strengths mild and strong and both transports gives nic-tx-mild-ib, nic-tx-strong-ib and so
on, and for each transport a healthy twin, nic-tx-healthy-ib: the same cluster and job in which nothing breaks.
Text in braces stands for what a strength says, {story} for the story's own name, which its job has too. A cluster or
job may be `like` one in shapes.toml.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any  # what TOML holds

from pydantic import ValidationError

from lockstep.errors import BadStory, NotPresent
from lockstep.sim.story import BENIGN, Story, check_story

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_SHAPES = "shapes.toml"


def list_stories() -> list[Story]:
    """Return all stories that come with Lockstep, by name."""
    return [_packaged()[name] for name in sorted(_packaged())]


def find_story(name: str) -> Story:
    """Return a story by name, or raise NotPresent with the families there are."""
    if name not in _packaged():
        families = ", ".join(sorted({story.family for story in _packaged().values()}))
        raise NotPresent(f"there is no story {name!r}; `lockstep story list` shows all of these families: {families}")
    return _packaged()[name]


@cache
def _packaged() -> dict[str, Story]:
    folder = resources.files("lockstep.sim").joinpath("stories")
    files = [file for file in folder.iterdir() if file.name.endswith(".toml") and file.name != _SHAPES]
    families = (parse_family(file.read_text(encoding="utf-8"), file.name.removesuffix(".toml")) for file in files)
    return {story.name: story for family in families for story in family}


def parse_story(text: str, name: str) -> Story:
    """Return the one story in a TOML text, or raise BadStory with everything that is wrong in it."""
    return _story(name, name, _read(text, name))


def parse_family(text: str, name: str) -> list[Story]:
    """Return all stories of a family."""
    if not _NAME.fullmatch(name):
        raise BadStory(f"story {name!r}: a name has small letters, digits and dashes")
    told = _read(text, name)
    strengths, transports = told.pop("strengths", {}), told.pop("transports", [])
    return list(_tell(name, told, strengths, transports))


def _tell(
    family: str, told: dict[str, Any], strengths: Mapping[str, Mapping[str, object]], transports: list[str]
) -> Iterator[Story]:
    for transport in transports or [""]:
        suffix = f"-{transport}" if transport else ""
        there = told | {"cluster": told.get("cluster", {}) | ({"transport": transport} if transport else {})}
        for strength, words in (strengths or {"": {}}).items():
            name = family + (f"-{strength}" if strength else "") + suffix
            yield _story(name, family, _fill(there, {"story": name, **words}))
        if there.get("expect") and (strengths or transports):
            yield _healthy_twin(
                _story(f"{family}-healthy{suffix}", family, _fill(there, next(iter(strengths.values()), {})))
            )


def _healthy_twin(story: Story) -> Story:
    calm = tuple(turn for turn in story.timeline if turn.effect in BENIGN and turn.effect != "heal")
    summary = f"{story.summary.rstrip('.')}: the healthy twin, in which nothing breaks"
    return story.model_copy(update={"timeline": calm, "expect": (), "summary": summary})


def _fill(told: Any, words: Mapping[str, object]) -> Any:
    """Return the same with every {word} of a strength replaced; a value that is one word takes its type."""
    if isinstance(told, dict):
        return {key: _fill(value, words) for key, value in told.items()}
    if isinstance(told, list):
        return [_fill(value, words) for value in told]
    if isinstance(told, str):
        whole = re.fullmatch(r"\{(\w+)\}", told)
        if whole and whole[1] in words:
            return words[whole[1]]
        return re.sub(r"\{(\w+)\}", lambda match: str(words.get(match[1], match[0])), told)
    return told


def _story(name: str, family: str, told: Mapping[str, Any]) -> Story:
    try:
        story = Story.model_validate(dict(told) | {"name": name, "family": family})
    except BadStory as error:
        raise BadStory(f"story {name}: {error}") from None
    except ValidationError as error:
        complaints = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise BadStory(f"story {name}: {complaints}") from None
    check_story(story)
    return story


def _read(text: str, name: str) -> dict[str, Any]:
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadStory(f"story {name} is not TOML: {error}") from None
    for part in ("cluster", "job"):
        if isinstance(told.get(part), dict):
            told[part] = _shape(name, part, told[part])
    return told


def _shape(name: str, part: str, told: dict[str, Any]) -> dict[str, Any]:
    like = told.pop("like", None)
    if like is None:
        return told
    shapes = _shapes().get(part, {})
    if like not in shapes:
        raise BadStory(f"story {name}: there is no {part} {like!r} to be like; there are {', '.join(shapes)}")
    return {**shapes[like], **told}


@cache
def _shapes() -> dict[str, Any]:
    file = resources.files("lockstep.sim").joinpath("stories", _SHAPES)
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
