"""Grids, times and failures for tests of schedules."""

from hypothesis import strategies as st

from lockstep.pipeline.schedule import Shape, Times, Worker, unit_times

EXAMPLE = Shape(stages=4, pipelines=3, micro_batches=6)  # the worked example of the ReCycle paper
SLOTS = unit_times(4)
ONE_GONE = frozenset({Worker(1, 2)})

lengths = st.floats(0.1, 10.0)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    return Shape(draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5)))


@st.composite
def times_for(draw: st.DrawFn, shape: Shape) -> Times:
    forward, back, weight = (draw(st.lists(lengths, min_size=shape.stages, max_size=shape.stages)) for _ in range(3))
    return Times(forward, back, weight, transfer=draw(st.sampled_from([0.0, 0.3, 2.0])))


@st.composite
def failures_for(draw: st.DrawFn, shape: Shape) -> frozenset[Worker]:
    """Any workers, as long as each stage keeps one."""
    failed: set[Worker] = set()
    for stage in range(shape.stages):
        lost = draw(st.sets(st.integers(0, shape.pipelines - 1), max_size=min(2, shape.pipelines - 1)))
        failed |= {Worker(pipeline, stage) for pipeline in lost}
    return frozenset(failed)


def spread(shape: Shape, failures: int) -> frozenset[Worker]:
    """Failures of different stages and pipelines, from the last stage upwards."""
    stages, pipelines = shape.stages, shape.pipelines
    return frozenset(
        Worker((number + number // stages) % pipelines, (-1 - number) % stages) for number in range(failures)
    )
