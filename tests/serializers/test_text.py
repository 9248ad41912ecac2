from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import UsageError
from state_pipelines.serializers import build
from state_pipelines.serializers import java_types as basics
from state_pipelines.serializers.registry import read_snapshot, write_snapshot
from state_pipelines.serializers.text import describe, parse, spell
from state_pipelines.serializers.tree import Kryo, Pojo, Serializer
from tests.serializers.custom_families import PLAIN, Plain
from tests.serializers.migrating_families import COUNTER, CRATE, PRICE, Counter, Crate, Price

LONG = build.basic("Long")
STRING = build.basic("String")

FORMS = {
    "String": STRING,
    "List<Long>": build.list_of(LONG),
    "ArrayList<Long>": build.array_list_of(LONG),
    "Set<String>": build.set_of(STRING),
    "Map<String, Long>": build.map_of(STRING, LONG),
    "NullAwareMap<String, Long>": build.null_aware_map_of(STRING, LONG),
    "Tuple2<String, Long>": build.tuple_of(STRING, LONG),
    "Tuple<com.acme.Pair>(String, Long)": build.tuple_of(STRING, LONG, tuple_class="com.acme.Pair"),
    "Array<java.lang.String>(String)": build.generic_array("java.lang.String", STRING),
    "Array<[I>(IntPrimitiveArray)": build.generic_array("[I", build.basic("IntPrimitiveArray")),
    "Either<String, Long>": build.either(STRING, LONG),
    "Nullable<String>": build.nullable(STRING),
    "Nullable<Long, padding 8>": build.nullable(LONG, 8),
    "Row(f0: Long, f1: String)": build.row(LONG, STRING),
    "RowWithoutKind(f0: Long)": build.row(LONG, supports_row_kind=False),
    "Enum<com.acme.Color>(RED, BLUE)": build.enum("com.acme.Color", "RED", "BLUE"),
    "Ttl<Long>": build.ttl(LONG),
    "TtlAware<disabled, Long>": build.ttl_aware(LONG, ttl_enabled=False),
    "Timer<String, VoidNamespace>": build.timer(STRING, build.VOID_NAMESPACE),
    "Pojo<com.acme.Order>(amountCents: Long, id: String)": build.pojo(
        "com.acme.Order", {"id": STRING, "amountCents": LONG}
    ),
    "Pojo<com.acme.Order>(com.acme.Base#id: Long)": build.pojo(
        "com.acme.Order", {"id": LONG}, declared_by={"id": "com.acme.Base"}
    ),
    "Pojo<A>(registered: Long, registered B: String, subclass C: Long)": build.pojo(
        "A", {"registered": LONG}, registered={"B": STRING}, non_registered={"C": LONG}
    ),
    "Pojo<`a b`>(`x:``y`: Long)": build.pojo("a b", {"x:`y": LONG}),
}


@pytest.mark.parametrize(("text", "serializer"), FORMS.items())
def test_serializers_are_described(text: str, serializer: Serializer) -> None:
    assert describe(serializer) == text


@pytest.mark.parametrize(("text", "serializer"), FORMS.items())
def test_text_is_parsed(text: str, serializer: Serializer) -> None:
    assert parse(text) == serializer


def test_spaces_do_not_matter() -> None:
    assert parse(" Map < String ,Long > ") == FORMS["Map<String, Long>"]


def test_the_order_of_pojo_fields_in_the_text_does_not_matter() -> None:
    pojo = parse("Pojo<A>(b: Long, a: Long, B: Long)")
    assert isinstance(pojo, Pojo)
    assert [field.name for field in pojo.fields] == ["B", "a", "b"]


def test_kryo_shows_its_type() -> None:
    assert describe(Kryo(type_class="com.acme.X")) == "Kryo<com.acme.X>"


def test_generic_avro_shows_class_and_record() -> None:
    record = '{"type": "record", "name": "Order", "namespace": "com.acme", "fields": []}'
    text = "Avro<org.apache.avro.generic.GenericRecord>(com.acme.Order)"
    assert describe(build.avro("org.apache.avro.generic.GenericRecord", record)) == text


def test_avro_with_a_broken_schema_is_described() -> None:
    assert describe(build.avro("com.acme.Order", "{")) == "Avro<com.acme.Order>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a serializer expected, the end found at character 1"),
        ("Lng", "'Lng' is not a serializer at character 1 of 'Lng'. Did you mean Long"),
        ("List<Lng>", "at character 6"),
        ("List<Long", "',' expected, the end found at character 10"),
        ("List<Long Long>", "',' expected, 'L' found at character 11"),
        ("List<Long>>", "the end expected, '>' found at character 11"),
        ("Map<Long>", "Map takes 2 serializers, not 1, at character 4"),
        ("Tuple3<Long>", "Tuple3 takes 3 serializers, not 1, at character 7"),
        ("Tuple<com.acme.Empty>()", "a tuple has 1 to 25 fields, not 0 at character 22"),
        ("Row(f1: Long)", "f0 expected at character 5"),
        ("Pojo<A>(x: Long, x: Int)", "'x' is there twice at character 18"),
        ("Pojo<A>(x Long)", "':' expected, 'L' found at character 11"),
        ("Pojo<A>(?#x: Long)", "a field name expected, '?' found at character 9"),
        ("Nullable<Long, padding x>", "the number of bytes expected, 'x' found at character 24"),
        ("Avro<com.acme.Order>", "Avro cannot be built from text at character 1"),
        ("List<" * 100, "nest deeper than"),
    ],
)
def test_errors_point_at_the_position(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert message in str(caught.value)


names = st.text(st.characters(codec="utf-8"), max_size=8)
kinds = st.sampled_from(sorted(basics.SNAPSHOT_CLASSES)).map(build.basic)


def grow(inner: st.SearchStrategy[Serializer]) -> st.SearchStrategy[Serializer]:
    fields = st.dictionaries(names, inner, max_size=3)
    few = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        st.builds(build.list_of, inner),
        st.builds(build.array_list_of, inner),
        st.builds(build.set_of, inner),
        st.builds(build.map_of, inner, inner),
        st.builds(build.null_aware_map_of, inner, inner),
        st.builds(build.either, inner, inner),
        st.builds(build.generic_array, names, inner),
        st.builds(build.nullable, inner, st.integers(0, 20)),
        st.builds(build.ttl, inner),
        st.builds(build.ttl_aware, inner, ttl_enabled=st.booleans()),
        st.builds(build.timer, inner, inner),
        few.map(lambda fields: build.tuple_of(*fields)),
        st.builds(lambda name, fields: build.tuple_of(*fields, tuple_class=name), names.filter(bool), few),
        st.builds(lambda fields, kind: build.row(*fields, supports_row_kind=kind), few, st.booleans()),
        st.builds(lambda name, constants: build.enum(name, *constants), names, st.lists(names, max_size=3)),
        st.builds(
            build.pojo,
            names,
            fields,
            declared_by=st.dictionaries(names, names, max_size=2),
            registered=fields,
            non_registered=fields,
        ),
    )


serializers = st.recursive(kinds, grow, max_leaves=8)


@pytest.mark.slow
@given(serializers)
def test_what_is_described_parses_to_the_same(serializer: Serializer) -> None:
    assert parse(describe(serializer)) == serializer


@pytest.mark.slow
@given(serializers)
def test_what_is_built_is_read_back_from_its_bytes(serializer: Serializer) -> None:
    writer = Writer()
    write_snapshot(writer, serializer)
    reader = Reader(writer.getvalue())
    assert read_snapshot(reader) == serializer
    assert reader.remaining == 0


@pytest.mark.slow
@given(st.text("LongMapStringTuple2<>(),:` \n", max_size=30))
def test_any_text_parses_or_is_a_usage_error(text: str) -> None:
    try:
        parse(text)
    except UsageError as error:
        assert "at character" in error.what  # noqa: PT017  any other error fails the test


@pytest.mark.parametrize(
    ("serializer", "text"),
    [
        (Counter(width=8), f"Snapshot<{COUNTER}>(1, 0x00000008)"),
        (Price(snapshot_version=2), f"Snapshot<{PRICE}>(2)"),
        (build.map_of(STRING, Plain(snapshot_class=PLAIN)), f"Map<String, Snapshot<{PLAIN}>(3)>"),
    ],
)
def test_families_of_ones_own_are_spelled_by_their_snapshots(serializer: Serializer, text: str) -> None:
    assert spell(serializer) == text
    assert parse(text) == serializer


def test_what_is_nested_in_ones_own_family_is_in_its_snapshot() -> None:
    crate = Crate(label="box", content=build.list_of(Counter(width=4)))
    assert spell(crate).startswith(f"Snapshot<{CRATE}>(3, 0x")
    assert parse(spell(crate)) == crate
    assert describe(crate) == "Crate<List<Counter>>"


def test_a_snapshot_without_content_needs_no_version() -> None:
    assert parse(f"Snapshot<{PLAIN}>") == Plain(snapshot_class=PLAIN)
    assert parse(f"Snapshot<{PRICE}>") == Price(snapshot_version=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Snapshot<com.acme.Nobody>(1)", "no reader is registered for the serializer snapshot class com.acme.Nobody"),
        (f"Snapshot<{COUNTER}>(7, 0x00000008)", "version 7 of .* is not supported"),
        (f"Snapshot<{COUNTER}>(1, 0x0000)", "4 bytes expected but only 2 are left"),
        (f"Snapshot<{COUNTER}>(1, 0x000000080A)", "the bytes are not a snapshot of"),
        (f"Snapshot<{COUNTER}>(1, 8)", "the body of the snapshot as 0x"),
    ],
)
def test_snapshots_that_no_reader_reads_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(text)
