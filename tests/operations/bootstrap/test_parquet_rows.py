"""Rows of new states from Parquet files that differ, are empty, or are damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from state_pipelines.errors import (
    FormatError,
    IncompatibleError,
    ProofError,
    StateError,
    StorageError,
    UsageError,
    ValueRangeError,
)
from state_pipelines.operations.bootstrap import parquet_rows
from state_pipelines.operations.bootstrap.bootstrap import BootstrapPlan, plan_bootstrap
from state_pipelines.operations.bootstrap.new_states import NewOperator, NewState
from state_pipelines.operations.bootstrap.parquet_rows import ParquetFiles, ParquetRows, RowGroups
from state_pipelines.operations.local_processes import run_tasks
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.storage import files as free_memory
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write(folder: Path, *tables: dict[str, Any]) -> ParquetFiles:
    folder.mkdir(exist_ok=True)
    for number, columns in enumerate(tables):
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", compression="snappy")
    return ParquetFiles(str(folder))


def bootstrap(tmp_path: Path, *states: NewState, operator: str = "o") -> dict[str, list[dict[str, Any]]]:
    """The rows of each state of a new savepoint, by its name."""
    target = resolve(str(tmp_path / "new"))
    plan = plan_bootstrap(target, [NewOperator(operator, states, parallelism=2)], ParquetRows(run_tasks))
    with SnapshotTransaction(target) as transaction:
        snapshot = plan.run(transaction).snapshot
    (found,) = snapshot.operators
    return {state.name: found.state(state.name).to_arrow().to_pylist() for state in states}


@pytest.mark.parametrize("kind", ["VALUE", "UNION"])
def test_numbers_of_several_widths_get_the_widest(tmp_path: Path, kind: str) -> None:
    narrow, wide = pa.array([1, 2], pa.int32()), pa.array([1 << 40], pa.int64())
    files = write(tmp_path / "in", {"state_key": ["a", "b"], "value": narrow}, {"state_key": ["c"], "value": wide})
    rows = bootstrap(tmp_path, NewState("s", files, kind))["s"]
    assert sorted(row["value"] for row in rows) == [1, 2, 1 << 40]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"subtask": [0]}, {}, "do not have the same columns"),
        ({}, {"subtask": [0]}, "do not have the same columns"),
        ({}, {"value": ["text"]}, "the types of the columns are not those of"),
    ],
    ids=["column only in the first", "column only in the second", "another type"],
)
def test_files_that_do_not_go_together_are_refused(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    files = write(tmp_path / "in", {"value": [1]} | first, {"value": [2]} | second)
    with pytest.raises(UsageError, match=message) as raised:
        bootstrap(tmp_path, NewState("s", files, "UNION"))
    assert "1.parquet" in str(raised.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("wrap", [lambda of: of, pa.list_], ids=["struct", "list of structs"])
@pytest.mark.parametrize("lacking", [0, 1])
def test_structs_of_other_fields_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrap: Any, lacking: int
) -> None:
    one, two = (pa.struct([(name, pa.int64()) for name in names]) for names in ("a", "ab"))
    kinds = [two, two]
    kinds[lacking] = one
    files = write(tmp_path / "in", *({"value": pa.nulls(1, wrap(kind))} for kind in kinds))
    monkeypatch.delattr(BootstrapPlan, "run")
    with pytest.raises(UsageError, match=r"not those of the other files: .* missing b") as raised:
        bootstrap(tmp_path, NewState("s", files, "UNION"))
    assert f"{lacking}.parquet" in str(raised.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["VALUE", "UNION"])
def test_rows_that_are_lost_while_they_are_read_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    files = write(tmp_path / "in", {"state_key": ["a", "b"], "value": [1, 2]})
    read = RowGroups.read
    monkeypatch.setattr(RowGroups, "read", lambda self: (batch.slice(1) for batch in read(self)))
    with pytest.raises(ProofError, match="input rows; after 1 entries; expected 2 entries"):
        bootstrap(tmp_path, NewState("s", files, kind))
    assert not (tmp_path / "new").exists()


def test_a_list_state_without_rows(tmp_path: Path) -> None:
    files = write(tmp_path / "in", {"value": pa.array([], pa.int64())})
    some = write(tmp_path / "some", {"value": [5]})
    assert bootstrap(tmp_path, NewState("s", files, "UNION"), NewState("t", some, "UNION"))["s"] == []


def test_damaged_pages_are_a_format_error(tmp_path: Path) -> None:
    files = write(tmp_path / "in", {"value": [f"text {number}" for number in range(5000)]})
    path = tmp_path / "in" / "0.parquet"
    content = bytearray(path.read_bytes())
    content[100 : len(content) // 2] = bytes(len(content) // 2 - 100)
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"0\.parquet"):
        bootstrap(tmp_path, NewState("s", files, "UNION"))


def test_two_fields_of_one_name_are_refused(tmp_path: Path) -> None:
    struct = pa.array([{"x": 1}], pa.struct([("x", pa.int64())]))
    files = write(tmp_path / "in", {"state_key": ["k"], "a": struct, "b": struct})
    with pytest.raises(UsageError, match="have one name"):
        bootstrap(tmp_path, NewState("s", files, columns={"value": ["a.x", "b.x"]}))
    named = NewState("s", files, columns={"value": {"f1": "a.x", "f0": "b.x"}}, type="Row(f0: Long, f1: Long)")
    assert bootstrap(tmp_path, named)["s"][0]["value"] == {"row_kind": "+I", "f0": 1, "f1": 1}


def test_a_type_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    files = write(tmp_path / "in", {"value": [1], "subtask": ["0"]})
    with pytest.raises(StateError, match=r"string does not fit.*at subtask"):
        bootstrap(tmp_path, NewState("s", files, "UNION"))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table([["k"], [1], [2]], names=["state_key", "value", "value"])
    pq.write_table(table, tmp_path / "in" / "0.parquet")
    files = ParquetFiles(str(tmp_path / "in"))
    with pytest.raises(UsageError, match=r"the file has 2 columns value .*0\.parquet.* state s"):
        bootstrap(tmp_path, NewState("s", files))
    struct = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    files = write(tmp_path / "in", {"state_key": ["k"], "pair": struct})
    with pytest.raises(UsageError, match=r"the file has 2 columns pair\.x"):
        bootstrap(tmp_path, NewState("s", files, columns={"value": "pair.x"}))


MAP = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("kind", "columns", "path"),
    [
        ("VALUE", {"value": pa.array([[], [("a", 1), ("b", 2), ("a", 3)]], MAP)}, "value"),
        ("VALUE", {"value": pa.array([[], [{"x": [("a", 1), ("a", 1)]}]], pa.list_(pa.struct([("x", MAP)])))}, "value"),
        ("VALUE", {"value": pa.array([[], [("o", [("a", 1), ("a", 1)])]], pa.map_(pa.string(), MAP))}, "value{value}"),
        ("LIST", {"value": pa.array([[[]], [[], [("a", 1), ("a", 2)]]], pa.list_(MAP))}, "value"),
        ("BROADCAST", {"map_key": [1, 2], "map_value": pa.array([[], [("a", 1), ("a", 2)]], MAP)}, "map_value"),
    ],
    ids=["map", "struct in a list", "map in a map", "list state", "broadcast"],
)
def test_a_map_with_a_key_twice_is_refused(tmp_path: Path, kind: str, columns: dict[str, Any], path: str) -> None:
    files = write(tmp_path / "in", {"state_key": ["k", "l"]} | columns)
    with pytest.raises(IncompatibleError, match="row 1 of row group 0: a map has the key 'a' twice") as raised:
        bootstrap(tmp_path, NewState("s", files, kind))
    where = raised.value.where
    assert (where.operator, where.state) == ("o", "s")
    assert "0.parquet" in str(where.file)
    assert str(where.path).startswith(path)
    assert not (tmp_path / "new").exists()


def test_a_map_in_a_list_state_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    files = write(tmp_path / "in", {"value": pa.array([[("a", 1), ("a", 1)]], MAP)})
    with pytest.raises(IncompatibleError, match="the key 'a' twice"):
        bootstrap(tmp_path, NewState("s", files, "SPLIT"))


def test_keys_that_java_distinguishes_are_taken(tmp_path: Path) -> None:
    pairs = pa.array([[(0.0, 1), (-0.0, 2)], [(0.0, 3)], None], pa.map_(pa.float64(), pa.int64()))
    files = write(tmp_path / "in", {"state_key": ["a", "b", "c"], "value": pairs})
    state = NewState("s", files, type="Nullable<Map<Double, Long>>")
    assert sorted(len(row["value"] or ()) for row in bootstrap(tmp_path, state)["s"]) == [0, 1, 2]


def test_errors_name_the_row_of_the_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "BATCH_ROWS", 2)
    (tmp_path / "in").mkdir()
    keys = ["a", "b", "c", "d", "e", "f", "g", None]
    table = pa.table({"state_key": keys, "value": range(8)})
    pq.write_table(table, tmp_path / "in" / "0.parquet", row_group_size=4)
    with pytest.raises(StateError, match=r"row 3 of row group 1 .*0\.parquet"):
        bootstrap(tmp_path, NewState("s", ParquetFiles(str(tmp_path / "in"))))


INTS = pa.array([1])


@pytest.mark.parametrize(
    ("state", "columns", "message"),
    [
        ({"kind": "LIST", "type": "List<Long>"}, {"value": INTS}, "int64 is no list"),
        ({"kind": "LIST", "type": "List<Long>"}, {"value": pa.array([[("a", 1)]], MAP)}, "is no list"),
        ({"type": "Map<String, Long>"}, {"value": pa.array([[1]])}, r"list<.*> does not fit map"),
        ({"type": "Map<String, Long>"}, {"value": pa.array([[{"k": "a"}]])}, r"list<.*> does not fit map"),
        (
            {"type": "Map<String, Long>"},
            {"value": pa.array([[{"k": "a", "v": 1, "w": 1}]])},
            r"list<.*> does not fit map",
        ),
        ({"kind": "SPLIT"}, {"value": INTS, "subtask": pa.array([{"x": 1}])}, "does not fit int64"),
        ({"kind": "SPLIT"}, {"value": INTS, "list_index": pa.array([[1]])}, "does not fit int64"),
    ],
)
def test_types_that_do_not_fit_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], columns: dict[str, Any], message: str
) -> None:
    files = write(tmp_path / "in", {"state_key": ["k"]} | columns)
    monkeypatch.delattr(BootstrapPlan, "run")
    with pytest.raises(ValueRangeError, match=message):
        bootstrap(tmp_path, NewState("s", files, **state))


def test_an_extension_type_is_what_it_is_stored_as(tmp_path: Path) -> None:
    files = write(tmp_path / "in", {"state_key": ["k"], "value": pa.array(["{}"], pa.json_())})
    assert bootstrap(tmp_path, NewState("s", files))["s"][0]["value"] == "{}"


@pytest.mark.parametrize(
    "state",
    [
        {"name": "n" * 70_000},
        {"name": "ä" * 40_000, "kind": "SPLIT"},
        {"name": "s", "type": f"Pojo<com.{'C' * 70_000}>(x: Long)"},
        {"name": "s", "kind": "BROADCAST", "key_type": f"Pojo<com.{'C' * 70_000}>(x: Long)"},
    ],
    ids=["keyed state", "list state", "class of a value", "class of a key"],
)
def test_names_that_headers_cannot_hold_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any]
) -> None:
    struct = pa.array([{"x": 1}])
    files = write(tmp_path / "in", dict.fromkeys(("value", "map_key", "map_value"), struct) | {"state_key": ["k"]})
    monkeypatch.delattr(BootstrapPlan, "run")
    with pytest.raises(ValueRangeError, match="too long for writeUTF") as raised:
        bootstrap(tmp_path, NewState(rows=files, **state))
    assert raised.value.where.state == state["name"][:80]


def test_a_class_of_the_keys_that_headers_cannot_hold_is_refused_before_anything_runs(tmp_path: Path) -> None:
    files = write(tmp_path / "in", {"state_key": pa.array([{"x": 1}]), "value": [1], "key_group": [0]})
    key = f"Pojo<com.{'C' * 70_000}>(x: Long)"
    operator = NewOperator("o", [NewState("s", files)], key=key, parallelism=1)
    with pytest.raises(ValueRangeError, match="too long for writeUTF"):
        plan_bootstrap(resolve(str(tmp_path / "new")), [operator], ParquetRows(run_tasks))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "BATCH_BYTES", 64 << 10)
    monkeypatch.setattr(parquet_rows, "MOST_ROW", 1 << 20)


TEXT = "x" * (40 << 10)
REPEATED = {
    "text": (pa.array([TEXT] * 2000), 1),
    "list": (pa.array([[TEXT, TEXT]] * 1000), 2),
    "struct": (pa.array([{"a": 1, "b": TEXT}] * 2000), 1),
    "map": (pa.array([[("k", TEXT)]] * 2000, pa.map_(pa.string(), pa.string())), 1),
}


def read_column(folder: Path, column: pa.Array, **options: Any) -> Iterator[pa.RecordBatch]:
    pq.write_table(pa.table({"value": column}), folder / "a.parquet", **options)
    schema = pa.schema([pa.field("value", column.type)])
    return RowGroups(((resolve(str(folder / "a.parquet")), 0),), (("value", "value"),), schema).read()


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("column", "texts"), REPEATED.values(), ids=REPEATED)
def test_texts_that_a_file_has_once_are_read_in_small_batches(tmp_path: Path, column: pa.Array, texts: int) -> None:
    before = pa.total_allocated_bytes()
    rows = 0
    for batch in read_column(tmp_path, column):
        assert batch.nbytes <= max(64 << 10, texts * len(TEXT) + 200)
        # Of 80 MB.
        assert pa.total_allocated_bytes() - before < 4 << 20
        assert batch.column(0).to_pylist() == column.slice(rows, len(batch)).to_pylist()
        rows += len(batch)
    assert rows == len(column)
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 20


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize(
    "column",
    [pa.array(["", "y" * (2 << 20), ""]), pa.array([["z" * 1000] * 2000]), pa.array(["y" * (2 << 20)] * 2)],
    ids=["text", "list", "equal texts"],
)
def test_a_row_that_is_too_large_is_refused(tmp_path: Path, column: pa.Array, dictionary: bool) -> None:
    with pytest.raises(ValueRangeError, match="MiB in the columns of the state, and a row may have 1 MiB"):
        list(read_column(tmp_path, column, use_dictionary=dictionary))


def test_pages_without_memory_for_them_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "CHECKED_FROM", 1 << 10)
    monkeypatch.setattr(free_memory, "measure_free_memory", lambda: 1 << 20)
    with pytest.raises(StorageError, match="are to be read at once"):
        list(read_column(tmp_path, pa.array(["y" * (2 << 20)] * 2)))
