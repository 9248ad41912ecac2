"""Flink's compatibility rules. Outcomes of literal pairs are those that Flink 1.20 and 2.2 gave for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.serializers import build, java_types
from state_pipelines.serializers.compatibility import Outcome, resolve, wrap_ttl_aware
from state_pipelines.serializers.compatibility.objects import find_kryo
from state_pipelines.serializers.text import parse
from state_pipelines.serializers.tree import (
    BinaryRow,
    ClassBound,
    ClassBoundKind,
    Decimal,
    Kryo,
    KryoRegistration,
    LinkedListOf,
    LogicalType,
    MapData,
    Opaque,
    PojoField,
    PojoSubclass,
    RowData,
    ScalaEnum,
    Serializer,
    SortedMapOf,
    Tuple,
    VariantKind,
    Variants,
)

AS_IS, RECONFIGURED, AFTER_MIGRATION = (
    Outcome.AS_IS,
    Outcome.RECONFIGURED,
    Outcome.AFTER_MIGRATION,
)
INCOMPATIBLE, UNDETERMINED = Outcome.INCOMPATIBLE, Outcome.UNDETERMINED

SCALA = "org.apache.flink.api.scala.typeutils."
LONG, STRING, DOUBLE = build.basic("Long"), build.basic("String"), build.basic("Double")
BIGINT = LogicalType(root="BIGINT")


def outcome(old: Serializer, new: Serializer) -> Outcome:
    return resolve(old, new).outcome


def paths(old: Serializer, new: Serializer) -> list[str]:
    return [finding.path for finding in resolve(old, new).findings]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Long", "Long", AS_IS),
        ("Long", "Double", INCOMPATIBLE),
        ("Long", "LongValue", INCOMPATIBLE),
        ("Date", "SqlDate", INCOMPATIBLE),
        ("TimeWindow", "TableTimeWindow", INCOMPATIBLE),
        ("Tuple2<Long, String>", "Tuple2<Long, String>", AS_IS),
        ("Tuple2<Long, String>", "Tuple2<Long, Long>", INCOMPATIBLE),
        ("Tuple2<Long, String>", "Tuple3<Long, String, Long>", INCOMPATIBLE),
        ("Tuple2<Long, String>", "Tuple<com.acme.Pair>(Long, String)", AS_IS),
        ("List<Long>", "List<Double>", INCOMPATIBLE),
        ("List<Long>", "ArrayList<Long>", AS_IS),
        ("Map<Long, String>", "Map<Long, Long>", INCOMPATIBLE),
        ("Array<java.lang.Long>(Long)", "Array<java.lang.Number>(Long)", INCOMPATIBLE),
        ("Nullable<Long>", "Nullable<Long, padding 8>", INCOMPATIBLE),
        ("Nullable<Long>", "Long", INCOMPATIBLE),
        ("Row(f0: Long)", "RowWithoutKind(f0: Long)", AFTER_MIGRATION),
        ("RowWithoutKind(f0: Long)", "Row(f0: Long)", AFTER_MIGRATION),
        ("RowWithoutKind(f0: Long)", "Row(f0: Double)", INCOMPATIBLE),
        ("Row(f0: Long)", "Row(f0: Long, f1: Long)", INCOMPATIBLE),
        ("Timer<Long, VoidNamespace>", "Timer<String, VoidNamespace>", INCOMPATIBLE),
        ("Ttl<Long>", "Ttl<String>", INCOMPATIBLE),
        ("Ttl<Long>", "Long", INCOMPATIBLE),
        ("TtlAware<disabled, Long>", "TtlAware<enabled, Ttl<Long>>", AFTER_MIGRATION),
        ("TtlAware<enabled, Ttl<Long>>", "TtlAware<disabled, Long>", AFTER_MIGRATION),
        ("TtlAware<enabled, Ttl<Long>>", "TtlAware<disabled, String>", INCOMPATIBLE),
        ("TtlAware<enabled, Ttl<Long>>", "TtlAware<enabled, Ttl<Long>>", AS_IS),
        ("Enum<E>(A, B)", "Enum<E>(A, B)", AS_IS),
        ("Enum<E>(A, B)", "Enum<E>(B, A)", RECONFIGURED),
        ("Enum<E>(A, B)", "Enum<E>(A, B, C)", RECONFIGURED),
        ("Enum<E>(A, B)", "Enum<E>(A)", INCOMPATIBLE),
        ("Enum<E>(A, B)", "Enum<F>(A, B)", INCOMPATIBLE),
        ("Tuple2<Enum<E>(A), Row(f0: Long)>", "Tuple2<Enum<E>(A, B), RowWithoutKind(f0: Long)>", AFTER_MIGRATION),
        ("Tuple2<Enum<E>(A), Long>", "Tuple2<Enum<E>(A, B), Long>", RECONFIGURED),
        ("Tuple2<Enum<E>(A), Long>", "Tuple2<Enum<E>(A, B), Double>", INCOMPATIBLE),
        ("Pojo<P>(a: Long)", "Pojo<P>(a: Long)", AS_IS),
        ("Pojo<P>(a: Long)", "Pojo<Q>(a: Long)", INCOMPATIBLE),
        ("Pojo<P>(a: Long)", "Pojo<P>(a: Double)", INCOMPATIBLE),
        ("Pojo<P>(a: Long)", "Pojo<P>(a: Long, b: Long)", AFTER_MIGRATION),
        ("Pojo<P>(a: Long, b: Long)", "Pojo<P>(a: Long)", AFTER_MIGRATION),
        ("Pojo<P>(a: Long, b: Long)", "Pojo<P>(a: Double)", INCOMPATIBLE),
        ("Pojo<P>(a: Enum<E>(A))", "Pojo<P>(a: Enum<E>(A, B))", RECONFIGURED),
        ("Pojo<P>(a: Enum<E>(A))", "Pojo<P>(a: Enum<E>(A, B), b: Long)", AFTER_MIGRATION),
        ("Pojo<P>(a: Pojo<I>(x: Long))", "Pojo<P>(a: Pojo<I>())", AFTER_MIGRATION),
        ("Pojo<P>(registered A: Pojo<A>(), registered B: Pojo<B>())", "Pojo<P>(registered A: Pojo<A>())", RECONFIGURED),
        ("Pojo<P>(registered A: Pojo<A>())", "Pojo<P>(registered A: Pojo<A>(), registered B: Pojo<B>())", AS_IS),
        ("Pojo<P>(subclass A: Pojo<A>())", "Pojo<P>()", RECONFIGURED),
        ("Pojo<P>()", "Pojo<P>(subclass A: Pojo<A>())", AS_IS),
    ],
)
def test_outcome_is_that_of_flink(old: str, new: str, expected: Outcome) -> None:
    assert outcome(parse(old), parse(new)) is expected


KINDS = st.sampled_from(["Long", "Double", "String", "Boolean", "Instant", "LongPrimitiveArray"]).map(build.basic)
TREES = st.recursive(
    KINDS,
    lambda inner: st.one_of(
        inner.map(build.list_of),
        inner.map(build.nullable),
        st.tuples(inner, inner).map(lambda pair: build.map_of(*pair)),
        st.dictionaries(st.sampled_from("abc"), inner).map(lambda fields: build.pojo("com.acme.P", fields)),
        st.lists(inner, min_size=1, max_size=3).map(lambda fields: build.row(*fields)),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(TREES)
def test_the_same_serializer_is_compatible_as_is(serializer: Serializer) -> None:
    assert resolve(serializer, serializer).findings == ()


@pytest.mark.slow
@given(TREES, TREES)
def test_what_is_not_as_is_has_a_finding(old: Serializer, new: Serializer) -> None:
    found = resolve(old, new)
    assert (found.outcome is AS_IS) == (not found.findings)


@pytest.mark.slow
@given(TREES, TREES)
def test_the_worst_finding_decides(old: Serializer, new: Serializer) -> None:
    found = resolve(old, new)
    order = list(Outcome)
    assert found.outcome is max((each.outcome for each in found.findings), key=order.index, default=AS_IS)


def test_a_type_change_names_the_exact_field() -> None:
    old = parse("Pojo<P>(tags: List<Tuple2<String, Pojo<I>(zip: Long)>>)")
    new = parse("Pojo<P>(tags: List<Tuple2<String, Pojo<I>(zip: Double)>>)")
    (finding,) = resolve(old, new).findings
    assert (finding.path, finding.old, finding.new) == ("value.tags[].f1.zip", "Long", "Double")
    assert "LongSerializer became DoubleSerializer" in finding.reason
    assert "Cast to Double" in finding.remedy


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("Map<Long, String>", "Map<String, String>", "value{key}"),
        ("Map<Long, String>", "Map<Long, Long>", "value{value}"),
        ("Either<Long, String>", "Either<Long, Long>", "value.right"),
        ("Row(f0: Long, f1: Long)", "Row(f0: Long, f1: Double)", "value.f1"),
        ("Nullable<Long>", "Nullable<Double>", "value"),
        ("Ttl<Long>", "Ttl<Double>", "value"),
        ("Set<Long>", "Set<Double>", "value[]"),
        ("Array<X>(Long)", "Array<X>(Double)", "value[]"),
        ("Timer<Long, VoidNamespace>", "Timer<Double, VoidNamespace>", "value.key"),
        ("Pojo<P>(registered A: Pojo<A>(x: Long))", "Pojo<P>(registered A: Pojo<A>(x: Double))", "value(A).x"),
    ],
)
def test_every_container_is_a_step_of_the_path(old: str, new: str, path: str) -> None:
    assert paths(parse(old), parse(new)) == [path]


def test_the_path_begins_where_the_caller_says() -> None:
    assert resolve(LONG, DOUBLE, "map_key").findings[0].path == "map_key"


def test_several_fields_are_all_named() -> None:
    old, new = parse("Pojo<P>(a: Long, b: Long)"), parse("Pojo<P>(a: Double, b: String)")
    assert paths(old, new) == ["value.a", "value.b"]


# POJOs


def test_a_dropped_field_warns_that_its_values_are_lost() -> None:
    (finding,) = resolve(parse("Pojo<P>(a: Long, note: String)"), parse("Pojo<P>(a: Long)")).findings
    assert finding.loss
    assert (finding.path, finding.old, finding.new) == ("value.note", "String", None)
    assert "without a word" in finding.reason


def test_an_added_field_tells_what_old_values_get() -> None:
    findings = resolve(parse("Pojo<P>()"), parse("Pojo<P>(a: Long, b: Boolean, c: String)")).findings
    assert [finding.reason.partition(": it is ")[2].split()[0] for finding in findings] == ["0", "false", "null"]
    assert not any(finding.loss for finding in findings)


def test_a_renamed_field_is_one_that_went_and_one_that_came() -> None:
    gone, came = resolve(parse("Pojo<P>(customer: String)"), parse("Pojo<P>(customerId: String)")).findings
    assert (gone.path, came.path) == ("value.customer", "value.customerId")
    assert "customerId" in gone.remedy
    assert "migrate with a rename step" in gone.remedy


def test_only_a_field_of_the_same_type_is_offered_as_the_new_name() -> None:
    gone = resolve(parse("Pojo<P>(customer: String)"), parse("Pojo<P>(priority: Int)")).findings[0]
    assert "priority" not in gone.remedy


def test_a_field_may_move_up_to_a_superclass() -> None:
    assert outcome(parse("Pojo<P>(a: Long)"), parse("Pojo<P>(Base#a: Long)")) is AS_IS


def test_a_field_that_moves_down_from_a_superclass_is_lost() -> None:
    found = resolve(parse("Pojo<P>(Base#a: Long, Base#z: Long)"), parse("Pojo<P>(a: Long, Base#z: Long)"))
    assert found.outcome is AFTER_MIGRATION
    assert [finding.loss for finding in found.findings] == [True, False]


def test_a_field_of_another_superclass_cannot_be_judged() -> None:
    assert outcome(parse("Pojo<P>(Base#a: Long)"), parse("Pojo<P>(Other#a: Long)")) is UNDETERMINED


def test_whether_the_field_went_or_the_superclass_no_snapshot_tells() -> None:
    (finding,) = resolve(parse("Pojo<P>(Base#a: Long, b: Long)"), parse("Pojo<P>(b: Long)")).findings
    assert finding.outcome is UNDETERMINED
    assert "stopped extending Base" in finding.reason


def test_a_removed_constant_inside_a_pojo_fails_with_another_error() -> None:
    (finding,) = resolve(parse("Pojo<P>(a: Enum<E>(A, B))"), parse("Pojo<P>(a: Enum<E>(A))")).findings
    assert finding.outcome is INCOMPATIBLE
    assert finding.error == "field serializer snapshots should be present."


def test_collection_fields_of_flink_1_do_not_fit_flink_2() -> None:
    old = build.pojo("P", {"tags": Kryo(type_class="java.util.List")})
    new = build.pojo("P", {"tags": build.nullable(build.list_of(build.nullable(STRING)))})
    (finding,) = resolve(old, new).findings
    assert finding.outcome is INCOMPATIBLE
    assert "collection fields" in finding.reason


def test_a_subclass_that_was_missing_at_write_time_is_fatal() -> None:
    missing = PojoSubclass(class_name="Gone", serializer=None, resolved=False)
    old = replace(build.pojo("P", {}), registered=(missing,))
    assert outcome(old, build.pojo("P", {})) is INCOMPATIBLE


def test_a_field_that_was_missing_at_write_time_counts_as_removed() -> None:
    lost = PojoField(name="missing-field-at-0", declaring_class=None, serializer=LONG)
    assert outcome(replace(build.pojo("P", {}), fields=(lost,)), build.pojo("P", {})) is AFTER_MIGRATION


def test_a_field_whose_serializer_was_lost_cannot_be_skipped() -> None:
    lost = PojoField(name="a", declaring_class="P", serializer=None)
    (finding,) = resolve(replace(build.pojo("P", {}), fields=(lost,)), build.pojo("P", {})).findings
    assert finding.outcome is INCOMPATIBLE
    assert finding.error == "field serializer snapshots should be present."


def test_subclasses_that_are_not_registered_are_not_compared() -> None:
    old, new = parse("Pojo<P>(subclass A: Pojo<A>(x: Long))"), parse("Pojo<P>(subclass A: Pojo<A>(x: Double))")
    assert outcome(old, new) is RECONFIGURED


# What Flink overlooks


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Map<Long, String>", "Tuple2<Long, String>"),
        ("List<Long>", "Tuple1<Long>"),
        ("Nullable<Long>", "List<Long>"),
        ("Row(f0: Long)", "Set<Long>"),
        ("Either<Long, String>", "NullAwareMap<Long, String>"),
        ("Tuple2<Long, String>", "Ttl<String>"),
    ],
)
def test_flink_takes_composites_for_each_other_but_we_do_not(old: str, new: str) -> None:
    (finding,) = resolve(parse(old), parse(new)).findings
    assert finding.outcome is INCOMPATIBLE
    assert finding.unnoticed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("List<Long>", "Nullable<Long>"),
        ("Tuple1<Long>", "Row(f0: Long)"),
        ("List<Long>", "Array<X>(Long)"),
        ("List<Long>", "Set<Double>"),
        ("Long", "List<Long>"),
    ],
)
def test_flink_notices_other_changes_of_family(old: str, new: str) -> None:
    (finding,) = resolve(parse(old), parse(new)).findings
    assert finding.outcome is INCOMPATIBLE
    assert not finding.unnoticed


def test_flink_compares_only_the_comparator_of_a_sorted_map() -> None:
    name = "org.apache.flink.table.runtime.typeutils.SortedMapSerializerSnapshot"
    old = SortedMapOf(snapshot_class=name, key=LONG, value=STRING, comparator=b"c")
    (finding,) = resolve(old, replace(old, key=STRING)).findings
    assert finding.unnoticed
    assert outcome(old, replace(old, comparator=b"d")) is UNDETERMINED


# Classes and parameters


def test_value_classes_must_stay() -> None:
    old = ClassBound(snapshot_class="V", kind=ClassBoundKind.VALUE, type_class="com.acme.Money")
    assert outcome(old, replace(old, type_class="com.acme.Cash")) is INCOMPATIBLE


def test_a_removed_enum_constant_is_named_with_the_error_of_flink() -> None:
    (finding,) = resolve(parse("Enum<E>(A, B)"), parse("Enum<E>(A)")).findings
    assert finding.old == "B"
    assert finding.error.startswith("Could not create a restore serializer for enum class E.")


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        ((("A", 0), ("B", 1), ("C", 2)), AS_IS),
        ((("B", 0), ("A", 1)), INCOMPATIBLE),
        ((("A", 0),), INCOMPATIBLE),
    ],
)
def test_scala_enums_keep_their_ids(constants: tuple[tuple[str, int], ...], expected: Outcome) -> None:
    old = ScalaEnum(snapshot_class=f"{SCALA}S", enum_class="E", constants=(("A", 0), ("B", 1)))
    assert outcome(old, replace(old, constants=constants)) is expected


def test_case_classes_keep_their_name() -> None:
    old = Tuple(snapshot_class=f"{SCALA}ScalaCaseClassSerializerSnapshot", tuple_class="A", fields=(LONG,))
    assert outcome(old, replace(old, tuple_class="B")) is INCOMPATIBLE


def test_scala_serializers_of_flink_2_are_other_classes() -> None:
    name = "ScalaCaseClassSerializerSnapshot"
    old = Tuple(snapshot_class=f"{SCALA}{name}", tuple_class="A", fields=(LONG,))
    new = replace(old, snapshot_class=f"org.apache.flink.table.api.typeutils.{name}")
    assert "moved to" in resolve(old, new).findings[0].reason


@pytest.mark.parametrize("kind", [VariantKind.TWO_PHASE_COMMIT, VariantKind.NFA_STATE])
def test_flags_of_the_runtime_migrate(kind: VariantKind) -> None:
    old = Variants(snapshot_class="S", kind=kind, serializers=(LONG, STRING), flag=False)
    assert outcome(old, replace(old, flag=True)) is AFTER_MIGRATION


def test_another_collection_builder_is_incompatible() -> None:
    old = Variants(snapshot_class="T", kind=VariantKind.TRAVERSABLE, serializers=(LONG,), text="List")
    assert outcome(old, replace(old, text="Vector")) is INCOMPATIBLE


def test_the_null_mask_of_linked_lists_migrates() -> None:
    old = LinkedListOf(snapshot_class="L", element=LONG, has_null_mask=False)
    assert outcome(old, replace(old, has_null_mask=True)) is AFTER_MIGRATION


def test_the_either_of_old_releases_is_the_one_of_today() -> None:
    legacy = "org.apache.flink.api.java.typeutils.runtime.EitherSerializerSnapshot"
    new = build.either(LONG, STRING)
    assert outcome(replace(new, snapshot_class=legacy), new) is AS_IS
    assert new.snapshot_class == java_types.EITHER


# Table types


def row_data(*types: LogicalType) -> RowData:
    return RowData(snapshot_class="R", types=types, fields=tuple(LONG for _ in types))


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (row_data(BIGINT), []),
        (row_data(replace(BIGINT, nullable=False)), ["value.f0"]),
        (row_data(BIGINT, BIGINT), ["value.f1"]),
        (row_data(), ["value.f0"]),
    ],
)
def test_sql_rows_do_not_evolve(new: RowData, expected: list[str]) -> None:
    assert paths(row_data(BIGINT), new) == expected


def test_sql_parameters_stay() -> None:
    decimal = Decimal(snapshot_class="D", precision=10, scale=2)
    row = BinaryRow(snapshot_class="B", num_fields=2)
    assert outcome(decimal, replace(decimal, scale=3)) is INCOMPATIBLE
    assert outcome(row, replace(row, num_fields=3)) is INCOMPATIBLE


def test_sql_maps_name_the_side_that_changed() -> None:
    old = MapData(snapshot_class="M", key_type=BIGINT, value_type=BIGINT)
    assert paths(old, replace(old, value_type=LogicalType(root="DOUBLE"))) == ["value{value}"]


# Kryo


def kryo(*classes: str, type_class: str = "A") -> Kryo:
    registered = (KryoRegistration(class_name=name, resolved=True, value=name.encode()) for name in classes)
    return Kryo(type_class=type_class, registrations=tuple(registered))


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (kryo("A", "B"), AS_IS),
        (kryo("A", "B", "C"), AS_IS),
        (kryo("A", "C", "B"), RECONFIGURED),
        (kryo("A"), RECONFIGURED),
        (kryo("A", "B", type_class="Z"), INCOMPATIBLE),
    ],
)
def test_kryo_registrations_keep_their_ids(new: Kryo, expected: Outcome) -> None:
    assert outcome(kryo("A", "B"), new) is expected


def test_a_kryo_class_that_was_missing_must_be_registered_again() -> None:
    gone = KryoRegistration(class_name="B", resolved=False, value=None)
    old = replace(kryo("A"), registrations=(*kryo("A").registrations, gone))
    assert outcome(old, kryo("A")) is INCOMPATIBLE
    assert outcome(old, kryo("A", "B")) is AS_IS
    assert "the heap backend needs the old serializer" in resolve(old, kryo("A", "B")).findings[0].reason


def test_a_kryo_class_that_is_no_longer_registered_must_still_be_there() -> None:
    (finding,) = resolve(kryo("A", "B"), kryo("A")).findings
    assert "incompatible if B or its serializer is no longer on the class path" in finding.reason


def test_another_kryo_serializer_for_a_class_is_a_warning() -> None:
    new = replace(kryo("A"), registrations=(KryoRegistration(class_name="A", resolved=True, value=b"other"),))
    found = resolve(kryo("A"), new)
    assert found.outcome is AS_IS
    assert "Flink does not check it" in found.findings[0].reason


def test_every_kryo_place_is_found() -> None:
    tree = build.pojo("P", {"a": build.map_of(STRING, kryo("A")), "b": LONG}, registered={"S": kryo("S")})
    assert [path for path, _ in find_kryo(tree)] == ["value.a{value}", "value(S)"]


# Unknown snapshots


def test_an_unknown_snapshot_is_as_is_only_if_nothing_changed() -> None:
    old = Opaque(snapshot_class="com.acme.S", unknown_class="com.acme.S", raw=b"1")
    assert outcome(old, old) is AS_IS
    assert outcome(old, replace(old, raw=b"2")) is UNDETERMINED
    assert outcome(old, LONG) is UNDETERMINED


def test_incompatible_wins_over_undetermined() -> None:
    old = Opaque(snapshot_class="com.acme.S", unknown_class="com.acme.S", raw=b"1")
    before = build.pojo("P", {"a": old, "b": LONG})
    assert outcome(before, build.pojo("P", {"a": LONG, "b": DOUBLE})) is INCOMPATIBLE


# TTL


@pytest.mark.parametrize(
    ("plain", "wrapped"),
    [
        ("Long", "TtlAware<disabled, Long>"),
        ("Ttl<Long>", "TtlAware<enabled, Ttl<Long>>"),
        ("List<Ttl<Long>>", "List<TtlAware<enabled, Ttl<Long>>>"),
        ("Map<Long, Long>", "Map<Long, TtlAware<disabled, Long>>"),
    ],
)
def test_flink_2_wraps_values_elements_and_map_values(plain: str, wrapped: str) -> None:
    assert wrap_ttl_aware(parse(plain)) == parse(wrapped)
    assert wrap_ttl_aware(parse(wrapped)) == parse(wrapped)
