"""Operators of a snapshot renamed, dropped, taken from another one, or put beside those of a snapshot to be merged.

All of this changes metadata alone; no state is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import UnsupportedError, UsageError, ValueRangeError, Where
from state_pipelines.metadata import CheckpointMetadata, list_references, replace_stream_handles, with_version
from state_pipelines.metadata.checkpoint import (
    compute_operator_id,
    find_operator_id,
    format_operator_id,
    is_operator_id,
)
from state_pipelines.metadata.handles import FileStateHandle, RelativeFileStateHandle, SegmentFileStateHandle
from state_pipelines.metadata.streams import locate_file
from state_pipelines.operations.jobs.job_state import describe_job
from state_pipelines.operations.rescale.rescale_request import OperatorRequest
from state_pipelines.serializers.tree import Kryo
from state_pipelines.snapshot import Declarations, Operator, Snapshot
from state_pipelines.storage import PathMapping
from state_pipelines.storage.locations import cut_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from state_pipelines.metadata import OperatorState
    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.metadata.references import StreamReference
    from state_pipelines.operations.rescale.rescale_request import RescaleRequest, TakeRequest

FIRST_VERSION_WITH_UIDS = 5


_KRYO_OF_FLINK_2 = 5


@dataclass(frozen=True)
class EditedOperator:
    """An operator of the new snapshot, before its state is changed.

    Attributes:
        operator: of the edited snapshot.
        merged: the same operator in the snapshots that are merged, those of them that have it.
        request: what happens to it.
        former: how it was called.
    """

    operator: Operator
    merged: tuple[Operator, ...]
    request: OperatorRequest
    former: str


@dataclass(frozen=True)
class EditedSnapshot:
    """A snapshot with the operators that the new one will have.

    Attributes:
        snapshot: the old state under the new operators; it exists in memory only.
        operators: in the order of the metadata.
        dropped: labels of the operators that went.
        notes: what the edits mean and cannot do.
    """

    snapshot: Snapshot
    operators: tuple[EditedOperator, ...]
    dropped: tuple[str, ...]
    notes: tuple[str, ...]


def edit_operators(snapshot: Snapshot, request: RescaleRequest, others: Mapping[str, Snapshot]) -> EditedSnapshot:
    """The operators that the new snapshot will have.

    Args:
        snapshot: the old snapshot.
        request: what is asked for.
        others: by path the snapshots that the request takes from or merges.

    Raises:
        NotFoundError: the request names an operator that is not there.
        UsageError: two operators would have one id, or the request names an operator twice.
        UnsupportedError: a snapshot is of another major release of Flink.
    """
    requests = _find_requests(snapshot, request)
    _check_releases(snapshot, request, others)
    _check_merged(snapshot, request, others)
    version = max([snapshot.metadata.version, *(other.metadata.version for other in others.values())])
    start = with_version(_make_absolute(snapshot) if others else snapshot.metadata, version)
    absolute = {path: _make_absolute(other) for path, other in others.items()}
    stand_ins = {path: _stand_in(other, absolute[path]) for path, other in others.items()}
    notes: list[str] = []

    states: list[OperatorState] = []
    former: dict[bytes, str] = {}
    asked: dict[bytes, OperatorRequest] = {}
    dropped = []
    for operator, state in zip(snapshot.operators, start.operator_states, strict=True):
        mine = requests.get(operator.metadata.operator_id, OperatorRequest(operator=operator.label))
        if mine.drop:
            dropped.append(operator.label)
            continue
        named = _rename(state, mine, version)
        states.append(named)
        former[named.operator_id] = operator.label
        asked[named.operator_id] = mine
    gone = {identity for identity, each in requests.items() if each.drop}
    _check_taken(snapshot, request, others, gone)
    for take in request.take:
        taken = _take(take, others[take.snapshot], absolute[take.snapshot], version)
        states.append(taken)
        former[taken.operator_id] = f"{take.operator} of {take.snapshot}"
        notes.append(f"operator {take.uid} comes from {take.snapshot}")
    # By new id. Another operator may have that of one that goes.
    olds = {
        _new_id(requests.get(each.metadata.operator_id), each): each.metadata
        for each in snapshot.operators
        if each.metadata.operator_id not in gone
    }
    for path in request.merge:
        known = {each.operator_id for each in olds.values()} | gone
        notes += _note_master_states(snapshot, others[path])
        for state in absolute[path].operator_states:
            if state.operator_id in gone and state.operator_id in former:
                label = snapshot.operator(state.operator_id.hex()).label
                notes.append(
                    f"operator {label} of {path} does not come in: {label} of {snapshot.path} is dropped, and "
                    f"{former[state.operator_id]} gets its id"
                )
            if state.operator_id not in known:
                if state.operator_id in former:
                    raise UnsupportedError(
                        f"operator {state.uid or state.operator_id.hex()} is in several of the merged snapshots, but "
                        f"not in {snapshot.path}",
                        hint="Merge those that have it first, and the result into this one",
                    )
                states.append(state)
                label = state.uid or state.operator_id.hex()
                former[state.operator_id] = f"{label} of {path}"
                notes.append(f"operator {label} is only in {path}; it comes in as it is")
    _check_ids(states)
    edited = Snapshot(
        snapshot.location,
        replace(start, operator_states=tuple(states)),
        _allow_files([start, *absolute.values()]) if others else snapshot.path_mapping,
        _follow(snapshot, request, requests, others),
    )
    operators = []
    for operator in edited.operators:
        identity = operator.metadata.operator_id
        old = olds.get(identity)
        merged = tuple(
            each
            for path in request.merge
            if old is not None
            for each in stand_ins[path].operators
            if each.metadata.operator_id == old.operator_id
        )
        own = asked.get(identity, OperatorRequest(operator=operator.label))
        operators.append(EditedOperator(operator, merged, own, former[identity]))
    return EditedSnapshot(edited, tuple(operators), tuple(dropped), tuple(notes))


def _find_requests(snapshot: Snapshot, request: RescaleRequest) -> dict[bytes, OperatorRequest]:
    found: dict[bytes, OperatorRequest] = {}
    for each in request.operators:
        identity = snapshot.operator(each.operator).metadata.operator_id
        if identity in found:
            raise UsageError(f"the request names the operator {each.operator} twice")
        found[identity] = each
    return found


def _new_id(request: OperatorRequest | None, operator: Operator) -> bytes:
    if request is not None and request.uid is not None:
        return compute_operator_id(request.uid)
    if request is not None and request.operator_id is not None:
        return bytes.fromhex(request.operator_id)
    return operator.metadata.operator_id


def _rename(state: OperatorState, request: OperatorRequest, version: int) -> OperatorState:
    if request.uid is not None:
        stored = request.uid if version >= FIRST_VERSION_WITH_UIDS else None
        return _with_id(state, compute_operator_id(request.uid), stored)
    if request.operator_id is not None:
        return _with_id(state, bytes.fromhex(request.operator_id), None)
    return state


def _with_id(state: OperatorState, operator_id: bytes, uid: str | None) -> OperatorState:
    """Give an operator another id and uid.

    Raises:
        UsageError: the uid is longer than `_metadata` can store.
    """
    try:
        Writer().utf(uid or "")
    except ValueRangeError as error:
        raise UsageError(f"the uid {uid:.60}… cannot be stored: {error.what}") from None
    coordinator = state.coordinator_state
    if coordinator is not None:
        coordinator = replace(coordinator, handle_name=format_operator_id(operator_id))
    return replace(state, operator_id=operator_id, uid=uid, coordinator_state=coordinator)


def _check_taken(
    snapshot: Snapshot, request: RescaleRequest, others: Mapping[str, Snapshot], gone: AbstractSet[bytes]
) -> None:
    """Refuse to take an operator that stays, is merged or is taken again: two operators would have its files.

    Raises:
        UsageError: that is asked for.
    """
    used = {(snapshot.fingerprint, each.metadata.operator_id): "stays" for each in snapshot.operators}
    used |= {
        (others[path].fingerprint, each.metadata.operator_id): f"of {path} is merged"
        for path in request.merge
        for each in others[path].operators
    }
    # A dropped operator neither stays nor is merged.
    used = {key: how for key, how in used.items() if key[1] not in gone}
    for take in request.take:
        other = others[take.snapshot]
        key = other.fingerprint, other.operator(take.operator).metadata.operator_id
        if key in used:
            raise UsageError(
                f"operator {take.operator} {used[key]}, and its state would be in {take.uid}, too",
                hint="Rename it instead (--rename), take it once only, or take it from a copy of the snapshot "
                "(convert --format keep)",
            )
        used[key] = f"of {take.snapshot} is taken as {take.uid}"


def _note_master_states(snapshot: Snapshot, other: Snapshot) -> list[str]:
    """Note state of master hooks that is left out: a job has one of each hook, and nothing says how to join two."""
    kept = snapshot.metadata.master_states
    names = [each.name for each in other.metadata.master_states if each not in kept]
    return [f"the state of master hooks of {other.path} does not come in: {', '.join(names)}"] if names else []


def _take(take: TakeRequest, other: Snapshot, metadata: CheckpointMetadata, version: int) -> OperatorState:
    identity = other.operator(take.operator).metadata.operator_id
    state = next(each for each in metadata.operator_states if each.operator_id == identity)
    stored = take.uid if version >= FIRST_VERSION_WITH_UIDS and not is_operator_id(take.uid) else None
    return _with_id(state, find_operator_id(take.uid), stored)


def _check_ids(states: Sequence[OperatorState]) -> None:
    seen: set[bytes] = set()
    for state in states:
        if state.operator_id in seen:
            raise UsageError(
                f"two operators would have the id {state.operator_id.hex()}",
                where=Where(operator=state.uid),
                hint="Drop one of them, or give one another uid",
            )
        seen.add(state.operator_id)


def _check_releases(snapshot: Snapshot, request: RescaleRequest, others: Mapping[str, Snapshot]) -> None:
    """Refuse generic types of Flink 1.x beside state of 2.x: `_metadata` would say that Kryo 5 wrote them."""
    snapshots = (snapshot, *others.values())
    if len({each.kryo_version for each in snapshots}) == 1:
        return
    newer = next(each for each in snapshots if each.kryo_version == _KRYO_OF_FLINK_2)
    for old in snapshots:
        if old.kryo_version == _KRYO_OF_FLINK_2:
            continue
        asked = [each.operator for each in request.take if others[each.snapshot] is old]
        taken = {old.operator(name).metadata.operator_id.hex() for name in asked}
        is_whole = old is snapshot or any(others[path] is old for path in request.merge)
        for operator in describe_job(old).operators:
            if not is_whole and operator.id not in taken:
                continue
            if operator.unread or any(isinstance(node, Kryo) for node in operator.list_serializers()):
                raise UnsupportedError(
                    f"{old.path} is of Flink 1.x, {newer.path} of Flink 2.x; generic types have other bytes there",
                    where=Where(operator=operator.label),
                    hint="Restore the older one with the newer Flink first and take a savepoint",
                )


def _check_merged(snapshot: Snapshot, request: RescaleRequest, others: Mapping[str, Snapshot]) -> None:
    """Refuse to merge a snapshot with itself: list and union state would be there twice."""
    seen = {snapshot.fingerprint: snapshot.path}
    for path in request.merge:
        other = others[path]
        if other.fingerprint in seen:
            raise UsageError(
                f"{other.path} is the same snapshot as {seen[other.fingerprint]}", hint="Merge it once only"
            )
        seen[other.fingerprint] = other.path


def _stand_in(other: Snapshot, metadata: CheckpointMetadata) -> Snapshot:
    """Another snapshot with handles that any reader opens."""
    return Snapshot(other.location, metadata, _allow_files([metadata]), other.declarations)


def _make_absolute(snapshot: Snapshot) -> CheckpointMetadata:
    """Its metadata with handles that mean the same from anywhere."""

    def locate(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if not isinstance(handle, FileStateHandle | RelativeFileStateHandle | SegmentFileStateHandle):
            return handle
        path = locate_file(handle, snapshot.location.directory, snapshot.path_mapping).url
        if isinstance(handle, SegmentFileStateHandle):
            return replace(handle, path=path)
        return FileStateHandle(path, handle.size)

    return replace_stream_handles(snapshot.metadata, locate)


def _allow_files(located: Iterable[CheckpointMetadata]) -> PathMapping:
    """Allow the directories of the files that `_make_absolute` has located in reach of their snapshots."""
    handles = (reference.handle for metadata in located for reference in list_references(metadata))
    paths = (each.path for each in handles if isinstance(each, FileStateHandle | SegmentFileStateHandle))
    return PathMapping().allow(cut_directory(path) for path in paths)


def _follow(
    snapshot: Snapshot,
    request: RescaleRequest,
    requests: Mapping[bytes, OperatorRequest],
    others: Mapping[str, Snapshot],
) -> Declarations:
    """Declarations of the snapshot, and those about operators that are taken from others, under the new ids."""
    declared = snapshot.declarations
    own = [
        declared.of_operator(identity, _new_id(requests.get(identity), operator))
        for operator in snapshot.operators
        if (identity := operator.metadata.operator_id)
    ]
    taken = [
        others[take.snapshot].declarations.of_operator(
            others[take.snapshot].operator(take.operator).metadata.operator_id, find_operator_id(take.uid)
        )
        for take in request.take
    ]
    uids = (*(each.uid for each in request.operators if each.uid), *(each.uid for each in request.take))
    return declared.of_all_operators().merge(Declarations(uids=uids), *own, *taken)
