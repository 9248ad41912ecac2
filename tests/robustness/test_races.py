"""A checkpoint is read while Flink removes it: a whole result, or an error that says what to read instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import MissingFileError, SnapshotGoneError
from state_pipelines.operations.auditing.audits import audit_snapshot
from tests.snapshot.test_requests import CASES, WORKS, store
from tests.storages import CountedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.snapshot import Snapshot
    from tests.snapshots import Case

CHECKPOINTS = [case for case in CASES if case.kind == "checkpoint"]
READERS: dict[str, Callable[[Case, Snapshot], object]] = {
    "dump": WORKS["dump"],
    "inspect": WORKS["inspect"],
    "verify": lambda _, snapshot: audit_snapshot(snapshot, "whole").counts,
}
POINTS = 4


@pytest.mark.parametrize("work", READERS)
@pytest.mark.parametrize("case", CHECKPOINTS, ids=str)
def test_a_checkpoint_that_is_removed_while_it_is_read_is_whole_or_gone(case: Case, work: str) -> None:
    expected = READERS[work](case, store(case).open())
    count = len(CountedFileSystem.requests)
    outcomes = []
    for number in sorted({0, 1, count - 1, *(each * count // POINTS for each in range(1, POINTS))}):
        stored = store(case)

        def remove(at: int, *_: str, number: int = number) -> None:
            if at == number:
                CountedFileSystem.store.clear()

        CountedFileSystem.rule = staticmethod(remove)
        try:
            assert READERS[work](case, stored.open()) == expected
            outcomes.append("whole")
        except MissingFileError:
            outcomes.append("not there")
        except SnapshotGoneError:
            outcomes.append("gone")
        finally:
            CountedFileSystem.rule = None
    # Before `_metadata` is read, there is no checkpoint.
    assert outcomes[0] == "not there"
    assert "not there" not in outcomes[1:]
    # Of small state `_metadata` holds all.
    assert "gone" in outcomes or count < 3


def test_the_error_says_what_to_read_instead() -> None:
    assert "read a newer one, or a savepoint" in str(SnapshotGoneError("s3://bucket/chk-3"))
