"""Rows of new states from Parquet files that differ, are empty, or are damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from state_pipelines.errors import FormatError, ProofError, StateError, UsageError
from state_pipelines.operations.bootstrap.bootstrap import BootstrapPlan, plan_bootstrap
from state_pipelines.operations.bootstrap.new_states import NewOperator, NewState
from state_pipelines.operations.bootstrap.parquet_rows import ParquetFiles, ParquetRows, RowGroups
from state_pipelines.operations.local_processes import run_tasks
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.storage import resolve

if TYPE_CHECKING:
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
