"""Hash codes, against those that the JVM and Flink's own classes gave (`data/java_hash_codes.json`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from state_pipelines.codecs.programs import arrow_type
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import UnsupportedError, UsageError, ValueRangeError
from state_pipelines.keyed.canonical import open_canonical
from state_pipelines.keyed.hashing import hash_codes
from state_pipelines.keyed.hashing.hash_search import find_class_hashes
from state_pipelines.keyed.hashing.value_hashes import make_key_hasher
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.metadata.checkpoint import read_metadata
from state_pipelines.metadata.handles import KeyGroupsSavepointStateHandle
from state_pipelines.metadata.streams import open_stream
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import (
    basic,
    either,
    enum,
    generic_array,
    list_of,
    map_of,
    nullable,
    pojo,
    row,
    set_of,
    tuple_of,
)
from state_pipelines.serializers.state_meta_info import BackendStateType
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.serializers.tree import Serializer

GOLDEN = json.loads(Path(__file__).with_name("data").joinpath("java_hash_codes.json").read_text())

BASIC = [name for name in GOLDEN if name.isalnum() and name != "RowKind"]
STRING, INT, LONG, BOOLEAN = (basic(kind) for kind in ("String", "Int", "Long", "Boolean"))
STRINGS = list_of(STRING)
COMPOSITE: dict[str, Serializer] = {
    "Tuple3<String,Int,Long>": tuple_of(*map(nullable, (STRING, INT, LONG))),
    "Tuple1<Long>": tuple_of(LONG),
    "Tuple2<Tuple1<Int>,Boolean>": tuple_of(tuple_of(INT), BOOLEAN),
    "Row<String,Int,Long>": row(STRING, INT, LONG),
    "Row<Row<Int>,Tuple2<String,Int>>": row(row(INT), tuple_of(STRING, INT)),
    "Row<byte[]>": row(basic("BytePrimitiveArray")),
    "Row<int[]>": row(basic("IntPrimitiveArray")),
    "Row<long[]>": row(basic("LongPrimitiveArray")),
    "Row<boolean[]>": row(basic("BooleanPrimitiveArray")),
    "Row<double[]>": row(basic("DoublePrimitiveArray")),
    "Row<char[]>": row(basic("CharPrimitiveArray")),
    "Row<List<String>>": row(STRINGS),
    "Row<String[]>": row(basic("StringArray")),
    "Row<Integer[][]>": row(
        generic_array("[Ljava.lang.Integer;", generic_array("java.lang.Integer", INT)),
    ),
    "Row<Map<String,Int>>": row(map_of(STRING, INT)),
    "Row<Map<String,List<Int>>>": row(map_of(STRING, list_of(INT))),
    "Row<Set<String>>": row(set_of(STRING)),
    "List<String>": STRINGS,
    "Map<String,Int>": map_of(STRING, INT),
    "Set<String>": set_of(STRING),
    "Either<String,Long>": either(STRING, LONG),
}
PLACE = pojo("com.acme.Place", {"region": STRING, "number": INT})


def make_value(value: Any, target: pa.DataType) -> Any:
    """A value of the golden file in the form in which pyarrow takes it for `target`."""
    if value is None:
        return None
    if pa.types.is_binary(target):
        return bytes(value)
    if pa.types.is_map(target):
        return [(make_value(k, target.key_type), make_value(v, target.item_type)) for k, v in value]
    if pa.types.is_list(target):
        return [make_value(each, target.value_type) for each in value]
    if pa.types.is_struct(target):
        fields = [each for each in target if each.name != "row_kind"]
        values = value if isinstance(value, list) and len(value) == len(fields) else [value]
        made = {each.name: make_value(item, each.type) for each, item in zip(fields, values, strict=True)}
        return made | ({"row_kind": "+I"} if len(fields) < target.num_fields else {})
    return value


def make_array(serializer: Serializer, values: list[Any]) -> pa.Array:
    target = arrow_type(derive_layout(serializer, LayoutContext()))
    if pa.types.is_floating(target):
        # As their bits.
        width = target.bit_width // 8
        return pa.array(np.array(values, f"i{width}").view(f"f{width}"))
    if pa.types.is_temporal(target):
        width = pa.int32() if target.bit_width == 32 else pa.int64()
        return pa.array(values, width).cast(target)
    if isinstance(serializer, tree.Basic) and serializer.kind == "LocalDateTime":
        days, nanos = zip(*values, strict=True)
        children = [pa.array(days, pa.int32()).cast(pa.date32()), pa.array(nanos, pa.int64()).cast(pa.time64("ns"))]
        return pa.StructArray.from_arrays(children, fields=list(target))
    return pa.array([make_value(value, target) for value in values], target)


def golden(name: str) -> tuple[list[Any], list[int]]:
    values, codes = zip(*GOLDEN[name], strict=True)
    return list(values), list(codes)


def golden_keys(name: str) -> tuple[Serializer, pa.Array, list[int]]:
    """Serializer, keys and what Java's hash codes are."""
    serializer = COMPOSITE.get(name) or basic(name)
    values, codes = golden(name)
    if isinstance(serializer, tree.PositionalRow) and len(serializer.fields) == 1:
        values = [[value] for value in values]
    return serializer, make_array(serializer, values), codes


@pytest.mark.parametrize("name", [*BASIC, *COMPOSITE])
def test_keys_hash_as_in_java(name: str) -> None:
    serializer, keys, codes = golden_keys(name)
    assert hash_codes(serializer, keys).tolist() == codes


def test_every_golden_type_is_tested() -> None:
    others = {"RowKind", "Objects.hash(String,Int,Long)", "record(String,long,Boolean)"}
    rest = set(GOLDEN) - set(BASIC) - set(COMPOSITE) - others
    assert rest == {"key groups of 1, 3, 128, 1024, 32768"}


def test_the_kind_of_a_row_counts() -> None:
    kinds, codes = golden("RowKind")
    serializer = row(STRING, INT)
    target = arrow_type(derive_layout(serializer, LayoutContext()))
    array = pa.array([{"row_kind": kind, "f0": "a", "f1": 5} for kind in kinds], target)
    assert hash_codes(serializer, array).tolist() == codes


def test_bytes_of_pyflink_hash_from_the_last_to_the_first() -> None:
    array = pa.array([b"", b"\x01", b"\x01\xff\x03"], pa.binary())
    expected = [1, 32, ((31 + 3) * 31 - 1) * 31 + 1]
    assert hash_codes(basic("ByteArrayWrapper"), array).tolist() == expected


@pytest.mark.parametrize("kind", [*BASIC, "ByteArrayWrapper"])
def test_null_hashes_to_0(kind: str) -> None:
    target = arrow_type(derive_layout(basic(kind), LayoutContext()))
    assert hash_codes(nullable(basic(kind)), pa.nulls(2, target)).tolist() == [0, 0]


@pytest.mark.parametrize("name", [*BASIC, *COMPOSITE])
def test_keys_beside_nulls_keep_their_hash(name: str) -> None:
    serializer, keys, codes = golden_keys(name)
    with_nulls = pa.concat_arrays([keys, pa.nulls(1, keys.type), keys])
    assert hash_codes(serializer, with_nulls).tolist() == [*codes, 0, *codes]


@pytest.mark.parametrize("name", [*BASIC, *COMPOSITE])
def test_a_slice_of_keys_hashes_as_the_whole(name: str) -> None:
    serializer, keys, codes = golden_keys(name)
    assert hash_codes(serializer, keys.slice(1)).tolist() == codes[1:]


def test_a_slice_of_bytes_hashes_as_the_whole() -> None:
    array = pa.array([b"abc", b"", b"de", b"f"], pa.binary())
    wrapper = basic("ByteArrayWrapper")
    assert hash_codes(wrapper, array.slice(1, 2)).tolist() == hash_codes(wrapper, array).tolist()[1:3]


def test_no_keys_have_no_hashes() -> None:
    for serializer in (STRING, basic("BigDec"), basic("ByteArrayWrapper"), *COMPOSITE.values()):
        empty = pa.array([], arrow_type(derive_layout(serializer, LayoutContext())))
        codes = hash_codes(serializer, empty)
        assert len(codes) == 0
        assert codes.dtype == np.int32


def test_an_integer_of_another_width_is_cast() -> None:
    assert hash_codes(LONG, pa.array([-1], pa.int32())).tolist() == [0]


def test_an_integer_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueRangeError, match="does not fit int32"):
        hash_codes(INT, pa.array([1 << 40]))


def test_text_that_is_not_utf_8_is_an_error() -> None:
    array = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"a\xf0")]
    )
    with pytest.raises(ValueRangeError, match="string 0 is not UTF-8"):
        hash_codes(STRING, array)


def test_text_that_is_not_a_number_is_an_error() -> None:
    with pytest.raises(ValueRangeError, match="'1x' is not a number"):
        hash_codes(basic("BigDec"), pa.array(["1", "1x"]))


def test_an_array_without_the_fields_is_an_error() -> None:
    with pytest.raises(UsageError, match="lacks f1"):
        hash_codes(tuple_of(INT, INT), pa.array([{"f0": 1}]))
    with pytest.raises(UsageError, match="an array of int64 is not one of structs with f0"):
        hash_codes(tuple_of(INT), pa.array([1]))
    with pytest.raises(UsageError, match="an array of int64 is not one of lists or maps"):
        hash_codes(STRINGS, pa.array([1]))


def test_errors_name_the_path_to_the_field() -> None:
    keys = pa.array([{"f0": {"f0": "x"}}])
    with pytest.raises(ValueRangeError, match=r"string does not fit int32.*\[at f0\.f0\]"):
        hash_codes(tuple_of(tuple_of(INT)), keys)


def test_the_hash_of_a_pojo_must_be_given() -> None:
    with pytest.raises(UnsupportedError, match=r"hashCode of com\.acme\.Place .* Give its hash as an expression"):
        hash_codes(PLACE, pa.array([{"region": "a", "number": 1}]))


def test_a_given_hash_of_a_pojo_is_used_at_any_depth() -> None:
    places = pa.array([{"region": "a", "number": 7}, {"region": None, "number": -1}, None])
    hashes = {"com.acme.Place": lambda array: array.field("number").to_numpy(zero_copy_only=False).astype(np.int32)}
    codes = [7, -1, 0]
    assert hash_codes(PLACE, places, pojo_hashes=hashes).tolist() == codes
    tuples = pa.StructArray.from_arrays([places], ["f0"])
    assert hash_codes(tuple_of(PLACE), tuples, pojo_hashes=hashes).tolist() == codes


def test_a_given_hash_of_the_wrong_form_is_refused() -> None:
    with pytest.raises(UsageError, match=r"int64\[1\], not int32\[1\]"):
        hash_codes(
            PLACE,
            pa.array([{"region": "a", "number": 7}]),
            pojo_hashes={"com.acme.Place": lambda array: np.zeros(len(array), np.int64)},
        )


@pytest.mark.parametrize(
    "serializer",
    [
        enum("com.acme.Color", "RED"),
        basic("BytePrimitiveArray"),
        basic("StringArray"),
        generic_array("java.lang.Long", LONG),
    ],
    ids=["enum", "byte[]", "String[]", "Long[]"],
)
def test_what_hashes_by_identity_cannot_be_a_key(serializer: Serializer) -> None:
    array = pa.array([], arrow_type(derive_layout(serializer, LayoutContext())))
    with pytest.raises(UsageError, match=r"cannot be a key: .* differs from one JVM to the next"):
        hash_codes(serializer, array)
    with pytest.raises(UsageError, match=r"cannot be a key.*\[at f0\]"):
        hash_codes(tuple_of(serializer), pa.StructArray.from_arrays([array], ["f0"]))


def test_a_scala_case_class_is_not_hashed_as_a_tuple() -> None:
    case_class = tree.Tuple(
        snapshot_class="org.apache.flink.api.scala.typeutils.ScalaCaseClassSerializerSnapshot",
        tuple_class="com.acme.Key",
        fields=(INT,),
    )
    with pytest.raises(UnsupportedError, match=r"hashCode of com\.acme\.Key"):
        hash_codes(case_class, pa.array([{"f0": 1}]))


def test_other_types_are_not_covered() -> None:
    with pytest.raises(UnsupportedError, match="the hash codes of TimeWindow keys are not computed yet"):
        hash_codes(basic("TimeWindow"), pa.nulls(0))


ROOT = Path(__file__).resolve().parents[2]
FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")


def savepoints() -> list[Path]:
    own = [*ROOT.glob("tests/data/**/_metadata"), *ROOT.glob("examples/orders/savepoints/**/_metadata")]
    made = Path(FIXTURES).glob("made/*/*canonical/*/_metadata") if FIXTURES else []
    return sorted([*own, *made])


def stored_keys(path: Path) -> Iterator[tuple[Serializer, list[KeyedRecords], int]]:
    """Per subtask: key serializer, records of its states that are no timers, max parallelism."""
    for operator in read_metadata(path.read_bytes(), str(path)).operator_states:
        for subtask in operator.subtasks:
            handle = subtask.managed_keyed_state
            if not isinstance(handle, KeyGroupsSavepointStateHandle) or not any(handle.offsets):
                continue
            stream = open_stream(handle.delegate, resolve(str(path.parent)))
            context = RecordContext(operator.max_parallelism, LayoutContext())
            file = open_canonical(stream, handle.key_groups, handle.offsets, context)
            states = [
                number
                for number, info in enumerate(file.header.states)
                if info.backend_type is BackendStateType.KEY_VALUE
            ]
            records = [found for _, found in file.scan(states)]
            yield file.header.key_serializer, records, operator.max_parallelism


@pytest.mark.slow
@pytest.mark.parametrize("path", savepoints(), ids=lambda path: "-".join(path.parts[-5:-1]))
def test_keys_that_flink_wrote_hash_to_the_key_group_they_are_stored_in(path: Path) -> None:
    for serializer, records, max_parallelism in stored_keys(path):
        finding = find_class_hashes(serializer, LayoutContext(), records, max_parallelism)
        assert finding.proven or finding.keys < 8, finding.explain()
        if finding.proven:
            hasher = make_key_hasher(serializer, LayoutContext(), finding.expressions)
            for each in records:
                np.testing.assert_array_equal(hasher.assign_keys(each, max_parallelism), each.key_groups)


@pytest.mark.slow
@pytest.mark.skipif(not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink")
def test_there_are_keys_of_many_types() -> None:
    kinds = {type(serializer).__name__ for path in savepoints() for serializer, *_ in stored_keys(path)}
    assert kinds >= {"Basic", "Tuple", "Pojo", "RowData"}
