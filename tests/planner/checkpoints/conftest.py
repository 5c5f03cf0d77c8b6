"""Checkpoints of real programs are read many times over: their pickles are sound, or only broken."""

import pytest


@pytest.fixture
def tried_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickles are read without a child that tries them first, which takes a quarter of a second for each.

    What the child is for is in tests/lockstep/test_read_apart.py and in test_inert_pickle.py.
    """
    monkeypatch.setattr("lockstep.plain_pickle.check_apart", lambda *_: None)
