"""The sessions of one key, and the windows that their contents are stored under (`MergingWindowSet`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.windows import TimeWindow, merge_windows

if TYPE_CHECKING:
    from state_pipelines.datastream.states import ListState


@dataclass(frozen=True)
class Merge:
    """Sessions that became one.

    Attributes:
        result: the new session.
        merged: the sessions before, without the window that was added.
        stored: window under which the contents of the result are stored: that of the first session.
        merged_stored: windows whose contents move there.
    """

    result: TimeWindow
    merged: list[TimeWindow]
    stored: TimeWindow
    merged_stored: list[TimeWindow]


class MergingWindowSet:
    """The sessions of the current key.

    Args:
        state: pairs of a session and the window that its contents are stored under.
    """

    def __init__(self, state: ListState[Any]) -> None:
        self._state = state
        self._stored = {TimeWindow(**session): TimeWindow(**stored) for session, stored in state.get()}
        self._before = dict(self._stored)

    def add(self, added: TimeWindow) -> list[Merge]:
        """Add the window of an element; return the sessions that became one with it."""
        if added in self._stored:
            return []
        merges: list[Merge] = []
        for result, windows in merge_windows([*self._stored, added]):
            before = [each for each in windows if each != added]
            if len(windows) < 2:
                continue
            first, *others = [self._stored.pop(each) for each in before]
            self._stored[result] = first
            # An element inside a session does not change it.
            if before != [result]:
                merges.append(Merge(result, before, first, others))
        if self.get(added) is None and not any(_contains(each, added) for each in self._stored):
            self._stored[added] = added
        return merges

    def cover(self, added: TimeWindow) -> TimeWindow:
        """Return the session that a window was added to."""
        return next(each for each in self._stored if _contains(each, added))

    def get(self, session: TimeWindow) -> TimeWindow | None:
        """Return the window that the contents of a session are stored under; None if there is no such session."""
        return self._stored.get(session)

    def find(self, session: TimeWindow) -> TimeWindow:
        """Return the window that the contents of an existing session are stored under."""
        return self._stored[session]

    def retire(self, session: TimeWindow) -> None:
        """Remove a session."""
        del self._stored[session]

    def persist(self) -> None:
        """Write the sessions, if they have changed."""
        if self._stored != self._before:
            self._state.update([(vars(session), vars(stored)) for session, stored in self._stored.items()])


def _contains(outer: TimeWindow, inner: TimeWindow) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end
