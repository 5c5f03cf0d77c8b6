"""Straight into ClickHouse, without a gateway: for clusters of up to 50 hosts."""

from collector.shipping import Batch
from lockstep.batches import Receipt, decode_batch
from lockstep.errors import DestinationAway, StoreError
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME

_MOST = 1 << 40  # we packed it ourselves, so nothing has to be guarded against


def open_client(url: str, password: str, agent: str) -> "StoreClient":
    return StoreClient(open_store(url, password=password), agent)


class StoreClient:
    """Inserts the batches of one agent. Detail requests do not come this way, and nobody checks whose rows come."""

    address = None

    def __init__(self, store: Store, agent: str) -> None:
        self._store, self._agent = store, agent

    def send(self, batch: Batch) -> Receipt:
        """Insert table by table; what is repeated after a fault has the same tokens and changes nothing."""
        try:
            for name, rows in decode_batch(batch.body, _MOST, _MOST).items():
                token = f"{self._agent}/{batch.boot}/{batch.number}/{name}"
                self._store.insert(TABLE_BY_NAME[name], rows, token)
        except StoreError as error:
            raise DestinationAway(f"the store does not take rows: {error}") from error
        return Receipt(watermark=batch.number)

    def close(self) -> None:
        self._store.close()
