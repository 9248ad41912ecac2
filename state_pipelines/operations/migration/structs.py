"""Structs of every family as slots that steps on fields can change: POJO, Row, Tuple, Avro record, RowData.

A slot is a field together with the SQL that gives its value. A family knows how its slots are named, which types they
take, and how a serializer is made of them again.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import LayoutContext, contains_opaque
from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration.avro_schema import (
    AvroType,
)
from state_pipelines.operations.migration.steps import FieldType, SqlType
from state_pipelines.serializers import tree
from state_pipelines.serializers.text import describe_type

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.connectors.registry import ConnectorStateKind

Columns = tuple[tuple[str, str], ...]
"""Name and SQL of each column."""


@dataclass(frozen=True)
class SqlColumn:
    """The type of a field of a `RowData`: the type, its Java stream, its serializer."""

    type: tree.LogicalType
    java: bytes
    serializer: tree.Serializer


SlotType = tree.Serializer | AvroType | SqlColumn
Node = tree.Serializer | AvroType


@dataclass(frozen=True)
class KnownConnector:
    """The connector that wrote a list state.

    Attributes:
        name: such as `kafka`.
        kind: kind of the state.
    """

    name: str
    kind: ConnectorStateKind


@dataclass(frozen=True)
class PlanContext:
    """Planning context besides the serializers of a state.

    Attributes:
        layouts: what layouts of data depend on.
        sql_types: by readable form, the SQL types that the snapshot holds, whose Java streams can be used again.
        kryos: Kryo serializers of the snapshot by class.
        declared: serializers of the snapshot whose layouts the user declares.
        connectors: by name of a list state whose connector columns are set, its connector, or why none is known.
        permits_null: fields that no class declares may be null: values are carried over, or compared with known ones.
    """

    layouts: LayoutContext = field(default_factory=LayoutContext)
    sql_types: tuple[tuple[str, SqlColumn], ...] = ()
    kryos: tuple[tree.Kryo, ...] = ()
    declared: tuple[tree.Declared, ...] = ()
    connectors: tuple[tuple[str, KnownConnector | str], ...] = ()
    permits_null: bool = False


@dataclass(frozen=True)
class Slot:
    """A field of a struct.

    Attributes:
        name: of its column.
        type: of its values.
        sql: what gives its values.
        member: its name in its class, which differs from the column for some subclasses of POJOs.
        owners: of POJOs, the classes that have it (0 is the POJO itself) and the class that declares it there.
    """

    name: str
    type: SlotType
    sql: str
    member: str
    owners: tuple[tuple[int, str | None], ...] = ((0, None),)


class Struct(ABC):
    """A struct of one family.

    Attributes:
        slots: its fields.
        extra: columns beside the fields.
        class_names: of POJOs, the class and its subclasses.
        ordered: whether the order of the fields is part of the serializer.
        named: whether fields have names of their own, not those of their positions.
    """

    slots: tuple[Slot, ...]
    extra: Columns = ()
    class_names: tuple[str, ...] = ()
    ordered = True
    named = True

    def find(self, name: str) -> Slot:
        """The slot of a column.

        Raises:
            MigrationError: there is none.
        """
        for slot in self.slots:
            if slot.name == name:
                return slot
        names = ", ".join(sorted(slot.name for slot in self.slots))
        raise MigrationError(f"there is no field {name}", hint=f"The fields are {names}" if names else "")

    def add(self, name: str, of: SlotType, sql: str) -> Slot:
        """A new slot."""
        if not self.named and name != f"f{len(self.slots)}":
            raise MigrationError(
                f"a new field goes by its position, f{len(self.slots)}, not {name}",
                hint="`reorder` moves it afterwards",
            )
        return Slot(name, of, sql, name)

    def adopt(self, of: FieldType, *, nullable: bool) -> SlotType:
        """A type of a file as that of a slot.

        Raises:
            MigrationError: fields of this family have no such type.
        """
        del nullable
        if isinstance(of, SqlType):
            raise MigrationError(f"{of.text} is a SQL type, which only fields of RowData have")
        return of

    @abstractmethod
    def rebuild(self, slots: Iterable[Slot]) -> tuple[Node, Columns]:
        """The serializer with other slots, and its columns."""


def quote_name(name: str) -> str:
    """Quote a column name for Spark SQL."""
    return f"`{name.replace('`', '``')}`"


_SIMPLE = re.compile(r"\w+(?:\.\w+)*|`(?:[^`]|``)+`|-?\d+(?:\.\d+)?\w?|'[^'\\]*'")


def enclose(expression: str) -> str:
    """An expression of a user so that larger SQL may hold it: what it says inside stays inside.

    A comment at its end would take what follows. `spark.migration_permissions.require_expressions` makes sure that the
    text is a single expression by itself.
    """
    if _SIMPLE.fullmatch(expression):
        return expression
    return f"({expression}\n)" if "--" in expression else f"({expression})"


def find_bare(sql: str) -> str | None:
    """Return the name if the SQL is only a name as `quote_name` writes it, else None."""
    match = re.fullmatch(r"`((?:[^`]|``)+)`", sql)
    return None if match is None else match[1].replace("``", "`")


RAW = "__raw"
"""Prefix of columns whose opaque values are passed on as bytes; without a name the column of the whole payload."""


def name_raw(name: str) -> str:
    """Return the name of the column in which a field is passed on."""
    return f"{RAW}_{name}"


def find_root(slot: Slot, context: PlanContext) -> str:
    """SQL of a struct or collection whose parts are passed on, but for those that a step changes."""
    bare = find_bare(slot.sql)
    if bare is None or not isinstance(slot.type, tree.Serializer) or not contains_opaque(slot.type, context.layouts):
        return slot.sql
    return quote_name(name_raw(bare))


def make_text(text: str) -> str:
    """A literal of text in Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def make_struct(columns: Iterable[tuple[str, str]]) -> str:
    """SQL of a struct."""
    return f"named_struct({', '.join(f'{make_text(name)}, {sql}' for name, sql in columns)})"


def known_sql_types(serializers: Iterable[tree.Serializer]) -> dict[str, SqlColumn]:
    """The SQL types that serializers hold, by readable form."""
    found: dict[str, SqlColumn] = {}
    for serializer in serializers:
        if isinstance(serializer, tree.RowData):
            for each in map(SqlColumn, serializer.types, serializer.java_types, serializer.fields):
                found.setdefault(describe_type(each.type), each)
    return found
