"""Java classes as far as Flink's type extraction asks for them.

A class comes from a `.class` file (`classfile`), or is declared by hand in a field list (`codecs.kryo.field_lists`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from state_pipelines.codecs.kryo.field_lists import (
    ARRAY,
    COLLECTION_KINDS,
    OBJECT,
    OBJECT_NAME,
    PRIMITIVES,
    ClassKind,
    JavaType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.codecs.kryo.field_lists import ClassDeclaration

ENUM_NAME = "java.lang.Enum"
RECORD_NAME = "java.lang.Record"
BOXES = {
    "boolean": "java.lang.Boolean",
    "byte": "java.lang.Byte",
    "char": "java.lang.Character",
    "short": "java.lang.Short",
    "int": "java.lang.Integer",
    "long": "java.lang.Long",
    "float": "java.lang.Float",
    "double": "java.lang.Double",
}
"""The class of the objects of each primitive type."""


@dataclass(frozen=True)
class JavaField:
    """A field that a class declares.

    Attributes:
        type: with its type arguments.
        raw: the type without them, as `erase` writes it.
        is_kept: neither static nor transient.
        is_final: it cannot be set after the constructor.
        is_synthetic: the compiler added it, such as `this$0` of inner classes; Kryo leaves it out.
        has_factory: `@TypeInfo` names a factory that makes its serializer.
    """

    name: str
    type: JavaType
    raw: str
    is_public: bool = True
    is_kept: bool = True
    is_final: bool = False
    is_synthetic: bool = False
    has_factory: bool = False


@dataclass(frozen=True)
class JavaMethod:
    """A method that a class declares; constructors are called `<init>`.

    Attributes:
        parameters: raw types.
        returns: raw type, or `void`.
        generic_parameters: with type arguments.
        generic_returns: with type arguments.
    """

    name: str
    parameters: tuple[str, ...]
    returns: str
    is_public: bool
    generic_parameters: tuple[JavaType, ...] = ()
    generic_returns: JavaType | None = None


class Nesting(Enum):
    """Declaration of a class inside of another one."""

    TOP_LEVEL = auto()
    STATIC = auto()
    INNER = auto()
    LOCAL = auto()
    ANONYMOUS = auto()


@dataclass(frozen=True)
class JavaClass:
    """A class.

    Attributes:
        name: as `Class.getName` has it.
        parent: super class with its type arguments; None of `java.lang.Object` and of interfaces.
        interfaces: names.
        parameters: type parameters.
        fields: in the order of the source.
        methods: those that the class itself declares.
        constants: of an enum, in order.
        has_factory: `@TypeInfo` names a factory that makes its serializer.
        writes_itself: `KryoSerializable` or `@DefaultSerializer` replaces Kryo's serializer of fields.
        nesting: where the class is declared.
        references: classes that the code names.
        creates: classes of which the code calls a constructor, those of super classes included.
        schema_json: schema of a class that Avro generated; empty if there is none.
    """

    name: str
    parent: JavaType | None = OBJECT
    interfaces: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    fields: tuple[JavaField, ...] = ()
    methods: tuple[JavaMethod, ...] = ()
    constants: tuple[str, ...] = ()
    is_public: bool = True
    is_final: bool = False
    is_abstract: bool = False
    is_interface: bool = False
    has_factory: bool = False
    writes_itself: bool = False
    nesting: Nesting = Nesting.TOP_LEVEL
    references: frozenset[str] = frozenset()
    creates: frozenset[str] = frozenset()
    schema_json: str = ""

    @property
    def is_enum(self) -> bool:
        """Whether it is an enum (constants with bodies have classes of their own, which are not)."""
        return self.parent is not None and self.parent.name == ENUM_NAME

    @property
    def is_record(self) -> bool:
        """Whether it is a record (`TypeExtractor.isRecord`)."""
        return self.parent is not None and self.parent.name == RECORD_NAME and self.is_final


_PARENTS = {ClassKind.ENUM: ENUM_NAME, ClassKind.ABSTRACT_ENUM: ENUM_NAME, ClassKind.RECORD: RECORD_NAME}


def declare(declaration: ClassDeclaration) -> JavaClass:
    """The class of an entry of a field list: public, with public fields and a default constructor."""
    kind = declaration.kind
    parent = _PARENTS.get(kind, OBJECT_NAME)
    return JavaClass(
        name=declaration.name,
        parent=JavaType(declaration.base or parent),
        parameters=declaration.parameters,
        fields=tuple(JavaField(name, of, erase(of, declaration.parameters)) for name, of in declaration.fields),
        methods=(JavaMethod("<init>", (), "void", is_public=True),)
        if kind in (ClassKind.CLASS, ClassKind.FINAL)
        else (),
        constants=declaration.constants,
        is_final=kind in (ClassKind.FINAL, ClassKind.RECORD),
        # Subclasses of collections have private fields and so are no POJOs.
        is_interface=kind in (ClassKind.INTERFACE, *COLLECTION_KINDS),
    )


def erase(of: JavaType, parameters: Iterable[str] = ()) -> str:
    """Return the raw type as text: `long`, `java.util.List`, `java.lang.String[]`; a type parameter becomes Object."""
    if of.name == ARRAY:
        return f"{erase(of.arguments[0], parameters)}[]"
    return OBJECT_NAME if of.name in parameters else of.name


def name_class(of: JavaType) -> str:
    """Return the name of a raw type as `Class.getName` has it: `[J`, `[Ljava.lang.String;`, `java.util.List`."""
    if of.name != ARRAY:
        return of.name
    element = of.arguments[0]
    if element.name == ARRAY:
        return f"[{name_class(element)}"
    return f"[{PRIMITIVES[element.name]}" if element.name in PRIMITIVES else f"[L{element.name};"
