"""Faults of the storage while snapshots are written: once at any request, or for good from any request on."""

from __future__ import annotations

from functools import cache
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import state_pipelines as sp
from benchmarks.generate import OPERATOR, generate
from benchmarks.shapes import Shape
from state_pipelines.errors import StateError
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.operations.dump import dump
from state_pipelines.spark.record_encoding import StateWriter
from state_pipelines.storage import METADATA_FILE, Location, exists, join, list_files, locations
from tests.storages import CountedFileSystem, Fault, LostResponse, empty_counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.snapshot import Snapshot


class HttpFault(Exception):
    """As clients raise one for a response that is an error."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered {status}")
        self.status = status


class FlexibleChecksumError(Exception):
    """Named as the error of botocore for a body that does not have its checksum."""


class IncompleteRead(Exception):
    """Named as the error of urllib3 for a body that is too short."""


ONCE: tuple[Fault, ...] = (
    HttpFault(500),
    HttpFault(503),
    ConnectionResetError("reset by peer"),
    IncompleteRead("5 bytes read, 9 more expected"),
    FlexibleChecksumError("expected checksum a, got b"),
    LostResponse(TimeoutError("timed out")),
)


@cache
def generated() -> dict[str, bytes]:
    """The files of a small canonical snapshot of two subtasks."""
    with TemporaryDirectory() as directory:
        generate(f"{directory}/savepoint", 60, Shape(states=("value", "list", "timers")))
        return {path.name: path.read_bytes() for path in Path(directory, "savepoint").iterdir()}


def write_totals(source: Snapshot, target: str) -> None:
    """Write one state over the snapshot, in this process: as a task of Spark, and its driver."""
    operator = next(each for each in source.operators if each.keyed_states)
    state = operator.keyed_states[0]
    table = pa.Table.from_batches(list(state.batches(TableOptions())))
    options = {"path": target, "base": source.path, "operatorId": operator.label, "stateVarName": state.name}
    writer = StateWriter(options, StructType(), overwrite=False)
    message = None
    try:
        message = writer.write(iter(table.to_batches()))
        writer.commit([message])
    except BaseException:
        writer.abort([message])
        raise


WRITERS: dict[str, Callable[[Snapshot, str], object]] = {
    "keep": lambda source, target: sp.convert(source, target, "keep"),
    "heap": lambda source, target: sp.convert(source, target, "heap"),
    "rocksdb": lambda source, target: sp.convert(source, target, "rocksdb"),
    "move": lambda source, target: sp.convert(source, target, "keep", move=True),
    "parallelism": lambda source, target: sp.rescale(source, target, parallelism=3),
    "max parallelism": lambda source, target: sp.rescale(source, target, max_parallelism=64),
    "scratch": lambda source, target: sp.rescale(
        source, target, max_parallelism=64, prove=False, scratch="counted://scratch"
    ),
    "write": write_totals,
}


@pytest.fixture(autouse=True)
def storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.0)
    names = ("HttpFault", "FlexibleChecksumError", "IncompleteRead")
    monkeypatch.setattr(locations, "_CLIENT_ERRORS", tuple((__name__, name) for name in names))


def put_snapshot() -> tuple[Snapshot, Location]:
    """The snapshot on the storage, opened, and a target."""
    root = empty_counted()
    for name, content in generated().items():
        root.filesystem.pipe_file(f"/job/savepoint/{name}", content)
    snapshot = sp.open_snapshot("counted:///job/savepoint", uids=[OPERATOR])
    CountedFileSystem.requests.clear()
    return snapshot, Location(root.filesystem, "/results/new")


@cache
def run_undisturbed(writer: str) -> tuple[int, list[str]]:
    """The number of requests of a writer, and what the result holds."""
    snapshot, target = put_snapshot()
    WRITERS[writer](snapshot, target.url)
    return len(CountedFileSystem.requests), show(target)


def show(target: Location) -> list[str]:
    CountedFileSystem.rule = None
    return sorted(map(str, dump(sp.open_snapshot(target.url, uids=[OPERATOR]))))


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_a_request_that_fails_once_changes_nothing(writer: str) -> None:
    count, expected = run_undisturbed(writer)
    kinds = cycle(ONCE)
    # Every fourth request here, and in the test below each of them, all in one run.
    for number in range(0, count, 4):
        snapshot, target = put_snapshot()
        fault = next(kinds)
        CountedFileSystem.rule = staticmethod(
            lambda at, *_, number=number, fault=fault: fault if at == number else None
        )
        WRITERS[writer](snapshot, target.url)
        assert show(target) == expected, number


@pytest.mark.slow
@pytest.mark.parametrize("fault", ONCE, ids=str)
@pytest.mark.parametrize("writer", WRITERS)
def test_every_request_may_fail_once(writer: str, fault: Fault) -> None:
    _, expected = run_undisturbed(writer)
    snapshot, target = put_snapshot()
    seen: set[tuple[str, str]] = set()

    def fail(_: int, operation: str, path: str) -> Fault | None:
        if (operation, path) in seen:
            return None
        seen.add((operation, path))
        return fault

    CountedFileSystem.rule = staticmethod(fail)
    WRITERS[writer](snapshot, target.url)
    assert show(target) == expected


@pytest.mark.slow
@pytest.mark.parametrize("writer", [each for each in WRITERS if each != "move"])
def test_a_storage_that_fails_for_good_leaves_no_snapshot(writer: str) -> None:
    count, _ = run_undisturbed(writer)
    # Every fourth request here, others below.
    for number in range(0, count, 4):
        snapshot, target = put_snapshot()
        CountedFileSystem.rule = staticmethod(lambda at, *_, number=number: HttpFault(503) if at >= number else None)
        error = fail(writer, snapshot, target)
        CountedFileSystem.rule = None
        if error is None:
            # Only leftovers could not be removed.
            assert exists(join(target, METADATA_FILE)), number
            continue
        assert 1 <= len(str(error).splitlines()) <= 4, error
        assert not exists(join(target, METADATA_FILE)), number


@pytest.mark.slow
@pytest.mark.parametrize("writer", [each for each in WRITERS if each != "move"])
def test_one_request_that_always_fails_leaves_nothing(writer: str) -> None:
    count, _ = run_undisturbed(writer)
    for number in range(1, count, 4):
        snapshot, target = put_snapshot()
        chosen: list[tuple[str, str]] = []

        def fail_chosen(
            at: int, operation: str, path: str, number: int = number, chosen: list[tuple[str, str]] = chosen
        ) -> Fault | None:
            if at == number:
                chosen.append((operation, path))
            return HttpFault(500) if (operation, path) in chosen else None

        CountedFileSystem.rule = staticmethod(fail_chosen)
        error = fail(writer, snapshot, target)
        CountedFileSystem.rule = None
        if error is None:
            assert exists(join(target, METADATA_FILE)), number
            continue
        (operation, path) = chosen[0]
        assert 1 <= len(str(error).splitlines()) <= 4, error
        assert not exists(join(target, METADATA_FILE)), (number, operation, path)
        # Cleaning up looks for the target, lists and removes it: where one of these fails, files without metadata stay.
        if not path.startswith("/results/new") or operation == "write":
            assert not exists(target) or list(list_files(target)) == [], (number, operation, path)


def fail(writer: str, snapshot: Snapshot, target: Location) -> StateError | None:
    try:
        WRITERS[writer](snapshot, target.url)
    except StateError as error:
        return error
    return None


def test_a_move_that_cannot_remove_the_old_snapshot_says_that_the_new_one_is_complete() -> None:
    _, expected = run_undisturbed("move")
    snapshot, target = put_snapshot()
    CountedFileSystem.rule = staticmethod(
        lambda _, operation, path: HttpFault(500) if operation == "remove" and path.startswith("/job/") else None
    )
    with pytest.raises(StateError, match="The new snapshot counted:///results/new is complete"):
        WRITERS["move"](snapshot, target.url)
    assert show(target) == expected
