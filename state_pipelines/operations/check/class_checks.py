"""Checks of the classes that a restore needs: snapshot classes, fields of POJOs, classes that no snapshot describes.

Flink loads the class of a serializer snapshot before it reads the snapshot, also of states that the job does not
register; a class that is gone fails the restore (`TypeSerializerSnapshot.readVersionedSnapshot`,
`InstantiationUtil.resolveClassByName`). The classes of each release of Flink are known; those of users are read from
class files and held against what Flink asks of them ("Custom Serialization for Managed State", best practices): a class
of its own for each serializer, and no Java serialization inside.

No serializer snapshot says whether a field of a POJO is a primitive or transient: `int` and `Integer` have one
serializer, and a field that became transient is simply not in the new snapshot (`PojoFieldUtils.getField`,
`PojoSerializer.deserialize`, which sets fields by reflection).

Kryo writes objects field by field and stores the name of the class alone. `PojoSerializer` writes objects of subclasses
that are neither registered nor listed in its snapshot with the serializer that Flink makes of the class at run time
(flag `IS_SUBCLASS`). A restore with other fields succeeds, and reading fails later, or gives wrong values. Class files
and field lists of both jobs say what the fields were and are; decoding every value finds the classes in the data.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
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
from state_pipelines.errors import UnsupportedError, at
from state_pipelines.javaclasses import RECORD_NAME, ClassFieldLists, Nesting
from state_pipelines.operations.check.check_report import StateCheck, make_check
from state_pipelines.operations.dump import dump_state
from state_pipelines.operations.jobs.job_state import JobDescription, Subject
from state_pipelines.operations.jobs.type_extraction import UnresolvedType
from state_pipelines.serializers.compatibility import Outcome, SerializerDifference
from state_pipelines.serializers.compatibility.rules import list_paths, list_steps
from state_pipelines.serializers.snapshot_classes import JAVA_STREAM, find_releases, is_flinks, list_releases
from state_pipelines.serializers.text import quote
from state_pipelines.serializers.tree import Avro, Enum, Kryo, ListOf, MapOf, Nullable, Opaque, Pojo, Serializer, SetOf
from state_pipelines.snapshot.keyed_state import KeyedState, hold_states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from state_pipelines.codecs.json import Json
    from state_pipelines.codecs.kryo.classes import ClassDeclaration
    from state_pipelines.javaclasses import ClassPath, JavaClass
    from state_pipelines.operations.jobs.job_state import JobOperator, JobState
    from state_pipelines.serializers.compatibility.objects import FindField
    from state_pipelines.serializers.snapshot_classes import Release
    from state_pipelines.snapshot import Snapshot, State

_NO_OLD_SNAPSHOTS = (1, 17)
_OLD_SNAPSHOTS = (
    "TypeSerializerConfigSnapshot and it's subclasses are not supported since Flink 1.17. If you are using built-in "
    "serializers, please first migrate to Flink 1.16. If you are using custom serializers, please migrate them to "
    "TypeSerializerSnapshot using Flink 1.16."
)


def judge_loading(operator: JobOperator, state: JobState, release: Release) -> StateCheck | None:
    """Refuse a state if a release of Flink lacks one of its serializer snapshot classes; else return None."""
    if not _is_known(release):
        return None
    checked = min(release, list_releases()[-1])
    for serializer in state.serializers.values():
        for _, node in list_paths(serializer, ""):
            for name in _list_classes(node):
                owners = find_releases(name)
                if owners and checked not in owners:
                    return _refuse(operator, state, name, release, owners)
    return None


def find_unknown_classes(
    old: Serializer, path: str, release: Release, *, crosses: bool
) -> Iterator[SerializerDifference]:
    """Yield a finding for each serializer that may fail to load in a release, or to read its old data there.

    Args:
        old: the serializer of the snapshot.
        path: its path.
        release: release of Flink that runs the new job.
        crosses: whether the snapshot was written by another major release.
    """
    known = _is_known(release)
    for where, node in list_paths(old, path):
        if isinstance(node, UnresolvedType):
            continue
        if isinstance(node, Opaque):
            yield _leave_open(where, f"only Java can run {node.unknown_class}, which nothing here reads", release)
        elif not known:
            reason = f"the classes of Flink {_format(release)} are not known, {node.snapshot_class} among them"
            yield _leave_open(where, reason, release)
            return
        elif crosses and node.snapshot_class and not find_releases(node.snapshot_class) and not isinstance(node, Avro):
            reason = f"{node.snapshot_class} is not part of Flink: the new job needs it for Flink {release[0]}"
            yield _leave_open(where, reason, release)


def note_release(release: Release) -> Iterator[str]:
    """Yield a note on an assumption, if a release is newer than all releases whose classes are known."""
    newest = list_releases()[-1]
    if release > newest and _is_known(release):
        yield (
            f"The classes of Flink {_format(release)} are not known: serializer snapshot classes are taken to be "
            f"those of {_format(newest)}"
        )


def _is_known(release: Release) -> bool:
    """Return whether the serializer snapshot classes of a release are known.

    They are if the table has the release, or ends with an older one of the same major release: minor releases remove no
    class.
    """
    newest = list_releases()[-1]
    return release in list_releases() or (release > newest and release[0] == newest[0])


def _list_classes(node: Serializer) -> Iterator[str]:
    yield node.snapshot_class
    if isinstance(node, Opaque):
        yield node.unknown_class


def _refuse(
    operator: JobOperator, state: JobState, name: str, release: Release, owners: tuple[Release, ...]
) -> StateCheck:
    last, first = owners[-1], owners[0]
    known = f"{_format(first)} to {_format(last)} have" if last > first else f"{_format(last)} has"
    remedy = f"Restore with Flink {_format(last)}, take a savepoint there, and check that"
    if first > release:
        remedy = f"Restore with Flink {_format(first)} or newer"
    return make_check(
        operator,
        state,
        Subject.SNAPSHOT_CLASS,
        Outcome.INCOMPATIBLE,
        reason=f"Flink {_format(release)} has no class {name} (Flink {known} it), so that it cannot read the "
        "serializer snapshot",
        remedy=remedy,
        error=explain_missing_class(name, release),
    )


def explain_missing_class(name: str, release: Release) -> str:
    """Return the exact text of Flink's error for a serializer snapshot class that it does not find."""
    error = f"Could not find class '{name}' in classpath."
    return f"{error} {_OLD_SNAPSHOTS}" if "SerializerConfig" in name and release >= _NO_OLD_SNAPSHOTS else error


def _leave_open(path: str, reason: str, release: Release) -> SerializerDifference:
    remedy = f"Take a savepoint of the new job in a test run on Flink {_format(release)}, and check against that"
    return SerializerDifference(path=path, outcome=Outcome.UNDETERMINED, reason=reason, remedy=remedy)


def _format(release: Release) -> str:
    return f"{release[0]}.{release[1]}"


SCAN_LIMIT = 1 << 20
"""Largest size in bytes of a snapshot whose data `check` reads without `--scan`."""


@dataclass(frozen=True)
class DataClasses:
    """Classes of the objects in the data of a state.

    Attributes:
        names: names of the classes.
        undecoded: reasons why values could not be decoded; empty if all could.
        null_fields: (class, name) of each field that is null in some object.
    """

    names: frozenset[str]
    undecoded: tuple[str, ...] = ()
    null_fields: frozenset[tuple[str, str]] = frozenset()


def scan_snapshot(snapshot: Snapshot, *, scan: bool | None = None) -> Callable[[str, str], DataClasses | None]:
    """Make a function that finds the classes in the data of a state.

    It takes an operator id and a state name; an empty name stands for the keys of the operator.

    Args:
        snapshot: the snapshot.
        scan: whether to read the data; None reads them if the snapshot is small (`SCAN_LIMIT`). If they are not read,
            the function returns None.
    """
    if scan is None:
        scan = snapshot.file_size <= SCAN_LIMIT
    if not scan:
        return lambda operator, state: None

    @cache
    def open_states(operator: str) -> list[State]:
        states = snapshot.operator(operator).states
        keyed = hold_states([each for each in states if isinstance(each, KeyedState)])
        return [*keyed, *(each for each in states if not isinstance(each, KeyedState))]

    @cache
    def find(operator: str, state: str) -> DataClasses | None:
        states = open_states(operator)
        if state:
            found = [find_data_classes(each, "ukey", "value") for each in states if each.name == state]
        else:
            found = [find_data_classes(each, "key") for each in states if each.is_keyed]
        return DataClasses(
            frozenset().union(*(each.names for each in found)),
            tuple(dict.fromkeys(reason for each in found for reason in each.undecoded)),
            frozenset().union(*(each.null_fields for each in found)),
        )

    return find


def find_data_classes(state: State, *columns: str) -> DataClasses:
    """Find the classes of all objects in a state, by reading all of it.

    Args:
        state: the state.
        columns: columns of `dump` to look into: key, ukey, value.
    """
    names: set[str] = set()
    null_fields: set[tuple[str, str]] = set()
    undecoded: dict[str, None] = {}
    with at(operator=state.operator.label, state=state.name):
        try:
            for line in dump_state(state):
                for column in columns:
                    _collect(line.get(column), names, null_fields, undecoded)
        except UnsupportedError as error:
            undecoded[error.what] = None
    return DataClasses(frozenset(names), tuple(undecoded), frozenset(null_fields))


def _collect(value: Json, names: set[str], null_fields: set[tuple[str, str]], undecoded: dict[str, None]) -> None:
    for node in _walk(value):
        if isinstance(name := node.get("@class"), str):
            names.add(name)
            null_fields.update((name, field) for field, content in node.items() if content is None)
        if isinstance(reason := node.get("@reason"), str):
            undecoded[reason] = None


def _walk(value: Json) -> Iterator[dict[str, Json]]:
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending += node.values()
        elif isinstance(node, list):
            pending += node


_ROOTS = (OBJECT_NAME, RECORD_NAME)


def look_up_fields(classes: FieldLists) -> FindField:
    """Make the function that finds Java fields in the classes of a job."""
    return lambda owner, name: _find_owner(classes, owner, name)


def _find_owner(classes: FieldLists, owner: str, name: str) -> str | None:
    """Find the class that declares a field: `owner` or a super class.

    Return an empty text if none of them has the field, and None if not all of them are known.
    """
    seen: set[str] = set()
    while owner not in _ROOTS and owner not in seen:
        seen.add(owner)
        declared = classes.classes.get(owner)
        if declared is None:
            return None
        if any(each == name for each, _ in declared.fields):
            return owner
        found = classes.class_path.find(owner) if isinstance(classes, ClassFieldLists) else None
        # Flink also finds static and transient fields, which field lists leave out: look into the class file.
        if found is None or not isinstance(classes, ClassFieldLists) or owner in classes.class_path.declared.classes:
            return None
        if any(each.name == name for each in found.fields):
            return owner
        owner = found.parent.name if found.parent is not None else OBJECT_NAME
    return ""


def judge_nulls(
    path: str, serializer: Serializer, old: FieldLists, new: FieldLists, data: DataClasses | None
) -> Iterator[SerializerDifference]:
    """Yield findings on fields of POJOs that become primitive in the new job, although the data have nulls, or may.

    Args:
        path: path of the serializer.
        serializer: serializer of the snapshot.
        old: classes of the snapshot; a field that is primitive there has no nulls.
        new: classes of the new job.
        data: classes and nulls in the data; None if the data were not read.
    """
    nodes = list(list_paths(serializer, path))
    pojos = [(where, node) for where, node in nodes if isinstance(node, Pojo)]
    for where, node in pojos:
        names = [each.name for each in node.fields if _became_primitive(old, new, node.pojo_class, each.name)]
        if not names:
            continue
        if data is None:
            yield _leave_field_open(where, node.pojo_class, names, "whether the data hold nulls there is not known")
            continue
        holding = [name for name in names if (node.pojo_class, name) in data.null_fields]
        yield from (_refuse_field(f"{where}.{quote(name)}", node.pojo_class, name) for name in holding)
        if not holding and data.undecoded:
            yield _leave_field_open(where, node.pojo_class, names, f"not all data can be decoded: {data.undecoded[0]}")
    if data is not None and pojos:
        listed = {node.pojo_class for _, node in pojos} | {
            node.type_class for _, node in nodes if isinstance(node, Kryo)
        }
        for name, field in sorted(data.null_fields):
            bases = {*_list_bases(old, name), *_list_bases(new, name)}
            above = [where for where, node in pojos if node.pojo_class in bases]
            if name not in listed and above and _became_primitive(old, new, name, field):
                yield _refuse_field(f"{above[0]}({name}).{quote(field)}", name, field)


def _became_primitive(old: FieldLists, new: FieldLists, name: str, field: str) -> bool:
    return _is_primitive(_find_type(new, name, field)) and not _is_primitive(_find_type(old, name, field))


def _is_primitive(of: JavaType | None) -> bool:
    return of is not None and of.name in PRIMITIVES


def _find_type(classes: FieldLists, name: str, field: str) -> JavaType | None:
    for each in (name, *_list_bases(classes, name)):
        declared = classes.classes.get(each)
        if declared is not None and (found := dict(declared.fields).get(field)) is not None:
            return found
    return None


def _list_bases(classes: FieldLists, name: str) -> Iterator[str]:
    """Yield the super classes of a class, as far as they are known."""
    seen = {name}
    declared = classes.classes.get(name)
    while declared is not None and declared.base and declared.base not in seen:
        seen.add(declared.base)
        yield declared.base
        declared = classes.classes.get(declared.base)


def _leave_field_open(path: str, name: str, fields: list[str], reason: str) -> SerializerDifference:
    several = len(fields) > 1
    reason = (
        f"the field{'s' if several else ''} {', '.join(map(quote, fields))} of {name} "
        f"{'are' if several else 'is'} primitive in the new job and cannot be null: {reason}"
    )
    remedy = "Look into the data (`check --scan`), or show by --classes that the old fields are primitive too"
    return SerializerDifference(path=path, outcome=Outcome.UNDETERMINED, reason=reason, remedy=remedy)


def _refuse_field(path: str, name: str, field: str) -> SerializerDifference:
    reason = (
        f"the data hold nulls in the field {quote(field)} of {name}, which is primitive in the new job: HashMap "
        "fails during the restore, RocksDB when it reads the first of them"
    )
    remedy = f"Keep the class of the box as type of {quote(field)}, or replace the nulls by a `set` step in a migration"
    return SerializerDifference(path=path, outcome=Outcome.INCOMPATIBLE, reason=reason, remedy=remedy, unnoticed=True)


_JAVA_SERIALIZATION = frozenset({"java.io.ObjectOutputStream", "java.io.ObjectInputStream"})
_STATIC = (
    "Make it a public class, static where it is nested, with a public constructor without arguments, under the name "
    "that the snapshot stores"
)


def judge_snapshot_classes(job: JobDescription, classes: ClassPath) -> Iterator[StateCheck]:
    """Yield findings on serializer snapshot classes: those that the state of a job uses, and others in class files."""
    stored = _list_snapshot_classes(job)
    for name in sorted({*stored, *_find_snapshot_classes(classes)}):
        found = classes.find(name)
        if found is None or (name not in stored and (found.is_abstract or found.is_interface)):
            continue
        problem = _find_problem(found)
        if problem and name in stored:
            yield _make_check(
                Outcome.INCOMPATIBLE,
                f"{name} {problem}: Flink cannot make an object of it, so the restore fails",
                _STATIC,
                f"Could not instantiate type '{name}'",
            )
        elif problem:
            reason = f"{name}, which this snapshot does not hold, {problem}: no snapshot with it can be restored"
            yield _make_check(Outcome.AS_IS, reason, _STATIC)
        owners = _list_owners(name, classes)
        if len(owners) > 1:
            reason = f"{name} is the snapshot class of {' and '.join(owners)}: neither can change without the other"
            yield _make_check(Outcome.AS_IS, reason, "Give each serializer a snapshot class of its own")
        if found.references & _JAVA_SERIALIZATION:
            reason = f"{name} writes Java objects, which no other version of the code can be sure to read"
            yield _make_check(Outcome.AS_IS, reason, "Write names and values (writeUTF, writeInt, nested snapshots)")
    for name in sorted(_list_java_streams(job)):
        reason = f"the snapshot of {name} consists of Java objects, which no other version of the code is sure to read"
        yield _make_check(Outcome.AS_IS, reason, "Write names and values (writeUTF, writeInt, nested snapshots)")


def _make_check(outcome: Outcome, reason: str, remedy: str, error: str = "") -> StateCheck:
    return make_check(None, None, Subject.SNAPSHOT_CLASS, outcome, reason=reason, remedy=remedy, error=error)


def _find_problem(found: JavaClass) -> str:
    """Return why `InstantiationUtil.checkForInstantiation` refuses a class; empty if it accepts the class."""
    match found.nesting:
        case Nesting.ANONYMOUS:
            return "is an anonymous class"
        case Nesting.LOCAL:
            return "is a local class"
        case Nesting.INNER:
            return "is an inner class that is not static"
    if not found.is_public:
        return "is not public"
    if found.is_abstract or found.is_interface:
        return "is abstract"
    if not any(each.name == "<init>" and not each.parameters and each.is_public for each in found.methods):
        return "has no public constructor without arguments"
    return ""


def _list_owners(name: str, classes: ClassPath) -> list[str]:
    """Return the serializer classes that create objects of a serializer snapshot class."""
    owners = []
    for entry in classes.entries:
        for candidate, parent in entry.super_classes():
            # Search serializers only: snapshot classes create objects of themselves, too.
            if _is_serializer(parent, classes) and (found := classes.find(candidate)) and name in found.creates:
                owners.append(candidate)
    return sorted(set(owners))


def _is_serializer(name: str, classes: ClassPath) -> bool:
    while not is_flinks(name):
        found = classes.find(name)
        if found is None or found.parent is None:
            return False
        name = found.parent.name
    return "Serializer" in name and "Snapshot" not in name


def _find_snapshot_classes(classes: ClassPath) -> set[str]:
    """Find the serializer snapshot classes of users in class files: all subclasses of Flink's snapshot classes."""
    children = defaultdict(set)
    for entry in classes.entries:
        for name, parent in entry.super_classes():
            children[parent].add(name)
    found: set[str] = set()
    pending = [each for each in children if is_flinks(each) and "Serializer" in each and each.endswith("Snapshot")]
    while pending:
        fresh = {each for each in children[pending.pop()] if not is_flinks(each)} - found
        found |= fresh
        pending += fresh
    return found


def _list_snapshot_classes(job: JobDescription) -> set[str]:
    return {
        node.snapshot_class
        for node in _walk_serializers(job)
        if node.snapshot_class and not is_flinks(node.snapshot_class)
    }


def _list_java_streams(job: JobDescription) -> set[str]:
    opaque = (node for node in _walk_serializers(job) if isinstance(node, Opaque))
    return {node.unknown_class for node in opaque if node.raw is not None and node.raw.startswith(JAVA_STREAM)}


def _walk_serializers(job: JobDescription) -> Iterator[Serializer]:
    pending = [each.key for each in job.operators if each.key is not None]
    pending += [node for each in job.operators for state in each.states for node in state.serializers.values()]
    while pending:
        node = pending.pop()
        yield node
        pending += node.nested


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
    """Known classes of two jobs, to compare the classes that serializers write without describing them.

    Attributes:
        old: classes of the job that took the snapshot.
        new: classes of the new job.
        same_code: whether the new job has the classes of the old one.
        same_kryo: whether both jobs use the same major version of Kryo.
    """

    old: FieldLists = field(default_factory=FieldLists)
    new: FieldLists = field(default_factory=FieldLists)
    same_code: bool = False
    same_kryo: bool = True

    def judge(
        self, path: str, old: Serializer, data: DataClasses | None, *, lists_subclasses: bool, changed: bool
    ) -> Iterator[SerializerDifference]:
        """Yield findings about classes that the serializer of a state writes, but its serializer snapshot leaves out.

        Args:
            path: path of the serializer.
            old: the serializer of the snapshot.
            data: the classes in the data; None if the data were not read.
            lists_subclasses: whether the serializer has written every object of the data (as for RocksDB), so that it
                lists their classes.
            changed: whether other findings say that POJOs of the state have changed.
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
                _undetermined(where, reason, f"Look into the data (`check --scan`). {_GIVE_BOTH}")
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

    def _judge_found(self, name: str, where: str, *, is_pojo: bool, changed: bool) -> Iterator[SerializerDifference]:
        if self.same_code:
            yield _undetermined(
                where, f"the data hold objects of {name}, which the snapshot does not list", "Register the class"
            )
            return
        findings = list(self._compare(name, where))
        yield from findings
        bases = self._list_bases(name)
        if not findings and changed and is_pojo and bases:
            yield SerializerDifference(
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

    def _compare(self, name: str, where: str) -> Iterator[SerializerDifference]:
        """Yield findings about one class; none if its fields are known in both jobs, and are the same."""
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
            yield SerializerDifference(
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
    """Walk over the tree of a serializer that collects the classes of the objects that the serializer can write.

    It uses the types that fields are declared with in the known classes of both jobs.
    """

    def __init__(self, known: WrittenClasses) -> None:
        self.known = known
        self.classes: dict[str, str] = {}
        self.openings: list[tuple[str, str]] = []
        self.listed: set[str] = set()
        self.pojos: set[str] = set()
        self.java_serializers: list[SerializerDifference] = []

    def serializer(self, node: Serializer, declared: JavaType | None, path: str, *, lists_subclasses: bool) -> None:
        """Walk over a serializer; `declared` is the declared Java type of its values, if it is known."""
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
        """Find the subclasses of a class that the serializer does not list; None if its subclasses are not known."""
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
    """Yield (class, class of its Kryo serializer) for classes with a custom Kryo serializer.

    The second name is empty if the snapshot does not store it.
    """
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


def _refuse_java_serializer(name: str, path: str) -> SerializerDifference:
    reason = (
        f"Kryo's own JavaSerializer writes {name}: it looks classes up by the class loader of Kryo, and fails "
        "with ClassNotFoundException on restore unless they are on Flink's own class path"
    )
    remedy = f"Register {_FLINKS_JAVA_SERIALIZER} for {name}, which reads the same bytes"
    return SerializerDifference(path=path, outcome=Outcome.UNDETERMINED, reason=reason, remedy=remedy)


def _undetermined(path: str, reason: str, remedy: str) -> SerializerDifference:
    return SerializerDifference(path=path, outcome=Outcome.UNDETERMINED, reason=reason, remedy=remedy)


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
