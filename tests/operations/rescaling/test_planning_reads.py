"""Planning on a storage that is not local: the beginning of a file is read once."""

from __future__ import annotations

from collections import Counter

import pytest

from state_pipelines.metadata.handles import RelativeFileStateHandle
from state_pipelines.operations.rescale import parse_request, plan_rescale, rescale
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import join
from state_pipelines.storage.locations import parent
from tests.snapshots import OWN, Case
from tests.storages import CountedFileSystem, store_folder

CASES = [case for case in OWN if case.version.startswith("2.2") and case.case in ("heap", "heap-native", "rocksdb")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.case)
def test_no_range_is_read_twice(case: Case) -> None:
    stored = store_folder(case.path)
    snapshot = open_snapshot(stored.url, uids=case.uids)
    plan_rescale(snapshot, join(parent(stored), "new"), parse_request({"parallelism": 3}))
    repeated = [each for each, number in Counter(CountedFileSystem.reads).items() if number > 1]
    assert CountedFileSystem.reads
    assert repeated == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.case)
def test_operator_state_is_read_once_for_plan_and_proof(case: Case) -> None:
    stored = store_folder(case.path)
    snapshot = open_snapshot(stored.url, uids=case.uids)
    rescale(snapshot, f"{parent(stored).url}/new", parallelism=3)
    counts = Counter(CountedFileSystem.reads)
    names = {
        handle.relative_path
        for operator in snapshot.operators
        for subtask in operator.metadata.subtasks
        if (operator_state := subtask.managed_operator_state) is not None
        and isinstance(handle := operator_state.delegate, RelativeFileStateHandle)
    }
    found = {
        path.rsplit("/", 1)[1]: number for (path, _, _), number in counts.items() if path.rsplit("/", 1)[1] in names
    }
    assert found
    assert set(found.values()) == {1}
