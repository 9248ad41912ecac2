"""Some keys of a keyed state, by their bytes: as a filter of records, and as ranges of sorted keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from state_pipelines.keyed.key_group_prefix import encode_prefix
from state_pipelines.keyed.keys.key_kernels import match_prefixes, tabulate_needles

if TYPE_CHECKING:
    import numpy.typing as npt

    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.metadata.handles import KeyGroupRange

TIMESTAMP = 8
"""Bytes in front of the key of a timer."""


@dataclass(frozen=True)
class KeyFilter:
    """Keeps or drops the records of some keys; can be sent to other processes.

    Attributes:
        keys: as the key serializer writes them. They are self-delimiting: what begins with one of them has that key.
        keep: keep them and nothing else, or drop them.
    """

    keys: frozenset[bytes]
    keep: bool = True

    def select(self, records: KeyedRecords, *, timers: bool = False) -> npt.NDArray[np.bool_]:
        """Mark the kept records, bool[n]; keys of timers follow their timestamps."""
        found = np.zeros(len(records), np.bool_)
        if self.keys:
            data, needles, sizes, lengths, table = self._tables
            starts = records.key_starts + TIMESTAMP if timers else records.key_starts
            base = records.data.ctypes.data
            match_prefixes(base, starts, records.key_ends, needles + data.ctypes.data, sizes, lengths, table, found)
        return found if self.keep else ~found

    @cached_property
    def _tables(self) -> tuple[npt.NDArray[Any], ...]:
        """Bytes of all keys, where each begins, sizes, distinct sizes, and the hash table."""
        keys = sorted(self.keys)
        data = np.frombuffer(b"".join(keys) or b"\0", np.uint8)
        sizes = np.array([len(key) for key in keys], np.int64)
        starts = np.cumsum(sizes) - sizes
        table = np.full(1 << (2 * len(keys)).bit_length(), -1, np.int64)
        tabulate_needles(starts + data.ctypes.data, sizes, table)
        return data, starts, sizes, np.unique(sizes), table

    def __getstate__(self) -> dict[str, object]:
        return {"keys": self.keys, "keep": self.keep}


MOST_SEEKS = 4096
"""Ranges of keys that are looked for one by one; for more, all keys of the key groups are read."""


@dataclass(frozen=True)
class KeySeeks:
    """Keys that are looked for where records are sorted by key; can be sent to other processes.

    Attributes:
        keys: each key as its serializer writes it, and its key group as a range; None where the hash is not known.
    """

    keys: tuple[tuple[bytes, KeyGroupRange | None], ...]

    def find_ranges(
        self, key_groups: KeyGroupRange, prefix: int, *, timers: bool = False
    ) -> list[tuple[bytes, bytes | None]]:
        """Find the ranges of keys, with key-group prefix, that hold the wanted ones.

        Args:
            key_groups: only these.
            prefix: bytes of the key-group prefix.
            timers: timestamps precede keys, so that whole key groups are wanted.

        Returns:
            (first key, end (exclusive; None: to the last)), ascending, without overlap.
        """
        wanted = [(key, key_groups if group is None else key_groups.intersect(group)) for key, group in self.keys]
        if timers or sum(len(groups) for _, groups in wanted) > MOST_SEEKS:
            wanted = [(b"", groups) for _, groups in wanted]
        starts = sorted({encode_prefix(group, prefix) + key for key, groups in wanted for group in groups})
        found: list[tuple[bytes, bytes | None]] = []
        for start in starts:
            # A key may be the beginning of another one only where that is no key; one range is enough for both.
            if not found or not start.startswith(found[-1][0]):
                found.append((start, _find_successor(start)))
        return found


def _find_successor(key: bytes) -> bytes | None:
    """The first of all bytes after those that begin with `key`; None where there is none."""
    rest = key.rstrip(b"\xff")
    return rest[:-1] + bytes([rest[-1] + 1]) if rest else None
