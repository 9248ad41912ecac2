"""How often works wait for a remote storage that holds many small files, however long a request takes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest

from benchmarks.generate import OPERATOR, generate
from benchmarks.rounds import WORKS, Rounds
from benchmarks.shapes import FORMATS, Shape
from state_pipelines.snapshot import open_snapshot
from tests.snapshot.test_requests import CASES, store
from tests.snapshots import OWN
from tests.storages import CountedFileSystem, store_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from state_pipelines.snapshot import Snapshot
    from tests.snapshots import Case

SUBTASKS = 100

HALF_A_SECOND = 16
"""Rounds with 30 ms per request."""

READING = ("headers", "counts of `inspect`", "`dump`", "`diff` with itself")
MOST = dict.fromkeys((*READING, "all columns", "`check` of itself", "`verify`"), HALF_A_SECOND)
# More requests than may be in flight, and many before the first file and after the last one.
MOST |= {"`rescale --parallelism 3`": 42, "`convert --format canonical`": 42}
# What only reads does so with the snapshots of every format below: one format for each is enough here.
WORKS_OF_FORMATS = [
    (format, work)
    for number, work in enumerate(MOST)
    for format in ([FORMATS[number % len(FORMATS)]] if work in READING else FORMATS)
]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By format a snapshot of one operator with many subtasks, each of few records."""
    root = tmp_path_factory.mktemp("subtasks")
    for format in FORMATS:
        generate(str(root / format), 1000, Shape(states=("value",), format=format, parallelism=SUBTASKS))
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    """Rounds of the requests that are sent to the counted storage once it has its files."""
    with Rounds() as rounds:
        yield rounds
    CountedFileSystem.rule = None


def run(work: str, open: Callable[[], Snapshot], rounds: Rounds) -> int:
    CountedFileSystem.rule = staticmethod(lambda *_: rounds.wait())
    WORKS[work](open, "counted:///new")
    return len(rounds)


@pytest.mark.slow
@pytest.mark.parametrize(("format", "work"), WORKS_OF_FORMATS)
def test_many_files_take_few_rounds(directories: dict[str, Path], format: str, work: str, rounds: Rounds) -> None:
    url = store_folder(directories[format]).url
    assert run(work, partial(open_snapshot, url, uids=[OPERATOR]), rounds) <= MOST[work]
    assert sum(rounds.widths) > SUBTASKS


@pytest.mark.slow
def test_verify_reads_small_tables_once_and_for_their_checksums(directories: dict[str, Path], rounds: Rounds) -> None:
    url = store_folder(directories["rocksdb-native"]).url
    run("`verify`", partial(open_snapshot, url, uids=[OPERATOR]), rounds)
    counts = Counter(path.rpartition("/")[2] for operation, path in CountedFileSystem.requests if operation == "read")
    assert max(counts.values()) == 2
    assert len(counts) > 5 * SUBTASKS
    # The manifest is looked for.
    assert [operation for operation, _ in CountedFileSystem.requests].count("info") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "work"),
    [
        (case, work)
        # Of a heap file of `heap-native` nothing marks the end of a state, so that each state is read alone.
        for number, case in enumerate([*CASES, *(each for each in OWN if str(each) == "types-2.2-heap-native")])
        # Two of the works for each: the snapshots take turns.
        for work in (READING[number % 2], READING[2 + number % 2])
    ],
    ids=str,
)
def test_many_operators_take_few_rounds(case: Case, work: str, rounds: Rounds) -> None:
    assert run(work, store(case).open, rounds) <= HALF_A_SECOND


@pytest.mark.slow
@pytest.mark.parametrize("case", [each for each in CASES if "native" in str(each)], ids=str)
def test_operators_are_read_ahead_in_a_loop(case: Case, rounds: Rounds) -> None:
    def count(batches: Iterable[tuple[str, pa.RecordBatch]]) -> list[tuple[str, int]]:
        return [(name, batch.num_rows) for name, batch in batches]

    expected = [(each.id, count(each.batches_by_state())) for each in store(case).open().operators]
    snapshot = store(case).open()
    CountedFileSystem.rule = staticmethod(lambda *_: rounds.wait())
    assert [(each.id, count(batches)) for each, batches in snapshot.batches_by_operator()] == expected
    assert len(rounds) <= HALF_A_SECOND


@pytest.mark.slow
def test_requests_that_wait_for_each_other_are_rounds(rounds: Rounds) -> None:
    numbers = count()

    def work(requests: int) -> None:
        for _ in range(requests):
            rounds.wait()
            # Work between two requests is no wait.
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                next(numbers)

    threads = [threading.Thread(target=work, args=(requests,)) for requests in (1, 3, 3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert rounds.widths == [3, 2, 2]
