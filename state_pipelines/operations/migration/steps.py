"""The steps of a migration: plain values, which are also the entries of a migration file.

The annotations of a step are its entry in a file: they read and write it (`step_entries`), and describe it in the JSON
schema and in the reference. A step that is made by code is taken as it is, without being read.

Expressions are Spark SQL. `nondeterministic` says that the author knows an expression to give other values each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, StrictBool, WithJsonSchema
from pydantic_core import PydanticCustomError, core_schema

from state_pipelines.errors import MigrationError, StateError
from state_pipelines.operations.migration.step_types import FieldType, SqlType, parse_column_type, parse_field_type
from state_pipelines.operations.migration.step_types import parse_type as _parse_type
from state_pipelines.operations.models import Refusal
from state_pipelines.serializers.text import spell
from state_pipelines.serializers.tree import Serializer, StateKind

if TYPE_CHECKING:
    from collections.abc import Iterator

TODO = "TODO"
"""Placeholder in a draft for what only its author can decide; no migration runs with it."""


ENTRY_NAME = "name of the entry"
"""Name under which the name of an entry of a mapping is validated with it; no file can say it."""


class Direction(StrEnum):
    """Direction of a migration."""

    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"


@dataclass(frozen=True)
class _Parsed:
    """Annotation of a pydantic field whose text in a file is parsed to a value.

    Attributes:
        parse: makes a value of a text; raises a StateError if the text is not valid.
        write: makes the text of a value again.
        kinds: types of values that need not be parsed.
    """

    parse: Callable[[str], object]
    write: Callable[[Any], object]
    kinds: type | tuple[type, ...] = Serializer

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> core_schema.CoreSchema:
        """Return a schema that reads and writes values by `parse` and `write`."""
        write = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(self._read, serialization=write)

    def __get_pydantic_json_schema__(self, schema: object, handler: object) -> dict[str, Any]:
        """Return the JSON schema of text."""
        return {"type": "string"}

    def _read(self, value: object) -> object:
        if isinstance(value, self.kinds) and not isinstance(value, str):
            return value
        try:
            return self.parse(_require_text(value))
        except StateError as error:
            raise Refusal(error) from None


def _require_text(value: object) -> str:
    if value is None or isinstance(value, dict | list):
        raise PydanticCustomError("string_type", "is not text")
    return str(value)


def _list_items(value: object) -> object:
    if not isinstance(value, Mapping):
        raise PydanticCustomError("dict_type", "is not a mapping")
    return tuple(value.items())


def _list_named(value: object, *, is_plain: bool) -> object:
    """Turn a mapping of names to entries into a tuple of entries that contain their names.

    With `is_plain`, an entry may also be plain text: its expression.
    """
    if not isinstance(value, Mapping):
        raise PydanticCustomError("dict_type", "is not a mapping")
    found = []
    for name, given in value.items():
        each = {"expression": given} if is_plain and not isinstance(given, Mapping) else given
        found.append({**each, ENTRY_NAME: name} if isinstance(each, Mapping) else each)
    return tuple(found)


def _read_time(value: object) -> object:
    """Convert a time or date that YAML has parsed to SQL (without a zone it is UTC); return other values unchanged."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return f"TIMESTAMP '{moment.isoformat(' ')}'"
    return f"TIMESTAMP '{value.isoformat()} 00:00:00+00:00'" if isinstance(value, date) else value


def _parse_kind(text: str) -> StateKind:
    word = text.upper()
    if word not in (StateKind.VALUE, StateKind.LIST, StateKind.MAP):
        raise MigrationError(f"{word} is not a kind of state", hint="Kinds are VALUE, LIST and MAP")
    return StateKind(word)


def _parse_name(text: str) -> str:
    if not text or not text.isprintable():
        raise MigrationError(f"{text!a} is not a name: it is empty or has unprintable characters")
    return text


def _parse_function(text: str) -> str:
    module, _, name = text.partition(":")
    if not module or not name:
        raise MigrationError(f"{text!r} is not of the form module:name")
    return text


def _parse_collection(text: str) -> Serializer:
    return _parse_type(text, collections=True)


def _write_field_type(of: FieldType) -> str:
    return of.text if isinstance(of, SqlType) else spell(of)


Text = Annotated[str, BeforeValidator(_require_text)]
Name = Annotated[str, _Parsed(_parse_name, str)]
Time = Annotated[Text, BeforeValidator(_read_time)]
TypeText = Annotated[Serializer, _Parsed(_parse_type, spell)]
FieldTypeText = Annotated[FieldType, _Parsed(parse_field_type, _write_field_type, (Serializer, SqlType))]
ColumnType = Annotated[SqlType, _Parsed(parse_column_type, _write_field_type, SqlType)]
CollectionType = Annotated[Serializer, _Parsed(_parse_collection, spell)]
KindText = Annotated[StateKind, _Parsed(_parse_kind, str, StateKind)]
Function = Annotated[str | Callable[..., Any], _Parsed(_parse_function, lambda given: given, Callable)]
Names = Annotated[
    tuple[Text, ...], BeforeValidator(lambda given: () if given is None else given), PlainSerializer(list)
]
_ByName = BeforeValidator(_list_items)
_TEXTS = WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}})
Pairs = Annotated[
    tuple[tuple[Text, Text], ...],
    _ByName,
    BeforeValidator(lambda given: {} if given is None else given),
    PlainSerializer(dict),
    _TEXTS,
]


class StepValue:
    """Base class of the steps, and of the entries inside of them."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", use_attribute_docstrings=True)


@dataclass(frozen=True)
class Rename(StepValue):
    """Rename fields; the bytes of their values stay the same."""

    names: Annotated[tuple[tuple[Text, Name], ...], _ByName, PlainSerializer(dict), _TEXTS]
    """By dotted path of a field, its new name (without the path)."""


@dataclass(frozen=True)
class Add(StepValue):
    """Add a field with the value of an expression (a literal where the file gives a default)."""

    field: Text
    """Dotted path of the field."""

    type: FieldTypeText
    """Type of the field; with `?` an Avro field becomes a union with null."""

    expression: Text
    """Value of the field."""

    required: bool = False
    """The type is a primitive of Java, which has no null."""

    nullable: bool = False
    """The type was written with `?`."""

    nondeterministic: StrictBool = False
    """The expression gives other values each time."""


@dataclass(frozen=True)
class Cast(StepValue):
    """Change the type of a field."""

    field: Text
    """Dotted path of the field."""

    type: Annotated[FieldTypeText, Field(alias="to")]
    """New type of the field; with `?` an Avro field becomes a union with null."""

    expression: Text | None = None
    """Value of the field; by default that of SQL's CAST."""

    required: bool = False
    """The type is a primitive of Java, which has no null."""

    nullable: bool = False
    """The type was written with `?`."""

    nondeterministic: StrictBool = False
    """The expression gives other values each time."""


@dataclass(frozen=True)
class Drop(StepValue):
    """Remove a field."""

    field: Text
    """Dotted path of the field."""


@dataclass(frozen=True)
class Set(StepValue):
    """Give a field other values of the same type."""

    field: Text
    """Dotted path of the field; `value` for a value without fields."""

    expression: Text
    """Value of the field."""

    nondeterministic: StrictBool = False
    """The expression gives other values each time."""


@dataclass(frozen=True)
class Reorder(StepValue):
    """Change the order of the fields of a Row, Tuple, Avro record or RowData."""

    names: Names
    """All fields, in the new order."""

    path: Annotated[Text, BeforeValidator(lambda given: given or "")] = ""
    """Dotted path to the struct; by default the whole value."""


@dataclass(frozen=True)
class RowColumn(StepValue):
    """Column of a new row; its name is only for readers of the file, since rows store columns by position."""

    name: Annotated[Text, Field(alias=ENTRY_NAME, exclude=True)]
    """Name of the column."""

    expression: Text
    """Value of the column, over the columns of the old row."""

    type: ColumnType | None = None
    """SQL type; by default that of the old column which the expression names."""


@dataclass(frozen=True)
class Columns(StepValue):
    """Replace all columns of a row of the table runtime at once.

    The row is the whole value, the element of a list, or the first field of a tuple. Expressions name its columns `f0`
    and so on; those of a row in a list or tuple, `row.f0` and so on.
    """

    columns: Annotated[
        tuple[RowColumn, ...],
        BeforeValidator(lambda given: _list_named(given, is_plain=True)),
        PlainSerializer(lambda columns: {each.name: _write_column(each) for each in columns}),
        WithJsonSchema(
            {
                "type": "object",
                "additionalProperties": {
                    "anyOf": [
                        {"type": "string"},
                        {
                            "type": "object",
                            "properties": {"type": {"type": "string"}, "expression": {"type": "string"}},
                            "required": ["expression"],
                            "additionalProperties": False,
                        },
                    ]
                },
            }
        ),
    ]
    """By name of a new column, its expression, or `{type, expression}`."""


def _write_column(column: RowColumn) -> object:
    given = None if column.type is None else {"type": column.type.text, "expression": column.expression}
    return given or column.expression


@dataclass(frozen=True)
class Fill(StepValue):
    """Fill a column of a row from a Parquet table, by key; keys that the table does not have keep their values."""

    field: Text
    """The column, such as `f2`."""

    table: Text
    """Path or URL of the table, with one row per key."""

    keys: Pairs
    """By field of the key of the state, or of the user key of a map (`map_key.f0`), its column in the table."""

    value: Text
    """Column of the table with the values."""


@dataclass(frozen=True)
class Convert(StepValue):
    """Convert the value, list element or map value to a serializer of any family."""

    type: Annotated[TypeText, Field(alias="to")]
    """The new serializer; for Kryo only the class, since its registrations are taken from the snapshot."""

    expression: Text | None = None
    """The new value; by default fields are matched by name."""

    discard: Names = ()
    """Fields of the old value that the new one does not have."""

    nondeterministic: StrictBool = False
    """The expression gives other values each time."""


@dataclass(frozen=True)
class RenameClass(StepValue):
    """Rename classes or whole packages anywhere in the serializer of the value, list element or map value."""

    names: Pairs
    """By class or package, its new name."""


@dataclass(frozen=True)
class Collections(StepValue):
    """Convert fields of POJOs that Flink 1.x wrote by Kryo to the collection serializers of Flink 2.x."""

    types: Annotated[
        tuple[tuple[Text, CollectionType], ...],
        _ByName,
        PlainSerializer(lambda types: {name: spell(of) for name, of in types}),
        _TEXTS,
    ]
    """By field, its elements: `ELEMENT` makes a list, `KEY, VALUE` a map, without the null flags that Flink adds."""


@dataclass(frozen=True)
class Filter(StepValue):
    """Keep only entries for which an expression is true; with `by`, only keys for which it is true in another state."""

    keep: Text
    """Expression over the rows of the state, or of `by`: whether the entry or key stays."""

    reason: Text
    """Reason why the other entries may be removed."""

    nondeterministic: StrictBool = False
    """The expression gives other values each time."""

    by: Text | None = None
    """The state that decides for all keyed states and timers of the operator; by default a state decides for itself."""

    missing: Literal["keep", "drop"] | None = None
    """Keys without an entry in `by`: `keep` (the default) or `drop`."""


@dataclass(frozen=True)
class TtlStep(StepValue):
    """Turn TTL on or off, or change the times of the last access; exactly one of the three entries is given."""

    enable: Time | None = None
    """Time of the last access of all entries."""

    disable: Text | None = None
    """Reason why the times may be removed."""

    shift: Time | None = None
    """New time of the last access, in SQL."""


@dataclass(frozen=True)
class MapKey(StepValue):
    """The user keys of a new map."""

    type: TypeText
    """Type of the user keys."""

    expression: Text
    """SQL of the user key."""

    on_equal: Text | None = None
    """Rule for values of a map that get the same user key: `error` (the default), or a SQL aggregate."""


@dataclass(frozen=True)
class NewPayload(StepValue):
    """Type and expression of the new values of a state, such as the values of a new map."""

    type: TypeText | None = None
    """Type of the values; by default as it was."""

    expression: Text | None = None
    """The value; by default as it was."""


@dataclass(frozen=True)
class Kind(StepValue):
    """Turn the state into VALUE, LIST or MAP state, or give a MAP other user keys.

    Where a list or map becomes VALUE state, expressions see all its elements (`values`) or entries (`entries`) at once;
    otherwise one value at a time. Entries of a map become elements in the order of their keys.
    """

    to: KindText
    """VALUE, LIST or MAP."""

    type: TypeText | None = None
    """Type of the new value or list element, for VALUE and LIST; by default as it was."""

    expression: Text | None = None
    """SQL of the new value or list element, for VALUE and LIST; by default the old value."""

    map_key: MapKey | None = None
    """The user keys, for MAP."""

    value: NewPayload | None = None
    """The values, for MAP."""

    discard: Names = ()
    """`[map_key]` if a map becomes a list of its values alone."""

    nondeterministic: StrictBool = False
    """An expression gives other values each time."""

    @property
    def payload(self) -> NewPayload:
        """Type and expression of the new value, list element or map value."""
        return self.value or NewPayload(self.type, self.expression)

    @property
    def on_equal(self) -> str:
        """The rule for equal user keys."""
        return (self.map_key and self.map_key.on_equal) or "error"


@dataclass(frozen=True)
class RenameState(StepValue):
    """Rename the state."""

    name: Text
    """New name."""


@dataclass(frozen=True)
class RenameStates(StepValue):
    """Rename several states of an operator at once; they may exchange their names."""

    names: Pairs
    """By old name, the new one."""


@dataclass(frozen=True)
class CopyState(StepValue):
    """Copy the state to another name; the state itself stays."""

    name: Text
    """Name of the copy."""


@dataclass(frozen=True)
class DropState(StepValue):
    """Remove the state."""

    reason: Text
    """Reason why it may be removed."""


@dataclass(frozen=True)
class SplitTarget(StepValue):
    """One of the new states into which a state is split."""

    name: Annotated[Text, Field(alias=ENTRY_NAME, exclude=True)]
    """Name of the new state."""

    fields: Names = ()
    """Fields of the payload, which keeps its family; not with `type`."""

    type: TypeText | None = None
    """Type of the new payload."""

    expression: Text | None = None
    """SQL of the new payload; by default, fields are matched by name."""

    class_name: Annotated[Text | None, Field(alias="class")] = None
    """Class of the new POJO, with `fields`; by default the class stays."""


@dataclass(frozen=True)
class Split(StepValue):
    """Split a state into several."""

    into: Annotated[
        tuple[SplitTarget, ...],
        BeforeValidator(lambda given: _list_named(given, is_plain=False)),
    ]
    """By name of a new state, its fields, or its type and expression."""

    discard: Names = ()
    """Fields of the old state that none of the new ones has."""

    nondeterministic: StrictBool = False
    """An expression gives other values each time."""


@dataclass(frozen=True)
class Merge(StepValue):
    """Merge several states into one; VALUE states merged with a MAP give each of its entries the value of the key."""

    others: Annotated[Names, Field(alias="with")]
    """The other states, besides that of the change."""

    into: Text
    """Name of the new state; it may be that of one of the old ones."""

    type: TypeText
    """Type of the new payload."""

    expression: Text
    """The new payload, over columns named like the states; null for states without that key."""

    own_keys: StrictBool = False
    """Leave out keys that only the other states have; this is always so if VALUE states are merged with a MAP."""

    nondeterministic: StrictBool = False
    """The expression gives other values each time."""


@dataclass(frozen=True)
class Key(StepValue):
    """Change the key of all states and timers of the operator."""

    type: TypeText
    """Type of the new key."""

    expression: Text
    """The new key, over `state_key` and its fields."""

    on_equal: Pairs = ()
    """By state, the rule for values that get the same key: `error`, `first`, `last`, or a SQL aggregate."""

    nondeterministic: StrictBool = False
    """The expression gives other values each time."""


@dataclass(frozen=True)
class Python(StepValue):
    """Call a function of the user that turns the rows of the state, as Arrow record batches, into new rows."""

    function: Function
    """`module:name`, or the function itself."""

    type: Annotated[TypeText | None, Field(alias="to")] = None
    """Type of the new payload; by default as it was."""

    deterministic: StrictBool = field(kw_only=True)
    """Whether the function gives the same result for the same rows."""


FieldStep = Rename | Add | Cast | Drop | Set | Reorder
PayloadStep = FieldStep | Columns | Fill | Convert | RenameClass | Collections
StateStep = Filter | TtlStep | Kind | RenameState | CopyState | DropState | Split | Merge | Python
Step = PayloadStep | StateStep | Key | RenameStates


def list_expressions(step: Step) -> Iterator[str]:
    """Yield the SQL expressions of a step as the user wrote them."""
    match step:
        case Kind():
            found = [step.payload.expression, step.map_key and step.map_key.expression]
            found += [step.on_equal] if step.on_equal != "error" else []
        case Filter():
            found = [step.keep]
        case TtlStep():
            found = [step.enable, step.shift]
        case Split():
            found = [each.expression for each in step.into]
        case Columns():
            found = [each.expression for each in step.columns]
        case Key():
            found = [step.expression, *(rule for _, rule in step.on_equal)]
        case Add() | Cast() | Set() | Convert() | Merge():
            found = [step.expression]
        case _:
            found = []
    yield from filter(None, found)
