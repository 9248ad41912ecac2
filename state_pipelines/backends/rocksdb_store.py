"""Store of entries in a RocksDB database of Flink's layout, with its options and its memory.

* `RocksStore`: a column family per state (`RocksDBKeyedStateBackend`). Writes are buffered and go to the database in
  batches; reads look into the buffer first. Flink appends to lists with RocksDB's merge operator, which rocksdict
  cannot write: appended elements are buffered instead, and joined with the stored list when the buffer is written, so
  that the list has the same bytes. Operands that Flink has written are read.
* `RocksOptions`, `read_rocksdb_options`: Flink's options of the RocksDB backend, with their keys and defaults. Source:
  `RocksDBOptions`, `RocksDBConfigurableOptions`, `PredefinedOptions`, `EmbeddedRocksDBStateBackend`.
* `make_options`: options of rocksdict for Flink's options, and for tables that Flink reads. Source:
  `RocksDBResourceContainer.createBaseCommonDBOptions`, `RocksDBResourceContainer.getColumnOptions`.
* `MemoryBudget`, `SharedMemory`, `MemoryLease`: one memory budget of all RocksDB databases of a process, leased and
  counted by reference. Source: `RocksDBMemoryControllerUtils`, `SharedResources`.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from rocksdict import (
    BlockBasedIndexType,
    Cache,
    Checkpoint,
    DBCompactionStyle,
    DBCompressionType,
    Rdict,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from state_pipelines.backends.entry_store import BATCH, DELIMITER, NO_SETTINGS, EntryKind, make_records, split_records
from state_pipelines.errors import TargetExistsError, UnsupportedError, UsageError, Where
from state_pipelines.operations.retention.policy import parse_size
from state_pipelines.rocksdb.writer import DEFAULT_COLUMN_FAMILY, load_flink_options, make_table_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from rocksdict import BlockBasedOptions, ColumnFamily, Options, RdictIter

    from state_pipelines.backends.entry_store import MeasureHead, StateSettings
    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

PREFIX = "state.backend.rocksdb."
MANAGED_SIZE = "taskmanager.memory.managed.size"
"""Memory of all RocksDB databases of a process, if it is managed and no other size is given."""

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "predefined-options": "DEFAULT",
        "thread.num": "2",
        "files.open": "-1",
        "log.max-file-size": "25mb",
        "log.file-num": "4",
        "log.dir": "",
        "compaction.style": "LEVEL",
        "compaction.level.use-dynamic-size": "false",
        "compaction.level.target-file-size-base": "64mb",
        "compaction.level.max-size-level-base": "256mb",
        "compression.per.level": "SNAPPY_COMPRESSION",
        "writebuffer.size": "64mb",
        "writebuffer.count": "2",
        "writebuffer.number-to-merge": "1",
        "block.blocksize": "4kb",
        "block.metadata-blocksize": "4kb",
        "block.cache-size": "8mb",
        "use-bloom-filter": "false",
        "bloom-filter.bits-per-key": "10.0",
        "bloom-filter.block-based-mode": "false",
        "write-batch-size": "2mb",
        "memory.managed": "true",
        "memory.fixed-per-slot": "",
        "memory.fixed-per-tm": "",
        "memory.write-buffer-ratio": "0.5",
        "memory.partitioned-index-filters": "false",
        "checkpoint.transfer.thread.num": "4",
        "restore-overlap-fraction-threshold": "0.0",
        "localdir": "",
    }
)
"""Options that have an effect, without `PREFIX`, and their defaults."""

MANAGED_DEFAULT = "256mb"

METRICS = "metrics."
"""Beginning of the options of metrics, all of which are `false` by default."""

PROFILES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "DEFAULT": {},
        "SPINNING_DISK_OPTIMIZED": {
            "compaction.style": "LEVEL",
            "compaction.level.use-dynamic-size": "true",
            "thread.num": "4",
            "files.open": "-1",
        },
        "SPINNING_DISK_OPTIMIZED_HIGH_MEM": {
            "block.cache-size": "256mb",
            "block.blocksize": "128kb",
            "compaction.level.use-dynamic-size": "true",
            "thread.num": "4",
            "compaction.level.max-size-level-base": "1gb",
            "files.open": "-1",
            "writebuffer.count": "4",
            "writebuffer.number-to-merge": "3",
            "compaction.level.target-file-size-base": "256mb",
            "writebuffer.size": "64mb",
            "use-bloom-filter": "true",
        },
        "FLASH_SSD_OPTIMIZED": {"thread.num": "4", "files.open": "-1"},
    }
)
"""Predefined options by name."""

FIXED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "log.level": ("INFO_LEVEL", "rocksdict does not set the level of the log"),
        "options-factory": ("", "a factory is a Java class; set the options by their keys"),
        "memory.high-prio-pool-ratio": ("0.1", "the cache of rocksdict has no pool of high priority"),
        "timer-service.factory": ("ROCKSDB", "timers are records of the store, ordered in memory"),
        "timer-service.cache-size": ("128", "the order of all timers is in memory"),
        "checkpoint.upload-jitter": ("0 ms", "uploads are not delayed"),
        "use-ingest-db-restore-mode": (
            "false",
            "a restore at another parallelism writes the records of all databases but one",
        ),
        "use-delete-files-in-range-during-rescaling": (
            "false",
            "a restore at another parallelism deletes by range tombstones",
        ),
        "incremental-restore-async-compact-after-rescale": ("false", "RocksDB compacts by itself"),
        "rescaling.use-delete-files-in-range": (
            "false",
            "a restore at another parallelism deletes by range tombstones",
        ),
        **{
            f"manual-compaction.{name}": (default, "RocksDB compacts by itself")
            for name, default in {
                "min-interval": "0 ms",
                "max-parallel-compactions": "5",
                "max-file-size-to-compact": "50kb",
                "min-files-to-compact": "5",
                "max-files-to-compact": "30",
                "max-output-file-size": "64mb",
                "max-auto-compactions": "30",
            }.items()
        },
        "compaction.filter.query-time-after-num-entries": ("1000", "rocksdict has no compaction filter for TTL"),
        "compaction.filter.periodic-compaction-time": ("30 d", "rocksdict has no compaction filter for TTL"),
    }
)
"""Options that are accepted at their default only, and the reason."""

COMPRESSIONS = {
    "NO_COMPRESSION": "none",
    "SNAPPY_COMPRESSION": "snappy",
    "LZ4_COMPRESSION": "lz4",
    "ZSTD_COMPRESSION": "zstd",
}
"""Compressions that the RocksDB of Flink and of rocksdict both have."""


class CompactionStyle(StrEnum):
    """Style of compaction, by the value of `compaction.style`."""

    LEVEL = "LEVEL"
    FIFO = "FIFO"
    UNIVERSAL = "UNIVERSAL"
    NONE = "NONE"


@dataclass(frozen=True, kw_only=True)
class RocksOptions:
    """Options of a database, named after Flink's keys; sizes in bytes.

    Attributes:
        memory_size: shared memory of all databases of the process; None when every state has memory of its own.
    """

    thread_num: int
    files_open: int
    log_max_file_size: int
    log_file_num: int
    log_dir: str
    compaction_style: CompactionStyle
    use_dynamic_size: bool
    target_file_size_base: int
    max_size_level_base: int
    compression_per_level: tuple[str, ...]
    writebuffer_size: int
    writebuffer_count: int
    writebuffer_number_to_merge: int
    block_size: int
    metadata_block_size: int
    block_cache_size: int
    bloom_filter_bits: float | None
    bloom_filter_block_based: bool
    write_batch_size: int
    memory_size: int | None
    write_buffer_ratio: float
    partitioned_index_filters: bool
    transfer_threads: int
    restore_overlap_fraction_threshold: float
    local_directory: str


def read_rocksdb_options(options: Mapping[str, str] | None = None) -> RocksOptions:
    """Read options by Flink's keys: given options override predefined options, which override the defaults.

    Args:
        options: values by key; keys that are not of RocksDB are ignored, except `taskmanager.memory.managed.size`.

    Raises:
        UsageError: an option is unknown, or its value is invalid.
        UnsupportedError: an option without effect here is not at its default.
    """
    given = {key.removeprefix(PREFIX): value for key, value in (options or {}).items() if key.startswith(PREFIX)}
    for name, value in list(given.items()):
        if name.startswith(METRICS):
            if value != "false":
                raise UnsupportedError(
                    f"{PREFIX}{name} is {value!r}: nothing reports metrics of RocksDB here", hint="Leave it out"
                )
            del given[name]
            continue
        if name in FIXED and value != FIXED[name][0]:
            default, reason = FIXED[name]
            raise UnsupportedError(
                f"{PREFIX}{name} is {value!r}: {reason}", hint=f"Leave it at its default, {default!r}"
            )
        if name not in DEFAULTS and name not in FIXED:
            raise UsageError(f"there is no option {PREFIX}{name}", hint=f"Options: {', '.join(sorted(DEFAULTS))}")
    profile = given.get("predefined-options", DEFAULTS["predefined-options"])
    if profile not in PROFILES:
        raise _wrong("predefined-options", profile, ", ".join(PROFILES))
    values = {**DEFAULTS, **PROFILES[profile], **given}

    def size(name: str) -> int:
        return parse_size(values[name], PREFIX + name)

    is_managed = _read_flag(values, "memory.managed")
    managed = (options or {}).get(MANAGED_SIZE, MANAGED_DEFAULT) if is_managed else ""
    # As in Flink, a size per slot overrides managed memory, which overrides a size per TaskManager.
    chosen = values["memory.fixed-per-slot"] or managed or values["memory.fixed-per-tm"]
    return RocksOptions(
        thread_num=_read_integer(values, "thread.num"),
        files_open=_read_integer(values, "files.open"),
        log_max_file_size=size("log.max-file-size"),
        log_file_num=_read_integer(values, "log.file-num"),
        log_dir=values["log.dir"],
        compaction_style=CompactionStyle(_read_choice(values, "compaction.style", tuple(CompactionStyle))),
        use_dynamic_size=_read_flag(values, "compaction.level.use-dynamic-size"),
        target_file_size_base=size("compaction.level.target-file-size-base"),
        max_size_level_base=size("compaction.level.max-size-level-base"),
        compression_per_level=_read_compressions(values),
        writebuffer_size=size("writebuffer.size"),
        writebuffer_count=_read_integer(values, "writebuffer.count"),
        writebuffer_number_to_merge=_read_integer(values, "writebuffer.number-to-merge"),
        block_size=size("block.blocksize"),
        metadata_block_size=size("block.metadata-blocksize"),
        block_cache_size=size("block.cache-size"),
        bloom_filter_bits=_read_fraction(values, "bloom-filter.bits-per-key")
        if _read_flag(values, "use-bloom-filter")
        else None,
        bloom_filter_block_based=_read_flag(values, "bloom-filter.block-based-mode"),
        write_batch_size=size("write-batch-size"),
        memory_size=parse_size(chosen, "the memory of RocksDB") if chosen else None,
        write_buffer_ratio=_read_fraction(values, "memory.write-buffer-ratio"),
        partitioned_index_filters=_read_flag(values, "memory.partitioned-index-filters"),
        transfer_threads=_read_integer(values, "checkpoint.transfer.thread.num"),
        restore_overlap_fraction_threshold=_read_fraction(values, "restore-overlap-fraction-threshold"),
        local_directory=values["localdir"],
    )


def _read_integer(values: Mapping[str, str], name: str) -> int:
    try:
        return int(values[name])
    except ValueError:
        raise _wrong(name, values[name], "an integer") from None


def _read_fraction(values: Mapping[str, str], name: str) -> float:
    try:
        return float(values[name])
    except ValueError:
        raise _wrong(name, values[name], "a number") from None


def _read_flag(values: Mapping[str, str], name: str) -> bool:
    return _read_choice(values, name, ("true", "false")) == "true"


def _read_choice(values: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    if values[name] not in known:
        raise _wrong(name, values[name], ", ".join(known))
    return values[name]


def _read_compressions(values: Mapping[str, str]) -> tuple[str, ...]:
    found = [each.strip() for each in values["compression.per.level"].split(";")]
    for each in found:
        if each not in COMPRESSIONS:
            raise _wrong("compression.per.level", each, ", ".join(COMPRESSIONS))
    return tuple(COMPRESSIONS[each] for each in found)


def _wrong(name: str, value: str, expected: str) -> UsageError:
    return UsageError(f"{PREFIX}{name} is {value!r}", hint=f"Expected: {expected}")


_STYLES = {
    CompactionStyle.LEVEL: DBCompactionStyle.level,
    CompactionStyle.FIFO: DBCompactionStyle.fifo,
    CompactionStyle.UNIVERSAL: DBCompactionStyle.universal,
}


def make_options(options: RocksOptions, lease: MemoryLease | None) -> Options:
    """Options of a database and of its column families.

    Args:
        options: Flink's.
        lease: shared memory; None when every column family has its own.
    """
    made = load_flink_options()
    made.create_if_missing(True)
    made.set_use_fsync(False)
    made.set_stats_dump_period_sec(0)
    made.set_max_background_jobs(options.thread_num)
    made.set_max_open_files(options.files_open)
    made.set_max_log_file_size(options.log_max_file_size)
    made.set_keep_log_file_num(options.log_file_num)
    if options.log_dir:
        made.set_db_log_dir(options.log_dir)
    if options.compaction_style is CompactionStyle.NONE:
        made.set_disable_auto_compactions(True)
    else:
        made.set_compaction_style(_STYLES[options.compaction_style]())
    made.set_level_compaction_dynamic_level_bytes(options.use_dynamic_size)
    made.set_target_file_size_base(options.target_file_size_base)
    made.set_max_bytes_for_level_base(options.max_size_level_base)
    kinds = [getattr(DBCompressionType, name)() for name in options.compression_per_level]
    if len(kinds) == 1:
        made.set_compression_type(kinds[0])
    else:
        made.set_compression_per_level(kinds)
    made.set_write_buffer_size(options.writebuffer_size)
    made.set_max_write_buffer_number(options.writebuffer_count)
    made.set_min_write_buffer_number_to_merge(options.writebuffer_number_to_merge)
    made.set_block_based_table_factory(_make_blocks(options, lease))
    if lease is not None:
        made.set_write_buffer_manager(lease.manager)
    return made


def _make_blocks(options: RocksOptions, lease: MemoryLease | None) -> BlockBasedOptions:
    blocks = make_table_format()
    blocks.set_block_size(options.block_size)
    blocks.set_metadata_block_size(options.metadata_block_size)
    blocks.set_block_cache(Cache(options.block_cache_size) if lease is None else lease.cache)
    if options.bloom_filter_bits is not None:
        bits = options.bloom_filter_bits
        blocks.set_bloom_filter(bits, options.bloom_filter_block_based)  # type: ignore[arg-type]  # it takes a float
    if lease is not None:
        # Index and filter blocks count towards the memory budget.
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        if options.partitioned_index_filters:
            blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
            blocks.set_partition_filters(True)
            blocks.set_pin_top_level_index_and_filter(True)
    return blocks


@dataclass(frozen=True)
class MemoryBudget:
    """The memory that the RocksDB databases of a process share.

    Attributes:
        size: total bytes.
        write_buffer_ratio: fraction for write buffers.
    """

    size: int
    write_buffer_ratio: float

    @property
    def cache_capacity(self) -> int:
        """Bytes of the cache, which the write buffers are charged to (`calculateActualCacheCapacity`)."""
        return int((3 - self.write_buffer_ratio) * self.size / 3)

    @property
    def write_buffer_capacity(self) -> int:
        """Limit of write buffers, which they exceed by half at most (`calculateWriteBufferManagerCapacity`)."""
        return int(2 * self.size * self.write_buffer_ratio / 3)


class SharedMemory:
    """Cache and write buffer manager of a process; they exist as long as there is a lease."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases = 0
        self._budget: MemoryBudget | None = None
        self._cache: Cache | None = None
        self._manager: WriteBufferManager | None = None

    @property
    def leases(self) -> int:
        """Number of leases that are not released."""
        return self._leases

    def lease(self, budget: MemoryBudget) -> MemoryLease:
        """Lease the memory; the first lease allocates it.

        Raises:
            UsageError: the process has another budget.
            KeyboardInterrupt: the wait for the memory was interrupted.
        """
        try:
            self._lock.acquire()
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt("Interrupted while acquiring memory") from error
        try:
            if self._cache is None or self._manager is None or self._budget is None:
                self._cache = Cache(budget.cache_capacity)
                self._manager = WriteBufferManager.new_write_buffer_manager_with_cache(
                    budget.write_buffer_capacity, False, self._cache
                )
                self._budget = budget
            elif self._budget != budget:
                raise UsageError(
                    f"the databases of this process share {self._budget.size} bytes of memory, and {budget.size} are "
                    "asked for",
                    hint="Give all states of a process the same memory options",
                )
            self._leases += 1
            return MemoryLease(self, self._cache, self._manager)
        finally:
            self._lock.release()

    def release(self) -> None:
        """Give one lease back; the last one frees the memory."""
        with self._lock:
            self._leases -= 1
            if not self._leases:
                self._budget = self._cache = self._manager = None


class MemoryLease:
    """The right of one database to use the shared memory, which exists until the last lease is released.

    Attributes:
        cache: block cache.
        manager: manager of the write buffers, which are charged to the cache.
    """

    def __init__(self, memory: SharedMemory, cache: Cache, manager: WriteBufferManager) -> None:
        self._memory: SharedMemory | None = memory
        self.cache = cache
        self.manager = manager

    def release(self) -> None:
        """Give the lease back; to be called only once."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


SHARED_MEMORY = SharedMemory()
"""The memory of this process."""

_MISSING = object()
_AFTER_ALL = b"\xff"
"""A key after the keys of all key groups, whose numbers are below 32,768."""


class BufferedColumnFamily:
    """A column family and its buffered writes.

    Args:
        store: store that the column family belongs to.
        table: its database handle.
        handle: identifies the column family in write batches.
    """

    def __init__(self, store: RocksStore, table: Rdict, handle: ColumnFamily) -> None:
        self._store = store
        self.table = table
        self.handle = handle
        self.pending: dict[bytes, bytes | None] = {}
        self._bytes = 0

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of a record key; None when there is none."""
        found = self.pending.get(key, _MISSING)
        if found is _MISSING:
            found = self.table.get(key)
        return found  # type: ignore[return-value]

    def put(self, key: bytes, value: bytes, /) -> None:
        """Set the value of a record key."""
        self.pending[key] = value
        self._count(len(key) + len(value))

    def delete(self, key: bytes, /) -> None:
        """Remove the entry of a record key, if there is one."""
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
        """Yield the record keys at the time of the call; changes during the iteration are allowed."""
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
    # A failed iterator is as invalid as an iterator at its end: raise its error.
    cursor.status()


class RocksValues(BufferedColumnFamily):
    """Entries of a state with one value per record key, in a column family."""

    def append(self, key: bytes, element: bytes, /) -> None:
        """Append one element to the list of a record key, or several that are joined by `DELIMITER`."""
        old = self.get(key)
        self.put(key, element if old is None else old + DELIMITER + element)


class RocksLists(BufferedColumnFamily):
    """Entries of a list state, in a column family."""

    def __init__(self, store: RocksStore, table: Rdict, handle: ColumnFamily) -> None:
        super().__init__(store, table, handle)
        self._appended: dict[bytes, list[bytes]] = {}

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of a record key; None when there is none."""
        self._join(key)
        return super().get(key)

    def put(self, key: bytes, value: bytes, /) -> None:
        """Set the value of a record key."""
        self._appended.pop(key, None)
        super().put(key, value)

    def delete(self, key: bytes, /) -> None:
        """Remove the entry of a record key, if there is one."""
        self._appended.pop(key, None)
        super().delete(key)

    def append(self, key: bytes, element: bytes, /) -> None:
        """Append one element to the list of a record key, or several that are joined by `DELIMITER`."""
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
    """Entries of a map state, in a column family."""

    def __init__(self, values: RocksValues, measure_head: MeasureHead) -> None:
        self.values = values
        self._measure_head = measure_head

    def get(self, head: bytes, map_key: bytes, /) -> bytes | None:
        """Return the value of a map key; None when there is none."""
        return self.values.get(head + map_key)

    def put(self, head: bytes, map_key: bytes, value: bytes, /) -> None:
        """Set the value of a map key."""
        self.values.put(head + map_key, value)

    def delete(self, head: bytes, map_key: bytes, /) -> None:
        """Remove a map key, if it is there."""
        self.values.delete(head + map_key)

    def scan(self, head: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Yield map keys and values at the time of the call; changes during the iteration are allowed."""
        size = len(head)
        return ((key[size:], value) for key, value in self.values.scan(head, _find_end(head)))

    def delete_all(self, head: bytes, /) -> None:
        """Remove all map keys of a head."""
        for key, _ in self.values.scan(head, _find_end(head)):
            self.values.delete(key)

    def keys(self) -> Iterator[bytes]:
        """Yield the heads with at least one map key at the time of the call; changes are allowed meanwhile."""
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
    """The smallest key that is greater than all keys that begin with `head`; None when there is none."""
    stripped = head.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


class RocksStore:
    """Entries of the states of one subtask, in a database of its own.

    Args:
        prefix: bytes of the key-group prefix, 1 or 2.
        directory: local, empty or not there yet; removed by `close`, and when the database cannot be opened.
        options: options of the database; default Flink's defaults.

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
        """Directory of the store; it has the database, and files of snapshots and restores while they are made."""
        return self._directory

    def register(self, info: StateMetaInfo, layout: KeyedLayout, settings: StateSettings = NO_SETTINGS) -> None:
        """Do nothing: this store holds bytes, and needs no serializers."""

    def open_entries(self, name: str, kind: EntryKind) -> RocksValues | RocksLists:
        """Open the entries of a state other than map state, with the records that were loaded before."""
        wanted = RocksLists if kind is EntryKind.LIST else RocksValues
        opened = self._open(name)
        if name in self._maps:
            raise UsageError(
                "the state is open as map state, and cannot be opened as another type", where=Where(state=name)
            )
        if type(opened) is BufferedColumnFamily:
            opened = self._column_families[name] = wanted(self, opened.table, opened.handle)
        assert isinstance(opened, RocksValues | RocksLists)
        return opened

    def open_map(self, name: str, measure_head: MeasureHead) -> RocksMaps:
        """Open the entries of a map state, with the records that were loaded before."""
        if name not in self._maps:
            opened = self._open(name)
            if type(opened) is not BufferedColumnFamily:
                raise UsageError(
                    "the state is open as another type, and cannot be opened as map state", where=Where(state=name)
                )
            values = self._column_families[name] = RocksValues(self, opened.table, opened.handle)
            self._maps[name] = RocksMaps(values, measure_head)
        return self._maps[name]

    def load(self, name: str, records: KeyedRecords) -> None:
        """Add records to a state that is not open; they replace records with the same keys."""
        opened = self._open(name)
        if type(opened) is not BufferedColumnFamily:
            raise UsageError("records must be loaded before the state is opened", where=Where(state=name))
        entries = split_records(records, self._prefix)
        while batch := list(islice(entries, BATCH)):
            self.write(opened.handle, batch)

    def records(self, name: str, key_groups: KeyGroupRange) -> Iterator[KeyedRecords]:
        """Yield the records of a state in batches, ascending by key group; no batches for an unknown state."""
        column_family = self._column_families.get(name)
        if column_family is None or not key_groups.number:
            return iter(())
        entries = column_family.scan(key_groups.start.to_bytes(self._prefix, "big"), self._find_end(key_groups))
        return self._batch(entries)

    def _batch(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[KeyedRecords]:
        while batch := list(islice(entries, BATCH)):
            yield make_records(batch, self._prefix)

    def drop(self, name: str) -> None:
        """Remove a state and its entries."""
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
        """Make a RocksDB checkpoint, with hard links to the tables, in a directory that does not exist yet."""
        self.flush()
        Checkpoint(self._database).create_checkpoint(str(directory))

    def adopt(self, files: Path, names: Iterable[str]) -> None:
        """Replace the empty database of the store by another one.

        Args:
            files: directory with the files of the other database, inside the directory of the store; it is moved.
            names: names of the states in it.

        Raises:
            UsageError: the store holds something already.
        """
        if self._column_families:
            raise UsageError("a database can only be adopted by a store without states")
        self._database.close()
        shutil.rmtree(self._directory / "db")
        files.rename(self._directory / "db")
        column_families = dict.fromkeys(names, self._settings)
        self._database = Rdict(str(self._directory / "db"), self._settings, column_families=column_families)
        for name in column_families:
            handle = self._database.get_column_family_handle(name)
            self._column_families[name] = BufferedColumnFamily(self, self._database.get_column_family(name), handle)

    def clip(self, key_groups: KeyGroupRange) -> None:
        """Remove the entries of all other key groups, if there are any, by range tombstones."""
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
        """Close the database, and remove the directory of the store; the entries are lost."""
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
        """The column family of a state, made if needed; a plain `BufferedColumnFamily` until its entries are opened."""
        if name == DEFAULT_COLUMN_FAMILY:
            raise UsageError("a state cannot be called default, as the column family that every database has")
        found = self._column_families.get(name)
        if found is None:
            table = self._database.create_column_family(name, self._settings)
            found = self._column_families[name] = BufferedColumnFamily(
                self, table, self._database.get_column_family_handle(name)
            )
        return found
