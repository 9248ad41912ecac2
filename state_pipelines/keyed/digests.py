"""Digests of records and of columns by key group, which do not depend on the order of records or rows.

* `RecordDigest`, `digest_records`, `digest_key_groups`: digests of records; `digest_sections`, `digest_changes`: of
  stored bytes and of logged changes.
* `ColumnDigest`, `identify_rows`: digests of the columns of a state by key group. If two tables of the same keys differ
  in a column of a key group, the digests differ. Every value counts together with the identity of its row, so that no
  two rows can be exchanged unnoticed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_pipelines.binary.compiled import load_i64, load_u8, njit
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.logical_values import dense_offsets, flatten_entries
from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.record_layout import cut_nulls
from state_pipelines.keyed.sections import WINDOW, group_sections, read_sections
from state_pipelines.storage.reading import read_ahead

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from state_pipelines.keyed.changelog.changes import ChangeLog
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.keyed.sections import Section
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.metadata.streams import StateStream

Spans = npt.NDArray[np.int64]

MODULUS = 1 << 64
"""Modulus of sums of hashes."""


@dataclass(frozen=True)
class RecordDigest:
    """Number, size and digest of the records of a state.

    Attributes:
        records: number of records (for a map state: of map entries).
        bytes: of keys and values.
        digest: sum of a 64-bit hash of every record with its key group, modulo 2**64.
        content: the same sum without the key groups; it does not change when records move to other key groups.
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
        """The digest without `digest`, so that it does not change when records move to other key groups."""
        return replace(self, digest=0)


def sum_digests(digests: Iterable[Mapping[str, RecordDigest]]) -> dict[str, RecordDigest]:
    """Add up the digests of states, by name, of several files."""
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
    """Return the address of the data and the spans of keys and values; a null map value ends after its null flag."""
    ends = cut_nulls(records) if is_map else records.value_ends
    return records.data.ctypes.data, records.key_starts, records.key_ends, records.value_starts, ends


_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(29)


@njit(cache=True, inline="never")
def hash_bytes(seed, start, end):  # type: ignore[no-untyped-def]
    """Return a 64-bit hash of the bytes between two addresses, seeded with `seed`."""
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
    """Return a 64-bit hash of each key with its key group, u64[n]; spans are relative to the address `base`."""
    found = np.empty(len(key_groups), np.uint64)
    for row in range(len(key_groups)):
        found[row] = hash_bytes(np.uint64(key_groups[row]), base + key_starts[row], base + key_ends[row])
    return found


@njit(cache=True, inline="always")
def hash_number(seed, number):  # type: ignore[no-untyped-def]
    """Return a 64-bit hash of a 64-bit number, seeded with `seed`."""
    state = (seed ^ number) * _MULTIPLIER
    state = (state ^ state >> _SHIFT) * _MIXER
    return state ^ state >> _SHIFT


@njit(cache=True, inline="never")
def hash_record(base, key_start, key_end, value_start, value_end):  # type: ignore[no-untyped-def]
    """Return a 64-bit hash of a record without its key group; spans are relative to the address `base`."""
    state = hash_bytes(np.uint64(0), base + key_start, base + key_end)
    return hash_bytes(state, base + value_start, base + value_end)


@njit(cache=True, inline="always")
def add_key_group(content, key_group):  # type: ignore[no-untyped-def]
    """Add a key group to the hash of a record (`content`); return the hash of both."""
    state = (content ^ np.uint64(key_group + 1) * _MULTIPLIER) * _MIXER
    return state ^ state >> _SHIFT


@njit(cache=True, nogil=True)
def digest_records(key_groups, base, key_starts, key_ends, value_starts, value_ends):  # type: ignore[no-untyped-def]
    """Return the fields of a `RecordDigest` of records: count, bytes, digest and content.

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
        first: number of the key group that the first row of `sums` belongs to.
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


Hashes = npt.NDArray[np.uint64]
Sums = dict[int, dict[str, int]]
"""Sums of hashes by key group and column, modulo 2**64."""

ROWS = "# rows"
"""Name of the sum that counts rows; no column has such a name."""

KEYS = "# keys"
"""The name of the digest of the identities of the rows."""

_NULL = np.uint64(0xD6E8FEB86659FD93)


class ColumnDigest:
    """Sums of the hashes of columns by key group, over batches of rows.

    Args:
        max_parallelism: number of key groups.
        names: names of the columns.
    """

    def __init__(self, max_parallelism: int, names: Iterable[str]) -> None:
        self._rows = np.zeros(max_parallelism, np.int64)
        self._sums = {name: np.zeros(max_parallelism, np.uint64) for name in (KEYS, *names)}

    def add(self, key_groups: npt.NDArray[np.int32], identities: Hashes, columns: Mapping[str, pa.Array]) -> None:
        """Add rows to the digests of their key groups.

        Args:
            key_groups: i32[n].
            identities: see `identify_rows`.
            columns: by name, arrays of n values. Columns that are missing here add nothing.
        """
        self._rows += np.bincount(key_groups, minlength=len(self._rows))
        _add_hashes(self._sums[KEYS], key_groups, identities)
        for name, array in columns.items():
            _add_hashes(self._sums[name], key_groups, _hash_values(identities, array))

    @property
    def sums(self) -> Sums:
        """Sums of the added rows; key groups without rows are not in it."""
        present = np.flatnonzero(self._rows).tolist()
        return {
            group: {ROWS: int(self._rows[group])} | {name: int(sums[group]) for name, sums in self._sums.items()}
            for group in present
        }


def add_sums(total: Sums, more: Sums) -> None:
    """Add the sums of other rows to `total`."""
    for group, values in more.items():
        sums = total.setdefault(group, {})
        for name, value in values.items():
            sums[name] = (sums.get(name, 0) + value) % MODULUS


def identify_rows(columns: Sequence[pa.Array]) -> Hashes:
    """Return u64[n], hashes of the columns that identify rows, such as the bytes of the key and `list_index`.

    Args:
        columns: one or more, in the same order and of the same types wherever rows are compared.

    Raises:
        UnsupportedError: no state has values of such a type.
    """
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        hashes = _hash_values(hashes, column)
    return hashes


def drop_fields(array: pa.Array, paths: Collection[str]) -> pa.Array:
    """Remove the fields at dotted paths from structs; `[]` in a path means elements or map values. Keep other types."""
    if not paths:
        return array
    if pa.types.is_list(array.type) or pa.types.is_map(array.type):
        inside = tuple(each.removeprefix("[]").removeprefix(".") for each in paths if each.startswith("[]"))
        mask = array.is_null() if array.null_count else None
        if pa.types.is_map(array.type):
            entries, offsets = flatten_entries(array), dense_offsets(array)
            values = drop_fields(entries.field(1), inside)
            return pa.MapArray.from_arrays(offsets, entries.field(0), values, mask=mask)
        return pa.ListArray.from_arrays(dense_offsets(array), drop_fields(array.flatten(), inside), mask=mask)
    if not pa.types.is_struct(array.type):
        return array
    kept = [each.name for each in array.type if each.name not in paths]
    children = []
    for name in kept:
        below = tuple(
            each.removeprefix(name).removeprefix(".") for each in paths if each.startswith((f"{name}.", f"{name}["))
        )
        children.append(drop_fields(array.field(name), below))
    if not children:
        return array.is_valid()
    return pa.StructArray.from_arrays(children, names=kept, mask=array.is_null() if array.null_count else None)


_NUMBERS = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
"""Arrow's integer types by width in bytes."""


@lru_cache(maxsize=512)
def _find_tag(of: pa.DataType) -> np.uint64:
    """Return the seed of the hashes of a type, so that equal numbers of different types have different hashes."""
    digest = hashlib.blake2b(_describe(of).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _describe(of: pa.DataType) -> str:
    """Describe a type, without what does not affect values: nullability, dictionary indexes and widths of offsets."""
    if pa.types.is_struct(of):
        return f"struct<{', '.join(f'{each.name}: {_describe(each.type)}' for each in of)}>"
    if pa.types.is_map(of):
        return f"map<{_describe(of.key_type)}, {_describe(of.item_type)}>"
    if pa.types.is_list(of) or pa.types.is_large_list(of):
        return f"list<{_describe(of.value_type)}>"
    if pa.types.is_dictionary(of):
        return f"one of {_describe(of.value_type)}"
    return str(_bare(of)) if pa.types.is_large_string(of) or pa.types.is_large_binary(of) else str(of)


def _bare(of: pa.DataType) -> pa.DataType:
    """Return the type to which values are cast for hashing: times become integers, decimals and null become text."""
    if pa.types.is_large_string(of):
        return pa.string()
    if pa.types.is_large_binary(of):
        return pa.binary()
    if pa.types.is_dictionary(of):
        return _bare(of.value_type)
    if pa.types.is_temporal(of):
        return _NUMBERS[of.bit_width // 8]
    if pa.types.is_decimal(of) or pa.types.is_null(of):
        return pa.string()
    if pa.types.is_struct(of):
        return pa.struct([each.with_type(_bare(each.type)) for each in of])
    if pa.types.is_map(of):
        return pa.map_(_bare(of.key_type), _bare(of.item_type))
    if pa.types.is_list(of) or pa.types.is_large_list(of):
        return pa.list_(_bare(of.value_type))
    return of


_PRIMITIVES = {
    pa.bool_(): lay.PrimitiveKind.BOOL,
    pa.int8(): lay.PrimitiveKind.I8,
    pa.int16(): lay.PrimitiveKind.I16,
    pa.int32(): lay.PrimitiveKind.I32,
    pa.int64(): lay.PrimitiveKind.I64,
    pa.float32(): lay.PrimitiveKind.F32,
    pa.float64(): lay.PrimitiveKind.F64,
}


def _layout_of(of: pa.DataType) -> lay.Layout:
    """Return a layout that encodes all values of a type that `_bare` returns."""
    if of in _PRIMITIVES:
        return lay.Primitive(_PRIMITIVES[of])
    if pa.types.is_string(of):
        return lay.Text()
    if pa.types.is_binary(of):
        return lay.Sized()
    if pa.types.is_struct(of):
        return lay.Masked(tuple((each.name, _layout_of(each.type)) for each in of), kind=False)
    if pa.types.is_map(of):
        return lay.Mapping(_layout_of(of.key_type), lay.Optional(_layout_of(of.item_type)))
    if not pa.types.is_list(of):
        raise UnsupportedError(f"values of type {of} have no digest")
    return lay.Sequence(lay.Optional(_layout_of(of.value_type)))


def _hash_values(seeds: Hashes, array: pa.Array) -> Hashes:
    """Return u64[n], a hash of each value with its seed; equal values of different types have different hashes."""
    seeds = seeds ^ _find_tag(array.type)
    array = array.cast(_bare(array.type))
    hashes = seeds ^ _NULL
    if array.null_count == len(array):
        return hashes
    present: slice | npt.NDArray[np.int64] = slice(None)
    if array.null_count:
        present = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        array, seeds = array.drop_null(), seeds[present]
    kind = array.type
    if pa.types.is_boolean(kind):
        found = _hash_numbers(seeds, np.asarray(array.to_numpy(zero_copy_only=False), np.uint64))
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        found = _hash_numbers(seeds, _find_numbers(array, np.dtype(f"u{kind.bit_width // 8}")))
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        data, starts, stops = _find_bytes(array)
        found = _hash_spans(seeds, data.ctypes.data, starts, stops)
    else:
        encoded = plan_columns(_layout_of(kind)).encode(array)
        found = _hash_spans(seeds, encoded.data.ctypes.data, encoded.starts, encoded.stops)
    hashes[present] = found
    return hashes


def _find_numbers(array: pa.Array, kind: np.dtype[Any]) -> Hashes:
    found = np.frombuffer(array.buffers()[1], kind, len(array), array.offset * kind.itemsize)
    return np.asarray(found, np.uint64)


def _find_bytes(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bytes of strings or binaries, and the start and end of each value in them."""
    _, offsets, data = array.buffers()
    positions = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    raw = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return raw, positions[:-1], positions[1:]


@njit(cache=True, nogil=True)
def _hash_spans(seeds, base, starts, stops):  # type: ignore[no-untyped-def]
    result = np.empty(len(seeds), np.uint64)
    for row in range(len(seeds)):
        result[row] = hash_bytes(seeds[row], base + starts[row], base + stops[row])
    return result


@njit(cache=True, nogil=True)
def _hash_numbers(seeds, numbers):  # type: ignore[no-untyped-def]
    result = np.empty(len(seeds), np.uint64)
    for row in range(len(seeds)):
        result[row] = hash_number(seeds[row], numbers[row])
    return result


@njit(cache=True, nogil=True)
def _add_hashes(sums, key_groups, hashes):  # type: ignore[no-untyped-def]
    for row in range(len(key_groups)):
        sums[key_groups[row]] += hashes[row]


CHANGES = 16 << 20
"""Size in bytes of the logged changes that are digested at once."""


def digest_sections(stream: StateStream, sections: Sequence[Section]) -> RecordDigest:
    """Digest the stored bytes of key groups, each with the number of its key group."""
    total = RecordDigest()
    none = np.zeros(1, np.int64)
    windows = read_ahead(
        group_sections(sections, WINDOW),
        lambda group: read_sections(stream, group[0].start, group[-1].end),
        stream.location,
        lambda group: group[-1].end - group[0].start,
    )
    for group, raw in windows:
        data = np.frombuffer(raw, np.uint8)
        for section in group:
            address = data.ctypes.data + section.start - group[0].start
            groups, end = np.full(1, section.key_group, np.int32), np.full(1, section.size, np.int64)
            records, size, digest, _ = digest_records(groups, address, none, none, none, end).tolist()
            total += RecordDigest(records, size, content=digest)
    return total


def digest_changes(log: ChangeLog, key_groups: KeyGroupRange) -> RecordDigest:
    """Digest logged changes, each with its key group and its position among the changes of that key group."""
    total = RecordDigest()
    for window in log.windows(key_groups, CHANGES):
        changes = log.read(window)
        order = np.argsort(changes.key_groups, kind="stable")
        groups = changes.key_groups[order]
        positions = (np.arange(len(groups)) - np.searchsorted(groups, groups, side="left")).astype(">i4")
        data = np.concatenate([positions.view(np.uint8), changes.data])
        keys = 4 * np.arange(len(groups), dtype=np.int64)
        starts, ends = (each[order] + 4 * len(groups) for each in (changes.starts, changes.ends))
        found = digest_records(groups, data.ctypes.data, keys, keys + 4, starts, ends).tolist()
        total += RecordDigest(found[0], found[1], content=found[2])
    return total
