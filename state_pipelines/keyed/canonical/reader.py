"""Keyed state in the canonical format: every canonical savepoint, and the full snapshots of RocksDB up to 1.15.

Source: `FullSnapshotAsyncWriter`, `FullSnapshotRestoreOperation`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed.canonical import kernels
from state_pipelines.keyed.canonical.section_data import RecordPosition, SectionReader
from state_pipelines.keyed.canonical.sections import (
    PLAIN,
    WINDOW,
    HeaderReading,
    Section,
    decompress_sections,
    group_sections,
    open_sections,
    read_sections,
    select_sections,
)
from state_pipelines.keyed.key_group_memory import require_memory
from state_pipelines.keyed.key_group_splits import StateRun
from state_pipelines.keyed.keyed_file import FileFormat, gather_key_groups
from state_pipelines.keyed.record_layout import KeyedRecords
from state_pipelines.keyed.section_file import SectionFile
from state_pipelines.storage.reading import read_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.keyed_file import RecordContext, Runs
    from state_pipelines.keyed.section_file import RunFinder
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.metadata.streams import StateStream

_LARGE = 4
"""A key group of more windows of file than this is read in several windows, any other one as a whole."""

_ROWS = 1 << 16
"""Records per batch: their arrays take several times their bytes."""


class CanonicalFile(SectionFile):
    """One canonical stream and its handle."""

    format: ClassVar[FileFormat] = FileFormat.CANONICAL
    needs_layouts: ClassVar[bool] = False
    by_kernels: ClassVar[bool] = True

    def scan(
        self,
        state_ids: Sequence[int],
        context: RecordContext,
        key_groups: KeyGroupRange | None = None,
        *,
        window: int | None = None,
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """The records of some states in the order of the file (see `KeyedFile.scan`).

        Args:
            state_ids: see `KeyedFile.scan`.
            context: of the operator.
            key_groups: only these.
            window: bytes of file that are held at a time; None: `WINDOW`.
        """
        window = window or WINDOW
        prefix = context.prefix
        wanted = np.zeros(len(self.header.states), np.bool_)
        wanted[list(state_ids)] = True
        groups = group_sections(select_sections(self.sections, key_groups), window)

        def measure(group: tuple[Section, ...]) -> int:
            is_large = group[0].span is not None or (len(group) == 1 and group[0].size > _LARGE * window)
            return 0 if is_large else group[-1].end - group[0].start

        def read(group: tuple[Section, ...]) -> bytes | None:
            return read_sections(self.stream, group[0].start, group[-1].end) if measure(group) else None

        for group, raw in read_ahead(groups, read, self.stream.location, measure):
            if raw is None:
                yield from _scan_large(self, group[0], wanted, prefix, window)
            else:
                held = _make_window(self, group, raw)
                # The next window takes the memory of this one.
                raw = None
                yield from _scan_window(self, held, wanted, prefix, _begin())
                del held

    def scan_key_groups(self, context: RecordContext, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """All records, one key group after the other; the states of a section come in their order."""
        everything = range(len(self.header.states))
        for sections in group_sections(self.sort_sections(key_groups), WINDOW):
            require_memory(sections[0].size, sections[0].key_group, self.name)
            found: dict[int, list[KeyedRecords]] = {}
            for state_id, records in replace(self, sections=sections).scan(everything, context):
                found.setdefault(state_id, []).append(records)
            for key_group, runs in gather_key_groups({state_id: iter(batches) for state_id, batches in found.items()}):
                yield key_group, sorted(runs, key=lambda run: run[1].offset + int(run[1].key_starts[0]))

    def find_runs(self, context: RecordContext) -> RunFinder:
        """See `SectionFile`; key groups are cut between records."""
        return lambda section, step: _find_runs(self, section, context.prefix, step)


@dataclass(frozen=True)
class _Window:
    """Bytes of some sections.

    Attributes:
        data: u8.
        offset: position of `data` in the stream.
        key_groups: i32[s].
        starts: i64[s] first byte of each section in `data`.
        ends: i64[s].
        complete: the data hold the sections to their ends.
        exact: the sections must end where their bytes end.
    """

    data: npt.NDArray[np.uint8]
    offset: int
    key_groups: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    complete: bool = True
    exact: bool = True


def open_canonical(
    stream: StateStream,
    key_groups: KeyGroupRange,
    offsets: Sequence[int],
    *,
    narrowed: bool = False,
    reading: HeaderReading = PLAIN,
) -> CanonicalFile:
    """Read the header of a handle and find its sections.

    Args:
        stream: the stream of the handle.
        key_groups: range of the handle.
        offsets: position per key group; `NO_SECTION` where there are no records.
        narrowed: the stream may hold other key groups too (see `open_sections`).
        reading: what helps to read the header.

    Raises:
        FormatError: an offset is outside the stream, or the header is malformed.
    """
    header, end, sections = open_sections(stream, key_groups, offsets, narrowed=narrowed, reading=reading)
    return CanonicalFile(stream, header, key_groups, sections, header_end=end)


def _make_window(file: CanonicalFile, group: tuple[Section, ...], raw: bytes) -> _Window:
    first = group[0].start
    if file.header.compressed:
        data, ends = decompress_sections(raw, group, file.stream.name, first)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    else:
        data = np.frombuffer(raw, np.uint8)
        starts = np.array([each.start - first for each in group], np.int64)
        ends = np.array([each.end - first for each in group], np.int64)
    groups = np.array([each.key_group for each in group], np.int32)
    return _Window(data, first, groups, starts, ends, exact=not group[-1].is_open)


def _scan_large(
    file: CanonicalFile, section: Section, wanted: npt.NDArray[np.bool_], prefix: int, window: int
) -> Iterator[tuple[int, KeyedRecords]]:
    """A section, or a span of one, that is read in several windows, each from the first record not in the last one."""
    reader = SectionReader(file.stream, section, compressed=file.header.compressed, block=window)
    span, exact = section.span, not section.is_open
    cursor = _begin() if span is None else np.array([0, 0, span.state_id, 0], np.int64)
    groups = np.array([section.key_group], np.int32)
    used, size = 0, window
    while True:
        reader.advance(used, size)
        data = np.frombuffer(reader.data, np.uint8)
        spans = (np.zeros(1, np.int64), np.full(1, len(data), np.int64))
        offset, complete = section.start + reader.position, reader.complete and span is None
        yield from _scan_window(
            file, _Window(data, offset, groups, *spans, complete=complete, exact=exact), wanted, prefix, cursor
        )
        if cursor[0] == 1:
            if exact:
                reader.advance(int(cursor[3]), 1)
                if reader.data:
                    what = f"key group {section.key_group}: {kernels.MESSAGES[kernels.LEFT_OVER]}"
                    raise FormatError(what, where=Where(file=file.name, offset=section.start + reader.position))
            return
        used = max(0, int(cursor[1]))
        if reader.complete:
            if used != len(data):
                what = f"key group {section.key_group}: a part of it does not end where a record does"
                hint = "The file was changed while it was read"
                raise FormatError(what, where=Where(file=file.name, offset=offset + used), hint=hint)
            return
        # A record that is larger than the window makes no progress.
        size = window if used else size * 2
        cursor[1] = min(0, int(cursor[1]))


def _find_runs(file: CanonicalFile, section: Section, prefix: int, step: int) -> tuple[StateRun, ...]:
    """Walk over a section; see `batches`."""
    reader = SectionReader(file.stream, section, compressed=file.header.compressed)
    cursor = np.array([-1, 0, 0], np.int64)
    found = np.empty((2, 1 << 10), np.int64)
    runs: list[tuple[int, list[RecordPosition]]] = []
    used, size, status = 0, WINDOW, kernels.MORE
    while status == kernels.MORE:
        reader.advance(used, size)
        data, count = np.frombuffer(reader.data, np.uint8), found.shape[1]
        while status == kernels.MORE and count == found.shape[1]:
            status, count = kernels.find_record_starts(
                data.ctypes.data,
                len(data),
                section.key_group,
                reader.complete,
                prefix,
                len(file.header.states),
                step,
                cursor,
                found,
            )
            for position, state_id in found[:, :count].T.tolist():
                if not runs or runs[-1][0] != state_id:
                    runs.append((state_id, []))
                runs[-1][1].append(reader.locate(reader.position + position))
        used = max(0, int(cursor[0]))
        size = WINDOW if used else size * 2
        cursor[0] -= used
        cursor[2] -= used
    if status == kernels.DONE:
        end = reader.locate(reader.position + used)
        reader.advance(used, 1)
        if section.is_open or not reader.data:
            ends = [*(positions[0] for _, positions in runs[1:]), end]
            return tuple(StateRun(run[0], tuple(run[1]), last) for run, last in zip(runs, ends, strict=True))
        status, used = kernels.LEFT_OVER, 0
    raise FormatError(
        f"key group {section.key_group}: {kernels.MESSAGES[status]}",
        where=Where(file=file.name, offset=section.start + reader.position + used),
    )


def _begin() -> npt.NDArray[np.int64]:
    """The cursor of `kernels.scan_records` in front of the first section."""
    return np.array([0, -1, 0, 0], np.int64)


def _scan_window(
    file: CanonicalFile,
    window: _Window,
    wanted: npt.NDArray[np.bool_],
    prefix: int,
    cursor: npt.NDArray[np.int64],
) -> Iterator[tuple[int, KeyedRecords]]:
    room = max(1, min(len(window.data) // (8 + prefix) + 1, _ROWS))
    while True:
        output = np.empty((6, room), np.int64)
        status, count = kernels.scan_records(
            window.data.ctypes.data,
            window.starts,
            window.ends,
            window.key_groups,
            window.complete,
            window.exact,
            prefix,
            wanted,
            cursor,
            output,
        )
        if status not in (kernels.DONE, kernels.MORE):
            section = int(cursor[0])
            offset = window.offset + max(int(cursor[1]), int(window.starts[section]))
            raise FormatError(
                f"key group {window.key_groups[section]}: {kernels.MESSAGES[status]}",
                where=Where(file=file.stream.name, offset=offset),
            )
        for state_id, rows in _group_states(output[:, :count]):
            yield (
                state_id,
                KeyedRecords(
                    rows[1].astype(np.int32),
                    window.data,
                    *(rows[2], rows[3], rows[4], rows[5]),
                    window.offset,
                    file.stream.name,
                ),
            )
        if status == kernels.DONE or (count < room and not window.complete):
            return


def _group_states(rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Split the rows of `scan_records` by state, in the order in which the states come first."""
    states = rows[0]
    if not len(states):
        return
    # The records of a state in a key group follow each other.
    bounds = [0, *(np.flatnonzero(states[1:] != states[:-1]) + 1).tolist(), len(states)]
    runs: dict[int, list[npt.NDArray[np.int64]]] = {}
    for start, stop in pairwise(bounds):
        runs.setdefault(int(states[start]), []).append(rows[:, start:stop])
    for state_id, found in runs.items():
        yield state_id, found[0] if len(found) == 1 else np.concatenate(found, axis=1)
