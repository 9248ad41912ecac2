"""Big numbers between their bytes and the text of `BigDecimal.toString`."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.java_stream import (
    JavaArray,
    JavaClassData,
    JavaClassDesc,
    JavaFieldDesc,
    JavaObject,
    JavaString,
)
from state_pipelines.codecs import beam
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.java import MAX_BYTES, TypedValue, java_value, twos_complement
from state_pipelines.codecs.json import value_json
from state_pipelines.codecs.kryo.values import LEAVES_5
from state_pipelines.codecs.programs import compile_layout, decode_spans, encode_array
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.errors import UnsupportedError, ValueRangeError
from tests.codecs.kryo_graphs import varint

if TYPE_CHECKING:
    from collections.abc import Callable

INTEGER, DECIMAL = lay.BigInteger(), lay.BigDecimal()
SCALE_AND_DIGITS = LEAVES_5["java.math.BigDecimal"]


def text_of(layout: lay.Layout, data: bytes) -> str | None:
    array = decode_spans(
        compile_layout(layout), np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([len(data)])
    )
    text: str | None = array[0].as_py()
    return text


def bytes_of(layout: lay.Layout, text: str | pa.Scalar) -> str:
    return encode_array(compile_layout(layout), pa.array([text])).data.tobytes().hex()


@pytest.mark.parametrize(
    ("unscaled", "scale", "text"),
    [
        # The examples of the documentation of java.math.BigDecimal.toString.
        (123, 0, "123"),
        (-123, 0, "-123"),
        (123, -1, "1.23E+3"),
        (123, -3, "1.23E+5"),
        (123, 1, "12.3"),
        (123, 5, "0.00123"),
        (123, 10, "1.23E-8"),
        (-123, 12, "-1.23E-10"),
        (0, 2, "0.00"),
        (0, -2, "0E+2"),
        (0, 7, "0E-7"),
        (1, 2147483647, "1E-2147483647"),
        (1, -2147483648, "1E+2147483648"),
        (10**19, 1, "1000000000000000000.0"),
    ],
)
def test_decimal_has_the_text_of_java(unscaled: int, scale: int, text: str) -> None:
    raw = twos_complement(unscaled)
    data = (len(raw) + 4).to_bytes(4, "big") + raw + scale.to_bytes(4, "big", signed=True)
    assert text_of(DECIMAL, data) == text


@given(st.integers(-(1 << 2000), 1 << 2000))
@settings(deadline=None)
def test_integers_have_their_digits(number: int) -> None:
    raw = twos_complement(number)
    assert text_of(INTEGER, (len(raw) + 4).to_bytes(4, "big") + raw) == str(number)


@pytest.mark.slow
@given(st.decimals(allow_nan=False, allow_infinity=False))
@settings(deadline=None)
def test_text_of_decimals_is_read_as_python_reads_it(number: Decimal) -> None:
    writer = Writer()
    # Java has no negative zero.
    write_value(DECIMAL, writer, number if number else abs(number))
    assert bytes_of(DECIMAL, str(number)) == writer.getvalue().hex()


@pytest.mark.parametrize(
    ("layout", "text", "data"),
    [
        (INTEGER, "0", "00000001"),
        (INTEGER, "+1", "00000002"),
        (INTEGER, "10", "00000003"),
        (INTEGER, "0007", "0000000507"),
        (INTEGER, "-128", "0000000580"),
        (INTEGER, "128", "000000060080"),
        (INTEGER, "4294967296", "000000090100000000"),
        (INTEGER, None, "00000000"),
        (DECIMAL, "1.50", "00000006009600000002"),
        (DECIMAL, "1e3", "00000002fffffffd"),
        (DECIMAL, ".5", "000000050500000001"),
        (DECIMAL, None, "00000000"),
    ],
)
def test_text_is_written(layout: lay.Layout, text: str, data: str) -> None:
    assert bytes_of(layout, text) == data


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (INTEGER, ""),
        (INTEGER, "-"),
        (INTEGER, "1.0"),
        (INTEGER, "1e3"),
        (INTEGER, "12x"),
        (DECIMAL, "NaN"),
        (DECIMAL, "1.2.3"),
        (DECIMAL, "1e"),
        (DECIMAL, "1e-2147483648"),
        (DECIMAL, "9" * 10_001),
    ],
)
def test_what_is_no_number_is_refused(layout: lay.Layout, text: str) -> None:
    with pytest.raises(ValueRangeError, match=r"is not a (whole|decimal) number"):
        bytes_of(layout, text)


def test_decimals_of_arrow_are_taken() -> None:
    assert bytes_of(DECIMAL, Decimal("1.50")) == "00000006009600000002"


TOO_LONG = b"\x7f" * (MAX_BYTES + 1)
JAVA_INTEGER = JavaObject(
    JavaClassDesc(
        "java.math.BigInteger", 1, 2, (JavaFieldDesc("I", "signum"), JavaFieldDesc("[", "magnitude", JavaString("[B")))
    ),
    (JavaClassData((1, JavaArray(JavaClassDesc("[B", 1, 2), TOO_LONG))),),
)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda: text_of(INTEGER, (len(TOO_LONG) + 4).to_bytes(4, "big") + TOO_LONG), id="columns"),
        pytest.param(
            lambda: read_value(INTEGER, Reader((len(TOO_LONG) + 4).to_bytes(4, "big") + TOO_LONG)), id="BigInteger"
        ),
        pytest.param(
            lambda: read_value(DECIMAL, Reader((len(TOO_LONG) + 4).to_bytes(4, "big") + TOO_LONG + bytes(4))),
            id="BigDecimal",
        ),
        pytest.param(lambda: SCALE_AND_DIGITS.read(Reader(varint(len(TOO_LONG) + 1) + TOO_LONG + b"\0"), 5), id="Kryo"),
        pytest.param(lambda: java_value(JAVA_INTEGER), id="Java serialization"),
        pytest.param(lambda: read_value(beam.VarInteger(), Reader(varint(len(TOO_LONG)) + TOO_LONG)), id="Beam"),
    ],
)
def test_a_number_too_long_for_text_is_refused(read: Callable[[], object]) -> None:
    with pytest.raises(UnsupportedError, match="a number of 4,097 bytes is longer than the 4,096 bytes"):
        read()


def test_the_longest_number_goes_there_and_back() -> None:
    data = (MAX_BYTES + 4).to_bytes(4, "big") + TOO_LONG[1:]
    text = text_of(INTEGER, data)
    assert text is not None
    assert len(text) == 9_864
    assert bytes_of(INTEGER, text) == data.hex()


@pytest.mark.slow
def test_thousands_of_long_numbers_take_seconds() -> None:
    data = (MAX_BYTES + 4).to_bytes(4, "big") + TOO_LONG[1:]
    ends = len(data) * np.arange(1, 1001, dtype=np.int64)
    started = time.process_time()
    texts = decode_spans(compile_layout(INTEGER), np.frombuffer(data * 1000, np.uint8), ends - len(data), ends)
    shown = [value_json(TypedValue("java.math.BigInteger", read_value(INTEGER, Reader(data)))) for _ in range(1000)]
    assert time.process_time() - started < 10
    assert shown[0] == {"@bigint": texts[0].as_py()}
