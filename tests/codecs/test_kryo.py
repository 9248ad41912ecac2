"""Kryo graphs of both release lines: real bytes, field lists, and bytes that are no graph."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.java import (
    ArrayValue,
    BackReference,
    CollectionKind,
    CollectionValue,
    MapValue,
    ObjectValue,
    TypedValue,
    Undecoded,
    plain,
)
from state_pipelines.codecs.json import value_json
from state_pipelines.codecs.kryo import (
    FieldLists,
    Version,
    dump_classes,
    load_classes,
    parse_type,
    read_kryo,
    read_kryo_span,
    write_kryo,
)
from state_pipelines.codecs.kryo.classes import read_string, read_varlong, write_string, write_varlong
from state_pipelines.errors import FormatError, StateError, UnsupportedError, UsageError, ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.registry import read_snapshot
from tests.codecs.kryo_graphs import bit_set, byte_array, chain, double, nulls, repeat

HERE = Path(__file__).parent
FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
CLASSES = load_classes((HERE / "kryo_classes.yaml").read_text(encoding="utf-8"))
VECTORS = [
    line.split("\t") for line in (HERE / "kryo_vectors.tsv").read_text(encoding="utf-8").splitlines() if line[0] != "#"
]
LISTED = pytest.mark.parametrize(
    ("version", "type_class", "raw", "expected"),
    [pytest.param(int(version), *rest, id=f"{name}-{version}") for name, version, *rest in VECTORS],
)
# Kryo wrote a mention of the first one where Python cannot tell two texts of one character apart.
SHORT_TEXTS = ("twice", "enumlist")
WRITTEN = pytest.mark.parametrize(
    ("version", "type_class", "raw"),
    [
        pytest.param(int(version), type_class, raw, id=f"{name}-{version}")
        for name, version, type_class, raw, _ in VECTORS
        if name not in SHORT_TEXTS
    ],
)
BOTH = pytest.mark.parametrize("version", [2, 5])
SCHEMA = (
    '{"type":"record","name":"Name","namespace":"shop","fields":[{"name":"first","type":"string"},'
    '{"name":"last","type":"string"}]}'
)
ARRAY_LIST = "01006a6176612e7574696c2e41727261794c6973f401"


def serializer(type_class: str = "java.lang.Object", *others: str, kind: int = 0) -> tree.Kryo:
    registrations = []
    for name in (type_class, *others):
        writer = Writer()
        writer.utf(name)
        writer.i32(kind)
        if kind == 1:
            writer.utf("vec.OwnSerializer")
        registrations.append(tree.KryoRegistration(class_name=name, resolved=True, value=writer.getvalue()))
    return tree.Kryo(type_class=type_class, registrations=tuple(registrations))


def read(raw: str, version: int = 5, classes: FieldLists = CLASSES, of: tree.Kryo | None = None) -> object:
    reader = Reader(bytes.fromhex(raw))
    value = read_kryo(reader, of or serializer(), cast("Version", version), classes)
    reader.expect_end("the graph")
    return value


def write(value: object, version: int = 5, classes: FieldLists = CLASSES, of: tree.Kryo | None = None) -> str:
    writer = Writer()
    write_kryo(writer, of or serializer(), value, cast("Version", version), classes)
    return writer.getvalue().hex()


@LISTED
def test_bytes_of_flink_are_read(version: int, type_class: str, raw: str, expected: str) -> None:
    assert value_json(read(raw, version, of=serializer(type_class))) == json.loads(expected)


@WRITTEN
def test_bytes_of_flink_are_written_again(version: int, type_class: str, raw: str) -> None:
    assert write(read(raw, version, of=serializer(type_class)), version, of=serializer(type_class)) == raw


def test_the_end_of_a_graph_in_the_middle_is_found() -> None:
    reader = Reader(bytes.fromhex("030148617373ef" + "ffff"))
    assert (read_kryo(reader, serializer(), 5), reader.remaining) == ("Hasso", 2)


def test_ids_from_85_on_are_the_registrations_of_the_snapshot() -> None:
    of = serializer("java.util.List", "vec.Vec$Inner")
    assert read("580102018269", of=of) == ObjectValue("vec.Vec$Inner", (("n", 1), ("s", "i")))


@pytest.mark.parametrize(("version", "raw"), [(2, "0c0102018269"), (5, "0b0102018269")])
def test_registrations_follow_those_of_kryo_where_the_streaming_runtime_is_absent(version: int, raw: str) -> None:
    of = serializer("vec.Vec$Inner")
    assert read(raw, version, of=of) == ObjectValue("vec.Vec$Inner", (("n", 1), ("s", "i")))
    second = serializer("java.util.List", "vec.Vec$Inner")
    assert read(f"{int(raw[:2], 16) + 1:02x}{raw[2:]}", version, of=second) == read(raw, version, of=of)


def test_registering_a_known_class_takes_no_id() -> None:
    of = serializer("java.util.UUID", "vec.Vec$Inner")
    assert isinstance(read("570102018269", of=of), ObjectValue)


def test_value_of_kryo_2_is_written_for_kryo_5() -> None:
    value = read(ARRAY_LIST + "02030161b1030162b1", 2)
    assert write(value, 5) == ARRAY_LIST + "8303000161b10162b1"


def test_object_that_is_mentioned_twice_is_one_object() -> None:
    value = read(ARRAY_LIST + "0201017665632e56656324496e6e65f2010201826a010103", 2)
    assert isinstance(value, CollectionValue)
    assert value.items[0] is value.items[1]


def test_mention_of_an_enclosing_object_is_a_back_reference() -> None:
    assert read(ARRAY_LIST + "01010002", 2) == CollectionValue(
        "java.util.ArrayList", CollectionKind.LIST, (BackReference(0),)
    )


def test_plain_values_have_no_java_types() -> None:
    value = MapValue(
        "java.util.HashMap", (("k", CollectionValue("x", CollectionKind.LIST, (TypedValue("java.lang.Long", 5),))),)
    )
    assert plain(value) == [("k", [5])]


def test_plain_objects_are_dicts_with_their_class() -> None:
    assert plain(ObjectValue("a.B", (("x", 1),))) == {"class": "a.B", "x": 1}


@BOTH
def test_class_without_field_list_is_named(version: int) -> None:
    with pytest.raises(UnsupportedError, match=r"class a\.B .* its fields are not in the snapshot"):
        read("0100612ec20105", version)


def test_span_of_an_unknown_class_is_kept() -> None:
    raw = bytes.fromhex("0100612ec20105")
    value = read_kryo_span(Reader(raw), serializer("a.Base"), 5)
    assert isinstance(value, Undecoded)
    assert (value.class_name, value.raw) == ("a.B", raw)


def test_span_of_a_known_class_is_read() -> None:
    assert read_kryo_span(Reader(bytes.fromhex("020a")), serializer(), 5) == 5


def test_bytes_behind_a_span_are_an_error() -> None:
    with pytest.raises(FormatError, match="1 bytes are left over"):
        read_kryo_span(Reader(bytes.fromhex("020a00")), serializer(), 5)


def test_class_with_a_serializer_of_its_own_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"was written by vec\.OwnSerializer"):
        read("570102018269", of=serializer("vec.Vec$Inner", kind=1))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("20", "class id 30 is not registered"),
        ("0105", "class name 5 comes before name 0"),
        ("0109", "class name 9 comes before name 0"),
        ("0305", "back reference 3 leads to none of 0 objects"),
        ("0301", "1 byte expected but none is left"),
        ("030148", "2 bytes expected but only 1 are left"),
        ("0301a0", "a string of 31 characters does not fit"),
        (ARRAY_LIST + "6601", "a count of 101 does not fit"),
        (ARRAY_LIST + "00", "null where Kryo never writes null"),
        ("4c01ffffffff0f", "a BitSet of 4294967295 words does not fit"),
        ("01005bc901ffffffff0f", "does not fit"),
        ("01007665632e56656324506c6169ee09", "has no 8"),
    ],
)
def test_bytes_that_are_no_graph_are_refused(raw: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read(raw)


@BOTH
def test_depth_is_bounded(version: int) -> None:
    level = "01" + ("01" if version == 2 else "82")
    inner = "0100" + level if version == 2 else "010000" + level
    with pytest.raises(FormatError, match="deep"):
        read(ARRAY_LIST + level[2:] + inner * 300, version)


def test_few_bytes_do_not_stand_for_a_giant_tree() -> None:
    graph = ARRAY_LIST + "02" + "01000102" * 40 + "01000100" + "".join(f"0100{index:02x}" for index in range(43, 2, -1))
    with pytest.raises(UnsupportedError, match="unfolds to more than"):
        read(graph, 2)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(double(18), id="doubled"),
        pytest.param(nulls(900_000), id="nulls"),
        pytest.param(repeat(byte_array(b"x" * 100_000), 20_000), id="bytes"),
        pytest.param(repeat(bit_set(b"\xff" * 80_000), 2_000), id="bits"),
    ],
)
def test_values_that_unfold_are_limited_by_the_bytes_of_the_graph(graph: bytes) -> None:
    with pytest.raises(UnsupportedError, match="unfolds to more than"):
        read(graph.hex())


@pytest.mark.parametrize("content", [b"", b"x" * 200])
def test_an_object_that_is_mentioned_often_is_read(content: bytes) -> None:
    value = read(repeat(byte_array(content), 20_000).hex())
    assert isinstance(value, CollectionValue)
    assert value.items == (content,) * 20_001


def test_a_long_list_of_nulls_is_read() -> None:
    value = read(nulls(16_000).hex())
    assert isinstance(value, CollectionValue)
    assert value.items == (None,) * 16_000


def test_references_that_lead_too_deep_are_refused() -> None:
    assert value_json(read(chain(60).hex()))
    with pytest.raises(UnsupportedError, match="64 levels deep"):
        read(chain(70).hex())


@BOTH
@given(data=st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_state_error(version: int, data: bytes) -> None:
    of = serializer("vec.Vec$Refs", "vec.Vec$Colls")
    with contextlib.suppress(StateError):
        value_json(read_kryo(Reader(data), of, cast("Version", version), CLASSES))


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=100),
    st.binary(max_size=5),
    st.builds(TypedValue, st.just("java.lang.Long"), st.integers(-(2**63), 2**63 - 1)),
    st.builds(TypedValue, st.just("java.lang.Short"), st.integers(-(2**15), 2**15 - 1)),
    st.builds(TypedValue, st.just("java.lang.Character"), st.characters(max_codepoint=0xFFFF)),
    st.builds(TypedValue, st.just("java.math.BigInteger"), st.integers()),
    st.builds(
        lambda unscaled, scale: TypedValue("java.math.BigDecimal", Decimal(unscaled).scaleb(-scale)),
        st.integers(-(10**20), 10**20),
        st.integers(-5, 30),
    ),
    st.builds(TypedValue, st.just("java.time.LocalDate"), st.integers(-1_000_000, 1_000_000)),
    st.builds(TypedValue, st.just("java.time.LocalTime"), st.integers(0, 86_399_999_999_999)),
)
KINDS = st.sampled_from([("java.util.ArrayList", "list"), ("java.util.LinkedHashSet", "set")])
GRAPHS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda kind, items: CollectionValue(kind[0], CollectionKind(kind[1]), tuple(items)),
            KINDS,
            st.lists(inner, max_size=4),
        ),
        st.builds(MapValue, st.just("java.util.HashMap"), st.lists(st.tuples(inner, inner), max_size=3).map(tuple)),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@BOTH
@given(value=GRAPHS)
def test_graphs_survive_the_round_trip(version: int, value: object) -> None:
    assert read(write(value, version), version) == value


@pytest.mark.slow
@BOTH
@given(text=st.text(max_size=80))
def test_strings_survive_the_round_trip(version: int, text: str) -> None:
    writer = Writer()
    write_string(writer, text, cast("Version", version))
    assert read_string(Reader(writer.getvalue())) == text


def test_null_string_is_one_byte() -> None:
    assert read_string(Reader(b"\x80")) is None


@given(value=st.integers(0, 2**64 - 1))
def test_long_varints_have_at_most_nine_bytes(value: int) -> None:
    writer = Writer()
    write_varlong(writer, value)
    assert (read_varlong(Reader(writer.getvalue())), len(writer) <= 9) == (value, True)


def test_value_without_java_class_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="has no Java class"):
        write({1, 2})


def test_number_outside_its_type_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="does not fit in 32 bits"):
        write(2**31)


def test_wrong_fields_are_refused() -> None:
    with pytest.raises(ValueRangeError, match=r"the fields of vec\.Vec\$Inner are n, s"):
        write(ObjectValue("vec.Vec$Inner", (("n", 1),)))


def test_fields_are_declared_as_in_java() -> None:
    lists = load_classes("a.B<T>:\n  - m: Map<String, T[]>\n  - e: a.E(X, Y)\n  - b: long[][]\n")
    declared = lists.classes["a.B"]
    assert declared.parameters == ("T",)
    assert [name for name, _ in declared.fields] == ["b", "e", "m"]
    assert declared.fields[2][1] == parse_type("java.util.Map<java.lang.String, T[]>")
    assert lists.classes["a.E"].constants == ("X", "Y")


@pytest.mark.parametrize("text", ["a.B: [x: int]", "a.B: {x: int}", 'a.B: ["x: int"]', "a.B:\n- x: int"])
def test_fields_may_be_a_list_or_a_mapping(text: str) -> None:
    assert load_classes(text).classes["a.B"].fields == (("x", parse_type("int")),)


@pytest.mark.parametrize("kind", ["final", "record", "interface", "list", "map"])
def test_kind_stands_in_front_of_the_name(kind: str) -> None:
    assert load_classes(f"{kind} a.B:").classes["a.B"].kind == kind


def test_names_that_yaml_takes_for_values_are_names() -> None:
    assert [name for name, _ in load_classes("a.B: [on: int, 'null': int, y: int]").classes["a.B"].fields] == [
        "null",
        "on",
        "y",
    ]


def test_field_lists_survive_the_round_trip() -> None:
    assert load_classes(dump_classes(CLASSES)).classes == CLASSES.classes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.B: [x: 'List<']", r"'List<' of a\.B\.x is not a Java type"),
        ("a.B: [x: 'int]']", "is not a Java type"),
        ("a.B: [x: '']", "is not a Java type"),
        ("a.B: [x]", "'x' in class a.B is not a field"),
        ("enum a.B:", r"enum a\.B has no constants"),
        ("a b c:", "is not a class name"),
        ("- a", "not a mapping"),
        ("{", "not YAML"),
    ],
)
def test_wrong_field_lists_name_the_place(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_classes(text)


def test_class_that_a_field_names_must_be_declared() -> None:
    with pytest.raises(UnsupportedError, match=r"nothing is known of class a\.C, which a declared field names"):
        read("0100612ec20105", classes=load_classes("a.B: [c: a.C]"))


@pytest.mark.skipif(not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink")
@pytest.mark.parametrize("release", ["1.11", "1.17", "1.20"])
@pytest.mark.parametrize("case", ["empty-config", "unrelated-config-after-restore", "changed-registration-order"])
def test_data_of_flinks_own_tests_are_read(case: str, release: str) -> None:
    directory = Path(FIXTURES or "", "flink/serializers/flink-core", f"kryo-type-serializer-{case}-{release}")
    snapshot = read_snapshot(Reader((directory / "serializer-snapshot").read_bytes()))
    assert isinstance(snapshot, tree.Kryo)
    dog = "org.apache.flink.api.java.typeutils.runtime.kryo.KryoPojosForMigrationTests$Dog"
    value = read_kryo_span(
        Reader((directory / "test-data").read_bytes()), snapshot, 2, load_classes(f"{dog}: [name: String]")
    )
    assert value == ObjectValue(dog, (("name", "Hasso"),))


def test_data_of_kryo_5_out_of_flinks_own_tests_are_read(wild2: Path) -> None:
    path = "apache+flink/serializers/flink-core/kryo-type-serializer-changed-registration-order-2.0"
    snapshot = read_snapshot(Reader((wild2 / path / "serializer-snapshot").read_bytes()))
    assert isinstance(snapshot, tree.Kryo)
    dog = "org.apache.flink.api.java.typeutils.runtime.kryo.KryoPojosForMigrationTests$Dog"
    data = Reader((wild2 / path / "test-data").read_bytes())
    value = read_kryo_span(data, snapshot, 5, load_classes(f"{dog}: [name: String]"))
    assert value == ObjectValue(dog, (("name", "Hasso"),))


# A class by name, a new object; its schema: a class by name, a new object, JSON; its values: an array of two texts.
AVRO_RECORD = (
    "01 00" + b"org.apache.avro.generic.GenericData$Recor".hex() + "e4 01"
    "01 01" + b"org.apache.avro.Schema$RecordSchem".hex() + "e1 01"
    "ff 01"
    + SCHEMA.encode().hex()
    + "01 02"
    + b"[Ljava.lang.Object".hex()
    + "bb 01 03 03 01 4a61ee 03 01 4b6f77616c736be9"
)


def avro_serializer(schema_serializer: str) -> tree.Kryo:
    """The serializer with the default that Flink's `AvroUtils` registers where flink-avro is on the class path."""
    default = tree.KryoRegistration(
        class_name="org.apache.avro.Schema", resolved=True, value=f"\0\0{schema_serializer}".encode()
    )
    return replace(serializer("org.apache.avro.generic.GenericRecord"), default_serializer_classes=(default,))


def test_records_of_avro_go_by_the_schema_inside() -> None:
    of = avro_serializer("org.apache.flink.formats.avro.utils.AvroKryoSerializerUtils$AvroSchemaSerializer")
    value = read(AVRO_RECORD, 2, FieldLists(), of)
    assert value_json(value) == {"@avro": "shop.Name", "first": "Jan", "last": "Kowalski"}
    assert write(value, 2, FieldLists(), of) == AVRO_RECORD.replace(" ", "")


def test_schemas_of_another_serializer_are_not_read() -> None:
    with pytest.raises(UnsupportedError, match=r"class org\.apache\.avro\.Schema\$RecordSchema inside a Kryo value"):
        read(AVRO_RECORD, 2, FieldLists(), avro_serializer("com.acme.SchemaSerializer"))


@pytest.mark.parametrize("schema", ["{", '"string"', '{"type": "record", "name": "A", "fields": []}'])
def test_a_record_that_its_schema_does_not_fit_goes_by_its_fields(schema: str) -> None:
    parts = (
        ("schema", TypedValue("org.apache.avro.Schema$RecordSchema", schema)),
        ("values", ArrayValue("[Ljava.lang.Object;", ("Jan",))),
    )
    shown = value_json(ObjectValue("org.apache.avro.generic.GenericData$Record", parts))
    assert isinstance(shown, dict)
    assert shown["values"] == ["Jan"]
