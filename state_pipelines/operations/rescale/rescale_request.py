"""Requests for a rescaling, as values and in a file, and the edits of operators that they ask for.

`read_request` and `load_request` read a `RescaleRequest`. JSON is YAML, too.

    parallelism: 6                    # of all operators; left out: as it is
    max_parallelism: 1024             # of all operators
    operators:
      orders:                         # uid, or 32-digit id
        parallelism: 12
        max_parallelism: 512
        uid: orders-v2                # the new uid
        key_hash: {com.acme.OrderKey: "objects(customer, region)"}
        drop_states: [cache]
      sessions:
        keep_keys: [alice, bob]       # values as `dump` shows them, or {file: keys.jsonl}
      obsolete: {drop: true}
      legacy: {operator_id: 0a44...}  # the new id, as `setUidHash` gives it
    take:
      enriched: {from: s3://bucket/other-savepoint, operator: enricher}
    merge:
      with: [s3://bucket/eu-savepoint]
      on_equal: error                 # or first, or last: what happens to keys that several have
    allow_idle_sources: true          # sources may get more subtasks than they know splits
    union_limit: 1073741824           # bytes of union state that a restored job may hold in all its subtasks together

`edit_operators`: operators of a snapshot renamed, dropped, taken from another one, or added to those of a snapshot to
be merged. All of this changes metadata alone; no state is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import UnsupportedError, UsageError, ValueRangeError, Where, at
from state_pipelines.metadata import CheckpointMetadata, list_references, replace_stream_handles, with_version
from state_pipelines.metadata.checkpoint import (
    compute_operator_id,
    find_operator_id,
    format_operator_id,
    is_operator_id,
    parse_operator_id,
)
from state_pipelines.metadata.handles import FileStateHandle, RelativeFileStateHandle, SegmentFileStateHandle
from state_pipelines.metadata.streams import locate_file
from state_pipelines.operations.jobs.job_state import describe_job
from state_pipelines.operations.models import OperationModel, Option, Subjects, Text, Texts
from state_pipelines.operations.rescale.snapshot_merge import MergeRule
from state_pipelines.redaction import redact
from state_pipelines.serializers.tree import Kryo
from state_pipelines.snapshot import Declarations, Operator, Snapshot
from state_pipelines.storage import PathMapping
from state_pipelines.storage.documents import MOST_LINES, parse_yaml, read_given_text
from state_pipelines.storage.locations import cut_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from state_pipelines.metadata import OperatorState
    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.metadata.streams import StreamReference

UNION_LIMIT = 1 << 30
"""Default limit of union state: bytes that all subtasks of an operator together hold after a restore."""


@dataclass(frozen=True)
class KeyChoice:
    """Keys of an operator whose records a request keeps or removes.

    Attributes:
        keys: values of keys, as `keys.encode_keys` takes them.
        keep: True to remove the records of all other keys, False to remove those of these keys.
    """

    keys: tuple[object, ...]
    keep: bool = True


def _read_chosen_keys(value: object, info: ValidationInfo) -> object:
    """Validate keys of a request: a list, or `{file: NAME}`, whose keys are read.

    The name is relative to the `directory` in the context of the validation; without it files are refused.
    """
    if isinstance(value, dict) and set(value) <= {"file"}:
        directory = (info.context or {}).get("directory")
        if directory is None:
            raise ValueError(
                f"names a file, which a run cannot read: write the keys into the request, such as {info.field_name}: "
                "[alice, bob]"
            )
        value = read_keys(directory / str(value.get("file", "")))
    if not isinstance(value, list | tuple):
        raise ValueError("is neither a list nor {file: ...}")
    return tuple(value)


def _parse_id(value: str) -> str:
    try:
        return parse_operator_id(value).hex()
    except UsageError as error:
        raise ValueError(f"is wrong: {error.what}") from None


_Keys = Annotated[tuple[Any, ...], BeforeValidator(_read_chosen_keys)]


class OperatorRequest(OperationModel):
    """Request for one operator."""

    parallelism: Annotated[int | None, Option(value="N")] = None
    """Subtasks, of all operators or of one."""

    max_parallelism: Annotated[int | None, Option(value="M")] = None
    """Key groups, of all operators or of one."""

    uid: Annotated[Text | None, Option("--rename", value="UID")] = None
    """A new uid; OPERATOR is a uid or a 32-digit id."""

    operator_id: Annotated[Annotated[Text, AfterValidator(_parse_id)] | None, Option(value="ID")] = None
    """A new id of 32 digits, where a job gives ids instead of uids (`setUidHash`)."""

    drop: Annotated[bool, Option("--drop-operator")] = False
    """An operator goes, with its state."""

    drop_states: Annotated[Texts, Option("--drop-state", value="STATE")] = ()
    """A state of an operator goes."""

    keep_keys: Annotated[_Keys | None, Option(value="FILE", is_file=True)] = None
    """Only these keys stay: a file with one JSON value per line, as `dump` shows them; in a request a list, too."""

    drop_keys: Annotated[_Keys | None, Option(value="FILE", is_file=True)] = None
    """These keys go."""

    key_hash: Annotated[dict[str, Text], Option(value="EXPRESSION", subject="CLASS")] = Field(default_factory=dict)
    """hashCode of a class in the keys, where key groups change, such as objects(a, b)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.drop and self.model_fields_set != {"drop"}:
            raise ValueError("is dropped, so nothing else can be asked of it")
        if self.uid is not None and self.operator_id is not None:
            raise ValueError("gets a uid or an operator_id, not both")
        if self.keep_keys is not None and self.drop_keys is not None:
            raise ValueError("has both keep_keys and drop_keys: give one of them")
        return self

    @property
    def keys(self) -> KeyChoice | None:
        """The choice of `keep_keys` or `drop_keys`; None if all keys stay."""
        if self.keep_keys is not None:
            return KeyChoice(self.keep_keys)
        return None if self.drop_keys is None else KeyChoice(self.drop_keys, keep=False)


class TakeRequest(OperationModel):
    """An operator out of another snapshot."""

    snapshot: Annotated[Text, Option("--take", value="SNAPSHOT")] = Field(validation_alias="from")
    """An operator of this uid (or 32-digit id) comes from another snapshot."""

    operator: Annotated[Text | None, Option("--take-operator", value="OPERATOR")] = None
    """The uid or id that an operator which is taken has in the other snapshot, where it is another one."""


class MergeRequest(OperationModel):
    """The state of other snapshots of the same job."""

    snapshots: Annotated[Texts, Option("--merge", value="SNAPSHOT")] = Field(default=(), validation_alias="with")
    """The state of another snapshot of the same job comes in."""

    on_equal: Annotated[MergeRule, Field(strict=False)] = MergeRule.ERROR
    """Treatment of entries that several merged snapshots have."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "on_equal" in self.model_fields_set and not self.snapshots:
            raise ValueError(
                "has on_equal (--on-equal), which has no effect without other snapshots (with, --merge): it is about "
                "entries that several snapshots have"
            )
        return self


class RescaleRequest(OperationModel):
    """A rescaling; one that says nothing leaves everything as it is."""

    parallelism: Annotated[int | None, Option(value="N")] = None
    """Subtasks of all operators that do not say it themselves; by default unchanged."""

    max_parallelism: Annotated[int | None, Option(value="M")] = None
    """Key groups of all operators that do not say it themselves; by default unchanged."""

    operators: Annotated[dict[str, OperatorRequest], Subjects, Option(subject="OPERATOR")] = Field(default_factory=dict)
    """By uid or 32-digit id: what happens to one operator."""

    take: Annotated[dict[str, TakeRequest], Subjects, Option(subject="UID")] = Field(default_factory=dict)
    """By the uid that they get: operators out of other snapshots."""

    merge: MergeRequest = Field(default_factory=MergeRequest)
    """Snapshots of the same job whose state comes in."""

    union_limit: Annotated[int, Option(value="BYTES")] = UNION_LIMIT
    """Bytes of union state that a restored job may hold altogether; every subtask gets all of it."""

    allow_idle_sources: bool = False
    """A source that is named may get more subtasks than it knows splits."""

    @property
    def is_empty(self) -> bool:
        """Whether the request changes nothing."""
        return not (
            self.parallelism is not None
            or self.max_parallelism is not None
            or self.operators
            or self.take
            or self.merge.snapshots
        )


def read_request(path: str | Path) -> tuple[dict[str, Any], Path]:
    """Read a request file. Return its content, and its directory, to which names of files in it are relative.

    Raises:
        UsageError: the file cannot be read, is not YAML, or its content is not a mapping.
    """
    try:
        content = parse_yaml(read_given_text(path, "the request"))
    except yaml.YAMLError as error:
        raise UsageError(f"the request is not YAML: {error}", where=Where(file=str(path))) from None
    if not isinstance(content, dict | None):
        shown = redact(repr(content))[:60]
        raise UsageError(f"the request is not a mapping but {shown}", where=Where(file=str(path)))
    return dict(content or {}), Path(path).parent


def load_request(path: str | Path) -> RescaleRequest:
    """Read a request from a YAML file. Names of files with keys are relative to the directory of this file.

    Raises:
        UsageError: the file is not a valid request; the error names the wrong field.
    """
    content, directory = read_request(path)
    with at(file=str(path)):
        return parse_request(content, directory)


def parse_request(content: object, directory: Path | None = Path()) -> RescaleRequest:
    """Make a request from the parsed content of a request file.

    Args:
        content: the content, such as a mapping.
        directory: directory to which names of files with keys are relative; None refuses such names.

    Raises:
        UsageError: the content is not a valid request; the error names the wrong field.
    """
    return RescaleRequest.parse(content, directory=directory)


def read_keys(path: str | Path) -> list[object]:
    """Read keys from a file with one JSON value per line.

    Raises:
        UsageError: the file cannot be read, or a line is not JSON.
    """
    lines = read_given_text(path, "the keys", most=MOST_LINES).splitlines()
    keys = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                keys.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                hint = 'One JSON value per line, text in quotes: "alice"'
                raise UsageError(
                    f"line {number} is not JSON: {error}", where=Where(file=str(path)), hint=hint
                ) from None
    return keys


FIRST_VERSION_WITH_UIDS = 5


_KRYO_OF_FLINK_2 = 5


@dataclass(frozen=True)
class EditedOperator:
    """An operator of the new snapshot with its old state, under its new id and uid.

    Attributes:
        operator: the operator in `EditedSnapshot.snapshot`.
        merged: the same operator in the snapshots that are merged, if they have it.
        request: the request for this operator.
        former: its old label; for an operator of another snapshot with the path of that snapshot.
    """

    operator: Operator
    merged: tuple[Operator, ...]
    request: OperatorRequest
    former: str


@dataclass(frozen=True)
class EditedSnapshot:
    """The old snapshot with the operators of the new one: renamed, dropped, or taken from other snapshots.

    Attributes:
        snapshot: the old snapshot with edited metadata; it exists in memory only.
        operators: the operators, in the order of the metadata.
        dropped: labels of the operators that are dropped.
        notes: remarks for the user about the edits, for instance about state that is left out.
    """

    snapshot: Snapshot
    operators: tuple[EditedOperator, ...]
    dropped: tuple[str, ...]
    notes: tuple[str, ...]


def edit_operators(snapshot: Snapshot, request: RescaleRequest, others: Mapping[str, Snapshot]) -> EditedSnapshot:
    """Rename, drop and take operators in the metadata of the old snapshot, and find the operators to merge.

    Args:
        snapshot: the old snapshot.
        request: the request.
        others: by path the snapshots from which the request takes operators, and those that it merges.

    Raises:
        NotFoundError: the request names an operator that does not exist.
        UsageError: two operators would have one id, or the request names an operator twice.
        UnsupportedError: a snapshot is of another major release of Flink and has generic types, or an operator to merge
            is in several of the other snapshots, but not in this one.
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
        mine = requests.get(operator.metadata.operator_id, OperatorRequest())
        if mine.drop:
            dropped.append(operator.label)
            continue
        named = _rename(state, mine, version)
        states.append(named)
        former[named.operator_id] = operator.label
        asked[named.operator_id] = mine
    gone = {identity for identity, each in requests.items() if each.drop}
    _check_taken(snapshot, request, others, gone)
    for uid, take in request.take.items():
        taken = _take(uid, take, others[take.snapshot], absolute[take.snapshot], version)
        states.append(taken)
        former[taken.operator_id] = f"{take.operator or uid} of {take.snapshot}"
        notes.append(f"operator {uid} comes from {take.snapshot}")
    # Look old operators up by their new ids: an operator may get the id of another one that is dropped.
    olds = {
        _new_id(requests.get(each.metadata.operator_id), each): each.metadata
        for each in snapshot.operators
        if each.metadata.operator_id not in gone
    }
    for path in request.merge.snapshots:
        known = {each.operator_id for each in olds.values()} | gone
        notes += _note_master_states(snapshot, others[path])
        for state in absolute[path].operator_states:
            if state.operator_id in gone and state.operator_id in former:
                label = snapshot.operator(state.operator_id.hex()).label
                notes.append(
                    f"operator {label} of {path} is left out: {label} of {snapshot.path} is dropped, and "
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
                notes.append(f"operator {label} is only in {path}; it is taken as it is")
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
            for path in request.merge.snapshots
            if old is not None
            for each in stand_ins[path].operators
            if each.metadata.operator_id == old.operator_id
        )
        own = asked.get(identity, OperatorRequest())
        operators.append(EditedOperator(operator, merged, own, former[identity]))
    return EditedSnapshot(edited, tuple(operators), tuple(dropped), tuple(notes))


def _find_requests(snapshot: Snapshot, request: RescaleRequest) -> dict[bytes, OperatorRequest]:
    found: dict[bytes, OperatorRequest] = {}
    for name, each in request.operators.items():
        identity = snapshot.operator(name).metadata.operator_id
        if identity in found:
            raise UsageError(f"the request names the operator {name} twice")
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
    """Return the operator with another id and uid.

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
    """Check that no operator is taken from another snapshot that also stays, is merged or is taken a second time.

    Otherwise two operators of the new snapshot would share the files of that operator.

    Args:
        snapshot: the old snapshot.
        request: the request.
        others: the other snapshots, by path.
        gone: ids of the operators that are dropped.

    Raises:
        UsageError: the request takes such an operator.
    """
    used = {(snapshot.fingerprint, each.metadata.operator_id): "stays" for each in snapshot.operators}
    used |= {
        (others[path].fingerprint, each.metadata.operator_id): f"of {path} is merged"
        for path in request.merge.snapshots
        for each in others[path].operators
    }
    # A dropped operator neither stays nor is merged.
    used = {key: how for key, how in used.items() if key[1] not in gone}
    for uid, take in request.take.items():
        other = others[take.snapshot]
        key = other.fingerprint, other.operator(take.operator or uid).metadata.operator_id
        if key in used:
            raise UsageError(
                f"operator {take.operator or uid} {used[key]}, and its state would be in {uid}, too",
                hint="Rename it instead (--rename), take it once only, or take it from a copy of the snapshot "
                "(convert --format keep)",
            )
        used[key] = f"of {take.snapshot} is taken as {uid}"


def _note_master_states(snapshot: Snapshot, other: Snapshot) -> list[str]:
    """Warn of the state of master hooks in a merged snapshot, which is left out unless it equals that of `snapshot`.

    A job has one state for each hook, and there is no rule how to join two.
    """
    kept = snapshot.metadata.master_states
    names = [each.name for each in other.metadata.master_states if each not in kept]
    return [f"the state of master hooks of {other.path} is left out: {', '.join(names)}"] if names else []


def _take(uid: str, take: TakeRequest, other: Snapshot, metadata: CheckpointMetadata, version: int) -> OperatorState:
    identity = other.operator(take.operator or uid).metadata.operator_id
    state = next(each for each in metadata.operator_states if each.operator_id == identity)
    stored = uid if version >= FIRST_VERSION_WITH_UIDS and not is_operator_id(uid) else None
    return _with_id(state, find_operator_id(uid), stored)


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
    """Refuse to put Kryo-serialized state of Flink 1.x into one snapshot with state of Flink 2.x.

    `_metadata` of the new snapshot would say that Kryo 5 (Flink 2.x) wrote all of it. But Kryo 2 (Flink 1.x) writes
    other bytes.
    """
    snapshots = (snapshot, *others.values())
    if len({each.kryo_version for each in snapshots}) == 1:
        return
    newer = next(each for each in snapshots if each.kryo_version == _KRYO_OF_FLINK_2)
    for old in snapshots:
        if old.kryo_version == _KRYO_OF_FLINK_2:
            continue
        asked = [each.operator or uid for uid, each in request.take.items() if others[each.snapshot] is old]
        taken = {old.operator(name).metadata.operator_id.hex() for name in asked}
        is_whole = old is snapshot or any(others[path] is old for path in request.merge.snapshots)
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
    """Refuse to merge a snapshot with itself: the new snapshot would have its list and union state twice."""
    seen = {snapshot.fingerprint: snapshot.path}
    for path in request.merge.snapshots:
        other = others[path]
        if other.fingerprint in seen:
            raise UsageError(
                f"{other.path} is the same snapshot as {seen[other.fingerprint]}", hint="Merge it once only"
            )
        seen[other.fingerprint] = other.path


def _stand_in(other: Snapshot, metadata: CheckpointMetadata) -> Snapshot:
    """Return the snapshot `other` with the result of `_make_absolute`, which names files by absolute paths."""
    return Snapshot(other.location, metadata, _allow_files([metadata]), other.declarations)


def _make_absolute(snapshot: Snapshot) -> CheckpointMetadata:
    """Return the metadata of a snapshot with the absolute path of each file instead of relative or moved ones."""

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
    """Make a path mapping that allows to read from the directories of all files in metadata of `_make_absolute`.

    `_make_absolute` has checked that the snapshots may name these files.
    """
    handles = (reference.handle for metadata in located for reference in list_references(metadata))
    paths = (each.path for each in handles if isinstance(each, FileStateHandle | SegmentFileStateHandle))
    return PathMapping().allow(cut_directory(path) for path in paths)


def _follow(
    snapshot: Snapshot,
    request: RescaleRequest,
    requests: Mapping[bytes, OperatorRequest],
    others: Mapping[str, Snapshot],
) -> Declarations:
    """Collect the user's declarations for the new snapshot.

    These are the declarations of the old snapshot, and those of other snapshots about operators that are taken from
    them. Declarations about an operator get its new id.
    """
    declared = snapshot.declarations
    own = [
        declared.of_operator(identity, _new_id(requests.get(identity), operator))
        for operator in snapshot.operators
        if (identity := operator.metadata.operator_id)
    ]
    taken = [
        others[take.snapshot].declarations.of_operator(
            others[take.snapshot].operator(take.operator or uid).metadata.operator_id, find_operator_id(uid)
        )
        for uid, take in request.take.items()
    ]
    uids = (*(each.uid for each in request.operators.values() if each.uid), *request.take)
    return declared.of_all_operators().merge(Declarations(uids=uids), *own, *taken)
