"""Registered state of a job, as far as a restore needs it, and the change of its types by classes and schemas.

A job is described by a snapshot that it took (`describe_job`), by a file (`jobs.job_files`), or by classes and schemas
that take the place of those in another description (`replace_classes`).
Types that are not given stay unchanged, so that the result is the old job with the types of the new code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from state_pipelines.codecs.kryo.classes import JavaType, parse_type
from state_pipelines.errors import NotFoundError, UnsupportedError, UsageError, Where
from state_pipelines.operations.jobs.type_extraction import TypeExtraction, UnresolvedType, carry_over
from state_pipelines.operations.migration.step_types import JAVA_TYPES
from state_pipelines.serializers import build
from state_pipelines.serializers import java_types as basics
from state_pipelines.serializers.python_types import PythonType, PythonValue, parse_python_declaration
from state_pipelines.serializers.state_meta_info import BackendStateType, StateMetaInfo
from state_pipelines.serializers.table_runtime import is_sql_word
from state_pipelines.serializers.text import parse
from state_pipelines.serializers.tree import (
    Avro,
    Basic,
    Enum,
    Kryo,
    ListOf,
    MapOf,
    Pojo,
    Serializer,
    StateKind,
    Ttl,
    TtlAware,
    Tuple,
    walk,
)
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.state import PREFIX
from state_pipelines.storage.documents import read_given_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from state_pipelines.codecs.kryo.classes import FieldLists
    from state_pipelines.javaclasses import ClassPath
    from state_pipelines.metadata import OperatorState, SubtaskState
    from state_pipelines.serializers.java_types import KryoConfig
    from state_pipelines.snapshot import Operator, Snapshot, State


class Subject(StrEnum):
    """Subject of a verdict: the role of a serializer in a state, or the state, operator or snapshot as a whole."""

    KEY = "key"
    NAMESPACE = "namespace"
    VALUE = "value"
    ELEMENT = "element"
    MAP_KEY = "map key"
    MAP_VALUE = "map value"
    TIMER = "timer"
    STATE = "state"
    OPERATOR = "operator"
    SNAPSHOT = "snapshot"
    SNAPSHOT_CLASS = "snapshot class"


class StateGroup(StrEnum):
    """The three registries of states in an operator; names of states are unique within each."""

    KEYED = "keyed"
    LIST = "operator list"
    BROADCAST = "broadcast"


@dataclass(frozen=True)
class JobState:
    """A state that a job registers.

    Attributes:
        kind: VALUE, LIST, MAP, REDUCING, AGGREGATING, TIMER, SPLIT_DISTRIBUTE, UNION or BROADCAST.
        serializers: serializers by role; `VALUE` of list and map state is the serializer of the whole list or map.
    """

    name: str
    kind: StateKind
    serializers: Mapping[Subject, Serializer]

    @property
    def group(self) -> StateGroup:
        """The registry that the state is in."""
        match self.kind:
            case StateKind.SPLIT_DISTRIBUTE | StateKind.UNION:
                return StateGroup.LIST
            case StateKind.BROADCAST:
                return StateGroup.BROADCAST
            case _:
                return StateGroup.KEYED


@dataclass(frozen=True)
class JobOperator:
    """An operator of a job, with the states that it registers.

    Attributes:
        id: 32 hexadecimal digits.
        label: uid, or the id if the uid is not known.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        key: serializer of the keys; None without keyed state.
        states: the states, in the order of the snapshot.
        has_state: whether there is anything to restore, including state that cannot be read.
        unread: why the states are not known; empty if they are.
        sets_max_parallelism: whether the program sets `max_parallelism`. Otherwise Flink may have chosen it, and a
            restore takes over that of the snapshot.
        lists_subclasses: whether the serializers of keyed state list the classes of all objects, because the backend
            (RocksDB) has serialized each of them.
    """

    id: str
    label: str
    parallelism: int
    max_parallelism: int
    key: Serializer | None
    states: tuple[JobState, ...]
    has_state: bool = True
    unread: str = ""
    sets_max_parallelism: bool = False
    lists_subclasses: bool = False

    def list_serializers(self) -> Iterator[Serializer]:
        """Yield all serializers of the keys and states, including nested ones."""
        pending = [] if self.key is None else [self.key]
        for state in self.states:
            pending += state.serializers.values()
        while pending:
            node = pending.pop()
            yield node
            pending += node.nested


@dataclass(frozen=True)
class JobDescription:
    """Description of a job: its operators and the states that they register.

    Attributes:
        name: name of the job in reports, such as the path of its snapshot.
        operators: all operators, with or without state.
        metadata_version: metadata version of the snapshot that describes the job; None if no snapshot does.
        kryo_version: major version of Kryo for generic types; None if unknown.
        notes: assumptions of the description.
        classes: the Java classes of the job that the user gives; None if none are given.
        keeps_classes: whether the job has the classes of the old job.
        state_classes: for each state, its classes in the given class files, if only these describe the job.
    """

    name: str
    operators: tuple[JobOperator, ...]
    metadata_version: int | None = None
    kryo_version: int | None = None
    notes: tuple[str, ...] = ()
    classes: FieldLists | None = None
    keeps_classes: bool = False
    state_classes: tuple[StateClasses, ...] = ()

    def find(self, name: str) -> JobOperator:
        """Return the operator with a label or id.

        Raises:
            NotFoundError: there is no such operator.
        """
        for operator in self.operators:
            if name in (operator.label, operator.id):
                return operator
        known = ", ".join(sorted(each.label for each in self.operators))
        raise NotFoundError(f"there is no operator {name!r}", hint=f"The operators are {known}")


def describe_job(snapshot: Snapshot) -> JobDescription:
    """Describe the job that took a snapshot, from `_metadata` and the headers of its files; no state is read.

    Raises:
        StateError: a file is missing or corrupt. If a format is not supported, the operator is `unread` instead.
    """
    return JobDescription(
        name=snapshot.path,
        operators=tuple(_describe_operator(each) for each in snapshot.operators),
        metadata_version=snapshot.metadata.version,
        kryo_version=snapshot.kryo_version,
        classes=snapshot.declarations.classes,
    )


def _describe_operator(operator: Operator) -> JobOperator:
    states: tuple[State, ...] = ()
    unread = ""
    try:
        # Leave out raw state: Flink passes it to the operator unchanged, so it is never incompatible.
        states = (*operator.keyed_states, *operator.operator_states)
    except UnsupportedError as error:
        unread = str(error)
    keys = (state.key_serializer for state in states if isinstance(state, KeyedState))
    return JobOperator(
        id=operator.id,
        label=operator.label,
        parallelism=operator.parallelism,
        max_parallelism=operator.max_parallelism,
        key=next(keys, None),
        states=tuple(map(_describe_state, states)),
        has_state=_has_state(operator.metadata),
        unread=unread,
        lists_subclasses=not unread and all(file.lists_subclasses for _, file in operator.keyed_files),
    )


def _describe_state(state: State) -> JobState:
    # Flink compares the state of a Python function by its kind in Java, such as LIST or MAP.
    kind = (state.info.state_type if state.python_name else None) or state.kind
    return JobState(state.name, kind, list_serializers(kind, state.info))


def list_serializers(kind: StateKind, info: StateMetaInfo) -> dict[Subject, Serializer]:
    """Return the serializers of a state, by role; kinds are those of `JobState`."""
    if kind == StateKind.TIMER:
        return {Subject.TIMER: info.value_serializer}
    if info.backend_type is BackendStateType.OPERATOR:
        return {Subject.ELEMENT: info.value_serializer}
    if info.backend_type is BackendStateType.BROADCAST:
        return {Subject.MAP_KEY: info.key_serializer, Subject.MAP_VALUE: info.value_serializer}
    return {Subject.NAMESPACE: info.namespace_serializer, Subject.VALUE: info.value_serializer}


def _has_state(operator: OperatorState) -> bool:
    """Return whether an operator has state, so that Flink refuses to restore a job without the operator.

    See `OperatorSubtaskState.hasState`; the state of the coordinator counts, too.
    """
    return operator.coordinator_state is not None or any(map(_has_subtask_state, operator.subtasks))


def _has_subtask_state(subtask: SubtaskState) -> bool:
    handles = (
        subtask.managed_operator_state,
        subtask.raw_operator_state,
        subtask.managed_keyed_state,
        subtask.raw_keyed_state,
    )
    channels = (*subtask.input_channel_state, *subtask.result_subpartition_state)
    return bool(channels) or any(handle is not None for handle in handles)


class ClassStatus(StrEnum):
    """Source of the knowledge about the classes of a state."""

    FOUND = "class found"
    ASSUMED = "assumed unchanged"
    GIVEN = "given by --type or --avro"
    NOT_DESCRIBED = "not described by class files"


@dataclass(frozen=True)
class StateClasses:
    """The classes of one state, or of the keys of an operator.

    Attributes:
        operator: label of the operator.
        state: name of the state; empty for the keys.
        found: classes of the state that are among the given class files.
        assumed: (class, namesakes) for classes of the state that are not among the given class files. Namesakes are
            given classes with the same simple name.
        is_given: whether the type of the state is given by an option.
    """

    operator: str
    state: str
    found: tuple[str, ...] = ()
    assumed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    is_given: bool = False

    @property
    def status(self) -> ClassStatus:
        """Status of the state as a whole: assumed if one of its classes is."""
        if self.is_given:
            return ClassStatus.GIVEN
        if self.assumed:
            return ClassStatus.ASSUMED
        return ClassStatus.FOUND if self.found else ClassStatus.NOT_DESCRIBED

    @property
    def title(self) -> str:
        """Operator and state, such as `orders/order` or `orders/key`, with the classes that were found."""
        classes = f" ({', '.join(self.found)})" if self.status is ClassStatus.FOUND else ""
        return f"{self.operator}/{self.state or 'key'}{classes}"

    def to_json(self) -> dict[str, object]:
        """Return the classes as an object for `json.dumps`."""
        return {
            "operator": self.operator,
            "state": self.state or None,
            "status": str(self.status),
            "found": list(self.found),
            "assumed": [name for name, _ in self.assumed],
        }


_LIBRARIES = ("java.", "javax.", "jdk.", "scala.", "org.apache.avro.")
_FLINK = "org.apache.flink."
_FLINK_TUPLES = "org.apache.flink.api.java.tuple."
GENERIC_RECORD = "org.apache.avro.generic.GenericRecord"

_GENERIC_SERIALIZERS: dict[str, Callable[..., Serializer]] = {
    "List": build.list_of,
    "ArrayList": build.array_list_of,
    "Set": build.set_of,
    "Map": build.map_of,
    "NullAwareMap": build.null_aware_map_of,
    "Either": build.either,
    "Nullable": build.nullable,
    **{f"Tuple{size}": build.tuple_of for size in range(1, 26)},
}

Node = TypeVar("Node")


def extract_types(
    old: JobDescription,
    classes: ClassPath,
    release: tuple[int, int],
    *,
    registered: tuple[str, ...] | None = None,
    factories: frozenset[str] = frozenset(),
    kryo: KryoConfig | None = None,
) -> TypeExtraction:
    """Prepare the type extraction of a release of Flink on given classes; missing classes are taken from the old job.

    Args:
        old: the old job.
        classes: class path in which classes are looked up.
        release: release of Flink, (major, minor).
        registered: registered POJO types in their order, if the configuration of the new job is known.
        factories: classes for which that configuration has a factory.
        kryo: Kryo entries of that configuration, if it is known.
    """
    carried, subclasses = carry_over(iter(_list_serializers(old)))
    return TypeExtraction(classes, release, carried, subclasses, registered, factories, kryo)


def configure_kryo(job: JobDescription, extraction: TypeExtraction) -> JobDescription:
    """Return the job with the Kryo registrations of its configuration; unchanged if the configuration is not known."""
    if extraction.kryo is None:
        return job

    def change(node: Serializer) -> Serializer | None:
        return extraction.configure_kryo(node.type_class) if isinstance(node, Kryo) else None

    return replace(job, operators=tuple(_map_operator(each, change) for each in job.operators))


def replace_classes(job: JobDescription, extraction: TypeExtraction) -> JobDescription:
    """Return the job with new serializers for all classes that are on the class path; the others keep theirs."""

    def change(node: Serializer) -> Serializer | None:
        name = _name_type(node)
        if name is None or extraction.classes.find(name) is None:
            return None
        return extraction.extract(JavaType(name))

    return replace(job, operators=tuple(_map_operator(each, change) for each in job.operators))


def declare_type(job: JobDescription, subject: str, text: str, extraction: TypeExtraction) -> JobDescription:
    """Return the job with another type in one state.

    Args:
        job: the job.
        subject: the state, as `OPERATOR/STATE`.
        text: the type as text; for state of a Python function, a type of PyFlink.
        extraction: type extraction for types of Java.

    Raises:
        NotFoundError: the job has no such operator or state.
        UsageError: `subject` does not name a state, or the text is no type.
    """

    def change(state: JobState) -> JobState:
        if not state.name.startswith(PREFIX):
            return replace_state_type(state, read_type(text, extraction))
        return _declare_python(state, parse_python_declaration(text).type)

    return _change_state(job, subject, change)


def _declare_python(state: JobState, of: PythonType) -> JobState:
    whole = state.serializers.get(Subject.VALUE)
    if not isinstance(whole, MapOf):
        return replace_state_type(state, _type_bytes(payload_of(state), of))
    if of.word != "MAP":
        raise UsageError(f"{state.name} is map state, whose type is MAP<K, V>", where=Where(state=state.name))
    key, value = of.children
    payload = payload_of(state)
    typed = replace(whole, key=_type_bytes(whole.key, key))
    changed = replace(state, serializers={**state.serializers, Subject.VALUE: typed})
    return replace_state_type(changed, _type_bytes(payload, value))


def _type_bytes(node: Serializer, of: PythonType) -> PythonValue:
    """Return the serializer of byte arrays with a declared PyFlink type of their content."""
    stored = node.stored if isinstance(node, PythonValue) else node
    if not isinstance(stored, Basic):
        raise UsageError("the state does not hold byte arrays, as state of Python functions does")
    kind = node.kind if isinstance(node, PythonValue) else StateKind.VALUE
    return PythonValue(snapshot_class=stored.snapshot_class, stored=stored, type=of, kind=kind)


def replace_avro(job: JobDescription, subject: str, schema_json: str) -> JobDescription:
    """Return the job with another Avro schema in one state.

    The schema replaces that of the record of the same name inside the value, or that of the only record.

    Raises:
        NotFoundError: the job has no such operator or state.
        UsageError: the state has no Avro record, or several ones, none of which has the name of the schema.
    """
    return _change_state(job, subject, lambda state: _replace_schema(state, schema_json))


def read_schema(path: str | Path) -> str:
    """Return the text of an `.avsc` file.

    Raises:
        UsageError: there is no such file, or it is not JSON.
    """
    text = read_given_text(path, "the schema")
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the schema is not JSON: {error}", where=Where(file=str(path))) from None
    return text


def read_type(text: str, extraction: TypeExtraction) -> Serializer:
    """Parse a type: a serializer in readable form (`Map<String, Long>`), or a Java type (`com.acme.Order`).

    Names of the readable form take precedence: `List<String>` is Flink's `ListSerializer`, `java.util.List<String>` is
    the serializer that Flink extracts from that class.

    Raises:
        UsageError: the text is neither.
    """
    text = text.strip()
    head, _, _ = text.partition("<")
    if "(" in text or head == "Snapshot" or is_sql_word(head.split(" ")[0]):
        return parse(text)
    head, arguments = _split_arguments(text)
    word = JAVA_TYPES.get(head, head)
    if not arguments and word in basics.SNAPSHOT_CLASSES:
        return build.basic(word)
    if arguments and word in _GENERIC_SERIALIZERS:
        try:
            return _GENERIC_SERIALIZERS[word](*(read_type(each, extraction) for each in arguments))
        except TypeError:
            raise UsageError(f"{text!r} has the wrong number of types for {word}") from None
    return extraction.extract(parse_type(text))


def payload_of(state: JobState) -> Serializer:
    """Return the serializer of the value, list element or map value of a state, without a TTL wrapper."""
    return _unwrap(_find_payload(state)[1])


def replace_state_type(state: JobState, payload: Serializer) -> JobState:
    """Return the state with `payload` in place of the serializer that `payload_of` finds; TTL stays as it is."""
    subject, old = _find_payload(state)
    whole = state.serializers[subject]
    new = _wrap_as(old, payload)
    match state.kind, whole:
        case StateKind.LIST, ListOf():
            changed: Serializer = replace(whole, element=new)
        case StateKind.MAP, MapOf():
            changed = replace(whole, value=new)
        case _:
            changed = new
    return replace(state, serializers={**state.serializers, subject: changed})


def list_assumed(extraction: TypeExtraction) -> Iterator[str]:
    """Yield the assumptions that an extraction has made, for the notes of a report."""
    if extraction.assumed:
        names = ", ".join(sorted(extraction.assumed))
        yield f"Not among the given classes, taken to be as in the snapshot: {names}"
    if extraction.registered is None and any(extraction.subclasses.values()):
        yield "Registered subclasses are taken to be those of the snapshot: the configuration of the job is not given"


def find_state_classes(
    job: JobDescription,
    classes: ClassPath,
    *,
    given: Collection[str],
) -> tuple[StateClasses, ...]:
    """Look up the classes of all keys and states of a job.

    Args:
        job: the new job, in which classes that are not given are those of the old job.
        classes: the given classes.
        given: states whose type is given by an option, as `OPERATOR/STATE`.
    """

    def look_up(operator: str, state: str, nodes: Iterable[Serializer]) -> StateClasses:
        names = sorted({name for node in nodes for each in walk(node) if (name := _name_user_class(each))})
        missing = tuple(name for name in names if classes.find(name) is None)
        return StateClasses(
            operator,
            state,
            tuple(name for name in names if name not in missing),
            tuple((name, tuple(_find_namesakes(name, classes))) for name in missing),
            is_given=f"{operator}/{state}" in given,
        )

    return tuple(
        each
        for operator in job.operators
        for each in (
            *([look_up(operator.label, "", [operator.key])] if operator.key is not None else ()),
            # Leave out timers: their classes are those of the keys.
            *(
                look_up(operator.label, state.name, state.serializers.values())
                for state in operator.states
                if state.kind is not StateKind.TIMER
            ),
        )
    )


def _name_user_class(node: Serializer) -> str | None:
    name = _name_type(node)
    if name is None or name.startswith(("[", *_LIBRARIES)):
        return None
    return None if name.startswith(_FLINK) and not isinstance(node, Pojo) else name


def _find_namesakes(name: str, classes: ClassPath) -> Iterator[str]:
    simple = name.rpartition(".")[2]
    for below in classes.direct_subclasses.values():
        yield from (each for each in below if each.rpartition(".")[2] == simple)


def _list_serializers(job: JobDescription) -> list[Serializer]:
    trees = [operator.key for operator in job.operators if operator.key is not None]
    for operator in job.operators:
        for state in operator.states:
            trees += state.serializers.values()
    return trees


def _name_type(node: Serializer) -> str | None:
    """Return the Java class whose definition determines a serializer; None for serializers without such a class."""
    match node:
        case Pojo():
            return node.pojo_class
        case Kryo():
            return node.type_class
        case Enum():
            return node.enum_class
        case Avro() if node.runtime_class != GENERIC_RECORD:
            return node.runtime_class
        case Tuple() if not node.tuple_class.startswith(_FLINK_TUPLES):
            return node.tuple_class
        case _:
            return None


def _map_operator(operator: JobOperator, change: Callable[[Serializer], Serializer | None]) -> JobOperator:
    states = (
        replace(state, serializers={subject: _map_tree(each, change) for subject, each in state.serializers.items()})
        for state in operator.states
    )
    key = None if operator.key is None else _map_tree(operator.key, change)
    return replace(operator, key=key, states=tuple(states))


def _map_tree(node: Serializer, change: Callable[[Serializer], Serializer | None]) -> Serializer:
    changed = change(node)
    return _map_members(node, change) if changed is None else changed


def _map_members(node: Node, change: Callable[[Serializer], Serializer | None]) -> Node:
    """Return the node with its nested serializers changed, including those in the fields of a POJO."""
    changed: dict[str, Any] = {}
    for each in fields(node):  # type: ignore[arg-type]
        before = getattr(node, each.name)
        after = _map_member(before, change)
        if after is not before:
            changed[each.name] = after
    return replace(node, **changed) if changed else node  # type: ignore[type-var]


def _map_member(member: Any, change: Callable[[Serializer], Serializer | None]) -> Any:
    if isinstance(member, Serializer):
        return _map_tree(member, change)
    if isinstance(member, tuple):
        mapped = tuple(_map_member(each, change) for each in member)
        return member if all(a is b for a, b in zip(member, mapped, strict=True)) else mapped
    return _map_members(member, change) if is_dataclass(member) and not isinstance(member, type) else member


def _change_state(job: JobDescription, subject: str, change: Callable[[JobState], JobState]) -> JobDescription:
    name, slash, state_name = subject.partition("/")
    if not slash or not name or not state_name:
        raise UsageError(f"{subject!r} does not name a state", hint="Write OPERATOR/STATE")
    operator = job.find(name)
    if PREFIX + state_name in (each.name for each in operator.states):
        state_name = PREFIX + state_name
    if state_name not in (each.name for each in operator.states):
        known = ", ".join(sorted(each.name for each in operator.states))
        raise NotFoundError(
            f"operator {name} has no state {state_name!r}",
            hint=f"Its states are {known}" if known else "It has no states",
        )
    states = tuple(change(each) if each.name == state_name else each for each in operator.states)
    changed = replace(operator, states=states)
    return replace(job, operators=tuple(changed if each is operator else each for each in job.operators))


def _find_payload(state: JobState) -> tuple[Subject, Serializer]:
    """Return (role in `serializers`, serializer) of the value, list element or map value, with a TTL wrapper if any."""
    for subject in (Subject.ELEMENT, Subject.MAP_VALUE):
        if subject in state.serializers:
            return subject, state.serializers[subject]
    if Subject.VALUE not in state.serializers:
        raise UsageError(f"state {state.name} has no values", hint="Timers consist of a key and a namespace only")
    whole = state.serializers[Subject.VALUE]
    match state.kind, whole:
        case StateKind.LIST, ListOf(element=element):
            return Subject.VALUE, element
        case StateKind.MAP, MapOf(value=value):
            return Subject.VALUE, value
        case _:
            return Subject.VALUE, whole


def _unwrap(node: Serializer) -> Serializer:
    return _unwrap(node.inner) if isinstance(node, Ttl | TtlAware) else node


def _wrap_as(old: Serializer, payload: Serializer) -> Serializer:
    return replace(old, inner=_wrap_as(old.inner, payload)) if isinstance(old, Ttl | TtlAware) else payload


def _replace_schema(state: JobState, schema_json: str) -> JobState:
    payload = payload_of(state)
    wanted = _name_record(schema_json)
    # The state may have a class that Avro generated, but whose schema could not be read from its class file.
    unknown = [node for node in walk(payload) if isinstance(node, UnresolvedType) and _simple_name(node) == wanted]
    if unknown:
        made = build.avro(unknown[0].unknown_class, schema_json)
        return replace_state_type(state, _map_tree(payload, lambda node: made if node == unknown[0] else None))
    nodes = [node for node in walk(payload) if isinstance(node, Avro)]
    fitting = [node for node in nodes if _name_record(node.schema_json) == wanted] or nodes
    if not nodes:
        raise UsageError(f"state {state.name} has no Avro records", hint="Describe the state in a file instead")
    if len(set(fitting)) > 1:
        raise UsageError(
            f"state {state.name} holds several kinds of Avro records, none of which is called {wanted}",
            hint=f"They are {', '.join(sorted(_name_record(node.schema_json) for node in nodes))}",
        )
    target = fitting[0]
    return replace_state_type(
        state, _map_tree(payload, lambda node: replace(target, schema_json=schema_json) if node == target else None)
    )


def _simple_name(node: UnresolvedType) -> str:
    return node.unknown_class.rpartition(".")[2]


def _name_record(schema_json: str) -> str:
    schema = json.loads(schema_json)
    return str(schema.get("name", "")).rpartition(".")[2] if isinstance(schema, dict) else str(schema)


def _split_arguments(text: str) -> tuple[str, list[str]]:
    """Split a type such as `Map<String, List<Long>>` into `Map` and the texts of its arguments."""
    head, less, rest = text.partition("<")
    if not less or not rest.endswith(">"):
        return text, []
    return head.strip(), list(_split_commas(rest[:-1]))


def _split_commas(text: str) -> Iterable[str]:
    depth, start = 0, 0
    for index, symbol in enumerate(text):
        depth += (symbol == "<") - (symbol == ">")
        if symbol == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]
