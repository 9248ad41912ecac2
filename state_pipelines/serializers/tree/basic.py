"""Serializers without nested serializers: basic types, enums and classes that write themselves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from state_pipelines.serializers.tree.base import Serializer


class BasicKind(StrEnum):
    """Serializer of a `Basic` node: the word before `Serializer` in its class name, where that is one.

    Those of Gelly are the `…ValueArray`, those of the planner `Table…`; `JAVA_OBJECT` is Java serialization.
    """

    BOOLEAN = "Boolean"
    BYTE = "Byte"
    SHORT = "Short"
    CHAR = "Char"
    INT = "Int"
    LONG = "Long"
    FLOAT = "Float"
    DOUBLE = "Double"
    BOOLEAN_VALUE = "BooleanValue"
    BYTE_VALUE = "ByteValue"
    SHORT_VALUE = "ShortValue"
    CHAR_VALUE = "CharValue"
    INT_VALUE = "IntValue"
    LONG_VALUE = "LongValue"
    FLOAT_VALUE = "FloatValue"
    DOUBLE_VALUE = "DoubleValue"
    STRING = "String"
    STRING_VALUE = "StringValue"
    NULL_VALUE = "NullValue"
    VOID = "Void"
    BIG_INT = "BigInt"
    BIG_DEC = "BigDec"
    VARIANT = "Variant"
    UUID = "Uuid"
    BITMAP = "Bitmap"
    DATE = "Date"
    SQL_DATE = "SqlDate"
    SQL_TIME = "SqlTime"
    SQL_TIMESTAMP = "SqlTimestamp"
    INSTANT = "Instant"
    LOCAL_DATE = "LocalDate"
    LOCAL_TIME = "LocalTime"
    LOCAL_DATE_TIME = "LocalDateTime"
    BOOLEAN_PRIMITIVE_ARRAY = "BooleanPrimitiveArray"
    BYTE_PRIMITIVE_ARRAY = "BytePrimitiveArray"
    SHORT_PRIMITIVE_ARRAY = "ShortPrimitiveArray"
    CHAR_PRIMITIVE_ARRAY = "CharPrimitiveArray"
    INT_PRIMITIVE_ARRAY = "IntPrimitiveArray"
    LONG_PRIMITIVE_ARRAY = "LongPrimitiveArray"
    FLOAT_PRIMITIVE_ARRAY = "FloatPrimitiveArray"
    DOUBLE_PRIMITIVE_ARRAY = "DoublePrimitiveArray"
    STRING_ARRAY = "StringArray"
    BYTE_VALUE_ARRAY = "ByteValueArray"
    CHAR_VALUE_ARRAY = "CharValueArray"
    DOUBLE_VALUE_ARRAY = "DoubleValueArray"
    FLOAT_VALUE_ARRAY = "FloatValueArray"
    INT_VALUE_ARRAY = "IntValueArray"
    LONG_VALUE_ARRAY = "LongValueArray"
    NULL_VALUE_ARRAY = "NullValueArray"
    SHORT_VALUE_ARRAY = "ShortValueArray"
    STRING_VALUE_ARRAY = "StringValueArray"
    TUPLE_0 = "Tuple0"
    VOID_NAMESPACE = "VoidNamespace"
    TIME_WINDOW = "TimeWindow"
    GLOBAL_WINDOW = "GlobalWindow"
    TABLE_TIME_WINDOW = "TableTimeWindow"
    TABLE_GLOBAL_WINDOW = "TableGlobalWindow"
    COUNT_WINDOW = "CountWindow"
    STRING_DATA = "StringData"
    SORTED_LONG = "SortedLong"
    NULL = "Null"
    UNIT = "Unit"
    NOTHING = "Nothing"
    BYTE_ARRAY_WRAPPER = "ByteArrayWrapper"
    DEWEY_NUMBER = "DeweyNumber"
    EVENT_ID = "EventId"
    PYTHON_STRING = "PythonString"
    PYTHON_BIG_DEC = "PythonBigDec"
    PYTHON_DATE = "PythonDate"
    PYTHON_TIME = "PythonTime"
    LONG_VALUE_WITH_PROPER_HASH_CODE = "LongValueWithProperHashCode"
    JAVA_OBJECT = "JavaObject"
    KAFKA_TRANSACTION_STATE = "KafkaTransactionState"
    KAFKA_TRANSACTION_CONTEXT = "KafkaTransactionContext"
    KAFKA_NEXT_TRANSACTIONAL_ID_HINT = "KafkaNextTransactionalIdHint"
    JDBC_XA_SINK_STATE = "JdbcXaSinkState"
    JDBC_CHECKPOINT_AND_XID = "JdbcCheckpointAndXid"
    JDBC_XID = "JdbcXid"


COMPONENTS = {
    BasicKind.BOOLEAN_PRIMITIVE_ARRAY: BasicKind.BOOLEAN,
    BasicKind.BYTE_PRIMITIVE_ARRAY: BasicKind.BYTE,
    BasicKind.SHORT_PRIMITIVE_ARRAY: BasicKind.SHORT,
    BasicKind.CHAR_PRIMITIVE_ARRAY: BasicKind.CHAR,
    BasicKind.INT_PRIMITIVE_ARRAY: BasicKind.INT,
    BasicKind.LONG_PRIMITIVE_ARRAY: BasicKind.LONG,
    BasicKind.FLOAT_PRIMITIVE_ARRAY: BasicKind.FLOAT,
    BasicKind.DOUBLE_PRIMITIVE_ARRAY: BasicKind.DOUBLE,
}
"""Kind of an array of primitive values -> kind of one value."""

PRIMITIVES = tuple(COMPONENTS.values())
"""Kinds of the primitive types of Java."""

ARRAYS = tuple(kind for kind in BasicKind if kind.endswith("Array"))
"""Kinds of arrays; as objects of Java they have no hash that is the same in every JVM."""


@dataclass(frozen=True, kw_only=True)
class Basic(Serializer):
    """A serializer without parameters over one basic type.

    Attributes:
        kind: which serializer it is.
        serializer_class: serializer class that snapshots of version 2 (1.6 and 1.7) name; empty in later ones.
    """

    kind: BasicKind
    serializer_class: str = ""


@dataclass(frozen=True, kw_only=True)
class Enum(Serializer):
    """`EnumSerializer`: data are indices into `constants`."""

    enum_class: str
    constants: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScalaEnum(Serializer):
    """`ScalaEnumSerializer`: data are ids of `constants` (name, id)."""

    enum_class: str
    constants: tuple[tuple[str, int], ...]


class ClassBoundKind(StrEnum):
    """Serializer of a `ClassBound` node: the word before `Serializer` in its class name."""

    VALUE = "Value"
    COPYABLE_VALUE = "CopyableValue"
    WRITABLE = "Writable"
    CODER = "Coder"
    """A coder of Beam that is bound to a class."""


@dataclass(frozen=True, kw_only=True)
class ClassBound(Serializer):
    """A serializer that only names its type class, which writes the data itself.

    Attributes:
        kind: which serializer it is.
        type_class: the class.
    """

    kind: ClassBoundKind
    type_class: str
