"""Values of Java serialization streams: objects, class descriptors, enum constants, arrays, strings, all as plain data.

Words as in the Java Object Serialization Specification, chapter 6 (`java.io.ObjectStreamConstants`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

MAX_DEPTH = 100
"""Maximum nesting depth of objects, and maximum number of super classes of a class."""

WRITE_METHOD = 0x01
SERIALIZABLE = 0x02
EXTERNALIZABLE = 0x04
BLOCK_DATA = 0x08
ENUM = 0x10


@dataclass(frozen=True)
class JavaString:
    """A string with an identity of its own, as Java has it."""

    text: str


@dataclass(frozen=True)
class JavaField:
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
        flags: how objects are written: `WRITE_METHOD`, `SERIALIZABLE`, `EXTERNALIZABLE`, `BLOCK_DATA`, `ENUM`.
        fields: primitives first, then objects, each sorted by name.
        super_desc: descriptor of the super class when that is serializable too.
        annotation: data written by `annotateClass`; usually empty.
    """

    name: str
    suid: int
    flags: int
    fields: tuple[JavaField, ...] = ()
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
    """The data of an object that one class of its hierarchy wrote.

    Attributes:
        values: field values in the order of the descriptor; a `char` is a string of one UTF-16 unit.
        annotation: additional data of `writeObject` or `writeExternal`; None if the class has no such method.
    """

    values: tuple[JavaValue, ...] = ()
    annotation: tuple[JavaContent, ...] | None = None


@dataclass(frozen=True)
class JavaObject:
    """An object.

    Attributes:
        class_desc: its class.
        class_data: one entry for each class of `hierarchy(class_desc)`.
    """

    class_desc: JavaAnyDesc | None
    class_data: tuple[JavaClassData, ...] = ()

    @property
    def class_name(self) -> str:
        """Binary name of the class; empty for a proxy."""
        return self.class_desc.name if isinstance(self.class_desc, JavaClassDesc) else ""

    @property
    def fields(self) -> dict[str, JavaValue]:
        """Field values by name, super classes first; where names repeat the subclass wins. Strings come as `str`."""
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
        class_desc: its class.
        values: the elements; bytes for a `[B`.
    """

    class_desc: JavaClassDesc
    values: tuple[JavaValue, ...] | bytes = ()


@dataclass(frozen=True)
class JavaClass:
    """A class literal."""

    class_desc: JavaAnyDesc | None


@dataclass(frozen=True)
class JavaBlock:
    """Primitive data that a `writeObject` or `writeExternal` method wrote."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class JavaReference:
    """A reference to an object that encloses it; `index` counts the handles of the stream from 0."""

    index: int


JavaContent: TypeAlias = (
    JavaString
    | JavaObject
    | JavaEnum
    | JavaArray
    | JavaClass
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
