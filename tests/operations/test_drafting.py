"""Drafts of migrations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from state_pipelines.errors import MigrationError
from state_pipelines.operations.check import check_serializers
from state_pipelines.operations.drafting import draft_migration, format_migration
from state_pipelines.operations.job import Place
from state_pipelines.operations.migration import load_migration, plan_value
from state_pipelines.operations.migration.steps import FieldStep
from state_pipelines.serializers.text import describe, parse

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from state_pipelines.operations.check import StateCheck

OLD = "Pojo<P>(amount: Long, customer: String, note: String)"
NEW = "Pojo<P>(amount: Double, customerId: String, priority: Int)"


def check_value(old: str, new: str, kind: str = "VALUE", place: Place = Place.VALUE) -> StateCheck:
    return check_serializers("orders", "order", {place: parse(old)}, {place: parse(new)}, kind=kind)[-1]


def draft(old: str, new: str) -> dict[str, Any]:
    return draft_migration(check_value(old, new))


def test_fields_are_renamed_added_cast_and_dropped() -> None:
    content = draft(OLD, NEW)
    assert content["upgrade"] == [
        {"rename": {"customer": "customerId"}},
        {"add": {"field": "priority", "type": "Int", "default": 0}},
        {"cast": {"field": "amount", "to": "Double"}},
        {"drop": {"field": "note"}},
    ]
    assert content["downgrade"] == [
        {"add": {"field": "note", "type": "String", "default": None}},
        {"cast": {"field": "amount", "to": "Long"}},
        {"drop": {"field": "priority"}},
        {"rename": {"customerId": "customer"}},
    ]
    assert [each["field"] for each in content["loss"]] == ["note"]


@pytest.mark.parametrize(
    ("kind", "place", "whole"),
    [
        ("VALUE", Place.VALUE, "{}"),
        ("LIST", Place.VALUE, "List<{}>"),
        ("MAP", Place.VALUE, "Map<String, {}>"),
        ("UNION", Place.ELEMENT, "{}"),
        ("VALUE", Place.VALUE, "Ttl<{}>"),
    ],
)
def test_a_draft_leads_to_the_new_class(tmp_path: Path, kind: str, place: Place, whole: str) -> None:
    content = draft_migration(check_value(whole.format(OLD), whole.format(NEW), kind, place))
    file = tmp_path / "0001.yaml"
    file.write_text(format_migration(content), encoding="utf-8")
    migration = load_migration(file)
    up = [step for step in migration.upgrade if isinstance(step, FieldStep)]
    down = [step for step in migration.downgrade if isinstance(step, FieldStep)]
    plan = plan_value(parse(OLD), up)
    assert describe(plan.new) == NEW
    assert describe(plan_value(plan.new, down).new) == OLD


def test_what_sql_does_not_cast_is_left_to_the_reader() -> None:
    content = draft("Pojo<P>(a: Instant)", "Pojo<P>(a: Enum<E>(X, Y))")
    assert content["upgrade"] == [{"cast": {"field": "a", "to": "Enum<E>(X, Y)", "expression": "TODO"}}]
    assert "# Replace every TODO" in format_migration(content)


def test_names_that_have_nothing_in_common_are_not_renamed() -> None:
    assert "rename" not in str(draft("Pojo<P>(note: String, a: Long)", "Pojo<P>(zip: String, a: Int)")["upgrade"])


def test_constants_that_are_only_added_need_no_step() -> None:
    old, new = "Pojo<P>(e: Enum<E>(A), n: Int)", "Pojo<P>(e: Enum<E>(A, B), n: Long)"
    assert draft(old, new)["upgrade"] == [{"cast": {"field": "n", "to": "Long"}}]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Long", "Double", "no step changes value"),
        ("Pojo<P>(q: Pojo<Q>(a: Long))", "Pojo<P>(q: Pojo<Q>(a: Int))", "no step changes value.q.a"),
        ("Pojo<P>(a: Long)", "Pojo<Q>(a: Long)", "no step changes value"),
        ("Long", "Long", "nothing has changed"),
    ],
)
def test_changes_without_a_step_are_named(old: str, new: str, message: str) -> None:
    with pytest.raises(MigrationError, match=message):
        draft(old, new)


def test_keys_have_no_steps() -> None:
    with pytest.raises(MigrationError, match="no step changes the key"):
        draft_migration(check_value("Long", "Int", place=Place.KEY))


def test_a_draft_is_yaml() -> None:
    content = draft(OLD, NEW)
    assert yaml.safe_load(format_migration(content)) == content
