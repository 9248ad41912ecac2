"""Some keys of a keyed state, by their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from state_pipelines.keyed.matching import match_prefixes, tabulate_needles

if TYPE_CHECKING:
    import numpy.typing as npt

    from state_pipelines.keyed.records import KeyedRecords

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
        """Which records are kept, bool[n]; keys of timers stand behind their timestamps."""
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
