"""Which exporters a site wants scraped, and how their labels become names of the topology: the file of targets.

    [[target]]
    url = "http://ufm:9100/metrics"
    profile = "ufm_telemetry"
    authorization_file = "/etc/lockstep/ufm-authorization"   # sent as it is: Bearer …, Basic …
    switch_names = [{ pattern = "2c90300f172a0", to = "leaf1" }, { pattern = ".*", to = "" }]
    port_names = [{ pattern = "(\\d+)", to = "p\\1" }]

The first pattern that fits a whole name decides; `to` may use its groups, and an empty one leaves the port out. What
no pattern fits stays as it is. The file may hold profiles of its own; one of the same name replaces ours.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lockstep.errors import BadSettings

Column = Literal[
    "up", "speed_mbps", "rx_bytes", "tx_bytes", "errors", "drops", "pause_rx", "pause_tx", "fec_uncorrected", "extra"
]
Kind = TypeVar("Kind", bound="Strict")
_WORD = Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")


class Strict(BaseModel):
    """Something that a person wrote: frozen, and nothing is taken that has no meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ignored_types=(cached_property,))


class MetricRule(Strict):
    """Which column a metric is, and how its value reads; fabric_profiles.toml explains the fields."""

    metric: str = _WORD
    column: Column
    name: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    scale: float = Field(1.0, gt=0)
    up_values: tuple[float, ...] = ()
    up_label: str = ""
    up_texts: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_up(self) -> "MetricRule":
        by_label = bool(self.up_label and self.up_texts)
        if (self.column == "up") != (by_label or bool(self.up_values)):
            raise ValueError("up_values, or up_label with up_texts, belong to column up, which needs them")
        return self

    def holds_for(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(name) == value for name, value in self.labels.items())

    def is_up(self, labels: Mapping[str, str], value: float) -> bool:
        """Return whether a sample of a port's state says that it is up."""
        return labels.get(self.up_label) in self.up_texts if self.up_label else value in self.up_values


class SwitchNames(Strict):
    """A metric whose labels tell the name of what others call by a key."""

    metric: str = _WORD
    key: str
    name: str


class Profile(Strict):
    """What one kind of exporter serves."""

    name: str = Field(min_length=1)
    switch: tuple[str, ...] = ()
    port: tuple[str, ...] = Field(min_length=1)
    linked_only: bool = False
    any_prefix: bool = False
    switch_names: SwitchNames | None = None
    metric: tuple[MetricRule, ...] = Field(min_length=1)

    @cached_property
    def rules(self) -> dict[str, tuple[MetricRule, ...]]:
        rules: dict[str, tuple[MetricRule, ...]] = {}
        for rule in self.metric:
            rules[canonical(rule.metric)] = (*rules.get(canonical(rule.metric), ()), rule)
        return rules

    @cached_property
    def _named(self) -> re.Pattern[str]:
        return re.compile(f"(?:{self._prefix})({self._alternatives})")

    @cached_property
    def wanted_lines(self) -> re.Pattern[bytes]:
        """What lines of an exposition look like that are worth parsing: most exporters serve ten times as much."""
        name = f"{self._prefix}(?:{self._alternatives})(?:_total)?"
        return re.compile(rf"^(?:# EOF|# TYPE {name} |{name}[ \t{{])[^\n]*".encode(), re.MULTILINE)

    def key_of(self, metric: str) -> str | None:
        """Return the canonical name of a metric that this profile knows, or None."""
        found = self._named.fullmatch(canonical(metric))
        return found[1] if found else None

    @property
    def _prefix(self) -> str:
        return "(?:[a-zA-Z0-9_:]*?_)?" if self.any_prefix else ""

    @property
    def _alternatives(self) -> str:
        names = {*self.rules, *([canonical(self.switch_names.metric)] if self.switch_names else [])}
        return "|".join(sorted(map(re.escape, names), key=len, reverse=True))


def canonical(metric: str) -> str:
    """Return a metric's name without _total: parsers add it to counters, and exporters disagree about it."""
    return metric.removesuffix("_total")


def load_profiles() -> dict[str, Profile]:
    text = (files("collector") / "data/fabric_profiles.toml").read_text(encoding="utf-8")
    return {profile.name: profile for profile in check_all(Profile, "profile", tomllib.loads(text)["profile"])}


def check_all(kind: type[Kind], word: str, tables: Iterable[object]) -> list[Kind]:
    """Return the tables as what they should be, or raise BadSettings with everything that is wrong about them."""
    checked: list[Kind] = []
    complaints: list[str] = []
    for number, table in enumerate(tables, 1):
        try:
            checked.append(kind.model_validate(table))
        except ValidationError as error:
            complaints += [f"{word} {number}: {text}" for text in _texts(error)]
    if complaints:
        raise BadSettings(complaints)
    return checked


def _texts(error: ValidationError) -> Iterator[str]:
    for one in error.errors(include_url=False, include_input=False):
        location = ".".join(map(str, one["loc"]))
        yield f"{location}: {one['msg']}" if location else one["msg"]


MOST_TARGETS = 256  # each has a thread of its own, so that none waits for another


class Renaming(Strict):
    """One rule from a label to a name of the topology."""

    pattern: str
    to: str

    @model_validator(mode="after")
    def _check_pattern(self) -> "Renaming":
        try:
            re.sub(self.pattern, self.to, "")  # also says when `to` uses a group that is not there
        except re.error as error:
            raise ValueError(f"{self.pattern!r} cannot become {self.to!r}: {error}") from None
        return self


class Target(Strict):
    """One exporter: where it is, what it serves, and how often it is asked."""

    url: str = Field(pattern=r"^https?://[^/?#@\s]+([/?#].*)?$")  # no password in it: it stands in logs
    profile: str
    switch: str = ""  # node id of the switch, where the exporter serves a single one
    every_s: float = Field(15.0, ge=0.1, le=3600)
    timeout_s: float = Field(10.0, gt=0, le=300)
    max_mb: int = Field(256, ge=1, le=4096)  # largest answer, unpacked; only lines that the profile wants are kept
    authorization_file: Path | None = None  # read before each request, so that it may be rotated
    ca_file: Path | None = None
    switch_names: tuple[Renaming, ...] = ()
    port_names: tuple[Renaming, ...] = ()


def load_targets(path: Path) -> list[tuple[Target, Profile]]:
    """Return the targets that a file names, each with its profile, or raise BadSettings with all that is wrong."""
    document = _read(path)
    profiles = load_profiles()
    profiles |= {profile.name: profile for profile in check_all(Profile, "profile", document.get("profile", []))}
    targets = check_all(Target, "target", document.get("target", []))
    _refuse_what_cannot_work(targets, profiles)
    return [(target, profiles[target.profile]) for target in targets]


def rename(name: str, renamings: tuple[Renaming, ...]) -> str:
    """Return what the topology calls this; empty: leave it out.

    >>> rename("10.0.0.1:6030", (Renaming(pattern=r"(.+):\\d+", to=r"\\1"),))
    '10.0.0.1'
    """
    for renaming in renamings:
        if found := re.fullmatch(renaming.pattern, name):
            return found.expand(renaming.to)
    return name


def _read(path: Path) -> dict[str, list[object]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSettings([f"{path}: {error}"]) from None
    unknown = sorted(document.keys() - {"target", "profile"})
    wrong = [f"{path}: there is nothing called {word}; write [[target]] or [[profile]]" for word in unknown]
    wrong += [f"{path}: {word} is written [[{word}]]" for word in document if not isinstance(document[word], list)]
    if wrong:
        raise BadSettings(wrong)
    return document


def _refuse_what_cannot_work(targets: list[Target], profiles: dict[str, Profile]) -> None:
    complaints = []
    if len(targets) > MOST_TARGETS:
        complaints.append(f"{len(targets)} targets are more than {MOST_TARGETS}")
    for target in targets:
        profile = profiles.get(target.profile)
        if profile is None:
            complaints.append(f"{target.url}: there is no profile {target.profile!r}; known: {', '.join(profiles)}")
        elif not profile.switch and not target.switch:
            complaints.append(f"{target.url}: profile {profile.name} does not name the switch, so the target must")
    if complaints:
        raise BadSettings(complaints)
