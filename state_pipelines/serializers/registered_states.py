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


class StateKind(StrEnum):
    """`StateMetaInfoSnapshot.BackendStateType`; the file holds the position in this order."""

    KEY_VALUE = "KEY_VALUE"
    OPERATOR = "OPERATOR"
    BROADCAST = "BROADCAST"
    PRIORITY_QUEUE = "PRIORITY_QUEUE"
    KEY_VALUE_V2 = "KEY_VALUE_V2"


@dataclass(frozen=True, kw_only=True)
class StateMetaInfo:
    """The meta information of one state.

    Attributes:
        name: state name, unique in its backend.
        kind: which sort of backend state it is.
        options: pairs in the order of the file.
        serializers: pairs of key and serializer in the order of the file.
    """

    name: str
    kind: StateKind
    options: tuple[tuple[str, str], ...]
    serializers: tuple[tuple[str, Serializer], ...]

    @property
    def state_type(self) -> str | None:
        """VALUE, LIST, REDUCING, AGGREGATING or MAP of keyed state; None for the other kinds."""
        return dict(self.options).get(KEYED_STATE_TYPE)

    @property
    def distribution_mode(self) -> str | None:
        """SPLIT_DISTRIBUTE, UNION or BROADCAST of operator state; None for keyed state."""
        return dict(self.options).get(DISTRIBUTION_MODE)

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
        if self.kind in (StateKind.PRIORITY_QUEUE, StateKind.OPERATOR):
            return value
        if self.state_type == "LIST":
            return value.element if isinstance(value, ListOf) else value
        raise UsageError(
            f"a {self.state_type or self.kind} state has no elements",
            where=Where(state=self.name),
            hint="Use its value_serializer",
        )

    def _serializer(self, key: str) -> Serializer:
        for name, serializer in self.serializers:
            if name == key:
                return serializer
        present = ", ".join(name for name, _ in self.serializers) or "none"
        raise NotFoundError(f"the {self.kind} state stores no {key} (stored: {present})", where=Where(state=self.name))
