"""Real Flink restores what live backends write: keyed state, timers and operator state, in every format.

The state is that of a snapshot of Flink, restored into live backends, touched there, and written again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest

from state_pipelines.backends.changelog import ChangelogSettings, ChangelogSnapshots, ChangelogStore
from state_pipelines.backends.entry_store import HeapStore
from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.backends.operator_backend import OperatorStateBackend
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.backends.snapshots import IncrementalSnapshots, write_full_snapshot
from state_pipelines.errors import UnsupportedError
from state_pipelines.metadata import write_metadata
from state_pipelines.metadata.handles import ChangelogStateBackendHandle
from state_pipelines.operations.convert import convert
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.serializers.state_meta_info import BackendStateType
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import PathMapping, resolve
from tests.datastream.same_jobs import HASHES
from tests.flink import harness
from tests.flink.make_data import job_of_case
from tests.flink.test_converted_savepoints import find_case, line_of
from tests.live.keyed_jobs import register

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.metadata.handles import KeyedStateHandle
    from state_pipelines.snapshot import Operator, Snapshot
    from state_pipelines.storage import Location
    from tests.snapshots import Case

pytestmark = pytest.mark.flink

INCREMENTAL, CHANGELOG = "incremental", "changelog"
WRITTEN = {
    "canonical": ("rocksdb-incremental", "hashmap"),
    "heap": ("rocksdb-native", "hashmap"),
    "rocksdb": ("heap-native", "rocksdb"),
    INCREMENTAL: ("heap-native", "rocksdb"),
    CHANGELOG: ("heap", "rocksdb"),
}
"""Format -> the snapshot that is restored into live backends, and the backend of Flink."""


def open_backend(
    operator: Operator, subtask: int, store: HeapStore | RocksStore | ChangelogStore
) -> KeyedStateBackend | None:
    """The live keyed state of one subtask, every value of which was written again."""
    files = [file for index, file in operator.keyed_files if index == subtask and not file.holds_raw_timers]
    if not files:
        return None
    context, key = operator.record_context, files[0].header.key_serializer
    key_groups = files[0].key_groups
    hashes = HASHES if getattr(key, "pojo_class", "") in HASHES else {}
    backend = KeyedStateBackend(store, key, key_groups, operator.max_parallelism, context.layouts, hashes)
    backend.restore(files)
    touch(backend)
    return backend


def touch(backend: KeyedStateBackend) -> None:
    """Write every value again."""
    for info in backend.states:
        if info.backend_type is BackendStateType.PRIORITY_QUEUE:
            backend.register_timers(info)
            continue
        table = register(backend, info)
        for key, namespace in list(table.keys_and_namespaces()):
            # Keys of user classes have a hash that nothing here knows.
            with suppress(UnsupportedError):
                backend.set_current_key(key)
                table.put(table.get(namespace), namespace)


def write_keyed(backend: KeyedStateBackend, file_format: str, target: Path, name: str) -> KeyedStateHandle | None:
    directory = resolve(str(target))
    if file_format == CHANGELOG:
        return write_changelog(backend, directory)
    if file_format != INCREMENTAL:
        return write_full_snapshot(backend, Format(file_format), directory, name, 7).handle
    assert isinstance(backend.store, RocksStore)
    (target / "shared").mkdir(exist_ok=True)
    snapshots = IncrementalSnapshots(backend, backend.store)
    return snapshots.write(7, directory, resolve(str(target / "shared"))).handle


def write_changelog(backend: KeyedStateBackend, directory: Location) -> KeyedStateHandle | None:
    """A base, and a log in which every value is again."""
    assert isinstance(backend.store, ChangelogStore)
    snapshots = ChangelogSnapshots(backend, backend.store, settings=ChangelogSettings(None))
    snapshots.write(6, directory, directory)
    snapshots.complete(6)
    touch(backend)
    handle = snapshots.write(7, directory, directory).handle
    assert isinstance(handle, ChangelogStateBackendHandle)
    assert not backend.store.without_log
    return handle


def find_logged(snapshot: Snapshot) -> set[tuple[str, bool]]:
    """Names of the states of the operators whose last changes are in logs, and whether they have TTL."""
    return {
        (state.name, state.layout.ttl)
        for operator in snapshot.operators
        for state in operator.keyed_states
        for subtask in operator.metadata.subtasks
        if isinstance(subtask.managed_keyed_state, ChangelogStateBackendHandle)
        and subtask.managed_keyed_state.non_materialized
    }


def write_live(snapshot: Snapshot, file_format: str, target: Path, scratch: Path) -> None:
    """Replace the managed state of a snapshot at `target` by what live backends make of it."""
    reader = HandleReader(resolve(str(target)), PathMapping())
    states = []
    for operator in snapshot.operators:
        old = [reader.open_operator(each.managed_operator_state) for each in operator.metadata.subtasks]
        subtasks = []
        for subtask in operator.metadata.subtasks:
            name = f"live-{operator.metadata.operator_id.hex()}-{subtask.index}"
            prefix = operator.record_context.prefix
            store: HeapStore | RocksStore | ChangelogStore = (
                HeapStore(prefix) if file_format in ("canonical", "heap") else RocksStore(prefix, scratch / name)
            )
            if file_format == CHANGELOG:
                store = ChangelogStore(store)
            backend = open_backend(operator, subtask.index, store)
            if backend is not None:
                subtask = replace(subtask, managed_keyed_state=write_keyed(backend, file_format, target, name))
            if operator.metadata.parallelism == len(old):
                lists = OperatorStateBackend(operator.record_context.layouts)
                lists.restore(old, subtask.index, len(old))
                for info in lists.states:
                    # Every subtask has all elements of union state; a function writes its own only.
                    if info.distribution_mode == "UNION" and subtask.index:
                        lists.register_list(info).clear()
                handle = lists.snapshot(resolve(str(target)), f"{name}-lists")
                subtask = replace(subtask, managed_operator_state=handle)
            subtasks.append(subtask)
            store.close()
        states.append(replace(operator.metadata, subtasks=tuple(subtasks)))
    metadata = replace(snapshot.metadata, operator_states=tuple(states))
    (target / "_metadata").write_bytes(write_metadata(metadata))


def make_live(case: Case, file_format: str, tmp_path: Path) -> Path:
    target = tmp_path / "live"
    # A copy that stands alone, with all that no backend holds.
    convert(case.open_told(), str(target), "keep")
    write_live(open_copy(case, target), file_format, target, tmp_path)
    return target


def open_copy(case: Case, target: Path) -> Snapshot:
    return replace(case, path=target, folder=target).open_told()


@pytest.mark.parametrize("file_format", WRITTEN)
def test_flink_restores_what_a_live_backend_wrote(version: str, file_format: str, tmp_path: Path) -> None:
    name, backend = WRITTEN[file_format]
    case = find_case(line_of(version), name)
    target = make_live(case, file_format, tmp_path)
    if file_format == CHANGELOG:
        states = ("value", "list", "map", "composites", "sum", "average")
        assert find_logged(open_copy(case, target)) >= set(product(states, (False, True)))
    result = harness.restore(version, target, job_of_case(case), backend=backend, parallelism=3)

    assert result.ok, result.error
    difference = harness.diff_entries(case.entries(), result.entries)
    assert not difference, str(difference)
