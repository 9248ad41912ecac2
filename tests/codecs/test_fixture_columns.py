"""Columns of real snapshots against the values of the scalar codec, as JSON, and back to the same bytes."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.avro import AvroBranch, AvroEnum, AvroMap, AvroRecord
from state_pipelines.codecs.binary_rows import BinaryRowValue, TimestampValue
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.scalar import read_value
from state_pipelines.snapshot import open_snapshot
from state_pipelines.snapshot.keyed_state import KeyedState

if TYPE_CHECKING:
    from pathlib import Path

CASES = (
    "2.2.1/avro-hashmap-native",
    "2.2.1/avro-rocksdb-canonical",
    "2.2.1/sql-rocksdb-canonical",
    "1.20.5/sql-hashmap-canonical",
)
DECODED = (*CASES, "2.2.1/main-hashmap-canonical", "2.2.1/main-rocksdb-canonical", "2.2.1/compressed-hashmap-canonical")


def keyed_states(root: Path) -> list[KeyedState]:
    found = []
    for metadata in sorted(root.rglob("_metadata")):
        snapshot = open_snapshot(str(metadata.parent))
        found += [
            state for operator in snapshot.operators for state in operator.states if isinstance(state, KeyedState)
        ]
    return found


def reduced(value: Any, *, inside: bool = False) -> Any:
    """A value of either codec without its types: numbers, text, lists; rows inside rows have no kind."""

    def each(item: Any) -> Any:
        return reduced(item, inside=inside)

    match value:
        case BinaryRowValue():
            return [*([] if inside else [value.kind]), *(reduced(item, inside=True) for item in value.fields)]
        case TimestampValue():
            return value.millis * 1_000_000 + value.nano_of_milli
        case AvroRecord():
            return [each(item) for _, item in value.fields]
        case AvroMap():
            return [[key, each(item)] for key, item in value.entries]
        case AvroEnum():
            return value.symbol
        case AvroBranch():
            return each(value.value)
        case Decimal():
            return str(value)
        case bytes():
            return base64.b16encode(value).decode()
        case dict():
            return [each(item) for item in value.values()]
        case list() | tuple():
            return [each(item) for item in value]
        case _:
            return value


def arrow_values(array: pa.Array) -> Any:
    """Values of an array in the form of `reduced`."""
    of = array.type
    if pa.types.is_timestamp(of):
        scale = {"ms": 1_000_000, "us": 1000, "ns": 1}[of.unit]
        return [None if each is None else each * scale for each in array.cast(pa.int64()).to_pylist()]
    if pa.types.is_date32(of):
        return array.cast(pa.int32()).to_pylist()
    if pa.types.is_struct(of):
        if "case" in [each.name for each in of]:
            cases, fields = array.field("case").to_pylist(), [each.name for each in of]
            columns = {name: arrow_values(array.field(name)) for name in fields}
            return [columns[case][row] if case in columns else None for row, case in enumerate(cases)]
        children = [arrow_values(child) for child in array.flatten()]
        valid = array.is_valid().to_pylist()
        rows = [list(each) for each in zip(*children, strict=True)] if children else [[] for _ in valid]
        return [row if present else None for row, present in zip(rows, valid, strict=True)]
    if pa.types.is_list(of) or pa.types.is_map(of):
        entries = array.flatten() if pa.types.is_list(of) else None
        items = arrow_values(entries) if entries is not None else None
        if items is None:
            keys, values = arrow_values(array.keys), arrow_values(array.items)
            items = [list(each) for each in zip(keys, values, strict=True)]
        offsets = array.offsets.to_pylist()
        valid = array.is_valid().to_pylist()
        pairs = zip(offsets[:-1], offsets[1:], valid, strict=True)
        return [items[start:stop] if present else None for start, stop, present in pairs]
    return [reduced(each) for each in array.to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_columns_hold_what_the_scalar_codec_reads(fixtures: Path, case: str) -> None:
    compared = 0
    for state in keyed_states(fixtures / "made" / case):
        for layout, spans in ((state.layout.key, "key"), (state.layout.value, "value")):
            columns = plan_columns(layout)
            for subtask_state in state.subtask_states:
                for records in subtask_state.records():
                    starts, ends = getattr(records, f"{spans}_starts"), getattr(records, f"{spans}_ends")
                    array = columns.decode(records.data, starts, ends).array
                    raw = records.data.tobytes()
                    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
                    expected = [reduced(read_value(layout, Reader(raw, None, *each))) for each in bounds]
                    assert json.dumps(arrow_values(array)) == json.dumps(expected), f"{state.name} {spans}"
                    compared += len(expected)
    assert compared > 1000


@pytest.mark.parametrize("case", CASES)
def test_columns_are_written_back_byte_for_byte(fixtures: Path, case: str) -> None:
    for state in keyed_states(fixtures / "made" / case):
        columns = plan_columns(state.layout.value)
        for subtask_state in state.subtask_states:
            for records in subtask_state.records():
                starts, ends = records.value_starts, records.value_ends
                encoded = columns.encode(columns.decode(records.data, starts, ends).array)
                pairs = zip(starts.tolist(), ends.tolist(), strict=True)
                assert encoded.data.tobytes() == b"".join(records.data[start:end].tobytes() for start, end in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("case", DECODED)
def test_no_state_falls_back_to_raw_bytes(fixtures: Path, case: str) -> None:
    states = keyed_states(fixtures / "made" / case)
    assert states
    for state in states:
        assert state.undecoded == "", state.name
        table = state.to_arrow()
        if "reason" in table.schema.names:
            failed = np.asarray(table["reason"].is_valid())
            kept = np.asarray(table["value_bytes"].is_valid())
            assert np.array_equal(failed, kept), state.name
