"""What subtasks have of a state, and how much it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class StateStatistics:
    """How much there is of a state.

    Attributes:
        entries: records of keyed state (of a map: its entries), elements of a list state, pairs of a broadcast state.
        bytes: their size without framing.
        entries_by_key_group: of keyed state; empty key groups are left out.
    """

    entries: int
    bytes: int
    entries_by_key_group: dict[int, int] = field(default_factory=dict)


class StatePart(Protocol):
    """What one subtask has of a state."""

    @property
    def subtask(self) -> int:
        """Index of the subtask."""
