"""What each wire needed before: own history, against which a change of one wire counts."""

from dataclasses import dataclass, field

import numpy as np

# Looks over five seconds that begin two seconds apart: three of them span nine seconds, several training steps.
MIN_LOOKS = 3
# First a plain mean, so that the past is known after a few looks; later it forgets slowly, over some minutes, so
# that a wire that gets worse little by little does not take its past with it.
MOST_LOOKS = 60
# A row that was not seen for this many looks is forgotten: its communicator is gone, or its size of operation.
FORGOTTEN_AFTER = 300


@dataclass(frozen=True)
class Past:
    """What is remembered of some rows."""

    log_delay: np.ndarray  # NaN where too little is known
    swing: np.ndarray  # mean difference from look to look, 0 where unknown


@dataclass(frozen=True)
class WireMemory:
    """The usual delay of every row of the matrix, by key; arrays are parallel and sorted by key."""

    keys: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    log_delay: np.ndarray = field(default_factory=lambda: np.zeros(0))  # of nanoseconds per byte
    swing: np.ndarray = field(default_factory=lambda: np.zeros(0))  # by how much that differs from look to look
    looks: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # that it was learnt from
    unseen: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # looks since

    @property
    def has_past(self) -> bool:
        """Return whether anything is known well enough to be held against."""
        return bool((self.looks >= MIN_LOOKS).any())

    def recall(self, keys: np.ndarray) -> "Past":
        """Return the usual delay of each row, NaN where too little is known of it."""
        if not len(self.keys):
            return Past(np.full(len(keys), np.nan), np.zeros(len(keys)))
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = (self.keys[place] == keys) & (self.looks[place] >= MIN_LOOKS)
        return Past(np.where(known, self.log_delay[place], np.nan), np.where(known, self.swing[place], 0.0))

    def learn(self, keys: np.ndarray, log_delay: np.ndarray) -> "WireMemory":
        """Return the memory after one more look at these rows; of rows with one key, the last counts."""
        keys, first = np.unique(keys[::-1], return_index=True)
        log_delay = log_delay[::-1][first]
        place = np.minimum(np.searchsorted(self.keys, keys), max(len(self.keys) - 1, 0))
        known = self.keys[place] == keys if len(self.keys) else np.zeros(len(keys), bool)
        past, swing, looks, unseen = self.log_delay.copy(), self.swing.copy(), self.looks.copy(), self.unseen + 1
        into = place[known]
        looks[into] = np.minimum(looks[into] + 1, MOST_LOOKS)
        swing[into] += (np.abs(log_delay[known] - past[into]) - swing[into]) / (looks[into] - 1)
        past[into] += (log_delay[known] - past[into]) / looks[into]
        unseen[into] = 0
        kept = unseen <= FORGOTTEN_AFTER
        fresh = ~known
        merged = np.concatenate([self.keys[kept], keys[fresh]])
        order = np.argsort(merged, kind="stable")
        return WireMemory(
            keys=merged[order],
            log_delay=np.concatenate([past[kept], log_delay[fresh]])[order],
            swing=np.concatenate([swing[kept], np.zeros(int(fresh.sum()))])[order],
            looks=np.concatenate([looks[kept], np.ones(int(fresh.sum()), np.int64)])[order],
            unseen=np.concatenate([unseen[kept], np.zeros(int(fresh.sum()), np.int64)])[order],
        )
