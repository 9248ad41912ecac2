"""Sessions of an operator among its states, and the states that follow them when keys or contents change.

Flink keeps the sessions of a key in a state of their own: each with the window that its contents are stored under,
which stays that of its first element while the session grows (`MergingWindowSet`; in SQL
`MergingWindowProcessFunction`). Sessions of one key never touch each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration.flows import SessionRole
from state_pipelines.serializers import tree
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.operations.migration.shapes import StateShape

DATASTREAM_SET = "merging-window-set"
"""State of the sessions in `WindowOperator`: a list of pairs of a session and the window of its contents."""

SQL_SET = "session-window-mapping"
"""State of the sessions in SQL: a map from sessions to the windows of their contents."""

WINDOW_CONTENTS = "window-contents"
"""State of the contents in `WindowOperator`; every other one with windows as namespaces is of its trigger."""

_SQL_CONTENTS = ("window-aggs", "session-window-tvf-acc")
"""States of the contents in SQL; data views are beside them, with the same namespaces."""

_WINDOWS = (BasicKind.TIME_WINDOW, BasicKind.TABLE_TIME_WINDOW)


@dataclass(frozen=True)
class SessionStates:
    """States of an operator that belong to its sessions.

    Attributes:
        windows: name of the state of the sessions.
        roles: by name, the relation of every state that belongs to them.
        window: serializer of the windows.
    """

    windows: str
    roles: Mapping[str, SessionRole]
    window: tree.Serializer

    @property
    def is_sql(self) -> bool:
        """Whether it is an operator of SQL."""
        return self.windows == SQL_SET

    @property
    def contents(self) -> tuple[str, ...]:
        """States without an entry of which a session has no contents."""
        return tuple(name for name in (WINDOW_CONTENTS, *_SQL_CONTENTS) if self.roles.get(name) is SessionRole.STORED)

    def require_followed(self, *, nondeterministic: bool) -> None:
        """Refuse steps that the states of sessions cannot follow.

        Args:
            nondeterministic: the expression of the step gives other values each time, so for each state others.

        Raises:
            MigrationError: it does, or only their class knows how the windows become one.
        """
        if nondeterministic:
            raise MigrationError(
                f"{', '.join(self.roles)} cannot follow an expression that gives other values each time",
                hint="Use one that gives the same, such as a hash of the key",
            )
        if not isinstance(self.window, tree.Basic) or self.window.kind not in _WINDOWS:
            raise MigrationError(
                f"sessions of windows of {describe(self.window)} cannot change: only their class knows which of them "
                "become one",
                hint="Change other operators only, and let this one begin without state (another uid)",
            )


def find_session_states(shapes: Mapping[str, StateShape]) -> SessionStates | None:
    """The states of the sessions of an operator; None where it has none."""
    for name in (DATASTREAM_SET, SQL_SET):
        shape = shapes.get(name)
        window = None if shape is None else _find_window(shape)
        if window is None:
            continue
        roles = {name: SessionRole.SET}
        for other, each in shapes.items():
            if other == name or not each.is_keyed or each.namespace != window:
                continue
            is_stored = each.kind != StateKind.TIMER and (name == SQL_SET or other == WINDOW_CONTENTS)
            roles[other] = SessionRole.STORED if is_stored else SessionRole.SESSION
        return SessionStates(name, roles, window)
    return None


def require_whole_sessions(before: Mapping[str, StateShape], after: Mapping[str, StateShape]) -> None:
    """Refuse to leave sessions without their contents, or the reverse.

    Args:
        before: shapes of the states of an operator.
        after: their shapes after all steps.

    Raises:
        MigrationError: one of them is no longer what Flink's operator keeps under that name.
    """
    old, new = (find_session_states(shapes) for shapes in (before, after))
    if old is None:
        return
    names = (old.windows, *old.contents)
    left = [name for name in names if new is not None and name in (new.windows, *new.contents)]
    if new is None:
        left = [name for name in old.roles if name in after]
    if left and (new is None or set(left) < set(names)):
        gone = [name for name in names if new is None or name not in left]
        raise MigrationError(
            f"{', '.join(left)} would remain without {', '.join(gone)}: sessions and their contents belong together",
            hint="Keep names and kinds of all states of the windows, or drop them all",
        )


def _find_window(shape: StateShape) -> tree.Serializer | None:
    """Serializer of the windows of a state of sessions; None where it is no such state."""
    match shape.kind, shape.payload, shape.map_key:
        case StateKind.LIST, tree.Tuple(fields=(session, stored)), _ if session == stored:
            return session
        case StateKind.MAP, stored, session if session == stored:
            return stored
        case _:
            return None
