"""Flink's options of the RocksDB backend, with their keys and defaults.

Source: `RocksDBOptions`, `RocksDBConfigurableOptions`, `PredefinedOptions`, `EmbeddedRocksDBStateBackend`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.operations.retention.policy import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        "use-ingest-db-restore-mode": ("false", "a rescaled restore writes the records of all databases but one"),
        "use-delete-files-in-range-during-rescaling": ("false", "a rescaled restore clips by range tombstones"),
        "incremental-restore-async-compact-after-rescale": ("false", "RocksDB compacts by itself"),
        "rescaling.use-delete-files-in-range": ("false", "a rescaled restore clips by range tombstones"),
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
    """Options of a database; sizes in bytes. Names follow the keys.

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
    """Options by Flink's keys: what is given, on top of the predefined options, on top of the defaults.

    Args:
        options: by key; keys that are not of RocksDB are ignored, except `taskmanager.memory.managed.size`.

    Raises:
        UsageError: an option is unknown, or its value is not one of it.
        UnsupportedError: an option has no effect here; it is accepted at its default only.
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
    # As in Flink, a size per slot goes before managed memory, and that before a size per TaskManager.
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
