"""Keyed state in RocksDB databases: incremental and native full checkpoints, native savepoints.

The meta stream is the header of keyed state and nothing else; each state is a column family of its name, whose keys and
values have the canonical layout already. `open_rocksdb` reads a database (`RocksFile`), `RocksWriter` writes one.
Source: `RocksIncrementalSnapshotStrategy`, `RocksNativeFullSnapshotStrategy`, `RocksDBIncrementalRestoreOperation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import FormatError, Where, at
from state_pipelines.keyed import kernels
from state_pipelines.keyed.header import name_states, write_keyed_header
from state_pipelines.keyed.kernels import find_changes
from state_pipelines.keyed.key_groups import decode_prefixes, encode_prefix
from state_pipelines.keyed.keyed_file import FileFormat, KeyedFormat, gather_key_groups
from state_pipelines.keyed.record_layout import KeyedRecords, concat_records, cut_nulls, take_bytes
from state_pipelines.keyed.sections import parse_header
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.metadata.streams import check_header_size, read_together
from state_pipelines.rocksdb.manifest import ColumnFamily, check_files_listed, find_manifest, read_database
from state_pipelines.rocksdb.scans import (
    ColumnFamilyRanges,
    ColumnFamilyScans,
    KeyRange,
    SortedEntries,
    TableCache,
    estimate,
    find_files,
    split_keys,
)
from state_pipelines.rocksdb.writer import DEFAULT_COLUMN_FAMILY, DatabaseWriter, list_files
from state_pipelines.serializers.state_meta_info import BackendStateType, as_key_value
from state_pipelines.serializers.tree import StateKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import Counts, KeyGroupRecords, RecordContext, Runs
    from state_pipelines.keyed.keys import KeySeeks
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.rocksdb.manifest import TableFile
    from state_pipelines.serializers.snapshot_classes import DeclaredSerializer
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

_FEW = 16
"""A state with fewer splits than this is split by the indexes of its tables, because a table is a large share of it."""


@dataclass(frozen=True)
class RocksFile(KeyedFormat):
    """The RocksDB or ForSt database of one subtask, as the files of a handle.

    Attributes:
        name: name of the meta stream, for errors.
        key_groups: key groups to read: those of the handle, or some of them; the database may have more.
        column_families: column family of each state, by state id.
        context: properties of the operator.
        is_forst: the states are of the asynchronous API, so only ForSt restores the database; `header` describes them
            as states of the synchronous API.
        first: lower bound of the keys to read (inclusive), with key-group prefix.
        after: upper bound of the keys to read (exclusive); None to read up to the last one.
        seeks: keys that the caller wants (records of other keys may be returned or not); None for all keys.
        tables: cache of opened tables, shared by all scans and splits of the database.
    """

    name: str
    header: KeyedHeader
    key_groups: KeyGroupRange
    column_families: tuple[ColumnFamily, ...]
    context: RecordContext = field(repr=False, hash=False)
    first: bytes = b""
    after: bytes | None = None
    is_forst: bool = False
    seeks: KeySeeks | None = None
    tables: TableCache = field(default_factory=TableCache, compare=False, repr=False)

    format: ClassVar[FileFormat] = FileFormat.ROCKSDB
    needs_layouts: ClassVar[bool] = False
    lists_subclasses: ClassVar[bool] = True
    is_database: ClassVar[bool] = True
    by_kernels: ClassVar[bool] = True

    def scan(
        self, state_ids: Sequence[int], key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """Yield the records of some states, one state after the other (see `KeyedFile.scan`)."""
        wanted = [self._find_ranges(each, key_groups) for each in state_ids]
        with ColumnFamilyScans(wanted, tables=self.tables) as scans:
            for number, state_id in enumerate(state_ids):
                with at(state=self.header.states[state_id].name):
                    for entries in scans.scan(number):
                        yield state_id, _to_records(entries, self.context.prefix, self.name)

    def scan_key_groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """Yield all records, one key group after the other."""
        scans = {each: self.scan([each], key_groups) for each in range(len(self.header.states))}
        return gather_key_groups({each: (records for _, records in found) for each, found in scans.items()})

    def split(self, size: int, key_groups: KeyGroupRange | None = None) -> Iterator[RocksFile]:
        """Split the file into files of about `size` bytes, by the sizes of tables in the MANIFEST."""
        groups = self.key_groups if key_groups is None else self.key_groups.intersect(key_groups)
        if not groups.number or not any(column_family.files for column_family in self.column_families):
            return
        sizes = self.estimate_key_groups()
        start, total = groups.start, 0.0
        for key_group in groups:
            if key_group > start and total + sizes[key_group] > size:
                yield replace(self, key_groups=KeyGroupRange(start, key_group - start))
                start, total = key_group, 0.0
            total += sizes[key_group]
        yield replace(self, key_groups=KeyGroupRange(start, groups.end + 1 - start))

    def split_records(
        self, state_id: int, size: int, least: int, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[RocksFile, int]]:
        """Split into files of about `size` bytes; a file with more than `least` bytes of the state is cut between keys.

        To find the keys at which to cut, the indexes of the tables are read.
        """
        if self.seeks is not None:
            for split in self.split(size, key_groups):
                yield split, state_id
            return
        column_family = self.column_families[state_id]
        sizes = self.estimate_key_groups([column_family])
        is_coarse = sum(file.size for file in column_family.files) <= _FEW * size
        for split in self.split(size, key_groups):
            start, end = _find_bounds(split.key_groups, self.context.prefix)
            held = float(sizes[split.key_groups.start : split.key_groups.end + 1].sum())
            if is_coarse and sum(file.size for file in find_files(column_family, start, end)) > least:
                held = estimate(column_family, start, end)
            if held <= least:
                yield split, state_id
                continue
            for first, after in pairwise([start, *split_keys(column_family, start, end, size), end]):
                yield replace(split, first=first, after=after), state_id

    def estimate_key_groups(self, column_families: Sequence[ColumnFamily] | None = None) -> npt.NDArray[np.float64]:
        """Estimate the bytes of file per key group, f64[end + 1] from key group 0 on, of all or some column families.

        The bytes of a table are divided evenly among the key groups that it spans.
        """
        prefix = self.context.prefix
        sizes = np.zeros(self.key_groups.end + 1, np.float64)
        chosen = self.column_families if column_families is None else column_families
        for file in (file for column_family in chosen for file in column_family.files):
            bounds = (key[:prefix].ljust(prefix, b"\0") for key in (file.smallest, file.end))
            first, last = (min(int.from_bytes(bound, "big"), self.key_groups.end) for bound in bounds)
            sizes[first : last + 1] += file.size / (last + 1 - first)
        return sizes

    def measure_state(self, state_id: int, key_groups: KeyGroupRange | None) -> int:
        """Estimate the bytes of one state."""
        groups = self.key_groups if key_groups is None else self.key_groups.intersect(key_groups)
        sizes = self.estimate_key_groups([self.column_families[state_id]])
        return int(sizes[groups.start : groups.end + 1].sum()) if groups.number else 0

    def measure_stored_bytes(self, key_groups: KeyGroupRange) -> tuple[Counts, bool]:
        """See `KeyedFile`."""
        found = np.zeros(len(key_groups), np.int64)
        common = self.key_groups.intersect(key_groups)
        sizes = self.estimate_key_groups()[common.start : common.end + 1]
        found[common.start - key_groups.start :][: len(common)] = sizes.round()
        return found, True

    def table_files(self) -> Iterator[tuple[TableFile, TableCache]]:
        """See `KeyedFile`."""
        for column_family in self.column_families:
            for file in column_family.files:
                yield file, self.tables

    def narrow(self, key_groups: KeyGroupRange) -> RocksFile:
        """See `KeyedFile`."""
        return replace(self, key_groups=key_groups)

    def narrow_to_keys(self, keys: KeySeeks) -> RocksFile:
        """See `KeyedFile`."""
        return replace(self, seeks=keys)

    def _find_ranges(self, state_id: int, key_groups: KeyGroupRange | None) -> ColumnFamilyRanges:
        """Find the ranges of keys of a state that are to be read."""
        prefix = self.context.prefix
        groups = self.key_groups if key_groups is None else self.key_groups.intersect(key_groups)
        timers = self.header.states[state_id].backend_type is BackendStateType.PRIORITY_QUEUE
        found: list[tuple[bytes, bytes | None]] = []
        if groups.number and self.seeks is None:
            found.append(_find_bounds(groups, prefix))
        elif self.seeks is not None:
            found += self.seeks.find_ranges(groups, prefix, timers=timers)
        ranges = []
        for start, end in found:
            last = end if self.after is None else self.after if end is None else min(end, self.after)
            wanted = KeyRange(max(start, self.first), last)
            if wanted.end is None or wanted.start < wanted.end:
                ranges.append(wanted)
        return ColumnFamilyRanges(self.column_families[state_id], tuple(ranges))


def _find_bounds(key_groups: KeyGroupRange, prefix: int) -> tuple[bytes, bytes]:
    """Return the first possible key of some key groups, and the first possible key after them."""
    if key_groups.end + 1 >= 1 << 8 * prefix:
        raise FormatError(
            f"key groups {key_groups.start}-{key_groups.end} do not fit into the {prefix} bytes that keys begin with",
            hint="`_metadata` states another max parallelism than the database was written with",
        )
    return encode_prefix(key_groups.start, prefix), encode_prefix(key_groups.end + 1, prefix)


def open_rocksdb(
    meta: StateStream,
    key_groups: KeyGroupRange,
    files: Mapping[str, StateStream],
    context: RecordContext,
    *,
    declared: tuple[DeclaredSerializer, ...] = (),
) -> RocksFile:
    """Read the header and the manifest of a handle.

    Args:
        meta: the meta stream, which is the header and nothing else.
        key_groups: range of the handle.
        files: the files of the database by local name.
        context: properties of the operator.
        declared: snapshot classes that the user declares.

    Raises:
        FormatError: the states of the header and the column families of the database are not the same, or a table is
            not listed in the MANIFEST.
        MissingFileError: a table that is live is not among the files.
    """
    check_header_size(meta, meta.size)
    read = read_together([meta, *find_manifest(files)])
    header = parse_header(read(meta), meta.name, declared)
    database = read_database(files, read)
    check_files_listed(files, database)
    column_families = {each.name: each for each in database.column_families if each.name != DEFAULT_COLUMN_FAMILY}
    if header.raw:
        header = name_states(header, list(column_families), meta.name)
    names = [info.name for info in header.states]
    unknown = ", ".join(sorted(column_families.keys() ^ set(names)))
    if unknown:
        raise FormatError(
            f"the meta stream and the database do not have the same states: {unknown} is in one of them only",
            where=Where(file=meta.name),
            hint="The files of the handle do not belong together",
        )
    is_forst = any(info.backend_type is BackendStateType.KEY_VALUE_V2 for info in header.states)
    header = replace(header, states=tuple(map(as_key_value, header.states)))
    found = tuple(column_families[name] for name in names)
    return RocksFile(meta.name, header, key_groups, found, context, is_forst=is_forst)


def _to_records(entries: SortedEntries, prefix: int, name: str) -> KeyedRecords:
    data, starts = entries.data, entries.key_starts
    if len(starts) and int((entries.key_ends - starts).min()) < prefix:
        raise FormatError(f"a key is shorter than its key-group prefix of {prefix} bytes", where=Where(file=name))
    groups = decode_prefixes(data, starts, prefix)
    return KeyedRecords(
        groups, data, starts + prefix, entries.key_ends, entries.value_starts, entries.value_ends, 0, name
    )


@dataclass
class RocksWriter:
    """Writer of one database; the mirror of `open_rocksdb` and `RocksFile`.

    Args:
        directory: local directory for the database; empty, or it does not exist yet.
        header: key serializer and states, for the meta stream.
        context: properties of the operator.
    """

    directory: Path
    header: KeyedHeader
    context: RecordContext

    def write(self, file: KeyGroupRecords, key_groups: KeyGroupRange) -> dict[int, int]:
        """Write all records of `file` in some key groups, and return their number by state.

        Raises:
            FormatError: a key comes twice.
        """
        counts = dict.fromkeys(range(len(self.header.states)), 0)
        names = [info.name for info in self.header.states]
        with DatabaseWriter(self.directory, names) as database:
            for _, runs in file.scan_key_groups(key_groups):
                by_state: dict[int, list[KeyedRecords]] = {}
                for state_id, records in runs:
                    by_state.setdefault(state_id, []).append(records)
                for state_id, batches in by_state.items():
                    counts[state_id] += self._write_state(database, self.header.states[state_id], batches)
            database.finish()
        return counts

    def _write_state(self, database: DatabaseWriter, info: StateMetaInfo, batches: list[KeyedRecords]) -> int:
        with at(state=info.name):
            run = concat_records(batches)
            database.write(info.name, _to_entries(run, self.context.prefix, is_map=info.state_type == StateKind.MAP))
            return len(run)

    @property
    def meta(self) -> bytes:
        """Content of the meta stream: the header with key serializer and states."""
        writer = Writer()
        # Snappy streams of key groups do not occur in a database: RocksDB compresses its blocks itself.
        write_keyed_header(writer, replace(self.header, compressed=False))
        return writer.getvalue()

    @property
    def files(self) -> list[Path]:
        """The files that the handle must name; complete after `write`."""
        return list_files(self.directory)


def _to_entries(records: KeyedRecords, prefix: int, *, is_map: bool) -> SortedEntries:
    """Sort records of one state and key group by key, and add the key-group prefix."""
    data = records.data
    value_ends = cut_nulls(records) if is_map else records.value_ends
    order = np.asarray(pc.sort_indices(take_bytes(data, records.key_starts, records.key_ends))).astype(np.int64)
    size = int((records.key_ends - records.key_starts).sum() + (value_ends - records.value_starts).sum())
    target = np.empty(size + prefix * len(records), np.uint8)
    spans = np.empty((4, len(records)), np.int64)
    columns = (records.key_starts, records.key_ends, records.value_starts, value_ends)
    kernels.prefix_records(
        int(records.key_groups[0]), prefix, data.ctypes.data, *columns, order, target.ctypes.data, spans
    )
    repeated = np.flatnonzero(~find_changes(target.ctypes.data, spans[0], spans[1]))
    if len(repeated):
        key = target[spans[0, repeated[0]] : spans[1, repeated[0]]].tobytes().hex()
        raise FormatError(f"the key {key} comes twice", where=Where(file=records.file))
    return SortedEntries(target, spans[0], spans[1], spans[2], spans[3])
