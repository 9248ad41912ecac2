"""The kernel that tries many orders of fields on a few keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.compiled import njit
from state_pipelines.keyed.hashing.scala import hash_name

if TYPE_CHECKING:
    from state_pipelines.keyed.hashing.basic_hashes import HashCodes
    from state_pipelines.keyed.hashing.search.candidates import Orders, Trial


def screen(
    trial: Trial,
    orders: Orders,
    offset: HashCodes,
    scales: HashCodes,
    key_groups: npt.NDArray[np.int32],
    max_parallelism: int,
    prefix_class: str,
    *,
    misses: int = 0,
) -> list[tuple[int, int]]:
    """The orders that give the key groups of all keys, or all but a few.

    The hash of a key is `offset + Σ scale * code` over the positions of the class in the key.

    Args:
        trial: what is tried.
        orders: of its fields.
        offset: i32[keys].
        scales: i32[occurrences, keys].
        key_groups: i32[keys], as recorded.
        max_parallelism: number of key groups.
        prefix_class: name of the class, which some schemes mix in.
        misses: so many keys may lie elsewhere.

    Returns:
        (order, keys that lie elsewhere) of each; at most 4096.
    """
    found = np.empty((4096, 2), np.int64)
    count = screen_orders(
        orders.fields,
        orders.sizes,
        trial.scheme.start,
        trial.scheme.multiplier,
        trial.scheme.mode,
        hash_name(prefix_class),
        trial.codes,
        np.ascontiguousarray(offset),
        np.ascontiguousarray(scales),
        np.ascontiguousarray(key_groups),
        max_parallelism,
        misses,
        found,
    )
    return [(int(row), int(missed)) for row, missed in found[:count]]


def join(trial: Trial, orders: Orders, prefix_class: str) -> npt.NDArray[np.int32]:
    """The codes of objects by every order, i32[occurrences, orders, keys]; arguments as of `screen`."""
    scheme, codes = trial.scheme, trial.codes
    joined = np.empty((codes.shape[0], len(orders), codes.shape[2]), np.int32)
    prefix = hash_name(prefix_class)
    join_orders(orders.fields, orders.sizes, scheme.start, scheme.multiplier, scheme.mode, prefix, codes, joined)
    return joined


@njit(cache=True, nogil=True)
def _mix(code, data):  # type: ignore[no-untyped-def]
    word = (data & 0xFFFFFFFF) * 0xCC9E2D51 & 0xFFFFFFFF
    word = (word << 15 | word >> 17) & 0xFFFFFFFF
    code ^= word * 0x1B873593 & 0xFFFFFFFF
    code = (code << 13 | code >> 19) & 0xFFFFFFFF
    return (code * 5 + 0xE6546B64) & 0xFFFFFFFF


@njit(cache=True, nogil=True)
def _finish(code):  # type: ignore[no-untyped-def]
    code ^= code >> 16
    code = code * 0x85EBCA6B & 0xFFFFFFFF
    code ^= code >> 13
    code = code * 0xC2B2AE35 & 0xFFFFFFFF
    return code ^ code >> 16


@njit(cache=True, nogil=True)
def _join(fields, start, multiplier, mode, prefix, codes):  # type: ignore[no-untyped-def]
    """The code of one object: `fields` in this order, of i32[fields] `codes`."""
    code = np.int64(start)
    if mode >= 4:
        code = np.int64(0xCAFEBABE)
        if mode == 5:
            code = _mix(code, np.int64(prefix))
    elif mode >= 2:
        code = np.int64(0)
    for i in range(len(fields)):
        each = np.int64(codes[fields[i]])
        if mode == 0:
            code = (code * multiplier + each) & 0xFFFFFFFF
        elif mode == 1:
            code = ((code * multiplier) ^ each) & 0xFFFFFFFF
        elif mode == 2:
            code = code + each
        elif mode == 3:
            code = code ^ each
        else:
            code = _mix(code, each)
    if mode >= 4:
        code = _finish(code ^ np.int64(len(fields)))
    return code


@njit(cache=True, nogil=True)
def join_orders(orders, sizes, start, multiplier, mode, prefix, codes, joined):  # type: ignore[no-untyped-def]
    """The codes of objects by every order; as `screen_orders`, but `joined` i32[occurrences, n, keys] is filled."""
    for index in range(codes.shape[0]):
        for order in range(len(sizes)):
            for key in range(codes.shape[2]):
                fields = orders[order, : sizes[order]]
                joined[index, order, key] = _join(fields, start, multiplier, mode, prefix, codes[index, :, key])


@njit(cache=True, nogil=True)
def screen_orders(  # type: ignore[no-untyped-def]
    orders, sizes, start, multiplier, mode, prefix, codes, offset, scales, key_groups, max_parallelism, misses, found
):
    """The orders whose hashes give the key groups; as `screen`.

    Args:
        orders: i8[n, fields].
        sizes: i8[n].
        start: of a chain.
        multiplier: of a chain.
        mode: CHAIN … SCALA_NAMED.
        prefix: hash of the name of the class.
        codes: i32[occurrences, fields, keys].
        offset: i32[keys].
        scales: i32[occurrences, keys].
        key_groups: i32[keys].
        max_parallelism: number of key groups.
        misses: so many keys may lie elsewhere.
        found: i64[k, 2], filled with order and misses.

    Returns:
        How many rows of `found` are filled.
    """
    count = 0
    for order in range(len(sizes)):
        size = sizes[order]
        missed = 0
        for key in range(len(key_groups)):
            total = np.int64(offset[key])
            for index in range(codes.shape[0]):
                code = _join(orders[order, :size], start, multiplier, mode, prefix, codes[index, :, key])
                total += code * np.int64(scales[index, key])
            mixed = np.int64(np.int32(_finish(_mix(np.int64(0), total & 0xFFFFFFFF) ^ 4)))
            group = (abs(mixed) if mixed != -2147483648 else 0) % max_parallelism
            if group != key_groups[key]:
                missed += 1
                if missed > misses:
                    break
        if missed <= misses:
            if count == len(found):
                return count
            found[count, 0] = order
            found[count, 1] = missed
            count += 1
    return count
