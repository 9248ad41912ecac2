"""Opened tables that are kept, so that scans of the same tables do not open them each time."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from state_pipelines.rocksdb.table import Table, open_table

if TYPE_CHECKING:
    from state_pipelines.rocksdb.manifest import TableFile

CAPACITY = 32 << 20
"""Bytes of indexes and small tables that are kept by default; the index of a table of 64 MiB has about 1 MiB."""


class TableCache:
    """Opened tables; those used least recently go when there are too many. Threads may share one.

    A copy in another process starts empty.

    Args:
        capacity: bytes that are kept.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._tables: dict[TableFile, Table] = {}
        self._size = 0
        self._lock = Lock()
        self._opening: dict[TableFile, Lock] = {}

    def open(self, file: TableFile) -> Table:
        """The table of a file; arguments and errors as for `open_table`."""
        with self._lock:
            if (table := self._find(file)) is not None:
                return table
            opening = self._opening.setdefault(file, Lock())
        # Of threads that want one table, one reads it.
        with opening:
            with self._lock:
                table = self._find(file)
            try:
                return self._keep(file, open_table(file)) if table is None else table
            finally:
                with self._lock:
                    self._opening.pop(file, None)

    def _find(self, file: TableFile) -> Table | None:
        table = self._tables.pop(file, None)
        if table is not None:
            # Back at the end, where those used last are.
            self._tables[file] = table
        return table

    def _keep(self, file: TableFile, table: Table) -> Table:
        with self._lock:
            if file not in self._tables:
                self._tables[file] = table
                self._size += table.held
            while self._size > self._capacity:
                oldest = next(iter(self._tables))
                self._size -= self._tables.pop(oldest).held
        return table

    def __reduce__(self) -> tuple[type[TableCache], tuple[int]]:
        return TableCache, (self._capacity,)
