"""Outer data of composites of users: compared by a rule, else undetermined where they differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.serializers import build, registry, snapshot_classes
from state_pipelines.serializers.compatibility import Outcome, resolve
from state_pipelines.serializers.registry import register_composite
from state_pipelines.serializers.tree import Composite, Serializer

if TYPE_CHECKING:
    from state_pipelines.serializers.snapshot_classes import CompositeMarks

PURSE = "a.PurseSerializer$PurseSnapshot"


@dataclass(frozen=True, kw_only=True)
class Purse(Composite):
    currency: str
    note: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        return (self.note,)


EUROS = Purse(snapshot_class=PURSE, snapshot_version=1, currency="EUR", note=build.basic("String"))


@pytest.fixture
def _registries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_functions", dict(registry._functions))
    monkeypatch.setattr(snapshot_classes, "_snapshot_classes", dict(snapshot_classes._snapshot_classes))


def test_equal_outer_data_are_compatible() -> None:
    assert resolve(EUROS, EUROS).outcome is Outcome.AS_IS


def test_other_outer_data_without_a_rule_are_undetermined() -> None:
    result = resolve(EUROS, replace(EUROS, currency="USD"))
    (finding,) = result.findings
    assert result.outcome is Outcome.UNDETERMINED
    assert (finding.old, finding.new) == ("currency: EUR", "currency: USD")


def test_nested_serializers_and_versions_are_no_outer_data() -> None:
    assert resolve(EUROS, replace(EUROS, outer_version=2)).outcome is Outcome.AS_IS
    assert resolve(EUROS, replace(EUROS, note=build.basic("Long"))).outcome is Outcome.INCOMPATIBLE


@pytest.mark.usefixtures("_registries")
def test_a_composite_claims_its_serializer() -> None:
    def build_purse(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Purse:
        return Purse(**marks, currency="EUR", note=nested[0])

    register_composite(PURSE, arity=1, serializer="a.PurseSerializer")(build_purse)
    with pytest.raises(UsageError, match=r"has the snapshot class a\.PurseSerializer\$PurseSnapshot already"):
        register_composite("a.Other", arity=1, serializer="a.PurseSerializer")(build_purse)
