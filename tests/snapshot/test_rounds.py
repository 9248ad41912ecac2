"""How often a command waits for a remote storage, for snapshots of many small files, whatever a request takes."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.generate import OPERATOR, generate
from benchmarks.rounds import Rounds
from benchmarks.shapes import FORMATS, Shape
from state_pipelines import check, diff, dump, open_snapshot
from state_pipelines.operations.auditing.snapshot_audit import audit_snapshot
from state_pipelines.operations.inspect.inspection import inspect
from tests.snapshot.test_requests import CASES, Stored, store
from tests.storages import CountedFileSystem, store_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.snapshot import Snapshot
    from tests.snapshots import Case

SUBTASKS = 100

MOST = 16
"""Rounds that take half a second with 30 ms per request."""


def read_all(snapshot: Snapshot) -> None:
    for operator in snapshot.operators:
        deque(operator.batches_by_state(), 0)


WORKS: dict[str, Callable[[Callable[[], Snapshot]], object]] = {
    "open all headers": lambda open: [each.survey() for each in open().operators],
    "read": lambda open: read_all(open()),
    "count": lambda open: inspect(open(), count=True),
    "dump": lambda open: deque(dump(open()), 0),
    "diff": lambda open: diff(open(), open()).same_contents,
    "check": lambda open: check(open(), open(), scan=False),
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By format a snapshot of one operator with many subtasks, each of few records."""
    root = tmp_path_factory.mktemp("subtasks")
    for format in FORMATS:
        generate(str(root / format), 1000, Shape(states=("value",), format=format, parallelism=SUBTASKS))
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    """Rounds of the requests to the counted storage."""
    with Rounds() as rounds:
        yield rounds
    CountedFileSystem.rule = None


def run(work: str, open: Callable[[], Snapshot], rounds: Rounds) -> object:
    CountedFileSystem.rule = staticmethod(lambda *_: rounds.wait())
    try:
        return WORKS[work](open)
    finally:
        CountedFileSystem.rule = None


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("format", FORMATS)
def test_many_files_take_few_rounds(directories: dict[str, Path], format: str, work: str, rounds: Rounds) -> None:
    url = store_folder(directories[format]).url
    run(work, lambda: open_snapshot(url, uids=[OPERATOR]), rounds)
    assert sum(rounds.widths) >= SUBTASKS
    assert len(rounds) <= MOST
