"""Savepoints of SQL jobs hold what the operators of the running job had; rows are compared by their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.codecs.binary_rows import BinaryRowValue, write_row
from state_pipelines.metadata import write_metadata
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.storage import read_file
from tests.conformance.test_snapshots import assert_same, content, dump_lines, iter_canonical, known
from tests.keyed.canonical_files import rewrite
from tests.snapshots import SQL, Case

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import RowData
    from tests.flink.harness import Entry

(CONFLICT,) = (case for case in SQL if case.case == "on-conflict")
MATERIALIZER = "3_upsert-materialize"


def buffer_of(case: Case) -> KeyedState:
    """The rows that the sink keeps until its watermark passes them."""
    state = case.open().operator(MATERIALIZER).state("watermark-buffer")
    assert isinstance(state, KeyedState)
    return state


def pack(value: Any, row: RowData) -> Any:
    """A row of a dump as its bytes, as the running job gives it."""
    match value:
        case {"@rowdata": fields, "@kind": kind}:
            return {"@rowdata": write_row(BinaryRowValue(kind, tuple(fields)), row.types[: len(fields)]).hex()}
        case list():
            return [pack(each, row) for each in value]
        case _:
            return value


def pack_entry(entry: Entry, row: RowData) -> Entry:
    return {name: pack(value, row) for name, value in entry.items()}


def test_every_entry_is_dumped() -> None:
    row = buffer_of(CONFLICT).info.value_serializer.nested[1].nested[0]
    lines = [pack_entry(each, row) for each in known(CONFLICT, dump_lines(CONFLICT))]  # type: ignore[arg-type]
    assert_same(CONFLICT.entries(), lines)


def test_map_keys_of_the_buffer_are_longs() -> None:
    assert describe(buffer_of(CONFLICT).info.value_serializer).startswith("Map<SortedLong, List<RowData(")
    table = buffer_of(CONFLICT).to_arrow()
    assert set(table.column("map_key").to_pylist()) == {-1500}
    assert {each["f0"] for value in table.column("map_value").to_pylist() for each in value} == {
        f"city-{number}" for number in range(5)
    }


@pytest.mark.parametrize("case", SQL, ids=str)
def test_metadata_is_written_byte_for_byte(case: Case) -> None:
    snapshot = case.open()
    assert write_metadata(snapshot.metadata) == read_file(snapshot.location.metadata)


@pytest.mark.parametrize("case", SQL, ids=str)
def test_files_are_written_byte_for_byte(case: Case) -> None:
    files = [*iter_canonical(case.open())]
    assert files
    for file in files:
        assert content(rewrite(file)) == content(file)
