"""Types of values with fields: tuples, rows and POJOs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.rows import Row, RowKind
from state_pipelines.datastream.type_information import GivenTypeInfo, TypeInformation, read_nullable
from state_pipelines.errors import UsageError, ValueRangeError
from state_pipelines.serializers import build

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.serializers.tree import Pojo, Serializer

_CLASS = "class"
_ROW_KINDS = {str(kind): kind for kind in RowKind} | {None: RowKind.INSERT}


@dataclass(frozen=True)
class TupleTypeInfo(TypeInformation):
    """Tuples (`TupleSerializer`): tuples in Python, a dict of `f0`, `f1`, … in the scalar codec.

    Attributes:
        field_types: one to 25.
        tuple_class: a subclass of Java's TupleN; default Flink's own.
    """

    field_types: tuple[TypeInformation, ...]
    tuple_class: str | None = None

    @cached_property
    def serializer(self) -> Serializer:
        """`TupleSerializer`."""
        return build.tuple_of(*(each.serializer for each in self.field_types), tuple_class=self.tuple_class)

    @property
    def java_class(self) -> str:
        """The class of the tuple."""
        return self.tuple_class or f"org.apache.flink.api.java.tuple.Tuple{len(self.field_types)}"

    def get_field_types(self) -> list[TypeInformation]:
        """Return the types of the fields."""
        return list(self.field_types)

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a tuple, list or Row."""
        if not isinstance(obj, (tuple, list, Row)) or len(obj) != len(self.field_types):
            raise ValueRangeError(f"{obj!r:.80} is not a tuple of {len(self.field_types)} values")
        pairs = zip(self.field_types, obj, strict=True)
        return {f"f{index}": each.to_internal_type(value) for index, (each, value) in enumerate(pairs)}

    def from_internal_type(self, obj: Any) -> Any:
        """Convert to a tuple."""
        return tuple(each.from_internal_type(obj[f"f{index}"]) for index, each in enumerate(self.field_types))


@dataclass(frozen=True)
class RowTypeInfo(TypeInformation):
    """Rows (`RowSerializer`); the serializer stores neither names nor a Python class.

    Attributes:
        field_types: of the fields.
        field_names: default `f0`, `f1`, …
        python_class: a dataclass whose objects are read instead of rows.
    """

    field_types: tuple[TypeInformation, ...]
    field_names: tuple[str, ...] = ()
    python_class: type | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.field_names:
            object.__setattr__(self, "field_names", tuple(f"f{index}" for index in range(len(self.field_types))))
        if len(set(self.field_names)) != len(self.field_types):
            raise UsageError(f"{len(self.field_types)} fields of a Row have the names {', '.join(self.field_names)}")

    java_class = "org.apache.flink.types.Row"

    @cached_property
    def serializer(self) -> Serializer:
        """`RowSerializer`."""
        return build.row(*(each.serializer for each in self.field_types))

    def get_field_names(self) -> list[str]:
        """Return the names of the fields."""
        return list(self.field_names)

    def get_field_types(self) -> list[TypeInformation]:
        """Return the types of the fields."""
        return list(self.field_types)

    def get_field_index(self, field_name: str) -> int:
        """Return the index of a field; -1 if there is none of that name."""
        return self.field_names.index(field_name) if field_name in self.field_names else -1

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a Row, dict, tuple, list or dataclass; rows with names and dicts by name."""
        kind = str(obj.get_row_kind() if isinstance(obj, Row) else RowKind.INSERT)
        values = _field_values(obj, self.field_names)
        converted = {
            f"f{index}": None if value is None else each.to_internal_type(value)
            for index, (each, value) in enumerate(zip(self.field_types, values, strict=True))
        }
        return {"row_kind": kind, **converted}

    def from_internal_type(self, obj: Any) -> Any:
        """Convert to a Row with names, or to an object of the dataclass."""
        values = [read_nullable(each, obj[f"f{index}"]) for index, each in enumerate(self.field_types)]
        if self.python_class is not None:
            return self.python_class(**dict(zip(self.field_names, values, strict=True)))
        row = Row.of_kind(_ROW_KINDS[obj["row_kind"]], *values)
        row.set_field_names(self.field_names)
        return row


@dataclass(frozen=True)
class PojoTypeInfo(GivenTypeInfo):
    """POJOs (`PojoSerializer`): rows with names, or objects of a dataclass.

    Attributes:
        stored: the serializer.
        fields: name and type, in the order of the serializer.
        subclasses: types of the subclasses; values then have the name of their class in the field `class`.
        python_class: a dataclass whose objects are read instead of rows.
    """

    stored: Pojo
    fields: tuple[tuple[str, TypeInformation], ...]
    subclasses: tuple[PojoTypeInfo, ...] = ()
    python_class: type | None = field(default=None, compare=False)

    @property
    def java_class(self) -> str:
        """The class of the POJO."""
        return self.stored.pojo_class

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a Row with names, a dict or a dataclass."""
        if obj is None:
            return None
        chosen = self._find_class(_class_of(obj) or self.java_class)
        names = tuple(name for name, _ in chosen.fields)
        pairs = zip(chosen.fields, _field_values(obj, names, named=True), strict=True)
        values = {name: None if value is None else each.to_internal_type(value) for (name, each), value in pairs}
        return {_CLASS: chosen.java_class, **values}

    def from_internal_type(self, obj: Any) -> Any:
        """Convert to a Row with names, or to an object of the dataclass."""
        if obj is None:
            return None
        chosen = self._find_class(obj[_CLASS])
        values = {name: read_nullable(each, obj[name]) for name, each in chosen.fields}
        if chosen.python_class is not None:
            return chosen.python_class(**values)
        if self.subclasses:
            values = {_CLASS: obj[_CLASS], **values}
        row = Row(*values.values())
        row.set_field_names(tuple(values))
        return row

    def _find_class(self, name: str) -> PojoTypeInfo:
        for each in (self, *self.subclasses):
            if each.java_class == name:
                return each
        raise ValueRangeError(
            f"{name} is neither {self.java_class} nor a subclass that its serializer lists",
            hint="Types.of(serializer, stored=True) reads and writes objects of classes that are declared elsewhere",
        )


def _class_of(obj: Any) -> str | None:
    if isinstance(obj, Mapping):
        return obj.get(_CLASS)
    if isinstance(obj, Row) and _CLASS in obj.as_dict():
        return str(obj[_CLASS])
    return None


def _field_values(obj: Any, names: Sequence[str], *, named: bool = False) -> Sequence[Any]:
    """Return the values of the fields in the order of `names`.

    Raises:
        ValueRangeError: `obj` has other fields.
    """
    given = _named_values(obj)
    if given is not None:
        given.pop(_CLASS, None) if _CLASS not in names else None
        if given.keys() == set(names):
            return [given[name] for name in names]
    elif not named and isinstance(obj, (Row, tuple, list)) and len(obj) == len(names):
        return list(obj)
    raise ValueRangeError(f"{obj!r:.80} does not have the fields {', '.join(names)}")


def _named_values(obj: Any) -> dict[str, Any] | None:
    """Return values by name of what has names; None for values by position."""
    if isinstance(obj, Mapping):
        return dict(obj)
    if isinstance(obj, Row) and obj._fields is not None:
        return obj.as_dict()
    if is_dataclass(obj) and not isinstance(obj, type):
        return {each.name: getattr(obj, each.name) for each in fields(obj)}
    return None
