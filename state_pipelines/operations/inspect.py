"""`inspect`: what a snapshot holds, without decoding any of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import UnsupportedError
from state_pipelines.metadata import StreamReference, stream_handles
from state_pipelines.metadata.handles import ByteStreamStateHandle
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot.broadcast_state import BroadcastState
from state_pipelines.snapshot.keyed_state import TIMER, KeyedState

if TYPE_CHECKING:
    from state_pipelines.snapshot import Operator, Snapshot, State

COUNT_LIMIT = 256 << 20
"""Bytes of state up to which entries are counted unless the caller decides; counting reads the state once."""


@dataclass(frozen=True)
class StateReport:
    """One state.

    Attributes:
        kind: VALUE, LIST, MAP, REDUCING, AGGREGATING, TIMER, SPLIT_DISTRIBUTE, UNION or BROADCAST.
        key: serializer of the keys (of a broadcast state: of the keys of the map), in readable form.
        namespace: serializer of the namespace; None for operator state.
        value: serializer of the value.
        subtasks: indices of the subtasks that have the state.
        key_groups: [first, last] per subtask; empty for operator state.
        entries: None when they were not counted.
        bytes: of the entries without framing; None when they were not counted.
        used_key_groups: key groups that have entries; None when they were not counted.
        undecoded: why tables of this state hold raw bytes; empty when they do not.
    """

    name: str
    kind: str
    key: str | None
    namespace: str | None
    value: str
    subtasks: list[int]
    key_groups: list[list[int]]
    entries: int | None
    bytes: int | None
    used_key_groups: int | None
    undecoded: str


@dataclass(frozen=True)
class OperatorReport:
    """One operator; `error` says why its states could not be read, and is empty when they could."""

    id: str
    uid: str | None
    name: str | None
    parallelism: int
    max_parallelism: int
    finished: bool
    bytes: int
    coordinator_bytes: int
    channel_state_handles: int
    states: list[StateReport]
    error: str


@dataclass(frozen=True)
class SnapshotReport:
    """A snapshot."""

    path: str
    kind: str
    metadata_version: int
    checkpoint_id: int
    kryo_version: int
    fingerprint: str
    bytes: int
    files: int
    master_states: list[str]
    operators: list[OperatorReport]

    def to_json(self) -> dict[str, object]:
        """The report as an object for `json.dumps`."""
        return asdict(self)


def inspect(snapshot: Snapshot, *, count: bool | None = None) -> SnapshotReport:
    """Report on a snapshot.

    Args:
        snapshot: the snapshot.
        count: count entries and bytes, which reads all state; None counts up to `COUNT_LIMIT` bytes.
    """
    references = stream_handles(snapshot.metadata)
    files = {_identity(each) for each in references if not isinstance(each.handle, ByteStreamStateHandle)}
    if count is None:
        count = snapshot.file_size <= COUNT_LIMIT
    sizes: dict[bytes, int] = {}
    for reference in references:
        size = sizes.get(reference.operator.operator_id, 0)
        sizes[reference.operator.operator_id] = size + _size(reference)
    return SnapshotReport(
        path=snapshot.path,
        kind=snapshot.kind,
        metadata_version=snapshot.metadata.version,
        checkpoint_id=snapshot.checkpoint_id,
        kryo_version=snapshot.kryo_version,
        fingerprint=snapshot.fingerprint,
        bytes=snapshot.file_size,
        files=len(files),
        master_states=[master.name for master in snapshot.metadata.master_states],
        operators=[
            _report_operator(each, sizes.get(each.metadata.operator_id, 0), count=count) for each in snapshot.operators
        ],
    )


def _report_operator(operator: Operator, size: int, *, count: bool) -> OperatorReport:
    coordinator = operator.metadata.coordinator_state
    channels = sum(
        len(each.input_channel_state) + len(each.result_subpartition_state) for each in operator.metadata.subtasks
    )
    states, error = [], ""
    try:
        states = [_report_state(state, count=count) for state in operator.states]
    except UnsupportedError as failure:
        # One operator of a format that is not covered must not hide the others.
        error = str(failure)
    return OperatorReport(
        id=operator.id,
        uid=operator.uid,
        name=operator.name,
        parallelism=operator.parallelism,
        max_parallelism=operator.max_parallelism,
        finished=operator.metadata.fully_finished,
        bytes=size,
        coordinator_bytes=len(coordinator.data) if coordinator else 0,
        channel_state_handles=channels,
        states=states,
        error=error,
    )


def _report_state(state: State, *, count: bool) -> StateReport:
    statistics = state.count() if count else None
    key = namespace = None
    groups: list[list[int]] = []
    if isinstance(state, KeyedState):
        key = describe(state.key_serializer)
        namespace = describe(state.info.namespace_serializer) if state.kind != TIMER else None
        groups = [[each.start, each.end] for each in state.key_groups]
    elif isinstance(state, BroadcastState):
        key = describe(state.info.key_serializer)
    return StateReport(
        name=state.name,
        kind=state.kind,
        key=key,
        namespace=namespace,
        value=describe(state.serializer),
        subtasks=[part.subtask for part in state.parts],
        key_groups=groups,
        entries=statistics.entries if statistics else None,
        bytes=statistics.bytes if statistics else None,
        used_key_groups=len(statistics.entries_by_key_group) if statistics else None,
        undecoded=state.undecoded,
    )


def _identity(reference: StreamReference) -> object:
    handle = reference.handle
    return getattr(handle, "path", None) or getattr(handle, "relative_path", None) or handle


def _size(reference: StreamReference) -> int:
    data = getattr(reference.handle, "data", None)
    return len(data) if data is not None else int(getattr(reference.handle, "size", 0))
