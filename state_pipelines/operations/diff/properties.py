"""Properties of both snapshots that `diff` compares besides records.

Properties that say where, when and in which format a snapshot was taken are shown and do not count: path, kind,
checkpoint id, fingerprint, sizes, formats of keyed state, names that only some versions of Flink store.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError, StorageError
from state_pipelines.operations.diff.diff_report import Property
from state_pipelines.operations.inspect.keyed_formats import find_keyed_formats
from state_pipelines.serializers.merged_subclasses import join_serializers
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import Ttl, TtlAware
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.operator_state import BroadcastState, BytesState

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Operator, Snapshot, State

Values = dict[str, object]


def compare_snapshots(one: Snapshot, other: Snapshot, *, counts: bool) -> tuple[Property, ...]:
    """Properties of two snapshots.

    Args:
        one: the one.
        other: the other.
        counts: whether any of them counts; not where only a part of the snapshots is compared.
    """
    # A copy may have a newer version of the metadata and the same state; what the version says of Kryo counts.
    uncounted = ("kind", "metadata version", "checkpoint id", "fingerprint", "bytes")
    return _pair(_describe_snapshot(one), _describe_snapshot(other), uncounted, counts=counts)


def compare_operators(one: Operator | None, other: Operator | None, *, counts: bool) -> tuple[Property, ...]:
    """Properties of an operator; see `compare_snapshots`."""
    first, second = ({} if each is None else _describe_operator(each) for each in (one, other))
    return _pair(first, second, ("uid", "name", "keyed formats"), counts=counts and None not in (one, other))


def compare_states(one: State | None, other: State | None) -> tuple[Property, ...]:
    """Properties of a state; one that a snapshot does not have has none.

    Serializers that differ only in the subclasses of POJOs that each has met are shown and do not count: records name
    their class themselves, and subtasks of one job often differ so.
    """
    first, second = ({} if each is None else _describe_state(each) for each in (one, other))
    if one is None or other is None:
        return _pair(first, second, (), counts=False)
    known = _list_serializers(other)
    joined = [
        name
        for name, serializer in _list_serializers(one).items()
        if name in known and join_serializers(serializer, known[name]) is not None
    ]
    return _pair(first, second, tuple(joined), counts=True)


def _pair(one: Values, other: Values, uncounted: tuple[str, ...], *, counts: bool) -> tuple[Property, ...]:
    names = dict.fromkeys((*one, *other))
    return tuple(Property(name, one.get(name), other.get(name), counts and name not in uncounted) for name in names)


def _describe_snapshot(snapshot: Snapshot) -> Values:
    return {
        "kind": snapshot.kind,
        "metadata version": snapshot.metadata.version,
        "Kryo version": snapshot.kryo_version,
        "checkpoint id": snapshot.checkpoint_id,
        "fingerprint": snapshot.fingerprint,
        "bytes": snapshot.file_size,
        "states of the job master": [
            f"{each.name}, version {each.version}, {_sum_up(each.payload)}" for each in snapshot.metadata.master_states
        ],
    }


def _describe_operator(operator: Operator) -> Values:
    metadata = operator.metadata
    coordinator = metadata.coordinator_state
    return {
        "uid": operator.uid,
        "name": operator.name,
        "parallelism": operator.parallelism,
        "max parallelism": operator.max_parallelism,
        "finished": metadata.fully_finished,
        "finished subtasks": [each.index for each in metadata.subtasks if each.finished],
        "keyed formats": _list_formats(operator),
        "coordinator state": None if coordinator is None else _sum_up(coordinator.data),
    }


def _list_formats(operator: Operator) -> list[str]:
    handles = [(each.index, each.managed_keyed_state) for each in operator.metadata.subtasks]
    try:
        formats = find_keyed_formats(handles, operator.keyed_files, operator.snapshot.handles)
    except StorageError:
        raise
    except StateError:
        # Reported where the states are read.
        return []
    return list(dict.fromkeys(each.format for each in formats))


def _describe_state(state: State) -> Values:
    values: Values = {"kind": str(state.kind)}
    values |= {name: describe(serializer) for name, serializer in _list_serializers(state).items()}
    if isinstance(state, KeyedState):
        values["TTL"] = _has_ttl(state.serializer)
    return values


def _list_serializers(state: State) -> dict[str, Serializer]:
    match state:
        case KeyedState() if state.kind == StateKind.TIMER:
            return {"key": state.key_serializer, "value": state.serializer}
        case KeyedState():
            namespace = state.info.namespace_serializer
            return {"key": state.key_serializer, "namespace": namespace, "value": state.serializer}
        case BroadcastState():
            return {"key": state.info.key_serializer, "value": state.serializer}
        case BytesState():
            return {}
        case _:
            return {"value": state.serializer}


def _has_ttl(serializer: Serializer) -> bool:
    if isinstance(serializer, Ttl) or (isinstance(serializer, TtlAware) and serializer.ttl_enabled):
        return True
    # Of lists and maps the elements and values have it.
    return any(map(_has_ttl, serializer.nested))


def _sum_up(data: bytes) -> str:
    return f"{len(data):,} bytes, SHA-256 {hashlib.sha256(data).hexdigest()[:16]}"
