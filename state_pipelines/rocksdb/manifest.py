"""CURRENT and MANIFEST: the column families of a database and the tables that each consists of.

Sources in RocksDB: `db/log_format.h`, `db/log_reader.cc` (records), `db/version_edit.h`, `db/version_edit.cc` (edits).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import cramjam

from state_pipelines.errors import FormatError, MissingFileError, UnsupportedError, Where
from state_pipelines.metadata.streams import read_whole_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from state_pipelines.metadata.streams import StateStream


class Cursor:
    """A cursor over bytes; every read checks its bounds and moves on.

    Args:
        data: the bytes.
        name: file name, for errors.
        offset: position of `data` in the file, for errors.

    Raises:
        FormatError: from every method, when the bytes end early.
    """

    __slots__ = ("data", "name", "offset", "position")

    def __init__(self, data: bytes, name: str, offset: int = 0) -> None:
        self.data = data
        self.name = name
        self.offset = offset
        self.position = 0

    @property
    def remaining(self) -> int:
        """Bytes between the cursor and the end."""
        return len(self.data) - self.position

    def error(self, what: str) -> FormatError:
        """Return a `FormatError` at the cursor, for the caller to raise."""
        return FormatError(what, where=Where(file=self.name, offset=self.offset + self.position))

    def take(self, size: int) -> bytes:
        """Read the next `size` bytes."""
        if size > self.remaining:
            raise self.error(f"{size} bytes wanted but only {self.remaining} are left")
        start = self.position
        self.position += size
        return self.data[start : self.position]

    def varint(self) -> int:
        """Read an unsigned varint of at most 64 bits."""
        # Shortcut for varints of one byte, which are the most frequent.
        if self.position < len(self.data) and (value := self.data[self.position]) < 0x80:
            self.position += 1
            return value
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        if byte > 0x7F or value >> 64:
            raise self.error("a varint is longer than 64 bits")
        return value

    def prefixed(self) -> bytes:
        """Read a varint length, then that many bytes."""
        return self.take(self.varint())

    def text(self) -> str:
        """Read UTF-8 text after a varint length."""
        raw = self.prefixed()
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"{raw!r} is not UTF-8") from None


CURRENT = "CURRENT"
MOST_MANIFEST = 1 << 30
"""Maximum bytes of a MANIFEST; RocksDB begins a new one before that (`max_manifest_file_size`)."""

BYTEWISE = "leveldb.BytewiseComparator"
RANGE_BOUND_TRAILER = b"\x0f" + b"\xff" * 7
"""Trailer of a largest key that only ends a range tombstone: the key itself is not in the table."""

_BLOCK_SIZE = 1 << 15
_HEADER_SIZE = 7
_CHECKSUM = 14
"""Offset of the checksum of the first chunk (up to 64 KiB) in framed snappy."""
_ZERO, _FULL, _FIRST, _MIDDLE, _LAST = range(5)

_COMPARATOR = 1
_LOG_NUMBER = 2
_NEXT_FILE = 3
_LAST_SEQUENCE = 4
_COMPACT_CURSOR = 5
_DELETED_FILE = 6
_NEW_FILE = 7
_PREVIOUS_LOG = 9
_MIN_LOG = 10
_NEW_FILE_2 = 100
_NEW_FILE_3 = 102
_NEW_FILE_4 = 103
_COLUMN_FAMILY = 200
_ADD_COLUMN_FAMILY = 201
_DROP_COLUMN_FAMILY = 202
_MAX_COLUMN_FAMILY = 203
_ATOMIC_GROUP = 300
_SKIPPABLE = 1 << 13
_NUMBERS = (_LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _PREVIOUS_LOG, _MIN_LOG, _MAX_COLUMN_FAMILY)

_FIELD_END = 1
_FIELD_PATH = 65
_FIELD_NOT_SKIPPABLE = 1 << 6


@dataclass(frozen=True, slots=True)
class TableFile:
    """A live table (SST file), as the MANIFEST describes it.

    Attributes:
        number: number of the file.
        level: level in the database, 0 to 6.
        size: bytes of the file.
        smallest: lower bound (inclusive) of the user keys of the table and of its range tombstones.
        end: upper bound (exclusive) of the user keys of the table and of its range tombstones.
        smallest_sequence: smallest sequence number of the entries.
        largest_sequence: largest sequence number of the entries; in an ingested table, that of all entries.
        stream: the stream that holds the file.
        column_family: name of the column family that lists the table; empty if it is not known.
    """

    number: int
    level: int
    size: int
    smallest: bytes
    end: bytes
    smallest_sequence: int
    largest_sequence: int
    stream: StateStream
    column_family: str = ""


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """A column family, in which Flink's RocksDB backend keeps one state.

    Attributes:
        id: number of the column family in the database.
        name: name of the state.
        files: tables of the column family, by smallest key.
    """

    id: int
    name: str
    files: tuple[TableFile, ...]


@dataclass(frozen=True, slots=True)
class Database:
    """A database in a checkpoint, which no process writes.

    Attributes:
        column_families: the column families by id; `default` is one of them.
    """

    column_families: tuple[ColumnFamily, ...]


@dataclass
class _TableSet:
    name: str
    tables: dict[int, tuple[int, int, bytes, bytes, int, int]] = field(default_factory=dict)


@dataclass
class _Edit:
    column_family: int = 0
    comparator: str | None = None
    added: str | None = None
    dropped: bool = False
    group: int | None = None
    deleted: list[tuple[int, int]] = field(default_factory=list)
    tables: list[tuple[int, int, int, bytes, bytes, int, int]] = field(default_factory=list)


def is_database_file(name: str) -> bool:
    """Return whether `read_database` or a scan of tables uses a file of this name in a database directory."""
    return name == CURRENT or name.startswith("MANIFEST-") or name.endswith((".sst", ".log"))


def find_manifest(files: Mapping[str, StateStream]) -> list[StateStream]:
    """Return the files that `read_database` will certainly read: CURRENT, and the MANIFEST if there is only one."""
    manifests = [stream for name, stream in files.items() if name.startswith("MANIFEST-")]
    named = [*(files[each] for each in (CURRENT,) if each in files), *(manifests if len(manifests) == 1 else ())]
    return [each for each in named if each.size <= MOST_MANIFEST]


def _require_short(stream: StateStream) -> StateStream:
    if stream.size > MOST_MANIFEST:
        what = f"the file has {stream.size:,} bytes, and a MANIFEST has {MOST_MANIFEST >> 20:,} MiB at most"
        raise FormatError(what, where=Where(file=stream.name), hint="The file was changed")
    return stream


def read_database(
    files: Mapping[str, StateStream], read: Callable[[StateStream], bytes] = read_whole_stream
) -> Database:
    """Read the column families and tables of a database directory; only CURRENT and the MANIFEST are read.

    Args:
        files: the files by their names in the directory; others than those needed are ignored.
        read: returns all bytes of a file.

    Raises:
        FormatError: the MANIFEST is damaged, or contradicts itself.
        MissingFileError: CURRENT, the MANIFEST or a live table is not among the files.
        UnsupportedError: keys are not ordered by their bytes, the MANIFEST has parts that must be understood but are
            not, or entries wait in a write-ahead log.
    """
    current = _require_short(_find(files, CURRENT))
    name = read(current).decode("utf-8", "replace").rstrip("\n")
    manifest = _require_short(_find(files, name))
    column_families = _replay(read(manifest), manifest.name)
    for log, stream in files.items():
        if log.endswith(".log") and stream.size:
            what = "the database has a write-ahead log, whose entries are in no table yet"
            hint = "Flink's snapshots have none; open the database with RocksDB and flush it"
            raise UnsupportedError(what, where=Where(file=stream.name), hint=hint)
    _check_tables(column_families.values(), manifest.name)
    return Database(
        tuple(_to_column_family(files, number, column_families[number]) for number in sorted(column_families))
    )


def check_files_listed(files: Mapping[str, StateStream], database: Database) -> None:
    """Check that the MANIFEST lists all tables of a handle.

    A handle names only the live files of a database (`GetLiveFiles`), which belong to its current version. The
    directory of a database that is in use may hold older tables as well.

    Raises:
        FormatError: a table is not listed.
    """
    listed = {f"{file.number:06d}.sst" for each in database.column_families for file in each.files}
    for name, stream in files.items():
        if name.endswith(".sst") and name not in listed:
            what = f"the handle of the RocksDB state names {name}, which the MANIFEST does not list"
            raise FormatError(
                what, where=Where(file=stream.name), hint="The files of the handle do not belong together"
            )


def _check_tables(column_families: Iterable[_TableSet], name: str) -> None:
    # RocksDB checks the same when it opens a database (`VersionBuilder::CheckConsistency`).
    owners: dict[int, str] = {}
    for column_family in column_families:
        levels: dict[int, list[tuple[tuple[bytes, int], tuple[bytes, int], int]]] = {}
        for number, (level, _, smallest, largest, _, _) in column_family.tables.items():
            if number in owners:
                what = f"table {number} is in two column families, {owners[number]!r} and {column_family.name!r}"
                raise FormatError(what, where=Where(file=name))
            owners[number] = column_family.name
            if level:
                levels.setdefault(level, []).append((_to_order(smallest), _to_order(largest), number))
        for level, tables in levels.items():
            for (_, largest_key, number), (smallest_key, _, after) in pairwise(sorted(tables)):
                if largest_key >= smallest_key:
                    what = (
                        f"tables {number} and {after} of column family {column_family.name!r} overlap on level {level}"
                    )
                    hint = "RocksDB does not open such a database: only tables of level 0 may overlap"
                    raise FormatError(what, where=Where(file=name), hint=hint)


def _to_order(key: bytes) -> tuple[bytes, int]:
    """Return the sort key of an internal key: by user key, the newest version first."""
    return key[:-8], -int.from_bytes(key[-8:], "little")


def _find(files: Mapping[str, StateStream], name: str) -> StateStream:
    if name not in files:
        what = f"the handle of the RocksDB state names no file {name!r}"
        raise MissingFileError(what, hint=f"It names {', '.join(sorted(files)) or 'none'}; the snapshot is incomplete")
    return files[name]


def _to_column_family(files: Mapping[str, StateStream], number: int, column_family: _TableSet) -> ColumnFamily:
    tables = []
    for table, (level, size, smallest, largest, first, last) in column_family.tables.items():
        stream = _find(files, f"{table:06d}.sst")
        if stream.size != size:
            name = column_family.name
            what = f"table {table} of column family {name!r} has {stream.size} bytes, the MANIFEST says {size}"
            raise FormatError(what, where=Where(file=stream.name))
        end = largest[:-8] if largest[-8:] == RANGE_BOUND_TRAILER else largest[:-8] + b"\0"
        if smallest[:-8] >= end:
            what = f"the bounds of table {table} in the MANIFEST are not in order"
            raise FormatError(what, where=Where(file=stream.name))
        tables.append(TableFile(table, level, size, smallest[:-8], end, first, last, stream, column_family.name))
    return ColumnFamily(
        number, column_family.name, tuple(sorted(tables, key=lambda file: (file.smallest, file.number)))
    )


def _replay(data: bytes, name: str) -> dict[int, _TableSet]:
    column_families = {0: _TableSet("default")}
    group = 0
    for offset, record in _iter_records(data, name):
        cursor = Cursor(record, name, offset)
        edit = _read_edit(cursor)
        if edit.comparator not in (None, BYTEWISE):
            what = f"the keys of a column family are ordered by {edit.comparator}, not by their bytes"
            raise UnsupportedError(what, where=Where(file=name, offset=offset))
        if edit.added is not None:
            column_families[edit.column_family] = _TableSet(edit.added)
        if edit.column_family not in column_families:
            raise cursor.error(
                f"an edit of the MANIFEST is for column family {edit.column_family}, which does not exist"
            )
        if edit.dropped:
            del column_families[edit.column_family]
        else:
            _apply(column_families[edit.column_family], edit, cursor)
        group = edit.group or 0
    if group:
        what = f"the MANIFEST ends inside an atomic group, {group} edits are missing"
        raise FormatError(what, where=Where(file=name, offset=len(data)))
    return column_families


def _apply(column_family: _TableSet, edit: _Edit, cursor: Cursor) -> None:
    # A table that moves to another level is deleted and added by the same edit.
    for level, number in edit.deleted:
        if number not in column_family.tables or column_family.tables[number][0] != level:
            raise cursor.error(f"an edit of the MANIFEST deletes table {number} of level {level}, which is not there")
        del column_family.tables[number]
    for level, number, size, smallest, largest, first, last in edit.tables:
        if number in column_family.tables:
            raise cursor.error(f"an edit of the MANIFEST adds table {number} again")
        column_family.tables[number] = (level, size, smallest, largest, first, last)


def _iter_records(data: bytes, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the position and payload of each record of a log."""
    fragments: list[bytes] = []
    position = start = 0
    while position < len(data):
        left = _BLOCK_SIZE - position % _BLOCK_SIZE
        if left < _HEADER_SIZE:
            position += left
            continue
        where = Where(file=name, offset=position)
        crc = int.from_bytes(data[position : position + 4], "little")
        size = int.from_bytes(data[position + 4 : position + 6], "little")
        end = position + _HEADER_SIZE + size
        if end > len(data) or _HEADER_SIZE + size > left:
            raise FormatError("a record of the log is cut off", where=where)
        kind = data[position + 6]
        if kind == _ZERO and size == 0 and not any(data[position:]):
            # The rest of the log is space that RocksDB has allocated ahead and never written.
            break
        if _masked_crc32c(data[position + 6 : end]) != crc:
            raise FormatError("a record of the log does not match its checksum", where=where)
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or (kind in (_FULL, _FIRST)) == bool(fragments):
            raise FormatError(f"a record of type {kind} of the log is not expected here", where=where)
        start = start if fragments else position
        fragments.append(data[position + _HEADER_SIZE : end])
        if kind in (_FULL, _LAST):
            yield start, b"".join(fragments)
            fragments = []
        position = end
    if fragments:
        raise FormatError("the log ends inside a record", where=Where(file=name, offset=start))


def _masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C of a record.

    The record is compressed only to get the checksum: a chunk of framed snappy has the same one. The compiled kernels
    would take longer.
    """
    return int.from_bytes(memoryview(cramjam.snappy.compress(data))[_CHECKSUM : _CHECKSUM + 4], "little")


def _read_edit(cursor: Cursor) -> _Edit:
    edit = _Edit()
    while cursor.remaining:
        tag = cursor.varint()
        if tag == _COMPARATOR:
            edit.comparator = cursor.text()
        elif tag in _NUMBERS:
            cursor.varint()
        elif tag == _COMPACT_CURSOR:
            cursor.varint()
            cursor.prefixed()
        elif tag == _DELETED_FILE:
            edit.deleted.append((cursor.varint(), cursor.varint()))
        elif tag in (_NEW_FILE, _NEW_FILE_2, _NEW_FILE_3, _NEW_FILE_4):
            edit.tables.append(_read_new_file(cursor, tag))
        elif tag == _COLUMN_FAMILY:
            edit.column_family = cursor.varint()
        elif tag == _ADD_COLUMN_FAMILY:
            edit.added = cursor.text()
        elif tag == _DROP_COLUMN_FAMILY:
            edit.dropped = True
        elif tag == _ATOMIC_GROUP:
            edit.group = cursor.varint()
        elif tag & _SKIPPABLE:
            cursor.prefixed()
        else:
            raise _unknown(cursor, f"an edit of the MANIFEST has the unknown tag {tag}")
    return edit


def _read_new_file(cursor: Cursor, tag: int) -> tuple[int, int, int, bytes, bytes, int, int]:
    level, number = cursor.varint(), cursor.varint()
    if tag == _NEW_FILE_3:
        cursor.varint()  # which of several data directories; a snapshot has one
    size, smallest, largest = cursor.varint(), cursor.prefixed(), cursor.prefixed()
    if min(len(smallest), len(largest)) < 8:
        raise cursor.error(f"a bound of table {number} is shorter than the trailer of a key")
    first, last = (0, 0) if tag == _NEW_FILE else (cursor.varint(), cursor.varint())
    if tag == _NEW_FILE_4:
        while (custom := cursor.varint()) != _FIELD_END:
            if custom & _FIELD_NOT_SKIPPABLE and custom != _FIELD_PATH:
                raise _unknown(cursor, f"table {number} has the unknown property {custom} in the MANIFEST")
            cursor.prefixed()
    return level, number, size, smallest, largest, first, last


def _unknown(cursor: Cursor, what: str) -> UnsupportedError:
    where = Where(file=cursor.name, offset=cursor.offset + cursor.position)
    return UnsupportedError(
        what,
        where=where,
        hint="A newer RocksDB wrote the database, or it has blob files; databases of Flink have neither",
    )
