"""The key-group prefix: the first one or two bytes of every key in canonical files and in RocksDB.

`keyed.canonical.kernels` reads and writes it for many records at once. Source: `CompositeKeySerializationUtils`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from state_pipelines.keyed.key_group_assignment import check_max_parallelism


def key_group_prefix_size(max_parallelism: int) -> int:
    """Bytes of the key group in front of every key: 1 up to 128 key groups, else 2.

    Raises:
        UsageError: the max parallelism is not between 1 and 32,768.
    """
    check_max_parallelism(max_parallelism)
    return 1 if max_parallelism <= 128 else 2


def encode_prefix(key_group: int, size: int) -> bytes:
    """The prefix of a key group, `size` bytes."""
    return key_group.to_bytes(size, "big")


def decode_prefix(key: bytes, size: int) -> int:
    """The key group of a key that begins with a prefix of `size` bytes."""
    return int.from_bytes(key[:size], "big")


def decode_prefixes(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int32]:
    """The key groups of keys that begin with a prefix of `size` bytes: i32[n] of i64[n] positions in `data`."""
    groups = data[starts].astype(np.int32)
    return groups << 8 | data[starts + 1] if size == 2 else groups
