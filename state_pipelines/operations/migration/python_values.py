"""Steps on state of Python functions: types of PyFlink in migration files, names of states, keys of one field."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError, UsageError
from state_pipelines.metadata import find_operator_id, format_operator_id
from state_pipelines.operations.migration.steps import FieldType, SqlType
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import row
from state_pipelines.serializers.python_types import PythonDeclaration, PythonType, PythonValue, parse_python_type
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BasicKind
from state_pipelines.snapshot.state import PREFIX, carry_types, python_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Declarations, Snapshot

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
"""The type of PyFlink for each word of Java that a migration file may use."""


def adopt_python_type(of: FieldType) -> PythonType:
    """A type of a migration file as one of PyFlink.

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
    """Replace a payload by a type of a migration file; for a Python state, by the type of PyFlink that it is there."""
    return replace(payload, type=adopt_python_type(of)) if isinstance(payload, PythonValue) else of


def find_java_name(name: str, known: Collection[str]) -> str:
    """The name in Java of a state that a migration names as Python does."""
    return PREFIX + name if name not in known and PREFIX + name in known else name


def make_java_name(name: str, like: StateShape) -> str:
    """Return the name in Java of a new state that replaces `like`."""
    return PREFIX + name if python_name(like.info) and not name.startswith(PREFIX) else name


def wrap_python_key(key: tree.Serializer, sql: str, shapes: Mapping[str, StateShape]) -> tuple[tree.Serializer, str]:
    """A key and its SQL as PyFlink has them: the only field of a Row (`KeyByKeySelector`)."""
    is_python = any(python_name(shape.info) for shape in shapes.values())
    if not is_python or (isinstance(key, tree.Row) and len(key.fields) == 1):
        return key, sql
    return row(key), f"named_struct('row_kind', '+I', 'f0', {sql})"


def carry_declared_pickles(snapshot: Snapshot) -> Snapshot:
    """The snapshot with declared pickles as plain bytes: JSON of pickles is not written back, their bytes are."""
    declarations = snapshot.declarations
    carried = {
        operator: {state: carry_types(declared) for state, declared in types.items()}
        for operator, types in declarations.python_types.items()
    }
    if carried == declarations.python_types:
        return snapshot
    return snapshot.with_declarations(replace(declarations, python_types=carried))


def number_columns(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the operators, but not the columns, as declared plans name them.

    Steps of migrations name the columns of SQL rows by position, since those of the result are not in the plan.
    """
    declarations = snapshot.declarations
    if not declarations.plans:
        return snapshot
    uids = dict.fromkeys((*declarations.uids, *(each.uid for each in snapshot.planned.values())))
    return snapshot.with_declarations(replace(declarations, plans=(), uids=tuple(uids)))


def redeclare(declarations: Declarations, plans: Mapping[bytes, Mapping[str, StateShape]]) -> Declarations:
    """The declarations after a migration: the types of Python states as the new shapes have them.

    Args:
        declarations: before.
        plans: by operator id, the shapes of all states afterwards.
    """
    kept = {name: types for name, types in declarations.python_types.items() if find_operator_id(name) not in plans}
    new = {format_operator_id(operator): declare_shapes(shapes) for operator, shapes in plans.items()}
    return replace(declarations, python_types=kept | {name: types for name, types in new.items() if types})


def declare_shapes(shapes: Mapping[str, StateShape]) -> dict[str, PythonDeclaration]:
    """The declarations that give the states of shapes their types, by name in Python."""
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
