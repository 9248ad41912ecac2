"""Class table of a Kryo instance: ids, finality, references, and propagation of type arguments.

Source: `com.esotericsoftware.kryo.util.DefaultClassResolver`, `Kryo.isFinal`, `ReferenceResolver.useReferences`,
`org.apache.flink.api.java.typeutils.runtime.KryoUtils.applyRegistrations`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.java_stream import JavaObject, read_stream
from state_pipelines.codecs.extensions import find_class_layout
from state_pipelines.codecs.java.typed_values import CollectionKind
from state_pipelines.codecs.kryo.classes import (
    FINAL_CLASSES,
    FLINK_BASE,
    FLINK_IDS,
    SHAPES,
    USER_BASE,
    WRAPPERS,
    CollectionVariant,
    Shape,
    first_ids,
    known_classes,
)
from state_pipelines.codecs.kryo.field_lists import (
    ARRAY,
    COLLECTION_KINDS,
    FINAL_KINDS,
    OBJECT,
    PRIMITIVES,
    ClassDeclaration,
    FieldLists,
    JavaType,
)
from state_pipelines.codecs.kryo.jdk_values import TEXT, Leaf, find_leaf
from state_pipelines.codecs.layout_text import parse_layout
from state_pipelines.codecs.messages.chill_messages import SERIALIZERS, MessageTypes
from state_pipelines.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    from state_pipelines.codecs.kryo.wire import Version
    from state_pipelines.codecs.layout import Layout
    from state_pipelines.serializers import tree

_LETTERS = {letter: name for name, letter in PRIMITIVES.items()}
_AVRO_SCHEMA = re.compile(r"org\.apache\.avro\.Schema(\$\w+)?")
_SCHEMA_SERIALIZER = b".AvroKryoSerializerUtils$AvroSchemaSerializer"
_BODY_CLASS = re.compile(r"(.+)\$\d+")
JAVA_SERIALIZERS = (
    "org.apache.flink.api.java.typeutils.runtime.kryo.JavaSerializer",
    "com.esotericsoftware.kryo.serializers.JavaSerializer",
)
"""Kryo serializers that write objects by Java serialization, all of one graph and class into one stream."""
_FLINK_IDS = {name: FLINK_BASE + index for index, name in enumerate(FLINK_IDS)}
Bindings = Mapping[str, JavaType]
"""Type parameters of the current class and their arguments."""


class ClassTable:
    """The classes of one serializer.

    Args:
        serializer: its registrations give ids to classes.
        version: release line of Kryo.
        classes: declarations of the user.
        messages: messages of Protobuf and Thrift that the user declares.
    """

    def __init__(
        self,
        serializer: tree.Kryo,
        version: Version,
        classes: FieldLists,
        messages: MessageTypes | None = None,
    ) -> None:
        self.version = version
        self.classes = classes
        self.known = known_classes(version)
        # Registering a class again keeps its id and takes no new one.
        self.first = first_ids(version)
        fixed = _FLINK_IDS | {name: index for index, name in enumerate(self.first)}
        self.registered = [each.class_name for each in serializer.registrations if each.class_name not in fixed]
        self.ids = {name: USER_BASE + index for index, name in enumerate(self.registered)} | fixed
        self.messages = messages or MessageTypes()
        named = ((each.class_name, _find_serializer(each)) for each in serializer.registrations)
        self.custom = {name: found for name, found in named if found is not None}
        self.avro = any(map(_writes_schemas, serializer.default_serializer_classes))
        # A default serializer is for subclasses, too; only declarations list them.
        self.defaults = {each.class_name: _find_instance(each.value) for each in serializer.default_serializers}
        self.defaults |= {each.class_name: _read_name(each.value) for each in serializer.default_serializer_classes}
        self.custom = {**self.defaults, **self.custom}

    def find_serializer(self, name: str) -> str | None:
        """Return the Kryo serializer of its own that a class has; empty where its name is not known, None for none."""
        if name in self.custom:
            return self.custom[name]
        for serializer in self.defaults.values():
            format = SERIALIZERS.get(serializer)
            if format is not None and self.messages.knows(format, name):
                return serializer
        return None

    def find_own_layout(self, name: str) -> Layout | None:
        """Return the layout of what the Kryo serializer of a class writes: declared or registered; None for neither."""
        text = next((text for each, text in self.messages.layouts if each == name), None)
        return find_class_layout(name) if text is None else parse_layout(text)

    def class_of_id(self, number: int) -> str | None:
        """Return the class of a registration id, or None."""
        if number < len(self.first):
            return self.first[number]
        if FLINK_BASE <= number < USER_BASE:
            return FLINK_IDS[number - FLINK_BASE]
        index = number - (USER_BASE if number >= USER_BASE else len(self.first))
        return self.registered[index] if index < len(self.registered) else None

    def find(self, name: str) -> ClassDeclaration | None:
        """Return the field list of a class: the user's, or a known one."""
        return self.classes.find(name) or self.known.find(name)

    def shape(self, name: str) -> Shape | None:
        """Return how a collection class is written; None when the class is no collection."""
        declared = self.classes.find(name)
        if declared is not None and declared.kind in COLLECTION_KINDS:
            return Shape(CollectionKind(declared.kind))
        shape = SHAPES.get(name)
        if shape is None and name == "java.util.concurrent.ConcurrentSkipListMap":
            # Kryo 5 alone gives this class the serializer of TreeMap.
            return Shape(CollectionKind.MAP, CollectionVariant.SORTED if self.version == 5 else CollectionVariant.PLAIN)
        if shape is not None and shape.variant is CollectionVariant.IMMUTABLE and self.version == 2:
            return Shape(shape.kind)
        return shape

    def leaf(self, name: str) -> Leaf | None:
        """Return the format of a class whose values hold no other objects; None for all other classes."""
        if self.avro and _AVRO_SCHEMA.fullmatch(name):
            return TEXT
        return find_leaf(name, self.version)

    def enum(self, name: str) -> ClassDeclaration | None:
        """Return the enum of a class, which may be the class of one constant; None when it is no declared enum."""
        declared = self.find(name)
        if declared is None and (body := _BODY_CLASS.fullmatch(name)):
            declared = self.find(body[1])
        return declared if declared is not None and declared.constants else None

    def uses_references(self, name: str) -> bool:
        """Return whether objects of a class are numbered so that later mentions refer to them."""
        return not (name in WRAPPERS or (self.version == 5 and self.enum(name) is not None))

    def is_final(self, of: JavaType) -> bool:
        """Return whether values of a declared type are stored without their class.

        Raises:
            UnsupportedError: the type is a class of which nothing is known.
        """
        while of.name == ARRAY:
            of = of.arguments[0]
        if of.name in PRIMITIVES or of.name in FINAL_CLASSES:
            return True
        declared = self.find(of.name)
        if declared is None:
            if of.name.startswith(("java.", "javax.")):
                return False
            raise UnsupportedError(
                f"nothing is known of class {of.name}, which a declared field names",
                hint=f"Declare it in the field lists too: `{of.name}:` or `final {of.name}:` and its fields, "
                f"`enum {of.name}:` and its constants, or `interface {of.name}:`",
            )
        return declared.kind in FINAL_KINDS

    def bind(self, declared: ClassDeclaration, arguments: tuple[JavaType, ...]) -> Bindings:
        """Bind the type parameters of a class to the arguments of its field; without arguments they are Object."""
        if len(arguments) != len(declared.parameters):
            arguments = (OBJECT,) * len(declared.parameters)
        return {name: _erase(of) for name, of in zip(declared.parameters, arguments, strict=True)}

    def arguments(self, of: JavaType) -> tuple[JavaType, ...]:
        """Return type arguments that the serializer of a field's value gets to see.

        Kryo 2 propagates only classes, one level deep, also to arrays of generic classes. Kryo 5 propagates all levels,
        but not to arrays.
        """
        if self.version == 2:
            while of.name == ARRAY:
                of = of.arguments[0]
            return tuple(OBJECT if each.wildcard else _erase(each) for each in of.arguments)
        if of.name == ARRAY:
            return ()
        return tuple(_erase(each) if each.wildcard else each for each in of.arguments)


def resolve(of: JavaType, bindings: Bindings) -> JavaType:
    """Return a declared type with its type parameters replaced."""
    if of.name in bindings:
        return bindings[of.name]
    if not of.arguments:
        return of
    return JavaType(of.name, tuple(resolve(each, bindings) for each in of.arguments), of.wildcard)


def class_name(of: JavaType) -> str:
    """Return the name of a type's class as the JVM spells it."""
    if of.name != ARRAY:
        return of.name
    component = of.arguments[0]
    if component.name == ARRAY:
        return f"[{class_name(component)}"
    return f"[{PRIMITIVES[component.name]}" if component.name in PRIMITIVES else f"[L{component.name};"


def component_type(name: str) -> JavaType | None:
    """Return the type of the elements of an array class, or None if it is not an array."""
    if name[1:2] in _LETTERS and len(name) == 2:
        return JavaType(_LETTERS[name[1]])
    if name.startswith("[L") and name.endswith(";"):
        return JavaType(name[2:-1])
    if name.startswith("[["):
        inner = component_type(name[1:])
        return None if inner is None else JavaType(ARRAY, (inner,))
    return None


def _erase(of: JavaType) -> JavaType:
    return of if of.name == ARRAY else JavaType(of.name)


def _writes_schemas(default: tree.KryoRegistration) -> bool:
    """Return whether Avro's schemas are written as JSON; Flink registers this where flink-avro is on the class path."""
    return default.class_name == "org.apache.avro.Schema" and (default.value or b"").endswith(_SCHEMA_SERIALIZER)


def _find_serializer(registration: tree.KryoRegistration) -> str | None:
    """Return the serializer that a registration names (kind CLASS or INSTANCE); None where it names none."""
    if registration.value is None:
        return None
    reader = Reader(registration.value, "Kryo registration")
    reader.utf()
    match reader.i32():
        case 0:
            return None
        case 1:
            return reader.utf()
        case _:
            return _find_instance(registration.value[reader.position :])


def _read_name(value: bytes | None) -> str:
    return Reader(value, "Kryo registration").utf() if value else ""


def _find_instance(value: bytes | None) -> str:
    """Return the class of a serializer inside Flink's `SerializableSerializer`; empty where it is not known."""
    if not value:
        return ""
    try:
        content = read_stream(Reader(value, "Kryo registration"))
    except (FormatError, UnsupportedError):
        return ""
    inner = content.fields.get("serializer") if isinstance(content, JavaObject) else None
    return inner.class_name if isinstance(inner, JavaObject) else ""
