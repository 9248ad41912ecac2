"""What a restore allows where."""

from __future__ import annotations

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.operations.check.check import StateCheck, check_serializers
from state_pipelines.operations.jobs.job_state import Subject
from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.text import parse
from state_pipelines.serializers.tree import Kryo, LogicalType, RowData

ADDED, REORDERED = "Pojo<P>(a: Long, b: Long)", "Enum<E>(B, A)"
PLAIN, ORDERED = "Pojo<P>(a: Long)", "Enum<E>(A, B)"


def check_place(
    kind: str, subject: Subject, old: str, new: str, *, target: str = "2.2", backend: str | None = None
) -> dict[Subject, StateCheck]:
    sides = ({subject: parse(side)} for side in (old, new))
    checks = check_serializers("op", "state", *sides, kind=kind, target=target, backend=backend)
    return {each.subject: each for each in checks}


@pytest.mark.parametrize("backend", [None, "hashmap", "rocksdb"])
@pytest.mark.parametrize(
    ("kind", "subject"),
    [("VALUE", Subject.KEY), ("VALUE", Subject.NAMESPACE), ("TIMER", Subject.TIMER)],
)
def test_keys_namespaces_and_timers_cannot_migrate(kind: str, subject: Subject, backend: str | None) -> None:
    found = check_place(kind, subject, PLAIN, ADDED, backend=backend)[subject]
    assert found.outcome is Outcome.INCOMPATIBLE
    assert "cannot be migrated" in found.reason


@pytest.mark.parametrize("subject", [Subject.KEY, Subject.NAMESPACE])
def test_keys_and_namespaces_may_be_reconfigured(subject: Subject) -> None:
    assert check_place("VALUE", subject, ORDERED, REORDERED)[subject].outcome is Outcome.RECONFIGURED


@pytest.mark.parametrize(
    ("kind", "subject"),
    [
        ("VALUE", Subject.VALUE),
        ("REDUCING", Subject.VALUE),
        ("SPLIT_DISTRIBUTE", Subject.ELEMENT),
        ("UNION", Subject.ELEMENT),
        ("BROADCAST", Subject.MAP_KEY),
        ("BROADCAST", Subject.MAP_VALUE),
    ],
)
def test_values_and_operator_state_migrate(kind: str, subject: Subject) -> None:
    found = check_place(kind, subject, PLAIN, ADDED)[subject]
    assert found.outcome is Outcome.AFTER_MIGRATION
    assert found.error == ""


def test_list_state_is_judged_by_element() -> None:
    found = check_place("LIST", Subject.VALUE, f"List<{PLAIN}>", f"List<{ADDED}>")
    assert found[Subject.ELEMENT].outcome is Outcome.AFTER_MIGRATION
    assert found[Subject.ELEMENT].findings[0].path == "element.b"


def test_map_keys_cannot_migrate_on_rocksdb() -> None:
    maps = f"Map<{PLAIN}, Long>", f"Map<{ADDED}, Long>"
    found = check_place("MAP", Subject.VALUE, *maps)
    assert found[Subject.MAP_KEY].outcome is Outcome.INCOMPATIBLE
    assert found[Subject.MAP_KEY].reason.startswith("on RocksDB")
    assert found[Subject.MAP_KEY].error.endswith(
        "migration for MapState currently only allows value schema evolutions."
    )
    assert found[Subject.MAP_VALUE].outcome is Outcome.AS_IS


def test_map_keys_migrate_on_hashmap() -> None:
    found = check_place("MAP", Subject.VALUE, f"Map<{PLAIN}, Long>", f"Map<{ADDED}, Long>", backend="hashmap")
    assert found[Subject.MAP_KEY].outcome is Outcome.AFTER_MIGRATION


@pytest.mark.parametrize(("value", "expected"), [(PLAIN, Outcome.RECONFIGURED), (ADDED, Outcome.INCOMPATIBLE)])
def test_rocksdb_migrates_map_values_only_if_the_keys_stay_as_they_are(value: str, expected: Outcome) -> None:
    found = check_place("MAP", Subject.VALUE, f"Map<{ORDERED}, {PLAIN}>", f"Map<{REORDERED}, {value}>")
    assert found[Subject.MAP_KEY].outcome is expected


def test_map_values_migrate() -> None:
    found = check_place("MAP", Subject.VALUE, f"Map<Long, {PLAIN}>", f"Map<Long, {ADDED}>")
    assert [each.outcome for each in found.values()] == [Outcome.AS_IS, Outcome.AFTER_MIGRATION]


@pytest.mark.parametrize(
    ("kind", "subject", "error"),
    [
        (
            "VALUE",
            Subject.KEY,
            "The new key serializer (String) must be compatible with the previous key serializer (Long).",
        ),
        (
            "VALUE",
            Subject.NAMESPACE,
            "The new namespace serializer (String) must be compatible with the old namespace serializer (Long).",
        ),
        (
            "VALUE",
            Subject.VALUE,
            "The new state serializer (String) must not be incompatible with the old state serializer (Long).",
        ),
        ("TIMER", Subject.TIMER, "The new priority queue serializer must not be incompatible."),
        ("UNION", Subject.ELEMENT, "The new state typeSerializer for operator state must not be incompatible."),
        ("BROADCAST", Subject.MAP_KEY, "The new key typeSerializer for broadcast state must not be incompatible."),
        ("BROADCAST", Subject.MAP_VALUE, "The new value typeSerializer for broadcast state must not be incompatible."),
    ],
)
def test_the_error_is_what_flink_raises(kind: str, subject: Subject, error: str) -> None:
    assert check_place(kind, subject, "Long", "String")[subject].error == error


def test_the_heap_backend_says_who_it_is() -> None:
    found = check_place("VALUE", Subject.VALUE, "Long", "String", backend="hashmap")[Subject.VALUE]
    assert found.error.startswith("For heap backends, the new state serializer (String) must not")


def test_flink_raises_nothing_where_it_overlooks_the_change() -> None:
    found = check_place("VALUE", Subject.VALUE, "Map<Long, String>", "Tuple2<Long, String>")[Subject.VALUE]
    assert found.outcome is Outcome.INCOMPATIBLE
    assert found.error == ""


def test_a_removed_constant_has_an_error_of_its_own() -> None:
    found = check_place("VALUE", Subject.VALUE, "Enum<E>(A, B)", "Enum<E>(A)")[Subject.VALUE]
    assert found.error.startswith("Could not create a restore serializer for enum")


@pytest.mark.parametrize("amounts", [("Long", "Double"), ("Double", "Long")])
def test_a_changed_field_type_is_incompatible_in_both_directions(amounts: tuple[str, str]) -> None:
    old, new = (f"Pojo<com.acme.orders.Order>(amount: {kind}, quantity: Int)" for kind in amounts)
    found = check_place("VALUE", Subject.VALUE, old, new)[Subject.VALUE]
    assert found.outcome is Outcome.INCOMPATIBLE
    assert [finding.path for finding in found.findings] == ["value.amount"]
    assert f"Cast to {amounts[1]}" in found.remedy


# TTL


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("VALUE", "Long", "Ttl<Long>"),
        ("VALUE", "Ttl<Long>", "Long"),
        ("LIST", "List<Long>", "List<Ttl<Long>>"),
        ("MAP", "Map<Long, Ttl<Long>>", "Map<Long, Long>"),
    ],
)
def test_ttl_can_be_switched_since_flink_2(kind: str, old: str, new: str) -> None:
    outcomes = {
        target: [each.outcome for each in check_place(kind, Subject.VALUE, old, new, target=target).values()][-1]
        for target in ("1.20", "2.0", "2.2.1")
    }
    assert outcomes == {
        "1.20": Outcome.INCOMPATIBLE,
        "2.0": Outcome.AFTER_MIGRATION,
        "2.2.1": Outcome.AFTER_MIGRATION,
    }


def test_ttl_of_a_changed_value_is_incompatible() -> None:
    assert check_place("VALUE", Subject.VALUE, "Long", "Ttl<String>")[Subject.VALUE].outcome is Outcome.INCOMPATIBLE


def test_wrapping_for_ttl_does_not_show() -> None:
    found = check_place("VALUE", Subject.VALUE, "Long", "List<Long>")[Subject.VALUE]
    assert (found.findings[0].old, found.findings[0].new) == ("Long", "List<Long>")


# Kryo


@pytest.mark.parametrize(
    ("kryo_version", "target", "expected"),
    [
        (2, "2.2", Outcome.INCOMPATIBLE),
        (2, "1.20", Outcome.AS_IS),
        (5, "2.2", Outcome.AS_IS),
        (None, "2.2", Outcome.AS_IS),
    ],
)
def test_kryo_data_do_not_cross_major_releases(kryo_version: int | None, target: str, expected: Outcome) -> None:
    value = {Subject.VALUE: build.pojo("P", {"k": Kryo(type_class="com.acme.K")})}
    (found,) = check_serializers("op", "s", value, value, target=target, kryo_version=kryo_version)
    assert found.outcome is expected
    assert [finding.path for finding in found.findings] == ["value.k"] * (expected is Outcome.INCOMPATIBLE)
    assert found.error == ""


# SQL rows


def check_rows(
    old: tuple[str, ...] | None, new: tuple[str, ...] | None, target: str = "2.4", *, row_names: bool = False
) -> StateCheck:
    types, fields = (LogicalType(root="BIGINT"),) * 2, (build.basic("Long"),) * 2
    sides = [
        {
            Subject.ELEMENT: build.list_of(
                RowData(
                    snapshot_class="R",
                    snapshot_version=3 if names is None else 4,
                    types=types,
                    fields=fields,
                    names=names,
                )
            )
        }
        for names in (old, new)
    ]
    (found,) = check_serializers("op", "s", *sides, kind="UNION", target=target, row_names=row_names)
    return found


@pytest.mark.parametrize(("old", "new"), [(("id", "total"), ("total", "id")), (None, ("id", "total"))])
def test_names_of_sql_rows_do_not_count(old: tuple[str, ...] | None, new: tuple[str, ...]) -> None:
    assert check_rows(old, new).outcome is Outcome.AS_IS


def test_names_of_sql_rows_count_where_that_is_asked_for() -> None:
    found = check_rows(("id", "total"), ("total", "id"), row_names=True)
    assert found.outcome is Outcome.INCOMPATIBLE
    assert [(each.path, each.old, each.new) for each in found.findings] == [
        ("element[].f0", "id", "total"),
        ("element[].f1", "total", "id"),
    ]
    assert found.error == ""
    assert check_rows(None, ("id", "total"), row_names=True).outcome is Outcome.AS_IS


@pytest.mark.parametrize(
    ("old", "target", "expected"),
    [
        (("id", "total"), "2.3", Outcome.INCOMPATIBLE),
        (("id", "total"), "2.4", Outcome.AS_IS),
        (None, "2.3", Outcome.AS_IS),
    ],
)
def test_flink_before_2_4_misreads_named_rows(old: tuple[str, ...] | None, target: str, expected: Outcome) -> None:
    assert check_rows(old, old, target).outcome is expected


# Wrong use


def test_places_must_match() -> None:
    long = build.basic("Long")
    with pytest.raises(UsageError, match="only one of the old and the new state has a serializer of the namespace"):
        check_serializers("op", "s", {Subject.VALUE: long}, {Subject.VALUE: long, Subject.NAMESPACE: long})


def test_the_message_about_a_namespace_names_the_namespace() -> None:
    old = {Subject.NAMESPACE: parse("TimeWindow"), Subject.VALUE: parse("Long")}
    new = {Subject.NAMESPACE: parse("VoidNamespace"), Subject.VALUE: parse("Long")}
    checks = {each.subject: each for each in check_serializers("op", "state", old, new)}
    assert checks[Subject.NAMESPACE].error == (
        "The new namespace serializer (VoidNamespace) must be compatible with the old namespace serializer "
        "(TimeWindow)."
    )
