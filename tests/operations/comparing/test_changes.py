from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import state_pipelines as sp
from state_pipelines.operations.diff import ExampleKind, diff
from state_pipelines.operations.diff.diff_report import ComparedState, list_changes
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path


def changes(one: str, other: str) -> dict[tuple[str, str], ComparedState]:
    found = diff(sp.open_snapshot(one), sp.open_snapshot(other), limit=30)
    return {(each.operator, each.state): each for each in list_changes(found)}


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The savepoint without the entries of one key."""
    target = str(tmp_path_factory.mktemp("erased") / "savepoint")
    assert sp.erase(str(orders().path), ["order-0001"], target) is not None
    return target


def test_records_that_went_are_removed(erased: str) -> None:
    found = changes(str(orders().path), erased)["orders", "order"]
    assert (found.before, found.after) == (200, 199)
    assert (found.added, found.removed, found.changed) == (0, 1, 0)
    (sample,) = found.list_samples(ExampleKind.ONE)
    assert sample.key["state_key"] == "order-0001"
    assert sample.one is not None
    assert found.is_changed


def test_records_that_came_are_added(erased: str) -> None:
    found = changes(erased, str(orders().path))["orders", "order"]
    assert (found.added, found.removed, found.changed) == (1, 0, 0)
    assert len(found.list_samples(ExampleKind.OTHER)) == 1


def test_the_same_state_is_not_changed(erased: str) -> None:
    found = changes(str(orders().path), erased)["pricing", "prices"]
    assert (found.added, found.removed, found.changed, found.note, found.is_changed) == (0, 0, 0, "", False)


def test_a_state_that_only_one_has_is_noted(tmp_path: Path) -> None:
    found = changes(str(orders("1.20").path), str(orders().path))
    assert all(each.note for each in found.values() if None in (each.added, each.removed))
