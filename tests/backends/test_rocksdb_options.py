from __future__ import annotations

from pathlib import Path

import pytest

from state_pipelines.backends.entry_store import EntryKind
from state_pipelines.backends.rocksdb_store import (
    FIXED,
    MANAGED_SIZE,
    PREFIX,
    PROFILES,
    SHARED_MEMORY,
    MemoryBudget,
    RocksStore,
    SharedMemory,
    read_rocksdb_options,
)
from state_pipelines.errors import TargetExistsError, UnsupportedError, UsageError

MB = 1 << 20


def test_the_defaults_are_those_of_flink() -> None:
    options = read_rocksdb_options()
    assert (options.writebuffer_size, options.writebuffer_count, options.block_size) == (64 * MB, 2, 4096)
    assert (options.max_size_level_base, options.target_file_size_base) == (256 * MB, 64 * MB)
    assert (options.compression_per_level, options.compaction_style) == (("snappy",), "LEVEL")
    assert (options.write_batch_size, options.transfer_threads, options.thread_num) == (2 * MB, 4, 2)
    assert options.bloom_filter_bits is None
    assert options.memory_size == 256 * MB


def test_given_options_go_before_predefined_ones() -> None:
    profile = {f"{PREFIX}predefined-options": "SPINNING_DISK_OPTIMIZED_HIGH_MEM"}
    options = read_rocksdb_options(profile)
    assert (options.block_cache_size, options.block_size, options.writebuffer_count) == (256 * MB, 128 << 10, 4)
    assert (options.thread_num, options.bloom_filter_bits, options.use_dynamic_size) == (4, 10.0, True)
    assert read_rocksdb_options(profile | {f"{PREFIX}thread.num": "1"}).thread_num == 1


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({}, 256 * MB),
        ({MANAGED_SIZE: "1gb"}, 1024 * MB),
        ({f"{PREFIX}memory.managed": "false"}, None),
        ({f"{PREFIX}memory.fixed-per-slot": "16mb"}, 16 * MB),
        ({f"{PREFIX}memory.fixed-per-tm": "16mb"}, 256 * MB),
        ({f"{PREFIX}memory.fixed-per-tm": "16mb", f"{PREFIX}memory.managed": "false"}, 16 * MB),
    ],
)
def test_the_size_of_the_memory(given: dict[str, str], size: int | None) -> None:
    assert read_rocksdb_options(given).memory_size == size


@pytest.mark.parametrize("name", sorted(FIXED))
def test_options_without_effect_are_accepted_at_their_default_only(name: str) -> None:
    default, reason = FIXED[name]
    assert read_rocksdb_options({PREFIX + name: default}) == read_rocksdb_options()
    with pytest.raises(UnsupportedError, match=reason):
        read_rocksdb_options({PREFIX + name: "other"})


def test_no_metrics_are_reported() -> None:
    name = f"{PREFIX}metrics.num-immutable-mem-table"
    assert read_rocksdb_options({name: "false"}) == read_rocksdb_options()
    with pytest.raises(UnsupportedError, match="nothing reports metrics"):
        read_rocksdb_options({name: "true"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("predefined-options", "FAST"),
        ("thread.num", "many"),
        ("writebuffer.size", "64 parsecs"),
        ("compaction.style", "level"),
        ("compression.per.level", "SNAPPY_COMPRESSION;BZLIB2_COMPRESSION"),
        ("use-bloom-filter", "yes"),
        ("bloom-filter.bits-per-key", "x"),
        ("no.such.option", "1"),
    ],
)
def test_wrong_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError):
        read_rocksdb_options({PREFIX + name: value} | {f"{PREFIX}use-bloom-filter": "true"} | {PREFIX + name: value})


@pytest.mark.parametrize(
    "given",
    [
        *({"predefined-options": profile} for profile in PROFILES),
        {"compaction.style": "UNIVERSAL"},
        {"compaction.style": "FIFO"},
        {"compaction.style": "NONE"},
        {"compression.per.level": "NO_COMPRESSION;NO_COMPRESSION;LZ4_COMPRESSION"},
        {"memory.managed": "false", "use-bloom-filter": "true"},
        {"memory.partitioned-index-filters": "true", "use-bloom-filter": "true"},
        {"write-batch-size": "1kb", "log.dir": ""},
    ],
    ids=str,
)
def test_a_database_works_with_the_options(given: dict[str, str], tmp_path: Path) -> None:
    options = read_rocksdb_options({PREFIX + name: value for name, value in given.items()})
    store = RocksStore(1, tmp_path / "store", options)
    entries = store.open_entries("state", EntryKind.VALUE)
    for number in range(500):
        entries.put(bytes([number % 100]) + number.to_bytes(2, "big"), b"x" * number)
    store.checkpoint(tmp_path / "checkpoint")
    assert all(entries.get(bytes([each % 100]) + each.to_bytes(2, "big")) == b"x" * each for each in range(500))
    store.close()
    assert not (tmp_path / "store").exists()
    assert SHARED_MEMORY.leases == 0


def test_memory_is_shared_and_counted() -> None:
    memory, budget = SharedMemory(), MemoryBudget(30 * MB, 0.5)
    first, second = memory.lease(budget), memory.lease(budget)
    assert (first.cache, first.manager) == (second.cache, second.manager)
    assert first.manager.get_buffer_size() == budget.write_buffer_capacity == 10 * MB
    assert budget.cache_capacity == 25 * MB
    with pytest.raises(UsageError, match="share"):
        memory.lease(MemoryBudget(20 * MB, 0.5))
    first.release()
    first.release()
    assert memory.leases == 1
    with memory.lease(budget):
        assert memory.leases == 2
    second.release()
    with memory.lease(MemoryBudget(20 * MB, 0.5)) as other:
        assert other.manager.get_buffer_size() < 10 * MB


def test_an_interrupted_wait_says_so() -> None:
    class Interrupted:
        def acquire(self) -> None:
            raise KeyboardInterrupt

    memory = SharedMemory()
    memory._lock = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt, match="Interrupted while acquiring memory"):
        memory.lease(MemoryBudget(MB, 0.5))
    assert memory.leases == 0


def test_databases_of_a_process_share_their_memory(tmp_path: Path) -> None:
    stores = [RocksStore(1, tmp_path / f"store-{each}") for each in range(2)]
    assert SHARED_MEMORY.leases == 2
    with pytest.raises(UsageError, match="share"):
        RocksStore(1, tmp_path / "other", read_rocksdb_options({MANAGED_SIZE: "1mb"}))
    for store in stores:
        store.close()
    assert SHARED_MEMORY.leases == 0


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    Path(tmp_path, "file").touch()
    with pytest.raises(TargetExistsError):
        RocksStore(1, tmp_path)
    assert SHARED_MEMORY.leases == 0


def test_a_state_is_not_called_default(tmp_path: Path) -> None:
    store = RocksStore(1, tmp_path / "store")
    with pytest.raises(UsageError, match="default"):
        store.open_entries("default", EntryKind.VALUE)
    store.close()


def test_long_lists_are_appended_in_batches(tmp_path: Path) -> None:
    store = RocksStore(1, tmp_path / "store", read_rocksdb_options({f"{PREFIX}write-batch-size": "1kb"}))
    entries = store.open_entries("list", EntryKind.LIST)
    for number in range(1000):
        entries.append(b"\1k", b"%d" % number)
    assert entries.get(b"\1k") == b",".join(b"%d" % number for number in range(1000))
    entries.delete(b"\1k")
    entries.append(b"\1k", b"x")
    assert list(entries.keys()) == [b"\1k"]
    assert entries.get(b"\1k") == b"x"
    store.close()


def test_a_store_that_cannot_be_opened_leaves_no_lease(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        RocksStore(1, tmp_path / "file" / "store")
    assert SHARED_MEMORY.leases == 0


def test_a_store_that_gets_no_memory_leaves_no_directory(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    store = RocksStore(1, tmp_path / "store")
    with pytest.raises(UsageError, match="share"):
        RocksStore(1, tmp_path / "other", read_rocksdb_options({MANAGED_SIZE: "1mb"}))
    assert not (tmp_path / "other").exists()
    store.close()
