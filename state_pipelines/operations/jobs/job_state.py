"""Registered state of a job: operators, states and their serializers, as far as a restore needs them.

A job is described by a snapshot that it took (`describe_job`), by a file (`jobs.job_files`), or by classes and schemas
that take the place of those in another description (`jobs.retyped_job`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from state_pipelines.errors import NotFoundError, UnsupportedError
from state_pipelines.serializers.state_meta_info import BackendStateType, StateMetaInfo
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.keyed_state import KeyedState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from state_pipelines.codecs.kryo.classes import FieldLists
    from state_pipelines.metadata import OperatorState, SubtaskState
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Operator, Snapshot, State


class Subject(StrEnum):
    """Role of a serializer in a state; the rules of a restore differ by role."""

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
    """The three registries of an operator; names are unique within each."""

    KEYED = "keyed"
    LIST = "operator list"
    BROADCAST = "broadcast"


@dataclass(frozen=True)
class JobState:
    """One state.

    Attributes:
        kind: VALUE, LIST, MAP, REDUCING, AGGREGATING, TIMER, SPLIT_DISTRIBUTE, UNION or BROADCAST.
        serializers: by subject; `VALUE` of list and map state holds the serializer of the whole list or map.
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
    """One operator.

    Attributes:
        id: 32 hexadecimal digits.
        label: uid, or the id when the uid is not known.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        key: serializer of the keys; None without keyed state.
        states: in the order of the snapshot.
        has_state: whether there is anything to restore, states that cannot be read included.
        unread: why the states are not known; empty when they are.
        sets_max_parallelism: the program itself says so; else Flink may have chosen the number, and takes over another.
        lists_subclasses: serializers of keyed state list the class of every object, since RocksDB serialized each.
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
        """Yield every serializer of the keys and states, those inside of others included."""
        pending = [] if self.key is None else [self.key]
        for state in self.states:
            pending += state.serializers.values()
        while pending:
            node = pending.pop()
            yield node
            pending += node.nested


@dataclass(frozen=True)
class JobDescription:
    """A job.

    Attributes:
        name: of the job in reports, such as the path of its snapshot.
        operators: those with state or without.
        metadata_version: of the snapshot; None when the job is not described by one.
        kryo_version: major version of Kryo for generic types; None when unknown.
        notes: assumptions of the description.
        classes: the Java classes of the job, as far as the user gives them.
        keeps_classes: the classes are those of the old job.
        state_classes: what the given class files say about each state, where they alone describe the job.
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
        """The operator of a label or id.

        Raises:
            NotFoundError: there is none.
        """
        for operator in self.operators:
            if name in (operator.label, operator.id):
                return operator
        known = ", ".join(sorted(each.label for each in self.operators))
        raise NotFoundError(f"there is no operator {name!r}", hint=f"The operators are {known}")


def describe_job(snapshot: Snapshot) -> JobDescription:
    """The job that took a snapshot; reads the headers of its files, no state.

    Raises:
        StateError: a file is missing or corrupt. Formats that are not covered leave the operator `unread`.
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
        # A restore passes raw state on unchanged, so that it is never incompatible.
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
    # What Flink compares of a state of a Python function is the list or map that it is in Java.
    kind = (state.info.state_type if state.python_name else None) or state.kind
    return JobState(state.name, kind, list_serializers(kind, state.info))


def list_serializers(kind: StateKind, info: StateMetaInfo) -> dict[Subject, Serializer]:
    """The serializers of a state of a kind (see `JobState`), by subject."""
    if kind == StateKind.TIMER:
        return {Subject.TIMER: info.value_serializer}
    if info.backend_type is BackendStateType.OPERATOR:
        return {Subject.ELEMENT: info.value_serializer}
    if info.backend_type is BackendStateType.BROADCAST:
        return {Subject.MAP_KEY: info.key_serializer, Subject.MAP_VALUE: info.value_serializer}
    return {Subject.NAMESPACE: info.namespace_serializer, Subject.VALUE: info.value_serializer}


def _has_state(operator: OperatorState) -> bool:
    """Whether Flink would miss the operator (`OperatorSubtaskState.hasState`, and the coordinator)."""
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
    """Description of the types of a state by class files."""

    FOUND = "class found"
    ASSUMED = "assumed unchanged"
    GIVEN = "given by --type or --avro"
    NOT_DESCRIBED = "not described by class files"


@dataclass(frozen=True)
class StateClasses:
    """The classes of one state, or of the keys of an operator.

    Attributes:
        operator: label of the operator.
        state: name of the state; empty of keys.
        found: classes among the given ones.
        assumed: classes that are not, each with the classes of its simple name that are.
        is_given: the type of the state is given in another way.
    """

    operator: str
    state: str
    found: tuple[str, ...] = ()
    assumed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    is_given: bool = False

    @property
    def status(self) -> ClassStatus:
        """The status as a whole: one class that is assumed makes it assumed."""
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
        """As an object for `json.dumps`."""
        return {
            "operator": self.operator,
            "state": self.state or None,
            "status": str(self.status),
            "found": list(self.found),
            "assumed": [name for name, _ in self.assumed],
        }
