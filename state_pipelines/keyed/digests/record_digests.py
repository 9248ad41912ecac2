"""Digests of records that do not depend on their order, to compare the contents of two files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.compiled import load_i64, load_u8, njit
from state_pipelines.keyed.record_layout import cut_nulls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from state_pipelines.keyed.record_layout import KeyedRecords


Spans = npt.NDArray[np.int64]

MODULUS = 1 << 64
"""Of sums of hashes."""


@dataclass(frozen=True)
class RecordDigest:
    """Number, size and digest of the records of a state.

    Attributes:
        records: how many (of a map: its entries).
        bytes: of keys and values.
        digest: sum of a 64-bit hash of every record with its key group, modulo 2**64.
        content: the same without the key groups: it stays when records move to others.
    """

    records: int = 0
    bytes: int = 0
    digest: int = 0
    content: int = 0

    def __add__(self, other: RecordDigest) -> RecordDigest:
        return RecordDigest(
            self.records + other.records,
            self.bytes + other.bytes,
            (self.digest + other.digest) % MODULUS,
            (self.content + other.content) % MODULUS,
        )

    def __sub__(self, other: RecordDigest) -> RecordDigest:
        return RecordDigest(
            self.records - other.records,
            self.bytes - other.bytes,
            (self.digest - other.digest) % MODULUS,
            (self.content - other.content) % MODULUS,
        )

    @property
    def without_key_groups(self) -> RecordDigest:
        """The part of the digest that stays when records move to other key groups."""
        return replace(self, digest=0)


def sum_digests(digests: Iterable[Mapping[str, RecordDigest]]) -> dict[str, RecordDigest]:
    """The digests of states, by name, of several files together."""
    totals: dict[str, RecordDigest] = {}
    for each in digests:
        for name, digest in each.items():
            totals[name] = totals.get(name, RecordDigest()) + digest
    return totals


def digest_run(records: KeyedRecords, *, is_map: bool) -> RecordDigest:
    """Digest records of one state, without the bytes after a null flag in values of a map."""
    total = digest_records(records.key_groups, *list_spans(records, is_map=is_map))
    return RecordDigest(*total.tolist())


def list_spans(records: KeyedRecords, *, is_map: bool) -> tuple[int, Spans, Spans, Spans, Spans]:
    """Address and spans of keys and values, without the bytes after a null flag in values of a map."""
    ends = cut_nulls(records) if is_map else records.value_ends
    return records.data.ctypes.data, records.key_starts, records.key_ends, records.value_starts, ends


_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(29)


@njit(cache=True, inline="never")
def hash_bytes(seed, start, end):  # type: ignore[no-untyped-def]
    """64-bit hash of the bytes between two addresses, started by `seed`."""
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


@njit(cache=True)
def hash_keys(key_groups, base, key_starts, key_ends):  # type: ignore[no-untyped-def]
    """64-bit hash of each key with its key group, u64[n]; spans are relative to the address `base`."""
    found = np.empty(len(key_groups), np.uint64)
    for row in range(len(key_groups)):
        found[row] = hash_bytes(np.uint64(key_groups[row]), base + key_starts[row], base + key_ends[row])
    return found


@njit(cache=True, inline="always")
def hash_number(seed, number):  # type: ignore[no-untyped-def]
    """64-bit hash of a number of as many bits, started by `seed`."""
    state = (seed ^ number) * _MULTIPLIER
    state = (state ^ state >> _SHIFT) * _MIXER
    return state ^ state >> _SHIFT


@njit(cache=True, inline="never")
def hash_record(base, key_start, key_end, value_start, value_end):  # type: ignore[no-untyped-def]
    """64-bit hash of a record without its key group; spans are relative to the address `base`."""
    state = hash_bytes(np.uint64(0), base + key_start, base + key_end)
    return hash_bytes(state, base + value_start, base + value_end)


@njit(cache=True, inline="always")
def add_key_group(content, key_group):  # type: ignore[no-untyped-def]
    """The hash of a record with its key group, from that without."""
    state = (content ^ np.uint64(key_group + 1) * _MULTIPLIER) * _MIXER
    return state ^ state >> _SHIFT


@njit(cache=True, nogil=True)
def digest_records(key_groups, base, key_starts, key_ends, value_starts, value_ends):  # type: ignore[no-untyped-def]
    """Count, bytes, digest and content of records.

    Args:
        key_groups: i32[n].
        base: address to which the spans i64[n] are relative.
        key_starts: of the keys.
        key_ends: see `key_starts`.
        value_starts: of the values.
        value_ends: see `value_starts`.

    Returns:
        u64[4].
    """
    result = np.zeros(4, np.uint64)
    for row in range(len(key_groups)):
        _add_record(result, key_groups[row], base, key_starts[row], key_ends[row], value_starts[row], value_ends[row])
    return result


@njit(cache=True, nogil=True)
def digest_key_groups(first, sums, key_groups, base, key_starts, key_ends, value_starts, value_ends):  # type: ignore[no-untyped-def]
    """Add records to the digests of their key groups.

    Args:
        first: the key group of the first row of `sums`.
        sums: u64[k, 4], count, bytes, digest and content of each key group.
        key_groups: as in `digest_records`, like all following arguments.
        base: see `key_groups`.
        key_starts: see `key_groups`.
        key_ends: see `key_groups`.
        value_starts: see `key_groups`.
        value_ends: see `key_groups`.
    """
    for row in range(len(key_groups)):
        group = key_groups[row]
        sums_of_group = sums[group - first]
        _add_record(sums_of_group, group, base, key_starts[row], key_ends[row], value_starts[row], value_ends[row])


@njit(cache=True, inline="always")
def _add_record(sums, key_group, base, key_start, key_end, value_start, value_end):  # type: ignore[no-untyped-def]
    content = hash_record(base, key_start, key_end, value_start, value_end)
    sums[0] += np.uint64(1)
    sums[1] += np.uint64(key_end - key_start + value_end - value_start)
    sums[2] += add_key_group(content, key_group)
    sums[3] += content
