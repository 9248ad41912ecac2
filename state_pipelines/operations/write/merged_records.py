"""Spills of a subtask and its old file as records by key group, for writers of native formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed import kernels
from state_pipelines.keyed.record_layout import KeyedRecords
from state_pipelines.operations.write.keyed_rewrite import Merging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.keyed.keyed_file import RecordContext, Runs
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.operations.write.keyed_rewrite import FileRewrite, Sections


class MergedRecords:
    """The records that a rewrite would write; see `keyed_file.KeyGroupRecords`.

    Native formats sort or rearrange the records of a key group, which is therefore held whole.

    Args:
        rewrite: says what is merged; its target is not written.
    """

    def __init__(self, rewrite: FileRewrite) -> None:
        self.rewrite = rewrite
        self._merging = Merging(rewrite)

    @property
    def name(self) -> str:
        """Name for errors."""
        return str(self.rewrite.target)

    @property
    def states(self) -> dict[str, RecordDigest]:
        """Digests of the records that were taken so far, by name of the state."""
        return self._merging.states

    def scan_key_groups(self, context: RecordContext, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """All records, one key group after the other.

        Raises:
            IncompatibleError: a key occurs twice.
            StateError: a spill or the old file cannot be read.
        """
        for sections in self._merging.join(key_groups):
            yield from self._cut(sections, context.prefix)

    def _cut(self, sections: Sections, prefix: int) -> Iterator[tuple[int, Runs]]:
        """The records of sections by key group."""
        starts = np.append(np.int64(0), sections.ends)[:-1]
        wanted = np.ones(len(self.rewrite.header.states), np.bool_)
        cursor, output = np.array([0, -1, 0, 0], np.int64), np.empty((6, sections.records), np.int64)
        status, count = kernels.scan_records(
            sections.data.ctypes.data,
            starts,
            sections.ends,
            sections.key_groups,
            True,
            True,
            prefix,
            wanted,
            cursor,
            output,
        )
        if status != kernels.DONE or count != sections.records:
            raise FormatError("merged records are not what was written", where=Where(file=self.name))
        states, groups = output[0], output[1]
        edges = np.flatnonzero((np.diff(groups) != 0) | (np.diff(states) != 0)) + 1
        runs: Runs = []
        last = -1
        for first, stop in zip([0, *edges.tolist()], [*edges.tolist(), count], strict=True):
            if first == stop:
                return
            group = int(groups[first])
            if runs and group != last:
                yield last, runs
                runs = []
            key_starts, key_ends, value_starts, value_ends = output[2:, first:stop]
            records = KeyedRecords(
                groups[first:stop].astype(np.int32),
                sections.data,
                key_starts,
                key_ends,
                value_starts,
                value_ends,
                0,
                self.name,
            )
            runs.append((int(states[first]), records))
            last = group
        yield last, runs
