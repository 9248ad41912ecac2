"""Serializers of a state for planning: its meta info and, for keyed state, the serializer of its keys.

State of Python functions is planned by the types of PyFlink that migration files give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError, StateError, UsageError
from state_pipelines.metadata import find_operator_id, format_operator_id
from state_pipelines.operations.migration.step_types import FieldType, SqlType
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import list_of, map_of, row, ttl
from state_pipelines.serializers.python_types import PythonDeclaration, PythonType, PythonValue, parse_python_type
from state_pipelines.serializers.state_meta_info import (
    KEYED_STATE_TYPE,
    VALUE_SERIALIZER,
    BackendStateType,
    StateMetaInfo,
)
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import OPERATOR_KINDS, BasicKind, StateKind
from state_pipelines.snapshot.state import PREFIX, carry_types, python_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from state_pipelines.snapshot import Declarations, Operator, Snapshot

_COLUMNS = {StateKind.LIST: "list_value", StateKind.MAP: "map_value", StateKind.BROADCAST: "map_value"}


@dataclass(frozen=True)
class StateShape:
    """The serializers of one state, and operations on them that plan a migration.

    Attributes:
        info: meta info of the state.
        key: serializer of the keys of the operator; None for operator state.
    """

    info: StateMetaInfo
    key: tree.Serializer | None

    @property
    def name(self) -> str:
        """State name."""
        return self.info.name

    @property
    def kind(self) -> StateKind:
        """VALUE, LIST, MAP, REDUCING, AGGREGATING or TIMER; for operator state SPLIT_DISTRIBUTE, UNION or BROADCAST."""
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
        """Whether the state is keyed state or timers, not operator state."""
        return self.kind not in OPERATOR_KINDS

    @property
    def payload(self) -> tree.Serializer:
        """Serializer of the value, list element or map value; see `payload_serializer`."""
        return payload_serializer(self.info)

    @property
    def column(self) -> str:
        """Name of the column that has the value, list element or map value in tables of the state."""
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
        """Return the shape with another serializer of the value, list element or map value."""
        return replace(self, info=replace_payload(self.info, payload))

    def with_name(self, name: str) -> StateShape:
        """Return the shape under another name."""
        return replace(self, info=replace(self.info, name=name))

    def with_ttl(self, *, enabled: bool) -> StateShape:
        """Return the shape with or without times of the last access."""
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
            MigrationError: it is a state of a Python function that would become a map, or is a map now.
        """
        if isinstance(payload, PythonValue):
            if StateKind.MAP in (kind, self.kind):
                raise MigrationError(
                    "map state of a Python function cannot become state of another kind, nor other state map state"
                )
            # In Java, VALUE and LIST state of Python functions are both lists of byte arrays: only the declared kind
            # changes.
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
        """Return the shape with another serializer of the keys of the operator."""
        if self.kind != StateKind.TIMER:
            return replace(self, key=key)
        element = self.info.element
        assert isinstance(element, tree.Timer)
        assert key is not None
        return StateShape(_with_value(self.info, replace(element, key=key)), key)


def find_shapes(operator: Operator) -> dict[str, StateShape]:
    """Return the shapes of the states of an operator by name: keyed states and timers, then list and broadcast states.

    Operator state is left out if it has the name of a keyed state, or if it cannot be read (see `explain_unread`). A
    migration cannot name such state, and copies it as bytes.
    """
    shapes = {state.name: StateShape(state.info, state.key_serializer) for state in operator.keyed_states}
    if not explain_unread(operator):
        for state in operator.operator_states:
            shapes.setdefault(state.name, StateShape(state.info, None))
    return shapes


def explain_unread(operator: Operator) -> str:
    """Return the reason why the operator state of an operator cannot be read; empty if it can."""
    try:
        operator.operator_states  # noqa: B018 - raises when it cannot be read
    except StateError as error:
        return error.what
    return ""


def payload_serializer(info: StateMetaInfo) -> tree.Serializer:
    """Return the serializer that steps work on: of the value, list element or map value, without a TTL wrapper."""
    *_, payload = _wrappers(_outermost(info))
    return payload


def replace_payload(info: StateMetaInfo, payload: tree.Serializer) -> StateMetaInfo:
    """Return meta info with `payload` in place of the serializer that `payload_serializer` finds."""
    return _with_value(info, _replace_inside(info.value_serializer, payload_serializer(info), payload))


def _outermost(info: StateMetaInfo) -> tree.Serializer:
    """Return the serializer of the value, list element or map value, with its TTL wrapper if there is one."""
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


_WORDS = {
    BasicKind.BOOLEAN: "BOOLEAN",
    BasicKind.BYTE: "TINYINT",
    BasicKind.SHORT: "SMALLINT",
    BasicKind.INT: "INT",
    BasicKind.LONG: "BIGINT",
    BasicKind.FLOAT: "FLOAT",
    BasicKind.DOUBLE: "DOUBLE",
    BasicKind.STRING: "STRING",
    BasicKind.BIG_DEC: "DECIMAL",
    BasicKind.BYTE_PRIMITIVE_ARRAY: "BYTES",
    BasicKind.SQL_DATE: "DATE",
    BasicKind.SQL_TIME: "TIME",
    BasicKind.SQL_TIMESTAMP: "TIMESTAMP",
    BasicKind.INSTANT: "INSTANT",
}
"""PyFlink's name of each type that a migration file may name as Java does."""


def adopt_python_type(of: FieldType) -> PythonType:
    """Convert a type of a migration file to the type of PyFlink.

    Raises:
        MigrationError: PyFlink does not have the type.
    """
    if isinstance(of, PythonType):
        return of
    try:
        if isinstance(of, SqlType):
            return parse_python_type(of.text)
        if isinstance(of, tree.Basic) and of.kind in _WORDS:
            return PythonType(word=_WORDS[of.kind])
    except UsageError as error:
        raise MigrationError(error.what, hint=error.hint) from None
    raise MigrationError(f"PyFlink has no type for {describe(of)}", hint="Write it as PyFlink does, such as BIGINT")


def adopt_python_payload(payload: tree.Serializer, of: tree.Serializer) -> tree.Serializer:
    """Return the serializer of a type in a migration file; for state of a Python function, the type of PyFlink."""
    return replace(payload, type=adopt_python_type(of)) if isinstance(payload, PythonValue) else of


def find_java_name(name: str, known: Collection[str]) -> str:
    """Return the name that a state has in Java; `name` is that name, or the name of a state in the Python code."""
    return PREFIX + name if name not in known and PREFIX + name in known else name


def make_java_name(name: str, like: StateShape) -> str:
    """Return the name in Java of a new state: with PyFlink's prefix if `like`, which it is made of, is Python state."""
    return PREFIX + name if python_name(like.info) and not name.startswith(PREFIX) else name


def wrap_python_key(key: tree.Serializer, sql: str, shapes: Mapping[str, StateShape]) -> tuple[tree.Serializer, str]:
    """Wrap a key and its SQL in a Row with one field if there is Python state, as PyFlink's `KeyByKeySelector` does."""
    is_python = any(python_name(shape.info) for shape in shapes.values())
    if not is_python or (isinstance(key, tree.PositionalRow) and len(key.fields) == 1):
        return key, sql
    return row(key), f"named_struct('row_kind', '+I', 'f0', {sql})"


def carry_declared_pickles(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with values that are declared as pickles read as bytes.

    Pickles that are decoded to JSON cannot be encoded again, but their bytes can be copied.
    """
    declarations = snapshot.declarations
    carried = {
        operator: {state: carry_types(declared) for state, declared in types.items()}
        for operator, types in declarations.python_types.items()
    }
    if carried == declarations.python_types:
        return snapshot
    return snapshot.with_declarations(replace(declarations, python_types=carried))


def number_columns(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without declared plans, so that columns of SQL rows are named by position (`f0`).

    Steps of migrations name columns so, since the plan of the old query does not have the new columns. The uids of
    operators that the plans give are kept.
    """
    declarations = snapshot.declarations
    if not declarations.plans:
        return snapshot
    uids = dict.fromkeys((*declarations.uids, *(each.uid for each in snapshot.planned.values())))
    return snapshot.with_declarations(replace(declarations, plans=(), uids=tuple(uids)))


def redeclare(declarations: Declarations, plans: Mapping[bytes, Mapping[str, StateShape]]) -> Declarations:
    """Return the declarations for the migrated snapshot: with the types that Python states have in the new shapes.

    Args:
        declarations: declarations for the old snapshot.
        plans: by operator id, the shapes of all states after the migration.
    """
    kept = {name: types for name, types in declarations.python_types.items() if find_operator_id(name) not in plans}
    new = {format_operator_id(operator): declare_shapes(shapes) for operator, shapes in plans.items()}
    return replace(declarations, python_types=kept | {name: types for name, types in new.items() if types})


def declare_shapes(shapes: Mapping[str, StateShape]) -> dict[str, PythonDeclaration]:
    """Return the declarations that give Python states the types in their shapes, by name of the state in Python."""
    found = {}
    for shape in shapes.values():
        payload, map_key = shape.payload, shape.map_key
        if not isinstance(payload, PythonValue):
            continue
        of, kind = payload.type, payload.kind
        if isinstance(map_key, PythonValue):
            of, kind = PythonType(word="MAP", children=(map_key.type, of)), StateKind.MAP
        found[python_name(shape.info)] = PythonDeclaration(of, kind)
    return found
