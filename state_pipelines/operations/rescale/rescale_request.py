"""Requests for a rescaling, as values and in a file, and the edits of operators that they ask for.

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

JSON is YAML, too.

Operators of a snapshot renamed, dropped, taken from another one, or put beside those of a snapshot to be merged. All of
this changes metadata alone; no state is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

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
    from state_pipelines.metadata.references import StreamReference

UNION_LIMIT = 1 << 30
"""Bytes of union state that a restored job may hold altogether, unless the request says more."""


@dataclass(frozen=True, kw_only=True)
class KeyChoice:
    """Only some keys.

    Attributes:
        keys: values as `keys.encode_keys` takes them.
        keep: the keys stay and all others go; False is the other way round.
    """

    keys: tuple[object, ...]
    keep: bool = True


@dataclass(frozen=True, kw_only=True)
class OperatorRequest:
    """Request for one operator.

    Attributes:
        operator: uid or 32-digit id.
        parallelism: the new number of subtasks; None as the request says for all.
        max_parallelism: the new number of key groups; None as the request says for all.
        uid: the new uid.
        operator_id: the new id, where a job gives ids instead of uids (`setUidHash`).
        drop: the operator goes, with all its state.
        drop_states: names of states that go.
        keys: only some keys stay.
        key_hashes: (class, hash expression) of classes in the keys, instead of what is found.
    """

    operator: str
    parallelism: int | None = None
    max_parallelism: int | None = None
    uid: str | None = None
    operator_id: str | None = None
    drop: bool = False
    drop_states: tuple[str, ...] = ()
    keys: KeyChoice | None = None
    key_hashes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class TakeRequest:
    """An operator out of another snapshot.

    Attributes:
        uid: the uid (or 32-digit id) that it gets.
        snapshot: path of the other snapshot.
        operator: its uid or id there.
    """

    uid: str
    snapshot: str
    operator: str


@dataclass(frozen=True, kw_only=True)
class RescaleRequest:
    """A rescaling; one that says nothing leaves everything as it is.

    Attributes:
        parallelism: of all operators that do not say it themselves.
        max_parallelism: likewise.
        operators: by operator.
        take: operators out of other snapshots.
        merge: paths of snapshots of the same job whose state comes in.
        on_equal: what happens to entries that several of them have.
        union_limit: bytes of union state that a restored job may hold altogether; every subtask gets all of it.
        allow_idle_sources: sources that are named may get more subtasks than they know splits.
    """

    parallelism: int | None = None
    max_parallelism: int | None = None
    operators: tuple[OperatorRequest, ...] = ()
    take: tuple[TakeRequest, ...] = ()
    merge: tuple[str, ...] = ()
    on_equal: MergeRule = MergeRule.ERROR
    union_limit: int = UNION_LIMIT
    allow_idle_sources: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it asks for nothing."""
        return self == RescaleRequest(
            on_equal=self.on_equal, union_limit=self.union_limit, allow_idle_sources=self.allow_idle_sources
        )


_REQUEST = ("parallelism", "max_parallelism", "operators", "take", "merge", "union_limit", "allow_idle_sources")
_OPERATOR = (
    *("parallelism", "max_parallelism", "uid", "operator_id", "drop", "drop_states"),
    *("keep_keys", "drop_keys", "key_hash"),
)
_TAKE = ("from", "operator")
_MERGE = ("with", "on_equal")


def read_request(path: str | Path) -> tuple[dict[str, Any], Path]:
    """Content of a request file, and the directory to which names of files in it are relative.

    Raises:
        UsageError: the file cannot be read, or is no mapping.
    """
    try:
        content = parse_yaml(read_given_text(path, "the request"))
    except yaml.YAMLError as error:
        raise UsageError(f"the request is not YAML: {error}", where=Where(file=str(path))) from None
    with at(file=str(path)):
        return dict(_open(content, None, "the request")), Path(path).parent


def load_request(path: str | Path) -> RescaleRequest:
    """Read a request from a file; names of files of keys in it are relative to its directory.

    Raises:
        UsageError: the file is not such a request; says where.
    """
    content, directory = read_request(path)
    with at(file=str(path)):
        return parse_request(content, directory)


def parse_request(content: object, directory: Path = Path()) -> RescaleRequest:
    """A request from the values of a file.

    Args:
        content: what the file holds.
        directory: where files of keys lie.

    Raises:
        UsageError: it is not such a request; says where.
    """
    known = _open(content, _REQUEST, "the request")
    merge = _open(known.get("merge"), _MERGE, "merge")
    operators = _open(known.get("operators"), None, "operators")
    taken = _open(known.get("take"), None, "take")
    limit = _read_number(known, "union_limit", "the request")
    if known.get("allow_idle_sources") not in (None, True, False):
        raise UsageError("allow_idle_sources of the request is true or false")
    return RescaleRequest(
        parallelism=_read_number(known, "parallelism", "the request"),
        max_parallelism=_read_number(known, "max_parallelism", "the request"),
        operators=tuple(_parse_operator(str(name), body, directory) for name, body in operators.items()),
        take=tuple(_parse_take(str(name), body) for name, body in taken.items()),
        merge=_read_texts(merge, "with", "merge"),
        on_equal=_read_rule(merge),
        union_limit=UNION_LIMIT if limit is None else limit,
        allow_idle_sources=bool(known.get("allow_idle_sources")),
    )


def _parse_operator(name: str, content: object, directory: Path) -> OperatorRequest:
    path = f"operators.{name}"
    body = _open(content, _OPERATOR, path)
    if body.get("drop") not in (None, True, False):
        raise UsageError(f"{path}.drop is true or false")
    if body.get("drop") and len(body) > 1:
        raise UsageError(f"{path} is dropped, so nothing else can be asked of it")
    if body.get("uid") is not None and body.get("operator_id") is not None:
        raise UsageError(f"{path} gets a uid or an operator_id, not both")
    new_id = body.get("operator_id")
    with at(path=path):
        return OperatorRequest(
            operator=name,
            parallelism=_read_number(body, "parallelism", path),
            max_parallelism=_read_number(body, "max_parallelism", path),
            uid=None if body.get("uid") is None else str(body["uid"]),
            operator_id=None if new_id is None else parse_operator_id(str(new_id)).hex(),
            drop=bool(body.get("drop")),
            drop_states=_read_texts(body, "drop_states", path),
            keys=_read_keys(body, path, directory),
            key_hashes=tuple(
                (str(class_name), str(text))
                for class_name, text in _open(body.get("key_hash"), None, f"{path}.key_hash").items()
            ),
        )


def _parse_take(uid: str, content: object) -> TakeRequest:
    body = _open(content, _TAKE, f"take.{uid}")
    if body.get("from") is None:
        raise UsageError(f"take.{uid} says no snapshot", hint="Such as from: s3://bucket/savepoint-1a2b")
    return TakeRequest(uid=uid, snapshot=str(body["from"]), operator=str(body.get("operator", uid)))


def _open(content: object, known: tuple[str, ...] | None, path: str) -> Mapping[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a mapping but {redact(repr(content))[:60]}")
    if known is not None:
        for name in content:
            if name not in known:
                raise UsageError(f"{path} does not know {name!r}", hint=f"It knows {', '.join(known)}")
    return content


def _read_number(content: Mapping[str, Any], name: str, path: str) -> int | None:
    value = content.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{name} of {path} is not a whole number but {value!r}")
    return value


def _read_texts(content: Mapping[str, Any], name: str, path: str) -> tuple[str, ...]:
    value = content.get(name) or []
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise UsageError(f"{name} of {path} is not a list but {redact(repr(value))[:60]}")
    return tuple(map(str, value))


def _read_rule(merge: Mapping[str, Any]) -> MergeRule:
    value = merge.get("on_equal", MergeRule.ERROR.value)
    try:
        return MergeRule(value)
    except ValueError:
        known = ", ".join(each.value for each in MergeRule)
        raise UsageError(f"on_equal of merge is {value!r}", hint=f"Choose from {known}") from None


def _read_keys(content: Mapping[str, Any], path: str, directory: Path) -> KeyChoice | None:
    chosen = [name for name in ("keep_keys", "drop_keys") if content.get(name) is not None]
    if not chosen:
        return None
    if len(chosen) > 1:
        raise UsageError(f"{path} has keep_keys and drop_keys; one of them says it all")
    value = content[chosen[0]]
    if isinstance(value, dict):
        value = read_keys(directory / str(_open(value, ("file",), f"{path}.{chosen[0]}").get("file", "")))
    if not isinstance(value, list):
        raise UsageError(f"{chosen[0]} of {path} is neither a list nor {{file: ...}}")
    return KeyChoice(keys=tuple(value), keep=chosen[0] == "keep_keys")


def read_keys(path: str | Path) -> list[object]:
    """Keys from a file with one JSON value per line.

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
