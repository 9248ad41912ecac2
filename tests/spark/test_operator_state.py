"""List and broadcast state that Flink wrote, migrated; several states in one run, since a run takes seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from state_pipelines.errors import FormatError, MigrationError, UsageError
from state_pipelines.metadata.checkpoint import SubtaskState
from state_pipelines.metadata.handles import ByteStreamStateHandle, OperatorStreamStateHandle
from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import Direction, Migration, parse_migration
from state_pipelines.operatorstate import OperatorHeader, write_operator_file
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.state_meta_info import broadcast_state
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot.operator_state import NonKeyedState
from state_pipelines.spark import MigrationResult, migrate
from tests.snapshot.built import build_snapshot, list_operator, operator
from tests.snapshot.savepoints import types

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.spark

UID = "operator-states"
IMPOSSIBLE = {"impossible": "it is not needed"}
INT, LONG, STRING = basic("Int"), basic("Long"), basic("String")


def change(
    state: str | None, upgrade: list[Any], downgrade: Any = None, uid: str = UID, **entries: Any
) -> dict[str, Any]:
    content = {"operator": uid, "upgrade": upgrade, "downgrade": downgrade or IMPOSSIBLE, **entries}
    return content if state is None else {**content, "state": state}


def make(*changes: dict[str, Any], **entries: Any) -> Migration:
    return parse_migration({"revision": "1", "changes": list(changes), **entries})


CHANGES = make(
    change(
        "split",
        [{"rename": {"age": "years"}}, {"cast": {"field": "years", "to": "Long"}}, {"drop": {"field": "tags"}}],
        [
            {"add": {"field": "tags", "type": "StringArray", "default": None}},
            {"cast": {"field": "years", "to": "Int"}},
            {"rename": {"years": "age"}},
        ],
        loss=[{"field": "tags", "reason": "nobody reads them"}],
        expect=[{"type": "expect_column_values_to_not_be_null", "column": "value.id"}],
    ),
    change(
        "union",
        [{"cast": {"field": "f1", "to": "Long"}}, {"rename_state": "rows"}],
        [{"rename_state": "union"}, {"cast": {"field": "f1", "to": "Int"}}],
    ),
    change(
        "empty",
        [{"convert": {"to": "Long", "expression": "CAST(value AS BIGINT)"}}],
        [{"convert": {"to": "String", "expression": "CAST(value AS STRING)"}}],
    ),
    change(
        "persons",
        [{"set": {"field": "id", "expression": "id + map_key"}}, {"rename": {"home.region": "area"}}],
        [{"rename": {"home.area": "region"}}, {"set": {"field": "id", "expression": "id - map_key"}}],
    ),
)


def state_of(snapshot: Snapshot, name: str) -> NonKeyedState:
    found = snapshot.operator(UID).state(name)
    assert isinstance(found, NonKeyedState)
    return found


def rows(snapshot: Snapshot, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = state_of(snapshot, name).to_arrow().to_pylist()
    return found


def stored(snapshot: Snapshot, name: str) -> list[list[bytes]]:
    """The bytes of the elements of every subtask."""
    found = []
    for subtask_state in state_of(snapshot, name).subtask_states:
        data, starts, ends = subtask_state.elements()
        found.append([data[start:end].tobytes() for start, end in zip(starts, ends, strict=True)])
    return found


def entries(snapshot: Snapshot) -> list[str]:
    return sorted(map(str, dump(snapshot, operator=UID)))


@pytest.fixture(scope="module", params=[("2.2", "heap-snappy"), ("1.20", "heap")], ids="-".join)
def old(request: pytest.FixtureRequest) -> Snapshot:
    return types(*request.param).open()


@pytest.fixture(scope="module")
def up(spark: SparkSession, old: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> MigrationResult:
    return migrate(old, CHANGES, str(tmp_path_factory.mktemp("up") / "new"))


def test_the_run_is_proven(up: MigrationResult) -> None:
    assert up.proof is not None
    assert up.proof.ok
    assert up.proof.rows == 12 + 12 + 8
    checks = {each.name: each for each in up.proof.checks}
    assert "nobody reads them" in checks["round_trip"].description
    written, returned = (
        dict(each.split(": ", 1) for each in checks[name].observed.removeprefix("equal in every subtask: ").split("; "))
        for name in ("written_reads_back", "round_trip")
    )
    assert "years" in written["split"].split(", ")
    assert "id" in returned["persons"].split(", ")
    assert checks["own_expectations"].ok


def test_elements_change_in_their_places(old: Snapshot, up: MigrationResult) -> None:
    before, after = rows(old, "split"), rows(up.snapshot, "split")
    assert len(after) == 12
    for one, other in zip(before, after, strict=True):
        assert (one["subtask"], one["list_index"]) == (other["subtask"], other["list_index"])
        person = {**one["value"], "years": one["value"]["age"]}
        assert other["value"] == {name: value for name, value in person.items() if name not in ("age", "tags")}


def test_union_lists_keep_their_mode(old: Snapshot, up: MigrationResult) -> None:
    assert state_of(up.snapshot, "rows").kind == "UNION"
    assert "f1: Long" in describe(state_of(up.snapshot, "rows").serializer)
    assert rows(up.snapshot, "rows") == rows(old, "union")


def test_empty_lists_get_the_new_serializer(up: MigrationResult) -> None:
    assert describe(state_of(up.snapshot, "empty").serializer) == "Long"
    assert rows(up.snapshot, "empty") == []


def test_every_subtask_gets_the_same_copy(old: Snapshot, up: MigrationResult) -> None:
    subtask_states = state_of(up.snapshot, "persons").subtask_states
    data = [subtask_state.entries() for subtask_state in subtask_states]
    copies = {bytes_[start:end].tobytes() for bytes_, start, end, _ in data}
    assert [count for *_, count in data] == [4, 4]
    assert len(copies) == 1
    before = {(each["subtask"], each["map_key"]): each["map_value"] for each in rows(old, "persons")}
    for each in rows(up.snapshot, "persons"):
        was = before[each["subtask"], each["map_key"]]
        home = was["home"] and {"number": was["home"]["number"], "area": was["home"]["region"]}
        assert each["map_value"] == {**was, "id": was["id"] + each["map_key"], "home": home}


def test_what_does_not_change_stays_as_bytes(old: Snapshot, up: MigrationResult) -> None:
    def copies(snapshot: Snapshot) -> list[bytes]:
        found = [subtask_state.entries() for subtask_state in state_of(snapshot, "names").subtask_states]
        return [data[start:end].tobytes() for data, start, end, _ in found]

    assert copies(up.snapshot) == copies(old)


def test_the_files_stay_compressed_and_the_handles_name_every_state(old: Snapshot, up: MigrationResult) -> None:
    for before, after in zip(
        state_of(old, "names").subtask_states, state_of(up.snapshot, "names").subtask_states, strict=True
    ):
        assert after.unread.header.compressed == before.unread.header.compressed
        olds = {each.state_name: (each.mode, len(each.offsets)) for each in before.unread.handle.states}
        news = {each.state_name: (each.mode, len(each.offsets)) for each in after.unread.handle.states}
        assert news == {"rows" if name == "union" else name: mode for name, mode in olds.items()}


def test_taking_it_back_gives_the_old_entries(
    spark: SparkSession, old: Snapshot, up: MigrationResult, tmp_path: Path
) -> None:
    down = migrate(up.snapshot, CHANGES, str(tmp_path / "old"), direction=Direction.DOWNGRADE, prove=False)
    olds = rows(old, "split")
    assert [{**each, "value": {**each["value"], "tags": None}} for each in olds] == [
        {**each, "value": {**each["value"], "tags": None}} for each in rows(down.snapshot, "split")
    ]
    for name in ("union", "persons", "names", "empty"):
        assert rows(down.snapshot, name) == rows(old, name)
    assert stored(down.snapshot, "union") == stored(old, "union")


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    index = batch.schema.get_field_index("value")
    return batch.set_column(index, "value", pc.multiply(batch.column(index), 2))


def test_elements_are_left_out_doubled_and_split(spark: SparkSession, tmp_path: Path) -> None:
    encoded = [[number.to_bytes(8, "big") for number in numbers] for numbers in ([1, 2, 3, 4], [], [5, 6])]
    made = list_operator("op", "list", *encoded, serializer=LONG)
    old = build_snapshot(tmp_path / "old", made, uids=["op"])
    odd = {"filter": {"keep": "value % 2 = 0", "reason": "odd"}}
    changes = make(
        change(
            "list",
            [
                odd,
                {"filter": {"keep": "list_index < 1", "reason": "the first is enough"}},
                {"python": {"function": double, "deterministic": True}},
            ],
            uid="op",
        )
    )
    result = migrate(old, changes, str(tmp_path / "new"))
    assert result.snapshot.operator("op").state("list").to_arrow().to_pylist() == [
        {"subtask": 0, "list_index": 0, "value": 4},
        {"subtask": 2, "list_index": 0, "value": 12},
    ]
    assert result.proof is not None
    assert "the first is enough; odd" in result.proof.checks[0].description
    parts = {
        "first": {"type": "Int", "expression": "CAST(value AS INT)"},
        "second": {"type": "Long", "expression": "-value"},
    }
    split = migrate(
        old, make(change("list", [{"split": {"into": parts}}], uid="op")), str(tmp_path / "split"), prove=False
    )
    assert split.snapshot.operator("op").state("first").to_arrow()["value"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert split.snapshot.operator("op").state("second").to_arrow()["value"].to_pylist() == [-1, -2, -3, -4, -5, -6]


def copy_of(*pairs: tuple[int, int]) -> OperatorStreamStateHandle:
    header = OperatorHeader(broadcasts=(broadcast_state("rules", INT, LONG),))
    data = b"".join(key.to_bytes(4, "big") + value.to_bytes(8, "big") for key, value in pairs)
    raw, states = write_operator_file(header, {}, {"rules": (len(pairs), data)})
    return OperatorStreamStateHandle(states, ByteStreamStateHandle(f"copy {pairs}", raw))


def with_copies(directory: Path, *copies: OperatorStreamStateHandle) -> Snapshot:
    subtasks = (SubtaskState(index, managed_operator_state=each) for index, each in enumerate(copies))
    return build_snapshot(directory, operator("op", *subtasks), uids=["op"])


ADDED = change("rules", [{"convert": {"to": "Long", "expression": "value + map_key"}}], uid="op")


def test_the_order_of_copies_does_not_matter_but_their_entries_do(spark: SparkSession, tmp_path: Path) -> None:
    same = with_copies(tmp_path / "old", copy_of((1, 2), (3, 4)), copy_of((3, 4), (1, 2)))
    result = migrate(same, make(ADDED), str(tmp_path / "new"))
    after = result.snapshot.operator("op").state("rules").to_arrow().to_pylist()
    assert [(each["subtask"], each["map_key"], each["map_value"]) for each in after] == [
        (subtask, *pair) for subtask in (0, 1) for pair in ((1, 3), (3, 7))
    ]
    differing = with_copies(tmp_path / "old", copy_of((1, 2), (3, 4)), copy_of((1, 2), (3, 5)))
    with pytest.raises(UsageError, match="subtasks 0 and 1 hold different copies") as caught:
        migrate(differing, make(ADDED), str(tmp_path / "refused"))
    assert caught.value.where.state == "rules"
    assert not (tmp_path / "refused").exists()


def test_a_copy_that_no_handle_names_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    unnamed = replace(copy_of((9, 9)), states=())
    old = with_copies(tmp_path / "old", unnamed, copy_of((1, 2)))
    with pytest.raises(FormatError, match="a broadcast state that its handle does not name"):
        migrate(old, make(ADDED), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_an_operator_without_states_has_no_handle_left(spark: SparkSession, tmp_path: Path) -> None:
    gone = make(change("rules", [{"drop_state": {"reason": "nobody reads it"}}], uid="op"))
    result = migrate(with_copies(tmp_path / "old", copy_of((1, 2))), gone, str(tmp_path / "new"), prove=False)
    (subtask,) = result.snapshot.operator("op").metadata.subtasks
    assert subtask.managed_operator_state is None


def test_values_that_do_not_fit_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    narrow = make(change("rules", [{"convert": {"to": "Byte", "expression": "CAST(value AS TINYINT)"}}], uid="op"))
    with pytest.raises(MigrationError, match="OVERFLOW"):
        migrate(with_copies(tmp_path / "old", copy_of((1, 1 << 40))), narrow, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
