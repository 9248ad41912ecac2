"""Planning of changes of list and broadcast state."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import MigrationError
from state_pipelines.metadata.checkpoint import SubtaskState
from state_pipelines.metadata.handles import ByteStreamStateHandle
from state_pipelines.operations.jobs.job_state import JobOperator, JobState, Subject, describe_job, list_serializers
from state_pipelines.operations.jobs.new_job import migrate_job
from state_pipelines.operations.migration import Direction, Migration, StateShape, dump_migration, parse_migration
from state_pipelines.operations.migration import flows as fl
from state_pipelines.operations.migration.drafting import draft_operator
from state_pipelines.operations.migration.history import apply_migration, find_position, read_schemas
from state_pipelines.operations.migration.migration_planner import plan_migrations, plan_operator
from state_pipelines.operations.migration.shapes import find_shapes
from state_pipelines.operations.migration.structs import PlanContext
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, pojo
from state_pipelines.serializers.state_meta_info import broadcast_state, keyed_state, operator_list
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot import Operator
from tests.snapshot.built import build_snapshot, list_operator, operator, write_list_state
from tests.snapshot.savepoints import orders, types

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.operations.migration.flows import OperatorPlan
    from state_pipelines.serializers.tree import Serializer

LONG, INT, STRING = basic("Long"), basic("Int"), basic("String")
RULE = pojo("shop.Rule", {"amount": LONG, "note": STRING})
IMPOSSIBLE = {"impossible": "it is a test"}


def split(payload: Serializer = RULE, name: str = "list") -> StateShape:
    return StateShape(operator_list(name, payload), None)


def union(payload: Serializer = RULE, name: str = "list") -> StateShape:
    return StateShape(operator_list(name, payload, "UNION"), None)


def broadcast(payload: Serializer = RULE, name: str = "list") -> StateShape:
    return StateShape(broadcast_state(name, STRING, payload), None)


def keyed(name: str = "value") -> StateShape:
    return StateShape(keyed_state(name, "VALUE", RULE, VOID_NAMESPACE), STRING)


SHAPES = [split, union, broadcast]


def migration(*upgrade: Any, state: str | None = "list", downgrade: Any = None, uid: str = "o") -> Migration:
    content: dict[str, Any] = {"revision": "1", "operator": uid, "upgrade": list(upgrade)}
    content["downgrade"] = downgrade or IMPOSSIBLE
    return parse_migration(content if state is None else {**content, "state": state})


def plan(*shapes: StateShape, made: Migration) -> OperatorPlan:
    return plan_migrations({each.name: each for each in shapes}, [(made, Direction.UPGRADE)])


FIELDS: dict[str, Any] = {
    "rename": {"rename": {"note": "text"}},
    "add": {"add": {"field": "more", "type": "Int", "default": 1}},
    "drop": {"drop": {"field": "note"}},
    "cast": {"cast": {"field": "amount", "to": "Int"}},
    "set": {"set": {"field": "amount", "expression": "amount + 1"}},
    "convert": {"convert": {"to": "Tuple2<Long, String>", "expression": "named_struct('f0', amount, 'f1', note)"}},
    "class": {"rename_class": {"shop": "store"}},
    "python": {"python": {"function": "module:name", "deterministic": True}},
    "filter": {"filter": {"keep": "amount > 0", "reason": "empty"}},
}


@pytest.mark.parametrize("step", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("make", SHAPES)
def test_steps_change_the_payload_as_that_of_keyed_state(make: Any, step: Any) -> None:
    changed = plan(make(), made=migration(step)).states["list"].shape
    value = plan(keyed("list"), made=migration(step)).states["list"].shape
    assert describe(changed.payload) == describe(value.payload)
    assert changed.kind == make().kind
    assert changed.map_key == make().map_key


@pytest.mark.parametrize("make", SHAPES)
def test_renamed_and_dropped_states_are_not_encoded_anew(make: Any) -> None:
    renamed = plan(make(), made=migration({"rename_state": "other"}))
    assert renamed.changed == {}
    assert renamed.states["other"] == fl.Read("list", make().with_name("other"))
    dropped = plan(make(), made=migration({"drop_state": {"reason": "old"}}))
    assert (dropped.states, dropped.dropped) == ({}, {"list": "old"})


def test_a_list_is_split() -> None:
    parts = {"amounts": {"type": "Long", "expression": "amount"}, "notes": {"type": "String", "expression": "note"}}
    made = plan(union(), made=migration({"split": {"into": parts}}))
    assert {name: (flow.shape.kind, describe(flow.shape.payload)) for name, flow in made.states.items()} == {
        "amounts": ("UNION", "Long"),
        "notes": ("UNION", "String"),
    }


REFUSED = {
    "ttl": ({"ttl": {"enable": "TIMESTAMP '2024-01-01 00:00:00'"}}, "cannot have TTL"),
    "kind": ({"kind": {"to": "LIST"}}, "cannot change its kind"),
    "map": ({"kind": {"to": "MAP", "map_key": {"type": "String", "expression": "note"}}}, "cannot change its kind"),
    "merge": (
        {"merge": {"with": ["value"], "into": "all", "type": "Long", "expression": "list.amount"}},
        "which entries of the states belong together",
    ),
}


@pytest.mark.parametrize(("step", "reason"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("make", SHAPES)
def test_steps_without_a_meaning_are_refused(make: Any, step: Any, reason: str) -> None:
    with pytest.raises(MigrationError, match=reason) as caught:
        plan(make(), keyed(), made=migration(step))
    assert caught.value.where.state == "list"
    assert caught.value.where.path == "upgrade 1"


def test_a_list_is_not_merged_into_keyed_state() -> None:
    step = {"merge": {"with": ["list"], "into": "all", "type": "Long", "expression": "list.amount"}}
    with pytest.raises(MigrationError, match="belong together"):
        plan(keyed(), split(), made=migration(step, state="value"))


def test_another_key_leaves_operator_state_alone() -> None:
    key = {"key": {"type": "Long", "expression": "CAST(state_key AS BIGINT)"}}
    made = plan(keyed(), broadcast(), made=migration(key, state=None))
    assert list(made.changed) == ["value"]
    assert made.key == LONG
    with pytest.raises(MigrationError, match="no keyed state"):
        plan(broadcast(), made=migration(key, state=None))


def test_keyed_and_operator_state_are_planned_side_by_side() -> None:
    back = [{"rename": {"text": "note"}}]
    made = parse_migration(
        {
            "revision": "1",
            "changes": [
                {"operator": "o", "state": "value", "upgrade": [FIELDS["drop"]], "downgrade": IMPOSSIBLE},
                {"operator": "o", "state": "list", "upgrade": [FIELDS["rename"]], "downgrade": back},
            ],
        }
    )
    whole = plan(keyed(), split(), made=made)
    assert (list(whole.keyed.states), list(whole.unkeyed.states)) == (["value"], ["list"])
    assert whole.keyed.back is None
    assert whole.keyed.reason == "it is a test"
    assert whole.unkeyed.back is not None
    assert whole.unkeyed.back.states["list"].shape == split()
    assert whole.unkeyed.impossible == {}


def test_operator_states_are_found_by_their_kinds() -> None:
    old = types().open().operator("operator-states")
    assert [(each.name, each.kind) for each in find_shapes(old).values()] == [
        ("split", "SPLIT_DISTRIBUTE"),
        ("union", "UNION"),
        ("empty", "SPLIT_DISTRIBUTE"),
        ("persons", "BROADCAST"),
        ("names", "BROADCAST"),
    ]


def test_an_operator_state_with_the_name_of_a_keyed_one_is_not_planned() -> None:
    old = types().open()
    keyed = old.operator("state-kinds")
    handle = write_list_state("value", [b"a"])
    subtasks = (replace(keyed.metadata.subtasks[0], managed_operator_state=handle), *keyed.metadata.subtasks[1:])
    both = Operator(old, replace(keyed.metadata, subtasks=subtasks))
    assert [each.kind for each in both.states if each.name == "value"] == ["VALUE", "SPLIT_DISTRIBUTE"]
    assert find_shapes(both) == find_shapes(keyed)


def test_operator_state_that_cannot_be_read_is_told_when_a_step_names_it(tmp_path: Path) -> None:
    handle = write_list_state("list", [b"a"])
    damaged = ByteStreamStateHandle("damaged", b"\xff" * 9)
    subtask = SubtaskState(0, managed_operator_state=type(handle)(handle.states, damaged))
    old = build_snapshot(tmp_path, operator("op", subtask), uids=["op"]).operator("op")
    assert find_shapes(old) == {}
    with pytest.raises(MigrationError, match=r"no state list.*its operator state cannot be read"):
        plan_operator(old, find_shapes(old), [(migration(FIELDS["drop"], uid="op"), Direction.UPGRADE)])


BACK = {
    "rename": [{"rename": {"text": "note"}}],
    "cast": [{"cast": {"field": "amount", "to": "Long"}}],
}


def test_the_place_of_a_snapshot_is_found_by_its_operator_state(tmp_path: Path) -> None:
    elements = [(b"\0\0\0\0" + bytes(9) + b"\0\1")]
    old = build_snapshot(tmp_path, list_operator("op", "list", elements, serializer=RULE), uids=["op"])
    revisions = [
        parse_migration(
            {"revision": name, "operator": "op", "state": "list", "upgrade": [FIELDS[name]], "downgrade": way}
        )
        for name, way in BACK.items()
    ]
    schemas = read_schemas(old, revisions)
    assert find_position(revisions, schemas, "base").revision == "base"
    for each in revisions:
        schemas, exact = apply_migration(schemas, each, Direction.UPGRADE)
        assert exact
        assert find_position(revisions, schemas, "base").revision == each.revision


def test_the_migrated_job_has_the_new_operator_state() -> None:
    old = orders().open()
    job = describe_job(old)
    names = {each.name for each in job.find("order-counter").states}
    made = migration({"rename_state": "other"}, state="returns", uid="order-counter")
    states = {
        each.name: each for each in migrate_job(job, old, [(made, Direction.UPGRADE)]).find("order-counter").states
    }
    assert states.keys() == (names - {"returns"}) | {"other"}
    assert list(states["other"].serializers) == [Subject.ELEMENT]
    prices = migration({"drop_state": {"reason": "old"}}, state="prices", uid="pricing")
    assert "prices" not in {
        each.name for each in migrate_job(job, old, [(prices, Direction.UPGRADE)]).find("pricing").states
    }


@pytest.mark.parametrize("make", SHAPES)
def test_changed_operator_state_is_drafted(make: Any) -> None:
    new = make(pojo("shop.Rule", {"amount": basic("Double"), "note": STRING, "more": INT}))
    state = JobState("list", new.kind, list_serializers(new.kind, new.info))
    job = JobOperator("id", "o", 1, 128, None, (state,))
    context = PlanContext()
    changes, remarks = draft_operator("o", {"list": make()}, job, context, datetime(2026, 1, 2, tzinfo=UTC))
    content = dump_migration(Migration("1", None, "", tuple(changes)))
    assert content["state"] == "list"
    assert content["upgrade"] == [
        {"add": {"field": "more", "type": "Int", "expression": "0"}},
        {"cast": {"field": "amount", "to": "Double"}},
    ]
    assert remarks == []
    reached = plan(make(), made=Migration("1", None, "", tuple(changes))).states["list"].shape
    assert describe(reached.payload) == describe(new.payload)


def test_an_operator_state_that_became_another_kind_is_a_remark() -> None:
    new = union()
    job = JobOperator("id", "o", 1, 128, None, (JobState("list", new.kind, list_serializers(new.kind, new.info)),))
    changes, (remark,) = draft_operator("o", {"list": split()}, job, PlanContext(), datetime(2026, 1, 2, tzinfo=UTC))
    assert changes == []
    assert "no step makes UNION state" in remark
