"""Field lists: declarations of the classes whose fields Kryo does not store.

Kryo's `FieldSerializer` writes the values of the fields sorted by name, without names, and without the class of a value
whose declared type is final. A field list gives both, in the syntax of Java source, as YAML:

    shop.Order:                         # class, in full as `Class.getName` has it (nested ones with `$`)
      - id: long
      - lines: List<shop.Line>
      - price: BigDecimal
      - status: shop.Status(OPEN, DONE) # an enum with its constants, in their order
    final shop.Line:                    # `final` as in the source: its values have no class before them
      - sku: String
      - sizes: int[]
    record shop.Point: [x: int, y: int]
    enum shop.Color: [RED, GREEN]
    abstract enum shop.Shape: [A, B]    # constants with bodies
    interface shop.Rule:                # an interface or abstract class that fields name
    list shop.Names:                    # subclasses of collections are declared by their elements: list, set or map
    shop.Box<T>: [content: T]
    shop.Gift extends shop.Order: [card: String]    # also a subclass of a POJO that a snapshot does not list

Fields may have any order. Fields of super classes belong into the list too, after the own ones where names repeat,
unless `extends` names a class that is itself declared (or, for a POJO, one that the snapshot describes).
Static and transient fields are left out. Well-known classes of the JDK need no package (`String`, `List`, `Instant`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SHORT_NAMES = {
    "java.lang": "Object String Integer Long Short Byte Character Boolean Float Double Number CharSequence Comparable "
    "Iterable Class Enum Void StringBuilder StringBuffer Throwable Exception Cloneable Record",
    "java.util": "List Map Set Collection Queue Deque SortedSet SortedMap NavigableMap NavigableSet ArrayList "
    "LinkedList HashMap LinkedHashMap TreeMap HashSet LinkedHashSet TreeSet ArrayDeque PriorityQueue Vector Stack "
    "Hashtable EnumSet EnumMap BitSet UUID Date Locale Currency Optional OptionalInt OptionalLong OptionalDouble "
    "Calendar TimeZone Comparator Iterator",
    "java.math": "BigDecimal BigInteger RoundingMode",
    "java.time": "LocalDate LocalTime LocalDateTime Instant Duration Period ZonedDateTime OffsetDateTime OffsetTime "
    "Year YearMonth MonthDay ZoneId ZoneOffset DayOfWeek Month",
    "java.io": "Serializable",
    "java.net": "URI URL InetSocketAddress",
}
_FULL_NAMES = {name: f"{package}.{name}" for package, names in _SHORT_NAMES.items() for name in names.split()}
_FULL_NAMES["Map.Entry"] = _FULL_NAMES["Entry"] = "java.util.Map$Entry"
PRIMITIVES = {
    "boolean": "Z",
    "byte": "B",
    "char": "C",
    "short": "S",
    "int": "I",
    "long": "J",
    "float": "F",
    "double": "D",
}
"""Primitive types and their letters in the names of array classes."""


class ClassKind(StrEnum):
    """Kind of a declared class, as a field list has it before the name."""

    ABSTRACT_ENUM = "abstract enum"
    """Its constants have bodies."""
    CLASS = "class"
    FINAL = "final"
    RECORD = "record"
    ENUM = "enum"
    INTERFACE = "interface"
    """Or an abstract class."""
    LIST = "list"
    SET = "set"
    MAP = "map"


FIELD_KINDS = (ClassKind.CLASS, ClassKind.FINAL, ClassKind.RECORD)
"""Classes that Kryo writes field by field."""

FINAL_KINDS = (ClassKind.FINAL, ClassKind.RECORD, ClassKind.ENUM)
"""Classes whose values have no class before them."""

COLLECTION_KINDS = (ClassKind.LIST, ClassKind.SET, ClassKind.MAP)
"""Subclasses of collections."""

_ENUMS = (ClassKind.ENUM, ClassKind.ABSTRACT_ENUM)
# Longer texts first, since one may begin with another.
_KINDS = {
    "abstract enum": ClassKind.ABSTRACT_ENUM,
    "final class": ClassKind.FINAL,
    **{str(each): each for each in ClassKind},
}
_TOKEN = re.compile(r"\s*([\w.$]+|\[\s*\]|[<>,?()])")
ARRAY = "[]"
OBJECT_NAME = "java.lang.Object"


MAX_TYPE_DEPTH = 64
"""Type arguments and arrays in each other."""

MAX_SUPER_CLASSES = 256
"""Super classes of one class."""


@dataclass(frozen=True)
class JavaType:
    """A declared type.

    Attributes:
        name: a primitive, a full class name, a type parameter, or `[]` for an array of its only argument.
        arguments: type arguments.
        wildcard: a type argument of the form `? extends X`.
    """

    name: str
    arguments: tuple[JavaType, ...] = ()
    wildcard: bool = False


OBJECT = JavaType(OBJECT_NAME)


@dataclass(frozen=True)
class ClassDeclaration:
    """The declaration of one class in a field list.

    Attributes:
        name: full class name.
        kind: kind of the class.
        parameters: type parameters.
        base: the class after `extends`; empty if not declared.
        fields: name and declared type, sorted by name as Kryo writes them.
        constants: of an enum, in order.
    """

    name: str
    kind: ClassKind = ClassKind.CLASS
    parameters: tuple[str, ...] = ()
    fields: tuple[tuple[str, JavaType], ...] = ()
    constants: tuple[str, ...] = ()
    base: str = ""


@dataclass(frozen=True, eq=False)
class FieldLists:
    """Declared classes by name; compared by identity, so that lookups can be cached."""

    classes: Mapping[str, ClassDeclaration] = field(default_factory=dict)

    def find(self, name: str) -> ClassDeclaration | None:
        """Return the declaration of a class, with the fields of its declared super classes; or None."""
        if name not in self._complete:
            declared = self.classes.get(name)
            self._complete[name] = None if declared is None else self._inherit(declared)
        return self._complete[name]

    def explain(self, name: str) -> str:
        """Why `find` gives nothing for a class that is named; empty when nothing is known of the class at all."""
        return ""

    def list_subclasses(self, name: str) -> tuple[str, ...]:
        """Return the names of the declared classes that extend a class, directly or not, sorted."""
        return tuple(each for each in sorted(self.classes) if name in self._list_bases(each))

    def _list_bases(self, name: str) -> Iterator[str]:
        declared = self.classes.get(name)
        while declared is not None and declared.base:
            yield declared.base
            declared = self.classes.get(declared.base)

    @cached_property
    def _complete(self) -> dict[str, ClassDeclaration | None]:
        return {}

    def _inherit(self, declared: ClassDeclaration) -> ClassDeclaration:
        fields, line = list(declared.fields), [declared.name]
        above = self.classes.get(declared.base)
        while above is not None:
            if above.name in line:
                raise UsageError(f"class {declared.name} extends itself: {', '.join((*line, above.name))}")
            if len(line) > MAX_SUPER_CLASSES:
                raise UsageError(f"class {declared.name} has more than {MAX_SUPER_CLASSES} super classes")
            if above.parameters:
                raise UsageError(
                    f"class {declared.name} extends {above.name}, which has type parameters",
                    hint="List the inherited fields with their types, and leave out `extends`",
                )
            line.append(above.name)
            fields += above.fields
            above = self.classes.get(above.base)
        # Sorting keeps the order of equal names: those of the subclass come first.
        return replace(declared, fields=tuple(sorted(fields, key=lambda item: item[0])))


def load_classes(text: str) -> FieldLists:
    """Parse the YAML of a file of field lists (see above for its form).

    Raises:
        UsageError: not such a file; names the class and the field.
    """
    import yaml  # a large package; few give field lists

    from state_pipelines.storage.documents import parse_yaml

    try:
        # Every scalar stays text: a field may be called `on` or `null`.
        document = parse_yaml(text, as_texts=True)
    except yaml.YAMLError as error:
        raise UsageError(f"the field lists are not YAML: {error}") from None
    if not isinstance(document, dict):
        raise UsageError("the field lists are not a mapping of class names", hint="Write `class.Name:` and its fields")
    inline: dict[str, ClassDeclaration] = {}
    classes = [_declaration(str(key), body, inline) for key, body in document.items()]
    lists = FieldLists({**inline, **{declared.name: declared for declared in classes}})
    for declared in classes:
        lists.find(declared.name)
    return lists


def dump_classes(lists: FieldLists) -> str:
    """Mirror of `load_classes`."""
    document: dict[str, list[str] | list[dict[str, str]]] = {}
    for declared in lists.classes.values():
        parameters = f"<{', '.join(declared.parameters)}>" if declared.parameters else ""
        prefix = "" if declared.kind is ClassKind.CLASS else f"{declared.kind} "
        body: list[str] | list[dict[str, str]] = list(declared.constants)
        if not declared.constants:
            body = [{name: format_type(of)} for name, of in declared.fields]
        base = f" extends {declared.base}" if declared.base else ""
        document[f"{prefix}{declared.name}{parameters}{base}"] = body
    import yaml

    return yaml.safe_dump(document, sort_keys=False, width=120)


def format_type(declared: JavaType) -> str:
    """Return a type in the words of Java source, with full class names."""
    if declared.name == ARRAY:
        return f"{format_type(declared.arguments[0])}[]"
    arguments = f"<{', '.join(map(format_type, declared.arguments))}>" if declared.arguments else ""
    return f"{'? extends ' if declared.wildcard else ''}{declared.name}{arguments}"


def _declaration(key: str, body: object, inline: dict[str, ClassDeclaration]) -> ClassDeclaration:
    word = next((word for word in _KINDS if key.startswith(f"{word} ")), "class")
    head, kind = key.removeprefix(f"{word} ").strip(), _KINDS[word]
    named = re.fullmatch(r"([\w.$]+)\s*(?:<([\w\s,]+)>)?(?:\s+extends\s+([\w.$]+))?", head)
    if named is None:
        raise UsageError(f"{key!r} is not a class name", hint=f"Kinds before a name are: {', '.join(_KINDS)}")
    name = _FULL_NAMES.get(named[1], named[1])
    parameters = tuple(each.strip() for each in named[2].split(",")) if named[2] else ()
    if kind in _ENUMS:
        constants = _split(body)
        if not constants:
            raise UsageError(f"enum {name} has no constants", hint="List them in the order of the source")
        return ClassDeclaration(name, kind, constants=constants)
    fields = [
        (member, _parse_type(declared, f"{name}.{member}", parameters, inline))
        for member, declared in _members(name, body)
    ]
    base = _FULL_NAMES.get(named[3] or "", named[3] or "")
    return ClassDeclaration(name, kind, parameters, tuple(sorted(fields, key=lambda item: item[0])), base=base)


def _split(body: object) -> tuple[str, ...]:
    names: Iterable[object] = body if isinstance(body, list) else str(body or "").strip("()").split(",")
    return tuple(str(name).strip() for name in names if str(name).strip())


def _members(name: str, body: object) -> list[tuple[str, str]]:
    """Return the fields from a list of `name: type` (as text or one-entry mappings) or from a mapping."""
    if isinstance(body, dict):
        return [(str(key), str(value)) for key, value in body.items()]
    if body in (None, ""):
        return []
    members: list[tuple[str, str]] = []
    for item in body if isinstance(body, list) else [body]:
        if isinstance(item, dict):
            members += [(str(key), str(value)) for key, value in item.items()]
            continue
        member, colon, declared = str(item).partition(":")
        if not colon:
            raise UsageError(f"{item!r} in class {name} is not a field", hint="Write `name: type`")
        members.append((member.strip(), declared.strip()))
    return members


def parse_type(text: str) -> JavaType:
    """Return a type in the words of Java source.

    Raises:
        UsageError: not a type.
    """
    return _parse_type(text, text, (), {})


def _parse_type(text: str, where: str, parameters: tuple[str, ...], inline: dict[str, ClassDeclaration]) -> JavaType:
    tokens = _TOKEN.findall(text)
    complete = "".join(re.sub(r"\s", "", token) for token in tokens) == re.sub(r"\s", "", text)
    parser = _TypeParser(tokens, parameters, inline)
    try:
        declared = parser.type()
    except IndexError:
        complete = False
    if not complete or parser.tokens:
        raise UsageError(f"{text!r} of {where} is not a Java type", hint="Such as int, String, List<String>, long[]")
    return declared


class _TypeParser:
    def __init__(self, tokens: list[str], parameters: tuple[str, ...], inline: dict[str, ClassDeclaration]) -> None:
        self.tokens = tokens
        self.parameters = parameters
        self.inline = inline
        self.depth = 0

    def type(self) -> JavaType:
        self.depth += 1
        declared = self._type()
        self.depth -= 1
        return declared

    def _enter(self, depth: int) -> None:
        if depth > MAX_TYPE_DEPTH:
            raise UsageError(f"a Java type nests deeper than {MAX_TYPE_DEPTH}")

    def _type(self) -> JavaType:
        self._enter(self.depth)
        name = self.tokens.pop(0)
        if name == "?":
            return self._wildcard()
        if not re.fullmatch(r"[\w.$]+", name):
            raise IndexError
        if name not in self.parameters:
            name = _FULL_NAMES.get(name, name)
        if self._next("("):
            self.inline[name] = ClassDeclaration(name, ClassKind.ENUM, constants=tuple(self._list(")")))
        arguments = tuple(self._types()) if self._next("<") else ()
        declared = JavaType(name, arguments)
        arrays = 0
        while self.tokens and self.tokens[0].startswith("["):
            self.tokens.pop(0)
            arrays += 1
            self._enter(self.depth + arrays)
            declared = JavaType(ARRAY, (declared,))
        return declared

    def _wildcard(self) -> JavaType:
        if self.tokens[0] not in ("extends", "super"):
            return JavaType(OBJECT_NAME, wildcard=True)
        bound, of = self.tokens.pop(0), self.type()
        if bound == "super":
            return JavaType(OBJECT_NAME, wildcard=True)
        return JavaType(of.name, of.arguments, wildcard=True)

    def _next(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def _types(self) -> Iterable[JavaType]:
        yield self.type()
        while self._next(","):
            yield self.type()
        if not self._next(">"):
            raise IndexError

    def _list(self, end: str) -> Iterable[str]:
        while not self._next(end):
            token = self.tokens.pop(0)
            if token != ",":
                yield token
