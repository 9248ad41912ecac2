from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import StateError, UsageError
from state_pipelines.keyed.keys import KeyText, encode_keys
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.operations.dump import dump
from state_pipelines.operations.state_rows import to_rows
from tests.snapshots import RESCALING, select

if TYPE_CHECKING:
    from tests.snapshots import Case

STRING, LONG = lay.Text(), lay.Primitive(lay.PrimitiveKind.I64)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("order-1", b"\x08order-1"),
        ('"order-1"', b"\x08order-1"),
        ("42", b"\x0342"),
        ('"42"', b"\x0342"),
        ("null", b"\x05null"),
        ("[1]", b"\x04[1]"),
        ('"', b'\x02"'),
        (r'"\"a\""', b'\x04"a"'),
    ],
)
def test_text_is_the_key_where_keys_are_text(text: str, key: bytes) -> None:
    assert encode_keys(STRING, [KeyText(text)]) == [key]


def test_a_value_of_a_file_is_never_text_of_json() -> None:
    assert encode_keys(STRING, ['"a"']) == [b'\x04"a"']


def test_numbers_are_json() -> None:
    assert encode_keys(LONG, [KeyText("7"), KeyText("-1")]) == [b"\0" * 7 + b"\x07", b"\xff" * 8]


@pytest.mark.parametrize("text", ["seven", '"seven"', "{}", "[7]", "7.5"])
def test_what_is_no_key_of_the_type_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="key"):
        encode_keys(LONG, [KeyText(text)])


def test_bytes_are_hexadecimal() -> None:
    assert encode_keys(lay.Sized(), [KeyText('"0aff"'), {"@bytes": "0aff"}]) == [b"\0\0\0\x02\x0a\xff"] * 2


@pytest.mark.parametrize("text", ['"2025-01-31T12:00:00.250Z"', "1738324800250", '{"@juDate": 1738324800250}'])
def test_times_are_iso_text_or_milliseconds(text: str) -> None:
    (key,) = encode_keys(lay.Logical(lay.LogicalKind.DATE_MILLIS), [KeyText(text)])
    assert int.from_bytes(key) == 1738324800250


def test_what_a_time_cannot_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="not a whole number of ms"):
        encode_keys(lay.Logical(lay.LogicalKind.DATE_MILLIS), [KeyText('"2025-01-31T12:00:00.2505Z"')])


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="not a key of type struct"):
        encode_keys(lay.Struct((("id", LONG),)), [{"id": 1, "name": "x"}])


@pytest.mark.slow
@pytest.mark.parametrize("case", [*RESCALING, *select(kind="canonical")], ids=str)
def test_keys_are_found_as_dump_and_read_show_them(case: Case) -> None:
    looked = 0
    snapshot = case.open_told()
    for operator in snapshot.operators:
        for state in [each for each in operator.keyed_states if each.kind != "TIMER" and not each.undecoded]:
            for line in islice(dump(snapshot, operator=operator.label, state=state.name), 3):
                found = state.to_arrow(TableOptions(key=KeyText(json.dumps(line["key"])), flatten=False))
                assert {line["kg"]} == set(found["key_group"].to_pylist())
                (shown, *_) = [row["state_key"] for batch in found.to_batches() for row in to_rows(batch)]
                layout = derive_layout(state.key_serializer, snapshot.layout_context)
                assert encode_keys(layout, [shown]) == encode_keys(layout, [line["key"]])
                looked += 1
    assert looked


def test_a_key_of_arrow_itself_is_taken() -> None:
    assert encode_keys(STRING, [pa.scalar("a").as_py()]) == [b"\x02a"]
