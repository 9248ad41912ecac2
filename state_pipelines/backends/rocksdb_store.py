"""Entries in a RocksDB database of Flink's layout, a column family per state (`RocksDBKeyedStateBackend`).

Writes are buffered and go to the database in batches; reads look into the buffer first. Flink appends to lists with
RocksDB's merge operator, which rocksdict cannot write: appended elements are buffered instead, and joined with the
stored list when the buffer is written, so that the list has the same bytes. Operands that Flink has written are read.
"""

from __future__ import annotations

import shutil
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from rocksdict import Checkpoint, Rdict, WriteBatch, WriteOptions

from state_pipelines.backends.entry_store import DELIMITER, NO_SETTINGS, EntryKind
from state_pipelines.backends.record_batches import BATCH, make_records, split_records
from state_pipelines.backends.rocksdb_memory import SHARED_MEMORY, MemoryBudget, MemoryLease
from state_pipelines.backends.rocksdb_options import RocksOptions, read_rocksdb_options
from state_pipelines.backends.rocksdb_settings import make_options
from state_pipelines.errors import TargetExistsError, UsageError, Where
from state_pipelines.rocksdb.writer import DEFAULT_COLUMN_FAMILY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from rocksdict import ColumnFamily, RdictIter

    from state_pipelines.backends.entry_store import MeasureHead, StateSettings
    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

_MISSING = object()
_AFTER_ALL = b"\xff"
"""A key after those of all key groups, which are below 32,768."""


class BufferedColumnFamily:
    """A column family and its buffered writes.

    Args:
        store: of the column family.
        table: its database handle.
        handle: names it in write batches.
    """

    def __init__(self, store: RocksStore, table: Rdict, handle: ColumnFamily) -> None:
        self._store = store
        self.table = table
        self.handle = handle
        self.pending: dict[bytes, bytes | None] = {}
        self._bytes = 0

    def get(self, key: bytes, /) -> bytes | None:
        """See `Entries`."""
        found = self.pending.get(key, _MISSING)
        if found is _MISSING:
            found = self.table.get(key)
        return found  # type: ignore[return-value]

    def put(self, key: bytes, value: bytes, /) -> None:
        """See `Entries`."""
        self.pending[key] = value
        self._count(len(key) + len(value))

    def delete(self, key: bytes, /) -> None:
        """See `Entries`."""
        self.pending[key] = None
        self._count(len(key))

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes >= self._store.options.write_batch_size:
            self.flush()

    def flush(self) -> None:
        """Write the buffer to the database."""
        if self.pending:
            self._store.write(self.handle, self.pending.items())
            self.pending.clear()
        self._bytes = 0

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Entries from one key up to another (exclusive), as they are at the time of the call."""
        self.flush()
        cursor = self.table.iter()
        cursor.seek(start)
        return _walk(cursor, end)

    def keys(self) -> Iterator[bytes]:
        """See `Entries`."""
        return (key for key, _ in self.scan(b""))

    def close(self) -> None:
        """Release the handle of the column family."""
        self.table.close()


def _walk(cursor: RdictIter, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    while cursor.valid():
        key = cursor.key()
        if end is not None and key >= end:
            break
        yield key, cursor.value()
        cursor.next()
    # An iterator that failed is not valid, as one at its end.
    cursor.status()


class RocksValues(BufferedColumnFamily):
    """Entries of one value each."""

    def append(self, key: bytes, element: bytes, /) -> None:
        """See `Entries`."""
        old = self.get(key)
        self.put(key, element if old is None else old + DELIMITER + element)


class RocksLists(BufferedColumnFamily):
    """Entries of list state."""

    def __init__(self, store: RocksStore, table: Rdict, handle: ColumnFamily) -> None:
        super().__init__(store, table, handle)
        self._appended: dict[bytes, list[bytes]] = {}

    def get(self, key: bytes, /) -> bytes | None:
        """See `Entries`."""
        self._join(key)
        return super().get(key)

    def put(self, key: bytes, value: bytes, /) -> None:
        """See `Entries`."""
        self._appended.pop(key, None)
        super().put(key, value)

    def delete(self, key: bytes, /) -> None:
        """See `Entries`."""
        self._appended.pop(key, None)
        super().delete(key)

    def append(self, key: bytes, element: bytes, /) -> None:
        """See `Entries`."""
        elements = self._appended.get(key)
        if elements is None:
            self._appended[key] = [element]
        else:
            elements.append(element)
        self._count(len(key) + len(element))

    def flush(self) -> None:
        """Join appended elements with the stored lists, and write them."""
        for key in list(self._appended):
            self._join(key)
        super().flush()

    def _join(self, key: bytes) -> None:
        elements = self._appended.pop(key, None)
        if elements is not None:
            old = super().get(key)
            self.pending[key] = DELIMITER.join(elements if old is None else [old, *elements])


class RocksMaps:
    """Entries of map state."""

    def __init__(self, values: RocksValues, measure_head: MeasureHead) -> None:
        self.values = values
        self._measure_head = measure_head

    def get(self, head: bytes, map_key: bytes, /) -> bytes | None:
        """See `MapEntries`."""
        return self.values.get(head + map_key)

    def put(self, head: bytes, map_key: bytes, value: bytes, /) -> None:
        """See `MapEntries`."""
        self.values.put(head + map_key, value)

    def delete(self, head: bytes, map_key: bytes, /) -> None:
        """See `MapEntries`."""
        self.values.delete(head + map_key)

    def scan(self, head: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """See `MapEntries`."""
        size = len(head)
        return ((key[size:], value) for key, value in self.values.scan(head, _find_end(head)))

    def delete_all(self, head: bytes, /) -> None:
        """See `MapEntries`."""
        for key, _ in self.values.scan(head, _find_end(head)):
            self.values.delete(key)

    def keys(self) -> Iterator[bytes]:
        """See `MapEntries`."""
        self.values.flush()
        return self._find_heads(self.values.table.iter())

    def _find_heads(self, cursor: RdictIter) -> Iterator[bytes]:
        cursor.seek(b"")
        while cursor.valid():
            key = cursor.key()
            head = key[: self._measure_head(key)]
            yield head
            end = _find_end(head)
            if end is None:
                break
            cursor.seek(end)
        cursor.status()


def _find_end(head: bytes) -> bytes | None:
    """The first key after all that begin with `head`; None when there is none."""
    stripped = head.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


class RocksStore:
    """A database of its own for one subtask.

    Args:
        prefix: bytes of the key-group prefix, 1 or 2.
        directory: local, empty or not there yet; removed by `close`, and when the database cannot be opened.
        options: of the database; default Flink's defaults.

    Raises:
        TargetExistsError: the directory holds something.
        UsageError: the process shares another amount of memory.
    """

    is_heap: ClassVar[bool] = False

    def __init__(self, prefix: int, directory: Path, options: RocksOptions | None = None) -> None:
        if directory.exists() and any(directory.iterdir()):
            raise TargetExistsError("the directory is not empty", where=Where(file=str(directory)))
        self.options = options or read_rocksdb_options()
        self._prefix = prefix
        self._directory = directory
        self._lease: MemoryLease | None = None
        self._writing = WriteOptions()
        # State is restored from checkpoints, never from the log of the database.
        self._writing.disable_wal = True  # type: ignore[method-assign, assignment]  # a property; the stub says method
        self._column_families: dict[str, BufferedColumnFamily] = {}
        self._maps: dict[str, RocksMaps] = {}
        try:
            if self.options.memory_size is not None:
                budget = MemoryBudget(self.options.memory_size, self.options.write_buffer_ratio)
                self._lease = SHARED_MEMORY.lease(budget)
            self._settings = make_options(self.options, self._lease)
            directory.mkdir(parents=True, exist_ok=True)
            self._database = Rdict(str(directory / "db"), self._settings)
        except BaseException:
            self._release()
            raise

    @property
    def directory(self) -> Path:
        """Directory of the store; the database is in it, and there is room beside it."""
        return self._directory

    def register(self, info: StateMetaInfo, layout: KeyedLayout, settings: StateSettings = NO_SETTINGS) -> None:
        """Do nothing: entries are bytes here."""

    def open_entries(self, name: str, kind: EntryKind) -> RocksValues | RocksLists:
        """See `EntryStore`."""
        wanted = RocksLists if kind is EntryKind.LIST else RocksValues
        opened = self._open(name)
        if name in self._maps:
            raise UsageError("the entries are those of map state", where=Where(state=name))
        if type(opened) is BufferedColumnFamily:
            opened = self._column_families[name] = wanted(self, opened.table, opened.handle)
        assert isinstance(opened, RocksValues | RocksLists)
        return opened

    def open_map(self, name: str, measure_head: MeasureHead) -> RocksMaps:
        """See `EntryStore`."""
        if name not in self._maps:
            opened = self._open(name)
            if type(opened) is not BufferedColumnFamily:
                raise UsageError("the entries are not those of map state", where=Where(state=name))
            values = self._column_families[name] = RocksValues(self, opened.table, opened.handle)
            self._maps[name] = RocksMaps(values, measure_head)
        return self._maps[name]

    def load(self, name: str, records: KeyedRecords) -> None:
        """See `EntryStore`."""
        opened = self._open(name)
        if type(opened) is not BufferedColumnFamily:
            raise UsageError("records are loaded before a state is opened", where=Where(state=name))
        entries = split_records(records, self._prefix)
        while batch := list(islice(entries, BATCH)):
            self.write(opened.handle, batch)

    def records(self, name: str, key_groups: KeyGroupRange) -> Iterator[KeyedRecords]:
        """See `EntryStore`."""
        column_family = self._column_families.get(name)
        if column_family is None or not key_groups.number:
            return iter(())
        entries = column_family.scan(key_groups.start.to_bytes(self._prefix, "big"), self._find_end(key_groups))
        return self._batch(entries)

    def _batch(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[KeyedRecords]:
        while batch := list(islice(entries, BATCH)):
            yield make_records(batch, self._prefix)

    def drop(self, name: str) -> None:
        """See `EntryStore`."""
        self._maps.pop(name, None)
        column_family = self._column_families.pop(name, None)
        if column_family is not None:
            column_family.close()
            self._database.drop_column_family(name)

    def flush(self) -> None:
        """Write all buffers to the database."""
        for column_family in self._column_families.values():
            column_family.flush()

    def checkpoint(self, directory: Path) -> None:
        """Link the tables of a consistent state of the database into a directory that is not there yet."""
        self.flush()
        Checkpoint(self._database).create_checkpoint(str(directory))

    def adopt(self, files: Path, names: Iterable[str]) -> None:
        """Open the database in a directory inside the store instead of the own empty one.

        Args:
            files: the files of a database; they become those of the store.
            names: of its states.

        Raises:
            UsageError: the store holds something already.
        """
        if self._column_families:
            raise UsageError("a database is taken over by an empty store only")
        self._database.close()
        shutil.rmtree(self._directory / "db")
        files.rename(self._directory / "db")
        column_families = dict.fromkeys(names, self._settings)
        self._database = Rdict(str(self._directory / "db"), self._settings, column_families=column_families)
        for name in column_families:
            handle = self._database.get_column_family_handle(name)
            self._column_families[name] = BufferedColumnFamily(self, self._database.get_column_family(name), handle)

    def clip(self, key_groups: KeyGroupRange) -> None:
        """Remove the entries of all other key groups by range tombstones; nothing is written where there are none."""
        first, end = key_groups.start.to_bytes(self._prefix, "big"), self._find_end(key_groups)
        for column_family in self._column_families.values():
            cursor = column_family.table.iter()
            cursor.seek(b"")
            if cursor.valid() and cursor.key() < first:
                column_family.table.delete_range(b"", first, self._writing)
            if end is not None:
                cursor.seek(end)
                if cursor.valid():
                    column_family.table.delete_range(end, _AFTER_ALL, self._writing)
            cursor.status()

    def _find_end(self, key_groups: KeyGroupRange) -> bytes | None:
        limit = key_groups.end + 1
        return limit.to_bytes(self._prefix, "big") if limit < 1 << 8 * self._prefix else None

    def write(self, handle: ColumnFamily, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write entries of one column family in one batch; a value of None deletes."""
        batch = WriteBatch(raw_mode=True)
        for key, value in entries:
            if value is None:
                batch.delete(key, handle)
            else:
                batch.put(key, value, handle)
        self._database.write(batch, self._writing)

    def close(self) -> None:
        """See `EntryStore`; the directory is removed."""
        for column_family in self._column_families.values():
            column_family.close()
        self._column_families.clear()
        self._maps.clear()
        self._database.close()
        self._release()

    def _release(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._lease is not None:
            self._lease.release()

    def _open(self, name: str) -> BufferedColumnFamily:
        """The column family of a state; a plain `BufferedColumnFamily` as long as its kind is not known."""
        if name == DEFAULT_COLUMN_FAMILY:
            raise UsageError("a state cannot be called default, as the column family that every database has")
        found = self._column_families.get(name)
        if found is None:
            table = self._database.create_column_family(name, self._settings)
            found = self._column_families[name] = BufferedColumnFamily(
                self, table, self._database.get_column_family_handle(name)
            )
        return found
