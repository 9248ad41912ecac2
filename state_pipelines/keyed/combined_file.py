"""Several files of keyed state of one subtask as one.

RocksDB checkpoints whose timers are kept on the heap have two: the managed state, and the timers in raw keyed state.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed.keyed_file import FileFormat, KeyedFormat
from state_pipelines.metadata.handles import KeyGroupRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import Counts, KeyedFile, RecordContext, Runs
    from state_pipelines.keyed.keys.key_filter import KeySeeks
    from state_pipelines.keyed.record_layout import KeyedRecords


@dataclass(frozen=True)
class CombinedFile(KeyedFormat):
    """The states of all files, those of the first one first; see `combine_files`.

    Attributes:
        files: of the same keys.
        header: key serializer and compression of the first file, the states of all.
        key_groups: range that is read of the files.
    """

    files: tuple[KeyedFile, ...]
    header: KeyedHeader
    key_groups: KeyGroupRange

    format: ClassVar[FileFormat] = FileFormat.COMBINED

    @property
    def name(self) -> str:
        """Name of the first file."""
        return self.files[0].name

    def scan(
        self, state_ids: Sequence[int], context: RecordContext, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """The records of some states, one file after the other (see `KeyedFile.scan`)."""
        for first, file in zip(self._first_ids, self.files, strict=True):
            wanted = [each - first for each in state_ids if 0 <= each - first < len(file.header.states)]
            if wanted:
                for state_id, records in file.scan(wanted, context, self._cut(key_groups)):
                    yield first + state_id, records

    def scan_key_groups(self, context: RecordContext, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """All records, one key group after the other; those of the first file come first in each."""
        streams = [file.scan_key_groups(context, self._cut(key_groups)) for file in self.files]
        heads = [next(stream, None) for stream in streams]
        while present := [head[0] for head in heads if head is not None]:
            key_group = min(present)
            found: Runs = []
            for number, first in enumerate(self._first_ids):
                head = heads[number]
                if head is not None and head[0] == key_group:
                    found += [(first + state_id, records) for state_id, records in head[1]]
                    heads[number] = next(streams[number], None)
            yield key_group, found

    def split(
        self, size: int, context: RecordContext, key_groups: KeyGroupRange | None = None
    ) -> Iterator[CombinedFile]:
        """As many parts as the file with the most parts has, each an even share of the key groups."""
        groups = self._cut(key_groups)
        if not groups.number:
            return
        splits = [file.split(size, context, groups) for file in self.files]
        count = min(groups.number, sum(1 for _ in zip_longest(*splits)))
        bounds = [groups.start + groups.number * each // count for each in range(count + 1)] if count else []
        for start, end in pairwise(bounds):
            yield replace(self, key_groups=KeyGroupRange(start, end - start))

    def split_records(
        self, state_id: int, size: int, least: int, context: RecordContext, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[KeyedFile, int]]:
        """Parts of the file that holds the state."""
        first, holder = self._find_holder(state_id)
        return holder.split_records(state_id - first, size, least, context, self._cut(key_groups))

    def measure_state(self, state_id: int, context: RecordContext, key_groups: KeyGroupRange | None) -> int:
        """Bytes in the file that holds the state."""
        first, holder = self._find_holder(state_id)
        return holder.measure_state(state_id - first, context, key_groups)

    def measure_stored_bytes(self, context: RecordContext, key_groups: KeyGroupRange) -> tuple[Counts, bool]:
        """Sums over the files."""
        measured = [file.measure_stored_bytes(context, key_groups) for file in self.files]
        return np.sum([each for each, _ in measured], axis=0), any(estimated for _, estimated in measured)

    def narrow_to_keys(self, keys: KeySeeks) -> CombinedFile:
        """See `KeyedFile`."""
        return replace(self, files=tuple(file.narrow_to_keys(keys) for file in self.files))

    def _find_holder(self, state_id: int) -> tuple[int, KeyedFile]:
        """The file that holds a state, and the id here of the first state of that file."""
        number = bisect_right(self._first_ids, state_id) - 1
        return self._first_ids[number], self.files[number]

    @cached_property
    def _first_ids(self) -> tuple[int, ...]:
        """Id of the first state of each file."""
        sizes = [len(file.header.states) for file in self.files]
        return tuple(sum(sizes[:number]) for number in range(len(sizes)))

    def _cut(self, key_groups: KeyGroupRange | None) -> KeyGroupRange:
        return self.key_groups if key_groups is None else self.key_groups.intersect(key_groups)


def combine_files(files: Sequence[KeyedFile]) -> KeyedFile:
    """The files of one subtask as one; a single file stays what it is.

    Args:
        files: at least one, of the same keys.

    Raises:
        FormatError: two files have different keys, or a state of the same name.
    """
    if len(files) == 1:
        return files[0]
    names: set[str] = set()
    for file in files:
        if file.header.key_serializer != files[0].header.key_serializer:
            raise FormatError(
                "the managed and the raw keyed state of a subtask have keys of different serializers",
                where=Where(file=file.name),
            )
        for info in file.header.states:
            if info.name in names:
                raise FormatError(
                    "the managed and the raw keyed state of a subtask both hold this state",
                    where=Where(file=file.name, state=info.name),
                )
            names.add(info.name)
    states = tuple(info for file in files for info in file.header.states)
    header = replace(files[0].header, states=states)
    start = min(file.key_groups.start for file in files)
    end = max(file.key_groups.end for file in files)
    return CombinedFile(tuple(files), header, KeyGroupRange(start, end + 1 - start))
