from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import state_pipelines as sp
from state_pipelines.errors import NotFoundError, UsageError
from state_pipelines.keyed.state_table import RecordEncoder
from state_pipelines.metadata import SubtaskState, write_metadata
from state_pipelines.metadata.checkpoint import MasterState, SavepointFormatType, make_savepoint_properties
from state_pipelines.metadata.handles import ByteStreamStateHandle, KeyGroupRange, OperatorStreamStateHandle
from state_pipelines.operations.diff import Presence, SnapshotDiff, StateDiff, diff
from state_pipelines.operations.diff.diff_report import ContentsDiff, ExampleKind
from state_pipelines.operations.local_processes import Processes
from state_pipelines.operations.rescale.rescale_request import parse_request
from state_pipelines.operations.write.savepoint_plan import EncodedStates, plan_savepoint
from state_pipelines.operations.write.spills import write_state_spill
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.operatorstate import OperatorHeader, write_operator_file
from state_pipelines.serializers.build import basic, list_of
from state_pipelines.serializers.state_meta_info import broadcast_state
from state_pipelines.serializers.tree import Kryo
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import resolve
from tests.operations.one_state import OneState
from tests.snapshot.built import build_snapshot, list_operator, operator, write_raw_keyed, write_raw_operator
from tests.snapshot.savepoints import orders
from tests.snapshots import OWN, Case, select

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.snapshot import Snapshot

STRING, LONG = basic("String"), basic("Long")
TOTALS = OneState("totals", "total", "VALUE", key=STRING, value=LONG, parallelism=2)


def find(name: str) -> Case:
    (case,) = (each for each in select("2.2", name) if each in OWN)
    return case


def write(target: Path, table: pa.Table, description: OneState, base: Snapshot | None = None) -> Snapshot:
    """A savepoint with the rows of a table in one state, beside what the base has."""
    plan = plan_savepoint(base, [description.description])
    layout = plan.operators[0].layouts[description.name]
    with SnapshotTransaction(resolve(str(target))) as transaction, TemporaryDirectory() as directory:
        encoder = RecordEncoder(layout, description.name)
        spill = write_state_spill(encoder, table.to_batches(), resolve(str(Path(directory, "part"))))
        plan.write(transaction, EncodedStates({(description.operator, description.name): (spill,)}))
        transaction.commit()
    return sp.open_snapshot(str(target), uids=[description.operator])


def write_totals(target: Path, totals: Mapping[str, int], **changes: object) -> Snapshot:
    table = pa.table({"state_key": pa.array([*totals], pa.string()), "value": pa.array([*totals.values()], pa.int64())})
    return write(target, table, replace(TOTALS, **changes))  # type: ignore[arg-type]


def state_of(report: SnapshotDiff, name: str) -> StateDiff:
    (state,) = (state for each in report.operators for state in each.states if state.name == name)
    return state


def contents_of(report: SnapshotDiff, name: str = "total") -> ContentsDiff:
    contents = state_of(report, name).contents
    assert contents is not None
    return contents


def counts_of(contents: ContentsDiff) -> tuple[int | None, int | None, int | None]:
    return contents.only_in_one, contents.only_in_other, contents.changed


def differing_properties(report: SnapshotDiff) -> dict[str, tuple[object, object]]:
    properties = [found for each in report.operators for found in each.properties]
    return {each.name: (each.one, each.other) for each in properties if each.counts and each.differs}


@pytest.mark.slow
@pytest.mark.parametrize("release", ["1.20", "2.2"])
@pytest.mark.parametrize("format", ["canonical", "heap", "rocksdb"])
def test_another_format_makes_no_difference(release: str, format: str, tmp_path: Path) -> None:
    sp.convert(orders(release).open(), str(tmp_path / "new"), format=format)
    report = sp.diff(orders(release).open(), str(tmp_path / "new"))
    assert report.same
    assert report.same_contents
    assert report.summary == "the same"
    assert contents_of(report, "order").one == contents_of(report, "order").other
    assert counts_of(contents_of(report, "prices")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rocksdb-full", "rocksdb-file-merging"),
        ("rocksdb-full", "heap-checkpoint"),
        ("rocksdb-heap-timers", "forst"),
        ("changelog-heap-files", "changelog-rocksdb-memory"),
        ("changelog-heap-materialized", "changelog-rocksdb-materialized"),
        ("unaligned", "unaligned"),
        ("finished", "finished"),
    ],
)
def test_snapshots_of_flink_in_different_formats(one: str, other: str) -> None:
    report = diff(find(one).open_told(), find(other).open_told())
    assert [state.name for each in report.operators for state in each.states if not state.same] == []
    assert report.same


def test_the_same_null_in_other_bytes_is_told() -> None:
    contents = contents_of(diff(find("changelog-heap-files").open(), find("heap-checkpoint").open()), "map")
    assert counts_of(contents) == (0, 0, 2)
    assert {each.note for each in contents.examples} == {"the same value in other bytes"}


@pytest.mark.slow
@pytest.mark.parametrize("other", ["heap-native", "rocksdb-snappy", "rocksdb"])
def test_runs_of_the_same_job_differ_in_times_of_access_only(other: str) -> None:
    report = diff(find("heap").open_told(), find(other).open_told())
    differing = [(each, state) for each in report.operators for state in each.states if not state.same]
    # A null timestamp cannot be restored from the heap format, so that the job writes none for it.
    others = {"null-tuple"} if other == "heap-native" else set()
    assert {state.name for each, state in differing if each.label != "ttl-states"} == others
    assert all(state.contents is not None and state.contents.same is False for _, state in differing)


@pytest.mark.slow
def test_subclasses_that_were_met_are_shown_and_do_not_count() -> None:
    state = state_of(diff(find("heap").open_told(), find("rocksdb-snappy").open_told()), "person-or-guest")
    (found,) = (each for each in state.properties if each.differs)
    assert (found.name, found.counts) == ("value", False)
    assert state.same


def test_another_parallelism_leaves_the_contents(tmp_path: Path) -> None:
    sp.rescale(orders().open(), str(tmp_path / "new"), parallelism=3)
    report = sp.diff(orders().open(), str(tmp_path / "new"))
    assert not report.same
    assert report.same_contents
    assert set(differing_properties(report)) == {"parallelism"}
    assert report.summary == "different: 6 of 6 operators"


def test_another_max_parallelism_is_compared_without_key_groups(tmp_path: Path) -> None:
    sp.rescale(orders().open(), str(tmp_path / "new"), max_parallelism=1024)
    report = sp.diff(orders().open(), str(tmp_path / "new"))
    assert report.same_contents
    assert differing_properties(report) == {"max parallelism": (128, 1024)}
    contents = contents_of(report, "order")
    assert "the max parallelism differs" in contents.note
    assert (contents.same, contents.key_groups, contents.changed) == (True, None, None)


def test_another_max_parallelism_and_other_records(tmp_path: Path) -> None:
    one = write_totals(tmp_path / "one", {"a": 1})
    other = write_totals(tmp_path / "other", {"a": 2}, max_parallelism=1024)
    contents = contents_of(diff(one, other))
    assert (contents.same, contents.examples) == (False, ())


@pytest.mark.slow
def test_states_and_operators_that_are_gone(tmp_path: Path) -> None:
    request = parse_request({"operators": {"orders": {"drop_states": ["history"]}, "pricing": {"drop": True}}})
    sp.rescale(orders().open(), str(tmp_path / "new"), request)
    report = sp.diff(orders().open(), str(tmp_path / "new"))
    operators = {each.label: each.presence for each in report.operators if not each.same}
    assert operators == {"orders": Presence.BOTH, "pricing": Presence.ONE}
    history = state_of(report, "history")
    assert history.presence is Presence.ONE
    assert history.kind == "LIST"
    assert history.contents is not None
    assert history.contents.one is not None
    assert history.contents.one.records > 0
    assert history.contents.other is None
    back = diff(sp.open_snapshot(str(tmp_path / "new")), orders().open())
    assert state_of(back, "history").presence is Presence.OTHER
    assert not report.same_contents


def test_values_and_keys_that_changed(tmp_path: Path) -> None:
    one = write_totals(tmp_path / "one", {"a": 1, "b": 2, "gone": 3})
    other = write_totals(tmp_path / "other", {"a": 1, "b": 7, "new": 4})
    contents = contents_of(diff(one, other))
    assert counts_of(contents) == (1, 1, 1)
    found = {each.kind: (each.key["state_key"], each.one, each.other) for each in contents.examples}
    assert found == {
        ExampleKind.CHANGED: ("b", {"value": 2}, {"value": 7}),
        ExampleKind.ONE: ("gone", {"value": 3}, None),
        ExampleKind.OTHER: ("new", None, {"value": 4}),
    }
    assert contents.key_groups == len({each.key["key_group"] for each in contents.examples})


def test_one_state_of_many_changed(tmp_path: Path) -> None:
    base = orders().open()
    state = base.operator("orders").state("quantities")
    table = state.to_arrow()
    write(tmp_path / "new", table.slice(5), OneState("orders", "quantities"), base)
    report = diff(base, sp.open_snapshot(str(tmp_path / "new")), limit=3)
    assert {each.label for each in report.operators if not each.same} == {"orders"}
    contents = contents_of(report, "quantities")
    assert counts_of(contents) == (5, 0, 0)
    assert len(contents.examples) == 3
    for each in contents.examples:
        assert set(each.key) == {"key_group", "state_key", "map_key"}
        assert set(each.one or {}) == {"map_value"}


@pytest.mark.parametrize("limit", [0, 2, 100])
def test_examples_are_limited(tmp_path: Path, limit: int) -> None:
    one = write_totals(tmp_path / "one", {f"key-{each}": each for each in range(40)})
    other = write_totals(tmp_path / "other", {f"key-{each}": each + 1 for each in range(20)})
    contents = contents_of(diff(one, other, limit=limit))
    assert counts_of(contents) == (20, 0, 20)
    assert len(contents.examples) == min(limit, 40)


def test_examples_show_every_sort(tmp_path: Path) -> None:
    one = write_totals(tmp_path / "one", {f"key-{each}": each for each in range(50)})
    other = write_totals(tmp_path / "other", {f"key-{each}": -each for each in range(1, 49)} | {"x": 1})
    kinds = [each.kind for each in contents_of(diff(one, other, limit=4)).examples]
    assert set(kinds) == set(ExampleKind)
    assert len(kinds) == 4


@pytest.mark.slow
@settings(max_examples=25)
@given(
    one=st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 3), max_size=12),
    other=st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 3), max_size=12),
)
def test_what_is_told_is_what_was_changed(one: dict[str, int], other: dict[str, int]) -> None:
    with TemporaryDirectory() as directory:
        snapshots = [
            write_totals(Path(directory, name), each | {"always": 0}) for name, each in (("one", one), ("other", other))
        ]
        report = diff(*snapshots, limit=100)
        contents = contents_of(report)
        expected = {
            key: (one.get(key), other.get(key)) for key in one.keys() | other.keys() if one.get(key) != other.get(key)
        }
        found = {
            each.key["state_key"]: tuple(None if side is None else side["value"] for side in (each.one, each.other))
            for each in contents.examples
        }
        assert found == expected
        assert report.same is (not expected)
        assert counts_of(contents) == (
            len(one.keys() - other),
            len(other.keys() - one),
            sum(key in one and key in other for key in expected),
        )


def test_another_serializer_is_not_compared(tmp_path: Path) -> None:
    base = orders().open()
    rows = base.operator("orders").state("order").to_arrow().select(["key_group", "state_key"])
    table = rows.append_column("value", pa.array(range(rows.num_rows), pa.int64()))
    other = write(tmp_path / "new", table, OneState("orders", "order", value=LONG), base)
    report = diff(base, other)
    state = state_of(report, "order")
    assert not state.same
    (found,) = (each for each in state.properties if each.differs)
    assert (found.name, found.counts, found.other) == ("value", True, "Long")
    assert state.contents is not None
    assert (state.contents.same, state.contents.note) == (None, "not compared: the value serializer differs")
    assert (state.contents.one or state.contents.other) is not None
    assert "1 of them not compared" in report.summary


def test_other_keys_are_not_compared(tmp_path: Path) -> None:
    one = write_totals(tmp_path / "one", {"1": 1})
    table = pa.table({"state_key": pa.array([1], pa.int64()), "value": pa.array([1], pa.int64())})
    other = write(tmp_path / "other", table, replace(TOTALS, key=LONG))
    contents = contents_of(diff(one, other))
    assert (contents.same, contents.note) == (None, "not compared: the key serializer differs")


def test_another_kind_with_the_same_bytes_is_compared(tmp_path: Path) -> None:
    one = write_totals(tmp_path / "one", {"a": 1})
    report = diff(one, write_totals(tmp_path / "other", {"a": 1}, state_type="REDUCING"))
    assert contents_of(report).same
    assert not state_of(report, "total").same
    assert report.same_contents


def test_a_list_is_no_value_of_a_list(tmp_path: Path) -> None:
    values = pa.array([[1, 2]], pa.list_(pa.int64()))
    table = pa.table({"state_key": ["a"], "value": values})
    one = write(tmp_path / "one", table, replace(TOTALS, value=list_of(LONG)))
    rows = pa.table({"state_key": ["a", "a"], "list_index": pa.array([0, 1], pa.int32()), "list_value": [1, 2]})
    other = write(tmp_path / "other", rows, replace(TOTALS, value=list_of(LONG), state_type="LIST"))
    assert contents_of(diff(one, other)).same is None


def test_kryo_of_another_release_is_not_compared_silently() -> None:
    report = diff(orders("1.20").open(), orders("2.2").open())
    assert {found.name for found in report.properties if found.counts and found.differs} == {"Kryo version"}
    assert {state.name for each in report.operators for state in each.states if not state.same} == {"last-seen"}


def test_metadata_only_reads_no_records(tmp_path: Path) -> None:
    one = write_totals(tmp_path / "one", {"a": 1})
    report = diff(one, write_totals(tmp_path / "other", {"a": 2}), metadata_only=True)
    assert report.same
    assert report.same_contents is None
    assert state_of(report, "total").contents is None
    assert report.summary == "the same, contents not compared"


def test_metadata_only_tells_other_serializers(tmp_path: Path) -> None:
    one = write_totals(tmp_path / "one", {"a": 1})
    table = pa.table({"state_key": ["a"], "value": ["x"]})
    other = write(tmp_path / "other", table, replace(TOTALS, value=STRING))
    report = diff(one, other, metadata_only=True)
    assert not report.same
    assert contents_of(report).note == "not compared: the value serializer differs"


def test_one_operator_and_one_state(tmp_path: Path) -> None:
    sp.rescale(orders().open(), str(tmp_path / "new"), parallelism=3)
    new = sp.open_snapshot(str(tmp_path / "new"))
    report = diff(orders().open(), new, operator="pricing")
    assert [each.label for each in report.operators] == ["pricing"]
    assert not report.same
    report = diff(orders().open(), new, operator="orders", state="history")
    assert [state.name for each in report.operators for state in each.states] == ["history"]
    assert report.same


def test_what_neither_has_is_told() -> None:
    with pytest.raises(NotFoundError, match="no operator nobody"):
        diff(orders().open(), orders().open(), operator="nobody")
    with pytest.raises(NotFoundError, match="neither snapshot has a state nothing"):
        diff(orders().open(), orders().open(), state="nothing")
    with pytest.raises(UsageError, match="-1 examples"):
        diff(orders().open(), orders().open(), limit=-1)


def built(directory: Path, *operators: object, **more: object) -> Snapshot:
    directory.mkdir()
    return build_snapshot(directory, *operators, uids=["source"], **more)  # type: ignore[arg-type]


def lists(directory: Path, *elements: list[bytes], coordinator: bytes | None = None) -> Snapshot:
    framed = [[len(each).to_bytes(4, "big") + each for each in subtask] for subtask in elements]
    return built(directory, list_operator("source", "offsets", *framed, coordinator=coordinator))


def test_elements_of_list_state_count_wherever_they_lie(tmp_path: Path) -> None:
    one = lists(tmp_path / "one", [b"a", b"b"], [b"c"])
    report = diff(one, lists(tmp_path / "other", [b"c", b"a"], [b"b"]))
    assert report.same
    assert counts_of(contents_of(report, "offsets")) == (0, 0, 0)


def test_elements_that_come_more_often(tmp_path: Path) -> None:
    one = lists(tmp_path / "one", [b"a", b"a", b"b"], [b"c"])
    contents = contents_of(diff(one, lists(tmp_path / "other", [b"a", b"b"], [b"d"])), "offsets")
    assert counts_of(contents) == (2, 1, 0)
    assert [(each.kind, each.key, each.one, each.other) for each in contents.examples if each.other] == [
        (ExampleKind.OTHER, {}, None, {"value": b"d".hex()})
    ]


def test_state_of_coordinators_counts(tmp_path: Path) -> None:
    one = lists(tmp_path / "one", [b"a"], coordinator=b"12")
    report = diff(one, lists(tmp_path / "other", [b"a"], coordinator=b"13"))
    assert [*differing_properties(report)] == ["coordinator state"]
    assert report.same_contents


def broadcast(pairs: dict[str, int]) -> OperatorStreamStateHandle:
    data = b"".join(
        bytes([len(key) + 1]) + key.encode() + value.to_bytes(8, "big", signed=True) for key, value in pairs.items()
    )
    header = OperatorHeader(broadcasts=(broadcast_state("rules", STRING, LONG),))
    raw, states = write_operator_file(header, {}, {"rules": (len(pairs), data)})
    return OperatorStreamStateHandle(states, ByteStreamStateHandle("rules", raw))


def broadcasts(directory: Path, *copies: dict[str, int]) -> Snapshot:
    subtasks = (SubtaskState(index, managed_operator_state=broadcast(each)) for index, each in enumerate(copies))
    return built(directory, operator("source", *subtasks))


def test_a_copy_of_broadcast_state_is_compared_by_key(tmp_path: Path) -> None:
    one = broadcasts(tmp_path / "one", *[{"a": 1, "b": 2, "c": 3}] * 2)
    contents = contents_of(diff(one, broadcasts(tmp_path / "other", *[{"b": 5, "a": 1}] * 3)), "rules")
    assert counts_of(contents) == (1, 0, 1)
    found = {each.kind: (each.key, each.one, each.other) for each in contents.examples}
    assert found == {
        ExampleKind.CHANGED: ({"map_key": "b"}, {"map_value": 2}, {"map_value": 5}),
        ExampleKind.ONE: ({"map_key": "c"}, {"map_value": 3}, None),
    }
    assert contents.one is not None
    assert contents.one.records == 3


def test_broadcast_state_in_another_order_is_the_same(tmp_path: Path) -> None:
    one = broadcasts(tmp_path / "one", {"a": 1, "b": 2})
    contents = contents_of(diff(one, broadcasts(tmp_path / "other", {"b": 2, "a": 1})), "rules")
    assert contents.same


def test_different_copies_are_told(tmp_path: Path) -> None:
    one = broadcasts(tmp_path / "one", {"a": 1}, {"a": 2})
    contents = contents_of(diff(one, broadcasts(tmp_path / "other", {"a": 1}, {"a": 1})), "rules")
    assert (contents.same, contents.changed) == (False, None)
    assert "different copies" in contents.note


def test_raw_state_is_compared_as_bytes(tmp_path: Path) -> None:
    def raw(name: str, section: bytes, partition: bytes) -> Snapshot:
        keyed = write_raw_keyed({3: b"three", 5: section}, KeyGroupRange(0, 128))
        subtask = SubtaskState(0, raw_keyed_state=keyed, raw_operator_state=write_raw_operator([partition]))
        return built(tmp_path / name, operator("source", subtask))

    report = diff(raw("one", b"five", b"x"), raw("other", b"FIVE", b"x"))
    assert counts_of(contents_of(report, "_raw_keyed_state")) == (0, 0, 1)
    assert contents_of(report, "_raw_keyed_state").examples[0].key == {"key_group": 5}
    assert contents_of(report, "_raw_operator_state").same


def test_elements_nobody_can_decode_are_compared_as_they_are(tmp_path: Path) -> None:
    serializer = Kryo(type_class="com.acme.Secret")
    # A class by its name, and fields that nothing describes.
    head = b"\x01\x00com.acme.Secre\xf4\x01"
    one, other = (
        built(tmp_path / name, list_operator("source", "secrets", elements, serializer=serializer))
        for name, elements in (("one", [head + b"abc", head + b"def"]), ("other", [head + b"abc", head + b"xyz"]))
    )
    contents = contents_of(diff(one, other), "secrets")
    assert (contents.same, contents.only_in_one, contents.only_in_other) == (False, 1, 1)


def test_states_of_the_job_master_count(tmp_path: Path) -> None:
    one, other = (
        built(tmp_path / name, masters=(MasterState("hook", 1, payload),))
        for name, payload in (("one", b"a"), ("other", b"b"))
    )
    report = diff(one, other)
    assert report.summary == "different: the snapshot itself"


def test_the_report_as_json(tmp_path: Path) -> None:
    one = write_totals(tmp_path / "one", {"a": 1})
    told = diff(one, write_totals(tmp_path / "other", {"a": 2})).to_json()
    assert (told["same"], told["same_contents"]) == (False, False)


@pytest.mark.slow
def test_neither_spark_nor_dagster_is_imported() -> None:
    code = "import sys, state_pipelines.operations.diff; print({'pyspark', 'dagster'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.slow
def test_records_and_operator_state_are_compared_in_processes_too(tmp_path: Path) -> None:
    base = orders().open()
    table = base.operator("orders").state("quantities").to_arrow()
    write(tmp_path / "new", table.slice(5), OneState("orders", "quantities"), base)
    sp.convert(str(tmp_path / "new"), str(tmp_path / "heap"), format="heap")
    with Processes(5) as shared:  # More than threads share such work.
        report = diff(base, sp.open_snapshot(str(tmp_path / "heap")), run=shared.run)
    assert counts_of(contents_of(report, "quantities")) == (5, 0, 0)
    assert len(contents_of(report, "quantities").examples) == 5
    assert contents_of(report, "prices").same


def test_a_newer_version_of_the_metadata_alone_is_no_difference(tmp_path: Path) -> None:
    old = build_snapshot(tmp_path / "old", list_operator("source", "elements", [b"\0\0\0\1a"]))
    (tmp_path / "new").mkdir()
    metadata = replace(old.metadata, version=4, properties=make_savepoint_properties(SavepointFormatType.CANONICAL))
    (tmp_path / "new" / "_metadata").write_bytes(write_metadata(metadata))
    report = diff(old, open_snapshot(str(tmp_path / "new")))
    assert {found.name for found in report.properties if found.differs} >= {"metadata version"}
    assert report.same
