"""What failed workers cost under each way of going on: the figures that a person wants before choosing one."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from lockstep.pipeline.checking import Bound, closed_form, find_bound
from lockstep.pipeline.dispatch import ScheduleOptions, plan_schedule
from lockstep.pipeline.schedule import Kind, Op, Schedule, Shape, Times, Worker


@dataclass(frozen=True, slots=True)
class Comparison:
    """Length of a step in the unit of the times, for each way of going on."""

    fault_free: float  # 1F1B with all workers
    coupled: Schedule  # re-routed into 1F1B: backwards first, and in one piece
    decoupled: Schedule  # with the weights put off
    staggered: Schedule  # and each stage with an optimizer step of its own
    dropped: float | None  # 1F1B on the pipelines that are whole, with the same global batch; None where none is
    bound: Bound  # of the last two
    promised: float  # the closed form


def compare(shape: Shape, times: Times, failed: Collection[Worker], memory: int | None = None) -> Comparison:
    """Return what a step takes without failures, and with them in each way; memory limits only what is re-routed."""
    plain = ScheduleOptions(is_decoupled=False, is_staggered=False, memory=memory, keeps_order=True)
    one_makespan = ScheduleOptions(is_staggered=False, memory=memory)
    whole = shape.pipelines - len({worker.pipeline for worker in failed})
    return Comparison(
        fault_free=_one_pipeline(shape, times, shape.micro_batches),
        coupled=plan_schedule(shape, times, failed, plain),
        decoupled=plan_schedule(shape, times, failed, one_makespan),
        staggered=plan_schedule(shape, times, failed, ScheduleOptions(memory=memory)),
        dropped=_one_pipeline(shape, times, -(-shape.micro_batches * shape.pipelines // whole)) if whole else None,
        bound=find_bound(shape, times, failed, is_decoupled=True),
        promised=closed_form(shape, times, failed),
    )


def _one_pipeline(shape: Shape, times: Times, micro_batches: int) -> float:
    """Return the makespan of plain 1F1B; all whole pipelines do the same."""
    options = ScheduleOptions(is_decoupled=False, is_staggered=False, keeps_order=True)
    return plan_schedule(Shape(shape.stages, 1, micro_batches), times, (), options).makespan


_WIDEST, _NARROWEST = 28.0, 1.2  # of one average piece of work, in the unit of the SVG
_WIDTH = 1500.0  # that a picture should not exceed by much
_ROW, _LEFT, _TOP = 20, 110, 76
_LABELS = 12.0  # width of a box from which there is room for a number

# kind: colour, word for people, letter
_LEGEND: dict[Kind, tuple[str, str, str]] = {
    "forward": ("#56b4e9", "forward", "F"),
    "input": ("#e69f00", "backward for the input", "B"),
    "weight": ("#009e73", "backward for the weights", "W"),
    "both": ("#cc79a7", "backward in one piece", "B"),
}
_STYLE = (
    ".page{fill:#ffffff}.ink{fill:#1a1a1a}.quiet{fill:#555555}.lane{fill:#f0f0f0}.hatch{stroke:#9a9a9a}"
    "@media (prefers-color-scheme:dark){.page{fill:#161a1f}.ink{fill:#eeeeee}.quiet{fill:#aaaaaa}"
    ".lane{fill:#262c33}.hatch{stroke:#777777}}"
)


def draw_schedule(schedule: Schedule, title: str) -> str:
    """Return an SVG of a schedule; guests, which come from another pipeline, have a dark edge.

    Colours are told apart by colour-blind people too (Okabe and Ito), have letters on them, and stand on a background
    of their own, so that the picture is readable on light and dark pages.
    """
    shape = schedule.shape
    workers = [Worker(pipeline, stage) for stage in range(shape.stages) for pipeline in range(shape.pipelines)]
    scale = _find_scale(schedule)
    width, height = _LEFT + schedule.makespan * scale + 20, _TOP + len(workers) * _ROW + 34
    size = f'width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc" {size} font-size="11">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(describe(schedule))}</desc>',
        f"<style>{_STYLE}</style>",
        _HATCH,
        f'<rect class="page" width="{width:.0f}" height="{height}"/>',
        '<g font-family="sans-serif">',
        f'<text class="ink" x="10" y="20" font-size="14">{escape(title)}</text>',
        *_draw_legend(schedule),
    ]
    for row, worker in enumerate(workers):
        parts += _draw_worker(schedule, worker, _TOP + row * _ROW, scale)
    parts += _draw_scale(schedule, _TOP + len(workers) * _ROW, scale)
    return "\n".join([*parts, "</g></svg>", ""])


def describe(schedule: Schedule) -> str:
    """Return the picture in words, for those who do not see it."""
    shape = schedule.shape
    gone = ", ".join(f"pipeline {pipeline} stage {stage}" for pipeline, stage in sorted(schedule.failed)) or "none"
    return (
        f"{shape.pipelines} pipelines of {shape.stages} stages with {shape.micro_batches} micro-batches each; "
        f"failed workers: {gone}; all work ends after {schedule.makespan:g}, "
        f"the longest stage is at work for {schedule.period:g}."
    )


_HATCH = (
    '<defs><pattern id="gone" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line class="hatch" x1="0" y1="0" x2="0" y2="8" stroke-width="3"/></pattern></defs>'
)


def _find_scale(schedule: Schedule) -> float:
    """Return the width of one unit of time."""
    ops = [op for some in schedule.ops.values() for op in some]
    usual = sum(op.end - op.start for op in ops) / len(ops)
    fits = (_WIDTH - _LEFT) / schedule.makespan
    return min(_WIDEST / usual, max(_NARROWEST / usual, fits))


def _draw_legend(schedule: Schedule) -> Iterator[str]:
    x = 10.0
    used = {op.kind for ops in schedule.ops.values() for op in ops}
    for kind, (colour, word, letter) in _LEGEND.items():
        if kind in used:
            yield f'<rect x="{x}" y="32" width="14" height="14" fill="{colour}"/>'
            yield f'<text class="ink" x="{x + 19}" y="43">{letter}: {word}</text>'
            x += 60 + 6 * len(word)
    yield f'<rect x="{x}" y="32" width="14" height="14" fill="#dddddd" stroke="#000000" stroke-width="2"/>'
    yield f'<text class="ink" x="{x + 19}" y="43">re-routed</text>'
    yield f'<rect class="lane" x="{x + 90}" y="32" width="14" height="14"/>'
    yield f'<rect x="{x + 90}" y="32" width="14" height="14" fill="url(#gone)"/>'
    yield f'<text class="ink" x="{x + 109}" y="43">failed</text>'


def _draw_worker(schedule: Schedule, worker: Worker, top: float, scale: float) -> Iterator[str]:
    lane = f'x="{_LEFT}" y="{top + 1}" width="{schedule.makespan * scale:.1f}" height="{_ROW - 2}"'
    yield f'<text class="quiet" x="10" y="{top + 14}">stage {worker.stage} pipe {worker.pipeline}</text>'
    yield f'<rect class="lane" {lane}/>'
    if worker in schedule.failed:
        yield f'<rect {lane} fill="url(#gone)"><title>failed</title></rect>'
    for op in schedule.ops.get(worker, ()):
        yield from _draw_op(op, top, scale)


def _draw_op(op: Op, top: float, scale: float) -> Iterator[str]:
    colour, word, letter = _LEGEND[op.kind]
    x, width = _LEFT + op.start * scale, (op.end - op.start) * scale
    edge = ' stroke="#000000" stroke-width="2"' if op.pipeline != op.worker.pipeline else ""
    box = f'x="{x + 0.5:.2f}" y="{top + 2}" width="{max(width - 1, 0.5):.2f}" height="{_ROW - 4}"'
    message = f"{word} of micro-batch {op.micro_batch} of pipeline {op.pipeline}, {op.start:g} to {op.end:g}"
    yield f'<rect {box} fill="{colour}"{edge}><title>{escape(message)}</title></rect>'
    if width >= _LABELS:
        middle = f'x="{x + width / 2:.2f}" y="{top + 14}" text-anchor="middle"'
        label = f"{letter if width >= 2 * _LABELS else ''}{op.micro_batch}"
        yield f'<text {middle} font-size="9" fill="#000000">{label}</text>'


def _draw_scale(schedule: Schedule, top: float, scale: float) -> Iterator[str]:
    for part in range(5):
        timing = schedule.makespan * part / 4
        index = f'x="{_LEFT + timing * scale:.1f}" y="{top + 16}" text-anchor="middle"'
        yield f'<text class="quiet" {index}>{timing:.4g}</text>'
