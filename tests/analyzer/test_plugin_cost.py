"""What a job pays for its detail is decided for the whole of it, by most of its ranks."""

from analyzer.plugin_cost import lower_dear_jobs
from lockstep.records import PluginHealth
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from tests.builders import SECOND, T0, make, rows


def told(job: str, *dear: bool, level: str = "steps", ago_s: int = 0) -> list[PluginHealth]:
    """Return what the ranks of a job say, two on each host."""
    return [
        make(
            PluginHealth, job=job, host=f"h{pid // 2}", pid=pid, dear=is_dear, level=level, ts_ns=T0 - ago_s * SECOND
        )
        for pid, is_dear in enumerate(dear)
    ]


def test_all_ranks_of_a_job_record_less_once_most_pay_too_much_and_nobody_on_the_word_of_few(store: Store) -> None:
    said = [
        *told("one of four", True, False, False, False),
        *told("half", True, True, False, False),
        *told("most", True, True, True, False),
        *told("no more", True, True, True, True, ago_s=5),
        *told("no more", False, False, False, False),
        *told("before", True, True, ago_s=60),
        *told("lowest", True, True, level="operations"),
    ]
    said += [*told("mixed", True, True), *told("mixed", True, True, True, level="transfers")[2:]]
    store.insert(TABLE_BY_NAME["plugins"], rows(*said), token="plugins")
    requests = lower_dear_jobs(store, T0)
    asked = {(each.details["job"], each.host, each.details["level"]) for each in requests}
    assert asked == {
        *(("most", host, "transfers") for host in ("h0", "h1")),
        *(("mixed", host, "operations") for host in ("h0", "h1")),
    }
    assert {(each.kind, each.details["attempt"], each.expires_ns) for each in requests} == {
        ("lower", 0, T0 + 60 * SECOND)
    }
