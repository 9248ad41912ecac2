"""Keys that stand twice in one state of a file: of two, Flink would keep the last one that it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed.digests import hash_keys
from state_pipelines.metadata.handles import KeyGroupRange

if TYPE_CHECKING:
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.keyed.record_layout import KeyedRecords

Hashes = npt.NDArray[np.uint64]

MOST_KEYS = 1 << 24
"""Keys of a key group that are compared, at most; of larger ones the first."""


@dataclass
class RepeatedKeys:
    """Looks for keys that stand twice in a key group, while the records of a file are read in their order.

    Attributes:
        file: the file.
        context: of the operator.
    """

    file: KeyedFile
    context: RecordContext
    _last: dict[int, tuple[int, Hashes]] = field(default_factory=dict)

    def check(self, state_id: int, records: KeyedRecords) -> None:
        """Compare the keys of the next records of a state with each other, and with those of their key group before.

        A key is what the file has as one, with its namespace and the key in the map.

        Raises:
            FormatError: a key stands there twice.
            StateError: the file cannot be read again, to compare keys of the same hash.
        """
        if not len(records):
            return
        hashes = hash_keys(records.key_groups, records.data.ctypes.data, records.key_starts, records.key_ends)
        last = int(records.key_groups[-1])
        before, known = self._last.get(state_id, (-1, np.empty(0, np.uint64)))
        ordered = np.sort(hashes)
        same = ordered[1:][ordered[1:] == ordered[:-1]]
        if before == int(records.key_groups[0]) and len(known):
            positions = np.minimum(np.searchsorted(known, ordered), len(known) - 1)
            same = np.concatenate([same, ordered[known[positions] == ordered]])
        for wanted in np.unique(same):
            group = int(records.key_groups[np.flatnonzero(hashes == wanted)[0]])
            self._compare(state_id, group, wanted)
        own = np.sort(hashes[records.key_groups == last])
        if last == before and len(known) + len(own) <= MOST_KEYS:
            own = np.sort(np.concatenate([known, own]), kind="stable")
        elif last == before:
            own = known
        self._last[state_id] = last, own

    def _compare(self, state_id: int, key_group: int, wanted: np.uint64) -> None:
        """Compare the keys of a hash in a key group byte by byte."""
        found: set[bytes] = set()
        for _, records in self.file.scan([state_id], self.context, KeyGroupRange(key_group, 1)):
            hashes = hash_keys(records.key_groups, records.data.ctypes.data, records.key_starts, records.key_ends)
            for row in np.flatnonzero(hashes == wanted):
                start, end = int(records.key_starts[row]), int(records.key_ends[row])
                key = records.data[start:end].tobytes()
                if key in found:
                    raise FormatError(
                        f"a key stands twice in key group {key_group}",
                        where=Where(file=records.file, offset=records.offset + start),
                        hint="The file was changed or written by a faulty tool. Of the two entries Flink would keep "
                        "the one that it reads last",
                    )
                found.add(key)
