"""Payloads that steps on fields do not reach: what changes them, and that the hints of errors do."""

from __future__ import annotations

from typing import Any

import pytest

from state_pipelines.connectors.registry import ConnectorStateKind
from state_pipelines.errors import MigrationError
from state_pipelines.operations.check.check import check_jobs
from state_pipelines.operations.jobs.job_state import JobDescription, JobOperator, JobState, Subject
from state_pipelines.operations.migration import Direction, StateShape, parse_migration
from state_pipelines.operations.migration import flows as fl
from state_pipelines.operations.migration.migration_files import dump_migration
from state_pipelines.operations.migration.migration_planner import plan_migrations
from state_pipelines.operations.migration.structs import KnownConnector, PlanContext
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, pojo, timer
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.state_meta_info import keyed_state, operator_list, priority_queue
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import StateKind
from tests.connectors.test_beam import MARK
from tests.connectors.test_beam import serializer as beam_serializer

BYTES, LONG, STRING = basic("BytePrimitiveArray"), basic("Long"), basic("String")
MONEY = tree.Declared(
    snapshot_class="com.acme.Money$Snap",
    snapshot_version=7,
    unknown_class="com.acme.Money$Snap",
    raw=b"\1",
    layout="Struct(currency: utf, cents: i64)",
)
KAFKA = KnownConnector("kafka", ConnectorStateKind.SPLIT)


def keyed(payload: tree.Serializer, name: str = "s") -> StateShape:
    return StateShape(keyed_state(name, "VALUE", payload, VOID_NAMESPACE), STRING)


def listed(payload: tree.Serializer, name: str = "s") -> StateShape:
    return StateShape(operator_list(name, payload), None)


def plan(shapes: list[StateShape], *steps: Any, state: str | None = "s", **context: Any) -> dict[str, fl.Flow]:
    content = {"revision": "1", "operator": "o", "upgrade": [*steps], "downgrade": {"impossible": "a test"}}
    migration = parse_migration(content if state is None else {**content, "state": state})
    assert parse_migration(dump_migration(migration)).changes == migration.changes
    found = plan_migrations(
        {each.name: each for each in shapes}, [(migration, Direction.UPGRADE)], context=PlanContext(**context)
    )
    return dict(found.states)


def stage(flow: fl.Flow) -> fl.Stage:
    assert isinstance(flow, fl.Apply)
    return flow.stage


def set_field(field: str) -> dict[str, Any]:
    return {"set": {"field": field, "expression": "1"}}


def test_set_changes_a_value_of_a_declared_layout() -> None:
    found = plan([keyed(MONEY)], set_field("cents"))["s"]
    assert stage(found) == fl.Project((("currency", "`currency`"), ("cents", "1")))
    assert found.shape.payload == MONEY


def test_a_declared_serializer_is_a_target_of_convert() -> None:
    for text in ("Declared<com.acme.Money$Snap>", f"Declared<`com.acme.Money$Snap`>({MONEY.layout})"):
        step = {"convert": {"to": text, "expression": "named_struct('currency', 'EUR', 'cents', value)"}}
        found = plan([keyed(LONG), keyed(MONEY, "other")], step, declared=(MONEY,))["s"]
        assert found.shape.payload == MONEY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Declared<com.acme.Other>", "no state of the declared serializer com.acme.Other"),
        ("Declared<com.acme.Money$Snap>(i64)", "is declared as Struct"),
    ],
)
def test_a_declared_serializer_that_the_snapshot_lacks_is_refused(text: str, message: str) -> None:
    with pytest.raises(MigrationError, match=message):
        plan([keyed(LONG)], {"convert": {"to": text, "expression": "value"}}, declared=(MONEY,))


def test_a_column_of_a_connector_is_set() -> None:
    found = plan([listed(BYTES)], set_field("split.offset"), connectors=(("s", KAFKA),))["s"]
    assert stage(found) == fl.SetSplit("kafka", ConnectorStateKind.SPLIT, "offset", "1")


@pytest.mark.parametrize(
    ("connector", "field", "message"),
    [
        ("could be the state of a and b", "split.offset", "has no column split.offset: could be the state of a and b"),
        (KAFKA, "split.topic", "split.topic of the split state of kafka cannot be set.*Columns .*: split.offset,"),
        (KnownConnector("file", ConnectorStateKind.SPLIT), "split.offset", "of file cannot be set.*Columns .*: none"),
    ],
)
def test_columns_that_cannot_be_set_are_refused(connector: Any, field: str, message: str) -> None:
    with pytest.raises(MigrationError, match=message):
        plan([listed(BYTES)], set_field(field), connectors=(("s", connector),))


HINTS = {
    "Kafka's splits": ([listed(BYTES)], {"connectors": (("s", KAFKA),)}, "split.offset"),
    "a declared layout": ([keyed(MONEY)], {}, "cents"),
    "Beam's coder": ([listed(beam_serializer(MARK))], {}, "key"),
}


@pytest.mark.parametrize(("shapes", "context", "named"), HINTS.values(), ids=HINTS)
def test_the_hint_of_a_payload_without_fields_names_a_step_that_works(
    shapes: list[StateShape], context: dict[str, Any], named: str
) -> None:
    with pytest.raises(MigrationError) as caught:
        plan(shapes, {"drop": {"field": "offset"}}, **context)
    assert "`set`" in caught.value.hint
    assert named in caught.value.hint
    assert "Python" not in caught.value.hint
    plan(shapes, set_field(named), **context)


# Keys


def job(key: tree.Serializer) -> JobDescription:
    states = (JobState("s", StateKind.VALUE, {Subject.NAMESPACE: VOID_NAMESPACE, Subject.VALUE: LONG}),)
    return JobDescription("job", (JobOperator("0" * 32, "o", 1, 128, key, states),))


def test_the_remedy_for_another_key_is_the_step_that_changes_it() -> None:
    report = check_jobs(job(STRING), job(LONG))
    (check,) = (each for each in report.checks if each.outcome is Outcome.INCOMPATIBLE)
    assert "`key: {type: TYPE, expression: SQL}`" in check.remedy
    assert all("serializer family" not in each.remedy for each in check.findings)
    step = {"key": {"type": "Long", "expression": "CAST(state_key AS BIGINT)"}}
    assert plan([keyed(LONG)], step, state=None)["s"].shape.key == LONG


def test_a_class_is_not_advised_as_a_new_key() -> None:
    moved = pojo("com.acme.shop.Id", {"id": STRING})
    report = check_jobs(job(pojo("com.acme.orders.Id", {"id": STRING})), job(moved))
    (check,) = (each for each in report.checks if each.outcome is Outcome.INCOMPATIBLE)
    assert "not known for this class" in check.remedy
    with pytest.raises(MigrationError, match="cannot be a key here"):
        plan([keyed(LONG)], {"key": {"type": describe(moved), "expression": "state_key"}}, state=None)


SEEN = {"by": "seen", "keep": "value > 5", "reason": "not seen lately"}
STATES = [
    keyed(LONG),
    keyed(LONG, "seen"),
    StateShape(priority_queue("timers", timer(STRING, VOID_NAMESPACE)), STRING),
    listed(LONG, "listed"),
]


def test_a_filter_of_keys_changes_all_keyed_states_and_timers_but_no_operator_state() -> None:
    found = plan(STATES, {"filter": SEEN}, state=None)
    by = fl.Read("seen", STATES[1])
    for name in ("s", "seen", "timers"):
        assert stage(found[name]) == fl.KeepKeys(by, "value > 5", "not seen lately")
        assert fl.find_reads(found[name]) == (name,)
        reads = (each for each in fl.walk_flow(found[name], beside=True) if isinstance(each, fl.Read))
        assert {each.state for each in reads} == {name, "seen"}
    assert isinstance(found["listed"], fl.Read)


@pytest.mark.parametrize(
    ("step", "state", "message"),
    [
        ({**SEEN, "by": "timers"}, None, "`by` names timers, which is no keyed state.*Keyed states are s, seen"),
        ({**SEEN, "by": "listed"}, None, "`by` names listed"),
        (SEEN, "s", "change a whole operator. Leave `state` out"),
        ({**SEEN, "missing": "lose"}, None, "Write keep"),
        ({"keep": "true", "reason": "r", "missing": "keep"}, "s", "Add `by: STATE`"),
    ],
)
def test_a_filter_of_keys_that_means_nothing_is_refused(step: dict[str, str], state: str | None, message: str) -> None:
    with pytest.raises(MigrationError, match=message):
        plan(STATES, {"filter": step}, state=state)
