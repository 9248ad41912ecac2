"""Inventory entry of a snapshot, made from its `_metadata` alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, StateError, UnsupportedError
from state_pipelines.metadata import format_operator_id, list_references
from state_pipelines.metadata.checkpoint import CheckpointProperties, SavepointType, SnapshotKind
from state_pipelines.metadata.handles import ByteStreamStateHandle
from state_pipelines.metadata.references import StateCategory, StreamRole
from state_pipelines.operations.inspect.keyed_formats import measure_handle
from state_pipelines.operations.inventory.keys import make_partition_key, name_snapshot
from state_pipelines.snapshot.snapshot import open_location
from state_pipelines.storage.snapshot_listing import find_snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from state_pipelines.metadata import OperatorState
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage.snapshot_listing import SnapshotEntry

_IN_FLIGHT = (StateCategory.INPUT_CHANNEL, StateCategory.RESULT_SUBPARTITION)
_KEYED = (StateCategory.MANAGED_KEYED, StateCategory.RAW_KEYED)


@dataclass(frozen=True)
class OperatorSummary:
    """One operator.

    Attributes:
        id: 32 hexadecimal digits.
        uid: when the snapshot stores it (from Flink 2.0 on).
        name: when the snapshot stores it.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        subtasks: subtasks that have state.
        bytes: of all its state.
        keyed_bytes: of keyed state.
        states: names of its operator states; those of keyed states are in other files than `_metadata`.
    """

    id: str
    uid: str | None
    name: str | None
    parallelism: int
    max_parallelism: int
    subtasks: int
    bytes: int
    keyed_bytes: int
    states: tuple[str, ...]

    @property
    def label(self) -> str:
        """The uid, or the id when the uid is not stored."""
        return self.uid or self.id


@dataclass(frozen=True)
class SnapshotSummary:
    """One snapshot.

    Attributes:
        path: its directory.
        root: the directory of the job in which it was found.
        name: see `name_snapshot`.
        job_id: id of the Flink job as far as the path says it, see `SnapshotName`.
        modified: when `_metadata` was written; None when the storage does not say.
        metadata_size: bytes of `_metadata`.
        key: partition key; empty when the snapshot is unreadable.
        fingerprint: of the content of `_metadata`, 16 hexadecimal digits; empty when it is unreadable.
        kind: `checkpoint`, `savepoint` or `unknown`; before Flink 1.16 what the name says.
        format: `canonical` or `native` of a savepoint; empty otherwise.
        checkpoint_id: of the checkpoint or savepoint; None when it is unreadable.
        metadata_version: version of `_metadata`; None when it is unreadable.
        bytes: of all state that the handles name, inlined state included.
        keyed_bytes: of keyed state.
        operator_bytes: of list, broadcast and raw operator state.
        in_flight_bytes: of network buffers (unaligned checkpoints).
        coordinator_bytes: of operator coordinators.
        shared_bytes: bytes of keyed state in files that other checkpoints may reference too (incremental).
        files: distinct files that the handles name, without `_metadata`.
        operators: the operators, in the order of `_metadata`.
        unreadable: why `_metadata` cannot be read; empty when it can.
        retry: the reason may pass (a storage fault), so the next update reads the snapshot again.
    """

    path: str
    root: str
    name: str
    job_id: str | None
    modified: datetime | None
    metadata_size: int
    key: str = ""
    fingerprint: str = ""
    kind: SnapshotKind = SnapshotKind.UNKNOWN
    format: str = ""
    checkpoint_id: int | None = None
    metadata_version: int | None = None
    bytes: int = 0
    keyed_bytes: int = 0
    operator_bytes: int = 0
    in_flight_bytes: int = 0
    coordinator_bytes: int = 0
    shared_bytes: int = 0
    files: int = 0
    operators: tuple[OperatorSummary, ...] = ()
    unreadable: str = ""
    retry: bool = False

    @property
    def max_parallelism(self) -> int:
        """The highest max parallelism of its operators; 0 without operators."""
        return max((each.max_parallelism for each in self.operators), default=0)


def summarise_entry(entry: SnapshotEntry, root: str) -> SnapshotSummary:
    """Open a snapshot of a listing and summarise it; a snapshot that cannot be read has the reason in its summary.

    Args:
        entry: of the listing.
        root: the directory that was listed.
    """
    directory = entry.location.directory
    name, job_id = name_snapshot(directory)
    blank = SnapshotSummary(str(directory), root, name, job_id, entry.modified, entry.size)
    try:
        return summarise_snapshot(open_location(entry.location), blank)
    except StateError as error:
        passing = not isinstance(error, FormatError | UnsupportedError)
        return replace(blank, unreadable=str(error), retry=passing)


def summarise_snapshot(snapshot: Snapshot, blank: SnapshotSummary) -> SnapshotSummary:
    """The summary of an opened snapshot, without its key.

    Args:
        snapshot: the snapshot.
        blank: what the listing says of it.
    """
    sizes: Counter[StateCategory] = Counter()
    by_operator: Counter[tuple[bytes, StateCategory]] = Counter()
    shared = 0
    files = set()
    for reference in list_references(snapshot.metadata):
        size = measure_handle(reference.handle)
        sizes[reference.category] += size
        by_operator[reference.operator.operator_id, reference.category] += size
        shared += size if reference.role is StreamRole.SHARED else 0
        if not isinstance(reference.handle, ByteStreamStateHandle):
            files.add(_identify(reference.handle))
    properties = snapshot.metadata.properties
    stored = properties.checkpoint_type if isinstance(properties, CheckpointProperties) else None
    return replace(
        blank,
        fingerprint=snapshot.fingerprint,
        kind=_guess_kind(blank.name) if snapshot.kind is SnapshotKind.UNKNOWN else snapshot.kind,
        format=stored.format_type.value.lower() if isinstance(stored, SavepointType) else "",
        checkpoint_id=snapshot.checkpoint_id,
        metadata_version=snapshot.metadata.version,
        bytes=sum(sizes.values()),
        keyed_bytes=sum(sizes[each] for each in _KEYED),
        operator_bytes=sizes[StateCategory.MANAGED_OPERATOR] + sizes[StateCategory.RAW_OPERATOR],
        in_flight_bytes=sum(sizes[each] for each in _IN_FLIGHT),
        coordinator_bytes=sizes[StateCategory.COORDINATOR],
        shared_bytes=shared,
        files=len(files),
        operators=tuple(_summarise_operator(each, by_operator) for each in snapshot.metadata.operator_states),
    )


def make_key(snapshot: Snapshot) -> str:
    """The partition key of a snapshot that has none yet; see `make_partition_key`."""
    directory = snapshot.location.directory
    name = name_snapshot(directory).name
    kind = _guess_kind(name) if snapshot.kind is SnapshotKind.UNKNOWN else snapshot.kind
    taken = None
    if kind is SnapshotKind.SAVEPOINT:
        taken = next((each.modified for each in find_snapshots(directory, depth=0)), None)
    return make_partition_key(name, snapshot.fingerprint, taken=taken)


def _summarise_operator(operator: OperatorState, sizes: Mapping[tuple[bytes, StateCategory], int]) -> OperatorSummary:
    names: dict[str, None] = {}
    for subtask in operator.subtasks:
        for handle in (subtask.managed_operator_state, subtask.raw_operator_state):
            if handle is not None:
                names |= dict.fromkeys(each.state_name for each in handle.states)
    by_category = {each: sizes.get((operator.operator_id, each), 0) for each in StateCategory}
    return OperatorSummary(
        format_operator_id(operator.operator_id),
        operator.uid,
        operator.name,
        operator.parallelism,
        operator.max_parallelism,
        len(operator.subtasks),
        sum(by_category.values()),
        sum(by_category[each] for each in _KEYED),
        tuple(names),
    )


def _guess_kind(name: str) -> SnapshotKind:
    if name.startswith("chk-"):
        return SnapshotKind.CHECKPOINT
    return SnapshotKind.SAVEPOINT if name.startswith("savepoint-") else SnapshotKind.UNKNOWN


def _identify(handle: object) -> object:
    return getattr(handle, "path", None) or getattr(handle, "relative_path", None) or handle
