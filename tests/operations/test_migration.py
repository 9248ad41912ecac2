from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import (
    Add,
    Cast,
    Direction,
    Drop,
    Rename,
    Set,
    Step,
    load_migration,
    payload_serializer,
    plan_value,
    replace_payload,
)
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, list_of, map_of, pojo, ttl
from state_pipelines.serializers.state_meta_info import keyed_state
from tests.flink.harness import ORDERS

if TYPE_CHECKING:
    from pathlib import Path

LONG, INT, STRING, DOUBLE = basic("Long"), basic("Int"), basic("String"), basic("Double")
ORDER = pojo("shop.Order", {"amount": LONG, "customer": STRING, "note": STRING})
GOOD: dict[str, Any] = {
    "revision": "0001",
    "operator": "orders",
    "state": "order",
    "upgrade": [{"drop": {"field": "note"}}],
    "downgrade": [{"add": {"field": "note", "type": "String", "default": None}}],
}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["revision: 2020-13-45", "a: " + "[" * 20_000])
def test_yaml_with_other_mistakes_is_an_error_of_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(MigrationError, match="the migration file is not YAML"):
        load_migration(tmp_path / "m.yaml")


def write(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "migration.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def columns(*steps: Step) -> list[dict[str, str]]:
    return [dict(columns) for columns in plan_value(ORDER, steps).projections]


def fields_after(*steps: Step) -> tuple[tree.PojoField, ...]:
    new = plan_value(ORDER, steps).new
    assert isinstance(new, tree.Pojo)
    return new.fields


def field_types(*steps: Step) -> dict[str, tree.Serializer | None]:
    return {each.name: each.serializer for each in fields_after(*steps)}


@pytest.mark.parametrize("file", ["{outside}/order.avsc", "../order.avsc", "link/order.avsc", "order.avsc"])
def test_a_schema_is_below_the_migration_file(tmp_path: Path, file: str) -> None:
    (tmp_path / "order.avsc").write_text('{"type": "record", "name": "Order", "fields": []}')
    folder = tmp_path / "migrations"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    (folder / "order.avsc").symlink_to("../order.avsc")
    step = {"convert": {"avro": file.format(outside=tmp_path)}}
    path = write(folder, {**GOOD, "upgrade": [step], "downgrade": {"impossible": "no"}})
    with pytest.raises(MigrationError, match="is not below the directory of the migration file"):
        load_migration(path)
    (folder / "order.avsc").unlink()
    (folder / "order.avsc").write_text('{"type": "record", "name": "Order", "fields": []}')
    if file == "order.avsc":
        load_migration(path)


@pytest.mark.parametrize("name", ["\x1b[31m", "a\u202eb", ""])
def test_a_field_cannot_have_a_name_that_nobody_sees(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, {**GOOD, "upgrade": [{"rename": {"note": name}}]})
    with pytest.raises(MigrationError, match="is not a name"):
        load_migration(path)


def test_the_migration_of_the_example_is_read() -> None:
    migration = load_migration(ORDERS / "migrations" / "0001_amount_as_double.yaml")
    assert (migration.revision, migration.operator, migration.state) == ("0001", "orders", "order")
    assert migration.steps(Direction.UPGRADE) == (
        Rename((("customer", "customerId"),)),
        Add("priority", INT, "CASE WHEN quantity > 10 THEN 1 ELSE 0 END"),
        Cast("amount", DOUBLE, "amount / 100.0D"),
        Drop("note"),
    )
    assert migration.steps(Direction.DOWNGRADE)[0] == Add("note", STRING, "NULL")
    assert [loss.field for loss in migration.losses] == ["note"]


def test_the_fingerprint_changes_with_the_file(tmp_path: Path) -> None:
    first = load_migration(write(tmp_path, GOOD)).fingerprint
    assert len(first) == 16
    assert load_migration(write(tmp_path, GOOD | {"description": "other"})).fingerprint != first


@pytest.mark.parametrize(
    ("default", "sql"),
    [
        (None, "NULL"),
        (True, "TRUE"),
        (False, "FALSE"),
        (-7, "-7"),
        (1.5, "1.5D"),
        ("it's", "'it\\'s'"),
        ("a\\b", "'a\\\\b'"),
    ],
)
def test_a_default_becomes_a_literal(tmp_path: Path, default: object, sql: str) -> None:
    step = {"add": {"field": "x", "type": "String", "default": default}}
    (found,) = load_migration(write(tmp_path, GOOD | {"upgrade": [step]})).upgrade
    assert isinstance(found, Add)
    assert found.expression == sql


@pytest.mark.parametrize("name", ["Integer", "int", "Int", "int?"])
def test_types_may_be_written_as_in_java(tmp_path: Path, name: str) -> None:
    step = {"add": {"field": "x", "type": name, "default": 0}}
    (found,) = load_migration(write(tmp_path, GOOD | {"upgrade": [step]})).upgrade
    assert isinstance(found, Add)
    assert found.type == INT


@pytest.mark.parametrize(
    ("change", "message", "place"),
    [
        ({"operator": None}, "`operator` is missing", None),
        ({"state": None}, "`state` is missing", None),
        ({"state": ["order"]}, "`state` is missing", None),
        ({"upgrade": None}, "`upgrade` is not a list of steps", None),
        ({"downgrade": []}, "`downgrade` is not a list of steps", None),
        ({"downgrade": {"drop": {"field": "x"}}}, "`downgrade` is not a list of steps", None),
        ({"loss": 5}, "`loss` is not a list", None),
        ({1: "x", "y": 2}, "unknown entries 1, y", None),
        ({"upgrades": []}, "unknown entries upgrades", None),
        ({"loss": [{"field": "note"}]}, "`reason` is missing", "loss 1"),
        ({"loss": ["note"]}, "`field` is missing", "loss 1"),
        ({"loss": {"field": "note", "reason": "old"}}, "`loss` is not a list", None),
        ({"upgrade": ["drop"]}, "one entry", "upgrade 1"),
        ({"upgrade": [{"drop": {"field": "a"}, "rename": {}}]}, "one entry", "upgrade 1"),
        ({"upgrade": [{"drop": "note"}]}, "`drop` takes a mapping", "upgrade 1"),
        ({"upgrade": [{"drop": {}}]}, "`field` is missing", "upgrade 1"),
        ({"upgrade": [{"drop": {"field": "a", "to": "b"}}]}, "unknown entries to", "upgrade 1"),
        ({"upgrade": [{"remove": {"field": "a"}}]}, "`remove` is not a step", "upgrade 1"),
        ({"upgrade": [{"rename": {}}]}, "`rename` names no field", "upgrade 1"),
        ({"upgrade": [{"add": {"field": "a", "type": "Long"}}]}, "either an expression or a default", "upgrade 1"),
        (
            {"upgrade": [{"add": {"field": "a", "type": "Long", "default": 1, "expression": "1"}}]},
            "either an expression or a default",
            "upgrade 1",
        ),
        ({"upgrade": [{"add": {"field": "a", "type": "Lnog", "default": 1}}]}, "'Lnog' is not a type", "upgrade 1"),
        ({"upgrade": [{"add": {"field": "a", "type": "Long", "default": [1]}}]}, "a default is", "upgrade 1"),
        ({"upgrade": [{"cast": {"field": "a"}}]}, "`to` is missing", "upgrade 1"),
        ({"downgrade": [GOOD["upgrade"][0], {"cast": {"field": "a", "to": "Map<"}}]}, "is not a type", "downgrade 2"),
    ],
)
def test_mistakes_are_told_with_file_and_place(
    tmp_path: Path, change: dict[str, Any], message: str, place: str | None
) -> None:
    path = write(tmp_path, {key: value for key, value in (GOOD | change).items() if value is not None})
    with pytest.raises(MigrationError, match=message) as caught:
        load_migration(path)
    assert caught.value.where.file == str(path)
    assert place is None or place in f"{caught.value}"


@pytest.mark.parametrize("content", ["- a\n- b\n", "just text", "", "a: [", "\x00"])
def test_what_is_no_mapping_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "migration.yaml"
    path.write_text(content)
    with pytest.raises(MigrationError) as caught:
        load_migration(path)
    assert caught.value.where.file == str(path)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    path = tmp_path / "migration.yaml"
    path.write_bytes(b"revision: \xff\xfe\xfa")
    with pytest.raises(MigrationError, match="YAML"):
        load_migration(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match="cannot be read"):
        load_migration(tmp_path / "none.yaml")


def test_a_renamed_field_keeps_its_values_and_class() -> None:
    step = Rename((("customer", "zone"),))
    plan = plan_value(ORDER, (step,))
    assert dict(plan.projections[0]) == {"amount": "`amount`", "zone": "`customer`", "note": "`note`"}
    assert [(each.name, each.declaring_class) for each in fields_after(step)] == [
        ("amount", "shop.Order"),
        ("note", "shop.Order"),
        ("zone", "shop.Order"),
    ]


def test_two_fields_may_swap_their_names() -> None:
    step = Rename((("customer", "note"), ("note", "customer")))
    assert columns(step) == [{"amount": "`amount`", "note": "`customer`", "customer": "`note`"}]


def test_an_added_field_has_the_expression() -> None:
    step = Add("total", DOUBLE, "amount * 2D")
    assert columns(step)[0]["total"] == "(amount * 2D)"
    assert field_types(step) == {"amount": LONG, "customer": STRING, "note": STRING, "total": DOUBLE}


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [("note", "note"), ("a.b", "a.b"), ("1L", "1L"), ("amount, amount", "(amount, amount)"), ("a -- b", "(a -- b\n)")],
)
def test_expressions_stay_inside_of_what_holds_them(expression: str, wanted: str) -> None:
    assert columns(Set("amount", expression))[0]["amount"].count(wanted) == 1


def test_a_cast_changes_the_type() -> None:
    assert field_types(Cast("amount", DOUBLE, None))["amount"] == DOUBLE
    assert columns(Cast("amount", DOUBLE, None))[0]["amount"] == "`amount`"
    assert columns(Cast("amount", DOUBLE, "amount / 100"))[0]["amount"] == "(amount / 100)"


def test_a_dropped_field_is_gone() -> None:
    assert columns(Drop("note")) == [{"amount": "`amount`", "customer": "`customer`"}]


def test_every_step_works_on_the_fields_that_the_one_before_left() -> None:
    steps = (Rename((("amount", "cents"),)), Add("euros", DOUBLE, "cents / 100D"), Drop("cents"))
    assert columns(*steps) == [
        {"cents": "`amount`", "customer": "`customer`", "note": "`note`"},
        {"cents": "`cents`", "customer": "`customer`", "note": "`note`", "euros": "(cents / 100D)"},
        {"customer": "`customer`", "note": "`note`", "euros": "`euros`"},
    ]
    assert sorted(field_types(*steps)) == ["customer", "euros", "note"]


def test_a_dropped_field_may_come_back_with_another_type() -> None:
    assert field_types(Drop("note"), Add("note", LONG, "1"))["note"] == LONG


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Rename((("price", "cost"),)), "no field price"),
        (Rename((("note", "customer"),)), "two fields would have the same name"),
        (Add("note", LONG, "1"), "a field note already"),
        (Cast("price", LONG, None), "no field price"),
        (Drop("price"), "no field price"),
    ],
)
def test_a_step_that_does_not_fit_is_told_with_its_number(step: Step, message: str) -> None:
    with pytest.raises(MigrationError, match=message) as caught:
        plan_value(ORDER, (Drop("amount"), step))
    assert caught.value.where.path == "step 2"


def test_steps_need_fields() -> None:
    with pytest.raises(MigrationError, match="need a POJO"):
        plan_value(LONG, (Drop("note"),))


@pytest.mark.parametrize(
    ("state_type", "value"),
    [
        ("VALUE", ORDER),
        ("VALUE", ttl(ORDER)),
        ("LIST", list_of(ORDER)),
        ("LIST", list_of(ttl(ORDER))),
        ("MAP", map_of(STRING, ORDER)),
        ("MAP", map_of(STRING, ttl(ORDER))),
        ("REDUCING", ORDER),
    ],
)
def test_the_payload_is_replaced_wherever_it_stands(state_type: str, value: tree.Serializer) -> None:
    info = keyed_state("order", state_type, value, VOID_NAMESPACE)
    assert payload_serializer(info) == ORDER
    changed = replace(ORDER, fields=ORDER.fields[:1])
    after = replace_payload(info, changed)
    assert payload_serializer(after) == changed
    assert replace_payload(after, ORDER) == info
    assert after.namespace_serializer == VOID_NAMESPACE


def test_keys_of_the_same_class_as_the_value_stay() -> None:
    info = keyed_state("order", "MAP", map_of(ORDER, ORDER), VOID_NAMESPACE)
    after = replace_payload(info, replace(ORDER, fields=ORDER.fields[:1])).value_serializer
    assert isinstance(after, tree.MapOf)
    assert after.key == ORDER
