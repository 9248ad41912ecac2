"""Requests and bytes that reading a snapshot takes, for snapshots of every format, on a storage that counts them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import StorageError
from state_pipelines.keyed.operator_table import OperatorTableOptions
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.operations.diff.diff import diff
from state_pipelines.operations.dump import dump
from state_pipelines.operations.inspect import inspect
from state_pipelines.operations.key_search import search_keys
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.snapshot.declarations import Declarations
from state_pipelines.snapshot.keyed_state import count_states
from state_pipelines.snapshot.snapshot import open_location
from state_pipelines.storage import Location, SnapshotLocation, join, locations
from state_pipelines.storage.resolution import PathMapping
from tests.snapshots import OWN
from tests.storages import CountedFileSystem, ShortBody, store_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.snapshot import Operator, Snapshot
    from tests.snapshots import Case

FOLDERS = (
    "heap",
    "heap-checkpoint",
    "heap-native-snappy",
    "heap-snappy",
    "rocksdb",
    "rocksdb-file-merging",
    "rocksdb-full",
    "rocksdb-heap-timers",
    "rocksdb-incremental",
    "rocksdb-native",
    "changelog-heap-files",
    "changelog-heap-materialized",
    "changelog-rocksdb-files",
    "changelog-rocksdb-materialized",
    "forst",
)
CASES = [case for case in OWN if case.version.startswith("2.2") and case.case in FOLDERS]
CHANGELOGS = [case for case in CASES if "changelog" in case.case]
DATABASES = [case for case in CASES if case.case in ("rocksdb-incremental", "rocksdb-native", "forst")]
FAULTS = [
    TimeoutError("timed out"),
    ConnectionResetError("reset by peer"),
    OSError(5, "InternalError"),
    OSError(16, "Please reduce your request rate."),
    ShortBody("the body ended early"),
]


@dataclass(frozen=True)
class Stored:
    """A snapshot on the counted storage.

    Attributes:
        case: the snapshot.
        folder: where its files are.
    """

    case: Case
    folder: Location

    def open(self) -> Snapshot:
        directory = join(self.folder, *self.case.path.relative_to(self.case.folder).parts)
        mapping = PathMapping(((f"file:{self.case.written}", self.folder.url),))
        declarations = Declarations(uids=self.case.uids)
        return open_location(
            SnapshotLocation(directory, join(directory, "_metadata")), declarations, path_mapping=mapping
        )

    def read_share(self) -> dict[str, float]:
        """Share of each file that was read; more than 1 when bytes came twice."""
        read: Counter[str] = Counter()
        for path, start, end in CountedFileSystem.reads:
            read[path] += end - start
        return {path: size / self.folder.filesystem.store[path].size for path, size in read.items()}


def store(case: Case) -> Stored:
    return Stored(case, store_folder(case.folder))


def count_all(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    """Entries and bytes of all keyed state."""
    return {
        f"{operator.label} {name}": (counted.entries, counted.bytes)
        for operator in snapshot.operators
        for name, counted in count_states(operator.keyed_states).items()
    }


def find_values(operator: Operator) -> Iterator[str]:
    """Names of the states with a value without namespace."""
    for state in operator.keyed_states:
        if state.kind == "VALUE" and not state.undecoded and state.info.namespace_serializer == VOID_NAMESPACE:
            yield state.name


def clear() -> None:
    CountedFileSystem.requests.clear()
    CountedFileSystem.reads.clear()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_opening_takes_one_request(case: Case) -> None:
    store(case).open()
    assert [operation for operation, _ in CountedFileSystem.requests] == ["read"]


WORKS: dict[str, Callable[[Case, Snapshot], object]] = {
    "count": lambda _, snapshot: count_all(snapshot),
    "dump": lambda _, snapshot: Counter(map(str, dump(snapshot))),
    "inspect": lambda _, snapshot: [each.states for each in inspect(snapshot, count=True).operators],
    "diff": lambda case, snapshot: diff(case.open(), snapshot).same_contents,
}


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_states_are_read_without_reading_bytes_twice(case: Case, work: str) -> None:
    stored = store(case)
    result = WORKS[work](case, stored.open())
    read = sum(end - start for _, start, end in CountedFileSystem.reads)
    size = sum(stored.folder.filesystem.store[path].size for path in stored.read_share())
    assert {operation for operation, _ in CountedFileSystem.requests} == {"read"}
    assert read <= 1.01 * size
    assert result == WORKS[work](case, case.open())


@pytest.mark.parametrize("case", CHANGELOGS, ids=str)
def test_files_of_changes_are_read_once(case: Case) -> None:
    stored = store(case)
    count_all(stored.open())
    shares = stored.read_share()
    requests = Counter(path for _, path in CountedFileSystem.requests)
    assert max(requests.values()) <= 3
    assert all(share <= 1.001 for share in shares.values())


@pytest.mark.slow
@pytest.mark.parametrize("case", DATABASES, ids=str)
def test_a_key_of_a_database_takes_two_requests_of_a_table(case: Case) -> None:
    stored = store(case)
    for operator in case.open().operators:
        for state in operator.keyed_states:
            if state.kind == "TIMER" or state.undecoded:
                continue
            options = TableOptions(columns=("state_key",), flatten=False)
            everything = state.to_arrow(options).column("state_key").to_pylist()
            if not everything:
                continue
            found = stored.open().operator(operator.label).state(state.name)
            # The headers of all operators were read.
            assert found.make_schema()
            clear()
            rows = found.to_arrow(TableOptions(key=everything[0], flatten=False))
            assert len(rows) == everything.count(everything[0])
            tables = {path for path, *_ in CountedFileSystem.reads}
            assert len(CountedFileSystem.requests) <= 2 * len(tables) <= 12


@pytest.mark.slow
@pytest.mark.parametrize("case", DATABASES, ids=str)
def test_the_table_of_all_states_has_the_rows_of_a_key(case: Case) -> None:
    operators = {each: list(find_values(each)) for each in case.open().operators}
    operator, names = next((each, tuple(names)) for each, names in operators.items() if names)
    everything = operator.to_arrow(OperatorTableOptions(states=names)).to_pylist()
    wanted = everything[len(everything) // 2]["state_key"]
    found = store(case).open().operator(operator.label).to_arrow(OperatorTableOptions(states=names, key=wanted))
    assert found.to_pylist() == [row for row in everything if row["state_key"] == wanted]


@pytest.mark.slow
@pytest.mark.parametrize("case", DATABASES, ids=str)
def test_a_list_of_keys_is_found(case: Case) -> None:
    operator = next(each for each in case.open().operators if each.keyed_states)
    state = next(each for each in operator.keyed_states if each.kind != "TIMER" and not each.undecoded)
    keys = list(dict.fromkeys(state.to_arrow(TableOptions(columns=("state_key",))).column("state_key").to_pylist()))
    wanted = keys[:: max(1, len(keys) // 20)]
    here, there = (
        search_keys(each, wanted, [each.operator(operator.label)]) for each in (case.open(), store(case).open())
    )
    assert [(each.state, each.key, each.entries) for each in there.found] == [
        (each.state, each.key, each.entries) for each in here.found
    ]
    assert there.keys_of(operator.label) == tuple(range(len(wanted)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "fault"),
    [
        pytest.param(case, fault, id=f"{case}-{type(fault).__name__}")
        for number, case in enumerate(CASES)
        # Two for each snapshot.
        for fault in (FAULTS[number % len(FAULTS)], FAULTS[(number + 2) % len(FAULTS)])
    ],
)
def test_a_fault_of_every_request_changes_nothing(
    case: Case, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.0)
    stored = store(case)
    monkeypatch.setattr(CountedFileSystem, "flaky", fault)
    assert count_all(stored.open()) == count_all(case.open())
    assert CountedFileSystem.attempted


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_storage_that_stays_away_is_one_short_error(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.0)
    snapshot = store(case).open()
    clear()
    count_all(snapshot)
    if not CountedFileSystem.requests:
        pytest.skip("all state is in _metadata")
    snapshot = store(case).open()
    secret = ConnectionResetError("GET https://store.example.org/a?X-Amz-Signature=0123 failed")
    CountedFileSystem.faults += [secret] * 10_000
    with pytest.raises(StorageError) as caught:
        count_all(snapshot)
    text = str(caught.value)
    assert 1 <= len(text.splitlines()) <= 4
    assert "attempts" in text
    assert "0123" not in text
