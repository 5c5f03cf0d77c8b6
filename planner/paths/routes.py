"""Which route the probes of each port took last, and how well that is borne out: rows of `probes` folded by port.

Cost: a sort of the rows, then array operations.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KEY = ("host", "src_nic", "dst", "dst_nic", "proto", "sport", "dport")
FOLDED = (*KEY, "route", "agreed", "differing", "returned", "lost", "lost_since", "seen_ns", "tried_ns")
SILENT = "*"  # a hop that did not answer, as the collector writes it
_JOIN = "\n"  # between hops: no node has a line break in its name


def fold_probes(probes: pa.Table) -> pa.Table:
    """Return one row per port out of rows of `probes`: its newest route, and how the probes bear it out.

    `agreed` probes took it since one last took another, of which there were `differing`; before that `returned` took
    it already. Of the probes since the first that agreed `lost` were lost, `lost_since` at the end. A port that never
    answered has the route that its lost probes seem to have taken.
    """
    if not probes.num_rows:
        return _as_folded(probes.select(KEY), [], *(np.zeros(0, np.int64) for _ in FOLDED[len(KEY) + 1 :]))
    hops = probes["hops"].cast(pa.list_(pa.string()))
    route = pc.binary_join(hops, _JOIN).combine_chunks().dictionary_encode()
    names = pc.binary_join_element_wise(*(probes[name].cast(pa.string()) for name in KEY), _JOIN).combine_chunks()
    _, first, key = np.unique(np.asarray(names.dictionary_encode().indices), return_index=True, return_inverse=True)
    order = np.lexsort((np.asarray(route.indices), np.asarray(probes["ts_ns"]), key))
    key, ts_ns, way = key[order], np.asarray(probes["ts_ns"])[order], np.asarray(route.indices)[order]
    is_lost = np.asarray(pc.is_null(probes["rtt_ns"]))[order]
    texts = route.dictionary.to_pylist()
    whole = np.array([bool(text) and SILENT not in text.split(_JOIN) for text in texts], bool)
    counted = _count(key, ts_ns, np.where(whole[way], way, -1), is_lost, len(first))
    routes = [texts[number].split(_JOIN) if number >= 0 else [] for number in counted[0].tolist()]
    return _as_folded(probes.select(KEY).take(pa.array(first)), routes, *counted[1:])


def _count(
    key: np.ndarray, ts_ns: np.ndarray, way: np.ndarray, is_lost: np.ndarray, keys: int
) -> tuple[np.ndarray, ...]:
    """Return the columns of a fold, of rows in the order of key and time; way -1: not whole."""
    tells, newest = ~is_lost & (way >= 0), np.full(keys, -1)
    for rows in (is_lost & (way >= 0), tells):
        newest[key[rows]] = way[rows]  # the last one stays, and an answered one before all that were lost
    same, other = tells & (way == newest[key]), tells & (way != newest[key])
    moved, answered, tried, seen = (
        _latest(key, ts_ns, rows, keys) for rows in (other, ~is_lost, np.ones_like(is_lost), same)
    )
    agreed = same & (ts_ns > moved[key])
    since = _latest(key[::-1], ts_ns[::-1], agreed[::-1], keys)  # backwards: the first of them
    counts = (agreed, other, same & ~agreed, is_lost & (ts_ns > since[key]), is_lost & (ts_ns > answered[key]))
    return newest, *(np.bincount(key[rows], minlength=keys) for rows in counts), np.maximum(seen, 0), tried


def _latest(key: np.ndarray, ts_ns: np.ndarray, rows: np.ndarray, keys: int) -> np.ndarray:
    latest = np.full(keys, -1)
    latest[key[rows]] = ts_ns[rows]
    return latest


def _as_folded(keys: pa.Table, routes: Sequence[Sequence[str]], *columns: np.ndarray) -> pa.Table:
    folded = dict(zip(KEY, keys.columns, strict=True)) | {"route": pa.array(routes, pa.list_(pa.string()))}
    return pa.table(folded | {name: pa.array(column) for name, column in zip(FOLDED[8:], columns, strict=True)})
