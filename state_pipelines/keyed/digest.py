"""Digests of records that do not depend on their order: what two files hold of a state is the same, or is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from state_pipelines.binary.memory import load_i64, load_u8
from state_pipelines.keyed.records import cut_nulls

if TYPE_CHECKING:
    from state_pipelines.keyed.files import KeyedFile, RecordContext
    from state_pipelines.metadata.key_groups import KeyGroupRange


@dataclass(frozen=True)
class RecordDigest:
    """What there is of a state.

    Attributes:
        records: how many (of a map: its entries).
        bytes: of keys and values.
        digest: sum of a 64-bit hash of every record with its key group, modulo 2**64.
    """

    records: int
    bytes: int
    digest: int


def digest_states(file: KeyedFile, context: RecordContext, key_groups: KeyGroupRange) -> dict[str, RecordDigest]:
    """Digests of all states of a file, by name; one pass over it.

    The bytes behind the flag of a null in a map do not count: some writers leave them out.
    """
    totals = {info.name: np.zeros(3, np.uint64) for info in file.header.states}
    for state_id, records in file.scan(range(len(file.header.states)), context, key_groups):
        info = file.header.states[state_id]
        value_ends = cut_nulls(records) if info.state_type == "MAP" else records.value_ends
        totals[info.name] += digest_records(
            records.key_groups,
            records.data.ctypes.data,
            records.key_starts,
            records.key_ends,
            records.value_starts,
            value_ends,
        )
    return {name: RecordDigest(*(int(each) for each in total)) for name, total in totals.items()}


_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(29)


@njit(cache=True, inline="never")
def _hash_bytes(seed, start, end):  # type: ignore[no-untyped-def]
    state = seed
    at = start
    while at + 8 <= end:
        state = (state ^ np.uint64(load_i64(at))) * _MULTIPLIER
        state ^= state >> _SHIFT
        at += 8
    rest = np.uint64(end - start)
    while at < end:
        rest = (rest << np.uint64(8)) ^ np.uint64(load_u8(at))
        at += 1
    state = (state ^ rest) * _MULTIPLIER
    state ^= state >> _SHIFT
    return state * _MIXER


@njit(cache=True, nogil=True)
def digest_records(key_groups, base, key_starts, key_ends, value_starts, value_ends):  # type: ignore[no-untyped-def]
    """Count, bytes and digest of records.

    Args:
        key_groups: i32[n].
        base: address to which the spans i64[n] are relative.
        key_starts: of the keys.
        key_ends: see `key_starts`.
        value_starts: of the values.
        value_ends: see `value_starts`.

    Returns:
        u64[3].
    """
    result = np.zeros(3, np.uint64)
    for row in range(len(key_groups)):
        state = _hash_bytes(np.uint64(key_groups[row]), base + key_starts[row], base + key_ends[row])
        state = _hash_bytes(state, base + value_starts[row], base + value_ends[row])
        result[0] += np.uint64(1)
        result[1] += np.uint64(key_ends[row] - key_starts[row] + value_ends[row] - value_starts[row])
        result[2] += state
    return result
