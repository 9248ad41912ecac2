"""Key groups: their assignment to keys and subtasks, their prefix in keys, the memory for one that is held whole.

* `assign_key_group`, `compute_key_group_range`, `compute_operator_index`: keys to key groups, and key groups to
  subtasks. Source: `KeyGroupRangeAssignment`, `MathUtils.murmurHash`, `CompositeKeySerializationUtils`.
* `encode_prefix`, `decode_prefix`: the key-group prefix, the first one or two bytes of every key in canonical files and
  in RocksDB. `keyed.kernels` reads and writes it for many records at once. Source: `CompositeKeySerializationUtils`.
* `require_memory`: the memory for a key group that is held whole.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from state_pipelines.errors import UnsupportedError, UsageError, Where
from state_pipelines.metadata.handles import MAX_PARALLELISM, KeyGroupRange
from state_pipelines.storage.files import CHECKED_FROM, measure_free_memory

DEFAULT_LOWER_BOUND = 128
"""Smallest number of key groups that Flink chooses by default (`DEFAULT_LOWER_BOUND_MAX_PARALLELISM`)."""

_MASK = 0xFFFFFFFF
_INT_MIN = -(1 << 31)
_BLOCK = 1 << 15


def compute_default_max_parallelism(parallelism: int) -> int:
    """Compute the max parallelism that Flink chooses if the job sets none.

    One and a half times the parallelism, rounded up to a power of two, between 128 and 32,768.

    Raises:
        UsageError: the parallelism is not between 1 and 32,768.
    """
    check_max_parallelism(parallelism, "parallelism")
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), DEFAULT_LOWER_BOUND), MAX_PARALLELISM)


def compute_key_group_range(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Compute the key groups of one subtask (`computeKeyGroupRangeForOperatorIndex`).

    Args:
        subtask: index from 0.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.

    Raises:
        UsageError: the parallelism is not between 1 and the max parallelism, or there is no such subtask.
    """
    _check_parallelism(parallelism, max_parallelism)
    if not 0 <= subtask < parallelism:
        raise UsageError(f"there is no subtask {subtask} among {parallelism} (they count from 0)")
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end - start + 1)


def compute_operator_index(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Compute the index of the subtask that owns a key group (`computeOperatorIndexForKeyGroup`).

    Raises:
        UsageError: the parallelism is not between 1 and the max parallelism, or there is no such key group.
    """
    _check_parallelism(parallelism, max_parallelism)
    if not 0 <= key_group < max_parallelism:
        raise UsageError(f"there is no key group {key_group} among {max_parallelism} (they count from 0)")
    return key_group * parallelism // max_parallelism


def compute_operator_indexes(
    key_groups: npt.NDArray[np.int32], parallelism: int, max_parallelism: int
) -> npt.NDArray[np.int32]:
    """Compute the subtasks that own key groups, i32[n]; see `compute_operator_index`.

    Raises:
        UsageError: the parallelism is not between 1 and the max parallelism, or there is no such key group.
    """
    _check_parallelism(parallelism, max_parallelism)
    if len(key_groups) and not 0 <= key_groups.min() <= key_groups.max() < max_parallelism:
        raise UsageError(f"a key group is not among {max_parallelism} (they count from 0)")
    return (key_groups * np.int32(parallelism) // np.int32(max_parallelism)).astype(np.int32)


def assign_key_group(hash_code: int, max_parallelism: int) -> int:
    """Compute the key group of a key from its Java hash code (`computeKeyGroupForKeyHash`).

    Raises:
        UsageError: the max parallelism is not between 1 and 32,768.
    """
    check_max_parallelism(max_parallelism)
    code = _rotate_left(hash_code * 0xCC9E2D51 & _MASK, 15)
    code = _rotate_left(code * 0x1B873593 & _MASK, 13)
    code = (code * 5 + 0xE6546B64 ^ 4) & _MASK
    code = (code ^ code >> 16) * 0x85EBCA6B & _MASK
    code = (code ^ code >> 13) * 0xC2B2AE35 & _MASK
    code ^= code >> 16
    signed = code - (1 << 32) if code >> 31 else code
    return 0 if signed == _INT_MIN else abs(signed) % max_parallelism


def assign_key_groups(hash_codes: npt.NDArray[np.int32], max_parallelism: int) -> npt.NDArray[np.int32]:
    """Compute the key groups of many keys from their Java hash codes.

    Args:
        hash_codes: i32[n], Java hash codes of the keys.
        max_parallelism: number of key groups.

    Returns:
        i32[n].

    Raises:
        UsageError: the max parallelism is not between 1 and 32,768.
    """
    check_max_parallelism(max_parallelism)
    codes = np.ascontiguousarray(hash_codes, np.int32).view(np.uint32)
    key_groups = np.empty(len(codes), np.int32)
    # Blocks are so small that all passes over one stay in the processor's cache.
    for start in range(0, len(codes), _BLOCK):
        block = slice(start, start + _BLOCK)
        key_groups[block] = _mix(codes[block]) % np.uint32(max_parallelism)
    return key_groups


def _mix(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Compute `MathUtils.murmurHash` of each code; no result is negative as a signed number."""
    mixed = codes * np.uint32(0xCC9E2D51)
    mixed = mixed << np.uint32(15) | mixed >> np.uint32(17)
    mixed *= np.uint32(0x1B873593)
    mixed = mixed << np.uint32(13) | mixed >> np.uint32(19)
    mixed *= np.uint32(5)
    mixed += np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    mixed = np.abs(mixed.view(np.int32)).view(np.uint32)
    # The smallest int has no absolute value; Flink returns 0 for it.
    mixed[mixed == np.uint32(1 << 31)] = 0
    return mixed


def _rotate_left(code: int, distance: int) -> int:
    return (code << distance | code >> (32 - distance)) & _MASK


def check_max_parallelism(number: int, name: str = "max parallelism") -> None:
    """Check a max parallelism as Flink does.

    Raises:
        UsageError: it is not between 1 and 32,768.
    """
    if not 1 <= number <= MAX_PARALLELISM:
        raise UsageError(f"a {name} of {number} is not between 1 and {MAX_PARALLELISM}")


def _check_parallelism(parallelism: int, max_parallelism: int) -> None:
    check_max_parallelism(max_parallelism)
    if not 1 <= parallelism <= max_parallelism:
        raise UsageError(
            f"a parallelism of {parallelism} does not go with a max parallelism of {max_parallelism}",
            hint="Every subtask needs at least one key group",
        )


def key_group_prefix_size(max_parallelism: int) -> int:
    """Return the size in bytes of the key group before every key: 1 up to 128 key groups, else 2.

    Raises:
        UsageError: the max parallelism is not between 1 and 32,768.
    """
    check_max_parallelism(max_parallelism)
    return 1 if max_parallelism <= 128 else 2


def encode_prefix(key_group: int, size: int) -> bytes:
    """Return the prefix of a key group, `size` bytes."""
    return key_group.to_bytes(size, "big")


def decode_prefix(key: bytes, size: int) -> int:
    """Return the key group of a key that begins with a prefix of `size` bytes."""
    return int.from_bytes(key[:size], "big")


def decode_prefixes(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int32]:
    """Return the key groups, i32[n], of keys whose prefixes of `size` bytes are at `starts` in `data`."""
    groups = data[starts].astype(np.int32)
    return groups << 8 | data[starts + 1] if size == 2 else groups


COPIES = 5
"""Memory that a key group takes, as a multiple of its bytes.

Less than the 6.1 (heap) and 6.5 (RocksDB) that were measured for records of 70 bytes, so that nothing is refused that
may fit.
"""

_GIB = 1 << 30


def require_memory(size: int, key_group: int, file: str) -> None:
    """Check that a key group that must be in memory as a whole can fit there.

    Args:
        size: bytes of its records.
        key_group: its number.
        file: name of the file that it is read from.

    Raises:
        UnsupportedError: it needs more memory than is free.
    """
    if size <= CHECKED_FROM:
        return
    free = measure_free_memory()
    if free is not None and size * COPIES > free:
        raise UnsupportedError(
            f"key group {key_group} has {size / _GIB:.1f} GiB and must fit in memory, which takes at least {COPIES} "
            f"times as much, and {free / _GIB:.1f} GiB are free",
            where=Where(file=file),
            hint="Write the canonical format, which holds no key group in memory; or first rescale to a larger max "
            "parallelism",
        )
