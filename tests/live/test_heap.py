"""Keyed state on the heap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.backends.entry_store import HeapStore
from tests.live.keyed_suite import KeyedStateSuite, KeyedSuite
from tests.live.schema_suite import SchemaSuite
from tests.live.timer_suite import TimerSuite

if TYPE_CHECKING:
    from pathlib import Path


class OnHeap(KeyedSuite):
    restores = (
        "none",
        "bytes, rescaled",
        "canonical",
        "canonical compressed, rescaled",
        "heap",
        "heap compressed, rescaled",
        "rocksdb, rescaled",
    )

    def make_store(self, prefix: int, directory: Path) -> HeapStore:
        return HeapStore(prefix)


class TestKeyedState(OnHeap, KeyedStateSuite):
    pass


class TestTimers(OnHeap, TimerSuite):
    pass


class TestSchemaChanges(OnHeap, SchemaSuite):
    the = "For heap backends, the"
