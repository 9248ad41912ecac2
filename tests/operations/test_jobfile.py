"""Descriptions of the new job: files, classes, types and schemas."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.codecs.kryo import load_classes
from state_pipelines.codecs.kryo.classes import JavaType
from state_pipelines.codecs.kryo.values import ClassTable
from state_pipelines.errors import NotFoundError, StateError, UsageError
from state_pipelines.javaclasses import ClassPath, GivenClass, JavaClass, open_class_path
from state_pipelines.operations.check.check import CheckReport, CheckVerdict, StateCheck, check_jobs
from state_pipelines.operations.jobs.job_files import load_job
from state_pipelines.operations.jobs.job_state import (
    JobDescription,
    JobOperator,
    JobState,
    Subject,
    extract_types,
    list_assumed,
    payload_of,
    read_type,
    replace_avro,
    replace_classes,
)
from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.java_types import KryoConfig
from state_pipelines.serializers.text import describe, parse
from state_pipelines.serializers.tree import Kryo, KryoRegistration, StateKind
from tests.operations.one_state import replace_type

if TYPE_CHECKING:
    from pathlib import Path

POJO = "Pojo<com.acme.Order>(at: Instant, id: Long, place: Pojo<com.acme.Place>(zip: String))"
FLINK_2 = (2, 2)


def schema(*fields: str, name: str = "Offer") -> str:
    listed = [{"name": each, "type": "long", "default": 0} for each in fields]
    return json.dumps({"type": "record", "name": name, "fields": listed})


def keyed(name: str, kind: str, value: str) -> JobState:
    return JobState(name, StateKind(kind), {Subject.NAMESPACE: build.VOID_NAMESPACE, Subject.VALUE: parse(value)})


OFFERS = JobState(
    "offers",
    StateKind.VALUE,
    {Subject.NAMESPACE: build.VOID_NAMESPACE, Subject.VALUE: build.avro("Offer", schema("a"))},
)
ORDERS = JobOperator(
    id="90ac6dd4c1c1b4f6b6c7f4d2f4b5c4a1",
    label="orders",
    parallelism=2,
    max_parallelism=128,
    key=build.basic("String"),
    states=(
        keyed("order", "VALUE", POJO),
        keyed("history", "LIST", "List<String>"),
        keyed("quantities", "MAP", "Map<String, Long>"),
        keyed("sum", "REDUCING", "Long"),
        keyed("seen", "VALUE", "Ttl<Instant>"),
        OFFERS,
        JobState("timers", StateKind.TIMER, {Subject.TIMER: parse("Timer<String, VoidNamespace>")}),
    ),
)
COUNTER = JobOperator(
    id="c" * 32,
    label="counter",
    parallelism=2,
    max_parallelism=128,
    key=None,
    states=(
        JobState("counts", StateKind.UNION, {Subject.ELEMENT: parse("Tuple2<String, Long>")}),
        JobState("prices", StateKind.BROADCAST, {Subject.MAP_KEY: parse("String"), Subject.MAP_VALUE: parse("Double")}),
    ),
)
OLD = JobDescription("old", (ORDERS, COUNTER))
STATES = """
      order: "Pojo<com.acme.Order>(at: Instant, id: Long, place: Pojo<com.acme.Place>(zip: String))"
      history: {kind: LIST, element: String}
      quantities: {key: String, value: long}
      sum: {kind: REDUCING, type: Long}
      seen: {type: Instant, ttl: 7 d}
      offers: {avro: offer.avsc}
"""
COMPLETE = f"""
complete: true
max_parallelism: 128
operators:
  orders:
    key: String
    states: {STATES}
  counter:
    states:
      counts: {{kind: UNION, element: "Tuple2<String, Long>"}}
      prices: {{kind: BROADCAST, key: String, value: Double}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "offer.avsc").write_text(schema("a"))
    return tmp_path


def load(folder: Path, text: str, release: tuple[int, int] = FLINK_2) -> JobDescription:
    file = folder / "job.yaml"
    file.write_text(text, encoding="utf-8")
    return load_job(file, OLD, release)


def judge(folder: Path, text: str, release: tuple[int, int] = FLINK_2) -> CheckReport:
    return check_jobs(OLD, load(folder, text, release), target=f"{release[0]}.{release[1]}")


def remarkable(report: CheckReport) -> list[StateCheck]:
    return [each for each in report.checks if each.is_remarkable]


def orders(states: str, *lines: str) -> str:
    return "\n".join([*lines, f"operators: {{orders: {{states: {{{states}}}}}}}"])


def test_the_whole_old_job_described_is_fully_compatible(folder: Path) -> None:
    assert judge(folder, COMPLETE).verdict is CheckVerdict.FULLY_COMPATIBLE


def test_a_description_of_nothing_is_the_old_job(folder: Path) -> None:
    report = judge(folder, "operators: {}")
    assert report.verdict is CheckVerdict.FULLY_COMPATIBLE
    assert any("does not name" in note for note in report.notes)


def test_json_is_read_too(folder: Path) -> None:
    assert judge(folder, json.dumps({"operators": {"orders": {"key": "Long"}}})).verdict is CheckVerdict.INCOMPATIBLE


def test_an_operator_that_a_complete_description_lacks(folder: Path) -> None:
    report = judge(folder, "complete: true\noperators: {orders: {}}")
    assert [each.operator for each in remarkable(report)] == ["counter"]
    assert report.verdict is CheckVerdict.INCOMPATIBLE


def test_a_state_that_a_complete_description_lacks(folder: Path) -> None:
    report = judge(folder, COMPLETE.replace("      sum: {kind: REDUCING, type: Long}\n", ""))
    assert [(each.state, each.partial) for each in remarkable(report)] == [("sum", True)]


def test_a_new_state_and_a_new_operator_start_empty(folder: Path) -> None:
    report = judge(folder, "operators: {orders: {states: {fresh: Long}}, late: {key: Long, states: {first: Long}}}")
    assert report.verdict is CheckVerdict.PARTIALLY_COMPATIBLE
    assert [(each.operator, each.state) for each in remarkable(report)] == [("orders", "fresh"), ("late", "first")]


@pytest.mark.parametrize(
    ("states", "state", "outcome"),
    [
        ("sum: Double", "sum", Outcome.INCOMPATIBLE),
        ("sum: {kind: VALUE, type: Long}", "sum", Outcome.INCOMPATIBLE),
        ("history: Long", "history", Outcome.INCOMPATIBLE),
        ("quantities: {value: Double}", "quantities", Outcome.INCOMPATIBLE),
        ("quantities: {key: Long, value: Long}", "quantities", Outcome.INCOMPATIBLE),
        ("seen: Instant", "seen", Outcome.AFTER_MIGRATION),
        ("sum: {type: Long, ttl: true}", "sum", Outcome.AFTER_MIGRATION),
        ("sum: {type: Long, namespace: TimeWindow}", "sum", Outcome.INCOMPATIBLE),
    ],
)
def test_what_is_named_is_judged(folder: Path, states: str, state: str, outcome: Outcome) -> None:
    assert [(each.state, each.outcome) for each in remarkable(judge(folder, orders(states)))] == [(state, outcome)]


@pytest.mark.parametrize(
    "states", ["sum: Long", "history: String", "history: {element: String}", "quantities: {value: long}", "sum: long"]
)
def test_the_kind_is_that_of_the_snapshot_when_it_is_left_out(folder: Path, states: str) -> None:
    assert judge(folder, orders(states)).verdict is CheckVerdict.FULLY_COMPATIBLE


def test_timers_follow_the_key(folder: Path) -> None:
    report = judge(folder, "operators: {orders: {key: Long}}")
    assert [(each.state, str(each.subject)) for each in remarkable(report)] == [(None, "key"), ("timers", "timer")]


def test_the_operator_may_be_named_by_its_id(folder: Path) -> None:
    assert judge(folder, f"operators: {{{ORDERS.id}: {{key: Long}}}}").verdict is CheckVerdict.INCOMPATIBLE


@pytest.mark.parametrize("text", ["max_parallelism: 256", "operators: {counter: {max_parallelism: 256}}"])
def test_a_max_parallelism_that_is_set(folder: Path, text: str) -> None:
    report = judge(folder, text)
    assert report.verdict is CheckVerdict.INCOMPATIBLE
    assert all("Max parallelism mismatch" in each.error for each in remarkable(report))


def test_a_parallelism_above_the_max_parallelism(folder: Path) -> None:
    assert judge(folder, "parallelism: 129").verdict is CheckVerdict.INCOMPATIBLE


def test_declared_classes_are_extracted(folder: Path) -> None:
    text = """
classes:
  class com.acme.Order: {id: long, at: Instant, tags: List<String>, place: com.acme.Place}
operators: {orders: {states: {order: com.acme.Order}}}
"""
    (found,) = remarkable(judge(folder, text))
    assert [(each.path, each.new) for each in found.findings] == [("value.tags", "Nullable<List<Nullable<String>>>")]
    (older,) = remarkable(judge(folder, text, (1, 20)))
    assert [(each.path, each.new) for each in older.findings] == [("value.tags", "Kryo<java.util.List>")]


def test_declared_classes_go_for_states_that_are_not_named(folder: Path) -> None:
    report = judge(folder, "classes: {com.acme.Place: [zip: long]}")
    assert [each.findings[0].path for each in remarkable(report)] == ["value.place.zip"]


def test_the_configuration_registers_subclasses(folder: Path) -> None:
    text = """
serialization-config: "[com.acme.Gift: {type: pojo}, com.acme.Other: {type: kryo}]"
classes:
  com.acme.Order: [id: long, at: Instant, place: com.acme.Place]
  com.acme.Gift extends com.acme.Order: [card: String]
"""
    (order, *_) = load(folder, text).operators[0].states
    assert "registered com.acme.Gift: Pojo<com.acme.Gift>" in describe(order.serializers[Subject.VALUE])


MONEY_SERIALIZER = "class: com.acme.MoneySerializer"
KRYO_CONFIG = f"""
- com.acme.Gift: {{type: pojo}}
- com.acme.Tag: {{type: kryo}}
- com.acme.Money: {{type: kryo, kryo-type: registered, {MONEY_SERIALIZER}}}
- com.acme.Base: {{type: kryo, kryo-type: default, class: com.acme.BaseSerializer}}
"""


def load_kryo(folder: Path, config: str, old: JobDescription) -> tuple[Kryo, ...]:
    file = folder / "job.yaml"
    listed = "".join(f"  {line}\n" for line in config.strip().splitlines())
    text = f"serialization-config:\n{listed}operators: {{orders: {{states: {{fresh: java.util.UUID}}}}}}"
    file.write_text(text, encoding="utf-8")
    states = load_job(file, old, FLINK_2).operators[0].states
    found = [state.serializers[Subject.VALUE] for state in states if state.name in ("fresh", "money")]
    return tuple(each for each in found if isinstance(each, Kryo))


def with_kryo(payload: Kryo) -> JobDescription:
    money = JobState("money", StateKind.VALUE, {Subject.NAMESPACE: build.VOID_NAMESPACE, Subject.VALUE: payload})
    return JobDescription("old", (replace(ORDERS, states=(money,)),))


def test_the_configuration_registers_classes_of_kryo(folder: Path) -> None:
    (fresh,) = load_kryo(folder, KRYO_CONFIG, OLD)
    assert [each.class_name for each in fresh.registrations] == [
        "java.util.UUID",
        "com.acme.Tag",
        "com.acme.Money",
        "org.apache.avro.generic.GenericData$Array",
    ]
    table = ClassTable(fresh, 5, load_classes("{}"))
    assert table.ids["com.acme.Money"] - table.ids["com.acme.Tag"] == 1
    assert table.find_serializer("com.acme.Money") == "com.acme.MoneySerializer"
    assert table.find_serializer("com.acme.Base") == "com.acme.BaseSerializer"
    assert (table.find_serializer("com.acme.Tag"), table.find_serializer("com.acme.Gift")) == (None, None)


def test_state_of_a_snapshot_is_judged_by_the_registrations_of_the_configuration(folder: Path) -> None:
    same = KryoConfig(("com.acme.Tag",), (("com.acme.Money", "com.acme.MoneySerializer"),)).configure("com.acme.Offer")
    config = "\n".join(line for line in KRYO_CONFIG.splitlines() if "Base" not in line)
    (fresh, kept) = load_kryo(folder, config, with_kryo(same))
    assert kept == same
    assert fresh.registrations[1:] == same.registrations[1:]

    report = check_jobs(with_kryo(same), load(folder, "operators: {}"), target="2.2")
    assert report.verdict is not CheckVerdict.INCOMPATIBLE
    swapped = config.replace("com.acme.MoneySerializer", "com.acme.OtherSerializer")
    file = folder / "job.yaml"
    file.write_text(f"serialization-config:\n{swapped}", encoding="utf-8")
    changed = check_jobs(with_kryo(same), load_job(file, with_kryo(same), FLINK_2), target="2.2")
    (found,) = remarkable(changed)
    assert "com.acme.Money has another Kryo serializer now" in found.findings[0].reason


def test_a_class_of_the_old_job_that_the_configuration_leaves_out(folder: Path) -> None:
    old = with_kryo(KryoConfig(("com.acme.Tag", "com.acme.Gone")).configure("com.acme.Offer"))
    file = folder / "job.yaml"
    file.write_text("serialization-config: [com.acme.Tag: {type: kryo}]", encoding="utf-8")
    (found,) = remarkable(check_jobs(old, load_job(file, old, FLINK_2), target="2.2"))
    assert found.outcome is Outcome.RECONFIGURED
    assert "incompatible if com.acme.Gone" in found.findings[0].reason


def test_avro_on_the_class_path_is_that_of_the_snapshot(folder: Path) -> None:
    avro = KryoRegistration(class_name="org.apache.avro.generic.GenericData$Array", resolved=True, value=b"real")
    schema = KryoRegistration(class_name="org.apache.avro.Schema", resolved=True, value=b"of schemas")
    own = KryoConfig().configure("com.acme.Offer").registrations[0]
    old = Kryo(type_class="com.acme.Offer", registrations=(own, avro), default_serializer_classes=(schema,))
    (fresh, kept) = load_kryo(folder, "- com.acme.Tag: {type: kryo}", with_kryo(old))
    assert kept.registrations[-1] == fresh.registrations[-1] == avro
    assert kept.default_serializer_classes == (schema,)


def test_a_class_that_nobody_describes_leaves_the_verdict_open(folder: Path) -> None:
    report = judge(folder, orders("order: com.acme.Unheard"))
    assert report.verdict is CheckVerdict.TO_BE_DETERMINED
    (found,) = remarkable(report)
    assert "com.acme.Unheard is not among the given classes" in found.findings[0].reason


def test_an_avro_schema_that_reads_the_old_data(folder: Path) -> None:
    (folder / "offer.avsc").write_text(schema("a", "b"))
    (found,) = remarkable(judge(folder, orders("offers: {avro: offer.avsc}")))
    assert found.outcome is Outcome.AFTER_MIGRATION


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a list", "is not a mapping"),
        ("{", "is not YAML"),
        ("operator: {}", "unknown entries operator"),
        ("operators: {orders: {state: {}}}", "unknown entries state"),
        (orders("sum: {typ: Long}"), "unknown entries typ"),
        (orders("sum: {kind: HEAP, type: Long}"), "'HEAP' is not a kind of state"),
        (orders("sum: {kind: LIST}"), "`element` is missing"),
        (orders("other: {kind: MAP, value: Long}"), "`key` is missing"),
        (orders("sum: [Long]"), "state sum is not a mapping"),
        (orders("sum: List<Long"), "is not a type"),
        (orders("sum: Map<Long>"), "has the wrong number of types for Map"),
        ("operators: {late: {states: {first: Long}}}", "the type of the keys is missing"),
        ("parallelism: none", "'none' is not a parallelism"),
        (orders("offers: {avro: missing.avsc}"), "the schema cannot be read"),
        ("classes: [missing.jar]", "does not exist"),
        ("serialization-config: {a: b}", "is not a list"),
        ("serialization-config: [a: {type: protobuf}]", "has no type"),
        ("serialization-config: [a: {type: kryo, kryo-type: both, class: b}]", "which Flink ignores"),
        ("serialization-config: [a: {type: kryo, kryo-type: default}]", "names no serializer"),
        ("serialization-config: [a: {type: pojo}, a: {type: kryo}]", "has a twice"),
    ],
)
def test_what_is_no_description(folder: Path, text: str, message: str) -> None:
    with pytest.raises(StateError, match=message) as raised:
        load(folder, text)
    assert str(raised.value.where.file).startswith(str(folder))


def test_a_file_that_is_missing(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_job(folder / "other.yaml", OLD, FLINK_2)


# Types and schemas by themselves


def test_a_type_goes_inside_the_list_the_map_and_ttl() -> None:
    job = OLD
    for state in ("history", "quantities", "seen"):
        job = replace_type(job, f"orders/{state}", parse("Int"))
    states = {each.name: describe(each.serializers[Subject.VALUE]) for each in job.operators[0].states[:5]}
    assert (states["history"], states["quantities"], states["seen"]) == ("List<Int>", "Map<String, Int>", "Ttl<Int>")
    assert [describe(payload_of(each)) for each in job.operators[0].states[1:3]] == ["Int", "Int"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("long", "Long"),
        ("Map<String, List<Integer>>", "Map<String, List<Int>>"),
        ("Tuple2<String, long>", "Tuple2<String, Long>"),
        ("java.util.List<String>", "Nullable<List<Nullable<String>>>"),
        ("long[]", "LongPrimitiveArray"),
        ("List<P>", "List<Pojo<P>(a: Int)>"),
    ],
)
def test_types_in_readable_form_and_java(text: str, expected: str) -> None:
    extraction = extract_types(OLD, open_class_path([], load_classes("P: [a: int]")), FLINK_2)
    assert describe(read_type(text, extraction)) == expected


@pytest.mark.parametrize("subject", ["orders", "/order", "orders/"])
def test_a_place_that_is_none(subject: str) -> None:
    with pytest.raises(UsageError, match="does not name a state"):
        replace_avro(OLD, subject, schema("a"))


@pytest.mark.parametrize("subject", ["late/order", "orders/late"])
def test_a_state_that_is_not_there(subject: str) -> None:
    with pytest.raises(NotFoundError, match="'late'"):
        replace_avro(OLD, subject, schema("a"))


def test_a_schema_goes_for_the_record_of_its_name() -> None:
    inner = build.tuple_of(build.avro("Offer", schema("a")), build.avro("Bid", schema("a", name="Bid")))
    job = replace_type(OLD, "orders/sum", inner)
    changed = replace_avro(job, "orders/sum", schema("a", "b", name="Bid"))
    (found,) = remarkable(check_jobs(job, changed))
    assert {each.path.partition(".")[2] for each in found.findings} == {"f1.b"}


def test_a_schema_goes_for_a_generated_class_that_does_not_tell_its_own() -> None:
    base = JavaType("org.apache.avro.specific.SpecificRecordBase")
    generated = JavaClass("com.acme.Offer", parent=base)
    extraction = extract_types(OLD, ClassPath((GivenClass(generated),)), FLINK_2)
    job = replace_type(OLD, "orders/sum", extraction.extract(JavaType(generated.name)))
    changed = replace_avro(job, "orders/sum", schema("a")).operators[0].states[3]
    assert changed.serializers[Subject.VALUE] == build.avro("com.acme.Offer", schema("a"))


def test_a_schema_for_a_state_without_avro() -> None:
    with pytest.raises(UsageError, match="state sum has no Avro records"):
        replace_avro(OLD, "orders/sum", schema("a"))


def test_a_schema_that_fits_no_record() -> None:
    inner = build.tuple_of(build.avro("A", schema(name="A")), build.avro("B", schema(name="B")))
    with pytest.raises(UsageError, match="several kinds of Avro records"):
        replace_avro(replace_type(OLD, "orders/sum", inner), "orders/sum", schema("a", name="C"))


def test_classes_take_the_place_of_those_of_the_snapshot_and_others_stay() -> None:
    classes = open_class_path([], load_classes("com.acme.Order: [id: long, place: com.acme.Place]"))
    extraction = extract_types(OLD, classes, FLINK_2)
    changed = replace_classes(OLD, extraction)
    value = changed.operators[0].states[0].serializers[Subject.VALUE]
    assert describe(value) == "Pojo<com.acme.Order>(id: Long, place: Pojo<com.acme.Place>(zip: String))"
    assert changed.operators[1] == COUNTER
    assert any("com.acme.Place" in note for note in list_assumed(extraction))


def test_keys_are_replaced_too() -> None:
    old = JobDescription("old", (replace(ORDERS, key=parse("Enum<E>(A)"), states=()),))
    extraction = extract_types(old, open_class_path([], load_classes("enum E: [B]")), FLINK_2)
    assert check_jobs(old, replace_classes(old, extraction)).verdict is CheckVerdict.INCOMPATIBLE
