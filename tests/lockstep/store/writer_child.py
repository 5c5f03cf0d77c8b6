"""A process that inserts numbered batches into an embedded store and says after each that it is in."""

import sys
from pathlib import Path

import pyarrow as pa

from lockstep.errors import StoreAway
from lockstep.records import Collective
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME
from tests.builders import T0, make, rows

COLLECTIVES = TABLE_BY_NAME["collectives"]


def batch(number: int, size: int) -> pa.Table:
    """Return the batch of that number: always the same rows for the same number."""
    one = rows(make(Collective, seq=number, enqueue_ns=T0 + number))
    many = pa.concat_tables([one] * size).combine_chunks()
    return many.set_column(
        many.schema.get_field_index("rank"), many.schema.field("rank"), pa.array(range(size), pa.uint32())
    )


def insert_numbered(store: Store, number: int, size: int) -> None:
    store.insert(COLLECTIVES, batch(number, size), token=f"writer/{number}")


def main(path: str, first: int, end: int, size: int) -> None:
    with open_store(f"chdb://{Path(path)}", memory_bytes=1 << 30) as store:
        migrate(store, Layout(store.database), now_ns=1)
        for number in range(first, end):
            try:
                insert_numbered(store, number, size)
            except StoreAway as error:
                print(f"away {error}", flush=True)
                return
            print(f"in {number}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
