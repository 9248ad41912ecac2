from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import (
    Direction,
    dump_migration,
    load_migration,
    make_migration_schema,
    parse_migration,
)
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.step_entries import STEPS as STEP_NAMES
from state_pipelines.operations.migration.step_entries import make_schema
from state_pipelines.operations.migration.step_types import SqlType
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic, enum, list_of, map_of, pojo, row
from state_pipelines.serializers.tree import StateKind

if TYPE_CHECKING:
    from pathlib import Path

LONG, STRING = basic("Long"), basic("String")


def parse(*steps: Any, **entries: Any) -> Any:
    content = {
        "revision": "1",
        "operator": "o",
        "state": "s",
        "upgrade": list(steps),
        "downgrade": [{"drop": {"field": "x"}}],
    }
    return parse_migration(content | entries)


STEPS: list[tuple[dict[str, Any], st.Step]] = [
    ({"rename": {"a": "b", "c.d": "e"}}, st.Rename((("a", "b"), ("c.d", "e")))),
    ({"set": {"field": "a", "expression": "a + 1"}}, st.Set("a", "a + 1")),
    ({"reorder": ["f1", "f0"]}, st.Reorder(("f1", "f0"))),
    ({"reorder": {"path": "a", "names": ["f1", "f0"]}}, st.Reorder(("f1", "f0"), "a")),
    ({"add": {"field": "a", "type": "BIGINT", "expression": "1"}}, st.Add("a", SqlType("BIGINT"), "1")),
    ({"add": {"field": "a", "type": "Long?", "expression": "1"}}, st.Add("a", LONG, "1", nullable=True)),
    ({"add": {"field": "a", "type": "long", "expression": "1"}}, st.Add("a", LONG, "1", required=True)),
    (
        {"convert": {"to": "Row(f0: Long)", "expression": "x", "discard": ["b"]}},
        st.Convert(row(LONG), "x", ("b",)),
    ),
    ({"convert": {"to": "Kryo<a.B>"}}, st.Convert(tree.Kryo(type_class="a.B"))),
    ({"rename_class": {"a.B": "a.C"}}, st.RenameClass((("a.B", "a.C"),))),
    ({"collections": {"tags": "String"}}, st.Collections((("tags", list_of(STRING)),))),
    ({"collections": {"counts": "String, Long"}}, st.Collections((("counts", map_of(STRING, LONG)),))),
    ({"filter": {"keep": "a > 0", "reason": "old"}}, st.Filter("a > 0", "old")),
    ({"ttl": {"enable": "ts"}}, st.TtlStep(enable="ts")),
    ({"ttl": {"disable": "no need"}}, st.TtlStep(disable="no need")),
    ({"kind": {"to": StateKind.LIST}}, st.Kind(StateKind.LIST)),
    (
        {"kind": {"to": "MAP", "map_key": {"type": "Long", "expression": "a"}, "value": {"type": "String"}}},
        st.Kind(StateKind.MAP, map_key=st.MapKey(LONG, "a"), value=st.NewPayload(STRING)),
    ),
    ({"rename_state": "t"}, st.RenameState("t")),
    ({"drop_state": {"reason": "gone"}}, st.DropState("gone")),
    (
        {"split": {"into": {"t": {"fields": ["a"]}, "u": {"type": "Long", "expression": "b"}}, "discard": ["c"]}},
        st.Split((st.SplitTarget("t", ("a",)), st.SplitTarget("u", (), LONG, "b")), ("c",)),
    ),
    (
        {"merge": {"with": ["t"], "into": "u", "type": "Long", "expression": "s + t"}},
        st.Merge(("t",), "u", LONG, "s + t"),
    ),
    (
        {"merge": {"with": ["t"], "into": "s", "type": "Long", "expression": "t", "own_keys": True}},
        st.Merge(("t",), "s", LONG, "t", own_keys=True),
    ),
    (
        {"python": {"function": "a.b:c", "to": "Long", "deterministic": True}},
        st.Python("a.b:c", LONG, deterministic=True),
    ),
]


@pytest.mark.parametrize(("content", "step"), STEPS)
def test_a_step_is_read(content: dict[str, Any], step: st.Step) -> None:
    assert parse(content).upgrade == (step,)


@pytest.mark.parametrize(("content", "step"), STEPS)
def test_a_step_is_written_as_it_is_read(content: dict[str, Any], step: st.Step) -> None:
    migration = parse(content)
    dumped = yaml.safe_load(yaml.safe_dump(dump_migration(migration)))
    assert parse_migration(dumped) == migration


def test_a_date_of_yaml_is_utc(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        yaml.safe_dump(dump_migration(parse({"ttl": {"enable": "x"}}))).replace("enable: x", "enable: 2024-05-01")
    )
    assert load_migration(path).upgrade == (st.TtlStep("TIMESTAMP '2024-05-01 00:00:00+00:00'"),)


def test_a_key_step_is_one_of_the_operator() -> None:
    content = {
        "revision": "1",
        "operator": "o",
        "upgrade": [{"key": {"type": "Long", "expression": "CAST(state_key AS BIGINT)", "on_equal": {"s": "first"}}}],
        "downgrade": {"impossible": "the letters are gone"},
    }
    (change,) = parse_migration(content).changes
    assert change.state is None
    assert change.upgrade == (st.Key(LONG, "CAST(state_key AS BIGINT)", (("s", "first"),)),)
    assert change.impossible == "the letters are gone"
    assert dump_migration(parse_migration(content)) == content


def test_a_downgrade_that_is_impossible_is_refused_with_its_reason() -> None:
    migration = parse({"drop": {"field": "a"}}, downgrade={"impossible": "a is gone"})
    assert migration.steps(Direction.UPGRADE)
    with pytest.raises(MigrationError, match="there is no downgrade: a is gone"):
        migration.steps(Direction.DOWNGRADE)


def test_a_file_may_hold_several_changes() -> None:
    changes = [
        {
            "operator": "o",
            "state": name,
            "upgrade": [{"rename_state": f"{name}2"}],
            "downgrade": [{"rename_state": name}],
        }
        for name in ("s", "t")
    ]
    migration = parse_migration({"revision": "2", "revises": "1", "changes": changes})
    assert [change.state for change in migration.changes] == ["s", "t"]
    assert migration.revises == "1"
    assert parse_migration(dump_migration(migration)) == migration


def test_a_python_file_defines_a_migration(tmp_path: Path) -> None:
    path = tmp_path / "0003_x.py"
    path.write_text(
        "def double(batch): return batch\n"
        "MIGRATION = {'revision': '3', 'operator': 'o', 'state': 's',\n"
        "  'upgrade': [{'python': {'function': double, 'deterministic': True}}], 'downgrade': {'impossible': 'x'}}\n"
    )
    (step,) = load_migration(path, allow_python=True).upgrade
    assert isinstance(step, st.Python)
    assert callable(step.function)


@pytest.mark.parametrize(("text", "message"), [("X = 1", "does not define MIGRATION"), ("1 / 0", "ZeroDivisionError")])
def test_a_python_file_that_is_none_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.py"
    path.write_text(text)
    with pytest.raises(MigrationError, match=message):
        load_migration(path, allow_python=True)


def test_a_schema_is_read_beside_the_file(tmp_path: Path) -> None:
    schema = '{"type": "record", "name": "a.R", "fields": [{"name": "x", "type": "long"}]}'
    (tmp_path / "r.avsc").write_text(schema)
    path = tmp_path / "m.yaml"
    content = {"revision": "1", "operator": "o", "state": "s", "upgrade": [{"convert": {"avro": "r.avsc"}}]}
    path.write_text(yaml.safe_dump(content | {"downgrade": {"impossible": "x"}}))
    (step,) = load_migration(path).upgrade
    assert isinstance(step, st.Convert)
    assert isinstance(step.type, tree.Avro)
    # Without blanks, as Flink stores it.
    assert step.type.schema_json == '{"type":"record","name":"a.R","fields":[{"name":"x","type":"long"}]}'


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"filter": {"keep": "a"}}, "`reason` is missing"),
        ({"drop_state": {}}, "`reason` is missing"),
        ({"ttl": {"enable": "x", "disable": "y"}}, "one of enable, disable and shift"),
        ({"kind": {"to": "SET"}}, "SET is not a kind of state"),
        ({"kind": {"to": "MAP"}}, "`map_key` is missing"),
        ({"convert": {"to": "Long", "avro": "x"}}, "either `to` or `avro`"),
        ({"convert": {"avro": "none.avsc"}}, "cannot be read"),
        ({"split": {"into": {"t": {"fields": ["a"], "type": "Long"}}}}, "either `fields` or `type`"),
        ({"merge": {"into": "t", "type": "Long", "expression": "1"}}, "`with` is missing"),
        ({"merge": {"with": [], "into": "t", "type": "Long", "expression": "1"}}, "`with` is empty"),
        ({"python": {"function": "abc"}}, "not of the form module:name"),
        ({"key": {"type": "Long", "expression": "1"}}, "change a whole operator"),
        ({"rename_state": {"a": "b"}}, "change a whole operator"),
    ],
)
def test_a_step_that_lacks_what_it_needs_is_refused(step: dict[str, Any], message: str) -> None:
    with pytest.raises(MigrationError, match=message):
        parse(step)


def test_expectations_are_read() -> None:
    wanted = [{"type": "expect_column_values_to_be_between", "column": "value.a", "min_value": 0}]
    (found,) = parse({"drop": {"field": "x"}}, expect=wanted).change.expectations
    assert found.type == "expect_column_values_to_be_between"
    assert dict(found.arguments) == {"column": "value.a", "min_value": 0}
    with pytest.raises(MigrationError, match="not an expectation"):
        parse({"drop": {"field": "x"}}, expect=[{"type": "values"}])


def test_types_of_the_steps_are_serializers() -> None:
    (step,) = parse({"convert": {"to": "Pojo<a.B>(c: Enum<a.C>(X, Y))"}}).upgrade
    assert step.type == pojo("a.B", {"c": enum("a.C", "X", "Y")})


@pytest.mark.parametrize(
    ("step", "position", "message"),
    [
        ({"kind": {"to": "MAP", "map_key": {"type": "Long"}}}, "upgrade 1, map_key", "`expression` is missing"),
        ({"kind": {"to": "MAP", "map_key": {"type": "Lnog", "expression": "a"}}}, "upgrade 1, map_key", "not a type"),
        ({"columns": {"total": {"type": "BIGINT"}}}, "upgrade 1, total", "`expression` is missing"),
        ({"columns": {"total": {"type": "Long", "expression": "f0"}}}, "upgrade 1, total", "'Long' is no SQL type"),
        ({"split": {"into": {"t": {"fields": "a"}}}}, "upgrade 1, t", "`fields` is not a list"),
        ({"split": {"into": {"t": {}}}}, "upgrade 1, t", "either `fields` or `type`"),
        ({"split": {"into": {"t": {"name": "u", "fields": ["a"]}}}}, "upgrade 1, t", "unknown entries name"),
        ({"rename": {"a": {"b": "c"}}}, "upgrade 1", "`a` is missing"),
        (
            {"cast": {"field": "a", "to": "Long", "required": True}},
            "upgrade 1",
            "unknown entries required",
        ),
        ({"filter": {"keep": "a", "reason": "b", "by": "t", "missing": "stay"}}, "upgrade 1", "`missing` is stay"),
        ({"set": {"field": "a", "expression": "b", "nondeterministic": "yes"}}, "upgrade 1", "is true or false"),
        ({"ttl": {"enable": None}}, "upgrade 1", "`enable` has no value"),
        ({"python": {"function": "a:b"}}, "upgrade 1", "does not say whether its function is deterministic"),
    ],
)
def test_a_mistake_in_a_step_is_reported_with_its_position(step: dict[str, Any], position: str, message: str) -> None:
    with pytest.raises(MigrationError, match=message) as caught:
        parse(step)
    assert caught.value.where.path == position


@pytest.mark.parametrize(("content", "step"), STEPS)
def test_the_schema_has_every_entry_of_a_step(content: dict[str, Any], step: st.Step) -> None:
    ((name, body),) = content.items()
    schema = make_schema()
    found = next(each["properties"][name] for each in schema["anyOf"] if name in each["properties"])
    kinds: dict[type[Any], str] = {dict: "object", list: "array", str: "string"}
    (option,) = (each for each in found.get("anyOf", [found]) if each["type"] == kinds[type(body)])
    assert set(option.get("required", [])) <= set(body)
    if "properties" in option:
        assert set(body) <= set(option["properties"])
        assert all(each.get("description") for each in option["properties"].values())


def test_every_step_is_in_the_schema_with_its_description() -> None:
    schema = make_schema()
    assert [next(iter(each["properties"])) for each in schema["anyOf"]] == list(STEP_NAMES)
    assert schema["anyOf"][3]["properties"]["drop"]["description"] == "Remove a field."


def test_the_schema_of_a_file_has_its_entries_and_the_steps() -> None:
    one, several = make_migration_schema()["anyOf"]
    change = {"operator", "state", "upgrade", "downgrade", "loss", "expect"}
    assert {*one["properties"]} == {"revision", "revises", "description"} | change
    assert {*several["properties"]["changes"]["items"]["properties"]} == change
    assert one["properties"]["upgrade"]["items"]["anyOf"] == make_schema()["anyOf"]
    assert all(each["description"] for each in one["properties"].values())
