"""Keys of a RocksDB database outside of the key groups of its handle, which `_metadata` hides if it was edited.

Flink clips a database that it restores for fewer key groups by deleting what is outside
(`RocksDBIncrementalCheckpointUtils.clipDBWithKeyGroupRange`), so that its files may hold such keys, but no live one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import EDITED_METADATA, FormatError, Where
from state_pipelines.keyed.changelog.reader import ChangelogFile, find_bases
from state_pipelines.keyed.key_groups import encode_prefix
from state_pipelines.keyed.rocksdb import RocksFile
from state_pipelines.metadata.handles import ChangelogStateBackendHandle, IncrementalRemoteKeyedStateHandle
from state_pipelines.rocksdb.scan import find_files, scan, split_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata.handles import KeyedStateHandle, KeyGroupRange
    from state_pipelines.rocksdb.manifest import ColumnFamily
    from state_pipelines.snapshot.operator import Operator

_FIRST = 64 << 10
"""Bytes of keys and values beyond the key groups of a handle that are looked at, on either side of each state."""


def check_database_keys(operator: Operator) -> None:
    """Check that the databases of an operator hold no key of other key groups than their handles.

    Tables whose bounds are inside of these are not read, and of others one block or a few. A database that several
    subtasks have is checked against the key groups of all of them.

    Raises:
        FormatError: a database holds such a key.
        StateError: a table cannot be read.
    """
    databases: dict[object, tuple[RocksFile, list[KeyGroupRange]]] = {}
    for identity, file, groups in _list_databases(operator):
        # An empty range is refused elsewhere (`check_held_key_groups`).
        if groups.number:
            databases.setdefault(identity, (file, []))[1].append(groups)
    for file, ranges in databases.values():
        start, end = min(each.start for each in ranges), max(each.end for each in ranges)
        _check(operator, file, start, end)


def _check(operator: Operator, file: RocksFile, start: int, end: int) -> None:
    prefix = operator.record_context.prefix
    sides: list[tuple[bytes, bytes | None]] = [(b"", encode_prefix(start, prefix))] if start else []
    if end + 1 < 1 << 8 * prefix:
        sides.append((encode_prefix(end + 1, prefix), None))
    for info, column_family in zip(file.header.states, file.column_families, strict=True):
        for low, high in sides:
            key = _find_first(column_family, low, high)
            if key is not None:
                raise FormatError(
                    f"the database holds records of key group {int.from_bytes(key[:prefix], 'big')}, and `_metadata` "
                    f"says that it has key groups {start}-{end}",
                    where=Where(file=file.name, operator=operator.label, state=info.name),
                    hint=EDITED_METADATA,
                )


def _find_first(column_family: ColumnFamily, low: bytes, high: bytes | None) -> bytes | None:
    """A live key among the first ones of a range; None where the first ones are deleted, or there are none."""
    files = find_files(column_family, low, high)
    if not files:
        return None
    low = max(low, min(file.smallest for file in files))
    cuts = split_keys(column_family, low, high, _FIRST)
    for entries in scan(column_family, low, cuts[0] if cuts else high, window=_FIRST):
        return entries.data[entries.key_starts[0] : entries.key_ends[0]].tobytes()
    return None


def _list_databases(operator: Operator) -> Iterator[tuple[object, RocksFile, KeyGroupRange]]:
    """Yield a key of the database of each handle, the opened database, and the key groups of the handle."""
    handles = {each.index: each.managed_keyed_state for each in operator.metadata.subtasks}
    # What cannot be opened is an error elsewhere.
    files, _ = operator.snapshot.keyed_files.survey(operator.metadata, operator.snapshot.layout_context)
    for index, file in files:
        for handle, database in _pair(handles[index], file):
            if isinstance(handle, IncrementalRemoteKeyedStateHandle) and isinstance(database, RocksFile):
                yield (handle.backend_identifier, handle.meta_data_state), database, handle.key_groups


def _pair(handle: KeyedStateHandle | None, file: KeyedFile) -> Iterator[tuple[KeyedStateHandle | None, KeyedFile]]:
    if isinstance(handle, ChangelogStateBackendHandle) and isinstance(file, ChangelogFile):
        yield from zip(find_bases(handle), file.bases, strict=False)
    else:
        yield handle, file
