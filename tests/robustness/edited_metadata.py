"""Edits of `_metadata` that its format allows: where entries change by one, reading refuses, or `verify` says so.

One node of the `_metadata` of a snapshot of real Flink is left out, repeated, exchanged or changed. What no reader can
see is `TRACELESS`, and the same as in "What verify cannot tell" of `docs/verifying.md`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import StateError
from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.operations.auditing import audit_snapshot
from state_pipelines.operations.dump import LineKind, dump
from state_pipelines.snapshot.snapshot import Snapshot
from tests.robustness.mutations import NUMBERS
from tests.snapshots import OWN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from state_pipelines.metadata import CheckpointMetadata
    from tests.snapshots import Case

Path = tuple[str | int, ...]
"""Names of fields, and indexes in tuples, from `CheckpointMetadata` on."""


class Way(StrEnum):
    """How a node is edited."""

    DROP = "drop"
    """One element of a tuple is left out."""
    REPEAT = "repeat"
    """One element of a tuple stands there twice."""
    EXCHANGE = "exchange"
    """Two elements of a tuple are exchanged."""
    REVERSE = "reverse"
    """A tuple is turned round."""
    EMPTY = "empty"
    """An optional field becomes None, or a tuple becomes empty."""
    COPY = "copy"
    """It becomes what another node of the same field is."""
    SWAP = "swap"
    """Two nodes of the same field are exchanged."""
    CHANGE = "change"
    """A number or a choice is another one."""


@dataclass(frozen=True)
class Node:
    """A value in a `_metadata`.

    Attributes:
        path: where it is.
        name: class and field, with `[]` for an element of a tuple.
        value: what is there.
        optional: None may be there.
    """

    path: Path
    name: str
    value: Any
    optional: bool


_WHOLE = (
    "OperatorState.subtasks",
    "OperatorState.subtasks[]",
    "OperatorState.coordinator_state",
    "SubtaskState.managed_operator_state",
    "SubtaskState.raw_operator_state",
    "SubtaskState.managed_keyed_state",
    "SubtaskState.raw_keyed_state",
    "SubtaskState.input_channel_state",
    "SubtaskState.input_channel_state[]",
    "SubtaskState.result_subpartition_state",
    "SubtaskState.result_subpartition_state[]",
)
_LEFT_OUT = (
    "CheckpointMetadata.operator_states",
    "CheckpointMetadata.master_states",
    "ChangelogStateBackendHandle.non_materialized",
    *_WHOLE,
)
_EXCHANGED = (
    *_WHOLE,
    # The streams of two handles of the same form, by their names or with their content.
    "OperatorStreamStateHandle.delegate",
    "FileMergingOperatorStreamStateHandle.delegate",
    "ChannelStateHandle.delegate",
    "MergedChannelStateHandle.delegate",
    "RelativeFileStateHandle.relative_path",
    "FileStateHandle.path",
    "ByteStreamStateHandle.data",
    # Which operator or subtask has it, where nothing inside says so.
    "OperatorState.operator_id",
    "SubtaskState.index",
    "MergedChannelStateHandle.states",
    "MergedChannelStateHandle.states[]",
    "ChannelState.info",
    "ChannelInfo.group",
    "ChannelInfo.channel",
    "MasterState.name",
    "MasterState.version",
    "MasterState.payload",
    # The content and order of changes in memory, and the order of sets of them in different files.
    "StateChange.change",
    "InMemoryChangelogStateHandle.changes",
    "InMemoryChangelogStateHandle.changes[]",
    "ChangelogStateHandleStream.streams",
    "ChangelogStateHandleStream.streams[]",
    "ChangelogStateBackendHandle.non_materialized",
)
TRACELESS = frozenset(
    {
        *((way, name) for way in (Way.DROP, Way.EMPTY) for name in _LEFT_OUT),
        *((way, name) for way in (Way.COPY, Way.SWAP, Way.EXCHANGE, Way.REVERSE) for name in _EXCHANGED),
        # A subtask that has finished has no state, and is written without it.
        (Way.CHANGE, "SubtaskState.finished"),
        (Way.COPY, "SubtaskState.finished"),
        (Way.SWAP, "SubtaskState.finished"),
        (Way.CHANGE, "ChannelInfo.group"),
        (Way.CHANGE, "ChannelInfo.channel"),
        (Way.CHANGE, "MasterState.version"),
    }
)
"""Ways and nodes whose edits may leave nothing behind that any reader could see."""


class UnnoticedEditError(Exception):
    """Entries changed by an edit that leaves traces, and neither reading nor `verify` says a word."""


@dataclass(frozen=True)
class SoundSnapshot:
    """A snapshot as Flink wrote it.

    Attributes:
        snapshot: it.
        entries: what `dump` shows, sorted.
        findings: of `verify`, as texts.
    """

    snapshot: Snapshot
    entries: list[str]
    findings: frozenset[str]


@dataclass(frozen=True)
class MetadataEdits:
    """A reader of snapshots whose `_metadata` is edited.

    Attributes:
        cases: sound snapshots.
        known: what was read of them, by name.
    """

    cases: tuple[Case, ...]
    known: dict[str, SoundSnapshot] = field(default_factory=dict)

    def read_sound(self) -> None:
        """Read all snapshots as they are."""
        for case in self.cases:
            self._open(case)

    def edit(self, chance: Random) -> bool:
        """Edit one node of one snapshot, and read all of it.

        Returns:
            Whether the entries are other ones, of which nothing can tell.

        Raises:
            StateError: The format has no such `_metadata`, reading refuses, or `verify` finds something.
            UnnoticedEditError: Entries changed without a word.
        """
        sound = self._open(chance.choice(self.cases))
        chosen = edit_metadata(sound.snapshot.metadata, chance)
        if chosen is None:
            return False
        way, node, edited = chosen
        metadata = read_metadata(write_metadata(edited), "_metadata")
        if list_entries(_replace(sound.snapshot, metadata)) == sound.entries:
            return False
        found = sorted(_audit(_replace(sound.snapshot, metadata)) - sound.findings)
        if found:
            raise StateError(found[0])
        if (way, node.name) in TRACELESS:
            return True
        raise UnnoticedEditError(f"{sound.snapshot.path}: {way} of {node.name} at {'.'.join(map(str, node.path))}")

    def _open(self, case: Case) -> SoundSnapshot:
        if case.name not in self.known:
            snapshot = case.open_told()
            self.known[case.name] = SoundSnapshot(snapshot, list_entries(snapshot), _audit(snapshot))
        return self.known[case.name]


def list_entries(snapshot: Snapshot) -> list[str]:
    """All entries as JSON, sorted.

    Raises:
        StateError: some state cannot be read.
    """
    lines = list(dump(snapshot, in_flight=True))
    for line in lines:
        if line["kind"] == LineKind.UNREAD:
            raise StateError(str(line["error"]))
    return sorted(json.dumps(each, sort_keys=True, default=str) for each in lines)


def edit_metadata(metadata: CheckpointMetadata, chance: Random) -> tuple[Way, Node, CheckpointMetadata] | None:
    """Edit a node in some way; None where the chosen one can only be what it is."""
    nodes = list(_list_nodes(metadata))
    # Each field is as likely as the others, however many values it has.
    name = chance.choice(sorted({each.name for each in nodes}))
    alike = [each for each in nodes if each.name == name]
    node = chance.choice(alike)
    ways = [*_change(node, chance), *_change_tuple(node, chance)]
    edited = [(way, _put(metadata, node.path, value)) for way, value in ways]
    other = chance.choice(alike)
    if other.value != node.value and not _is_inside(other, node) and not _is_inside(node, other):
        copied = _put(metadata, node.path, other.value)
        edited.append((Way.EMPTY if other.value is None or other.value == () else Way.COPY, copied))
        edited.append((Way.SWAP, _put(copied, other.path, node.value)))
    if not edited:
        return None
    way, result = chance.choice(edited)
    return way, node, result


def _list_nodes(value: Any, path: Path = (), name: str = "", *, optional: bool = False) -> Iterator[Node]:
    if path:
        yield Node(path, name, value, optional)
    if is_dataclass(value):
        for each in fields(value):
            below = f"{type(value).__name__}.{each.name}"
            yield from _list_nodes(
                getattr(value, each.name), (*path, each.name), below, optional="None" in str(each.type)
            )
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from _list_nodes(each, (*path, index), f"{name}[]")


def _change(node: Node, chance: Random) -> Iterator[tuple[Way, Any]]:
    value = node.value
    if node.optional and value is not None:
        yield Way.EMPTY, None
    if isinstance(value, bool):
        yield Way.CHANGE, not value
    elif isinstance(value, Enum):
        yield from ((Way.CHANGE, each) for each in type(value) if each is not value)
    elif isinstance(value, int):
        yield Way.CHANGE, value + chance.choice((-10, -2, -1, 1, 2, 10))
        yield Way.CHANGE, chance.choice(NUMBERS)


def _change_tuple(node: Node, chance: Random) -> Iterator[tuple[Way, Any]]:
    value = node.value
    if not isinstance(value, tuple) or not value:
        return
    at = chance.randrange(len(value))
    yield Way.DROP, value[:at] + value[at + 1 :]
    yield Way.REPEAT, (*value[:at], value[at], *value[at:])
    if len(value) > 1:
        other = chance.choice([index for index in range(len(value)) if index != at])
        exchanged = list(value)
        exchanged[at], exchanged[other] = value[other], value[at]
        yield Way.EXCHANGE, tuple(exchanged)
        yield Way.REVERSE, value[::-1]


def _put(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    if isinstance(first, int):
        return (*value[:first], _put(value[first], tuple(rest), new), *value[first + 1 :])
    return replace(value, **{first: _put(getattr(value, first), tuple(rest), new)})


def _is_inside(node: Node, outer: Node) -> bool:
    return node.path[: len(outer.path)] == outer.path


def _replace(snapshot: Snapshot, metadata: CheckpointMetadata) -> Snapshot:
    return Snapshot(snapshot.location, metadata, snapshot.path_mapping, snapshot.declarations)


def _audit(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(map(str, audit_snapshot(snapshot, "whole").findings))


def make_metadata_edits() -> MetadataEdits:
    """Snapshots of all formats."""
    return MetadataEdits(tuple(OWN))
