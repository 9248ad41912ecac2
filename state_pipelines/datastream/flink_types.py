"""`Types`: Flink's types by PyFlink's names (`pyflink.common.typeinfo.Types`), and types from other descriptions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from state_pipelines.codecs.avro import parse_avro_schema
from state_pipelines.datastream.avro_types import AvroTypeInfo
from state_pipelines.datastream.derived_types import derive_dataclass_pojo, derive_type
from state_pipelines.datastream.field_types import PojoTypeInfo, RowTypeInfo, TupleTypeInfo
from state_pipelines.datastream.type_information import (
    ArrayTypeInfo,
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    StoredTypeInfo,
    TypeInformation,
)
from state_pipelines.errors import FormatError, UnsupportedError, UsageError
from state_pipelines.serializers import build
from state_pipelines.serializers.tree import BasicKind
from state_pipelines.serializers.tree.basic import PRIMITIVES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


GENERIC_RECORD = "org.apache.avro.generic.GenericRecord"


class Types:
    """Types by the names of PyFlink; each is the serializer that Java Flink has for it.

    `Types.LONG()` reads and writes what a Java job with `Types.LONG` has in its state.
    """

    @staticmethod
    def STRING() -> TypeInformation:
        """Text; may be None."""
        return BasicTypeInfo(BasicKind.STRING)

    @staticmethod
    def BYTE() -> TypeInformation:
        """Whole numbers of 8 bits."""
        return BasicTypeInfo(BasicKind.BYTE)

    @staticmethod
    def BOOLEAN() -> TypeInformation:
        """True and False."""
        return BasicTypeInfo(BasicKind.BOOLEAN)

    @staticmethod
    def SHORT() -> TypeInformation:
        """Whole numbers of 16 bits."""
        return BasicTypeInfo(BasicKind.SHORT)

    @staticmethod
    def INT() -> TypeInformation:
        """Whole numbers of 32 bits."""
        return BasicTypeInfo(BasicKind.INT)

    @staticmethod
    def LONG() -> TypeInformation:
        """Whole numbers of 64 bits."""
        return BasicTypeInfo(BasicKind.LONG)

    @staticmethod
    def FLOAT() -> TypeInformation:
        """Floating-point numbers of 32 bits."""
        return BasicTypeInfo(BasicKind.FLOAT)

    @staticmethod
    def DOUBLE() -> TypeInformation:
        """Floating-point numbers of 64 bits."""
        return BasicTypeInfo(BasicKind.DOUBLE)

    @staticmethod
    def CHAR() -> TypeInformation:
        """Text of one UTF-16 unit."""
        return BasicTypeInfo(BasicKind.CHAR)

    @staticmethod
    def BIG_INT() -> TypeInformation:
        """Whole numbers of any size; may be None."""
        return BasicTypeInfo(BasicKind.BIG_INT)

    @staticmethod
    def BIG_DEC() -> TypeInformation:
        """`decimal.Decimal` with its scale; may be None."""
        return BasicTypeInfo(BasicKind.BIG_DEC)

    @staticmethod
    def INSTANT() -> TypeInformation:
        """`Instant`: seconds and nanoseconds since 1970; may be None."""
        return BasicTypeInfo(BasicKind.INSTANT)

    @staticmethod
    def SQL_DATE() -> TypeInformation:
        """`datetime.date`; Java's `java.sql.Date` at midnight of UTC; may be None."""
        return BasicTypeInfo(BasicKind.SQL_DATE)

    @staticmethod
    def SQL_TIME() -> TypeInformation:
        """`datetime.time` in milliseconds; Java's `java.sql.Time` in UTC; may be None."""
        return BasicTypeInfo(BasicKind.SQL_TIME)

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation:
        """`datetime.datetime` in UTC; Java's `java.sql.Timestamp`; may be None."""
        return BasicTypeInfo(BasicKind.SQL_TIMESTAMP)

    @staticmethod
    def LOCAL_DATE() -> TypeInformation:
        """`datetime.date`; Java's `java.time.LocalDate`; may be None."""
        return BasicTypeInfo(BasicKind.LOCAL_DATE)

    @staticmethod
    def LOCAL_TIME() -> TypeInformation:
        """`datetime.time`; Java's `java.time.LocalTime`; may be None."""
        return BasicTypeInfo(BasicKind.LOCAL_TIME)

    @staticmethod
    def LOCAL_DATE_TIME() -> TypeInformation:
        """`datetime.datetime` without time zone; Java's `java.time.LocalDateTime`; may be None."""
        return BasicTypeInfo(BasicKind.LOCAL_DATE_TIME)

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:
        """Refuse: pickles are never loaded.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "Types.PICKLED_BYTE_ARRAY() is not supported: loading a pickle runs code that its writer chose",
            hint="Name the type of the values, or use Types.PRIMITIVE_ARRAY(Types.BYTE()) and convert bytes yourself",
        )

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> TypeInformation:
        """Rows by position; fields may be None, a row may not.

        Args:
            field_types: of the fields.
        """
        return RowTypeInfo(tuple(field_types))

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> TypeInformation:
        """Rows with names, which the serializer does not store; fields may be None, a row may not.

        Args:
            field_names: of the fields.
            field_types: of the fields.
        """
        return RowTypeInfo(tuple(field_types), tuple(field_names))

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TypeInformation:
        """Tuples of 1 to 25 fields, which may not be None unless their type may.

        Args:
            field_types: of the fields.
        """
        return TupleTypeInfo(tuple(field_types))

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Arrays of Java's primitive types: bytes for BYTE, otherwise lists.

        Args:
            element_type: BOOLEAN, BYTE, SHORT, CHAR, INT, LONG, FLOAT or DOUBLE.

        Raises:
            UsageError: Java has no primitive type for the elements.
        """
        if not isinstance(element_type, BasicTypeInfo) or element_type.kind not in PRIMITIVES:
            raise UsageError(
                f"{element_type} is not a primitive type of Java",
                hint="Use Types.BASIC_ARRAY or Types.OBJECT_ARRAY",
            )
        return BasicTypeInfo(BasicKind(f"{element_type.kind}PrimitiveArray"))

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Arrays of boxed numbers or text (`Integer[]`, `String[]`); elements may be None.

        Args:
            element_type: as for PRIMITIVE_ARRAY, or STRING.

        Raises:
            UsageError: another type of elements.
        """
        if not isinstance(element_type, BasicTypeInfo) or element_type.kind not in (*PRIMITIVES, BasicKind.STRING):
            raise UsageError(f"{element_type} is not a basic type of Java", hint="Use Types.OBJECT_ARRAY")
        return (
            BasicTypeInfo(BasicKind.STRING_ARRAY)
            if element_type.kind == BasicKind.STRING
            else ArrayTypeInfo(element_type)
        )

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Arrays of objects; elements may be None.

        Args:
            element_type: of the elements.
        """
        return ArrayTypeInfo(element_type)

    @staticmethod
    def MAP(key_type_info: TypeInformation, value_type_info: TypeInformation) -> TypeInformation:
        """Dicts; values may be None.

        Args:
            key_type_info: of the keys, whose values must be hashable in Python.
            value_type_info: of the values.
        """
        return MapTypeInfo(key_type_info, value_type_info)

    @staticmethod
    def LIST(element_type_info: TypeInformation) -> TypeInformation:
        """Lists.

        Args:
            element_type_info: of the elements.
        """
        return ListTypeInfo(element_type_info)

    @staticmethod
    def POJO(pojo_class: str, fields: Mapping[str, TypeInformation] | type) -> TypeInformation:
        """Objects of a Java class (`PojoSerializer`); not part of PyFlink.

        Args:
            pojo_class: binary name of the class.
            fields: name -> type of the fields, or a dataclass, whose objects are then read; otherwise Rows are.
        """
        if isinstance(fields, type):
            return derive_dataclass_pojo(fields, pojo_class)
        serializer = build.pojo(pojo_class, {name: each.serializer for name, each in fields.items()})
        return PojoTypeInfo(serializer, tuple((each.name, fields[each.name]) for each in serializer.fields))

    @staticmethod
    def AVRO(schema: str | Mapping[str, Any], runtime_class: str = GENERIC_RECORD) -> TypeInformation:
        """Records of Avro (`AvroSerializer`), which are dicts; not part of PyFlink.

        Args:
            schema: JSON text of the schema, or what it stands for.
            runtime_class: binary name of the generated class; default that of generic records.

        Raises:
            UsageError: this is no schema of Avro.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema, separators=(",", ":"))
        try:
            parse_avro_schema(text)
        except FormatError as error:
            raise UsageError(
                error.what.replace("of the snapshot ", ""), hint="Give the text of an .avsc file"
            ) from None
        return AvroTypeInfo(build.avro(runtime_class, text))

    @staticmethod
    def of(description: Any, *, stored: bool = False) -> TypeInformation:
        """Make a type from another description; not part of PyFlink.

        Args:
            description: a type; a serializer; the text of one, as `state-pipelines inspect` prints it; a dataclass (a
                Row); a schema or type of Arrow.
            stored: leave values in the form of the scalar codec, as `state-pipelines dump` has them: no value of Java
                is too fine or too large then.

        Raises:
            UsageError: the description names no type.
        """
        of = derive_type(description)
        return StoredTypeInfo(of.serializer) if stored else of
