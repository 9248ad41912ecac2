"""Serializers that Flink makes for Java classes: POJO, record, enum, tuple, Avro, collection, or Kryo.

A type that the classes of a job do not determine is unresolved, with the reason and the remedy.
Source: `TypeExtractor` (`createTypeInfoWithTypeHierarchy`, `privateGetForClass`, `analyzePojo`, `isValidPojoField`),
`PojoTypeInfo`, `NullableListTypeInfo`, `NullableMapTypeInfo`, `NullableSetTypeInfo`, `PojoSerializer` of 1.20 and 2.2.
Records are POJOs since 1.19; parameterized `List`, `Map` and `Set` are no longer Kryo since 2.0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from state_pipelines.codecs.kryo.classes import ARRAY, OBJECT_NAME, PRIMITIVES, JavaType
from state_pipelines.javaclasses import BOXES, RECORD_NAME, JavaClass, JavaField, JavaMethod, name_class
from state_pipelines.serializers import build
from state_pipelines.serializers import java_types as basics
from state_pipelines.serializers.java_types import KryoConfig
from state_pipelines.serializers.text import describe, quote
from state_pipelines.serializers.tree import BasicKind, Enum, Kryo, Opaque, Pojo, Serializer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from state_pipelines.javaclasses import ClassPath


@dataclass(frozen=True, kw_only=True)
class UnresolvedType(Opaque):
    """A serializer that cannot be derived from the classes; comparisons with it are undetermined.

    Attributes:
        reason: why it cannot be derived.
        remedy: information that it could be derived from.
    """

    snapshot_class: str = ""
    raw: bytes = b""
    reason: str
    remedy: str = ""


@describe.register
def _describe_unresolved(node: UnresolvedType) -> str:
    return f"Unresolved<{quote(node.unknown_class)}>"


def unknown_arguments(found: JavaClass) -> UnresolvedType:
    """Make the unresolved serializer of a generic class without type arguments."""
    parameters = ", ".join(found.parameters)
    return UnresolvedType(
        unknown_class=found.name,
        reason=f"{found.name} has unbound type parameters ({parameters})",
        remedy=f"Name the type with its arguments: {found.name}<…>",
    )


def made_by_factory(what: str) -> UnresolvedType:
    """Make the unresolved serializer of a class or field with a type factory, which only Java can run."""
    return UnresolvedType(
        unknown_class=what,
        reason="a factory (`@TypeInfo` or the configuration) makes its serializer, which only Java can run",
        remedy="Name its type in readable form in a description of the job",
    )


def generated_by_avro(found: JavaClass) -> Serializer:
    """Make the serializer of a class that Avro generated; it is unresolved if the schema cannot be read."""
    if found.schema_json:
        return build.avro(found.name, found.schema_json)
    return UnresolvedType(
        unknown_class=found.name,
        reason=f"the Avro schema of {found.name} cannot be read from its class file",
        remedy="Give the schema as a file",
    )


_FLINK_2, _RECORDS = (2, 0), (1, 19)
_BASIC = {
    "java.lang.String": BasicKind.STRING,
    "java.lang.Void": BasicKind.VOID,
    "void": BasicKind.VOID,
    "java.math.BigInteger": BasicKind.BIG_INT,
    "java.math.BigDecimal": BasicKind.BIG_DEC,
    "java.util.Date": BasicKind.DATE,
    "java.sql.Date": BasicKind.SQL_DATE,
    "java.sql.Time": BasicKind.SQL_TIME,
    "java.sql.Timestamp": BasicKind.SQL_TIMESTAMP,
    "java.time.Instant": BasicKind.INSTANT,
    **{name: name.capitalize() for name in PRIMITIVES},
    **{box: name.capitalize() for name, box in BOXES.items()},
}
_BASIC_COMPONENTS = frozenset(BOXES.values())
_LISTS = frozenset({"java.util.List", "java.util.Collection", "java.util.SequencedCollection", "java.lang.Iterable"})
_MAPS, _SETS = frozenset({"java.util.Map"}), frozenset({"java.util.Set"})
_TUPLE, _VALUES, _EITHER = "org.apache.flink.api.java.tuple.Tuple", "org.apache.flink.types.", "Either"
_VARIANT = "org.apache.flink.types.variant.Variant"
_AVRO_BASE = "org.apache.avro.specific.SpecificRecordBase"
_JDK = ("java.", "javax.", "jdk.")
_JDK_ENUMS = {
    "java.util.concurrent.TimeUnit": "NANOSECONDS MICROSECONDS MILLISECONDS SECONDS MINUTES HOURS DAYS",
    "java.time.DayOfWeek": "MONDAY TUESDAY WEDNESDAY THURSDAY FRIDAY SATURDAY SUNDAY",
    "java.time.Month": "JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER",
    "java.math.RoundingMode": "UP DOWN CEILING FLOOR HALF_UP HALF_DOWN HALF_EVEN UNNECESSARY",
    "java.time.temporal.ChronoUnit": "NANOS MICROS MILLIS SECONDS MINUTES HOURS HALF_DAYS DAYS WEEKS MONTHS YEARS "
    "DECADES CENTURIES MILLENNIA ERAS FOREVER",
}

Bindings = dict[str, JavaType | None]
"""Bindings of the type parameters of a class; None for unbound ones."""


_OWN_FORMAT = ("readObject", "writeObject")


@dataclass(frozen=True)
class PojoProblem:
    """Reason why Flink does not treat a class as a POJO.

    Attributes:
        reason: the rule that the class breaks.
        remedy: change that would make the class a POJO.
    """

    reason: str
    remedy: str


class _InvalidTypeError(Exception):
    """Flink's `InvalidTypesException`: the innermost field around the type becomes a generic type."""


@dataclass(frozen=True, eq=False)
class TypeExtraction:
    """Extraction of serializers from Java classes, as Flink's `TypeExtractor` does it.

    Attributes:
        classes: class path in which classes are looked up.
        release: release of Flink, (major, minor).
        carried: serializers of the old state by class name, for classes that are not on the class path, and for the
            registrations of Kryo.
        subclasses: registered subclasses in the old state, by POJO class.
        registered: all registered POJO types, if the configuration is known; they take precedence over `subclasses`.
        factories: classes whose serializers are made by factories of the configuration.
        kryo: Kryo entries, if the configuration is known; they take precedence over the registrations in `carried`.
        assumed: classes that were taken from `carried`, because they are not on the class path; filled during the
            extraction.
    """

    classes: ClassPath
    release: tuple[int, int]
    carried: Mapping[str, Serializer] = field(default_factory=dict)
    subclasses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    registered: tuple[str, ...] | None = None
    factories: frozenset[str] = frozenset()
    kryo: KryoConfig | None = None
    assumed: set[str] = field(default_factory=set)
    _active: list[JavaType] = field(default_factory=list)

    def extract(self, of: JavaType) -> Serializer:
        """Return the serializer of a type, such as that of a state descriptor made with `TypeInformation.of`."""
        found = self._find(of.name)
        if found is not None and found.parameters and not of.arguments:
            return unknown_arguments(found)
        try:
            return self._start(of)
        except _InvalidTypeError as error:
            return UnresolvedType(
                unknown_class=name_class(of), reason=f"Flink does not extract the type {of.name}: {error}"
            )

    def _find(self, name: str) -> JavaClass | None:
        return _make_tuple_class(name) or self.classes.find(name)

    def _start(self, of: JavaType) -> Serializer:
        if of in self._active:
            return UnresolvedType(
                unknown_class=name_class(of),
                reason=f"{of.name} contains itself in a collection, which Flink 2 does not extract (it recurses)",
                remedy="Name the type by a factory (`@TypeInfo`)",
            )
        self._active.append(of)
        try:
            return self._create(of, {}, (name_class(of),))
        finally:
            self._active.pop()

    def _create(self, of: JavaType, bound: Bindings, above: tuple[str, ...]) -> Serializer:
        if of.wildcard:
            raise _InvalidTypeError("it is a wildcard")
        if of.name in bound:
            bound_type = bound[of.name]
            if bound_type is None:
                raise _InvalidTypeError(f"the type parameter {of.name} is unbound")
            return self._create(bound_type, {}, above)
        if of.name == ARRAY:
            return self._create_array(of, bound, above)
        if of.name == f"{_TUPLE}0":
            return build.basic(BasicKind.TUPLE_0)
        line = list(self._list_tuple_line(of, bound))
        if line:
            return self._create_tuple(of, line, bound, above)
        return self._create_class(of, bound, above)

    def _create_array(self, of: JavaType, bound: Bindings, above: tuple[str, ...]) -> Serializer:
        element = _substitute(of.arguments[0], bound)
        if element != of.arguments[0]:
            # Reflection gives a `GenericArrayType`, which Flink does not look up among the basic arrays.
            return build.generic_array(name_class(element), self._create(of.arguments[0], bound, above))
        if element.name in PRIMITIVES:
            return build.basic(f"{element.name.capitalize()}PrimitiveArray")
        if above.count(name_class(of)) > 1:
            return self._kryo(name_class(of))
        if element.name == "java.lang.String":
            return build.basic(BasicKind.STRING_ARRAY)
        if element.name in _BASIC_COMPONENTS:
            return build.generic_array(element.name, build.basic(_BASIC[element.name]))
        return build.generic_array(name_class(element), self._create(of.arguments[0], bound, above))

    def _list_tuple_line(self, of: JavaType, bound: Bindings) -> Iterator[tuple[JavaType, Bindings]]:
        """Yield the type and its super classes up to Flink's TupleN; nothing if TupleN is not among them."""
        line, current, scope = [], of, bound
        while not current.name.startswith(_TUPLE):
            found = self._find(current.name)
            if found is None or found.parent is None:
                return
            scope = self._bind(found, current, scope)
            line.append((found.parent, scope))
            current = found.parent
        yield of, bound
        yield from line

    def _create_tuple(
        self, of: JavaType, line: list[tuple[JavaType, Bindings]], bound: Bindings, above: tuple[str, ...]
    ) -> Serializer:
        base, scope = line[-1]
        if not base.arguments:
            raise _InvalidTypeError("a tuple needs its type arguments")
        own = self._find(of.name) if len(line) > 1 else None
        if own is not None and any(
            each.is_kept for kind, _ in line[:-1] if (found := self._find(kind.name)) for each in found.fields
        ):
            return self._create_pojo(own, self._bind(own, of, bound), above)
        above = (*above, *(kind.name for kind, _ in line))
        fields = []
        for argument in base.arguments:
            bound_type = _substitute(argument, scope)
            fields.append(self._create(bound_type, _unbound(bound_type, scope), (*above, name_class(bound_type))))
        return build.tuple_of(*fields, tuple_class=of.name)

    def _create_class(self, of: JavaType, bound: Bindings, above: tuple[str, ...]) -> Serializer:
        name = of.name
        found = None if name in _BASIC else self._find(name)
        if name in self.factories or (found is not None and self._has_factory(found)):
            return made_by_factory(name)
        if name == f"{_VALUES}{_EITHER}" and len(of.arguments) == 2:
            return build.either(*(self._create(each, bound, above) for each in of.arguments))
        if name in (OBJECT_NAME, "java.lang.Class") or above.count(name) > 1:
            return self._kryo(name)
        if name in _BASIC:
            return build.basic(_BASIC[name])
        simple = name.removeprefix(_VALUES)
        if name == f"{_VALUES}{simple}" and simple.endswith("Value") and simple in basics.SNAPSHOT_CLASSES:
            return build.basic(simple)
        if name == _VARIANT and self.release >= _FLINK_2:
            return build.basic(BasicKind.VARIANT)
        if found is not None and found.is_enum:
            return build.enum(name, *found.constants)
        if name in _JDK_ENUMS:
            return build.enum(name, *_JDK_ENUMS[name].split())
        if self.release >= _FLINK_2 and of.arguments and all(_is_class(each, bound) for each in of.arguments):
            collection = self._create_collection(of)
            if collection is not None:
                return collection
        if name.startswith(_JDK):
            return self._kryo(name)
        if found is None:
            return self._take_over(name)
        if any(each.parent is not None and each.parent.name == _AVRO_BASE for each in self._list_line(found)):
            return generated_by_avro(found)
        if found.is_interface:
            return self._kryo(name)
        return self._create_pojo(found, self._bind(found, of, bound), above)

    def _create_collection(self, of: JavaType) -> Serializer | None:
        """Return the serializer that Flink 2 extracts for a List, Map or Set with type arguments; None for others."""
        if of.name in _MAPS:
            key, value = map(self._start, of.arguments)
            return build.nullable(build.map_of(_nullable(key), value))
        if of.name in _LISTS:
            return build.nullable(build.list_of(_nullable(self._start(of.arguments[0]))))
        if of.name in _SETS:
            return build.nullable(build.set_of(self._start(of.arguments[0])))
        return None

    def find_pojo_problem(self, name: str) -> PojoProblem | None:
        """Return why Flink does not treat a class as a POJO; None if it does, for enums, and if that is not known."""
        found = self._find(name)
        if found is None or found.is_enum:
            return None
        return self._find_problem(found, list(self._list_line(found)))

    def _find_problem(self, found: JavaClass, line: list[JavaClass]) -> PojoProblem | None:
        """Return the first rule of `TypeExtractor.analyzePojo` that a class breaks; None if it breaks none.

        `line` is the class and its super classes, as far as they are known. If one is missing, and is not of the JDK,
        the result is None: nothing can be said.
        """
        if found.is_interface:
            return PojoProblem("it is an interface", "Use a class as the type")
        if not found.is_public:
            return PojoProblem("the class is not public", "Make it public")
        last = line[-1].parent
        if last is not None and last.name not in (OBJECT_NAME, RECORD_NAME):
            # This super class has not been found. If it is one of the JDK, it has private fields without accessors, so
            # the class is no POJO. Otherwise nothing is known about it.
            reason, remedy = f"its super class {last.name} is one of the JDK", "Hold the object in a field instead"
            return PojoProblem(reason, remedy) if last.name.startswith(_JDK) else None
        owned = [each for owner in line for each in owner.fields if each.is_kept]
        names = [each.name for each in owned]
        twice = next((name for name in names if names.count(name) > 1), None)
        if not names:
            return PojoProblem("it has no fields that are neither static nor transient", "Give it one")
        if twice is not None:
            return PojoProblem(f"the field {twice} is declared twice in the hierarchy", "Rename one of them")
        own = next((each.name for owner in line for each in owner.methods if each.name in _OWN_FORMAT), None)
        if own is not None:
            return PojoProblem(f"it has a method {own}", "Remove that method")
        record = found.is_record and self.release >= _RECORDS
        for each in () if record else owned:
            getter, setter = (True, True) if each.is_public else self._find_accessors(each, found, line)
            if not (getter and setter):
                return _explain_accessors(each, getter=getter, setter=setter)
        default = [each for each in found.methods if each.name == "<init>" and not each.parameters]
        if not (default[0].is_public if default else found.is_abstract or record):
            reason = "its constructor without arguments is not public" if default else ""
            return PojoProblem(reason or "it has no constructor without arguments", "Give it a public one")
        return None

    def _create_pojo(self, found: JavaClass, bound: Bindings, above: tuple[str, ...]) -> Serializer:
        line = list(self._list_line(found))
        if self._find_problem(found, line) is not None:
            return self._kryo(found.name)
        last = line[-1].parent
        if last is not None and last.name not in (OBJECT_NAME, RECORD_NAME):
            return UnresolvedType(
                unknown_class=found.name,
                reason=f"{last.name}, a super class of {found.name}, is not among the given classes",
                remedy=f"Give the jar with {last.name} too",
            )
        scopes = self._bind_line(line, bound)
        owned = [(each, owner, scopes[owner.name]) for owner in line for each in owner.fields if each.is_kept]
        above = (*above, *(each.name for each in line))
        fields = {each.name: self._create_field(each, scope, above) for each, _, scope in owned}
        owners = {each.name: owner.name for each, owner, _ in owned}
        subclasses = {name: self._extract_subclass(name) for name in self._list_subclasses(found.name)}
        return build.pojo(found.name, fields, declared_by=owners, registered=subclasses)

    def _create_field(self, each: JavaField, scope: Bindings, above: tuple[str, ...]) -> Serializer:
        if each.has_factory:
            return made_by_factory(f"field {each.name}")
        try:
            return self._create(each.type, scope, (*above, name_class(each.type)))
        except _InvalidTypeError:
            is_class = each.type.name not in scope and each.type.name != ARRAY
            return self._kryo(each.type.name if is_class else OBJECT_NAME)

    def _find_accessors(self, each: JavaField, found: JavaClass, line: list[JavaClass]) -> tuple[bool, bool]:
        """Return (has a getter, has a setter) of a field; underscores and case of names do not matter."""
        plain = _simplify(each.name)
        raws = {each.raw, BOXES.get(each.raw, each.raw)}
        has_getter = has_setter = False
        interfaces = (self._find(name) for owner in line for name in owner.interfaces)
        for owner in (*line, *filter(None, interfaces)):
            for method in owner.methods:
                if not method.is_public or method.name == "<init>":
                    continue
                name = _simplify(method.name)
                if len(method.parameters) == 0 and name in (f"get{plain}", f"is{plain}", plain):
                    has_getter |= method.returns in raws or method.generic_returns == each.type
                setters = {f"set{plain}", f"{plain}_$eq"}
                if plain.startswith("is") and self.release >= _FLINK_2:
                    setters.add(f"set{plain[2:]}")
                if len(method.parameters) == 1 and name in setters and method.returns in ("void", found.name):
                    has_setter |= method.parameters[0] in raws or method.generic_parameters == (each.type,)
        return has_getter, has_setter

    def _list_line(self, found: JavaClass) -> Iterator[JavaClass]:
        """Yield the class and its super classes, as far as they can be looked up."""
        current: JavaClass | None = found
        while current is not None and current.name != OBJECT_NAME:
            yield current
            parent = current.parent
            current = None if parent is None or parent.name == RECORD_NAME else self._find(parent.name)

    def _bind(self, found: JavaClass, of: JavaType, scope: Bindings) -> Bindings:
        if len(of.arguments) != len(found.parameters):
            return dict.fromkeys(found.parameters)
        bound_type: Bindings = {}
        for name, argument in zip(found.parameters, of.arguments, strict=True):
            closed = _substitute(argument, scope)
            bound_type[name] = None if _unbound(closed, scope) else closed
        return bound_type

    def _bind_line(self, line: list[JavaClass], bound: Bindings) -> dict[str, Bindings]:
        scopes = {line[0].name: bound}
        for below, found in pairwise(line):
            if below.parent is not None:
                scopes[found.name] = self._bind(found, below.parent, scopes[below.name])
        return scopes

    def _has_factory(self, found: JavaClass) -> bool:
        return any(each.has_factory or each.name in self.factories for each in self._list_line(found))

    def _list_subclasses(self, name: str) -> tuple[str, ...]:
        if self.registered is None:
            return self.subclasses.get(name, ())
        return tuple(each for each in self.registered if each != name and self._is_subclass(each, name))

    def _is_subclass(self, name: str, parent: str) -> bool:
        found = self._find(name)
        if found is None:
            return name in self.subclasses.get(parent, ())
        return any(each.name == parent for each in self._list_line(found))

    def _extract_subclass(self, name: str) -> Serializer:
        return self.extract(JavaType(name))

    def _take_over(self, name: str) -> Serializer:
        if name in self.carried:
            self.assumed.add(name)
            return self.carried[name]
        return UnresolvedType(
            unknown_class=name,
            reason=f"the class {name} is not among the given classes",
            remedy=f"Give the jar or the directory with {name}, or declare the class",
        )

    def _kryo(self, name: str) -> Serializer:
        carried = self.carried.get(name)
        if self.kryo is not None:
            return self.configure_kryo(name)
        return carried if isinstance(carried, Kryo) else Kryo(type_class=name)

    def configure_kryo(self, name: str) -> Kryo:
        """Return the Kryo serializer of a class with the registrations of the configuration, which must be known."""
        # A Kryo serializer of the old state shows whether Avro is on the class path, which adds registrations.
        like = next((each for each in self.carried.values() if isinstance(each, Kryo)), None)
        return (self.kryo or KryoConfig()).configure(name, like)


def _explain_accessors(each: JavaField, *, getter: bool, setter: bool) -> PojoProblem:
    if getter:
        missing = "has a getter but no public setter"
    else:
        missing = "has a setter but no public getter" if setter else "has neither a public getter nor a public setter"
    word = "final field" if each.is_final else "field"
    remedy = f"Make {each.name} public, or give it {'a' if getter or setter else 'a getter and a'} "
    remedy += "setter" if not setter else "getter"
    return PojoProblem(f"the {word} {each.name} is not public and {missing}", remedy)


def carry_over(trees: Iterator[Serializer]) -> tuple[dict[str, Serializer], dict[str, tuple[str, ...]]]:
    """Collect serializers and registered subclasses by class from the old state, for classes that are not given."""
    carried: dict[str, Serializer] = {}
    subclasses: dict[str, tuple[str, ...]] = {}
    pending = list(trees)
    while pending:
        node = pending.pop()
        match node:
            case Pojo():
                carried.setdefault(node.pojo_class, node)
                subclasses.setdefault(node.pojo_class, tuple(each.class_name for each in node.registered))
            case Kryo():
                carried.setdefault(node.type_class, node)
            case Enum():
                carried.setdefault(node.enum_class, node)
        pending += node.nested
    return carried, subclasses


def _make_tuple_class(name: str) -> JavaClass | None:
    """Describe Flink's class TupleN, for subclasses that add fields to it; return None for other names."""
    size = name.removeprefix(_TUPLE)
    if size == name or not size.isdigit():
        return None
    parameters = tuple(f"T{index}" for index in range(int(size)))
    fields = tuple(JavaField(f"f{index}", JavaType(each), OBJECT_NAME) for index, each in enumerate(parameters))
    constructor = JavaMethod("<init>", (), "void", is_public=True)
    return JavaClass(name, parameters=parameters, fields=fields, methods=(constructor,))


def _substitute(of: JavaType, scope: Bindings) -> JavaType:
    """Return the type with type parameters replaced by their bindings in `scope`, if they have any."""
    bound_type = scope.get(of.name)
    if bound_type is not None:
        return JavaType(bound_type.name, bound_type.arguments, of.wildcard or bound_type.wildcard)
    return JavaType(of.name, tuple(_substitute(each, scope) for each in of.arguments), of.wildcard)


def _unbound(of: JavaType, scope: Bindings) -> Bindings:
    """Return the type parameters in a type that have no binding in `scope`."""
    left: Bindings = {of.name: None} if of.name in scope and scope[of.name] is None else {}
    for each in of.arguments:
        left |= _unbound(each, scope)
    return left


def _is_class(of: JavaType, bound: Bindings) -> bool:
    """Return whether Java reflection gives a `Class` for a type: no wildcard, no type parameter, no type arguments."""
    if of.name == ARRAY:
        return _is_class(of.arguments[0], bound)
    return not of.wildcard and not of.arguments and of.name not in bound


def _nullable(node: Serializer) -> Serializer:
    return build.nullable(node)


def _simplify(name: str) -> str:
    if name.endswith("_$eq"):
        return f"{name[:-4].replace('_', '').lower()}_$eq"
    return name.replace("_", "").lower()
