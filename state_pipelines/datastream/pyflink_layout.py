"""State as PyFlink keeps it: byte arrays of its coders in Java's list and map state, under keys in a row of one field.

Source: `pyflink.fn_execution.coders.from_type_info`, `pyflink.fn_execution.state_impl`, `BeamKeyedStateStore`,
`KeyByKeySelector`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.field_types import RowTypeInfo, TupleTypeInfo
from state_pipelines.datastream.type_information import (
    ArrayTypeInfo,
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    TypeInformation,
)
from state_pipelines.errors import UnsupportedError, ValueRangeError, at
from state_pipelines.serializers import build, tree
from state_pipelines.serializers.python_types import BYTES, PythonDeclaration, PythonType
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.serializers.tree import BasicKind
from state_pipelines.serializers.tree.basic import COMPONENTS
from state_pipelines.snapshot.python_states import PREFIX, declare_types, python_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.datastream.descriptors import StateDescriptor
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

ROW_KIND = "+I"
"""Kind of the rows that hold keys."""

_WORDS: dict[BasicKind | None, tuple[str, BasicKind]] = {
    **{
        kind: (kind.upper(), kind)
        for kind in (
            BasicKind.BOOLEAN,
            BasicKind.INT,
            BasicKind.FLOAT,
            BasicKind.DOUBLE,
            BasicKind.STRING,
            BasicKind.INSTANT,
        )
    },
    BasicKind.BYTE: ("TINYINT", BasicKind.BYTE),
    BasicKind.SHORT: ("SMALLINT", BasicKind.SHORT),
    BasicKind.LONG: ("BIGINT", BasicKind.LONG),
    BasicKind.BIG_INT: ("BIGINT", BasicKind.LONG),
    BasicKind.CHAR: ("STRING", BasicKind.STRING),
    # Days, nanoseconds of the day, and milliseconds.
    BasicKind.SQL_DATE: ("DATE", BasicKind.LOCAL_DATE),
    BasicKind.SQL_TIME: ("TIME", BasicKind.LOCAL_TIME),
    BasicKind.SQL_TIMESTAMP: ("TIMESTAMP", BasicKind.DATE),
}
"""Word of the coder, and the kind whose conversion gives what it writes, by kind of `BasicTypeInfo`."""


@dataclass(frozen=True)
class DecimalTextTypeInfo(TypeInformation):
    """`decimal.Decimal` as text."""

    java_class = "java.lang.String"

    @property
    def serializer(self) -> Serializer:
        """`StringSerializer`."""
        return build.basic(BasicKind.STRING)

    def to_internal_type(self, obj: Any) -> Any:
        """Write a number."""
        if obj is not None and not isinstance(obj, Decimal):
            raise ValueRangeError(f"{obj!r:.80} is not a Decimal")
        return None if obj is None else str(obj)

    def from_internal_type(self, obj: Any) -> Any:
        """Parse a number."""
        return None if obj is None else Decimal(obj)


@dataclass(frozen=True)
class CoderTypeInfo(TypeInformation):
    """Values in the bytes of PyFlink's coder.

    Attributes:
        coder: of the values.
        values: converts between Python and the scalar form of the coder.
    """

    coder: PythonType
    values: TypeInformation

    java_class = "[B"

    @property
    def serializer(self) -> Serializer:
        """The coder, which no snapshot names."""
        return self.coder

    def need_conversion(self) -> bool:
        """Return whether values in Python differ from those of the scalar codec."""
        return self.values.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a value of Python to that of the scalar codec."""
        return self.values.to_internal_type(obj)

    def from_internal_type(self, obj: Any) -> Any:
        """Convert a value of the scalar codec to that of Python."""
        return self.values.from_internal_type(obj)


@dataclass(frozen=True)
class KeyRowTypeInfo(TypeInformation):
    """Keys in a row of one field, as the Java operators of PyFlink have them.

    Attributes:
        key_type: of the keys.
    """

    key_type: TypeInformation

    java_class = "org.apache.flink.types.Row"

    @cached_property
    def serializer(self) -> Serializer:
        """`RowSerializer` of one field."""
        return build.row(self.key_type.serializer)

    def to_internal_type(self, obj: Any) -> Any:
        """Put a key into a row."""
        return None if obj is None else {"row_kind": ROW_KIND, "f0": self.key_type.to_internal_type(obj)}

    def from_internal_type(self, obj: Any) -> Any:
        """Take the key out of its row."""
        return self.key_type.from_internal_type(obj["f0"])


@dataclass(frozen=True)
class PyflinkState:
    """A state in PyFlink's layout.

    Attributes:
        descriptor: of the same state, whose types are those of the coders.
        info: the state of Java, which is registered and stored.
        typed: `info` with the types of the values in its byte arrays.
    """

    descriptor: StateDescriptor
    info: StateMetaInfo
    typed: StateMetaInfo


def lay_out(descriptor: StateDescriptor, namespace: Serializer) -> PyflinkState:
    """Find the state of Java that PyFlink has for a descriptor.

    Raises:
        UnsupportedError: PyFlink has no coder for a type.
    """
    with at(state=descriptor.name):
        adapted = copy.copy(descriptor)
        adapted.type_info = _adapt(descriptor)
        array: Serializer = build.basic(BasicKind.BYTE_PRIMITIVE_ARRAY)
        if descriptor.ttl_config is not None:
            array = build.ttl(array)
        name = PREFIX + descriptor.name
        if isinstance(adapted.type_info, MapTypeInfo):
            arrays = build.map_of(build.basic(BasicKind.BYTE_ARRAY_WRAPPER), array)
            info = keyed_state(name, StateKind.MAP, arrays, namespace)
            sides = (adapted.type_info.key_type, adapted.type_info.value_type)
            type_ = PythonType(word="MAP", children=tuple(_coder_of(each) for each in sides))
        else:
            info = keyed_state(name, StateKind.LIST, build.list_of(array), namespace)
            stored = adapted.type_info
            type_ = _coder_of(stored.elem_type if isinstance(stored, ListTypeInfo) else stored)
        kind = descriptor.state_type
        return PyflinkState(adapted, info, declare_types(info, PythonDeclaration(type_, kind), kind))


def find_coder(of: TypeInformation) -> CoderTypeInfo:
    """Find the coder that PyFlink has for a type.

    Raises:
        UnsupportedError: it has none, or one for pickles, which are never loaded here.
    """
    match of:
        case CoderTypeInfo():
            return of
        case BasicTypeInfo(kind=BasicKind.BYTE_PRIMITIVE_ARRAY):
            return CoderTypeInfo(PythonType(word=BYTES), of)
        case BasicTypeInfo(kind=BasicKind.BIG_DEC):
            return CoderTypeInfo(PythonType(word="DECIMAL"), DecimalTextTypeInfo())
        case BasicTypeInfo(kind=BasicKind.STRING_ARRAY):
            element = PythonType(word="STRING")
            return CoderTypeInfo(PythonType(word="ARRAY", children=(element,)), of)
        case BasicTypeInfo(kind=kind) if COMPONENTS.get(kind) in _WORDS:
            element = PythonType(word=_WORDS[COMPONENTS[kind]][0])
            return CoderTypeInfo(PythonType(word="PRIMITIVE_ARRAY", children=(element,)), of)
        case BasicTypeInfo(kind=kind) if kind in _WORDS:
            word, values = _WORDS[kind]
            return CoderTypeInfo(PythonType(word=word), BasicTypeInfo(values))
        case ListTypeInfo(elem_type=elem) if type(of) in (ListTypeInfo, ArrayTypeInfo):
            inner = find_coder(elem)
            return CoderTypeInfo(PythonType(word="ARRAY", children=(inner.coder,)), ListTypeInfo(inner.values))
        case MapTypeInfo(key_type=key, value_type=value):
            sides = find_coder(key), find_coder(value)
            coder = PythonType(word="MAP", children=tuple(each.coder for each in sides))
            return CoderTypeInfo(coder, MapTypeInfo(*(each.values for each in sides)))
        case TupleTypeInfo(field_types=types, tuple_class=None):
            fields = [find_coder(each) for each in types]
            coder = PythonType(word="TUPLE", children=tuple(each.coder for each in fields))
            return CoderTypeInfo(coder, TupleTypeInfo(tuple(each.values for each in fields)))
        case RowTypeInfo(field_types=types, field_names=names, python_class=made):
            fields = [find_coder(each) for each in types]
            coder = PythonType(word="ROW", children=tuple(each.coder for each in fields))
            return CoderTypeInfo(coder, RowTypeInfo(tuple(each.values for each in fields), names, made))
    raise UnsupportedError(
        f"PyFlink has no coder for {of}",
        hint="Use a type of PyFlink's Types, or keep the state as Java does (pyflink_state=False)",
    )


def has_pyflink_states(infos: Iterable[StateMetaInfo]) -> bool:
    """Return whether a restored operator keeps its state in PyFlink's layout."""
    return any(python_name(info) for info in infos)


def unwrap_key(serializer: Serializer) -> Serializer:
    """The serializer of the keys of PyFlink, out of the row that Java has them in."""
    if isinstance(serializer, tree.Row) and len(serializer.fields) == 1:
        return serializer.fields[0]
    return serializer


def _adapt(descriptor: StateDescriptor) -> TypeInformation:
    of = descriptor.type_info
    if descriptor.state_type == StateKind.LIST and isinstance(of, ListTypeInfo):
        return ListTypeInfo(find_coder(of.elem_type))
    if descriptor.state_type == StateKind.MAP and isinstance(of, MapTypeInfo):
        return MapTypeInfo(find_coder(of.key_type), find_coder(of.value_type))
    return find_coder(of)


def _coder_of(of: TypeInformation) -> PythonType:
    assert isinstance(of, CoderTypeInfo)
    return of.coder
