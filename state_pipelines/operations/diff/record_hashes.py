"""Records as hashes: which of them only one of two sides has, and which have another value.

A record is two numbers, the hash of its key and that of its key and value. So two sides of any format are joined by
sorting numbers, and no more than these is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.binary.compiled import njit
from state_pipelines.keyed.digests import add_key_group, hash_bytes
from state_pipelines.operations.diff.diff_report import ExampleKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

SUMS = 4
"""Columns of sums: records, bytes, digest and content, as `RecordDigest` has them."""


@dataclass(frozen=True)
class Hashes:
    """Some records.

    Attributes:
        groups: i32[n], the key group of each; zeros where there are none.
        keys: u64[n], hash of key group and key.
        records: u64[n], the same with the value.
    """

    groups: npt.NDArray[np.int32]
    keys: npt.NDArray[np.uint64]
    records: npt.NDArray[np.uint64]

    def select(self, rows: npt.NDArray[np.bool_]) -> Hashes:
        """Some of them."""
        return Hashes(self.groups[rows], self.keys[rows], self.records[rows])


@dataclass(frozen=True)
class Candidate:
    """A key whose records differ.

    Attributes:
        kind: how.
        group: its key group.
        key: hash of the key.
        one: hash of a record of the one that the other does not have; None when there is none.
        other: likewise.
    """

    kind: ExampleKind
    group: int
    key: int
    one: int | None
    other: int | None


@dataclass(frozen=True)
class Differences:
    """Records that only one of two snapshots has.

    Attributes:
        only_in_one: records without a counterpart of their key.
        only_in_other: likewise.
        changed: records with a counterpart of their key that has another value.
        candidates: some of each sort, ascending by key group.
    """

    only_in_one: int = 0
    only_in_other: int = 0
    changed: int = 0
    candidates: tuple[Candidate, ...] = ()


def concat_hashes(batches: Iterable[Hashes]) -> Hashes:
    """Records of several batches as one."""
    held = list(batches)
    if not held:
        return Hashes(np.zeros(0, np.int32), np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    return Hashes(
        np.concatenate([each.groups for each in held]),
        np.concatenate([each.keys for each in held]),
        np.concatenate([each.records for each in held]),
    )


def sum_differences(found: Sequence[Differences], limit: int) -> Differences:
    """Combine findings of several tasks, with at most `limit` candidates, taken from each kind in turn."""
    sorts = [
        [candidate for each in found for candidate in each.candidates if candidate.kind is kind] for kind in ExampleKind
    ]
    chosen: list[Candidate] = []
    while len(chosen) < limit and any(sorts):
        chosen += [each.pop(0) for each in sorts if each]
    return Differences(
        sum(each.only_in_one for each in found),
        sum(each.only_in_other for each in found),
        sum(each.changed for each in found),
        tuple(chosen[:limit]),
    )


def join_hashes(one: Hashes, other: Hashes, limit: int) -> Differences:
    """Compare two sides; records of one key may be several, and are counted as often as they are there.

    Args:
        one: records of the one.
        other: records of the other.
        limit: how many candidates of each sort are wanted.
    """
    keys = np.concatenate([one.keys, other.keys])
    if not len(keys):
        return Differences()
    records = np.concatenate([one.records, other.records])
    order = np.lexsort((records, keys))
    keys, records = keys[order], records[order]
    groups = np.concatenate([one.groups, other.groups])[order]
    signs = np.where(order < len(one.keys), 1, -1)
    # Of each record how often it is left over, of which side.
    starts = np.flatnonzero(np.concatenate([[True], (keys[1:] != keys[:-1]) | (records[1:] != records[:-1])]))
    net = np.add.reduceat(signs, starts)
    left = np.flatnonzero(net)
    if not len(left):
        return Differences()
    keys, records, groups, net = keys[starts][left], records[starts][left], groups[starts][left], net[left]
    firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    ones = np.add.reduceat(np.maximum(net, 0), firsts)
    others = np.add.reduceat(np.maximum(-net, 0), firsts)
    changed = np.minimum(ones, others)
    # Where the records of a key begin that only this side has.
    rows = np.arange(len(net))
    none = len(net)
    row_one = np.minimum.reduceat(np.where(net > 0, rows, none), firsts)
    row_other = np.minimum.reduceat(np.where(net < 0, rows, none), firsts)
    candidates: list[Candidate] = []
    for kind, which in (
        (ExampleKind.CHANGED, changed > 0),
        (ExampleKind.ONE, (ones > others) & (others == 0)),
        (ExampleKind.OTHER, (others > ones) & (ones == 0)),
    ):
        found = np.flatnonzero(which)
        found = found[np.argsort(groups[firsts[found]], kind="stable")[:limit]]
        candidates += (
            Candidate(
                kind,
                int(groups[firsts[row]]),
                int(keys[firsts[row]]),
                int(records[row_one[row]]) if ones[row] else None,
                int(records[row_other[row]]) if others[row] else None,
            )
            for row in found
        )
    total = int(changed.sum())
    return Differences(int(ones.sum()) - total, int(others.sum()) - total, total, tuple(candidates))


@njit(cache=True, nogil=True)
def hash_records(key_groups, base, key_starts, key_ends, value_starts, value_ends, keys, records):  # type: ignore[no-untyped-def]
    """Hashes of records.

    Args:
        key_groups: i32[n].
        base: address to which the spans i64[n] are relative.
        key_starts: of the keys.
        key_ends: see `key_starts`.
        value_starts: of the values.
        value_ends: see `value_starts`.
        keys: u64[n], gets the hashes of the keys with their key groups.
        records: u64[n], gets those of the whole records.
    """
    for row in range(len(key_groups)):
        key = hash_bytes(np.uint64(0), base + key_starts[row], base + key_ends[row])
        key = add_key_group(key, key_groups[row])
        keys[row] = key
        records[row] = hash_bytes(key, base + value_starts[row], base + value_ends[row])
