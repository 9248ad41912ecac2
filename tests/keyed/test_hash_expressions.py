from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.errors import UsageError
from state_pipelines.keyed.hashing import hash_codes, parse_hash_expression
from state_pipelines.serializers.build import basic, pojo

PLACE = pojo(
    "com.acme.Place",
    {
        "region": basic("String"),
        "number": basic("Int"),
        "id": basic("Long"),
        "flag": basic("Boolean"),
        "weight": basic("Float"),
        "from": basic("Int"),
        "parts": basic("IntPrimitiveArray"),
    },
)
ROW = {"region": "a", "number": 7, "id": -1, "flag": True, "weight": -0.0, "from": 3, "parts": [1, 2]}
TYPE = pa.struct(
    [
        ("region", pa.string()),
        ("number", pa.int32()),
        ("id", pa.int64()),
        ("flag", pa.bool_()),
        ("weight", pa.float32()),
        ("from", pa.int32()),
        ("parts", pa.list_(pa.int32())),
    ]
)
A = 97
MINUS_ZERO = -(1 << 31)


def wrap(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def evaluate(text: str, **changes: object) -> int:
    array = pa.array([ROW | changes], TYPE)
    expressions = {"com.acme.Place": parse_hash_expression(text)}
    return int(hash_codes(PLACE, array, expressions=expressions)[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("objects(region, number)", (31 + A) * 31 + 7),
        ("record(region, number)", A * 31 + 7),
        ("kotlin(region, parts)", A * 31 + (31 + 1) * 31 + 2),
        ("ide(region, flag)", A * 31 + 1),
        ("ide(weight, region)", A),
        ("record(weight, region)", MINUS_ZERO * 31 + A),
        ("lombok(number, flag, region)", ((59 + 7) * 59 + 79) * 59 + A),
        ("lombok(boxed(flag))", 59 + 1231),
        ("commons(17, 37, flag)", 17 * 37),
        ("commons(17, 37, boxed(flag))", 17 * 37 + 1231),
        ("autovalue(region, number)", (1000003 ^ A) * 1000003 ^ 7),
        ("immutables(region, number)", (5381 * 33 + A) * 33 + 7),
        ("chain(7, 53, region, number)", (7 * 53 + A) * 53 + 7),
        ("idechain(7, 53, region, flag)", (7 * 53 + A) * 53 + 1),
        ("objects(region, record(number, region))", (31 + A) * 31 + 7 * 31 + A),
        ("objects('from')", 31 + 3),
        ("hash(flag)", 1231),
        ("bit(flag)", 1),
        ("hash(id)", 0),
        ("int(id)", -1),
        ("zero(weight)", 0),
        ("array(parts)", (31 + 1) * 31 + 2),
        ("31 * hash(region) + hash(number)", 31 * A + 7),
        ("hash(region) ^ hash(number)", A ^ 7),
        ("hash(region) & hash(number) | 8", A & 7 | 8),
        ("~hash(region) - hash(number)", ~A - 7),
        ("-hash(region) >> 2", -A >> 2),
        ("ushr(-hash(region), 28)", 15),
        ("hash(region) << 33", A << 1),
    ],
)
def test_an_expression_computes_what_java_does(text: str, expected: int) -> None:
    assert evaluate(text) == wrap(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("objects(region)", 31), ("lombok(region)", 59 + 43), ("lombok(boxed(flag), region)", (59 + 1231) * 59 + 43)],
)
def test_null_counts_as_the_pattern_says(text: str, expected: int) -> None:
    assert evaluate(text, region=None) == expected


def test_numbers_wrap_at_32_bits() -> None:
    assert evaluate("2147483647 * hash(region) + 0xFFFFFFFF") == wrap(0x7FFFFFFF * A - 1)


def test_scala_from_2_13_on_mixes_in_the_name_of_the_class() -> None:
    assert evaluate("scala212(region)") != evaluate("scala213(region)")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("objects( region,number )", "objects(region, number)"),
        ("objects('region', \"from\")", "objects(region, 'from')"),
        ("31*hash(a)+hash(b)", "(31 * hash(a)) + hash(b)"),
        ("31 * a + b", "(31 * hash(a)) + hash(b)"),
        ("a * (b + c)", "hash(a) * (hash(b) + hash(c))"),
        ("a - -3", "hash(a) - (-3)"),
        ("chain(0x11, 31, a)", "chain(17, 31, a)"),
        ("ushr(a, 3)", "ushr(a, 3)"),
        ("objects(lombok(a, b), c)", "objects(lombok(a, b), c)"),
        ("avro()", "avro()"),
    ],
)
def test_the_text_is_canonical(text: str, canonical: str) -> None:
    expression = parse_hash_expression(text)
    assert str(expression) == canonical
    assert str(parse_hash_expression(canonical)) == canonical


names = st.sampled_from(["region", "number", "'from'", "id"])
terms = st.recursive(
    names.map(lambda name: f"hash({name})") | st.integers(-(1 << 31), (1 << 31) - 1).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "^", "&", "|", "<<", ">>"]), inner).map(
            lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"
        ),
        st.tuples(inner, inner).map(lambda parts: f"ushr({parts[0]}, {parts[1]})"),
        st.tuples(st.sampled_from(["objects", "record", "autovalue"]), names, inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
        ),
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(terms.filter(lambda text: any(name in text for name in ("region", "number", "from", "id"))))
def test_the_canonical_text_means_the_same(text: str) -> None:
    again = str(parse_hash_expression(text))
    assert str(parse_hash_expression(again)) == again
    with np.errstate(over="ignore"):
        assert evaluate(again) == evaluate(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "objects(",
        "objects()",
        "sha(a)",
        "a.b",
        "a[0]",
        "__import__('os')",
        "lambda: a",
        "a / b",
        "a ** 2",
        "1.5 * a",
        "True + a",
        "99999999999 * a",
        "17",
        "chain(a, 31, b)",
        "chain(17, 31)",
        "objects(*a)",
        "objects(a, b=c)",
        "hash(a + b)",
        "ushr(a)",
        "avro(a)",
        "a if b else c",
        "a >>> 3",
    ],
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_hash_expression(text)


def test_javas_unsigned_shift_is_explained() -> None:
    with pytest.raises(UsageError, match=r"Write x >>> n as ushr\(x, n\)"):
        parse_hash_expression("hash(a) >>> 3")


def test_deep_and_long_expressions_are_refused() -> None:
    with pytest.raises(UsageError, match="nested too deeply"):
        parse_hash_expression("objects(" * 50 + "a" + ")" * 50)
    with pytest.raises(UsageError, match="too long"):
        parse_hash_expression("a + " * 2000 + "a")


def test_an_unknown_field_is_told_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"has no field zip\. Its fields are flag, from"):
        evaluate("objects(zip)")


def test_fields_are_named_once() -> None:
    assert parse_hash_expression("objects(a, b) ^ hash(a)").fields == ("a", "b")
