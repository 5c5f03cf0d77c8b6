"""What a message says to a person: a headline, the reason, the figures, and where to read on."""

from dataclasses import dataclass

from lockstep.clock import rfc3339
from lockstep.news import Matter, News

MOST_LISTED = 20  # matters that a message lists; the page has the others
_LONGEST = 1500  # characters of a reason: Slack cuts a block at 3,000, and a webhook's body stays below 20 KB
_OVER = ("incident.closed", "decision.settled", "action.settled", "lockstep.recovered")
_BEGINNINGS = {
    "incident.updated": "Changed: ",
    "decision.proposed": "Needs approval: ",
    "action.failed": "Failed: ",
    "lockstep.test": "Test: ",
}


@dataclass(frozen=True, slots=True)
class Sending:
    """What a message needs besides the news: when it is sent, where pages are, and the receiver's secrets."""

    now_ns: int
    link: str
    secrets: tuple[str, ...] = ()
    firing_s: float = 300.0  # how long Alertmanager believes that an alert fires without hearing of it again

    def page(self, matter: Matter) -> str:
        return self.link.rstrip("/") + matter.link


def is_over(news: News) -> bool:
    return news.kind in _OVER


def headline(news: News) -> str:
    """Return one line that tells what is the matter, or what is over."""
    beginning = "Over: " if is_over(news) else _BEGINNINGS.get(news.kind, "")
    first, *others = news.matters
    if not others:
        return beginning + first.headline
    place = f" in job {first.job}" if first.job else ""
    parts = ", ".join(dict.fromkeys(matter.component for matter in news.matters[:3]))
    more = " and others" if len(news.matters) > 3 else ""
    return f"{beginning}{len(news.matters)} {first.family}s{place}: {parts}{more}"


def paragraphs(news: News) -> list[str]:
    """Return what a person should read, most important first."""
    if len(news.matters) == 1:
        return [cut(news.matters[0].reason)]
    lines = [f"{matter.component}: {cut(matter.reason, 300)}" for matter in news.matters[:MOST_LISTED]]
    left = len(news.matters) - MOST_LISTED
    return [*lines, f"… and {left} more"] if left > 0 else lines


def figures(news: News) -> dict[str, str]:
    """Return what is known in figures of a single matter, and when it began."""
    first = news.matters[0]
    began = {"since": rfc3339(min(matter.since_ns for matter in news.matters))}
    where = {"job": first.job} if first.job else {}
    return where | began | (first.facts if len(news.matters) == 1 else {})


def severity(news: News) -> str:
    """Return how loud it is: critical for what justifies draining a node, or a Lockstep that does not watch."""
    grades = {matter.grade for matter in news.matters}
    if news.kind == "lockstep.test":
        return "info"
    if "isolate" in grades or news.kind in ("action.failed", "lockstep.troubled"):
        return "critical"
    return "warning" if "alert" in grades else "info"


def cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
