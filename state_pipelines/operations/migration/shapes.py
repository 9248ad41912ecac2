"""Serializers of a state for planning: its meta info and, for keyed state, the serializer of its keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError, StateError
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import list_of, map_of, ttl
from state_pipelines.serializers.python_types import PythonValue
from state_pipelines.serializers.registered_states import OPERATOR_KINDS, StateKind
from state_pipelines.serializers.state_meta_info import (
    KEYED_STATE_TYPE,
    VALUE_SERIALIZER,
    BackendStateType,
    StateMetaInfo,
)

if TYPE_CHECKING:
    from state_pipelines.snapshot import Operator

"""Kinds of operator state, as its distribution modes are called."""

_COLUMNS = {StateKind.LIST: "list_value", StateKind.MAP: "map_value", StateKind.BROADCAST: "map_value"}


@dataclass(frozen=True)
class StateShape:
    """The serializers of one state.

    Attributes:
        info: meta info of the state.
        key: serializer of the keys of the operator; None of operator state.
    """

    info: StateMetaInfo
    key: tree.Serializer | None

    @property
    def name(self) -> str:
        """State name."""
        return self.info.name

    @property
    def kind(self) -> StateKind:
        """VALUE, LIST, MAP, REDUCING, AGGREGATING or TIMER; of operator state SPLIT_DISTRIBUTE, UNION or BROADCAST."""
        match self.info.backend_type:
            case BackendStateType.PRIORITY_QUEUE:
                return StateKind.TIMER
            case BackendStateType.BROADCAST:
                return StateKind.BROADCAST
            case BackendStateType.OPERATOR:
                return self.info.distribution_mode or StateKind.SPLIT_DISTRIBUTE
        if isinstance(payload := payload_serializer(self.info), PythonValue):
            return payload.kind
        return self.info.state_type or StateKind.UNKNOWN

    @property
    def is_keyed(self) -> bool:
        """Whether the state belongs to keys."""
        return self.kind not in OPERATOR_KINDS

    @property
    def payload(self) -> tree.Serializer:
        """See `payload_serializer`."""
        return payload_serializer(self.info)

    @property
    def column(self) -> str:
        """The column of tables that holds the payload."""
        return _COLUMNS.get(self.kind, "value")

    @property
    def ttl(self) -> bool:
        """Whether values carry the time of their last access."""
        return any(isinstance(each, tree.Ttl) for each in _wrappers(_outermost(self.info)))

    @property
    def map_key(self) -> tree.Serializer | None:
        """Serializer of the user keys of a map, or of the keys of broadcast state."""
        if self.kind == StateKind.BROADCAST:
            return self.info.key_serializer
        value = self.info.value_serializer
        return value.key if self.kind == StateKind.MAP and isinstance(value, tree.MapOf) else None

    @property
    def namespace(self) -> tree.Serializer:
        """Serializer of the namespace; keyed state only."""
        if self.kind == StateKind.TIMER:
            element = self.info.element
            assert isinstance(element, tree.Timer)
            return element.namespace
        return self.info.namespace_serializer

    def with_payload(self, payload: tree.Serializer) -> StateShape:
        """With another payload."""
        return replace(self, info=replace_payload(self.info, payload))

    def with_name(self, name: str) -> StateShape:
        """Under another name."""
        return replace(self, info=replace(self.info, name=name))

    def with_ttl(self, *, enabled: bool) -> StateShape:
        """With or without times of the last access."""
        if enabled == self.ttl:
            return self
        payload = self.payload
        outermost = _outermost(self.info)
        inner = ttl(payload) if enabled else payload
        if isinstance(outermost, tree.TtlAware):
            inner = replace(outermost, ttl_enabled=enabled, inner=inner)
        return replace(self, info=_with_value(self.info, _replace_inside(self.info.value_serializer, outermost, inner)))

    def with_kind(
        self, kind: StateKind, payload: tree.Serializer, map_key: tree.Serializer | None = None
    ) -> StateShape:
        """Return the shape as VALUE, LIST or MAP state; TTL stays.

        Raises:
            MigrationError: a state of a Python function would become a map, or stop being one.
        """
        if isinstance(payload, PythonValue):
            if StateKind.MAP in (kind, self.kind):
                raise MigrationError(
                    "map state of Python functions does not become state of another kind, or the reverse"
                )
            # Java has a list of byte arrays for both.
            return self.with_payload(replace(payload, kind=kind))
        inner = ttl(payload) if self.ttl else payload
        value: tree.Serializer = inner
        if kind == StateKind.LIST:
            value = list_of(inner)
        elif kind == StateKind.MAP:
            assert map_key is not None
            value = map_of(map_key, inner)
        options = tuple((name, kind if name == KEYED_STATE_TYPE else each) for name, each in self.info.options)
        return replace(self, info=_with_value(replace(self.info, options=options), value))

    def with_key(self, key: tree.Serializer | None) -> StateShape:
        """With another key."""
        if self.kind != StateKind.TIMER:
            return replace(self, key=key)
        element = self.info.element
        assert isinstance(element, tree.Timer)
        assert key is not None
        return StateShape(_with_value(self.info, replace(element, key=key)), key)


def find_shapes(operator: Operator) -> dict[str, StateShape]:
    """The keyed states and timers of an operator, then its list and broadcast states, in the order of their ids.

    An operator state with the name of a keyed one is not among them, and neither is operator state that cannot be read
    (see `explain_unread`): a migration cannot name it, and it is copied as bytes.
    """
    shapes = {state.name: StateShape(state.info, state.key_serializer) for state in operator.keyed_states}
    if not explain_unread(operator):
        for state in operator.operator_states:
            shapes.setdefault(state.name, StateShape(state.info, None))
    return shapes


def explain_unread(operator: Operator) -> str:
    """Why the operator state of an operator cannot be read; empty when it can."""
    try:
        operator.operator_states  # noqa: B018 - raises when it cannot be read
    except StateError as error:
        return error.what
    return ""


def payload_serializer(info: StateMetaInfo) -> tree.Serializer:
    """The serializer that steps work on: of the value, the list element, or the map value; inside TTL, if any."""
    *_, payload = _wrappers(_outermost(info))
    return payload


def replace_payload(info: StateMetaInfo, payload: tree.Serializer) -> StateMetaInfo:
    """`info` with another payload serializer (see `payload_serializer`)."""
    return _with_value(info, _replace_inside(info.value_serializer, payload_serializer(info), payload))


def _outermost(info: StateMetaInfo) -> tree.Serializer:
    """Of the value, the element or the map value, TTL and all."""
    value: tree.Serializer = info.value_serializer
    if info.state_type == StateKind.LIST:
        return info.element
    return value.value if info.state_type == StateKind.MAP and isinstance(value, tree.MapOf) else value


def _wrappers(node: tree.Serializer) -> tuple[tree.Serializer, ...]:
    if isinstance(node, tree.Ttl | tree.TtlAware):
        return (node, *_wrappers(node.inner))
    return (node,)


def _with_value(info: StateMetaInfo, value: tree.Serializer) -> StateMetaInfo:
    serializers = tuple((key, value if key == VALUE_SERIALIZER else each) for key, each in info.serializers)
    return replace(info, serializers=serializers)


def _replace_inside(node: tree.Serializer, old: tree.Serializer, new: tree.Serializer) -> tree.Serializer:
    if node is old:
        return new
    match node:
        case tree.ListOf(element=element):
            return replace(node, element=_replace_inside(element, old, new))
        case tree.MapOf(value=value):
            return replace(node, value=_replace_inside(value, old, new))
        case tree.Ttl(inner=inner) | tree.TtlAware(inner=inner):
            return replace(node, inner=_replace_inside(inner, old, new))
        case _:
            return node
