"""The state of one subtask, and the amount of a state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class StateStatistics:
    """Amount of a state.

    Attributes:
        entries: records of keyed state (of a map: its entries), elements of a list state, pairs of a broadcast state.
        bytes: their size without framing.
        entries_by_key_group: of keyed state; empty key groups are left out.
    """

    entries: int
    bytes: int
    entries_by_key_group: dict[int, int] = field(default_factory=dict)


class SubtaskState(Protocol):
    """The state of one subtask."""

    @property
    def subtask(self) -> int:
        """Index of the subtask."""
