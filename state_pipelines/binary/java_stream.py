"""Java serialization streams, read and written as plain values; no class is ever looked up or run.

* `JavaObject`, `JavaClassDesc`, `JavaEnum`, `JavaArray`, `JavaString` and others: objects, class descriptors, enum
  constants, arrays and strings, all as plain data.
* `read_stream`, `write_stream`: one stream. A value that a stream mentions again by a back reference is the *same*
  Python object again, and `write_stream` writes an object that it meets again as a back reference. So a stream that was
  read is written with the same bytes.

Flink writes such streams into checkpoint properties, logical types and values of `JavaSerializer`, without a length
prefix, so the structure has to be read to find the end. Source of grammar and terms: Java Object Serialization
Specification, chapter 6 (`java.io.ObjectStreamConstants`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from state_pipelines.binary.data_views import Writer, encode_modified_utf8
from state_pipelines.errors import UnsupportedError, ValueRangeError, Where

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader

MAX_DEPTH = 100
"""Maximum nesting depth of objects, and maximum number of super classes of a class."""

WRITE_METHOD = 0x01
SERIALIZABLE = 0x02
EXTERNALIZABLE = 0x04
BLOCK_DATA = 0x08
ENUM = 0x10


@dataclass(frozen=True)
class JavaString:
    """A string as a Java object: equal strings that are different objects are written twice, the same object once."""

    text: str


@dataclass(frozen=True)
class JavaFieldDesc:
    """A field of a class.

    Attributes:
        typecode: one of `B C D F I J S Z [ L`.
        name: field name.
        signature: type signature such as `Ljava/lang/String;`; None for primitives.
    """

    typecode: str
    name: str
    signature: JavaString | None = None


@dataclass(frozen=True)
class JavaClassDesc:
    """A class descriptor (`java.io.ObjectStreamClass`).

    Attributes:
        name: binary class name.
        suid: serial version uid, signed 64 bits.
        flags: flags that say how objects are written: `WRITE_METHOD`, `SERIALIZABLE`, `EXTERNALIZABLE`, `BLOCK_DATA`,
            `ENUM`.
        fields: primitives first, then objects, each sorted by name.
        super_desc: descriptor of the super class when that is serializable too.
        annotation: data written by `annotateClass`; usually empty.
    """

    name: str
    suid: int
    flags: int
    fields: tuple[JavaFieldDesc, ...] = ()
    super_desc: JavaAnyDesc | None = None
    annotation: tuple[JavaContent, ...] = ()


@dataclass(frozen=True)
class JavaProxyDesc:
    """A descriptor of a dynamic proxy class (`java.lang.reflect.Proxy`)."""

    interfaces: tuple[str, ...]
    super_desc: JavaAnyDesc | None = None
    annotation: tuple[JavaContent, ...] = ()


@dataclass(frozen=True)
class JavaClassData:
    """The data of an object that belong to one class of its hierarchy.

    Attributes:
        values: field values in the order of the descriptor; a `char` is a string of one UTF-16 unit.
        annotation: additional data of `writeObject` or `writeExternal`; None if the class has no such method.
    """

    values: tuple[JavaValue, ...] = ()
    annotation: tuple[JavaContent, ...] | None = None


@dataclass(frozen=True)
class JavaObject:
    """A Java object.

    Attributes:
        class_desc: descriptor of its class.
        class_data: its data, one entry for each class of `hierarchy(class_desc)`.
    """

    class_desc: JavaAnyDesc | None
    class_data: tuple[JavaClassData, ...] = ()

    @property
    def class_name(self) -> str:
        """Binary name of the class; empty for a proxy."""
        return self.class_desc.name if isinstance(self.class_desc, JavaClassDesc) else ""

    @property
    def fields(self) -> dict[str, JavaValue]:
        """Field values by name, super classes first; of equal names, the subclass wins. Java strings become `str`."""
        named: dict[str, JavaValue] = {}
        for desc, data in zip(hierarchy(self.class_desc), self.class_data, strict=True):
            if isinstance(desc, JavaClassDesc) and data.values:
                values = (value.text if isinstance(value, JavaString) else value for value in data.values)
                named.update(zip((member.name for member in desc.fields), values, strict=True))
        return named


@dataclass(frozen=True)
class JavaEnum:
    """An enum constant."""

    class_desc: JavaAnyDesc | None
    name: JavaString

    @property
    def class_name(self) -> str:
        """Binary name of the enum class."""
        return self.class_desc.name if isinstance(self.class_desc, JavaClassDesc) else ""

    @property
    def constant(self) -> str:
        """Name of the constant."""
        return self.name.text


@dataclass(frozen=True)
class JavaArray:
    """An array; the element type is the second character of the class name (`[I`, `[Ljava.lang.String;`).

    Attributes:
        class_desc: descriptor of its class.
        values: the elements; bytes for a `[B`.
    """

    class_desc: JavaClassDesc
    values: tuple[JavaValue, ...] | bytes = ()


@dataclass(frozen=True)
class JavaClassLiteral:
    """A class literal."""

    class_desc: JavaAnyDesc | None


@dataclass(frozen=True)
class JavaBlock:
    """Primitive data that a `writeObject` or `writeExternal` method wrote."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class JavaReference:
    """A reference to an object that contains this reference (a cycle), by the index of its handle in the stream."""

    index: int


JavaContent: TypeAlias = (
    JavaString
    | JavaObject
    | JavaEnum
    | JavaArray
    | JavaClassLiteral
    | JavaClassDesc
    | JavaProxyDesc
    | JavaBlock
    | JavaReference
    | None
)
JavaValue: TypeAlias = JavaContent | bool | int | float | str


JavaAnyDesc: TypeAlias = JavaClassDesc | JavaProxyDesc


def hierarchy(desc: JavaAnyDesc | None) -> list[JavaAnyDesc]:
    """Return the classes that write data of an object, from the topmost serializable class down to `desc`."""
    classes = []
    while desc is not None:
        classes.append(desc)
        desc = desc.super_desc
    classes.reverse()
    return classes


HEADER = b"\xac\xed\x00\x05"
_BASE_HANDLE = 0x7E0000
_PRIMITIVES = {code: struct.Struct(">" + layout) for code, layout in zip("BCDFIJSZ", "bHdfiqh?", strict=True)}
_Content = TypeVar("_Content", bound=JavaContent)
_Desc = TypeVar("_Desc", JavaClassDesc, JavaProxyDesc)


class _Code(IntEnum):
    """The type code before each item of a Java stream (`ObjectStreamConstants.TC_…`)."""

    NULL = 0x70
    REFERENCE = 0x71
    CLASS_DESC = 0x72
    OBJECT = 0x73
    STRING = 0x74
    ARRAY = 0x75
    CLASS = 0x76
    BLOCK_DATA = 0x77
    END_BLOCK_DATA = 0x78
    BLOCK_DATA_LONG = 0x7A
    LONG_STRING = 0x7C
    PROXY_CLASS_DESC = 0x7D
    ENUM = 0x7E


def read_stream(reader: Reader) -> JavaContent:
    """Read one stream with one value.

    Args:
        reader: the cursor, at the header of the stream; afterwards at its end.

    Raises:
        FormatError: not a serialization stream, truncated, or nested deeper than `MAX_DEPTH`.
        UnsupportedError: the stream has data that cannot be read without their class.
    """
    start = reader.position
    if reader.take(min(4, reader.remaining)) != HEADER:
        raise reader.error("a Java serialization stream does not begin with AC ED 00 05", start)
    return StreamReader(reader).content(0)


def write_stream(content: JavaContent) -> bytes:
    """Encode one value as a Java serialization stream; the inverse of `read_stream`.

    Raises:
        ValueRangeError: a value does not fit its class descriptor.
    """
    writer = StreamWriter()
    writer.content(content)
    return writer.out.getvalue()


class StreamReader:
    """Reads the items of one Java stream after its header; other bytes may be between them.

    It keeps the objects by handle, to resolve references. None stands for an object that is not complete yet.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.handles: list[JavaContent] = []

    def content(self, depth: int) -> JavaContent:
        """Read the next item of the stream; `depth` is its nesting depth, 0 at top level."""
        reader, start = self.reader, self.reader.position
        if depth > MAX_DEPTH:
            raise reader.error(f"Java objects are nested more than {MAX_DEPTH} levels deep", start)
        match reader.u8():
            case _Code.NULL:
                return None
            case _Code.REFERENCE:
                return self._reference(start)
            case _Code.CLASS_DESC:
                return self._class_desc(depth)
            case _Code.PROXY_CLASS_DESC:
                return self._proxy_desc(depth)
            case _Code.OBJECT:
                return self._object(depth)
            case _Code.ENUM:
                return self._enum(depth)
            case _Code.ARRAY:
                return self._array(depth)
            case _Code.CLASS:
                return self._keep(JavaClassLiteral(self._desc(depth)))
            case _Code.STRING:
                return self._keep(JavaString(reader.utf()))
            case _Code.LONG_STRING:
                return self._keep(JavaString(reader.long_utf()))
            case _Code.BLOCK_DATA:
                return JavaBlock(reader.take(reader.u8()))
            case _Code.BLOCK_DATA_LONG:
                return JavaBlock(reader.bytes32())
            case code:
                raise reader.error(f"{code:#04x} does not begin a value of a Java serialization stream", start)

    def _reserve(self) -> int:
        self.handles.append(None)
        return len(self.handles) - 1

    def _keep(self, value: _Content) -> _Content:
        self.handles.append(value)
        return value

    def _reference(self, start: int) -> JavaContent:
        index = self.reader.i32() - _BASE_HANDLE
        if not 0 <= index < len(self.handles):
            raise self.reader.error(f"back reference {index} is outside the {len(self.handles)} values", start)
        value = self.handles[index]
        return JavaReference(index) if value is None else value

    def _desc(self, depth: int) -> JavaAnyDesc | None:
        start = self.reader.position
        desc = self.content(depth + 1)
        if desc is None or isinstance(desc, JavaClassDesc | JavaProxyDesc):
            return desc
        raise self.reader.error("a class descriptor is expected here", start)

    def _class_desc(self, depth: int) -> JavaClassDesc:
        reader, start = self.reader, self.reader.position
        name, suid = reader.utf(), reader.i64()
        index = self._reserve()
        flags = reader.u8()
        fields = tuple(self._field(depth) for _ in range(reader.u16()))
        typecodes = [member.typecode in _PRIMITIVES for member in fields]
        if typecodes != sorted(typecodes, reverse=True):
            raise reader.error(f"the fields of class {name} do not begin with the primitive ones", start)
        annotation = self._annotation(depth)
        desc = JavaClassDesc(name, suid, flags, fields, self._desc(depth), annotation)
        return self._complete(index, desc, start)

    def _proxy_desc(self, depth: int) -> JavaProxyDesc:
        reader, start = self.reader, self.reader.position
        index = self._reserve()
        interfaces = tuple(reader.utf() for _ in range(reader.count(2)))
        annotation = self._annotation(depth)
        return self._complete(index, JavaProxyDesc(interfaces, self._desc(depth), annotation), start)

    def _complete(self, index: int, desc: _Desc, start: int) -> _Desc:
        if len(hierarchy(desc)) > MAX_DEPTH:
            raise self.reader.error(f"a class has more than {MAX_DEPTH} super classes", start)
        self.handles[index] = desc
        return desc

    def _field(self, depth: int) -> JavaFieldDesc:
        reader, start = self.reader, self.reader.position
        typecode, name = chr(reader.u8()), reader.utf()
        if typecode in _PRIMITIVES:
            return JavaFieldDesc(typecode, name)
        signature = self.content(depth + 1) if typecode in "[L" else None
        if not isinstance(signature, JavaString):
            raise reader.error(f"field {name!r} has no type signature", start)
        return JavaFieldDesc(typecode, name, signature)

    def _annotation(self, depth: int) -> tuple[JavaContent, ...]:
        contents = []
        while self.reader.peek() != _Code.END_BLOCK_DATA:
            contents.append(self.content(depth + 1))
        self.reader.skip(1)
        return tuple(contents)

    def _object(self, depth: int) -> JavaObject:
        desc = self._desc(depth)
        index = self._reserve()
        data = tuple(self._class_data(each, depth) for each in hierarchy(desc))
        value = JavaObject(desc, data)
        self.handles[index] = value
        return value

    def _class_data(self, desc: JavaAnyDesc, depth: int) -> JavaClassData:
        if isinstance(desc, JavaProxyDesc):
            return JavaClassData()
        if desc.flags & EXTERNALIZABLE:
            if not desc.flags & BLOCK_DATA:
                raise UnsupportedError(
                    f"class {desc.name} wrote its data without end marks, so that only the class knows their end",
                    where=Where(file=self.reader.name, offset=self.reader.position),
                    hint="Java 1.1 wrote streams like that; write the value again with a later Java",
                )
            return JavaClassData(annotation=self._annotation(depth))
        if not desc.flags & SERIALIZABLE:
            return JavaClassData()
        values = tuple(self._value(member.typecode, depth) for member in desc.fields)
        return JavaClassData(values, self._annotation(depth) if desc.flags & WRITE_METHOD else None)

    def _value(self, typecode: str, depth: int) -> JavaValue:
        layout = _PRIMITIVES.get(typecode)
        if layout is None:
            return self.content(depth + 1)
        (value,) = layout.unpack(self.reader.take(layout.size))
        return chr(value) if typecode == "C" else value

    def _enum(self, depth: int) -> JavaEnum:
        desc = self._desc(depth)
        index = self._reserve()
        start = self.reader.position
        name = self.content(depth + 1)
        if not isinstance(name, JavaString):
            raise self.reader.error("an enum constant has no name", start)
        value = JavaEnum(desc, name)
        self.handles[index] = value
        return value

    def _array(self, depth: int) -> JavaArray:
        start = self.reader.position
        desc = self._desc(depth)
        if not isinstance(desc, JavaClassDesc) or len(desc.name) < 2 or desc.name[0] != "[":
            raise self.reader.error("the class of an array is not an array class", start)
        index = self._reserve()
        value = JavaArray(desc, self._elements(desc.name[1], depth))
        self.handles[index] = value
        return value

    def _elements(self, typecode: str, depth: int) -> tuple[JavaValue, ...] | bytes:
        if typecode == "B":
            return self.reader.bytes32()
        layout = _PRIMITIVES.get(typecode)
        number = self.reader.count(1 if layout is None else layout.size)
        return tuple(self._value(typecode, depth) for _ in range(number))


class StreamWriter:
    """Writes the items of one Java stream after its header.

    It keeps the handle of each Python object by identity, to write references to it.
    """

    def __init__(self) -> None:
        self.out = Writer()
        self.out.take(HEADER)
        self.handles: dict[int, int] = {}

    def content(self, value: JavaValue, depth: int = 0) -> None:
        """Write an item so that `StreamReader.content` reads it."""
        out = self.out
        if depth > MAX_DEPTH:
            raise ValueRangeError(f"Java objects are nested more than {MAX_DEPTH} levels deep")
        index = self.handles.get(id(value))
        if value is None:
            out.u8(_Code.NULL)
        elif index is not None:
            self._reference(index)
        else:
            self._new_content(value, depth)

    def _new_content(self, value: JavaValue, depth: int) -> None:
        out = self.out
        match value:
            case JavaReference():
                self._reference(value.index)
            case JavaClassDesc():
                self._class_desc(value, depth)
            case JavaProxyDesc():
                out.u8(_Code.PROXY_CLASS_DESC)
                self._assign(value)
                out.i32(len(value.interfaces))
                for interface in value.interfaces:
                    out.utf(interface)
                self._annotation(value.annotation, depth)
                self.content(value.super_desc, depth + 1)
            case JavaObject():
                self._object(value, depth)
            case JavaEnum():
                out.u8(_Code.ENUM)
                self.content(value.class_desc, depth + 1)
                self._assign(value)
                self.content(value.name, depth + 1)
            case JavaArray():
                self._array(value, depth)
            case JavaClassLiteral():
                out.u8(_Code.CLASS)
                self.content(value.class_desc, depth + 1)
                self._assign(value)
            case JavaString():
                self._string(value)
            case JavaBlock():
                self._block(value)
            case _:
                raise ValueRangeError(f"{value!r} is a primitive where a Java object is expected")

    def _assign(self, value: JavaContent) -> None:
        self.handles[id(value)] = len(self.handles)

    def _reference(self, index: int) -> None:
        if not 0 <= index < len(self.handles):
            raise ValueRangeError(f"back reference {index} is outside the {len(self.handles)} values")
        self.out.u8(_Code.REFERENCE)
        self.out.i32(_BASE_HANDLE + index)

    def _string(self, value: JavaString) -> None:
        self._assign(value)
        raw = encode_modified_utf8(value.text)
        if len(raw) > 0xFFFF:
            self.out.u8(_Code.LONG_STRING)
            self.out.i64(len(raw))
        else:
            self.out.u8(_Code.STRING)
            self.out.u16(len(raw))
        self.out.take(raw)

    def _block(self, value: JavaBlock) -> None:
        if len(value.data) > 0xFF:
            self.out.u8(_Code.BLOCK_DATA_LONG)
            self.out.bytes32(value.data)
        else:
            self.out.u8(_Code.BLOCK_DATA)
            self.out.u8(len(value.data))
            self.out.take(value.data)

    def _class_desc(self, desc: JavaClassDesc, depth: int) -> None:
        out = self.out
        out.u8(_Code.CLASS_DESC)
        out.utf(desc.name)
        out.i64(desc.suid)
        self._assign(desc)
        out.u8(desc.flags)
        out.u16(len(desc.fields))
        for member in desc.fields:
            out.u8(ord(member.typecode))
            out.utf(member.name)
            if member.typecode not in _PRIMITIVES:
                self.content(member.signature, depth + 1)
        self._annotation(desc.annotation, depth)
        self.content(desc.super_desc, depth + 1)

    def _annotation(self, contents: tuple[JavaContent, ...], depth: int) -> None:
        for value in contents:
            self.content(value, depth + 1)
        self.out.u8(_Code.END_BLOCK_DATA)

    def _object(self, value: JavaObject, depth: int) -> None:
        self.out.u8(_Code.OBJECT)
        self.content(value.class_desc, depth + 1)
        self._assign(value)
        classes = hierarchy(value.class_desc)
        if len(classes) != len(value.class_data):
            raise ValueRangeError(f"an object of {len(classes)} classes has data of {len(value.class_data)}")
        for desc, data in zip(classes, value.class_data, strict=True):
            fields = desc.fields if isinstance(desc, JavaClassDesc) and desc.flags & SERIALIZABLE else ()
            if len(fields) != len(data.values):
                raise ValueRangeError(f"{len(data.values)} values do not fit the {len(fields)} fields of {desc}")
            for member, field_value in zip(fields, data.values, strict=True):
                self._value(member.typecode, field_value, depth)
            if data.annotation is not None:
                self._annotation(data.annotation, depth)

    def _array(self, value: JavaArray, depth: int) -> None:
        self.out.u8(_Code.ARRAY)
        self.content(value.class_desc, depth + 1)
        self._assign(value)
        self.out.i32(len(value.values))
        if isinstance(value.values, bytes):
            self.out.take(value.values)
            return
        for element in value.values:
            self._value(value.class_desc.name[1], element, depth)

    def _value(self, typecode: str, value: JavaValue, depth: int) -> None:
        layout = _PRIMITIVES.get(typecode)
        if layout is None:
            self.content(value, depth + 1)
            return
        number = ord(value) if isinstance(value, str) and len(value) == 1 else value
        try:
            self.out.take(layout.pack(number))
        except (struct.error, OverflowError):
            raise ValueRangeError(f"{value!r} does not fit in a Java field of type {typecode}") from None
