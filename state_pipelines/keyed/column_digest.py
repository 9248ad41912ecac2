"""Digests of the columns of a state by key group, which do not depend on the order of the rows.

Two tables of the same keys hold the same in a column of a key group, or their digests differ. Every value counts
together with the identity of its row, so that no two rows can change places unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_pipelines.binary.compiling import njit
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.digest import MODULUS, hash_bytes, hash_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Hashes = npt.NDArray[np.uint64]
Sums = dict[int, dict[str, int]]
"""By key group and column; modulo 2**64."""

ROWS = "# rows"
"""The name under which rows are counted; no field has such a name."""

KEYS = "# keys"
"""The name of the digest of the identities of the rows."""

_NULL = np.uint64(0xD6E8FEB86659FD93)


class ColumnDigest:
    """Adds up the digests of columns, batch by batch.

    Args:
        max_parallelism: number of key groups.
        names: of the columns.
    """

    def __init__(self, max_parallelism: int, names: Iterable[str]) -> None:
        self._rows = np.zeros(max_parallelism, np.int64)
        self._sums = {name: np.zeros(max_parallelism, np.uint64) for name in (KEYS, *names)}

    def add(self, key_groups: npt.NDArray[np.int32], identities: Hashes, columns: Mapping[str, pa.Array]) -> None:
        """Take rows.

        Args:
            key_groups: i32[n].
            identities: see `identify_rows`.
            columns: by name, arrays of n values; `names` that are not among them get nothing.

        Raises:
            UnsupportedError: see `require_digestible`.
        """
        self._rows += np.bincount(key_groups, minlength=len(self._rows))
        _add_hashes(self._sums[KEYS], key_groups, identities)
        for name, array in columns.items():
            _add_hashes(self._sums[name], key_groups, _hash_values(identities, array))

    @property
    def sums(self) -> Sums:
        """What was added; key groups without rows do not occur."""
        present = np.flatnonzero(self._rows).tolist()
        return {
            group: {ROWS: int(self._rows[group])} | {name: int(sums[group]) for name, sums in self._sums.items()}
            for group in present
        }


def add_sums(digests: Iterable[Sums]) -> Sums:
    """Digests of several places together."""
    totals: Sums = {}
    for digest in digests:
        for group, values in digest.items():
            total = totals.setdefault(group, {})
            for name, value in values.items():
                total[name] = (total.get(name, 0) + value) % MODULUS
    return totals


def identify_rows(key_bytes: pa.Array, list_index: pa.Array | None = None) -> Hashes:
    """u64[n], hashes of what tells rows apart: the bytes of the key, and the index in its list."""
    zeros = np.zeros(len(key_bytes), np.uint64)
    data, starts, stops = _find_bytes(key_bytes)
    hashes = _hash_spans(zeros, data.ctypes.data, starts, stops)
    return hashes if list_index is None else _hash_values(hashes, list_index)


@dataclass(frozen=True)
class _Kind:
    """How the values of a type become bytes.

    Attributes:
        numbers: the unsigned type whose bits they are, of values of 8 bytes or less.
        layout: of values that have parts; of neither, they are bytes already.
    """

    numbers: np.dtype[Any] | None = None
    layout: lay.Layout | None = None


def require_digestible(of: pa.DataType) -> None:
    """Raise when values of a type have no digest.

    Raises:
        UnsupportedError: it is one that no state has, or a time inside another value.
    """
    _find_kind(of)


def _find_kind(of: pa.DataType) -> _Kind:
    if pa.types.is_dictionary(of):
        return _find_kind(of.value_type)
    if pa.types.is_boolean(of):
        return _Kind(np.dtype("?"))
    if pa.types.is_string(of) or pa.types.is_binary(of) or pa.types.is_null(of):
        return _Kind()
    if pa.types.is_integer(of) or pa.types.is_floating(of) or pa.types.is_temporal(of):
        return _Kind(np.dtype(f"u{of.bit_width // 8}"))
    return _Kind(layout=_layout_of(of))


_PRIMITIVES = {
    pa.bool_(): "bool",
    pa.int8(): "i8",
    pa.int16(): "i16",
    pa.int32(): "i32",
    pa.int64(): "i64",
    pa.float32(): "f32",
    pa.float64(): "f64",
}


def _layout_of(of: pa.DataType) -> lay.Layout:
    """A layout that takes all values of a type."""
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
    if pa.types.is_list(of):
        return lay.Sequence(lay.Optional(_layout_of(of.value_type)))
    raise UnsupportedError(f"values of type {of} have no digest")


def _hash_values(seeds: Hashes, array: pa.Array) -> Hashes:
    """u64[n], hashes of values, each started by its seed."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    hashes = seeds ^ _NULL
    if array.null_count == len(array):
        return hashes
    present: slice | npt.NDArray[np.int64] = slice(None)
    if array.null_count:
        present = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        array, seeds = array.drop_null(), seeds[present]
    kind = _find_kind(array.type)
    if kind.numbers is not None:
        found = _hash_numbers(seeds, _find_numbers(array, kind.numbers))
    elif kind.layout is not None:
        encoded = plan_columns(kind.layout).encode(array)
        found = _hash_spans(seeds, encoded.data.ctypes.data, encoded.starts, encoded.stops)
    else:
        data, starts, stops = _find_bytes(array)
        found = _hash_spans(seeds, data.ctypes.data, starts, stops)
    hashes[present] = found
    return hashes


def _find_numbers(array: pa.Array, kind: np.dtype[Any]) -> Hashes:
    if kind == np.bool_:
        return np.asarray(array.to_numpy(zero_copy_only=False), np.uint64)
    found = np.frombuffer(array.buffers()[1], kind, len(array), array.offset * kind.itemsize)
    return np.asarray(found, np.uint64)


def _find_bytes(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The bytes of strings or binaries, and where each begins and ends in them."""
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    raw = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return raw, places[:-1], places[1:]


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
