"""Keyed state in RocksDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.backends.rocksdb_store import RocksStore
from tests.live.keyed_suite import KeyedStateSuite, KeyedSuite
from tests.live.schema_suite import SchemaSuite
from tests.live.timer_suite import TimerSuite

if TYPE_CHECKING:
    from pathlib import Path


class OnRocksDB(KeyedSuite):
    restores = (
        "none",
        "bytes, rescaled",
        "canonical",
        "heap",
        "rocksdb, rescaled",
        "incremental",
        "incremental, rescaled",
    )
    # Opening a database waits for the disk.
    max_parallelisms = (1000,)

    def make_store(self, prefix: int, directory: Path) -> RocksStore:
        return RocksStore(prefix, directory)


class TestKeyedState(OnRocksDB, KeyedStateSuite):
    pass


class TestTimers(OnRocksDB, TimerSuite):
    pass


class TestSchemaChanges(OnRocksDB, SchemaSuite):
    pass
