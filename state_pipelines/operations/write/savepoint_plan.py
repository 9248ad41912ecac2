"""Plan of a savepoint with new state of some operators: beside the states of a base snapshot, or alone.

Descriptions say what the state is: operators, their keyed states, timers, list and broadcast states; the rows come
beside them (`operations.bootstrap`, `spark.bootstrap_run`). `plan_savepoint` decides what is written where; tasks
encode rows into spills (`spills.write_state_spill`) and element files (`operator_rewrite.write_elements`), then
`SavepointPlan.write` merges them into files of subtasks.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.kryo import FieldLists, oldest_metadata_version
from state_pipelines.codecs.layout import LayoutContext
from state_pipelines.errors import UnsupportedError, UsageError, Where, at
from state_pipelines.javaclasses import load_field_lists
from state_pipelines.keyed.hashing.value_hashes import make_key_hasher
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.key_groups import compute_default_max_parallelism, compute_key_group_range
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.record_layout import KeyedLayout, derive_keyed_layout
from state_pipelines.metadata import CheckpointMetadata, OperatorState, find_operator_id
from state_pipelines.metadata.checkpoint import format_operator_id
from state_pipelines.metadata.handles import ByteStreamStateHandle
from state_pipelines.operations.jobs.flink_config import FLINK_2, parse_release
from state_pipelines.operations.write.keyed_rewrite import FileRewrite, Format, SubtaskWriting, make_file_name
from state_pipelines.operations.write.operator_rewrite import ElementEncoder, OperatorRewrite
from state_pipelines.operations.write.publication import (
    FileMode,
    choose_properties,
    replace_keyed_state,
    replace_operator_state,
)
from state_pipelines.operatorstate import OperatorHeader
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import VOID_NAMESPACE, timer
from state_pipelines.serializers.state_meta_info import (
    StateMetaInfo,
    broadcast_state,
    keyed_state,
    operator_list,
    priority_queue,
)
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import KEYED_KINDS, LIST_KINDS, OPERATOR_KINDS, Kryo, StateKind
from state_pipelines.snapshot.checks import check_offsets
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.storage import Location, join

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.keyed.hashing import HashExpression
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.operations.write.operator_rewrite import ElementFile
    from state_pipelines.operations.write.spills import StateSpill
    from state_pipelines.operations.write.transaction import SnapshotTransaction
    from state_pipelines.operatorstate import UnreadOperatorState
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Operator, Snapshot

KRYO_OF_FLINK_1, KRYO_OF_FLINK_2 = 2, 5


def make_layouts(
    classes: FieldLists | Iterable[str | PathLike[str]] | str | None = None,
    flink_version: str | None = None,
    snapshot: Snapshot | None = None,
) -> LayoutContext:
    """Make the context for the layouts of new state.

    Args:
        classes: field lists, or paths of jars, directories, class files or field lists: they give the fields of
            classes that Kryo writes, and the subclasses of POJOs. Default those that `snapshot` was opened with.
        flink_version: release of Flink that will restore the state, such as 1.20 or 2.2. Flink 1.x uses Kryo 2, and
            Flink 2.x uses Kryo 5. Default the release line of the snapshot, or 2.x without one.
        snapshot: snapshot that the new state is added to; its `_metadata` gives the release line.

    Raises:
        UsageError: `flink_version` is no release, or of another release line than the snapshot.
        MissingFileError: a file does not exist.
    """
    wanted = None
    if flink_version is not None:
        wanted = KRYO_OF_FLINK_2 if parse_release(flink_version) >= FLINK_2 else KRYO_OF_FLINK_1
    if classes is None and snapshot is not None:
        classes = snapshot.classes
    if isinstance(classes, str):
        classes = [classes]
    lists = classes if classes is None or isinstance(classes, FieldLists) else load_field_lists(classes)
    if snapshot is None:
        return LayoutContext(kryo_version=wanted or KRYO_OF_FLINK_2, classes=lists)
    if wanted not in (None, snapshot.kryo_version):
        raise UsageError(
            f"the snapshot has the metadata of Flink {1 if snapshot.kryo_version == KRYO_OF_FLINK_1 else 2}.x, and "
            f"flink_version is {flink_version}: Kryo's bytes differ between the two, a snapshot holds one kind only",
            hint="Leave flink_version out",
        )
    known = snapshot.layout_context
    return LayoutContext(known.kryo_version, known.subclasses, lists, known.messages)


def has_kryo(serializers: Iterable[Serializer]) -> bool:
    """Return whether one of the serializers, or one nested in them, is a Kryo serializer."""
    pending = list(serializers)
    while pending:
        node = pending.pop()
        if isinstance(node, Kryo):
            return True
        pending += node.nested
    return False


def choose_metadata_version(layouts: LayoutContext, serializers: Iterable[Serializer], default: int) -> int:
    """Return the version of `_metadata` for new state: `default`, or that of Flink 2.x if Kryo 5 writes values."""
    if layouts.kryo_version == KRYO_OF_FLINK_2 and has_kryo(serializers):
        return max(default, oldest_metadata_version(KRYO_OF_FLINK_2))
    return default


@dataclass(frozen=True)
class StateDescription:
    """Description of a keyed state, or of the timers of one service and time domain.

    Attributes:
        name: state name.
        state_type: VALUE, LIST, MAP, REDUCING, AGGREGATING or TIMER; needed for a state that the base does not have.
        value: serializer of the value (of the whole list or map); needed for a state that the base does not have;
            None for timers.
        namespace: serializer of the namespace.
    """

    name: str
    state_type: str | None = None
    value: Serializer | None = None
    namespace: Serializer = VOID_NAMESPACE

    def make_info(self, key: Serializer, known: StateMetaInfo | None) -> StateMetaInfo:
        """Make the meta info of the new state.

        Args:
            key: serializer of the keys of the operator.
            known: meta info of the state in the base; None if the base does not have the state.

        Raises:
            UsageError: the description lacks a property that the base does not have either, or contradicts itself.
        """
        if self.state_type == StateKind.TIMER:
            return priority_queue(self.name, timer(key, self.namespace))
        state_type = self.state_type or (known.state_type if known else None)
        value = self.value or (known.value_serializer if known else None)
        if known is not None and self.value is None and state_type == known.state_type:
            return known
        if state_type is None or value is None:
            raise self._missing("the state type" if state_type is None else "the serializer of the value")
        if state_type not in KEYED_KINDS:
            raise UsageError(
                f"{state_type} is not a type of keyed state",
                where=Where(state=self.name),
                hint=f"Types are {', '.join(KEYED_KINDS)}",
            )
        for name, kind in ((StateKind.LIST, tree.ListOf), (StateKind.MAP, tree.MapOf)):
            if state_type == name and not isinstance(value, kind):
                raise UsageError(
                    f"{name} state needs a {name.capitalize()} as serializer of the value, not {describe(value)}",
                    where=Where(state=self.name),
                )
        namespace = known.namespace_serializer if known else self.namespace
        return keyed_state(self.name, state_type, value, namespace)

    def _missing(self, what: str) -> UsageError:
        return UsageError(f"{what} of state {self.name} is not known and must be given", where=Where(state=self.name))


@dataclass(frozen=True)
class OperatorStateDescription:
    """Description of a list or broadcast state.

    Attributes:
        name: state name.
        value: serializer of the elements of a list, or of the values of a broadcast state.
        mode: distribution mode: `SPLIT_DISTRIBUTE`, `UNION` or `BROADCAST`.
        key: serializer of the keys of a broadcast state.
    """

    name: str
    value: Serializer
    mode: str = StateKind.SPLIT_DISTRIBUTE
    key: Serializer | None = None

    def make_info(self) -> StateMetaInfo:
        """Make the meta info of the new state.

        Raises:
            UsageError: the mode is unknown, a list state has a key, or a broadcast state has none.
        """
        if self.mode not in OPERATOR_KINDS or (self.mode == StateKind.BROADCAST) != (self.key is not None):
            raise UsageError(
                f"operator state of mode {self.mode} {'with' if self.key else 'without'} a key",
                where=Where(state=self.name),
                hint=f"Modes are {', '.join(LIST_KINDS)}, and {StateKind.BROADCAST}, which has a key",
            )
        if self.key is not None:
            return broadcast_state(self.name, self.key, self.value)
        return operator_list(self.name, self.value, self.mode)


@dataclass(frozen=True)
class OperatorDescription:
    """Description of the new state of one operator.

    Attributes:
        operator: uid, or 32-digit operator id.
        keyed: keyed states and timers.
        unkeyed: list and broadcast states.
        key: serializer of the keys; needed when the base has no keyed state for the operator.
        parallelism: number of subtasks; needed for an operator that the base does not have.
        max_parallelism: number of key groups; by default what Flink would choose.
        hashes: `hashCode` of user classes in the key, by class name.
        coordinator: state of the operator coordinator; None to leave it as it is.
    """

    operator: str
    keyed: tuple[StateDescription, ...] = ()
    unkeyed: tuple[OperatorStateDescription, ...] = ()
    key: Serializer | None = None
    parallelism: int | None = None
    max_parallelism: int | None = None
    hashes: tuple[tuple[str, HashExpression], ...] = ()
    coordinator: bytes | None = None

    @property
    def operator_id(self) -> bytes:
        """The operator id, 16 bytes."""
        return find_operator_id(self.operator)


def require_distinct_names(operators: Sequence[OperatorDescription]) -> None:
    """Refuse operators that are described twice, and states of one operator that have the same name.

    Raises:
        UsageError: two descriptions have the same operator or state name; the hint gives Flink's reason.
    """
    for each in _repeated(description.operator_id.hex() for description in operators):
        label = next(one.operator for one in operators if one.operator_id.hex() == each)
        raise UsageError(
            "the operator is described twice",
            where=Where(operator=label),
            hint="A uid names one operator of a job (Flink: `Hash collision on user-specified ID`); "
            "give all its states in one description",
        )
    for description in operators:
        for names in (description.keyed, description.unkeyed):
            for name in _repeated(each.name for each in names):
                raise UsageError(
                    "two states have this name",
                    where=Where(operator=description.operator, state=name),
                    hint="Flink knows the states of an operator by their names; rename one",
                )


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


NEW_METADATA_VERSION = 3
"""Default metadata version of savepoints without a base: readable by every Flink from 1.11 on."""

StateName = tuple[str, str]
"""(`operator` of its `OperatorDescription`, state name)."""


@dataclass(frozen=True)
class EncodedStates:
    """Temporary files with the encoded rows of new states.

    Attributes:
        spills: files of keyed states and timers, by state.
        elements: files of list and broadcast states, by state.
    """

    spills: Mapping[StateName, tuple[StateSpill, ...]] = field(default_factory=dict)
    elements: Mapping[StateName, tuple[ElementFile, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class OperatorWriting:
    """Plan to write the new state of one operator.

    Attributes:
        description: the new states.
        metadata: the operator in the metadata of the new savepoint.
        layouts: layouts of the records, by name of the keyed state.
        elements: encoders of the list and broadcast states, by name.
        context: context for finding records in the files of the base.
        files: for each subtask, (index, old file of keyed state or None, new header).
        unread: for each subtask, (index, old operator state or None, new header).
    """

    description: OperatorDescription
    metadata: OperatorState
    layouts: Mapping[str, KeyedLayout]
    elements: Mapping[str, ElementEncoder]
    context: RecordContext
    files: tuple[tuple[int, KeyedFile | None, KeyedHeader], ...]
    unread: tuple[tuple[int, UnreadOperatorState | None, OperatorHeader], ...]

    def plan_files(
        self, format: Format, spills: Mapping[StateName, tuple[StateSpill, ...]], target: Location, checkpoint_id: int
    ) -> Iterator[SubtaskWriting]:
        """Yield the tasks that write the keyed state of the subtasks, one for each.

        Args:
            format: format of the new files.
            spills: files with the encoded records of the new states.
            target: directory of the new snapshot.
            checkpoint_id: checkpoint id of the snapshot.
        """
        label = self.description.operator
        for subtask, file, header in self.files:
            state_ids = {info.name: state_id for state_id, info in enumerate(header.states)}
            encoded = {state_ids[name]: spills[label, name] for name in self.layouts}
            rewrite = FileRewrite(
                subtask=subtask,
                base=file,
                header=header,
                copied=tuple((each, each) for each in state_ids.values() if each not in encoded),
                encoded=tuple(encoded.items()),
                key_groups=self._key_groups(subtask, file),
                context=self.context,
                target=join(target, make_file_name()),
                distinct=True,
            )
            yield SubtaskWriting(label, rewrite, format, checkpoint_id)

    def plan_operator_files(
        self, elements: Mapping[StateName, tuple[ElementFile, ...]], target: Location
    ) -> Iterator[OperatorRewrite]:
        """Yield the tasks that write the operator state of the subtasks, one for each."""
        label = self.description.operator
        for subtask, unread, header in self.unread:
            held = () if unread is None else (*unread.header.lists, *unread.header.broadcasts)
            encoded = []
            for name, encoder in self.elements.items():
                everywhere = encoder.info.distribution_mode == StateKind.BROADCAST
                files = elements[label, name]
                encoded.append((name, tuple(each for each in files if everywhere or each.subtask == subtask)))
            copied = tuple((info.name, info.name) for info in held if info.name not in self.elements)
            yield OperatorRewrite(subtask, unread, header, copied, tuple(encoded), join(target, make_file_name()))

    def _key_groups(self, subtask: int, file: KeyedFile | None) -> KeyGroupRange:
        if file is not None:
            return file.key_groups
        return compute_key_group_range(subtask, self.metadata.parallelism, self.metadata.max_parallelism)


@dataclass(frozen=True)
class SavepointPlan:
    """Plan of a savepoint with new state, which may be added to that of a base snapshot.

    Attributes:
        base: the base snapshot; None for a savepoint that has only the new state.
        metadata: metadata of the base, with the new operators added.
        operators: plans of the operators that have new state.
        format: format of the keyed state of these operators.
        context: context for layouts of the new state.
    """

    base: Snapshot | None
    metadata: CheckpointMetadata
    operators: tuple[OperatorWriting, ...]
    format: Format
    context: LayoutContext

    def write(
        self, transaction: SnapshotTransaction, encoded: EncodedStates, files: FileMode = FileMode.COPY
    ) -> tuple[Snapshot, dict[StateName, RecordDigest]]:
        """Write the new files of every subtask in tasks of a transaction, and stage the new savepoint.

        Args:
            transaction: transaction of the new savepoint.
            encoded: files with the encoded rows of the new states.
            files: whether the files of the base are copied, linked or referenced.

        Returns:
            (the new savepoint, which is not published yet; digests of the records of each new keyed state).

        Raises:
            IncompatibleError: a key occurs twice in a state.
            StateError: the storage refuses, or the base cannot be read.
        """
        metadata, target = self.metadata, transaction.target
        tasks = [
            task
            for each in self.operators
            for task in each.plan_files(self.format, encoded.spills, target, metadata.checkpoint_id)
        ]
        digests: dict[StateName, RecordDigest] = {}
        written = iter(transaction.run(tasks, "the new files cannot be written"))
        for each in self.operators:
            results = [next(written) for _ in each.files]
            handles = {result.subtask: result.handle for result in results}
            metadata = replace_keyed_state(metadata, each.metadata.operator_id, handles)
            for name in each.layouts:
                first, *rest = (result.states[name] for result in results)
                digests[each.description.operator, name] = sum(rest, start=first)
        rewrites = [(each, [*each.plan_operator_files(encoded.elements, target)]) for each in self.operators]
        done = iter(transaction.run([one for _, found in rewrites for one in found], "the new files cannot be written"))
        for each, found in rewrites:
            states = {result.subtask: result.handle for result in (next(done) for _ in found)}
            metadata = replace_operator_state(metadata, each.metadata.operator_id, states)
        changed = {each.metadata.operator_id for each in self.operators}
        staged = transaction.stage(metadata, self.base, choose_properties(metadata), files=files, changed=changed)
        return staged, digests


def plan_savepoint(
    base: Snapshot | None,
    operators: Sequence[OperatorDescription],
    format: Format = Format.CANONICAL,
    layouts: LayoutContext | None = None,
) -> SavepointPlan:
    """Plan a savepoint with new state.

    Args:
        base: the snapshot that all other state is taken from; None for a savepoint that has only the new state.
        operators: descriptions of the new states.
        format: format of the keyed state of these operators.
        layouts: context for layouts of the new states; default that of the base, or of Flink 2.x without one.

    Raises:
        FormatError: `_metadata` of the base does not fit the files of its operator state.
        UsageError: a description lacks a property that the base does not have either, or contradicts the base or
            another description.
        UnsupportedError: the base holds keyed state of a format that cannot be rewritten, or a serializer has no
            layout.
    """
    require_distinct_names(operators)
    if format is Format.KEEP:
        raise UsageError(
            "the format keep is for files that are copied, and new state has none",
            hint="Choose canonical, heap or rocksdb",
        )
    for operator in () if base is None else base.operators:
        check_offsets(operator)
    metadata = CheckpointMetadata(NEW_METADATA_VERSION, 1) if base is None else base.metadata
    context = layouts or make_layouts(snapshot=base)
    planned = []
    for description in operators:
        with at(operator=description.operator):
            each = _plan_operator(base, description, context)
        rest = [one for one in metadata.operator_states if one.operator_id != each.metadata.operator_id]
        known = [one.operator_id for one in metadata.operator_states]
        if len(rest) < len(known):
            rest.insert(known.index(each.metadata.operator_id), each.metadata)
            metadata = replace(metadata, operator_states=tuple(rest))
        else:
            metadata = replace(metadata, operator_states=(*rest, each.metadata))
        planned.append(each)
    if base is None:
        version = choose_metadata_version(context, _list_new_serializers(planned), metadata.version)
        metadata = replace(metadata, version=version)
    return SavepointPlan(base, metadata, tuple(planned), format, context)


def _list_new_serializers(operators: Iterable[OperatorWriting]) -> Iterator[Serializer]:
    for each in operators:
        for _, _, header in each.files[:1]:
            if header.key_serializer is not None:
                yield header.key_serializer
            yield from (serializer for info in header.states for _, serializer in info.serializers)
        yield from (serializer for one in each.elements.values() for _, serializer in one.info.serializers)


def _plan_operator(base: Snapshot | None, description: OperatorDescription, context: LayoutContext) -> OperatorWriting:
    operator = None if base is None else base.get_operator(description.operator_id)
    state = _new_operator(description) if operator is None else operator.metadata
    files: dict[int, KeyedFile] = {}
    unread: dict[int, UnreadOperatorState] = {}
    if operator is not None and base is not None:
        _check_unchanged(state, description)
        if description.keyed:
            records = RecordContext(state.max_parallelism, context)
            opened = {each.index: base.handles.open_keyed(each.managed_keyed_state, records) for each in state.subtasks}
            files = {index: file for index, file in opened.items() if file is not None}
        if description.unkeyed:
            held = {each.index: base.handles.open_operator(each.managed_operator_state) for each in state.subtasks}
            unread = {index: each for index, each in held.items() if each is not None}
    if description.coordinator is not None:
        # Flink names the state of a coordinator by the id of its operator.
        name = format_operator_id(state.operator_id)
        state = replace(state, coordinator_state=ByteStreamStateHandle(name, description.coordinator))
    layouts: dict[str, KeyedLayout] = {}
    headers: list[KeyedHeader] = []
    if description.keyed:
        known = {each.name: _find_state(operator, each.name, each.state_type) for each in description.keyed}
        key = _find_key(files, description)
        infos = []
        for each in description.keyed:
            with at(state=each.name):
                info = each.make_info(key, known[each.name])
                layouts[each.name] = derive_keyed_layout(info, key, state.max_parallelism, context)
            infos.append(info)
        headers = [_number_states(files.get(subtask), key, infos) for subtask in range(state.parallelism)]
    encoders = {each.name: ElementEncoder(each.make_info(), context, context) for each in description.unkeyed}
    for encoder in encoders.values():
        with at(state=encoder.info.name):
            _ = encoder.types  # Raises where a serializer has no layout.
    unkeyed = [encoder.info for encoder in encoders.values()]
    return OperatorWriting(
        description,
        state,
        layouts,
        encoders,
        RecordContext(state.max_parallelism, context),
        tuple((subtask, files.get(subtask), header) for subtask, header in enumerate(headers)),
        tuple(
            (subtask, unread.get(subtask), _number_operator_states(unread.get(subtask), unkeyed))
            for subtask in (range(state.parallelism) if unkeyed else ())
        ),
    )


def _find_key(files: Mapping[int, KeyedFile], description: OperatorDescription) -> Serializer:
    """Return the serializer of the keys of an operator, from its files in the base or from its description.

    Raises:
        UsageError: neither has it, they differ, or values of the serializer cannot be keys.
    """
    key = next((file.header.key_serializer for file in files.values()), None)
    if key is None:
        if description.key is None:
            raise UsageError("the serializer of the keys is not known and must be given")
        # An unknown hash of the keys is no error: then the rows have to give the key groups (column `key_group`).
        with suppress(UnsupportedError):
            make_key_hasher(description.key, LayoutContext(), dict(description.hashes))
        return description.key
    if description.key is not None and describe(description.key) != describe(key):
        raise UsageError(f"the keys are {describe(key)} in the base, not {describe(description.key)}")
    return key


def _number_states(file: KeyedFile | None, key: Serializer, infos: Sequence[StateMetaInfo]) -> KeyedHeader:
    """Return the header of a subtask with the new states: they replace old ones of the same name, or come last."""
    if file is None:
        return KeyedHeader(key_serializer=key, states=tuple(infos))
    new = {info.name: info for info in infos}
    kept = [new.pop(each.name, each) for each in file.header.states]
    return replace(file.header, states=(*kept, *new.values()))


def _number_operator_states(unread: UnreadOperatorState | None, infos: Sequence[StateMetaInfo]) -> OperatorHeader:
    header = OperatorHeader() if unread is None else unread.header
    if header.raw:
        raise UnsupportedError(
            "the operator state of the base cannot be read completely, so that nothing can be added to it",
            where=Where(file=None if unread is None else unread.name),
        )
    held = {info.name: info for info in (*header.lists, *header.broadcasts)}
    for info in infos:
        known = held.get(info.name, info)
        if (known.distribution_mode == StateKind.BROADCAST) != (info.distribution_mode == StateKind.BROADCAST):
            raise UsageError(
                "the state is a broadcast state in the base and a list state in the description, or the reverse"
            )
        held[info.name] = info
    lists = {name: info for name, info in held.items() if info.distribution_mode != StateKind.BROADCAST}
    broadcasts = {name: info for name, info in held.items() if info.distribution_mode == StateKind.BROADCAST}
    return replace(header, lists=tuple(lists.values()), broadcasts=tuple(broadcasts.values()))


def _new_operator(description: OperatorDescription) -> OperatorState:
    if description.parallelism is None:
        raise UsageError("the parallelism is not known and must be given")
    most = description.max_parallelism or compute_default_max_parallelism(description.parallelism)
    compute_key_group_range(0, description.parallelism, most)
    return OperatorState(description.operator_id, description.parallelism, most)


def _check_unchanged(state: OperatorState, description: OperatorDescription) -> None:
    for name, wanted, has in (
        ("parallelism", description.parallelism, state.parallelism),
        ("max parallelism", description.max_parallelism, state.max_parallelism),
    ):
        if wanted is not None and wanted != has:
            raise UsageError(f"the operator has {name} {has} in the base, not {wanted}", hint="Leave the option out")


def _find_state(operator: Operator | None, name: str, state_type: str | None) -> StateMetaInfo | None:
    """Return the meta info of a keyed state or of timers in the base; None if the base does not have them.

    Raises:
        UsageError: the base has operator state of that name, or timers instead of a state, or the reverse.
    """
    if operator is None:
        return None
    # `states` has the keyed states first, so they are found even if an operator state has the same name.
    state = next((each for each in operator.states if each.name == name), None)
    if state is None:
        return None
    if not isinstance(state, KeyedState):
        raise UsageError(f"{name} is operator state in the base")
    if (state.kind == StateKind.TIMER) != (state_type == StateKind.TIMER):
        raise UsageError(f"{name} is {'timers' if state.kind == StateKind.TIMER else 'no timers'} in the base")
    return state.info
