"""What holds for every snapshot, whatever its format: it is read entry by entry, and written as it was.

The entries are those that Flink itself read from the snapshot, or that the job that made it knows.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from state_pipelines.binary.snappy_frames import iter_chunks
from state_pipelines.codecs.json import dumps
from state_pipelines.codecs.logical_values import conform
from state_pipelines.keyed.canonical import CanonicalFile
from state_pipelines.metadata import write_metadata
from state_pipelines.metadata.streams import read_whole_stream
from state_pipelines.operations.dump import dump
from state_pipelines.operations.inspect import inspect
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.operator_state import OperatorBroadcastState, OperatorListState
from state_pipelines.spark import register
from state_pipelines.spark.types import from_spark
from state_pipelines.storage import read_file
from tests.conformance.rows import to_entries
from tests.flink.harness import Entry, diff_entries
from tests.keyed.canonical_files import rewrite
from tests.snapshots import CASES, CLASSES, ENTRY_KINDS, KEY_SERIALIZERS, MADE, OWN, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot, State

DECODED = (KeyedState, OperatorListState, OperatorBroadcastState)


SUITES: dict[str, type[SnapshotSuite]] = {}
"""By format."""


def of_format(name: str) -> Callable[[type[SnapshotSuite]], type[SnapshotSuite]]:
    """Makes a class the suite of a format: the tests run with each of its cases."""

    def decorate(suite: type[SnapshotSuite]) -> type[SnapshotSuite]:
        SUITES[name] = suite
        return pytest.mark.parametrize("case", [case for case in CASES if case.format == name], ids=str)(suite)

    return decorate


def dump_lines(case: Case) -> list[Entry]:
    lines = (json.loads(dumps(line)) for line in dump(case.open_told()))
    return [line for line in lines if line["kind"] in ENTRY_KINDS]


def table_rows(case: Case) -> list[Entry]:
    return [entry for state in decoded_states(case.open_told()) for entry in to_entries(state, state.to_arrow())]


def known(case: Case, lines: Iterable[Entry]) -> list[Entry]:
    """Those of the operators that the expected entries speak of; sources keep state of their own."""
    operators = {entry["op"] for entry in case.entries()}
    return [line for line in lines if line["op"] in operators]


def assert_same(expected: Iterable[Entry], actual: Iterable[Entry]) -> None:
    difference = diff_entries(expected, actual)
    assert not difference, str(difference)


def decoded_states(snapshot: Snapshot) -> Iterator[State]:
    for operator in snapshot.operators:
        yield from (state for state in operator.states if isinstance(state, DECODED))


def iter_canonical(snapshot: Snapshot) -> Iterator[CanonicalFile]:
    """The canonical files of keyed state."""
    for operator in snapshot.operators:
        for _, file in operator.keyed_files:
            if isinstance(file, CanonicalFile):
                yield file


def content(file: CanonicalFile) -> list[tuple[int, bytes]]:
    """The sections without their compression, which Flink leaves to the snappy library."""
    whole = read_whole_stream(file.stream)
    return [
        (
            each.key_group,
            b"".join(chunk.data for chunk in iter_chunks(whole, each.start, each.end))
            if file.header.compressed
            else whole[each.start : each.end],
        )
        for each in file.sections
    ]


class SnapshotSuite:
    """What every snapshot is held against; a subclass names the format."""

    def test_metadata_is_written_byte_for_byte(self, case: Case) -> None:
        snapshot = case.open()
        assert write_metadata(snapshot.metadata) == read_file(snapshot.location.metadata)

    def test_everything_is_inspected_and_counted(self, case: Case) -> None:
        count = self.counts(case)
        report = inspect(case.open_told(), count=count)
        assert [operator.error for operator in report.operators if operator.error] == []
        if not count:
            return
        counted: Counter[tuple[str, str]] = Counter()
        broadcast: dict[tuple[str, str], int] = {}
        for operator in report.operators:
            for state in operator.states:
                place = (operator.uid or operator.id, state.name)
                counted[place] = state.entries or 0
                broadcast[place] = len(state.subtasks)
        assert {place: counted[place] for place in self.count(case, broadcast)} == self.count(case, broadcast)

    def count(self, case: Case, subtasks: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        """How many entries there are of each state; each subtask has all of a broadcast state."""
        found: Counter[tuple[str, str]] = Counter()
        seen: set[str] = set()
        for entry in self.expected(case):
            if entry["kind"] == "timer":
                found[entry["op"], f"_timer_state/{entry['domain']}_{entry['service']}"] += 1
                continue
            place = entry["op"], entry["state"]
            if entry["kind"] != "broadcast":
                found[place] += 1
            elif (text := json.dumps([*place, entry["ukey"]])) not in seen:
                seen.add(text)
                found[place] += subtasks[place]
        return dict(found)

    def expected(self, case: Case) -> list[Entry]:
        """The entries that are stored."""
        return case.entries()

    def counts(self, case: Case) -> bool:
        """Whether entries are counted."""
        return True


class CanonicalSuite(SnapshotSuite):
    """Canonical files are written as Flink wrote them, too."""

    def test_files_are_written_byte_for_byte(self, case: Case) -> None:
        files = [*iter_canonical(case.open_told())]
        assert files
        for file in files:
            again = rewrite(file)
            assert content(again) == content(file)
            if not file.header.compressed:
                assert read_whole_stream(again.stream) == read_whole_stream(file.stream)


class HeapSuite(SnapshotSuite):
    """Each count of a state reads its whole file, so that only the small cases of this tree are counted."""

    def counts(self, case: Case) -> bool:
        return case in OWN


@of_format("canonical savepoint")
class TestCanonicalSavepoint(CanonicalSuite):
    pass


@of_format("native savepoint, heap")
class TestHeapSavepoint(HeapSuite):
    pass


@of_format("native savepoint, RocksDB")
class TestRocksDBSavepoint(SnapshotSuite):
    pass


@of_format("checkpoint, heap")
class TestHeapCheckpoint(HeapSuite):
    pass


@of_format("full checkpoint, RocksDB")
class TestRocksDBFullCheckpoint(SnapshotSuite):
    pass


@of_format("incremental checkpoint, RocksDB")
class TestRocksDBIncrementalCheckpoint(SnapshotSuite):
    pass


@of_format("incremental checkpoint, timers on the heap")
class TestTimersOnTheHeap(SnapshotSuite):
    pass


@of_format("incremental checkpoint, merged files")
class TestMergedFiles(SnapshotSuite):
    pass


@of_format("incremental checkpoint, ForSt")
class TestForStCheckpoint(SnapshotSuite):
    pass


@of_format("changelog checkpoint")
class TestChangelogCheckpoint(SnapshotSuite):
    pass


@of_format("unaligned checkpoint")
class TestUnalignedCheckpoint(SnapshotSuite):
    """The expected entries are those after the records in flight have arrived."""

    def expected(self, case: Case) -> list[Entry]:
        return known(case, dump_lines(case))

    def test_stored_entries_are_dumped(self, case: Case) -> None:
        def place(entry: Entry) -> str:
            return json.dumps([entry.get(name) for name in ("op", "state", "kind", "type", "kg", "key", "ns", "ukey")])

        drained = {place(entry): entry["value"] for entry in case.entries()}
        stored = {place(entry): entry["value"] for entry in self.expected(case)}
        assert stored
        assert stored.keys() <= drained.keys()
        assert stored != drained

    def test_tables_hold_stored_entries(self, case: Case) -> None:
        assert_same(self.expected(case), known(case, table_rows(case)))

    def test_records_in_flight_are_counted(self, case: Case) -> None:
        assert any(operator.in_flight for operator in inspect(case.open_told()).operators)


def test_every_case_is_in_a_suite() -> None:
    assert {case.format for case in CASES} == SUITES.keys()


def take_turns() -> tuple[list[Case], list[Case]]:
    """Two lists of cases; the larger ones of a format take turns, and one that is alone is in both."""
    of_format: dict[str, list[Case]] = {}
    for case in MADE:
        of_format.setdefault(case.format, []).append(case)
    halves = [*of_format.values()]
    first, second = ([*OWN, *(case for each in halves for case in each[turn::2] or each)] for turn in (0, 1))
    return [case for case in first if not case.drained], [case for case in second if not case.drained]


DUMPED, READ = take_turns()


@pytest.mark.parametrize("case", DUMPED, ids=str)
def test_every_entry_is_dumped(case: Case) -> None:
    assert_same(case.entries(), known(case, dump_lines(case)))


@pytest.mark.parametrize("case", READ, ids=str)
def test_tables_hold_every_entry(case: Case) -> None:
    assert_same(case.entries(), known(case, table_rows(case)))


@pytest.mark.parametrize("name", [case.name for case in CASES if case.name in KEY_SERIALIZERS])
def test_key_serializers_are_told_as_the_same_job_stores_them(name: str) -> None:
    (canonical,) = (case.open() for case in CASES if case.name == "made-2.2.1-main-rocksdb-canonical")
    for uid, text in KEY_SERIALIZERS[name].items():
        keyed = [state for state in canonical.operator(uid).states if isinstance(state, KeyedState)]
        assert {describe(state.key_serializer) for state in keyed} == {text}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of field lists."""
    path = tmp_path_factory.mktemp("classes") / "classes.yaml"
    path.write_text(CLASSES)
    return path


MANY_KINDS = ("state-kinds", "few-states", "slow-sums", "async-states")
MANY_TYPES = {"v_pojo", "l_generic", "m_pojo_tuple", "left-records", "v_avro", "window-contents", "bc_pojo", "os_union"}
# Each state takes Spark a second: a case of every format, a larger one where there is one.
WITH_SPARK = [*{case.format: case for case in CASES}.values()]


def few_states(case: Case) -> list[State]:
    """Two states of the case, others for the next case."""
    states = [*decoded_states(case.open_told())]
    wanted = [each for each in states if each.operator.label in MANY_KINDS or each.name in MANY_TYPES] or states
    start = 2 * WITH_SPARK.index(case) % len(wanted)
    return [*wanted[start:], *wanted[:start]][:2]


@pytest.mark.parametrize("case", WITH_SPARK, ids=str)
def test_spark_reads_the_same_entries(case: Case, spark: SparkSession, classes: Path) -> None:
    register(spark)
    reader = spark.read.format("flink-state").option("path", str(case.path)).option("classes", str(classes))
    reader = reader.option("pathMapping", ",".join(case.path_mapping)).option("uids", ",".join(case.uids))
    told = KEY_SERIALIZERS.get(case.name, {}).items()
    reader = reader.option("keySerializers", ";".join(f"{uid}={text}" for uid, text in told))
    for state in few_states(case):
        frame = reader.option("operatorId", state.operator.label).option("stateVarName", state.name).load()
        table = frame.toArrow()
        columns = [
            pa.chunked_array(
                [conform(from_spark(chunk, field.type), field.type) for chunk in table[field.name].chunks], field.type
            )
            for field in state.schema
        ]
        rows = to_entries(state, pa.table(columns, schema=state.schema))
        assert_same(to_entries(state, state.to_arrow()), rows)
