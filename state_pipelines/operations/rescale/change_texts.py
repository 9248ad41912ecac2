"""Changes of operators in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.operations.rescale.moved_key_groups import MovedKeyGroups
    from state_pipelines.operations.rescale.rescale_plan import OperatorChange

_LISTED = 8
"""Ranges of key groups that a text lists."""


def tell_label(change: OperatorChange) -> str:
    """The label of an operator, such as `orders`, or `orders → orders-v2` where it has a new one."""
    return change.label if change.label == change.former else f"{change.former} → {change.label}"


def tell_number(before: int, after: int) -> str:
    """A number, such as `2`, or `2 → 3` where it changes."""
    return str(before) if before == after else f"{before} → {after}"


def tell_moved(moved: MovedKeyGroups, max_parallelism: int, format_bytes: Callable[[int], str]) -> str:
    """Key groups and bytes that change subtask, such as `42 of 128 key groups change subtask: 43-84`."""
    if not moved.ranges:
        return "no key group changes subtask"
    names = [f"{each.start}" if len(each) == 1 else f"{each.start}-{each.end}" for each in moved.ranges[:_LISTED]]
    more = f" and {len(moved.ranges) - _LISTED} more ranges" if len(moved.ranges) > _LISTED else ""
    text = f"{moved.number} of {max_parallelism} key groups change subtask: {', '.join(names)}{more}"
    if moved.bytes is None or moved.total is None:
        return text
    about = "about " if moved.estimated else ""
    return f"{text}; {about}{format_bytes(moved.bytes)} of {format_bytes(moved.total)}"
