"""New operators and states as users describe them, with the rows that they get."""

from __future__ import annotations

import datetime
import types
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs.columns import column_type, plan_columns
from state_pipelines.codecs.layout import ROW_KINDS
from state_pipelines.codecs.logical_values import conform, dense_offsets, flatten_entries, to_plain
from state_pipelines.errors import IncompatibleError, UsageError, ValueRangeError, Where, at
from state_pipelines.keyed.digests import identify_rows
from state_pipelines.keyed.hashing import parse_hash_expression
from state_pipelines.keyed.state_table import TTL_COLUMN, TTL_TYPE
from state_pipelines.operations.write.savepoint_plan import (
    OperatorDescription,
    OperatorStateDescription,
    StateDescription,
)
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic, list_of, map_of, pojo, row, ttl
from state_pipelines.serializers.java_types import KryoConfig
from state_pipelines.serializers.state_meta_info import TIMER_STATE
from state_pipelines.serializers.text import describe, parse
from state_pipelines.serializers.tree import KEYED_KINDS, BasicKind, Serializer, StateKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.record_layout import KeyedLayout

GivenType = Serializer | str | type
"""A type as users give it: a serializer, its readable text, or a dataclass with the attribute `java_class`."""

JAVA_CLASS = "java_class"
"""Attribute of a dataclass: the binary name of the POJO class that it stands for."""

_ARROW_KINDS = {
    pa.bool_(): BasicKind.BOOLEAN,
    pa.int8(): BasicKind.BYTE,
    pa.int16(): BasicKind.SHORT,
    pa.int32(): BasicKind.INT,
    pa.int64(): BasicKind.LONG,
    pa.float32(): BasicKind.FLOAT,
    pa.float64(): BasicKind.DOUBLE,
    pa.string(): BasicKind.STRING,
    pa.large_string(): BasicKind.STRING,
    pa.binary(): BasicKind.BYTE_PRIMITIVE_ARRAY,
    pa.large_binary(): BasicKind.BYTE_PRIMITIVE_ARRAY,
    pa.date32(): BasicKind.LOCAL_DATE,
}

_PYTHON_KINDS: dict[object, str] = {
    str: BasicKind.STRING,
    int: BasicKind.LONG,
    float: BasicKind.DOUBLE,
    bool: BasicKind.BOOLEAN,
    bytes: BasicKind.BYTE_PRIMITIVE_ARRAY,
    datetime.date: BasicKind.LOCAL_DATE,
}


def resolve_type(given: GivenType | None, column: pa.DataType | None, name: str) -> Serializer:
    """Return the serializer of the values in a column of a new state.

    Args:
        given: the serializer that the user gives, its text, or a dataclass of a POJO; None to infer it from `column`.
        column: Arrow type of the column; None if the rows have no such column.
        name: name of the column, for errors.

    Raises:
        UsageError: the text does not name a serializer, the dataclass does not describe a POJO, or no serializer
            follows from the type of the column.
    """
    if isinstance(given, Serializer):
        return given
    if isinstance(given, str):
        return _parse(given)
    if given is not None:
        return type_of_dataclass(given)
    if column is None:
        raise UsageError(f"the type of {name} is not known", hint="Give it, such as String or List<Long>")
    return infer_type(column, name)


def _parse(text: str) -> Serializer:
    """Parse the text of a serializer.

    Kryo serializers get the registrations of a job without entries in `pipeline.serialization-config`.
    """
    return parse(text, KryoConfig().configure)


def infer_type(column: pa.DataType, name: str) -> Serializer:
    """Return the serializer of the Java type that corresponds to the Arrow type of a column; for a struct, of a Row.

    Raises:
        UsageError: several Java types, or none, correspond to the Arrow type.
    """
    if column in _ARROW_KINDS:
        return basic(_ARROW_KINDS[column])
    if pa.types.is_struct(column):
        return row(*(infer_type(each.type, f"{name}.{each.name}") for each in column))
    if pa.types.is_list(column) or pa.types.is_large_list(column):
        return list_of(infer_type(column.value_type, f"{name}[]"))
    if pa.types.is_map(column):
        return map_of(infer_type(column.key_type, f"{name}{{key}}"), infer_type(column.item_type, f"{name}{{value}}"))
    hint = "Give its serializer as text, as `state-pipelines inspect` prints it"
    if pa.types.is_timestamp(column):
        hint = (
            "Java has several types for it: Instant, SqlTimestamp, LocalDateTime, or a Long of milliseconds; give one"
        )
    elif pa.types.is_decimal(column):
        hint = "Give BigDec and the value as text (CAST(… AS STRING)), or DecimalData of SQL"
    raise UsageError(f"no serializer follows from the type {column} of {name}", hint=hint)


def type_of_dataclass(given: type) -> Serializer:
    """Return the POJO serializer of a dataclass whose class attribute `java_class` names the Java class.

    Fields may have these types: `str`, `int` (Long), `float` (Double), `bool`, `bytes`, `date`, another such dataclass;
    any of these with `| None`; or `Annotated[…, "Int"]` with the text of a serializer.

    Raises:
        UsageError: `given` is not such a dataclass, or the type of a field is another one.
    """
    name = getattr(given, JAVA_CLASS, None)
    if not is_dataclass(given) or not isinstance(name, str):
        raise UsageError(
            f"{given!r} is no type of state",
            hint=f"Give the text of a serializer, or a dataclass with the class attribute {JAVA_CLASS}",
        )
    hints = get_type_hints(given, include_extras=True)
    return pojo(name, {each.name: _type_of_hint(hints[each.name], f"{name}.{each.name}") for each in fields(given)})


def _type_of_hint(hint: Any, name: str) -> Serializer:
    if get_origin(hint) is Annotated:
        texts = [each for each in hint.__metadata__ if isinstance(each, str)]
        return _parse(texts[0]) if texts else _type_of_hint(get_args(hint)[0], name)
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [each for each in get_args(hint) if each is not type(None)]
        if len(kinds) == 1:
            return _type_of_hint(kinds[0], name)
    if hint in _PYTHON_KINDS:
        return basic(_PYTHON_KINDS[hint])
    if isinstance(hint, type) and is_dataclass(hint):
        return type_of_dataclass(hint)
    raise UsageError(
        f"no serializer follows from the type {hint} of {name}",
        hint='Give the serializer as text, for example Annotated[…, "Nullable<List<Nullable<Long>>>"]',
    )


_OF_ENTRY = 2
"""Number of fields of a struct that is an entry of a map: key and value."""

KEY_GROUP, STATE_KEY, NAMESPACE, TIMESTAMP = "key_group", "state_key", "state_namespace", "timestamp"


@dataclass(frozen=True)
class RowShape:
    """Converts batches of rows to the columns and types of one keyed state.

    Attributes:
        layout: layout of the state.
        accessed: for a state with TTL: time of the last access, in milliseconds since 1970, for rows that do not give
            it.
        from_source: function that converts values which the input (Spark) has in another type, because it lacks their
            own type. Its arguments are an array and the type that the values should have. None if there are no such
            values.
    """

    layout: KeyedLayout
    accessed: int
    from_source: Callable[[pa.Array, pa.DataType], pa.Array] | None = None

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Arrow types of the columns that rows are converted to, by name. For list state, a whole list is one value."""
        layout = self.layout
        found = {each.name: each.type for each in plan_columns(layout.key).type}
        if layout.state_type == StateKind.TIMER:
            return found
        value = column_type(layout.value)
        if layout.state_type == StateKind.LIST:
            element = value.value_type
            return found | {"value": pa.list_(element.field("value").type if layout.ttl else element)}
        name = "map_value" if layout.state_type == StateKind.MAP else "value"
        return found | {name: value.field("value").type if layout.ttl else value}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that rows must have: `state_namespace` only if the state has a namespace."""
        return tuple(name for name, kind in self.types.items() if name != NAMESPACE or not pa.types.is_null(kind))

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows to the columns of the state. Rows with an empty list, which Flink does not store, are left out.

        Raises:
            UsageError: a column is missing, or two fields of a struct have one name.
            ValueRangeError: a value does not fit its serializer, or a list or key group is null.
            IncompatibleError: a map has a key twice.
        """
        columns: dict[str, pa.Array] = {}
        batch = to_plain_rows(batch)
        if self.layout.state_type == StateKind.LIST:
            batch = self._drop_empty(batch)
        for name, kind in self.types.items():
            if name in self.names:
                columns[name] = self._shape_column(batch, name, kind)
        if KEY_GROUP in batch.schema.names:
            columns[KEY_GROUP] = conform_number(batch.column(KEY_GROUP), pa.int32(), KEY_GROUP)
        if self.layout.ttl:
            accessed = self._find_access(batch)
            if self.layout.state_type == StateKind.LIST:
                columns["value"] = _stamp_elements(columns["value"], accessed)
            else:
                columns[TTL_COLUMN] = accessed
        return pa.RecordBatch.from_pydict(columns)

    def _shape_column(self, batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
        index = batch.schema.get_field_index(name)
        if index < 0:
            raise UsageError(f"the rows have no column {name}", hint=f"they have {', '.join(batch.schema.names)}")
        array = batch.column(index)
        if name == TIMESTAMP and pa.types.is_timestamp(array.type):
            array = conform(array, pa.timestamp("ms", array.type.tz), name).cast(pa.int64())
        array = name_fields(array, kind)
        if self.from_source is not None:
            array = self.from_source(array, kind)
        return conform_values(array, kind, name)

    def _drop_empty(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        index = batch.schema.get_field_index("value")
        if index < 0:
            return batch
        lists = batch.column(index)
        if lists.null_count:
            raise ValueRangeError(
                "a list is null", hint="Flink has no such state (`ListState.update(null)` fails); leave the row out"
            )
        if not pa.types.is_list(lists.type):
            if pa.types.is_null(lists.type):
                return batch
            raise ValueRangeError(f"{lists.type} is no list", where=Where(path="value"))
        empty = pc.equal(pc.list_value_length(lists), 0)
        return batch.filter(pc.invert(empty)) if pc.any(empty).as_py() else batch

    def _find_access(self, batch: pa.RecordBatch) -> pa.Array:
        index = batch.schema.get_field_index(TTL_COLUMN)
        if index < 0:
            return pa.array(np.full(len(batch), self.accessed, np.int64)).cast(TTL_TYPE)
        found = batch.column(index)
        if found.null_count:
            raise ValueRangeError(f"{TTL_COLUMN} is null", hint="State with time to live has a time for every value")
        if pa.types.is_integer(found.type):
            return conform(found, pa.int64(), TTL_COLUMN).cast(TTL_TYPE)
        return conform(found, TTL_TYPE, TTL_COLUMN)


def to_plain_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert the columns of a batch to plain types (see `to_plain`).

    Raises:
        ValueRangeError: a column is too large for its plain type.
    """
    columns = [to_plain(column, name) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def conform_number(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Convert a column to the number type `kind`, and check that every row has a value.

    Raises:
        ValueRangeError: a value is null or does not fit the type.
    """
    require_kind(array.type, kind, name)
    if array.null_count:
        raise ValueRangeError(f"{name} is null in some rows", hint="Give it in every row, or leave the column out")
    return conform(array, kind, name)


def conform_values(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Convert a column to the Arrow type of its serializer.

    Raises:
        ValueRangeError: a value does not fit.
        IncompatibleError: a map has a key twice.
    """
    require_kind(array.type, kind, name)
    values = conform(array, kind, name)
    _require_distinct_keys(values, np.arange(len(values)), name)
    return values


def _holds_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return pa.types.is_nested(kind) and any(_holds_map(kind.field(index).type) for index in range(kind.num_fields))


def _require_distinct_keys(array: pa.Array, rows: npt.NDArray[np.int64], path: str) -> None:
    """Refuse maps, at any depth of a column, that have a key twice: a Java map would keep one value only.

    Args:
        array: the column, or values nested in it.
        rows: row number, for errors, of each value of `array`.
        path: path of the values, for errors.

    Raises:
        IncompatibleError: a map has a key twice.
    """
    kind = array.type
    if not _holds_map(kind):
        return
    if pa.types.is_struct(kind):
        for each, child in zip(kind, array.flatten(), strict=True):
            _require_distinct_keys(child, rows, f"{path}.{each.name}")
        return
    entries = flatten_entries(array)
    owners = np.repeat(np.arange(len(array)), np.diff(dense_offsets(array).to_numpy()))
    if not pa.types.is_map(kind):
        _require_distinct_keys(entries, rows[owners], f"{path}[]")
        return
    keys = entries.field(0)
    hashes = identify_rows([pa.array(owners), keys])
    # Sorting the hashes alone is much faster than `argsort`; the indices are needed only to report a repeated key.
    if (np.diff(np.sort(hashes)) == 0).any():
        _refuse_equal(keys, hashes, rows[owners], path)
    for name, child in (("key", keys), ("value", entries.field(1))):
        _require_distinct_keys(child, rows[owners], f"{path}{{{name}}}")


def _refuse_equal(keys: pa.Array, hashes: npt.NDArray[np.uint64], rows: npt.NDArray[np.int64], path: str) -> None:
    """Refuse a map that has a key twice, given that some hashes of keys are equal.

    Args:
        keys: keys of all maps of a column.
        hashes: hash of each key together with the index of its map.
        rows: row number of each key, for the error.
        path: path of the column, for the error.

    Raises:
        IncompatibleError: a map has a key twice; not raised if only the hashes of different keys are equal.
    """
    order = np.argsort(hashes, kind="stable")
    for index in np.flatnonzero(np.diff(hashes[order]) == 0).tolist():
        one, other = ((rows[each], repr(keys[each].as_py())) for each in order[index : index + 2].tolist())
        # Different keys may have the same hash. Compare their texts, because NaN is not equal to itself.
        if one == other:
            raise IncompatibleError(
                f"row {one[0]}: a map has the key {one[1]:.80} twice",
                where=Where(path=path),
                hint="A Java map holds one value per key: leave the others out",
            )


def require_kind(source: pa.DataType, target: pa.DataType, path: str) -> None:
    """Check by types alone that values of `source` may be converted to `target`, at any depth.

    Text is refused if the target is a number or boolean, a number if the target is a boolean, and a boolean if the
    target is a number. A list is refused for a map unless its elements are structs of two fields. Other types pass, and
    are checked when values are converted.

    Raises:
        ValueRangeError: the types do not fit; the error names the path.
    """
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        for each in source:
            if (index := target.get_field_index(each.name)) >= 0:
                require_kind(each.type, target.field(index).type, f"{path}.{each.name}")
    elif pa.types.is_list(source) and pa.types.is_list(target):
        require_kind(source.value_type, target.value_type, f"{path}[]")
    elif pa.types.is_map(source) and pa.types.is_map(target):
        require_kind(source.key_type, target.key_type, f"{path}{{key}}")
        require_kind(source.item_type, target.item_type, f"{path}{{value}}")
    elif pa.types.is_list(source) and pa.types.is_map(target):
        entry = source.value_type
        if not pa.types.is_struct(entry) or entry.num_fields != _OF_ENTRY:
            raise ValueRangeError(f"{source} does not fit {target}", where=Where(path=path))
        require_kind(entry.field(0).type, target.key_type, f"{path}{{key}}")
        require_kind(entry.field(1).type, target.item_type, f"{path}{{value}}")
    elif (
        (one := _find_kind(source)) != (other := _find_kind(target))
        and None not in (one, other)
        and other is not _Kind.TEXT
    ):
        raise ValueRangeError(f"{source} does not fit {target}", where=Where(path=path))


class _Kind(Enum):
    NUMBER = auto()
    BOOLEAN = auto()
    TEXT = auto()


def _find_kind(of: pa.DataType) -> _Kind | None:
    if pa.types.is_integer(of) or pa.types.is_floating(of):
        return _Kind.NUMBER
    if pa.types.is_boolean(of):
        return _Kind.BOOLEAN
    return _Kind.TEXT if pa.types.is_string(of) or pa.types.is_large_string(of) else None


def name_fields(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Rename struct fields, at any depth, to the fields of a Row or tuple (`f0`, `f1`, …) at the same positions.

    If a field already has one of these names, but at another position, all fields of the struct keep their names. A Row
    without a kind becomes an insert (`+I`).

    Raises:
        UsageError: two fields have the same name, and are not renamed because the target has other names.
    """
    source = array.type
    if source == target or pa.types.is_null(source) or pa.types.is_null(target):
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(target) and pa.types.is_struct(source):
        wanted, given = [each.name for each in target], [each.name for each in source]
        plain = [name for name in wanted if name not in ("row_kind", "class")]
        by_position = len(plain) == len(given) and plain == [f"f{index}" for index in range(len(plain))]
        if not by_position or any(old in plain and old != new for new, old in zip(plain, given, strict=True)):
            plain = given
        if len(set(plain)) < len(plain):
            raise UsageError(f"two fields have one name: {', '.join(plain)}", hint="Name the fields of the struct")
        made = {
            new: name_fields(child, target.field(new).type) if new in wanted else child
            for new, child in zip(plain, array.flatten(), strict=True)
        }
        if wanted[:1] == ["row_kind"] and "row_kind" not in made:
            made = {"row_kind": pa.array([ROW_KINDS[0]] * len(array), pa.string()), **made}
        return pa.StructArray.from_arrays([*made.values()], names=[*made], mask=mask)
    if pa.types.is_list(target) and pa.types.is_list(source):
        values = name_fields(array.flatten(), target.value_type)
        return pa.ListArray.from_arrays(dense_offsets(array), values, mask=mask)
    if pa.types.is_map(target) and pa.types.is_map(source):
        entries = flatten_entries(array)
        keys, items = (
            name_fields(entries.field(each), kind) for each, kind in ((0, target.key_type), (1, target.item_type))
        )
        return pa.MapArray.from_arrays(dense_offsets(array), keys, items, mask=mask)
    return array


def _stamp_elements(lists: pa.ListArray, accessed: pa.Array) -> pa.ListArray:
    """Replace each list element by a struct of the last access of its row and the element, for a state with TTL."""
    offsets = dense_offsets(lists)
    lengths = np.diff(offsets.to_numpy())
    rows = pa.array(np.repeat(np.arange(len(lists)), lengths))
    stamped = pa.StructArray.from_arrays(
        [accessed.take(rows).cast(pa.int64()), lists.flatten()], names=["last_access", "value"]
    )
    return pa.ListArray.from_arrays(offsets, stamped)


class NewStateKind(StrEnum):
    """Kind of a new state."""

    VALUE = "VALUE"
    LIST = "LIST"
    MAP = "MAP"
    REDUCING = "REDUCING"
    AGGREGATING = "AGGREGATING"
    EVENT_TIMERS = "EVENT_TIMERS"
    PROCESSING_TIMERS = "PROCESSING_TIMERS"
    SPLIT = "SPLIT"
    UNION = "UNION"
    BROADCAST = "BROADCAST"
    KAFKA = "KAFKA"


_TIMERS: Mapping[str, str] = {NewStateKind.EVENT_TIMERS: "event", NewStateKind.PROCESSING_TIMERS: "processing"}
_MODES: Mapping[str, StateKind] = {
    NewStateKind.SPLIT: StateKind.SPLIT_DISTRIBUTE,
    NewStateKind.UNION: StateKind.UNION,
    NewStateKind.BROADCAST: StateKind.BROADCAST,
}

READER_STATE = "SourceReaderState"
"""Name of the list state with the splits of a source (`SourceOperator.SPLITS_STATE_DESC`)."""

SUBTASK, LIST_INDEX = "subtask", "list_index"


@dataclass(frozen=True)
class NewState:
    """A new state and its rows.

    The rows have the columns that the Spark format `flink-state` has on reading; `columns` may map other names to them.
    Keyed state and timers have `state_key`, for windows also `state_namespace`. All states have these columns:

    | kind | columns |
    |---|---|
    | VALUE, REDUCING, AGGREGATING | `value` |
    | LIST | `value`, the whole list; a key without elements has no row, or an empty list |
    | MAP | `map_key`, `map_value`: a row per entry |
    | EVENT_TIMERS, PROCESSING_TIMERS | `timestamp`, milliseconds since 1970 or a time stamp |
    | SPLIT, UNION | `value`, an element; optionally `subtask` and `list_index` |
    | BROADCAST | `map_key`, `map_value` |
    | KAFKA | `topic`, `partition`, `offset` of the next record to read |

    State with TTL may have `ttl_last_access`, the time of the last access (default: now). Keyed state may have
    `key_group`. It is needed for keys of user classes whose hash is not given; otherwise it must be the key group that
    the hash of the key gives.

    Attributes:
        name: state name. For timers: name of the timer service (`user-timers` of a process function, `window-timers` of
            windows). For Kafka offsets it is ignored: the state is always `SourceReaderState`.
        rows: the rows: a DataFrame, or files (see the function that takes the state).
        kind: kind of the state, or its text.
        type: serializer of the value, of the whole keyed list or map, or of an element of operator list state; by
            default inferred from the columns.
        key_type: serializer of the keys of a broadcast state; by default inferred from the column.
        namespace: serializer of the namespace: `TimeWindow` for windows.
        ttl: values, list elements or map values have a time to live.
        columns: for columns above, by name: the column of `rows` with its values, or several, which become the fields
            of a struct. By default the column of the same name.
    """

    name: str
    rows: object = field(repr=False)
    kind: NewStateKind | str = NewStateKind.VALUE
    type: GivenType | None = None
    key_type: GivenType | None = None
    namespace: GivenType = "VoidNamespace"
    ttl: bool = False
    columns: Mapping[str, str | Sequence[str] | Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an unknown kind, columns that the kind does not have, and TTL of operator state or timers."""
        with at(state=self.name):
            if self.kind not in tuple(NewStateKind):
                raise UsageError(f"{self.kind!r} is no kind of state", hint=f"Kinds are {', '.join(NewStateKind)}")
            unknown = [name for name in self.columns if name not in (*self.wanted, *self.optional)]
            if unknown:
                known = ", ".join((*self.wanted, *self.optional))
                raise UsageError(f"{self.kind} state has no column {', '.join(unknown)}", hint=f"It has {known}")
            for name, given in self.columns.items():
                if not given:
                    raise UsageError(f"`columns` gives no column of the rows for {name}")
            if self.ttl and self.kind not in KEYED_KINDS:
                raise UsageError(f"{self.kind} state has no time to live")

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names of the columns that rows must have.

        `state_namespace` is not one of them, even for windows: it is in `optional`.
        """
        if self.kind == NewStateKind.KAFKA:
            return ("topic", "partition", "offset")
        if self.kind in _MODES:
            return ("map_key", "map_value") if self.kind == NewStateKind.BROADCAST else ("value",)
        if self.kind in _TIMERS:
            return (STATE_KEY, TIMESTAMP)
        return (STATE_KEY, "map_key", "map_value") if self.kind == NewStateKind.MAP else (STATE_KEY, "value")

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the columns that rows may have in addition to `wanted`."""
        if self.kind in (NewStateKind.KAFKA, NewStateKind.BROADCAST):
            return ()
        if self.kind in _MODES:
            return (SUBTASK, LIST_INDEX)
        return (NAMESPACE, KEY_GROUP, TTL_COLUMN) if self.ttl else (NAMESPACE, KEY_GROUP)

    @property
    def is_keyed(self) -> bool:
        """Whether the state is keyed state or timers, not operator state."""
        return self.kind in KEYED_KINDS or self.kind in _TIMERS

    @property
    def stored_name(self) -> str:
        """Name of the state in the snapshot."""
        if self.kind == NewStateKind.KAFKA:
            return READER_STATE
        return f"{TIMER_STATE}{_TIMERS[self.kind]}_{self.name}" if self.kind in _TIMERS else self.name

    def describe_keyed(self, types: Mapping[str, pa.DataType]) -> StateDescription:
        """Describe the state for the savepoint plan, if it is keyed state or timers.

        Args:
            types: Arrow types of the columns of its rows, by name.

        Raises:
            UsageError: a given serializer is wrong, or none follows from a column.
        """
        with at(state=self.name):
            namespace = resolve_type(self.namespace, types.get(NAMESPACE), NAMESPACE)
            if self.kind in _TIMERS:
                return StateDescription(self.stored_name, StateKind.TIMER, None, namespace)
            value = self._resolve_value(types)
            return StateDescription(self.name, self.kind, self._add_ttl(value) if self.ttl else value, namespace)

    def _resolve_value(self, types: Mapping[str, pa.DataType]) -> Serializer:
        if self.kind != NewStateKind.MAP or self.type is not None:
            value = resolve_type(self.type, types.get("value"), "value")
        else:
            key, item = (resolve_type(None, types.get(name), name) for name in ("map_key", "map_value"))
            value = map_of(key, item)
        for kind, node in ((NewStateKind.LIST, tree.ListOf), (NewStateKind.MAP, tree.MapOf)):
            if self.kind == kind and not isinstance(value, node):
                raise UsageError(
                    f"{kind} state needs a {kind.capitalize()} as serializer of the value, not {describe(value)}"
                )
        return value

    def _add_ttl(self, value: Serializer) -> Serializer:
        """Add a time to live to a serializer, as `TtlStateFactory` does: to list elements, map values, or the value."""
        match value:
            case tree.ListOf(element=element) if self.kind == NewStateKind.LIST:
                return list_of(ttl(element))
            case tree.MapOf(key=key, value=item) if self.kind == NewStateKind.MAP:
                return map_of(key, ttl(item))
            case _:
                return ttl(value)

    def describe_unkeyed(self, types: Mapping[str, pa.DataType]) -> OperatorStateDescription:
        """Describe the state for the savepoint plan, if it is operator state or Kafka offsets.

        Args:
            types: Arrow types of the columns of its rows, by name.

        Raises:
            UsageError: a given serializer is wrong, or none follows from a column.
        """
        with at(state=self.name):
            if self.kind == NewStateKind.KAFKA:
                return OperatorStateDescription(READER_STATE, basic(BasicKind.BYTE_PRIMITIVE_ARRAY))
            if self.kind != NewStateKind.BROADCAST:
                return OperatorStateDescription(
                    self.name, resolve_type(self.type, types.get("value"), "value"), _MODES[self.kind]
                )
            key = resolve_type(self.key_type, types.get("map_key"), "map_key")
            value = resolve_type(self.type, types.get("map_value"), "map_value")
            return OperatorStateDescription(self.name, value, StateKind.BROADCAST, key)


@dataclass(frozen=True)
class NewOperator:
    """New state of one operator.

    Attributes:
        uid: uid of the operator, or its 32-digit id.
        states: its new states.
        key: serializer of the keys; by default the one that the operator has in the base, else inferred from the column
            `state_key`.
        parallelism: number of subtasks; required for an operator that the base does not have.
        max_parallelism: number of key groups; by default the number that Flink would choose.
        hashes: `hashCode` of user classes in the key, by class name, such as `objects(a, b)`.
        coordinator: stored bytes of the state of the operator coordinator. For a Kafka source they are made of the
            offsets.
    """

    uid: str
    states: Sequence[NewState]
    key: GivenType | None = None
    parallelism: int | None = None
    max_parallelism: int | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    coordinator: bytes | None = None

    def __post_init__(self) -> None:
        """Refuse an operator without states, invalid numbers, and one name for two kinds of state."""
        if not self.states:
            raise UsageError("the operator has no states", where=Where(operator=self.uid))
        for name, value in (("parallelism", self.parallelism), ("max_parallelism", self.max_parallelism)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UsageError(f"the {name} is {value!r}, not a positive number", where=Where(operator=self.uid))
        for name in {each.stored_name for each in self.keyed} & {each.stored_name for each in self.unkeyed}:
            raise UsageError(
                "a keyed state and an operator state have this name",
                where=Where(operator=self.uid, state=name),
                hint="Flink keeps them apart, but results and reports name states by operator and name; rename one",
            )

    @property
    def keyed(self) -> tuple[NewState, ...]:
        """The new states that are keyed state or timers."""
        return tuple(each for each in self.states if each.is_keyed)

    @property
    def unkeyed(self) -> tuple[NewState, ...]:
        """The new states that are operator state (list, union, broadcast) or Kafka offsets."""
        return tuple(each for each in self.states if not each.is_keyed)

    def describe(
        self, types: Mapping[str, Mapping[str, pa.DataType]], known_key: Serializer | None, coordinator: bytes | None
    ) -> OperatorDescription:
        """Describe the operator with all its new states for the savepoint plan.

        Args:
            types: Arrow types of the columns of the rows, by stored name of the state and name of the column.
            known_key: serializer of the keys in the base; None if the operator has none there.
            coordinator: state of the operator coordinator; None to leave it as it is.

        Raises:
            UsageError: a given serializer is wrong, or none follows from a column.
        """
        with at(operator=self.uid):
            key = None
            if self.keyed:
                column = types[self.keyed[0].stored_name].get(STATE_KEY)
                key = (
                    known_key
                    if self.key is None and known_key is not None
                    else resolve_type(self.key, column, STATE_KEY)
                )
            return OperatorDescription(
                self.uid,
                tuple(each.describe_keyed(types[each.stored_name]) for each in self.keyed),
                tuple(each.describe_unkeyed(types[each.stored_name]) for each in self.unkeyed),
                key,
                self.parallelism,
                self.max_parallelism,
                tuple((name, parse_hash_expression(text)) for name, text in self.hashes.items()),
                coordinator,
            )
