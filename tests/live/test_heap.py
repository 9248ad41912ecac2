"""Keyed state on the heap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.backends.heap_store import HeapStore
from tests.live.keyed_suite import KeyedStateSuite

if TYPE_CHECKING:
    from pathlib import Path


class TestHeap(KeyedStateSuite):
    restores = ("none", "bytes", "bytes, rescaled")

    def make_store(self, prefix: int, directory: Path) -> HeapStore:
        return HeapStore(prefix)
