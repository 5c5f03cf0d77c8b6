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
from pathlib import Path

from pydantic import Field, model_validator

from collector.switches.profiles import Profile, Strict, check_all, load_profiles
from lockstep.errors import BadSettings

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
    max_mb: int = Field(
        256, ge=1, le=4096
    )  # largest answer, unpacked; of it only lines that the profile wants are kept
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
            complaints.append(f"{target.url}: profile {profile.name} does not tell the switch, so the target must")
    if complaints:
        raise BadSettings(complaints)
