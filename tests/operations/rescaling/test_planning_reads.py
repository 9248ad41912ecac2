"""Planning on a storage that is not local: the beginning of a file is read once."""

from __future__ import annotations

from collections import Counter

import pytest

from state_pipelines.operations.rescale import parse_request, plan_rescale
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
