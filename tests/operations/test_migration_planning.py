from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import MigrationError, StateError
from state_pipelines.operations.migration import Direction, Migration, StateShape, parse_migration
from state_pipelines.operations.migration import flows as fl
from state_pipelines.operations.migration.drafting import refuse_drafts
from state_pipelines.operations.migration.migration_planner import plan_migrations
from state_pipelines.operations.migration.structs import PlanContext
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import (
    TIME_WINDOW,
    VOID_NAMESPACE,
    avro,
    basic,
    generic_array,
    list_of,
    map_of,
    nullable,
    pojo,
    row,
    timer,
    ttl,
    tuple_of,
)
from state_pipelines.serializers.state_meta_info import keyed_state, priority_queue
from state_pipelines.serializers.text import describe

if TYPE_CHECKING:
    from state_pipelines.operations.migration.flows import OperatorPlan

LONG, INT, STRING, DOUBLE = basic("Long"), basic("Int"), basic("String"), basic("Double")
ADDRESS = pojo("shop.Address", {"city": STRING, "zip": STRING})
ORDER = pojo("shop.Order", {"address": ADDRESS, "amount": LONG, "note": STRING})
SCHEMA = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "amount", "type": "long"},
        {
            "name": "address",
            "type": ["null", {"type": "record", "name": "Address", "fields": [{"name": "zip", "type": "string"}]}],
        },
        {"name": "other", "type": ["null", "Address"]},
    ],
}


def shape(payload: tree.Serializer, *, name: str = "s", kind: str = "VALUE") -> StateShape:
    value = {"LIST": list_of, "MAP": lambda of: map_of(STRING, of)}.get(kind, lambda of: of)(payload)
    return StateShape(keyed_state(name, kind, value, VOID_NAMESPACE), STRING)


def migration(*upgrade: Any, state: str = "s", downgrade: Any = None, **entries: Any) -> Migration:
    content: dict[str, Any] = {"revision": "1", "operator": "o", "state": state, "upgrade": list(upgrade)}
    content |= {"downgrade": downgrade or {"impossible": "it is a test"}}
    return parse_migration({name: value for name, value in (content | entries).items() if value is not None})


def plan(*shapes: StateShape, steps: list[Any], **entries: Any) -> OperatorPlan:
    made = migration(*steps, **entries)
    return plan_migrations({each.name: each for each in shapes}, [(made, Direction.UPGRADE)])


def payload_after(payload: tree.Serializer, *steps: Any) -> str:
    return describe(plan(shape(payload), steps=list(steps)).states["s"].shape.payload)


def columns_after(payload: tree.Serializer, step: Any) -> dict[str, str]:
    flow = plan(shape(payload), steps=[step]).states["s"]
    assert isinstance(flow, fl.Apply)
    assert isinstance(flow.stage, fl.Project)
    return dict(flow.stage.columns)


@pytest.mark.parametrize(
    ("payload", "step", "after"),
    [
        (
            ORDER,
            {"rename": {"address.zip": "code"}},
            "Pojo<shop.Order>(address: Pojo<shop.Address>(city: String, code: String), amount: Long, note: String)",
        ),
        (
            ORDER,
            {"drop": {"field": "address.city"}},
            "Pojo<shop.Order>(address: Pojo<shop.Address>(zip: String), amount: Long, note: String)",
        ),
        (row(LONG, STRING, INT), {"drop": {"field": "f1"}}, "Row(f0: Long, f1: Int)"),
        (
            row(LONG, STRING),
            {"add": {"field": "f2", "type": "Int", "default": 1}},
            "Row(f0: Long, f1: String, f2: Int)",
        ),
        (row(LONG, STRING), {"reorder": ["f1", "f0"]}, "Row(f0: String, f1: Long)"),
        (tuple_of(LONG, STRING), {"add": {"field": "f2", "type": "Int", "default": 1}}, "Tuple3<Long, String, Int>"),
        (tuple_of(LONG, STRING), {"drop": {"field": "f0"}}, "Tuple1<String>"),
        (
            tuple_of(LONG, ORDER),
            {"drop": {"field": "f1.address"}},
            "Tuple2<Long, Pojo<shop.Order>(amount: Long, note: String)>",
        ),
        (tuple_of(LONG, STRING), {"cast": {"field": "f0", "to": "Int"}}, "Tuple2<Int, String>"),
        (nullable(tuple_of(LONG, STRING)), {"reorder": ["f1", "f0"]}, "Nullable<Tuple2<String, Long>>"),
        (
            ORDER,
            {
                "convert": {
                    "to": "Tuple2<Long, String>",
                    "expression": "named_struct('f0', amount, 'f1', concat(note, address))",
                }
            },
            "Tuple2<Long, String>",
        ),
        (LONG, {"convert": {"to": "Double"}}, "Double"),
        (
            ORDER,
            {"rename_class": {"shop": "store"}},
            "Pojo<store.Order>(address: Pojo<store.Address>(city: String, zip: String), amount: Long, note: String)",
        ),
    ],
)
def test_a_step_changes_the_serializer(payload: tree.Serializer, step: Any, after: str) -> None:
    assert payload_after(payload, step) == after


def test_the_columns_of_a_nested_struct_are_made_anew() -> None:
    sql = columns_after(ORDER, {"rename": {"address.zip": "code"}})
    assert sql["amount"] == "`amount`"
    assert sql["address"] == (
        "CASE WHEN `address` IS NOT NULL THEN named_struct('city', `address`.`city`, 'code', `address`.`zip`) END"
    )


ADDRESSES = pojo(
    "shop.Customer",
    {
        "address": ADDRESS,
        "addresses": generic_array("shop.Address", ADDRESS),
        "history": nullable(list_of(nullable(ADDRESS))),
        "places": nullable(map_of(nullable(STRING), ADDRESS)),
    },
)
PATHS = ("address.zip", "addresses[].zip", "history[].zip", "places[].zip")


def test_a_class_that_occurs_twice_changes_everywhere_or_not_at_all() -> None:
    with pytest.raises(MigrationError, match=r"class shop\.Address changes in address but not in addresses\[\]"):
        payload_after(ADDRESSES, {"rename": {"address.zip": "code"}})
    assert payload_after(ADDRESSES, *({"rename": {path: "code"}} for path in PATHS)) == describe(ADDRESSES).replace(
        "zip", "code"
    )


def test_a_class_may_differ_in_between_and_where_it_differed_before() -> None:
    other = pojo("shop.Address", {"city": STRING})
    odd = pojo("shop.Customer", {"address": ADDRESS, "old": other, "n": INT})
    assert "code" in payload_after(odd, {"rename": {"address.zip": "code"}})
    renamed = [{"rename": {"address.zip": "code"}}, {"rename": {"address.code": "zip"}}]
    assert payload_after(ADDRESSES, *renamed) == describe(ADDRESSES)


def test_steps_reach_elements_and_map_values() -> None:
    first = [{"cast": {"field": path, "to": "Int"}} for path in ("address.zip", "addresses[].zip")]
    last = [{"cast": {"field": path, "to": "Int"}} for path in ("history[].zip", "places[].zip")]

    def columns(*steps: Any) -> dict[str, str]:
        flow = plan(shape(ADDRESSES), steps=list(steps)).states["s"]
        assert isinstance(flow, fl.Apply)
        assert isinstance(flow.stage, fl.Project)
        return dict(flow.stage.columns)

    inner = "CASE WHEN `element` IS NOT NULL THEN named_struct('city', `element`.`city`, 'zip', `element`.`zip`) END"
    assert columns(*first, *last[::-1])["history"] == f"transform(`history`, `element` -> {inner})"
    assert columns(*first, *last)["places"] == f"transform_values(`places`, (`key`, `element`) -> {inner})"


def test_elements_are_those_of_collections() -> None:
    with pytest.raises(MigrationError, match=r"`\[\]` stands for the elements"):
        payload_after(ADDRESSES, {"drop": {"field": "address[].zip"}})


def test_rows_keep_their_kind() -> None:
    assert columns_after(row(LONG, STRING), {"drop": {"field": "f0"}}) == {"f0": "`f1`", "row_kind": "`row_kind`"}


def test_a_step_reaches_the_subclasses_of_a_pojo() -> None:
    gift = pojo("shop.Gift", {"amount": LONG, "card": STRING}, declared_by={"amount": "shop.Base"})
    base = pojo("shop.Base", {"amount": LONG}, non_registered={"shop.Gift": gift})
    flow = plan(shape(base), steps=[{"rename": {"amount": "cents"}}, {"cast": {"field": "card", "to": "Long"}}]).states[
        "s"
    ]
    assert describe(flow.shape.payload) == (
        "Pojo<shop.Base>(cents: Long, subclass shop.Gift: Pojo<shop.Gift>(card: Long, shop.Base#cents: Long))"
    )
    assert columns_after(base, {"add": {"field": "x", "type": "Int", "default": 1}}) == {
        "amount": "`amount`",
        "x": "1",
        "card": "`card`",
        "class": "`class`",
    }


def test_a_cast_of_a_field_of_a_subclass_leaves_other_objects_alone() -> None:
    gift = pojo("shop.Gift", {"amount": LONG, "card": STRING}, declared_by={"amount": "shop.Base"})
    base = pojo("shop.Base", {"amount": LONG}, non_registered={"shop.Gift": gift})
    # A primitive has no null, but an object of the base class has no such field at all.
    card = columns_after(base, {"cast": {"field": "card", "to": "long"}})["card"]
    assert card.startswith("CASE WHEN `class` IN ('shop.Gift') THEN coalesce(")
    amount = columns_after(base, {"cast": {"field": "amount", "to": "int"}})["amount"]
    assert amount.startswith("coalesce(")


def test_class_names_in_the_data_are_renamed_too() -> None:
    gift = pojo("shop.Gift", {"amount": LONG, "card": STRING}, declared_by={"amount": "shop.Base"})
    base = pojo("shop.Base", {"amount": LONG}, non_registered={"shop.Gift": gift})
    flow = plan(shape(base), steps=[{"rename_class": {"shop.Gift": "shop.Present"}}]).states["s"]
    assert isinstance(flow, fl.Apply)
    assert isinstance(flow.stage, fl.Replace)
    assert "WHEN 'shop.Gift' THEN 'shop.Present'" in flow.stage.sql
    assert "shop.Present" in describe(flow.shape.payload)


def test_class_names_that_are_not_in_the_data_need_no_new_bytes() -> None:
    assert isinstance(plan(shape(ORDER), steps=[{"rename_class": {"shop.Order": "shop.Sale"}}]).states["s"], fl.Read)


def test_an_avro_schema_is_changed() -> None:
    payload = avro("shop.Order", json.dumps(SCHEMA))
    flow = plan(
        shape(payload),
        steps=[
            {"rename": {"amount": "cents"}},
            {"add": {"field": "note", "type": "String?", "default": None}},
            {"rename": {"address.zip": "code", "other.zip": "code"}},
            {"reorder": ["note", "cents", "address", "other"]},
        ],
    ).states["s"]
    new = flow.shape.payload
    assert isinstance(new, tree.Avro)
    address = {"type": "record", "name": "shop.Address", "fields": [{"name": "code", "type": "string"}]}
    assert json.loads(new.schema_json) == {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "note", "type": ["null", "string"]},
            {"name": "cents", "type": "long"},
            {"name": "address", "type": ["null", address]},
            {"name": "other", "type": ["null", "shop.Address"]},
        ],
    }


def test_a_type_of_a_schema_cannot_differ_from_place_to_place() -> None:
    with pytest.raises(MigrationError, match=r"shop.Address is used several times"):
        plan(shape(avro("shop.Order", json.dumps(SCHEMA))), steps=[{"rename": {"address.zip": "code"}}])


def test_values_convert_by_field_name() -> None:
    target = "Pojo<shop.Sale>(address: Pojo<shop.Place>(zip: String), amount: Long)"
    flow = plan(shape(ORDER), steps=[{"convert": {"to": target, "discard": ["note", "address.city"]}}]).states["s"]
    assert isinstance(flow, fl.Apply)
    assert isinstance(flow.stage, fl.Project)
    assert describe(flow.shape.payload) == target
    columns = dict(flow.stage.columns)
    assert columns["amount"] == "`amount`"
    assert "'zip', `address`.`zip`" in columns["address"]


@pytest.mark.parametrize(
    ("payload", "step", "message"),
    [
        (ORDER, {"convert": {"to": "Pojo<a.B>(amount: Long)"}}, "cannot store address, note"),
        (
            ORDER,
            {"convert": {"to": "Pojo<a.B>(amount: Long)", "expression": "named_struct('amount', amount)"}},
            "cannot store address, note",
        ),
        (LONG, {"convert": {"to": "Pojo<a.B>(amount: Long)"}}, "the old or the new type of the value has no fields"),
        (
            pojo("a.A", {"x": LONG}),
            {"convert": {"to": "Pojo<a.B>(x: Long, y: Long)"}},
            "a field y, which the old one lacks",
        ),
        (row(LONG), {"rename": {"f0": "amount"}}, "no names that `rename` could change"),
        (row(LONG), {"add": {"field": "f2", "type": "Int", "default": 1}}, "a new field is named by its position, f1"),
        (ORDER, {"reorder": ["amount", "note", "address"]}, "no order that `reorder` could change"),
        (row(LONG, INT), {"reorder": ["f1"]}, "names every field once"),
        (ORDER, {"rename_class": {"shop.Nothing": "x"}}, "has no class shop.Nothing"),
        (pojo("a.A", {"x": tree.Kryo(type_class="shop.K")}), {"rename_class": {"shop.K": "x"}}, "goes through Kryo"),
        (ORDER, {"drop": {"field": "address.street"}}, "there is no field street"),
        (ORDER, {"drop": {"field": "amount.x"}}, "need a POJO"),
        (ORDER, {"ttl": {"disable": "x"}}, "has no TTL already"),
        (ORDER, {"add": {"field": "x", "type": "BIGINT", "default": 1}}, "only fields of RowData have"),
        (ORDER, {"collections": {"note": "String"}}, "is not written by Kryo"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(payload: tree.Serializer, step: Any, message: str) -> None:
    with pytest.raises(MigrationError, match=message):
        plan(shape(payload), steps=[step])


def test_collections_come_out_of_kryo() -> None:
    payload = pojo("a.A", {"tags": tree.Kryo(type_class="java.util.ArrayList")})
    flow = plan(shape(payload), steps=[{"collections": {"tags": "String"}}]).states["s"]
    assert describe(flow.shape.payload) == "Pojo<a.A>(tags: Nullable<List<Nullable<String>>>)"
    assert "from_json" in dict(flow.stage.columns)["tags"]  # type: ignore[union-attr]


def test_collections_are_reached_by_paths() -> None:
    place = pojo("a.Place", {"tags": tree.Kryo(type_class="java.util.List"), "zip": STRING})
    payload = pojo("a.A", {"home": place, "others": generic_array("a.Place", place), "names": KRYO_LIST})
    types = {"home.tags": "String", "others[].tags": "String", "names": "Long"}
    flow = plan(shape(payload), steps=[{"collections": types}]).states["s"]
    inner = "Pojo<a.Place>(tags: Nullable<List<Nullable<String>>>, zip: String)"
    assert describe(flow.shape.payload) == (
        f"Pojo<a.A>(home: {inner}, names: Nullable<List<Nullable<Long>>>, others: Array<a.Place>({inner}))"
    )


def test_collections_lead_through_pojos_only() -> None:
    with pytest.raises(MigrationError, match="`collections` needs a POJO"):
        plan(shape(row(KRYO_LIST)), steps=[{"collections": {"f0": "String"}}])
    with pytest.raises(MigrationError, match="steps on fields need a POJO"):
        plan(shape(pojo("a.A", {"tags": KRYO_LIST})), steps=[{"collections": {"tags.inner": "String"}}])


KRYO_LIST = tree.Kryo(type_class="java.util.List")


def test_ttl_wraps_the_payload_of_every_kind() -> None:
    for kind, before, after in (
        ("VALUE", "Long", "Ttl<Long>"),
        ("LIST", "List<Long>", "List<Ttl<Long>>"),
        ("MAP", "Map<String, Long>", "Map<String, Ttl<Long>>"),
    ):
        flow = plan(shape(LONG, kind=kind), steps=[{"ttl": {"enable": "TIMESTAMP '2024-01-01'"}}]).states["s"]
        assert describe(flow.shape.info.value_serializer) == after
        back = plan(StateShape(flow.shape.info, STRING), steps=[{"ttl": {"disable": "not wanted"}}]).states["s"]
        assert describe(back.shape.info.value_serializer) == before


@pytest.mark.parametrize(
    ("kind", "payload", "step", "after"),
    [
        ("VALUE", LONG, {"to": "LIST"}, "List<Long>"),
        ("VALUE", ttl(LONG), {"to": "LIST"}, "List<Ttl<Long>>"),
        (
            "VALUE",
            ORDER,
            {
                "to": "MAP",
                "map_key": {"type": "String", "expression": "note"},
                "value": {"type": "Long", "expression": "amount"},
            },
            "Map<String, Long>",
        ),
        ("LIST", LONG, {"to": "VALUE", "expression": "values[0]"}, "Long"),
        ("LIST", LONG, {"to": "MAP", "map_key": {"type": "Long", "expression": "value"}}, "Map<Long, Long>"),
        ("MAP", LONG, {"to": "VALUE", "type": "Int", "expression": "size(entries)"}, "Int"),
        ("MAP", LONG, {"to": "LIST", "discard": ["map_key"]}, "List<Long>"),
        ("MAP", LONG, {"to": "LIST", "type": "String", "expression": "map_key"}, "List<String>"),
        ("MAP", LONG, {"to": "MAP", "map_key": {"type": "Int", "expression": "length(map_key)"}}, "Map<Int, Long>"),
    ],
)
def test_a_state_becomes_one_of_another_kind(kind: str, payload: tree.Serializer, step: Any, after: str) -> None:
    flow = plan(shape(payload, kind=kind), steps=[{"kind": step}]).states["s"]
    assert flow.shape.kind == step["to"]
    assert describe(flow.shape.info.value_serializer) == after


def test_many_values_become_one_only_by_an_expression() -> None:
    with pytest.raises(MigrationError, match="does not say how the values of a LIST state become one value"):
        plan(shape(LONG, kind="LIST"), steps=[{"kind": {"to": "VALUE"}}])


@pytest.mark.parametrize("step", [{"to": "LIST"}, {"to": "LIST", "expression": "value"}])
def test_the_keys_of_a_map_are_not_lost_without_a_word(step: dict[str, Any]) -> None:
    with pytest.raises(MigrationError, match="loses the keys of the map") as caught:
        plan(shape(LONG, kind="MAP"), steps=[{"kind": step}])
    assert "`discard`" in caught.value.hint
    with pytest.raises(MigrationError, match="`discard` names map_key"):
        plan(shape(LONG), steps=[{"kind": {**step, "discard": ["map_key"]}}])


def windows(name: str, kind: str, value: tree.Serializer, namespace: tree.Serializer = TIME_WINDOW) -> StateShape:
    return StateShape(keyed_state(name, kind, value, namespace), STRING)


def make_sessions(window: tree.Serializer = TIME_WINDOW) -> list[StateShape]:
    """The states of session windows with a trigger that counts."""
    timers = StateShape(priority_queue("_timer_state/event_window-timers", timer(STRING, window)), STRING)
    return [
        windows("merging-window-set", "LIST", list_of(tuple_of(window, window)), VOID_NAMESPACE),
        windows("window-contents", "REDUCING", LONG, window),
        windows("count", "REDUCING", LONG, window),
        timers,
    ]


def plan_sessions(step: Any, state: str | None, window: tree.Serializer = TIME_WINDOW) -> OperatorPlan:
    shapes = {each.name: each for each in make_sessions(window)}
    return plan_migrations(shapes, [(migration(step, state=state), Direction.UPGRADE)])  # type: ignore[arg-type]


def test_all_states_of_sessions_follow_another_key() -> None:
    rules = {"window-contents": "sum(value)", "count": "sum(value)"}
    made = plan_sessions({"key": {"type": "Int", "expression": "length(state_key)", "on_equal": rules}}, None)
    roles = {}
    for name, flow in made.states.items():
        assert isinstance(flow, fl.Apply)
        assert isinstance(flow.stage, fl.Rekey)
        assert flow.stage.sessions is not None
        roles[name] = str(flow.stage.sessions.role)
    assert roles == {
        "merging-window-set": "set",
        "window-contents": "stored",
        "count": "session",
        "_timer_state/event_window-timers": "session",
    }


def test_sessions_go_with_their_contents() -> None:
    made = plan_sessions({"filter": {"keep": "value > 1", "reason": "small"}}, "window-contents")
    stages = {name: type(flow.stage) for name, flow in made.states.items() if isinstance(flow, fl.Apply)}
    assert stages.pop("window-contents") is fl.Keep
    assert set(stages.values()) == {fl.Follow}
    assert len(stages) == 3
    assert "are all left out are dropped" in made.notes[0]


RULE = {"merging-window-set": "first"}
SESSIONS: dict[str, tuple[Any, str | None, tree.Serializer, str]] = {
    "filter of sessions": (
        {"filter": {"keep": "true", "reason": "r"}},
        "merging-window-set",
        TIME_WINDOW,
        "cannot be filtered",
    ),
    "rule for sessions": (
        {"key": {"type": "Int", "expression": "length(state_key)", "on_equal": RULE}},
        None,
        TIME_WINDOW,
        "are merged as in Flink where they overlap",
    ),
    "contents by chance": (
        {"filter": {"keep": "rand() < 0.5", "reason": "r", "nondeterministic": True}},
        "window-contents",
        TIME_WINDOW,
        "the expression is nondeterministic",
    ),
    "own windows": ({"key": {"type": "Int", "expression": "length(state_key)"}}, None, LONG, "only their class knows"),
    "sessions dropped": ({"drop_state": {"reason": "r"}}, "merging-window-set", TIME_WINDOW, "belong together"),
    "contents dropped": ({"drop_state": {"reason": "r"}}, "window-contents", TIME_WINDOW, "belong together"),
    "contents renamed": ({"rename_state": "other"}, "window-contents", TIME_WINDOW, "belong together"),
}


@pytest.mark.parametrize(("step", "state", "window", "message"), SESSIONS.values(), ids=SESSIONS)
def test_sessions_are_not_torn_apart(step: Any, state: str | None, window: tree.Serializer, message: str) -> None:
    with pytest.raises(MigrationError, match=message):
        plan_sessions(step, state, window)


def test_a_renamed_state_is_copied_as_bytes() -> None:
    made = plan(shape(LONG), shape(INT, name="t"), steps=[{"rename_state": "u"}])
    assert {name: type(flow) for name, flow in made.states.items()} == {"u": fl.Read, "t": fl.Read}
    assert made.states["u"].shape.info.name == "u"
    assert not made.changed
    with pytest.raises(MigrationError, match="a state t already"):
        plan(shape(LONG), shape(INT, name="t"), steps=[{"rename_state": "t"}])


def test_a_dropped_state_is_gone() -> None:
    made = plan(shape(LONG), shape(INT, name="t"), steps=[{"drop_state": {"reason": "unused"}}])
    assert list(made.states) == ["t"]
    assert made.dropped == {"s": "unused"}


def test_a_state_splits() -> None:
    into = {"t": {"fields": ["amount"], "class": "shop.Amount"}, "u": {"type": "String", "expression": "address.zip"}}
    made = plan(shape(ORDER), steps=[{"split": {"into": into, "discard": ["note"]}}])
    assert {name: describe(flow.shape.payload) for name, flow in made.states.items()} == {
        "t": "Pojo<shop.Amount>(amount: Long)",
        "u": "String",
    }
    with pytest.raises(MigrationError, match="none of the new states has note"):
        plan(shape(ORDER), steps=[{"split": {"into": into}}])


def test_states_merge() -> None:
    step = {"with": ["t"], "into": "u", "type": "Long", "expression": "coalesce(s, 0) + coalesce(t.amount, 0)"}
    made = plan(shape(LONG), shape(ORDER, name="t"), steps=[{"merge": step}])
    assert list(made.states) == ["u"]
    assert fl.find_reads(made.states["u"]) == ("s", "t")
    with pytest.raises(MigrationError, match="no common entries to merge"):
        plan(shape(LONG), shape(LONG, name="t", kind="MAP"), steps=[{"merge": step}])


def test_a_value_stands_beside_each_entry_of_a_map() -> None:
    step = {"with": ["t"], "into": "s", "type": "Long", "expression": "s + coalesce(t, 0)"}
    made = plan(shape(LONG, kind="MAP"), shape(LONG, name="t"), steps=[{"merge": step}])
    flow = made.states["s"]
    assert isinstance(flow, fl.StateMerge)
    assert flow.is_beside
    assert (flow.shape.kind, fl.keeps_keys(flow)) == ("MAP", False)


def key_migration(**step: Any) -> Migration:
    return migration({"key": {"type": "Long", "expression": "CAST(state_key AS BIGINT)"} | step}, state=None)  # type: ignore[arg-type]


def test_all_states_and_timers_follow_another_key() -> None:
    timers = StateShape(priority_queue("_timer_state/event_x", timer(STRING, VOID_NAMESPACE)), STRING)
    shapes = {each.name: each for each in (shape(LONG), shape(LONG, name="l", kind="LIST"), timers)}
    made = plan_migrations(shapes, [(key_migration(on_equal={"s": "sum(value)"}), Direction.UPGRADE)])
    assert made.key == LONG
    assert {flow.shape.key for flow in made.states.values()} == {LONG}
    assert describe(made.states[timers.name].shape.info.element) == "Timer<Long, VoidNamespace>"
    rules = {name: flow.stage.rule for name, flow in made.states.items()}  # type: ignore[union-attr]
    assert rules["s"] == "sum(value)"
    assert rules["l"] == fl.EqualKeys.ERROR


def test_a_key_whose_hash_is_not_known_is_refused() -> None:
    with pytest.raises(MigrationError, match="cannot be a key here"):
        plan_migrations({"s": shape(LONG)}, [(key_migration(type="Pojo<a.K>(x: Long)"), Direction.UPGRADE)])


def test_timers_have_no_values() -> None:
    timers = StateShape(priority_queue("s", timer(STRING, VOID_NAMESPACE)), STRING)
    with pytest.raises(StateError, match="TIMER state cannot be migrated"):
        plan(timers, steps=[{"drop": {"field": "x"}}])


def test_a_chain_of_revisions_is_one_flow() -> None:
    first = migration({"rename": {"amount": "cents"}}, downgrade=[{"rename": {"cents": "amount"}}])
    second = migration({"rename_state": "orders"}, downgrade=[{"rename_state": "s"}])
    third = migration(
        {"cast": {"field": "cents", "to": "Double"}},
        state="orders",
        downgrade=[{"cast": {"field": "cents", "to": "Long"}}],
    )
    chain = [(each, Direction.UPGRADE) for each in (first, second, third)]
    made = plan_migrations({"s": shape(ORDER)}, chain)
    assert list(made.states) == ["orders"]
    assert "cents: Double" in describe(made.states["orders"].shape.payload)
    assert made.back is not None
    assert made.back.new_shapes == {"s": shape(ORDER)}
    down = plan_migrations(made.new_shapes, [(each, Direction.DOWNGRADE) for each, _ in reversed(chain)])
    assert down.new_shapes == {"s": shape(ORDER)}


def test_a_way_back_that_does_not_fit_is_told() -> None:
    with pytest.raises(MigrationError, match="the opposite migration does not fit: there is no field price"):
        plan(shape(ORDER), steps=[{"drop": {"field": "note"}}], downgrade=[{"drop": {"field": "price"}}])


def test_a_way_back_that_forgets_a_state_is_told() -> None:
    into = {"t": {"fields": ["amount"], "class": "A"}, "u": {"fields": ["address", "note"], "class": "B"}}
    with pytest.raises(MigrationError, match="does not restore state s"):
        plan(shape(ORDER), steps=[{"split": {"into": into}}], downgrade=[{"rename_state": "x"}])


def test_a_declared_loss_must_be_a_field() -> None:
    with pytest.raises(MigrationError, match="the declared loss price is no field"):
        plan(shape(ORDER), steps=[{"drop": {"field": "note"}}], loss=[{"field": "price", "reason": "x"}])


def test_fields_of_row_data_take_sql_types_that_the_snapshot_holds() -> None:
    bigint = tree.LogicalType(root="BIGINT")
    rows = tree.RowData(snapshot_class="r", types=(bigint, bigint), fields=(LONG, LONG), java_types=(b"1", b"1"))
    step = {"add": {"field": "f2", "type": "BIGINT", "default": 1}}
    made = plan_migrations({"s": shape(rows)}, [(migration(step), Direction.UPGRADE)], context=PlanContext())
    assert describe(made.states["s"].shape.payload) == "RowData(BIGINT, BIGINT, BIGINT)"
    payload = made.states["s"].shape.payload
    assert isinstance(payload, tree.RowData)
    assert payload.java_types == (b"1", b"1", b"1")
    with pytest.raises(MigrationError, match="is no type of a column"):
        plan(shape(rows), steps=[{"add": {"field": "f2", "type": "ARRAY<RAW('a.B', '')>", "default": 1}}])


def test_fields_of_row_data_go_by_their_names() -> None:
    bigint = tree.LogicalType(root="BIGINT")
    rows = tree.RowData(
        snapshot_class="r",
        snapshot_version=4,
        types=(bigint, bigint),
        fields=(LONG, LONG),
        java_types=(b"1", b"1"),
        names=("id", "amount"),
    )
    steps = (
        {"rename": {"amount": "cents"}},
        {"add": {"field": "priority", "type": "BIGINT", "expression": "cents + id"}},
        {"reorder": ["cents", "priority", "id"]},
        {"drop": {"field": "id"}},
    )
    made = plan_migrations({"s": shape(rows)}, [(migration(*steps), Direction.UPGRADE)], context=PlanContext()).states[
        "s"
    ]
    assert describe(made.shape.payload) == "RowData(cents: BIGINT, priority: BIGINT)"
    with pytest.raises(MigrationError, match="there is no field f1"):
        plan(shape(rows), steps=[{"drop": {"field": "f1"}}])


def test_a_draft_that_is_not_filled_in_is_refused() -> None:
    add = {"add": {"field": "currency", "type": "String", "expression": "TODO"}}
    with pytest.raises(MigrationError, match="the upgrade of o / s still says TODO"):
        refuse_drafts([(migration(add), Direction.UPGRADE)])
    refuse_drafts(
        [(migration({"add": {"field": "todo", "type": "String", "expression": "'TODOS'"}}), Direction.UPGRADE)]
    )


JAVA_TYPES = {
    "java.util.List<String>": "Nullable<List<Nullable<String>>>",
    "java.util.Map<String, java.lang.Long>": "Nullable<Map<Nullable<String>, Long>>",
    "java.util.Set<Integer>": "Nullable<Set<Int>>",
    "java.util.Map<String, java.util.List<Long>>": "Kryo<java.util.Map>",
}


@pytest.mark.parametrize(("java", "extracted"), JAVA_TYPES.items())
def test_generic_types_of_java_are_what_flink_extracts(java: str, extracted: str) -> None:
    made = plan(shape(STRING), steps=[{"convert": {"to": java, "expression": "NULL"}}])
    assert describe(made.states["s"].shape.payload) == extracted
    assert made.notes == ()


def test_a_collection_that_flink_would_not_extract_is_noted_with_the_type_that_it_would() -> None:
    (note,) = plan(shape(STRING), steps=[{"convert": {"to": "List<String>", "expression": "array(value)"}}]).notes
    assert "state s becomes List<String>" in note
    assert "Nullable<List<Nullable<String>>>" in note
