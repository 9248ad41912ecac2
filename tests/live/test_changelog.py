"""Keyed state whose changes are logged, on the heap and in RocksDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.backends.changelog import ChangelogStore
from state_pipelines.backends.entry_store import HeapStore
from state_pipelines.backends.rocksdb_store import RocksStore
from tests.live.keyed_suite import KeyedStateSuite, KeyedSuite
from tests.live.schema_suite import SchemaSuite
from tests.live.timer_suite import TimerSuite

if TYPE_CHECKING:
    from pathlib import Path


class OnHeap(KeyedSuite):
    restores = ("none", "changelog", "changelog, rescaled", "canonical", "heap, rescaled", "rocksdb")

    def make_store(self, prefix: int, directory: Path) -> ChangelogStore:
        return ChangelogStore(HeapStore(prefix))


@pytest.mark.slow
class OnRocksDB(KeyedSuite):
    restores = ("changelog", "changelog, rescaled", "rocksdb")
    # Opening a database waits for the disk.
    max_parallelisms = (1000,)

    def make_store(self, prefix: int, directory: Path) -> ChangelogStore:
        return ChangelogStore(RocksStore(prefix, directory))


class TestKeyedStateOnHeap(OnHeap, KeyedStateSuite):
    pass


class TestTimersOnHeap(OnHeap, TimerSuite):
    pass


class TestSchemaChangesOnHeap(OnHeap, SchemaSuite):
    the = "For heap backends, the"


class TestKeyedStateOnRocksDB(OnRocksDB, KeyedStateSuite):
    pass


class TestTimersOnRocksDB(OnRocksDB, TimerSuite):
    pass


class TestSchemaChangesOnRocksDB(OnRocksDB, SchemaSuite):
    pass
