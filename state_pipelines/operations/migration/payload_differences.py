"""Search for the steps that turn one payload into another: added, removed, renamed and cast fields, other families.

Fields are matched by name. A missing field and a new one of the same type may be a renamed field; only where one pair
is alike is that taken for granted, and reported.

Fields of tuples and rows are known by position alone. A field that is inserted or removed shifts those after it, and
nothing in a snapshot says so: a tuple of a text and a number that becomes one of two texts and a number has a new first
field, a new second one, or a new last one and a cast.
Source: `TupleSerializerBase`, `RowSerializer` and `RowDataSerializer` store types in order and no names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import yaml

from state_pipelines.errors import MigrationError, StateError
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.payload_conversion import (
    convert_by_name,
    find_lost_fields,
    follows_protocol,
    payload_type,
    read_json,
    rename_classes,
)
from state_pipelines.operations.migration.step_entries import dump_step
from state_pipelines.operations.migration.step_types import FieldType, SqlType, make_literal
from state_pipelines.operations.migration.steps import TODO
from state_pipelines.operations.migration.structs import (
    AvroType,
    Node,
    PayloadStruct,
    PlanContext,
    Slot,
    SlotType,
    SqlColumn,
    expand_schema,
    find_record,
    make_avro_type,
    make_struct,
    open_struct,
    quote_name,
    strip_schema,
    strip_serializer,
)
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic, list_of, map_of, pojo
from state_pipelines.serializers.text import describe_type
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_MOST = 6
"""Maximum number of matchings that are listed; a row with many fields of one type can have one for each field."""


@dataclass(frozen=True)
class FieldMatching:
    """A possible change ("reading") of a struct without field names: the old field that each new field was.

    Attributes:
        origins: for each new field, the position of the old field that it was; None for an added field.
        count: number of old fields.
    """

    origins: tuple[int | None, ...]
    count: int

    @property
    def gone(self) -> tuple[int, ...]:
        """Positions of the old fields that have been removed."""
        return tuple(position for position in range(self.count) if position not in self.origins)

    @property
    def text(self) -> str:
        """The reading in words, such as `f0 stays, f1 was f2, f1 is gone`."""
        said = []
        for position, origin in enumerate(self.origins):
            if origin is None:
                said.append(f"f{position} is new")
            else:
                said.append(f"f{position} stays" if origin == position else f"f{position} was f{origin}")
        return ", ".join((*said, *(f"f{position} is gone" for position in self.gone)))


def list_readings(
    olds: Sequence[Any], news: Sequence[Any], is_same: Callable[[Any, Any], bool]
) -> tuple[FieldMatching, ...]:
    """List the likely readings of a changed struct without field names, at most six; one if no field can have shifted.

    The readings are:

    - those in which as many fields as possible keep their type and order. The fields between two of these are paired if
      there are as many old as new ones, and have changed their type; otherwise they were removed and added.
    - if the new types are the old ones in another order: the one in which fields were exchanged.
    - the one in which all fields stay at their positions.

    Args:
        olds: the types of the old fields.
        news: the types of the new fields.
        is_same: whether fields of these two types may be the same field.
    """
    if len(olds) == len(news) and all(map(is_same, olds, news)):
        return (FieldMatching(tuple(range(len(olds))), len(olds)),)
    found: dict[tuple[int | None, ...], None] = {}
    for carried in _align(olds, news, is_same):
        found.setdefault(_pair_between(carried, len(olds), len(news)))
        if len(found) == _MOST:
            break
    if (exchanged := _exchange(olds, news, is_same)) is not None:
        found.setdefault(exchanged)
    found.setdefault(tuple(position if position < len(olds) else None for position in range(len(news))))
    return tuple(FieldMatching(origins, len(olds)) for origins in [*found][:_MOST])


def _align(
    olds: Sequence[Any], news: Sequence[Any], is_same: Callable[[Any, Any], bool]
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield the longest common subsequences of old and new types, each as pairs (old position, new position)."""
    longest = [[0] * (len(news) + 1) for _ in range(len(olds) + 1)]
    for one in reversed(range(len(olds))):
        for other in reversed(range(len(news))):
            longest[one][other] = (
                longest[one + 1][other + 1] + 1
                if is_same(olds[one], news[other])
                else max(longest[one + 1][other], longest[one][other + 1])
            )

    found: list[tuple[tuple[int, int], ...]] = [()]
    while found:
        carried = found.pop()
        one, other = (carried[-1][0] + 1, carried[-1][1] + 1) if carried else (0, 0)
        wanted = longest[one][other]
        if not wanted:
            yield carried
            continue
        following = []
        for before in range(one, len(olds)):
            for after in range(other, len(news)):
                if longest[before][after] < wanted:
                    break
                if longest[before + 1][after + 1] == wanted - 1 and is_same(olds[before], news[after]):
                    following.append((*carried, (before, after)))
        found += reversed(following)


def _pair_between(carried: Sequence[tuple[int, int]], olds: int, news: int) -> tuple[int | None, ...]:
    """Return the origin of each new field, given the pairs (old position, new position) of kept fields.

    Between two kept fields, old and new fields are paired in order if there are as many old as new ones; otherwise the
    new ones count as added.
    """
    origins: list[int | None] = [None] * news
    one = other = -1
    for before, after in (*carried, (olds, news)):
        between, made = range(one + 1, before), range(other + 1, after)
        if len(between) == len(made):
            for origin, position in zip(between, made, strict=True):
                origins[position] = origin
        if after < news:
            origins[after] = before
        one, other = before, after
    return tuple(origins)


def _exchange(
    olds: Sequence[Any], news: Sequence[Any], is_same: Callable[[Any, Any], bool]
) -> tuple[int | None, ...] | None:
    """Return the origin of each new field if the new fields are the old ones in another order; else None."""
    rest = list(range(len(olds)))
    origins: list[int | None] = []
    for new in news:
        origin = next((position for position in rest if is_same(olds[position], new)), None)
        if origin is None:
            return None
        rest.remove(origin)
        origins.append(origin)
    return None if rest else tuple(origins)


def make_steps(
    reading: FieldMatching,
    path: str,
    names: Sequence[str],
    add: Callable[[int, str], st.Step],
    cast: Callable[[int, int], st.Step | None],
) -> list[st.Step]:
    """Make the steps that change the fields of a struct according to one reading (see `FieldMatching`).

    Args:
        reading: the reading.
        path: path of the struct, with a dot at its end; empty for the whole value.
        names: the columns of the old fields.
        add: makes the step that adds a new field, from its position and a name.
        cast: makes the step that gives an old field the type of a new field, from their positions; returns None if it
            has that type already.
    """
    casts = (cast(origin, position) for position, origin in enumerate(reading.origins) if origin is not None)
    made = [step for step in casts if step is not None]
    order: list[int] = []
    columns = [*names]
    for position, origin in enumerate(reading.origins):
        if origin is None:
            columns.append(f"f{len(columns)}")
            made.append(add(position, columns[-1]))
        order.append(len(columns) - 1 if origin is None else origin)
    order += reading.gone
    if order == sorted(order):
        dropped = [names[position] for position in reading.gone]
    else:
        made.append(st.Reorder(tuple(columns[each] for each in order), path.removesuffix(".")))
        # After `reorder`, columns named by position (`f0`, `f1`, ...) are numbered in the new order.
        by_position = columns == [f"f{position}" for position in range(len(columns))]
        last = range(len(reading.origins), len(columns))
        dropped = [f"f{position}" if by_position else columns[order[position]] for position in last]
    return [*made, *(st.Drop(f"{path}{each}") for each in reversed(dropped))]


def require_one_reading(old: pa.DataType, new: pa.DataType) -> None:
    """Refuse two types if structs without field names in them, at any depth, have more than one reading.

    Raises:
        MigrationError: fields may have shifted.
    """
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        one, other = ([each for each in kind if each.name != "row_kind"] for kind in (old, new))
        if all(_is_positional(each) for each in (one, other)):
            readings = list_readings([each.type for each in one], [each.type for each in other], _is_alike)
            if len(readings) > 1:
                raise MigrationError(
                    "the fields have no names, and may have moved to other positions", hint=explain_readings(readings)
                )
        known = {each.name: each.type for each in one}
        for each in other:
            if each.name in known:
                require_one_reading(known[each.name], each.type)
    elif pa.types.is_map(old) and pa.types.is_map(new):
        require_one_reading(old.item_type, new.item_type)
    elif pa.types.is_list(old) and pa.types.is_list(new):
        require_one_reading(old.value_type, new.value_type)


def _is_positional(fields: Sequence[pa.Field]) -> bool:
    return [each.name for each in fields] == [f"f{position}" for position in range(len(fields))]


def _is_alike(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(one == other) or (pa.types.is_struct(one) and pa.types.is_struct(other))


def explain_readings(readings: Sequence[FieldMatching]) -> str:
    """Describe the alternative readings (see `FieldMatching`) of a changed struct in words."""
    more = ", or others" if len(readings) == _MOST else ""
    return "; or ".join(each.text for each in readings) + more


_WHOLE = frozenset({BasicKind.BYTE, BasicKind.SHORT, BasicKind.INT, BasicKind.LONG})
_AVRO = {
    "boolean": BasicKind.BOOLEAN,
    "int": BasicKind.INT,
    "long": BasicKind.LONG,
    "float": BasicKind.FLOAT,
    "double": BasicKind.DOUBLE,
    "string": BasicKind.STRING,
}


def column_of(of: SlotType, context: PlanContext) -> pa.DataType | None:
    """Return the Arrow type of the values of a field; None if they have none."""
    try:
        match of:
            case AvroType():
                kind, _ = name_type("", of)
                return payload_type(kind, context) if isinstance(kind, tree.Serializer) else None
            case SqlColumn(serializer=inner):
                return payload_type(inner, context)
            case _:
                return payload_type(of, context)
    except StateError:
        return None


def is_castable(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether SQL's CAST converts the old type to the new one."""
    if old == new:
        return True
    one, other = _group(old), _group(new)
    return None not in (one, other) and (one is other or _TypeGroup.TEXT in (one, other))


class _TypeGroup(Enum):
    NUMBER = auto()
    DATE = auto()
    TEXT = auto()
    BOOLEAN = auto()


def _group(kind: pa.DataType) -> _TypeGroup | None:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _TypeGroup.NUMBER
    if pa.types.is_date32(kind):
        return _TypeGroup.DATE
    return _TypeGroup.TEXT if pa.types.is_string(kind) else _TypeGroup.BOOLEAN if pa.types.is_boolean(kind) else None


def sql_type(kind: pa.DataType) -> str:
    """Return the name in Spark SQL of a type of basic values.

    Raises:
        MigrationError: the type is not one of them.
    """
    names = {pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT"}
    names |= {pa.int64(): "BIGINT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "STRING"}
    names |= {pa.date32(): "DATE"}
    if kind not in names:
        raise MigrationError(f"no SQL type is known for {kind}")
    return names[kind]


def name_type(path: str, of: SlotType) -> tuple[FieldType, bool]:
    """Return the type of a field as a migration file names it, and whether the field is marked as nullable.

    Raises:
        MigrationError: migration files have no name for the type.
    """
    match of:
        case SqlColumn(type=kind):
            return SqlType(describe_type(kind)), False
        case AvroType(node=node):
            rest = [each for each in node if each != "null"] if isinstance(node, list) else [node]
            nullable = isinstance(node, list) and len(rest) == 1 and node[0] == "null"
            inner = _from_avro(rest[0] if nullable else node)
            if make_avro_type(inner, nullable=nullable).node != node:
                raise MigrationError(f"a migration file has no name for the Avro type of {path}")
            return inner, nullable
        case _:
            return of, False


def _from_avro(node: Any) -> tree.Serializer:
    """Return the serializer that a migration file names for an Avro type; the inverse of `make_avro_type`."""
    match node:
        case str() if node in _AVRO:
            return basic(_AVRO[node])
        case "bytes":
            return basic(BasicKind.BYTE_PRIMITIVE_ARRAY)
        case {"type": "array", "items": items}:
            return list_of(_from_avro(items))
        case {"type": "map", "values": values}:
            return map_of(basic(BasicKind.STRING), _from_avro(values))
        case {"type": "record", "name": name, "fields": fields}:
            return pojo(name, {each["name"]: _from_avro(each["type"]) for each in fields})
    raise MigrationError("a migration file has no name for this Avro type")


class Defaults:
    """SQL of initial values for added fields of a struct."""

    def __init__(self, node: Node) -> None:
        while isinstance(node, tree.Nullable):
            assert isinstance(node.inner, tree.Serializer)
            node = node.inner
        self._node = node
        self._given: dict[str, Any] = {}
        record = None
        if isinstance(node, tree.Avro):
            record = find_record(AvroType(expand_schema(node.schema_json)))
        elif isinstance(node, AvroType):
            record = find_record(node)
        self._types: dict[str, Any] = {}
        for each in (record or {}).get("fields", ()):
            self._types[each["name"]] = each["type"]
            if "default" in each:
                self._given[each["name"]] = each["default"]
        self._strict = isinstance(node, tree.Tuple) or record is not None

    def find(self, name: str) -> str:
        """Return the SQL of the initial value of a field; TODO if the user has to give one."""
        if name in self._given and not isinstance(self._given[name], list | dict):
            return make_literal(self._given[name])
        of: Any = None
        if name in self._types:
            node = self._types[name]
            if isinstance(node, list) and "null" in node:
                return "NULL"
            of = basic(_AVRO[node]) if isinstance(node, str) and node in _AVRO else None
        elif isinstance(self._node, tree.Pojo):
            of = next((each.serializer for each in self._node.fields if each.name == name), None)
        elif isinstance(self._node, tree.Tuple):
            of = self._node.fields[int(name[1:])]
        elif isinstance(self._node, tree.RowData):
            return "NULL" if self._node.types[int(name[1:])].nullable else TODO
        return _default(of, strict=self._strict)


def _default(of: object, *, strict: bool) -> str:
    """Return SQL of an initial value for a type.

    The value is zero or FALSE for numbers and booleans, which may be primitives in Java (serializers do not tell them
    from boxed types), else NULL. If `strict` is set, only nullable types get NULL: the value of others is an empty
    string or TODO.
    """
    match of:
        case tree.Basic(kind=kind) if kind in _WHOLE:
            return "0"
        case tree.Basic(kind=BasicKind.FLOAT | BasicKind.DOUBLE):
            return "0.0D"
        case tree.Basic(kind=BasicKind.BOOLEAN):
            return "FALSE"
        case tree.Basic(kind=BasicKind.STRING) if strict:
            return "''"
    return TODO if strict and not isinstance(of, tree.Nullable) else "NULL"


_SIMILAR = 0.6
_STRUCTS = (tree.Pojo, tree.PositionalRow, tree.Tuple, tree.RowData, tree.Avro, AvroType)

Renames = Mapping[str, str]
"""New names by old ones, both as dotted paths."""


@dataclass
class Differences:
    """Steps that turn a value, list element or map value into one of another serializer.

    Attributes:
        steps: the steps, in order.
        renames: fields that are taken to be renamed.
        doubts: remarks on fields that may have been renamed or shifted, which a person has to decide.
        added: paths of new fields.
        removed: paths of removed fields.
    """

    steps: list[st.Step] = field(default_factory=list)
    renames: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def propose(
    old: tree.Serializer, new: tree.Serializer, context: PlanContext, renames: Renames | None = None
) -> Iterator[Differences]:
    """Propose alternative steps from one serializer to another, most specific first; the first that fit are used.

    Args:
        old: the present serializer of the value, list element or map value.
        new: the wanted serializer.
        context: planning context of the snapshot.
        renames: known renamed fields; None to guess.
    """
    for attempt in (_by_protocol, _by_fields, _by_collection, _by_conversion, _by_expression):
        try:
            found = attempt(old, new, context, renames)
        except StateError:
            continue  # the next attempt needs less knowledge of the two types
        yield found
    lost = _list_lost(old, new, TODO, context)
    yield Differences([st.Convert(new, TODO, lost)], removed=[*lost], doubts=_explain_shifts(old, new, context))


def _explain_shifts(old: tree.Serializer, new: tree.Serializer, context: PlanContext) -> list[str]:
    """Return a remark on fields that may have shifted, if that prevents a conversion of the whole value; else none."""
    try:
        require_one_reading(payload_type(old, context), payload_type(new, context))
    except MigrationError as error:
        return [
            f"{error.what}: {error.hint}. Replace {TODO} by the value, and leave in `discard` what it does not name"
        ]
    except StateError:
        pass  # a payload without columns has no fields either
    return []


def has_todo(steps: Iterable[st.Step]) -> bool:
    """Return whether an expression of a step has a `TODO` that a person has to fill in."""
    return any(TODO in text for step in steps for text in st.list_expressions(step))


def _by_protocol(
    old: tree.Serializer, new: tree.Serializer, context: PlanContext, renames: Renames | None
) -> Differences:
    """Propose to convert the whole value as Flink migrates a custom serializer; refuse if fields would be lost."""
    del renames
    if not follows_protocol(old, new, context) or find_lost_fields(old, new, None, context):
        raise MigrationError("Flink's own state migration would not convert the whole value")
    return Differences([st.Convert(new)])


def _by_fields(
    old: tree.Serializer, new: tree.Serializer, context: PlanContext, renames: Renames | None
) -> Differences:
    """Propose to rename classes, and then to change the fields one by one."""
    found = Differences()
    classes = tuple(dict(_renamed_classes(old, new)).items())
    if classes:
        found.steps.append(st.RenameClass(classes))
        old, *_ = rename_classes(old, classes, context)
    comparison = _Comparison(found, context, renames)
    _compare(old, new, "", comparison)
    if comparison.collections:
        # `collections` comes before other steps on fields: after a step on a nested POJO, the Kryo fields of that POJO
        # are only there as bytes, which cannot be converted any more.
        found.steps.insert(1 if classes else 0, st.Collections(tuple(comparison.collections)))
    return found


def _by_collection(
    old: tree.Serializer, new: tree.Serializer, context: PlanContext, renames: Renames | None
) -> Differences:
    """Propose to convert a collection that Kryo writes to one that Flink 2.x serializes, by the JSON of its values."""
    del renames
    before, after = payload_type(old, context), payload_type(new, context)
    if not isinstance(old, tree.Kryo) or not pa.types.is_string(before):
        raise MigrationError("the old value is not JSON text of a collection that Kryo wrote")
    if not (pa.types.is_list(after) or pa.types.is_map(after)):
        raise MigrationError("the new type is no collection")
    return Differences([st.Convert(new, read_json("value", after))])


def _by_conversion(
    old: tree.Serializer, new: tree.Serializer, context: PlanContext, renames: Renames | None
) -> Differences:
    """Propose to convert the whole value by the names of its fields."""
    del renames
    before, after = payload_type(old, context), payload_type(new, context)
    if (
        isinstance(new, tree.Kryo)
        and pa.types.is_string(after)
        and (pa.types.is_list(before) or pa.types.is_map(before))
    ):
        raise MigrationError("a Kryo value whose class is not known cannot be made from a list or map")
    if not follows_protocol(old, new, context):
        convert_by_name(old, new, context)
        require_one_reading(before, after)
    lost = _list_lost(old, new, None, context)
    return Differences([st.Convert(new, None, lost)], removed=[*lost])


def _by_expression(
    old: tree.Serializer, new: tree.Serializer, context: PlanContext, renames: Renames | None
) -> Differences:
    """Propose to convert the whole value by an expression with each new field, TODO where its value is not known."""
    before, after = payload_type(old, context), payload_type(new, context)
    if not pa.types.is_struct(before) or not pa.types.is_struct(after):
        if pa.types.is_struct(before) or pa.types.is_struct(after) or not is_castable(before, after):
            raise MigrationError("no SQL is known that converts the value")
        return Differences([st.Convert(new, f"CAST(value AS {sql_type(after)})")])
    require_one_reading(before, after)
    known = {each.name: each.type for each in before}
    origins = {after: before for before, after in (renames or {}).items()}
    columns = []
    added = []
    for each in after:
        name = origins.get(each.name, each.name)
        if name in known:
            sql = (
                f"value.{quote_name(name)}" if known[name] == each.type or is_castable(known[name], each.type) else TODO
            )
        elif each.name == "row_kind":
            sql = "'+I'"
        else:
            added.append(each.name)
            sql = TODO
        columns.append((each.name, sql))
    expression = make_struct(columns)
    lost = _list_lost(old, new, expression, context)
    return Differences([st.Convert(new, expression, lost)], added=added, removed=[*lost])


def _list_lost(
    old: tree.Serializer, new: tree.Serializer, expression: str | None, context: PlanContext
) -> tuple[str, ...]:
    try:
        return find_lost_fields(old, new, expression, context)
    except StateError:
        return ()  # a payload without columns has no fields either


@dataclass
class _Comparison:
    """Inputs and findings of a comparison of two serializers while it runs.

    Attributes:
        found: steps and remarks.
        context: planning context of the snapshot.
        renames: known renamed fields; None to guess.
        collections: path and new type of the fields that Kryo writes and that Flink 2.x has serializers for.
    """

    found: Differences
    context: PlanContext
    renames: Renames | None
    collections: list[tuple[str, tree.Serializer]] = field(default_factory=list)


def _compare(old: Node, new: Node, path: str, of: _Comparison) -> None:
    by_position = False
    if isinstance(old, tree.RowData) and isinstance(new, tree.RowData):
        by_position = old.names is None or new.names is None
        new = _name_alike(old, new)
    before, after = open_struct(old, "", of.context), open_struct(new, "", of.context)
    if _node_class(old) is not _node_class(new):
        raise MigrationError("the two serializers are of different kinds")
    olds = _list_slots(before, after)
    news = _list_slots(after, before)
    if (by_position or not before.named) and _shifts(new, [*olds.values()], [*news.values()], path, of):
        return
    removed = [name for name in olds if name not in news]
    added = [name for name in news if name not in olds]
    found, defaults = of.found, Defaults(new)
    here: dict[str, str] = {}
    if before.named:
        here = _match(olds, news, removed, added, path, of)
    if here:
        found.steps.append(st.Rename(tuple((f"{path}{one}", other) for one, other in here.items())))
        found.renames |= {f"{path}{one}": f"{path}{other}" for one, other in here.items()}
    doubtful = {name for name in added if _candidates(name, removed, olds, news, here)}
    for name in added:
        if name in here.values():
            continue
        decided = name not in doubtful or of.renames is not None
        found.steps.append(_add(f"{path}{name}", news[name].type, defaults.find(name) if decided else TODO))
        found.added.append(f"{path}{name}")
    for name, slot in olds.items():
        target = news.get(name)
        if target is None or _strip(slot.type) == _strip(target.type):
            continue
        if _reaches(slot.type, target.type):
            assert isinstance(slot.type, tree.Serializer | AvroType)
            assert isinstance(target.type, tree.Serializer | AvroType)
            _compare(slot.type, target.type, f"{path}{name}.", of)
        elif (inside := _find_elements(slot.type, target.type)) is not None:
            one, other, into = inside
            _compare(one, other, f"{path}{name}{into}.", of)
        elif isinstance(slot.type, tree.Kryo) and (inner := _unwrap_collection(target.type)) is not None:
            of.collections.append((f"{path}{name}", inner))
        else:
            found.steps.append(_cast(f"{path}{name}", slot.type, target.type, of.context))
    gone = [name for name in removed if name not in here]
    # In descending order, so that the positions of the remaining fields stay valid.
    found.steps += [st.Drop(f"{path}{name}") for name in reversed(gone)]
    found.removed += [f"{path}{name}" for name in gone]
    _reorder(before, after, here, gone, path, found)


def _shifts(new: Node, olds: list[Slot], news: list[Slot], path: str, of: _Comparison) -> bool:
    """If fields without names may have shifted, draft steps with TODO, and add the readings as a doubt.

    Return False, and draft nothing, if there is only one reading.
    """
    readings = list_readings(olds, news, _may_be)
    if len(readings) == 1:
        return False

    def add(position: int, name: str) -> st.Step:
        return _add(f"{path}{name}", news[position].type, Defaults(new).find(f"f{position}"))

    def cast(origin: int, position: int) -> st.Step | None:
        one, other = olds[origin], news[position]
        return None if _same(one, other) else _cast(f"{path}{one.name}", one.type, other.type, of.context)

    names = [each.name for each in olds]
    steps: list[st.Step] = [_add(f"{path}{each.name}", each.type, TODO) for each in news[len(olds) :]]
    for one, other in zip(olds, news, strict=False):
        if not _same(one, other):
            kind, nullable = name_type(f"{path}{other.name}", other.type)
            steps.append(st.Cast(f"{path}{one.name}", kind, TODO, nullable=nullable))
    # Without a TODO the draft could be run. It would drop the last fields, but others may be the removed ones.
    steps = steps or [st.Set(f"{path}{each}", TODO) for each in names[: len(news)]]
    of.found.steps += [*steps, *(st.Drop(f"{path}{each}") for each in reversed(names[len(news) :]))]
    of.found.added += [f"{path}{each.name}" for each in news[len(olds) :]]
    of.found.removed += [f"{path}{each}" for each in names[len(news) :]]
    lines = [f"\n  {each.text}: {_write(make_steps(each, path, names, add, cast))}" for each in readings]
    of.found.doubts.append(
        f"{path.rstrip('.') or 'the value'} has fields by position, which may have shifted; put the steps that are "
        f"true in place of those on it:{''.join(lines)}"
    )
    return True


def _may_be(one: Slot, other: Slot) -> bool:
    """Return whether two fields at different positions may be the same field, shifted.

    They may be if they have the same type, or versions of the same class.
    """
    if isinstance(one.type, tree.Serializer) and isinstance(other.type, tree.Serializer):
        return _is_one_class(one.type, other.type)
    return _same(one, other)


def _write(steps: Iterable[st.Step]) -> str:
    """Write steps on one line of YAML, as a migration file may contain them."""
    return yaml.safe_dump([*map(dump_step, steps)], default_flow_style=True, sort_keys=False, width=10**6).strip()


def _name_alike(old: tree.RowData, new: tree.RowData) -> tree.RowData:
    """If only one of two rows has field names, return the new row with the names of the old one, or with none."""
    if (old.names is None) == (new.names is None):
        return new
    if old.names is None:
        return replace(new, names=None)
    added = range(len(old.names), len(new.types))
    return replace(new, names=(*old.names[: len(new.types)], *(f"f{index}" for index in added)))


def _list_slots(of: PayloadStruct, other: PayloadStruct) -> dict[str, Slot]:
    """Return the fields of a POJO and of those of its subclasses that both serializers list, by column."""
    common = {0, *(index for index, name in enumerate(of.class_names) if name in other.class_names)}
    return {slot.name: slot for slot in of.slots if any(index in common for index, _ in slot.owners)}


def _reorder(
    before: PayloadStruct, after: PayloadStruct, renamed: Renames, gone: list[str], path: str, found: Differences
) -> None:
    if not (before.ordered and before.named):
        return
    kept = [renamed.get(slot.name, slot.name) for slot in before.slots if slot.name not in gone]
    wanted = [slot.name for slot in after.slots]
    if [*kept, *(name for name in wanted if name not in kept)] != wanted:
        found.steps.append(st.Reorder(tuple(wanted), path.removesuffix(".")))


def _match(
    olds: Mapping[str, Slot], news: Mapping[str, Slot], removed: list[str], added: list[str], path: str, of: _Comparison
) -> dict[str, str]:
    """Find renamed fields, and return their new names by old name; add doubts on fields that may be renamed."""
    if of.renames is not None:
        known = {one.removeprefix(path): other.removeprefix(path) for one, other in of.renames.items()}
        return {one: other for one, other in known.items() if one in removed and other in added}
    alike = {name: [one for one in removed if _same(olds[one], news[name]) and _similar(one, name)] for name in added}
    sure: dict[str, str] = {}
    for name, ones in alike.items():
        if len(ones) == 1 and sum(ones[0] in others for others in alike.values()) == 1:
            sure[ones[0]] = name
    for name in added:
        ones = _candidates(name, removed, olds, news, sure)
        if ones:
            words = " or ".join(f"`{path}{one}`" for one in ones)
            of.found.doubts.append(
                f"field {path}{name} is new, and may be {words} under another name: then write `rename` in place of "
                f"`add` and `drop`; else replace {TODO} by its value"
            )
    return sure


def _candidates(
    name: str, removed: list[str], olds: Mapping[str, Slot], news: Mapping[str, Slot], sure: Renames
) -> list[str]:
    """List the removed fields that may be the added field `name`; none if it is known to be a renamed field."""
    if name in sure.values():
        return []
    return [one for one in removed if one not in sure and _same(olds[one], news[name])]


def _same(one: Slot, other: Slot) -> bool:
    return _strip(one.type) == _strip(other.type)


def _similar(one: str, other: str) -> bool:
    return SequenceMatcher(None, one.lower(), other.lower()).ratio() >= _SIMILAR


def _strip(of: SlotType) -> object:
    match of:
        case AvroType(node=node):
            return strip_schema(node)
        case SqlColumn(type=kind):
            return kind
        case _:
            return strip_serializer(of)


def _node_class(node: Node) -> type:
    return _node_class(node.inner) if isinstance(node, tree.Nullable) else type(node)


def _reaches(old: SlotType, new: SlotType) -> bool:
    """Return whether both types are structs of one kind, so that steps with dotted paths can change their fields."""
    if isinstance(old, tree.Nullable) and isinstance(new, tree.Nullable):
        return _reaches(old.inner, new.inner)
    if isinstance(old, AvroType) and isinstance(new, AvroType):
        one, other = find_record(old), find_record(new)
        return one is not None and other is not None and one["name"] == other["name"]
    return type(old) is type(new) and isinstance(old, _STRUCTS) and not isinstance(old, tree.Avro)


def _find_elements(old: SlotType, new: SlotType) -> tuple[tree.Serializer, tree.Serializer, str] | None:
    """Find the old and the new struct inside equal collections, and the `[]` for a path to them; None without any."""
    match old, new:
        case tree.Nullable(inner=one), tree.Nullable(inner=other):
            return _find_elements(one, other)
        case (
            (tree.ListOf(element=one), tree.ListOf(element=other))
            | (tree.SetOf(element=one), tree.SetOf(element=other))
            | (tree.GenericArray(element=one), tree.GenericArray(element=other))
            | (tree.MapOf(value=one), tree.MapOf(value=other))
            | (tree.SortedMapOf(value=one), tree.SortedMapOf(value=other))
        ):
            if _reaches(one, other):
                return one, other, "[]"
            found = _find_elements(one, other)
            return None if found is None else (*found[:2], f"[]{found[2]}")
    return None


def _add(path: str, of: SlotType, sql: str) -> st.Add:
    kind, nullable = name_type(path, of)
    return st.Add(path, kind, sql, nullable=nullable)


def _cast(path: str, old: SlotType, new: SlotType, context: PlanContext) -> st.Cast:
    kind, nullable = name_type(path, new)
    one, other = column_of(old, context), column_of(new, context)
    known = one is not None and other is not None and (one == other or is_castable(one, other))
    return st.Cast(path, kind, None if known else TODO, nullable=nullable)


def _unwrap_collection(of: object) -> tree.Serializer | None:
    """Return the serializer of a collection field as Flink 2.x extracts it, without the null flags; None for others."""
    match of:
        case tree.Nullable(inner=tree.ListOf(element=tree.Nullable(inner=element)) as node):
            return replace(node, element=_unwrap_collection(element) or element)
        case tree.Nullable(inner=tree.SetOf() as node):
            return node
        case tree.Nullable(inner=tree.MapOf(key=tree.Nullable(inner=key)) as node):
            return replace(node, key=key, value=_unwrap_collection(node.value) or node.value)
    return None


def _renamed_classes(old: object, new: object) -> Iterator[tuple[str, str]]:
    """Yield (old name, new name) of classes whose serializers are of one kind and in the same position."""
    pairs = _renamed_classes
    match old, new:
        case tree.Pojo(), tree.Pojo():
            if old.pojo_class != new.pojo_class:
                yield old.pojo_class, new.pojo_class
            fields = {each.name: each.serializer for each in new.fields}
            for each in old.fields:
                yield from pairs(each.serializer, fields.get(each.name))
        case tree.Enum(enum_class=one), tree.Enum(enum_class=other):
            if one != other:
                yield one, other
        case tree.Nullable(), tree.Nullable():
            yield from pairs(old.inner, new.inner)
        case tree.ListOf(), tree.ListOf():
            yield from pairs(old.element, new.element)
        case tree.SetOf(), tree.SetOf():
            yield from pairs(old.element, new.element)
        case tree.MapOf(), tree.MapOf():
            yield from pairs(old.key, new.key)
            yield from pairs(old.value, new.value)
        case (tree.PositionalRow(fields=olds), tree.PositionalRow(fields=news)) | (
            tree.Tuple(fields=olds),
            tree.Tuple(fields=news),
        ):
            if len(list_readings(olds, news, _is_one_class)) > 1:
                return
            for before, after in zip(olds, news, strict=False):
                yield from pairs(before, after)


def _is_one_class(one: tree.Serializer, other: tree.Serializer) -> bool:
    match one, other:
        case tree.Pojo(pojo_class=before), tree.Pojo(pojo_class=after):
            return before == after
    return strip_serializer(one) == strip_serializer(other)
