"""What becomes of an operator, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_pipelines.operations.rescaling.plans import OperatorChange


def tell_label(change: OperatorChange) -> str:
    """The label of an operator, such as `orders`, or `orders → orders-v2` where it has a new one."""
    return change.label if change.label == change.former else f"{change.former} → {change.label}"


def tell_number(before: int, after: int) -> str:
    """A number, such as `2`, or `2 → 3` where it changes."""
    return str(before) if before == after else f"{before} → {after}"
