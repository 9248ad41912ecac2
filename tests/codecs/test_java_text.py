"""Text as `DataOutput.writeUTF` writes it: the kernels and the scalar codec on the same bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.columns import KernelCodec, plan_columns
from state_pipelines.codecs.layout import JavaText, Optional, Primitive, PrimitiveKind, Struct
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.errors import FormatError, StateError, ValueRangeError

ENTRY = Struct((("name", JavaText()), ("count", Primitive(PrimitiveKind.I32))))
VECTORS = [
    ("0000", ""),
    ("0003 616263", "abc"),
    ("0002 c080", "\0"),
    ("0003 e282ac", "€"),
    ("0006 eda0bd edb880", "\N{GRINNING FACE}"),
    ("000c 61626364656667 c3a9 e282ac", "abcdefgé€"),
]


def decode(raw: bytes) -> list[object]:
    found = plan_columns(JavaText()).decode(np.frombuffer(raw, np.uint8), np.array([0]), np.array([len(raw)]))
    return list(found.array.to_pylist())


def test_the_kernels_run_it() -> None:
    assert isinstance(plan_columns(ENTRY), KernelCodec)


@pytest.mark.parametrize(("raw", "text"), VECTORS)
def test_bytes_are_decoded(raw: str, text: str) -> None:
    assert decode(bytes.fromhex(raw)) == [text]
    assert read_value(JavaText(), Reader(bytes.fromhex(raw))) == text


@pytest.mark.parametrize(("raw", "text"), VECTORS)
def test_text_is_encoded(raw: str, text: str) -> None:
    assert plan_columns(JavaText()).encode(pa.array([text])).data.tobytes() == bytes.fromhex(raw)


@pytest.mark.slow
@given(st.lists(st.tuples(st.text(), st.integers(-5, 5))))
def test_both_codecs_agree(rows: list[tuple[str, int]]) -> None:
    writer = Writer()
    values = [{"name": name, "count": count} for name, count in rows]
    stops = []
    for value in values:
        write_value(ENTRY, writer, value)
        stops.append(len(writer))
    raw, columns = writer.getvalue(), plan_columns(ENTRY)
    array, ends = columns.decode_sequence(np.frombuffer(raw, np.uint8), 0, len(raw), len(rows))
    assert (array.to_pylist(), ends.tolist()) == (values, stops)
    assert columns.encode(pa.array(values, columns.type)).data.tobytes() == raw


@pytest.mark.parametrize("raw", ["00", "0003 6162", "0001 80", "0002 c3", "0003 eda0bd", "0003 edb880", "0002 c181"])
def test_what_is_no_modified_utf8_is_refused(raw: str) -> None:
    with pytest.raises((FormatError, ValueRangeError)):
        decode(bytes.fromhex(raw))


def test_a_null_needs_a_flag() -> None:
    flagged = plan_columns(Optional(JavaText()))
    assert flagged.encode(pa.array([None, "a"], pa.string())).data.tobytes() == bytes.fromhex("01 00 0001 61")
    with pytest.raises(ValueRangeError):
        plan_columns(JavaText()).encode(pa.array([None], pa.string()))


def test_the_longest_text() -> None:
    columns = plan_columns(JavaText())
    assert len(columns.encode(pa.array(["a" * 65535])).data) == 65537
    with pytest.raises(StateError, match="65,535"):
        columns.encode(pa.array(["a" * 65536]))


def test_fields_that_nobody_asked_for_are_skipped() -> None:
    columns = plan_columns(ENTRY, frozenset({"count"}))
    raw = np.frombuffer(bytes.fromhex("0003 616263 00000007"), np.uint8)
    assert columns.decode(raw, np.array([0]), np.array([len(raw)])).array.to_pylist() == [{"count": 7}]
