"""Registered states: name, kind, options and serializers, as state meta infos store them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from state_pipelines.errors import NotFoundError, UsageError, Where
from state_pipelines.serializers.tree import ListOf, Serializer

KEYED_STATE_TYPE = "KEYED_STATE_TYPE"
DISTRIBUTION_MODE = "OPERATOR_STATE_DISTRIBUTION_MODE"
KEY_SERIALIZER = "KEY_SERIALIZER"
NAMESPACE_SERIALIZER = "NAMESPACE_SERIALIZER"
USER_KEY_SERIALIZER = "USER_KEY_SERIALIZER"
VALUE_SERIALIZER = "VALUE_SERIALIZER"


class BackendStateType(StrEnum):
    """`StateMetaInfoSnapshot.BackendStateType`: registry of a state; the file holds the position in this order."""

    KEY_VALUE = "KEY_VALUE"
    OPERATOR = "OPERATOR"
    BROADCAST = "BROADCAST"
    PRIORITY_QUEUE = "PRIORITY_QUEUE"
    KEY_VALUE_V2 = "KEY_VALUE_V2"


class StateKind(StrEnum):
    """Use of a state.

    Of keyed state the words of Flink's `StateDescriptor.Type`, of operator state those of
    `OperatorStateHandle.Mode`; timers, state that only its operator knows, and network buffers have words of ours.
    """

    VALUE = "VALUE"
    LIST = "LIST"
    MAP = "MAP"
    REDUCING = "REDUCING"
    AGGREGATING = "AGGREGATING"
    FOLDING = "FOLDING"
    UNKNOWN = "UNKNOWN"
    TIMER = "TIMER"
    SPLIT_DISTRIBUTE = "SPLIT_DISTRIBUTE"
    UNION = "UNION"
    BROADCAST = "BROADCAST"
    RAW = "RAW"
    IN_FLIGHT = "IN_FLIGHT"


KEYED_KINDS = (StateKind.VALUE, StateKind.LIST, StateKind.MAP, StateKind.REDUCING, StateKind.AGGREGATING)
"""Kinds of keyed state that every release of Flink has."""

LIST_KINDS = (StateKind.SPLIT_DISTRIBUTE, StateKind.UNION)
"""Kinds of operator list state."""

OPERATOR_KINDS = (*LIST_KINDS, StateKind.BROADCAST)
"""Kinds of operator state."""


@dataclass(frozen=True, kw_only=True)
class StateMetaInfo:
    """The meta information of one state.

    Attributes:
        name: state name, unique in its backend.
        backend_type: its registry.
        options: pairs in the order of the file.
        serializers: pairs of key and serializer in the order of the file.
    """

    name: str
    backend_type: BackendStateType
    options: tuple[tuple[str, str], ...]
    serializers: tuple[tuple[str, Serializer], ...]

    @property
    def state_type(self) -> StateKind | None:
        """VALUE, LIST, REDUCING, AGGREGATING or MAP of keyed state; None of timers and operator state."""
        return _find_kind(self.options, KEYED_STATE_TYPE, (*KEYED_KINDS, StateKind.FOLDING))

    @property
    def distribution_mode(self) -> StateKind | None:
        """SPLIT_DISTRIBUTE, UNION or BROADCAST of operator state; None of keyed state."""
        return _find_kind(self.options, DISTRIBUTION_MODE, OPERATOR_KINDS)

    @property
    def value_serializer(self) -> Serializer:
        """Of the value; of list and map state the whole list or map; of timers and operator state the element."""
        return self._serializer(VALUE_SERIALIZER)

    @property
    def namespace_serializer(self) -> Serializer:
        """Of the namespace; keyed state only."""
        return self._serializer(NAMESPACE_SERIALIZER)

    @property
    def key_serializer(self) -> Serializer:
        """Serializer of the keys of a broadcast state (that of keyed state is in the header of the file)."""
        return self._serializer(KEY_SERIALIZER)

    @property
    def element(self) -> Serializer:
        """Of one element of a list state, a priority queue or an operator list.

        Raises:
            UsageError: the state has no elements (value, map, broadcast).
        """
        value = self.value_serializer
        if self.backend_type in (BackendStateType.PRIORITY_QUEUE, BackendStateType.OPERATOR):
            return value
        if self.state_type == StateKind.LIST:
            return value.element if isinstance(value, ListOf) else value
        raise UsageError(
            f"a {self.state_type or self.backend_type} state has no elements",
            where=Where(state=self.name),
            hint="Use its value_serializer",
        )

    def _serializer(self, key: str) -> Serializer:
        for name, serializer in self.serializers:
            if name == key:
                return serializer
        present = ", ".join(name for name, _ in self.serializers) or "none"
        raise NotFoundError(
            f"the {self.backend_type} state stores no {key} (stored: {present})", where=Where(state=self.name)
        )


def _find_kind(options: tuple[tuple[str, str], ...], name: str, known: tuple[StateKind, ...]) -> StateKind | None:
    word = dict(options).get(name)
    return None if word is None else next((kind for kind in known if kind == word), StateKind.UNKNOWN)
