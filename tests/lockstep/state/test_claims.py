"""Every batch is claimed by one gateway, whoever asks first, and however often each asks."""

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import select

from lockstep.batches import BatchName
from lockstep.state.claims import KEPT_NS, BatchClaims
from lockstep.state.database import ControlDatabase
from lockstep.state.tables import BATCH_CLAIMS

HOUR_NS = 3_600_000_000_001


def names(*numbers: int, agent: str = "h0", boot: str = "b1") -> set[BatchName]:
    return {BatchName(agent, boot, number) for number in numbers}


def stretches(db: ControlDatabase) -> list[tuple[str, str, int, int, str]]:
    c = BATCH_CLAIMS.c
    with db.read() as connection:
        found = connection.execute(select(c.agent, c.boot, c.first, c.last, c.gateway).order_by(c.agent, c.first))
        return [tuple(row) for row in found]


def test_a_batch_is_the_first_ones_for_good_and_a_run_of_them_is_one_row(db: ControlDatabase) -> None:
    here, there = BatchClaims(db), BatchClaims(db)
    assert here.claim("a", names(1, 2), 1) == names(1, 2)
    assert here.claim("a", names(3) | names(1, boot="b2"), 1) == names(3) | names(1, boot="b2")
    assert there.claim("b", names(3, 4, 5), 1) == names(4, 5), "the receipt of 3 was lost"
    assert here.claim("a", names(2, 3, 4, 7), 1) == names(2, 3, 7), "the same as before, also after a restart"
    assert there.claim("b", names(6, 7), 1) == names(6), "what another gateway acknowledged first and claims later"
    runs = [(1, 1, "a"), (1, 3, "a"), (4, 6, "b"), (7, 7, "a")]
    assert sorted(row[2:] for row in stretches(db)) == runs


def test_gateways_that_claim_at_once_never_both_have_a_batch(db: ControlDatabase) -> None:
    wanted = [names(number, agent=f"h{host}") for host in range(6) for number in range(1, 8)]
    with ThreadPoolExecutor(4) as pool:

        def claim_all(gateway: str) -> set[BatchName]:
            claims = BatchClaims(db)
            return set().union(*(claims.claim(gateway, each, 1) for each in wanted))

        shares = list(pool.map(claim_all, "abcd"))
    assert sum(map(len, shares)) == len(wanted)
    assert set().union(*shares) == set().union(*wanted)


def test_what_nobody_sent_for_a_month_is_forgotten(db: ControlDatabase) -> None:
    claims = BatchClaims(db)
    claims.claim("a", names(1), HOUR_NS)
    claims.claim("a", names(1, agent="h1"), HOUR_NS + KEPT_NS)
    assert [row[0] for row in stretches(db)] == ["h0", "h1"]
    claims.claim("a", names(2, agent="h1"), 2 * HOUR_NS + KEPT_NS)
    assert stretches(db) == [("h1", "b1", 1, 2, "a")]
