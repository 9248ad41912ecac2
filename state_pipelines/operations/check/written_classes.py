"""Classes whose fields no serializer snapshot stores, so that Flink does not verify them on restore.

Kryo writes objects field by field and stores the name of the class alone. `PojoSerializer` writes objects of subclasses
that are neither registered nor listed in its snapshot with the serializer that Flink makes of the class at run time.
A restore with other fields succeeds, and reading fails later, or gives wrong values. Class files and field lists of
both jobs say what the fields were and are.

Source: `KryoSerializer`, `PojoSerializer.deserialize` (flag `IS_SUBCLASS`), `PojoSerializerSnapshot`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.kryo.classes import (
    ARRAY,
    OBJECT_NAME,
    PRIMITIVES,
    SHAPES,
    ClassKind,
    FieldLists,
    JavaType,
    format_type,
)
from state_pipelines.codecs.kryo.values import component_type
from state_pipelines.javaclasses.classpath import ClassFieldLists
from state_pipelines.serializers.compatibility import Finding, Outcome
from state_pipelines.serializers.compatibility.rules import list_steps
from state_pipelines.serializers.text import quote
from state_pipelines.serializers.tree import Enum, Kryo, ListOf, MapOf, Nullable, Pojo, Serializer, SetOf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from state_pipelines.codecs.kryo.classes import ClassDeclaration
    from state_pipelines.operations.check.data_classes import DataClasses

_LIBRARIES = ("java.", "javax.", "jdk.", "sun.", "scala.", "org.apache.flink.", "org.apache.avro.")
"""Packages of Java, Scala, Flink and Avro: the layout of their classes follows from the releases of both jobs."""
_OPEN = frozenset(
    {
        OBJECT_NAME,
        "java.io.Serializable",
        "java.lang.CharSequence",
        "java.lang.Cloneable",
        "java.lang.Comparable",
        "java.lang.Number",
        "java.lang.Throwable",
    }
)
_COLLECTIONS = frozenset(f"java.util.{name}" for name in ("Collection", "List", "Map", "Queue", "Set"))
_JAVA_SERIALIZER = "com.esotericsoftware.kryo.serializers.JavaSerializer"
_FLINKS_JAVA_SERIALIZER = "org.apache.flink.api.java.typeutils.runtime.kryo.JavaSerializer"
_GIVE_BOTH = (
    "Give the classes of the snapshot by --classes and those of the new job by --job-classes (jars, class files or "
    "field lists)"
)


@dataclass(frozen=True)
class WrittenClasses:
    """Known classes of two jobs.

    Attributes:
        old: classes of the job that took the snapshot.
        new: classes of the new job.
        same_code: the new job has the classes of the old one.
        same_kryo: both run the same major version of Kryo.
    """

    old: FieldLists = field(default_factory=FieldLists)
    new: FieldLists = field(default_factory=FieldLists)
    same_code: bool = False
    same_kryo: bool = True

    def judge(
        self, path: str, old: Serializer, data: DataClasses | None, *, lists_subclasses: bool, changed: bool
    ) -> Iterator[Finding]:
        """The findings about classes that the serializer of a state writes and its snapshot does not describe.

        Args:
            path: of the serializer.
            old: the serializer of the snapshot.
            data: the classes in the data; None where the data were not read.
            lists_subclasses: the serializer has met every object of the data (RocksDB), so it lists their classes.
            changed: other findings about the state say that its POJOs are not as they were.
        """
        walk = _Walk(self)
        walk.serializer(old, None, path, lists_subclasses=lists_subclasses)
        yield from walk.java_serializers
        if self.same_code and self.same_kryo:
            return
        if not self.same_code:
            for name, where in walk.classes.items():
                yield from self._compare(name, where)
        openings = [] if self.same_code and not walk.pojos else walk.openings
        if not openings:
            return
        if data is None:
            yield from (
                _undetermined(where, reason, f"Look into the data with --scan. {_GIVE_BOTH}")
                for where, reason in openings
            )
            return
        where = min((where for where, _ in openings), key=len)
        findings = [
            finding
            for name in sorted(data.names - walk.listed - walk.classes.keys())
            if not name.startswith(_LIBRARIES)
            for finding in self._judge_found(name, where, is_pojo=bool(walk.pojos), changed=changed)
        ]
        yield from findings
        if not findings:
            yield from (
                _undetermined(where, f"not all data can be decoded: {each}", _GIVE_BOTH) for each in data.undecoded
            )

    def _judge_found(self, name: str, where: str, *, is_pojo: bool, changed: bool) -> Iterator[Finding]:
        if self.same_code:
            yield _undetermined(
                where, f"the data hold objects of {name}, which the snapshot does not list", "Register the class"
            )
            return
        findings = list(self._compare(name, where))
        yield from findings
        bases = self._list_bases(name)
        if not findings and changed and is_pojo and bases:
            yield Finding(
                path=where,
                old=name,
                new=name,
                outcome=Outcome.INCOMPATIBLE,
                reason=f"the data hold objects of {name}, which the snapshot does not list: Flink reads them with the "
                f"new fields of {bases[0]}, which are not those that wrote them",
                remedy=f"Migrate the state with {name} among --classes, which rewrites these objects too",
                unnoticed=True,
            )

    def _list_bases(self, name: str) -> list[str]:
        declared = self.old.classes.get(name)
        return [declared.base] if declared is not None and declared.base else []

    def _compare(self, name: str, where: str) -> Iterator[Finding]:
        """Yield findings about one class; nothing when its fields are known and the same."""
        before, after = self.old.find(name), self.new.find(name)
        if before is None or after is None:
            missing = "the snapshot" if before is None else "the new job"
            if before is None and after is None:
                missing = "either job"
            reasons = [lists.explain(name) for lists in (self.old, self.new)]
            explained = next((f" ({reason})" for reason in reasons if reason), "")
            yield _undetermined(
                where,
                f"Flink does not verify the fields of {name}, and those of {missing} are not known{explained}",
                _GIVE_BOTH,
            )
        elif (difference := _find_difference(before, after)) is not None:
            yield Finding(
                path=where,
                old=_describe(before),
                new=_describe(after),
                outcome=Outcome.INCOMPATIBLE,
                reason=f"{difference} of {name}, which Flink does not verify: it fails while reading, or reads wrong "
                "values",
                remedy=f"Keep the fields of {name}, or change its serializer family (to POJO or Avro) in a migration",
                unnoticed=True,
            )


class _Walk:
    """Walk over the tree of a serializer that gathers the written classes, with the declared types of both jobs."""

    def __init__(self, known: WrittenClasses) -> None:
        self.known = known
        self.classes: dict[str, str] = {}
        self.openings: list[tuple[str, str]] = []
        self.listed: set[str] = set()
        self.pojos: set[str] = set()
        self.java_serializers: list[Finding] = []

    def serializer(self, node: Serializer, declared: JavaType | None, path: str, *, lists_subclasses: bool) -> None:
        """Walk over a serializer; `declared` is the Java type of its values, as far as known."""
        match node:
            case Kryo():
                self._kryo(node, declared, path)
            case Pojo():
                self._pojo(node, path, lists_subclasses=lists_subclasses)
            case Nullable():
                self.serializer(node.inner, declared, path, lists_subclasses=lists_subclasses)
            case _:
                if isinstance(node, Enum):
                    self.listed.add(node.enum_class)
                arguments: tuple[JavaType | None, ...] = (None,) * len(node.nested)
                if isinstance(node, ListOf | SetOf | MapOf) and declared and len(declared.arguments) == len(arguments):
                    arguments = declared.arguments
                for step, nested, of in zip(list_steps(node), node.nested, arguments, strict=True):
                    self.serializer(nested, of, path + step, lists_subclasses=lists_subclasses)

    def _pojo(self, node: Pojo, path: str, *, lists_subclasses: bool) -> None:
        subclasses = (*node.registered, *node.non_registered)
        self.listed |= {node.pojo_class, *(each.class_name for each in subclasses)}
        for each in node.fields:
            if each.serializer is not None:
                declared = self._find_field(each.declaring_class or node.pojo_class, each.name)
                where = f"{path}.{quote(each.name)}"
                self.serializer(each.serializer, declared, where, lists_subclasses=lists_subclasses)
        for subclass in subclasses:
            if subclass.serializer is not None:
                where = f"{path}({subclass.class_name})"
                self.serializer(subclass.serializer, None, where, lists_subclasses=lists_subclasses)
        if not lists_subclasses:
            unlisted = self._find_unlisted(node.pojo_class)
            if unlisted is None or unlisted:
                names = f" ({', '.join(unlisted)})" if unlisted else ""
                self.pojos.add(node.pojo_class)
                reason = f"the data may hold subclasses of {node.pojo_class} that the snapshot does not list{names}"
                self.openings.append((path, reason))

    def _find_unlisted(self, name: str) -> list[str] | None:
        """Find subclasses that the snapshot does not list; None where they are not known."""
        found: set[str] = set()
        known = False
        for lists in (self.known.old, self.known.new):
            declared = lists.classes.get(name)
            known |= declared is not None and (
                declared.kind in (ClassKind.FINAL, ClassKind.RECORD) or _has_class_files(lists)
            )
            found |= set(lists.list_subclasses(name))
        return sorted(found - self.listed) if known or found else None

    def _find_field(self, class_name: str, name: str) -> JavaType | None:
        for lists in (self.known.new, self.known.old):
            declared = lists.classes.get(class_name)
            found = dict(declared.fields).get(name) if declared is not None else None
            if found is not None:
                return found
        return None

    def _kryo(self, node: Kryo, declared: JavaType | None, path: str) -> None:
        custom = dict(_list_custom(node))
        matches = declared is not None and declared.name == node.type_class
        self._type(declared if declared is not None and matches else JavaType(node.type_class), path, custom, {})

    def _type(self, of: JavaType, path: str, custom: dict[str, str], seen: dict[JavaType, None]) -> None:
        if of in seen or of.name in PRIMITIVES:
            return
        seen[of] = None
        if of.name in custom:
            if custom[of.name] == _JAVA_SERIALIZER:
                self.java_serializers.append(_refuse_java_serializer(of.name, path))
            return
        name, component = of.name, component_type(of.name)
        if component is not None:
            self._type(component, path, custom, seen)
        elif name in _OPEN or of.wildcard:
            self.openings.append((path, f"Kryo writes objects of any class where {format_type(of)} is declared"))
        elif name == ARRAY or name.startswith(_LIBRARIES):
            if not of.arguments and _is_container(name):
                self.openings.append((path, f"Kryo writes elements of any class into {name}"))
            for each in of.arguments:
                self._type(each, path, custom, seen)
        else:
            self._user_class(name, path, custom, seen)

    def _user_class(self, name: str, path: str, custom: dict[str, str], seen: dict[JavaType, None]) -> None:
        self.classes.setdefault(name, path)
        for lists in (self.known.old, self.known.new):
            found = lists.find(name)
            if found is None:
                continue
            parameters = set(found.parameters)
            for _, of in found.fields:
                if of.name in parameters:
                    self.openings.append((path, f"Kryo writes objects of any class into {name}"))
                else:
                    self._type(of, path, custom, seen)
            if found.kind is ClassKind.INTERFACE and not lists.list_subclasses(name):
                self.openings.append((path, f"Kryo writes objects of any class that implements {name}"))
            for subclass in lists.list_subclasses(name):
                self._type(JavaType(subclass), path, custom, seen)


def _is_container(name: str) -> bool:
    return name in SHAPES or name in _COLLECTIONS


def _has_class_files(lists: FieldLists) -> bool:
    return isinstance(lists, ClassFieldLists)


def _list_custom(node: Kryo) -> Iterator[tuple[str, str]]:
    """Classes with a Kryo serializer of their own, and the class of that as far as the snapshot names it."""
    for each in node.registrations:
        if each.value is None:
            continue
        reader = Reader(each.value, "Kryo registration")
        reader.utf()
        kind = reader.i32()
        if kind:
            yield each.class_name, reader.utf() if kind == 1 else ""
    for each in node.default_serializer_classes:
        yield each.class_name, _read_name(each.value)
    yield from ((each.class_name, "") for each in node.default_serializers)


def _read_name(value: bytes | None) -> str:
    return "" if value is None else Reader(value, "Kryo serializer class").utf()


def _refuse_java_serializer(name: str, path: str) -> Finding:
    return Finding(
        path=path,
        old=None,
        new=None,
        outcome=Outcome.UNDETERMINED,
        reason=f"Kryo's own JavaSerializer writes {name}: it looks classes up by the class loader of Kryo, and fails "
        "with ClassNotFoundException on restore unless they are on Flink's own class path",
        remedy=f"Register {_FLINKS_JAVA_SERIALIZER} for {name}, which reads the same bytes",
    )


def _undetermined(path: str, reason: str, remedy: str) -> Finding:
    return Finding(path=path, old=None, new=None, outcome=Outcome.UNDETERMINED, reason=reason, remedy=remedy)


def _find_difference(before: ClassDeclaration, after: ClassDeclaration) -> str | None:
    if before.constants != after.constants:
        return "the constants differ"
    kinds = {before.kind, after.kind}
    if len(kinds) > 1 and kinds - {"class", "final"}:
        return f"the kind differs ({before.kind}, now {after.kind})"
    if before.fields == after.fields:
        return None if len(kinds) == 1 else "the modifier `final` differs"
    old, new = dict(before.fields), dict(after.fields)
    differences = [f"{name} is gone" for name in old if name not in new]
    differences += [f"{name} is new" for name in new if name not in old]
    differences += [f"{name} has another type" for name in old if name in new and old[name] != new[name]]
    return f"the fields differ ({', '.join(differences) or 'their order'})"


def _describe(declared: ClassDeclaration) -> str:
    inside: Iterable[str] = declared.constants or (f"{name}: {format_type(of)}" for name, of in declared.fields)
    return f"{declared.kind} {declared.name}({', '.join(inside)})"
