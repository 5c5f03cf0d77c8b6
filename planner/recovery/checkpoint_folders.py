"""The checkpoints of each job in a folder of its own, looked at again only from time to time."""

from dataclasses import replace
from pathlib import Path

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from planner.recovery.checkpoints.boundary import expect_next_save
from planner.recovery.checkpoints.catalogue import ReadOptions, read_catalogue
from planner.recovery.checkpoints.checkpoint import Catalogue
from planner.recovery.checkpoints.checkpoint import Layout as SavedLayout
from planner.recovery.checkpoints.choosing import CONVERTER, Choice, ChoiceOptions, choose_checkpoint
from planner.recovery.checkpoints.converting import find_obstacle
from planner.recovery.checkpoints.intervals import find_usual_interval_s
from planner.recovery.checkpoints.loading import ReadRate
from planner.recovery.facts import Layout, Resume

_LOOK_S = 5.0  # between two looks at a folder: network file systems bear few


class CheckpointFolders:
    """Answers from the folder that a pattern such as /checkpoints/{job} names."""

    def __init__(
        self,
        pattern: str,
        read_mb_per_s: float,
        quiet_s: float = ReadOptions().quiet_s,
        converter: tuple[str, ...] = CONVERTER,  # empty: nothing is converted here
    ) -> None:
        self._pattern, self._reading = pattern, ReadOptions(quiet_s=quiet_s)
        rate = ReadRate(source="remote", bytes_per_s=read_mb_per_s * 1e6)
        self._options = ChoiceOptions(rates=(rate,), converter=converter)
        self._seen: dict[str, Catalogue] = {}

    def newest(self, job: str, layout: Layout | None, now_ns: int, is_resized: bool = False) -> Resume | None:
        """Return the newest checkpoint that is verified complete and loads on a layout; None: there is none.

        Without a layout a job starts again as it was; where it is resized, nothing is known of its layout then, and
        only a checkpoint will do that loads on any.
        """
        catalogue = self._look(job, now_ns)
        saved = next((each.layout for each in catalogue.complete), SavedLayout())
        told = SavedLayout.of(layout.as_target()) if layout else None
        target = told or (SavedLayout() if is_resized else saved)
        choice = self._choose(catalogue, target)
        found = choice.checkpoint
        if found is None or choice.load_from is None:
            return None
        return Resume(
            path=choice.load_from,
            form="universal" if choice.convert else found.format,
            age_s=max(found.age_s(now_ns), 0.0),
            load_s=choice.load_s or 0.0,
            convert=choice.convert,
            convert_s=choice.convert_s or 0.0,
            bytes=found.bytes,
            obstacle=self._find_obstacle(choice),
        )

    def save_every_s(self, job: str, now_ns: int) -> float | None:
        """Return the usual time from one checkpoint to the next; None: too few are there."""
        return find_usual_interval_s(self._look(job, now_ns))

    def catalogue(self, job: str, now_ns: int) -> Catalogue:
        """Return all checkpoints of a job that are there, with what is known of each."""
        return self._look(job, now_ns)

    def next_save_s(self, job: str, now_ns: int) -> float | None:
        """Return when the next one is expected, by the gaps between those that are there."""
        expected_ns = expect_next_save(self._look(job, now_ns), now_ns)
        return None if expected_ns is None else (expected_ns - now_ns) / NS_PER_S

    def _choose(self, catalogue: Catalogue, target: SavedLayout) -> Choice:
        """Return the choice; where its conversion cannot be done from here, the best that needs none, if there is."""
        choice = choose_checkpoint(catalogue, target, self._options)
        if self._find_obstacle(choice) is None:
            return choice
        older = choose_checkpoint(catalogue, target, replace(self._options, may_convert=False))
        return older if older.checkpoint else choice

    def _find_obstacle(self, choice: Choice) -> str | None:
        found, made = choice.checkpoint, choice.load_from
        if not choice.convert or found is None or made is None:
            return None
        if not self._options.converter:
            return f"{found.path} must be converted for the new layout, and planner.converter is not set"
        return find_obstacle(found.path, made)

    def _look(self, job: str, now_ns: int) -> Catalogue:
        before = self._seen.get(job)
        if before is None or now_ns - before.seen_ns >= _LOOK_S * NS_PER_S:
            # A job's name comes from telemetry: it must not lead out of the folder.
            folder = Path(self._pattern.replace("{job}", job.replace("/", "_").strip(".") or "_"))
            self._seen[job] = before = self._read(folder, job, now_ns, before)
        return before

    def _read(self, folder: Path, job: str, now_ns: int, before: Catalogue | None) -> Catalogue:
        try:
            return read_catalogue(folder, now_ns, job=job, before=before, options=self._reading)
        except BadInput as absent:
            return Catalogue(job=job, folder=str(folder), seen_ns=now_ns, remarks=(str(absent),))
