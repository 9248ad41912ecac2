"""The steps of a migration as plain values, independent of the state they are applied to.

Expressions are Spark SQL. `nondeterministic` says that the author knows an expression to give other values each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from state_pipelines.serializers.tree import Serializer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.serializers.tree import StateKind

TODO = "TODO"
"""Placeholder in a draft for what only its author can decide; no migration runs with it."""


class Direction(StrEnum):
    """Direction of a migration."""

    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"


class TtlAction(StrEnum):
    """Change of TTL, as the step `ttl` has it."""

    ENABLE = "enable"
    DISABLE = "disable"
    SHIFT = "shift"


@dataclass(frozen=True)
class SqlType:
    """A SQL type of the table runtime, such as `BIGINT`: the type of a field of a `RowData`.

    Attributes:
        text: as `describe_type` writes it.
    """

    text: str


FieldType = Serializer | SqlType


@dataclass(frozen=True)
class Rename:
    """Fields get other names; their bytes stay. Pairs of dotted path and new last name."""

    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Add:
    """A new field with the value of an expression (a literal when the file gives a default).

    Attributes:
        field: dotted path.
        required: the type is a primitive of Java, which has no null.
        nullable: the type was written with `?`; Avro fields become a union with null.
    """

    field: str
    type: FieldType
    expression: str
    required: bool = False
    nullable: bool = False
    nondeterministic: bool = False


@dataclass(frozen=True)
class Cast:
    """A field gets another type; without expression by SQL's CAST. The rest as of `Add`."""

    field: str
    type: FieldType
    expression: str | None
    required: bool = False
    nullable: bool = False
    nondeterministic: bool = False


@dataclass(frozen=True)
class Drop:
    """A field goes."""

    field: str


@dataclass(frozen=True)
class Set:
    """A field gets other values of the same type."""

    field: str
    expression: str
    nondeterministic: bool = False


@dataclass(frozen=True)
class Reorder:
    """The fields of a family with an order (Row, Tuple, Avro, RowData) come in another one.

    Attributes:
        names: all fields, in the new order.
        path: dotted path to the struct; empty for the payload itself.
    """

    names: tuple[str, ...]
    path: str = ""


@dataclass(frozen=True)
class RowColumn:
    """A column of a new row.

    Attributes:
        name: for readers; columns go by position.
        expression: of the value, over the columns of the old row.
        type: SQL type; None is that of the old column which the expression names.
    """

    name: str
    expression: str
    type: SqlType | None = None


@dataclass(frozen=True)
class Columns:
    """A row of the table runtime gets other columns, all at once.

    The row is the payload, the element of a list, or the first field of a tuple; expressions name the columns of the
    latter two `row.f0` and so on.
    """

    columns: tuple[RowColumn, ...]


@dataclass(frozen=True)
class Fill:
    """A column of a row gets the values of a Parquet table, by key; keys that the table does not have keep theirs.

    Attributes:
        field: the column, such as `f2`.
        table: path or URL of the table, with one row per key.
        keys: pairs of a field of the key of the state, or of that of a map (`map_key.f0`), and its column in the table.
        value: column of the table with the values.
    """

    field: str
    table: str
    keys: tuple[tuple[str, str], ...]
    value: str


@dataclass(frozen=True)
class Convert:
    """The payload gets a serializer of any family.

    Attributes:
        type: the new serializer; of Kryo only the class counts, its registrations come from the snapshot.
        expression: the new value; None is by field name.
        discard: fields of the old value that the new one does not have.
    """

    type: Serializer
    expression: str | None = None
    discard: tuple[str, ...] = ()
    nondeterministic: bool = False


@dataclass(frozen=True)
class RenameClass:
    """Classes or whole packages get other names anywhere in the payload's serializer."""

    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Collections:
    """Fields that Flink 1.x wrote by Kryo get the collection serializers of 2.x.

    Attributes:
        types: field and its serializer, without the flags for null that Flink puts around.
    """

    types: tuple[tuple[str, Serializer], ...]


@dataclass(frozen=True)
class Filter:
    """Entries for which `keep` is not true go, or all entries of such keys.

    Attributes:
        keep: over the rows of the state, or of `by`.
        reason: why the others may go.
        by: the state that decides for all keyed states and timers of the operator; None where a state decides for
            itself.
        keeps_missing: whether keys without an entry in `by` stay.
    """

    keep: str
    reason: str
    nondeterministic: bool = False
    by: str | None = None
    keeps_missing: bool = True


@dataclass(frozen=True)
class TtlStep:
    """TTL on or off, or other times of the last access.

    Attributes:
        action: the change.
        expression: time of the last access, for enable and shift.
        reason: why the times may go, for disable.
    """

    action: TtlAction
    expression: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Kind:
    """The state becomes VALUE, LIST or MAP state.

    Attributes:
        to: VALUE, LIST or MAP; of a map to MAP with other user keys.
        type: of the new payload; None is as it was.
        expression: the new payload: of lists and maps to VALUE over `values` or `entries`, all of a key; else over the
            one payload, which None keeps. Entries of a map become elements in the order of their keys.
        key_type: of the user keys, to MAP.
        key_expression: the user key, to MAP.
        discard: `map_key` where a list of a map is to have its values alone.
        on_equal: of a map to MAP, what happens to values that get the same user key: error, or a SQL aggregate.
    """

    to: StateKind
    type: Serializer | None = None
    expression: str | None = None
    key_type: Serializer | None = None
    key_expression: str | None = None
    nondeterministic: bool = False
    discard: tuple[str, ...] = ()
    on_equal: str = "error"


@dataclass(frozen=True)
class RenameState:
    """The state gets another name."""

    name: str


@dataclass(frozen=True)
class RenameStates:
    """Several states of an operator get other names at once, and may exchange them. Pairs of old and new name."""

    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CopyState:
    """The state is there under another name, too."""

    name: str


@dataclass(frozen=True)
class DropState:
    """The state goes."""

    reason: str


@dataclass(frozen=True)
class SplitTarget:
    """One of the states that a state becomes.

    Attributes:
        name: of the new state.
        fields: of the payload, which keeps its family; empty when `type` says it all.
        type: the new payload.
        expression: the new payload; None is by field name.
        class_name: of the new POJO, with `fields`; None keeps the class.
    """

    name: str
    fields: tuple[str, ...] = ()
    type: Serializer | None = None
    expression: str | None = None
    class_name: str | None = None


@dataclass(frozen=True)
class Split:
    """A state becomes several. `discard`: fields that none of them has."""

    into: tuple[SplitTarget, ...]
    discard: tuple[str, ...] = ()
    nondeterministic: bool = False


@dataclass(frozen=True)
class Merge:
    """Several states become one.

    Attributes:
        others: the states beside that of the change; VALUE states beside a MAP give each entry the value of its key.
        into: name of the new state; it may be that of one of the old ones.
        type: of the new payload.
        expression: over columns named like the states; null for states without that key.
        own_keys: whether keys that only the others have are left out, as they are beside a MAP.
    """

    others: tuple[str, ...]
    into: str
    type: Serializer
    expression: str
    nondeterministic: bool = False
    own_keys: bool = False


@dataclass(frozen=True)
class Key:
    """Another key for all states and timers of the operator.

    Attributes:
        type: of the new key.
        expression: over `state_key` and its fields.
        on_equal: by state, what happens to values that get the same key: error, first, last, or a SQL aggregate.
    """

    type: Serializer
    expression: str
    on_equal: tuple[tuple[str, str], ...] = ()
    nondeterministic: bool = False


@dataclass(frozen=True)
class Python:
    """A function of the user over the rows of the state, an Arrow record batch to another.

    Attributes:
        function: `module:name`, or the function itself.
        type: of the new payload; None is as it was.
        deterministic: whether it gives the same for the same rows.
    """

    function: str | Callable[..., Any]
    type: Serializer | None = None
    deterministic: bool = False


FieldStep = Rename | Add | Cast | Drop | Set | Reorder
PayloadStep = FieldStep | Columns | Fill | Convert | RenameClass | Collections
StateStep = Filter | TtlStep | Kind | RenameState | CopyState | DropState | Split | Merge | Python
Step = PayloadStep | StateStep | Key | RenameStates


def list_expressions(step: Step) -> Iterator[str]:
    """The SQL expressions of a step as the user wrote them."""
    for name in ("expression", "keep", "key_expression"):
        text = getattr(step, name, None)
        if text:
            yield text
    match step:
        case Split(into=targets):
            yield from (each.expression for each in targets if each.expression)
        case Key(on_equal=rules):
            yield from (rule for _, rule in rules)
        case Kind(on_equal=rule) if rule != "error":
            yield rule
        case Columns(columns=columns):
            yield from (each.expression for each in columns)
