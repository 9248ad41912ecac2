"""Writing one keyed state into a new savepoint: beside the states of a base snapshot, or alone.

`plan_write` decides what is written where; tasks encode rows into parts (`keyed_rewrite.write_part`), then
`WritePlan.write` merges them into the files of the subtasks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import UsageError, Where, at
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.key_group_assignment import compute_default_max_parallelism, compute_key_group_range
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.record_layout import KeyedLayout, derive_keyed_layout
from state_pipelines.metadata import CheckpointMetadata, OperatorState, find_operator_id
from state_pipelines.operations.write.file_names import make_file_name
from state_pipelines.operations.write.keyed_rewrite import FileRewrite, PartFile
from state_pipelines.operations.write.publication import NewFile, place_rewrites
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.state_meta_info import StateMetaInfo, keyed_state
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot.keyed_state import TIMER, KeyedState
from state_pipelines.storage import Location, join

if TYPE_CHECKING:
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata.key_groups import KeyGroupRange
    from state_pipelines.operations.write.transaction import SnapshotTransaction
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Operator, Snapshot

STATE_TYPES = ("VALUE", "LIST", "MAP", "REDUCING", "AGGREGATING")

NEW_METADATA_VERSION = 3
"""Metadata version of savepoints without a base: readable by every Flink from 1.11 on."""


@dataclass(frozen=True)
class StateDescription:
    """A state that is written.

    Attributes:
        operator: uid, or 32-digit operator id.
        name: state name.
        state_type: VALUE, LIST, MAP, REDUCING or AGGREGATING; needed for a state that the base does not have.
        key: serializer of the keys; needed when the base has no keyed state for the operator.
        value: serializer of the value (of the whole list or map); needed for a state that the base does not have.
        namespace: serializer of the namespace.
        parallelism: number of subtasks; needed for an operator that the base does not have.
        max_parallelism: number of key groups; by default what Flink would choose.
    """

    operator: str
    name: str
    state_type: str | None = None
    key: Serializer | None = None
    value: Serializer | None = None
    namespace: Serializer = VOID_NAMESPACE
    parallelism: int | None = None
    max_parallelism: int | None = None


@dataclass(frozen=True)
class WritePlan:
    """Plan of a write: the files and their content.

    Attributes:
        base: the base snapshot; None for a savepoint of its own.
        metadata: of the base, with the operator added when it had none.
        operator: what the metadata say of the operator.
        layout: layouts of the records.
        context: what finding the records of the base takes.
        files: per subtask the old file or None, the new header, and the id of the state in it.
    """

    base: Snapshot | None
    metadata: CheckpointMetadata
    operator: OperatorState
    layout: KeyedLayout
    context: RecordContext
    files: tuple[tuple[int, KeyedFile | None, KeyedHeader, int], ...]

    def write(self, transaction: SnapshotTransaction, parts: tuple[PartFile, ...]) -> None:
        """Write the new file of every subtask in tasks of a transaction, and stage the new savepoint."""
        rewrites = self._plan_files(parts, transaction.target)
        written = transaction.run(rewrites, "the new files cannot be written")
        files = [NewFile(rewrite, each) for rewrite, each in zip(rewrites, written, strict=True)]
        transaction.stage(place_rewrites(self.metadata, self.operator.operator_id, files), self.base)

    def _plan_files(self, parts: tuple[PartFile, ...], target: Location) -> list[FileRewrite]:
        return [
            FileRewrite(
                subtask=subtask,
                base=file,
                header=header,
                copied=tuple((each, each) for each in range(len(header.states)) if each != state_id),
                encoded=((state_id, parts),),
                key_groups=self._key_groups(subtask, file),
                context=self.context,
                target=join(target, make_file_name()),
            )
            for subtask, file, header, state_id in self.files
        ]

    def _key_groups(self, subtask: int, file: KeyedFile | None) -> KeyGroupRange:
        if file is not None:
            return file.key_groups
        return compute_key_group_range(subtask, self.operator.parallelism, self.operator.max_parallelism)


def plan_write(base: Snapshot | None, description: StateDescription) -> WritePlan:
    """Decide what is written.

    Raises:
        UsageError: the description lacks what the base does not know, or contradicts it.
        UnsupportedError: the base holds keyed state of a format that cannot be rewritten.
    """
    operator = _find_operator(base, description)
    if operator is None:
        state = _new_operator(description)
        metadata = CheckpointMetadata(NEW_METADATA_VERSION, 1) if base is None else base.metadata
        metadata = replace(metadata, operator_states=(*metadata.operator_states, state))
        files: dict[int, KeyedFile] = {}
    else:
        assert base is not None
        state, metadata = operator.metadata, base.metadata
        opened = {each.index: base.handles.open_keyed(each.managed_keyed_state) for each in state.subtasks}
        files = {index: file for index, file in opened.items() if file is not None}
        _check_unchanged(state, description)
    info = _describe_state(_find_state(operator, description), description)
    key = next((file.header.key_serializer for file in files.values()), description.key)
    if key is None:
        raise UsageError(_missing("the serializer of the keys", description), where=_where(description))
    if description.key is not None and describe(description.key) != describe(key):
        raise UsageError(
            f"the keys are {describe(key)} in the base, not {describe(description.key)}", where=_where(description)
        )
    context = base.layout_context if base is not None else LayoutContext()
    layout = derive_keyed_layout(info, key, state.max_parallelism, context)
    placed = tuple(
        (subtask, files.get(subtask), *_place_state(files.get(subtask), key, info))
        for subtask in range(state.parallelism)
    )
    return WritePlan(base, metadata, state, layout, RecordContext(state.max_parallelism, context), placed)


def _place_state(file: KeyedFile | None, key: Serializer, info: StateMetaInfo) -> tuple[KeyedHeader, int]:
    if file is None:
        return KeyedHeader(key_serializer=key, states=(info,)), 0
    states = file.header.states
    names = [each.name for each in states]
    if info.name in names:
        position = names.index(info.name)
        return replace(file.header, states=(*states[:position], info, *states[position + 1 :])), position
    return replace(file.header, states=(*states, info)), len(states)


def _find_operator(base: Snapshot | None, description: StateDescription) -> Operator | None:
    if base is None:
        return None
    wanted = find_operator_id(description.operator)
    return next((each for each in base.operators if each.metadata.operator_id == wanted), None)


def _new_operator(description: StateDescription) -> OperatorState:
    if description.parallelism is None:
        raise UsageError(_missing("the parallelism", description), where=_where(description))
    most = description.max_parallelism or compute_default_max_parallelism(description.parallelism)
    with at(operator=description.operator, state=description.name):
        compute_key_group_range(0, description.parallelism, most)
    return OperatorState(find_operator_id(description.operator), description.parallelism, most)


def _check_unchanged(state: OperatorState, description: StateDescription) -> None:
    for name, wanted, has in (
        ("parallelism", description.parallelism, state.parallelism),
        ("max parallelism", description.max_parallelism, state.max_parallelism),
    ):
        if wanted is not None and wanted != has:
            raise UsageError(
                f"the operator has {name} {has} in the base, not {wanted}",
                where=_where(description),
                hint="Leave the option out",
            )


def _describe_state(known: StateMetaInfo | None, description: StateDescription) -> StateMetaInfo:
    state_type = description.state_type or (known.state_type if known else None)
    value = description.value or (known.value_serializer if known else None)
    if known is not None and description.value is None and state_type == known.state_type:
        return known
    if state_type is None or value is None:
        what = "the state type" if state_type is None else "the serializer of the value"
        raise UsageError(_missing(what, description), where=_where(description))
    if state_type not in STATE_TYPES:
        raise UsageError(
            f"{state_type} is not a type of keyed state",
            where=_where(description),
            hint=f"Types are {', '.join(STATE_TYPES)}",
        )
    for name, kind in (("LIST", tree.ListOf), ("MAP", tree.MapOf)):
        if state_type == name and not isinstance(value, kind):
            raise UsageError(
                f"{name} state needs a {name.capitalize()} as serializer of the value, not {describe(value)}",
                where=_where(description),
            )
    namespace = known.namespace_serializer if known else description.namespace
    return keyed_state(description.name, state_type, value, namespace)


def _find_state(operator: Operator | None, description: StateDescription) -> StateMetaInfo | None:
    """The meta info of the state in the base; None when it does not have it."""
    if operator is None:
        return None
    state = next((each for each in operator.states if each.name == description.name), None)
    if state is None:
        return None
    if not isinstance(state, KeyedState) or state.kind == TIMER:
        what = "timers" if isinstance(state, KeyedState) else "operator state"
        raise UsageError(f"{description.name} is {what}, which is not written", where=_where(description))
    return state.info


def _missing(what: str, description: StateDescription) -> str:
    return f"{what} of state {description.name} is not known and must be given"


def _where(description: StateDescription) -> Where:
    return Where(operator=description.operator, state=description.name)
