from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars
import pyarrow as pa
import pytest

from state_pipelines.snapshot import open_snapshot
from tests.operations.comparing.test_diff import write_totals
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from state_pipelines.snapshot import State

TOTALS = {f"key-{number}": number for number in range(40)}


@pytest.fixture
def state(tmp_path: Path) -> State:
    snapshot = write_totals(tmp_path / "whole", TOTALS)
    return snapshot.operator("totals").state("total")


@pytest.fixture
def damaged(tmp_path: Path) -> State:
    """A state of two files, of which the second ends too early."""
    snapshot = write_totals(tmp_path / "damaged", TOTALS)
    file = Path(snapshot.operators[0].keyed_files[1][1].name)
    file.write_bytes(file.read_bytes()[:-20])
    return open_snapshot(snapshot.path, uids=["totals"]).operator("totals").state("total")


def test_a_state_becomes_a_pyarrow_table() -> None:
    order = orders().open().operator("orders").state("order")
    assert pa.table(order).equals(order.to_arrow())


def test_batches_are_read_when_they_are_asked_for(damaged: State) -> None:
    reader = pa.RecordBatchReader.from_stream(damaged)
    first = reader.read_next_batch()
    assert set(first.column("subtask").to_pylist()) == {0}
    with pytest.raises((pa.ArrowInvalid, OSError)):
        reader.read_all()


def test_an_error_while_reading_names_the_file(damaged: State) -> None:
    name = Path(damaged.subtask_states[1].file.name).name  # type: ignore[attr-defined]
    with pytest.raises((pa.ArrowInvalid, OSError), match=name):
        pa.table(damaged)


def test_a_requested_schema_changes_the_types(state: State) -> None:
    wanted = pa.schema(
        [each.with_type(pa.large_string()) if each.name == "state_key" else each for each in state.schema]
    )
    table = pa.table(state, schema=wanted)
    assert table.schema == wanted
    assert table.column("state_key").to_pylist() == state.to_arrow().column("state_key").to_pylist()


def test_a_requested_schema_with_other_columns_is_refused(state: State) -> None:
    capsule = pa.schema([("other", pa.int64())]).__arrow_c_schema__()
    with pytest.raises((pa.ArrowException, ValueError)):
        state.__arrow_c_stream__(capsule)


def test_polars_takes_a_state(state: State) -> None:
    frame = polars.DataFrame(state)
    assert dict(zip(frame["state_key"], frame["value"], strict=True)) == TOTALS


def test_duckdb_takes_a_state(state: State) -> None:
    found = duckdb.sql("select sum(value), count(*) from state")
    assert found is not None
    assert found.fetchall() == [(sum(TOTALS.values()), len(TOTALS))]
