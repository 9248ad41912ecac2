from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pytest

from state_pipelines.connectors.kafka import KafkaEnumerator
from state_pipelines.connectors.registry import ConnectorState, read_coordinator
from state_pipelines.errors import (
    IncompatibleError,
    MigrationError,
    ProofError,
    StateError,
    UnsupportedError,
    UsageError,
    ValueRangeError,
)
from state_pipelines.operations.bootstrap import bootstrap as bootstrapping
from state_pipelines.operations.bootstrap.encoding import write_together
from state_pipelines.operations.dump import dump
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import BootstrapResult, NewOperator, NewState, bootstrap, bootstrap_run
from tests.flink.harness import diff_entries
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.spark

FORMATS = ("canonical", "heap", "rocksdb")
KEYS = 300


@dataclass
class Profile:
    java_class: ClassVar[str] = "com.acme.Profile"
    name: str
    age: Annotated[int, "Int"]
    score: float | None


@pytest.fixture(scope="module")
def people(spark: SparkSession) -> DataFrame:
    """A row per key."""
    return spark.sql(
        f"""SELECT CONCAT('key-', id) AS id, id * 3 AS total, CONCAT('näme ', id) AS name, CAST(id AS INT) AS age,
        IF(id % 7 = 0, NULL, id * 0.5D) AS score, TIMESTAMP_MILLIS(1700000000000 + id) AS seen FROM RANGE({KEYS})"""
    )


@pytest.fixture(scope="module")
def every_kind(spark: SparkSession, people: DataFrame) -> list[NewOperator]:
    """Two operators with a state of every kind."""
    keyed = [
        NewState("total", people, columns={"state_key": "id", "value": "total"}),
        NewState("profile", people, type=Profile, columns={"state_key": "id", "value": ["name", "age", "score"]}),
        NewState("recent", people, ttl=True, columns={"state_key": "id", "value": "total", "ttl_last_access": "seen"}),
        NewState("largest", people, "REDUCING", columns={"state_key": "id", "value": "total"}),
        NewState("average", people, "AGGREGATING", columns={"state_key": "id", "value": ["total", "age"]}),
        NewState("history", people, "LIST", columns={"state_key": "id", "value": "ARRAY(name, 'last')"}),
        NewState(
            "visits",
            people,
            "MAP",
            columns={"state_key": "CONCAT('key-', age % 10)", "map_key": "age", "map_value": "name"},
        ),
        NewState("user-timers", people, "EVENT_TIMERS", columns={"state_key": "id", "timestamp": "seen"}),
        NewState("user-timers", people, "PROCESSING_TIMERS", columns={"state_key": "id", "timestamp": "total"}),
        NewState(
            "window-contents",
            people,
            "AGGREGATING",
            type="Long",
            namespace="TimeWindow",
            columns={
                "state_key": "id",
                "state_namespace": {"start": "total * 1000", "end": "total * 1000 + 1000"},
                "value": "total",
            },
        ),
    ]
    few = spark.range(7).selectExpr("id AS value", "id AS map_value", "CONCAT('b', id) AS map_key")
    unkeyed = [
        NewState("parts", few, "SPLIT", columns={"value": "value"}),
        NewState("all", few, "UNION"),
        NewState("rules", few, "BROADCAST"),
    ]
    offsets = spark.range(5).selectExpr("'orders' AS topic", "CAST(id AS INT) AS partition", "id * 100 AS offset")
    source = NewState("offsets", offsets, "KAFKA")
    return [
        NewOperator("people", [*keyed, *unkeyed], parallelism=2, max_parallelism=64),
        NewOperator("source", [source], parallelism=3),
    ]


@pytest.fixture(scope="module", params=FORMATS)
def written(
    request: pytest.FixtureRequest, every_kind: list[NewOperator], tmp_path_factory: pytest.TempPathFactory
) -> BootstrapResult:
    """All of it in one savepoint."""
    target = tmp_path_factory.mktemp("bootstrapped") / request.param
    return bootstrap(str(target), every_kind, format=request.param)


def reopen(result: BootstrapResult) -> Snapshot:
    return open_snapshot(result.path, uids=["people", "source"])


def rows(result: BootstrapResult, state: str, operator: str = "people") -> list[dict[str, Any]]:
    return reopen(result).operator(operator).state(state).to_arrow().to_pylist()  # type: ignore[no-any-return]


def values(result: BootstrapResult, state: str) -> dict[str, Any]:
    found = {row["state_key"]: row["value"] for row in rows(result, state)}
    assert len(found) == KEYS
    return found


def total(people: DataFrame, **changes: Any) -> NewState:
    given: dict[str, Any] = {"name": "total", "rows": people, "columns": {"state_key": "id", "value": "total"}}
    return NewState(**(given | changes))


@pytest.mark.essential
def test_the_proof_holds_and_counts_every_entry(written: BootstrapResult) -> None:
    assert written.proof is not None
    assert written.proof.ok
    assert [check.name for check in written.proof.checks] == [
        "row_counts_per_key_group",
        "key_sets",
        "key_groups_match_key_hash",
        "written_reads_back",
    ]
    # Broadcast state is read back from both subtasks.
    assert written.proof.rows == 10 * KEYS + 7 + 7 + 14 + 5
    assert written.entries["people", "total"] == KEYS


@pytest.mark.essential
def test_values_are_those_of_the_rows(written: BootstrapResult) -> None:
    assert values(written, "total") == {f"key-{i}": i * 3 for i in range(KEYS)}
    assert values(written, "largest") == {f"key-{i}": i * 3 for i in range(KEYS)}
    assert values(written, "average") == {f"key-{i}": {"row_kind": "+I", "f0": i * 3, "f1": i} for i in range(KEYS)}
    profiles = values(written, "profile")
    assert profiles["key-7"] == {"name": "näme 7", "age": 7, "score": None}
    assert profiles["key-8"] == {"name": "näme 8", "age": 8, "score": 4.0}


def test_keys_are_in_the_subtask_of_their_key_group(written: BootstrapResult) -> None:
    assert {row["key_group"] // 32 == row["subtask"] for row in rows(written, "total")} == {True}


def test_lists_and_maps_are_those_of_the_rows(written: BootstrapResult) -> None:
    lists = Counter((row["state_key"], row["list_index"], row["list_value"]) for row in rows(written, "history"))
    assert lists == Counter((f"key-{i}", n, [f"näme {i}", "last"][n]) for i in range(KEYS) for n in range(2))
    maps = {(row["state_key"], row["map_key"]): row["map_value"] for row in rows(written, "visits")}
    assert maps == {(f"key-{i % 10}", i): f"näme {i}" for i in range(KEYS)}


def test_values_with_a_time_to_live_have_the_times_of_the_rows(written: BootstrapResult) -> None:
    found = {row["state_key"]: row["ttl_last_access"].timestamp() * 1000 for row in rows(written, "recent")}
    assert found == {f"key-{i}": pytest.approx(1_700_000_000_000 + i) for i in range(KEYS)}


def test_timers_are_those_of_the_rows(written: BootstrapResult) -> None:
    event = {row["state_key"]: row["timestamp"] for row in rows(written, "_timer_state/event_user-timers")}
    assert event == {f"key-{i}": 1_700_000_000_000 + i for i in range(KEYS)}
    processing = {row["state_key"]: row["timestamp"] for row in rows(written, "_timer_state/processing_user-timers")}
    assert processing == {f"key-{i}": 3 * i for i in range(KEYS)}


def test_contents_of_windows_have_their_namespace(written: BootstrapResult) -> None:
    found = {row["state_key"]: (row["state_namespace"], row["value"]) for row in rows(written, "window-contents")}
    assert found == {f"key-{i}": ({"start": 3000 * i, "end": 3000 * i + 1000}, 3 * i) for i in range(KEYS)}


def test_list_state_is_dealt_to_all_subtasks(written: BootstrapResult) -> None:
    for state in ("parts", "all"):
        found = rows(written, state)
        assert sorted(row["value"] for row in found) == list(range(7))
        assert {row["subtask"] for row in found} == {0, 1}


def test_broadcast_state_is_the_same_in_every_subtask(written: BootstrapResult) -> None:
    found = rows(written, "rules")
    for subtask in range(2):
        mine = {row["map_key"]: row["map_value"] for row in found if row["subtask"] == subtask}
        assert mine == {f"b{i}": i for i in range(7)}


def test_kafka_offsets_are_splits_and_the_enumerator_knows_the_partitions(written: BootstrapResult) -> None:
    operator = reopen(written).operator("source")
    splits = [row["split"] for row in rows(written, "SourceReaderState", "source")]
    assert {(split["topic"], split["partition"]): split["offset"] for split in splits} == {
        ("orders", partition): partition * 100 for partition in range(5)
    }
    assert operator.metadata.coordinator_state is not None
    state = read_coordinator(operator.metadata.coordinator_state.data).state
    assert isinstance(state, ConnectorState)
    (enumerator,) = state.values
    assert isinstance(enumerator, KafkaEnumerator)
    assert {each.split.partition for each in enumerator.assignments} == set(range(5))


def test_states_are_written_beside_those_of_a_base(people: DataFrame, tmp_path: Path) -> None:
    base = orders()
    states = [total(people), NewState("all", people.limit(3), "UNION", columns={"value": "total"})]
    operators = [NewOperator("orders", states), NewOperator("totals", [total(people)], parallelism=1)]
    result = bootstrap(str(tmp_path / "new"), operators, base=str(base.path))
    snapshot = open_snapshot(result.path, uids=[*base.uids, "totals"])
    assert snapshot.operator("orders").state("total").count().entries == KEYS
    assert snapshot.operator("totals").state("total").count().entries == KEYS
    others = [line for line in dump(snapshot) if line.get("state") not in ("total", "all")]
    assert not diff_entries(base.entries(), others)


def test_a_native_savepoint_holds_the_states_of_the_base_too(people: DataFrame, tmp_path: Path) -> None:
    base = orders()
    target = str(tmp_path / "new")
    bootstrap(
        target, [NewOperator("orders", [total(people)])], base=str(base.path), format="rocksdb", files="reference"
    )
    snapshot = open_snapshot(target, uids=base.uids, allow_roots=[str(base.path)])
    others = [line for line in dump(snapshot) if line.get("state") != "total"]
    assert not diff_entries(base.entries(), others)


def test_rows_without_a_time_of_access_were_accessed_now(people: DataFrame, tmp_path: Path) -> None:
    result = bootstrap(str(tmp_path / "new"), [NewOperator("people", [total(people, ttl=True)], parallelism=1)])
    times = {row["ttl_last_access"] for row in rows(result, "total")}
    assert len(times) == 1
    assert times.pop().year > 2024


def test_empty_lists_are_no_state(people: DataFrame, tmp_path: Path) -> None:
    state = NewState(
        "history",
        people,
        "LIST",
        ttl=True,
        columns={"state_key": "id", "value": "IF(age < 5, ARRAY(total), ARRAY_REMOVE(ARRAY(total), total))"},
    )
    result = bootstrap(str(tmp_path / "new"), [NewOperator("people", [state], parallelism=1)])
    assert {row["state_key"] for row in rows(result, "history")} == {f"key-{i}" for i in range(5)}


@pytest.mark.parametrize("format", FORMATS)
def test_a_key_that_comes_twice_is_refused(people: DataFrame, tmp_path: Path, format: str) -> None:
    twice = people.union(people.where("age = 17"))
    with pytest.raises(IncompatibleError, match=r"several rows .* 'key-17'"):
        bootstrap(str(tmp_path / "new"), [NewOperator("people", [total(twice)], parallelism=2)], format=format)
    assert not (tmp_path / "new").exists()


def test_a_broadcast_key_that_comes_twice_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    state = NewState("rules", spark.sql("SELECT 'a' AS map_key, id AS map_value FROM RANGE(2)"), "BROADCAST")
    with pytest.raises(IncompatibleError, match="'a'"):
        bootstrap(str(tmp_path / "new"), [NewOperator("people", [state], parallelism=2)])


def test_offsets_that_cannot_be_computed_are_an_error_of_the_state(spark: SparkSession, tmp_path: Path) -> None:
    offsets = spark.sql(
        "SELECT 'orders' AS topic, 1 AS partition, CAST(CONCAT('x', id) AS BIGINT) AS offset FROM RANGE(2)"
    )
    with pytest.raises(MigrationError, match="the rows cannot be read"):
        bootstrap(str(tmp_path / "new"), [NewOperator("s", [NewState("o", offsets, "KAFKA")], parallelism=1)])


def test_a_partition_with_two_offsets_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    offsets = spark.sql("SELECT 'orders' AS topic, 1 AS partition, id AS offset FROM RANGE(2)")
    with pytest.raises(IncompatibleError, match="partition 1 of topic orders"):
        bootstrap(str(tmp_path / "new"), [NewOperator("s", [NewState("o", offsets, "KAFKA")], parallelism=1)])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"columns": {"state_key": "IF(age = 3, NULL, id)", "value": "total"}}, ValueRangeError, "null"),
        ({"columns": {"state_key": "id", "value": "IF(age = 3, NULL, total)"}}, StateError, "null"),
        ({"type": "Int", "columns": {"state_key": "id", "value": "total + 5000000000"}}, ValueRangeError, "int32"),
    ],
    ids=["null key", "null value", "overflow"],
)
def test_rows_that_do_not_fit_leave_nothing(
    people: DataFrame, tmp_path: Path, change: dict[str, Any], error: type[StateError], message: str
) -> None:
    with pytest.raises(error, match=message):
        bootstrap(str(tmp_path / "new"), [NewOperator("people", [total(people, **change)], parallelism=2)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"type": "Lnog"}, UsageError, "not a serializer"),
        (
            {"type": "Boolean", "columns": {"state_key": "id", "value": "name"}},
            ValueRangeError,
            "string does not fit bool",
        ),
        ({"columns": {"state_key": "id", "value": "no_such_column"}}, UsageError, "no_such_column"),
        ({"columns": {"state_key": "id", "value": "total +"}}, UsageError, "the columns cannot be computed"),
        ({"columns": {"state_key": "id", "value": ["total", "total"]}}, UsageError, "have one name"),
        ({"columns": {"value": "total"}}, UsageError, "no column state_key"),
        (
            {"columns": {"state_key": "id", "value": "seen"}},
            UsageError,
            "no serializer follows from the type timestamp",
        ),
        ({"columns": {"state_key": "id", "value": "CAST(total AS DECIMAL(9, 2))"}}, UsageError, "decimal"),
        ({"columns": {"state_key": "CAST(id AS BINARY)", "value": "total"}}, UsageError, "array cannot be a key"),
        ({"kind": "LIST"}, UsageError, "LIST state needs a List"),
        ({"kind": "VALUES"}, UsageError, "no kind of state"),
        ({"kind": "UNION", "ttl": True, "columns": {}}, UsageError, "no time to live"),
        ({"columns": {"state_key": "id", "value": "total", "map_key": "id"}}, UsageError, "has no column map_key"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    people: DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    error: type,
    message: str,
) -> None:
    monkeypatch.delattr(bootstrapping.BootstrapPlan, "run")
    with pytest.raises(error, match=message):
        bootstrap(str(tmp_path / "new"), [NewOperator("people", [total(people, **change)], parallelism=2)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("StringArray", UsageError, "array cannot be a key"),
        ("Enum<com.acme.Color>(RED)", UsageError, "enum constant cannot be a key"),
        ("Pojo<com.acme.Key>(name: String)", UnsupportedError, "hashCode of com.acme.Key"),
    ],
)
def test_keys_that_flink_refuses_are_refused(
    people: DataFrame, tmp_path: Path, key: str, error: type[StateError], message: str
) -> None:
    column = {"StringArray": "ARRAY(name)", "Enum<com.acme.Color>(RED)": "'RED'"}.get(key, "STRUCT(name)")
    state = total(people, columns={"state_key": column, "value": "total"})
    with pytest.raises(error, match=message):
        bootstrap(str(tmp_path / "new"), [NewOperator("people", [state], key=key, parallelism=2)])


def test_keys_of_a_class_take_its_hash(people: DataFrame, tmp_path: Path) -> None:
    state = total(people, columns={"state_key": "STRUCT(name)", "value": "total"})
    new = NewOperator(
        "people",
        [state],
        key="Pojo<com.acme.Key>(name: String)",
        parallelism=2,
        hashes={"com.acme.Key": "objects(name)"},
    )
    result = bootstrap(str(tmp_path / "new"), [new])
    assert {row["state_key"]["name"] for row in rows(result, "total")} == {f"näme {i}" for i in range(KEYS)}


def test_words_that_are_no_choice_are_refused(people: DataFrame, tmp_path: Path) -> None:
    new = NewOperator("people", [total(people)], parallelism=1)
    for choice in ({"format": "parquet"}, {"files": "move"}, {"format": "keep"}):
        with pytest.raises(UsageError, match="Choose"):
            bootstrap(str(tmp_path / "new"), [new], **choice)  # type: ignore[arg-type]


def test_names_that_are_used_twice_are_refused(people: DataFrame, tmp_path: Path) -> None:
    new = NewOperator("people", [total(people), total(people)], parallelism=2)
    with pytest.raises(UsageError, match="two states have this name"):
        bootstrap(str(tmp_path / "new"), [new])
    with pytest.raises(UsageError, match="a keyed state and an operator state have this name"):
        NewOperator("people", [total(people), NewState("total", people, "UNION")], parallelism=2)
    new = NewOperator("people", [total(people)], parallelism=2)
    with pytest.raises(UsageError, match=r"described twice.*Hash collision"):
        bootstrap(str(tmp_path / "new"), [new, new])


def test_numbers_that_contradict_are_refused(people: DataFrame, tmp_path: Path) -> None:
    base = str(orders().path)
    for change, message in (
        ({"max_parallelism": 64}, "max parallelism 128 in the base"),
        ({"key": "Long"}, "keys are"),
    ):
        with pytest.raises(UsageError, match=message):
            bootstrap(str(tmp_path / "new"), [NewOperator("orders", [total(people)], **change)], base=base)
    with pytest.raises(UsageError, match="parallelism of 9"):
        bootstrap(str(tmp_path / "new"), [NewOperator("x", [total(people)], parallelism=9, max_parallelism=8)])
    with pytest.raises(UsageError, match="parallelism is not known"):
        bootstrap(str(tmp_path / "new"), [NewOperator("x", [total(people)])])


def test_rows_that_are_lost_before_they_are_encoded_are_seen(
    people: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(encodings: Any, batches: Any) -> Any:
        return write_together(encodings, ([rows[0], *(each.slice(1) for each in rows[1:])] for rows in batches))

    monkeypatch.setattr(bootstrap_run, "write_together", lose)
    states = [total(people), total(people, name="other")]
    with pytest.raises(ProofError, match=r"input rows; after 298 entries; expected 300 entries .*state other"):
        bootstrap(str(tmp_path / "new"), [NewOperator("people", states, parallelism=2)])
    assert not (tmp_path / "new").exists()


def test_the_states_of_one_table_are_written_in_one_pass(people: DataFrame, tmp_path: Path) -> None:
    read = people.sparkSession.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    rows_read = people.repartition(2).mapInArrow(count, people.schema)
    states = [total(rows_read), total(rows_read, name="age", columns={"state_key": "id", "value": "age"})]
    others = [NewState("last", people.where("age = 5"), columns={"state_key": "id", "value": "name"})]
    operators = [NewOperator("people", [*states, *others], parallelism=2), NewOperator("more", states, parallelism=1)]
    result = bootstrap(str(tmp_path / "new"), operators)
    assert read.value == KEYS
    for uid in ("people", "more"):
        assert {row["state_key"]: row["value"] for row in rows(result, "age", uid)} == {
            f"key-{i}": i for i in range(KEYS)
        }
    assert [(row["state_key"], row["value"]) for row in rows(result, "last")] == [("key-5", "näme 5")]


def test_a_table_without_rows_is_a_state_without_entries(people: DataFrame, tmp_path: Path) -> None:
    none = people.where("age < 0")
    states = [total(people), total(none, name="none"), NewState("list", none, "UNION", columns={"value": "age"})]
    result = bootstrap(str(tmp_path / "new"), [NewOperator("people", states, parallelism=2)])
    assert result.entries == {("people", "total"): KEYS, ("people", "none"): 0, ("people", "list"): 0}


def test_a_proof_that_fails_publishes_nothing(
    people: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = bootstrapping._read_keyed

    def forget(*arguments: Any) -> Any:
        found = read(*arguments)
        for known in found.values():
            known.sums.pop(min(known.sums))
        return found

    monkeypatch.setattr(bootstrapping, "_read_keyed", forget)
    with pytest.raises(ProofError, match="row_counts_per_key_group"):
        bootstrap(str(tmp_path / "new"), [NewOperator("people", [total(people)], parallelism=2)])
    assert not (tmp_path / "new").exists()
