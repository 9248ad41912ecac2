from __future__ import annotations

import pytest

from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.rescale import parse_request, plan_rescale
from state_pipelines.operations.rescale.assembly import MovedKeyGroups, find_moved_key_groups
from state_pipelines.operations.rescale.rescale import tell_moved
from state_pipelines.storage import resolve
from tests.snapshot.savepoints import orders


def test_key_groups_and_bytes_that_change_subtask() -> None:
    snapshot = orders().open()
    moved = find_moved_key_groups(snapshot.operator("orders"), 4)
    assert moved is not None
    # 0-63 and 64-127 become 0-31, 32-63, 64-95 and 96-127.
    assert moved.ranges == (KeyGroupRange(32, 96),)
    sections = [section for _, file in snapshot.operator("orders").keyed_files for section in file.sections]  # type: ignore[attr-defined]
    assert moved.total == sum(each.end - each.start for each in sections)
    assert moved.bytes == sum(each.end - each.start for each in sections if each.key_group >= 32)
    assert not moved.estimated


def test_nothing_moves_where_the_parallelism_stays() -> None:
    moved = find_moved_key_groups(orders().open().operator("orders"), 2)
    assert moved is not None
    assert (moved.ranges, moved.bytes) == ((), 0)


def test_operators_without_keyed_state_have_no_key_groups() -> None:
    assert find_moved_key_groups(orders().open().operator("pricing"), 4) is None


def test_other_key_groups_are_no_move() -> None:
    plan = plan_rescale(orders().open(), resolve("new"), parse_request({"max_parallelism": 1024}))
    assert {change.moved for change in plan.changes} == {None}


@pytest.mark.parametrize(
    ("moved", "text"),
    [
        (MovedKeyGroups((), 0, 10, False), "no key group changes subtask"),
        (
            MovedKeyGroups((KeyGroupRange(3, 1), KeyGroupRange(5, 3)), 4, 10, True),
            "4 of 16 key groups change subtask: 3, 5-7; about 4 B of 10 B",
        ),
        (MovedKeyGroups((KeyGroupRange(3, 1),), None, None, False), "1 of 16 key groups change subtask: 3"),
    ],
)
def test_moves_in_words(moved: MovedKeyGroups, text: str) -> None:
    assert tell_moved(moved, 16, lambda size: f"{size} B") == text
