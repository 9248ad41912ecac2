"""Readers of the files of a snapshot: one stream of a sound snapshot is damaged in memory, and the states are read."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from state_pipelines.errors import StateError
from state_pipelines.metadata import compute_operator_id, read_metadata
from state_pipelines.metadata.streams import StateStream, read_whole_stream
from state_pipelines.operations.dump import dump_state
from state_pipelines.operations.inspect import inspect
from state_pipelines.rocksdb import manifest, table
from state_pipelines.rocksdb import scans as rocksdb_cache
from state_pipelines.rocksdb import table as blocks
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.operator_state import InFlightState
from state_pipelines.snapshot.snapshot import Snapshot
from state_pipelines.storage import resolve
from tests.robustness.mutations import mutate
from tests.snapshots import OWN, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from random import Random

    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.snapshot.state import State

StreamId = tuple[str, int]
"""Name of a stream and its first byte in the file."""

TABLE_ENDS = (bytes.fromhex("f7cff485b741e288"), bytes.fromhex("88e241b785f4cff7"))
"""Last bytes of tables of RocksDB: the magic number of those with block-based indexes, both ways round."""


_MOST_KEPT = 512


@cache
def _keep_results(function: Callable[..., object], _forged: bool) -> Callable[..., object]:
    return lru_cache(_MOST_KEPT)(function)


@contextmanager
def _use_kept_files(forged: bool = False) -> Iterator[None]:
    """Read files of RocksDB with the same bytes once: an attempt reads what is damaged, not the files beside it.

    Args:
        forged: checksums are not compared.
    """
    changes: list[tuple[Any, str, object]] = [
        (manifest, "_replay", _keep_results(manifest._replay, forged)),
        (rocksdb_cache, "open_table", _keep_results(table.open_table, forged)),
    ]
    if forged:
        changes += [(blocks, "find_wrong_block", lambda *_: -1), (table, "_check_footer", lambda *_: None)]
    # By hand, because `unittest.mock.patch` takes a thirtieth of an attempt.
    before = [getattr(module, name) for module, name, _ in changes]
    for module, name, function in changes:
        setattr(module, name, function)
    try:
        yield
    finally:
        for (module, name, _), function in zip(changes, before, strict=True):
            setattr(module, name, function)


@dataclass(frozen=True)
class Target:
    """A stream that is read for the states of a subtask.

    Attributes:
        snapshot: with that subtask of one operator only.
        stream: which of its streams.
        content: the sound bytes.
        held: its streams in memory, so that an attempt opens no file.
        sound: the stream as the snapshot names it.
        rows: how many each of the wanted states of the subtask has, by name.
    """

    snapshot: Snapshot
    stream: StreamId
    content: bytes
    held: Mapping[StreamStateHandle, tuple[StreamId, StateStream]]
    sound: StateStream
    rows: Mapping[str, int]

    @cached_property
    def others(self) -> frozenset[str]:
        """Names of the states that have their rows although the stream holds zeros only; none where all have them."""
        if len(self.held) == 1:
            return frozenset()
        found = set()
        for state in open_damaged(self, bytes(len(self.content))).operators[0].survey(in_flight=True).states:
            with suppress(StateError):
                if state.name in self.rows and _count_state(state) == self.rows[state.name]:
                    found.add(state.name)
        return frozenset(found) if found != set(self.rows) else frozenset()


@dataclass(frozen=True)
class SnapshotReader:
    """A reader of states.

    Attributes:
        targets: streams that are damaged.
        wanted: of the states of an operator, those that are read.
        forged: checksums of RocksDB's tables are not compared, so that damage reaches what is behind them.
        most_states: states that one attempt reads.
    """

    targets: tuple[Target, ...]
    wanted: Callable[[State], bool]
    forged: bool = False
    most_states: int = 2

    def attempt(self, chance: Random) -> None:
        """Damage one stream and read the states."""
        target = chance.choice(self.targets)
        donor = chance.choice(self.targets).content
        damaged = mutate(target.content, chance, donor)
        if self.forged or chance.random() < 0.5:
            # The size of a file is known from elsewhere, so that another one would be all that is noticed.
            size = len(target.content)
            damaged = damaged[:size].ljust(size, b"\0")
        with _use_kept_files(self.forged):
            self._read(open_damaged(target, damaged), target.others, chance)

    def _read(self, snapshot: Snapshot, others: frozenset[str], chance: Random) -> None:
        survey = snapshot.operators[0].survey(in_flight=True)
        # Of those that read the damaged bytes, and those that only they name: others are read by other attempts.
        states = [each for each in survey.states if self.wanted(each) and each.name not in others]
        for state in chance.sample(states, min(len(states), self.most_states)):
            for _ in dump_state(state) if chance.random() < 0.3 else state.batches():
                pass
        for failure in survey.failures:
            raise failure.error

    def read_sound(self) -> None:
        """Read all states of all snapshots as they are."""
        for target in self.targets:
            _count_rows(target.snapshot, self.wanted)


@dataclass(frozen=True)
class HandleReading:
    """A reader of whole snapshots whose `_metadata` is damaged.

    Attributes:
        cases: sound snapshots, and their `_metadata`.
    """

    cases: tuple[tuple[Snapshot, bytes], ...]

    def attempt(self, chance: Random) -> None:
        """Damage a `_metadata` and inspect the snapshot, one time in four with counts."""
        sound, content = chance.choice(self.cases)
        _, donor = chance.choice(self.cases)
        damaged = mutate(content, chance, donor)
        metadata = read_metadata(damaged, "_metadata")
        with _use_kept_files():
            damaged_snapshot = Snapshot(sound.location, metadata, sound.path_mapping, sound.declarations)
            inspect(damaged_snapshot, count=chance.random() < 0.25)

    def read_sound(self) -> None:
        """Inspect all snapshots as they are."""
        for sound, _ in self.cases:
            inspect(sound.with_declarations(sound.declarations), count=True)


def open_damaged(target: Target, damaged: bytes) -> Snapshot:
    """The snapshot of a target with other bytes in the place of its stream."""
    return _open_with(target, lambda stream: _hold(stream, damaged))


def open_cut(target: Target, file: str) -> Snapshot:
    """The snapshot of a target with another file in the place of its stream, whose handle gives the size as before."""
    stream = replace(target.sound, location=resolve(file), start=0, is_segment=False)
    return _open_with(target, lambda _: stream)


def _open_with(target: Target, damage: Callable[[StateStream], StateStream]) -> Snapshot:
    snapshot = target.snapshot.with_declarations(target.snapshot.declarations)
    sound = snapshot.handles.open_stream

    def open_stream(handle: StreamStateHandle) -> StateStream:
        known = target.held.get(handle)
        if known is None:
            return sound(handle)
        name, stream = known
        return damage(stream) if name == target.stream else stream

    # The snapshot is of this attempt alone.
    snapshot.handles.open_stream = open_stream  # type: ignore[method-assign]
    return snapshot


def _count_rows(snapshot: Snapshot, wanted: Callable[[State], bool]) -> int:
    found = 0
    for operator in snapshot.operators:
        for state in operator.survey(in_flight=True).states:
            if wanted(state):
                found += _count_state(state)
    return found


def _count_state(state: State) -> int:
    return sum(batch.num_rows for batch in state.batches())


def find_targets(cases: list[Case], wanted: Callable[[State], bool], uids: tuple[str, ...] = ()) -> tuple[Target, ...]:
    """The streams that are read for the wanted states, of every operator of some snapshots, or of some operators."""
    # Only Flink 2.x stores uids.
    ids = {compute_operator_id(uid) for uid in uids}
    targets: list[Target] = []
    for case in cases:
        whole = case.open_told()
        for operator in whole.metadata.operator_states:
            if uids and operator.operator_id not in ids:
                continue
            found: list[Target] = []
            rows = 0
            for subtask in operator.subtasks:
                metadata = replace(whole.metadata, operator_states=(replace(operator, subtasks=(subtask,)),))
                rows += _add_targets(found, _renew(whole, metadata), wanted)
            targets += found if rows else []
    return tuple(targets)


def _renew(snapshot: Snapshot, metadata: CheckpointMetadata) -> Snapshot:
    """The same files with other metadata, none of them open."""
    fresh = snapshot.with_declarations(snapshot.declarations)
    return Snapshot(fresh.location, metadata, fresh.path_mapping, fresh.declarations)


def _add_targets(targets: list[Target], snapshot: Snapshot, wanted: Callable[[State], bool]) -> int:
    """Add the streams that are read for the wanted states of the only subtask; returns how many rows these have."""
    opened: dict[StreamStateHandle, StateStream] = {}
    fresh = _renew(snapshot, snapshot.metadata)
    sound = fresh.handles.open_stream

    def note(handle: StreamStateHandle) -> StateStream:
        stream = opened[handle] = sound(handle)
        return stream

    with patch.object(fresh.handles, "open_stream", note):
        rows = {
            state.name: _count_state(state)
            for state in fresh.operators[0].survey(in_flight=True).states
            if wanted(state)
        }
    streams = {(each.name, each.start): each for each in opened.values() if each.size}
    contents = {key: _read_content(each) for key, each in streams.items()}
    held = {
        handle: (key, _hold(stream, contents[key]))
        for handle, stream in opened.items()
        if (key := (stream.name, stream.start)) in streams
    }
    for key, content in contents.items():
        targets.append(Target(_renew(snapshot, snapshot.metadata), key, content, held, streams[key], rows))
    return sum(rows.values())


def _hold(stream: StateStream, content: bytes) -> StateStream:
    return replace(stream, size=len(content), location=None, start=0, data=content, is_segment=False)


def _read_content(stream: StateStream) -> bytes:
    # The declared size of a file of changes is that before compression.
    whole = stream.location is not None and not stream.is_segment
    return read_whole_stream(replace(stream, size=0) if whole else stream)


def is_keyed(state: State) -> bool:
    """Whether it is keyed state or timers."""
    return isinstance(state, KeyedState)


def _is_in_flight(state: State) -> bool:
    return isinstance(state, InFlightState)


def is_operator_state(state: State) -> bool:
    """Whether it is operator, broadcast or raw state."""
    return not is_keyed(state) and not _is_in_flight(state)


def choose(*names: str) -> list[Case]:
    """Snapshots of the releases 1.20 and 2.2 by the names of their folders."""
    return [case for case in OWN if case.case in names and not case.version.startswith("2.3")]


def make_canonical_reader() -> SnapshotReader:
    """Canonical savepoints."""
    return SnapshotReader(find_targets(choose("heap", "rocksdb", "heap-snappy"), is_keyed), is_keyed)


def make_heap_reader() -> SnapshotReader:
    """Native savepoints and checkpoints of the heap."""
    cases = choose("heap-native", "heap-native-snappy", "heap-checkpoint")
    return SnapshotReader(find_targets(cases, is_keyed), is_keyed)


def make_rocksdb_reader() -> SnapshotReader:
    """Files of RocksDB and ForSt."""
    cases = choose("rocksdb-native", "rocksdb-incremental", "rocksdb-file-merging", "rocksdb-heap-timers", "forst")
    return SnapshotReader(find_targets(cases, is_keyed), is_keyed, most_states=1)


def make_forged_rocksdb_reader() -> SnapshotReader:
    """Tables of RocksDB whose checksums are right, although their content is damaged."""
    targets = find_targets(choose("rocksdb-native", "forst"), is_keyed)
    tables = tuple(each for each in targets if each.content[-8:] in TABLE_ENDS)
    return SnapshotReader(tables, is_keyed, forged=True, most_states=1)


def make_changelog_reader() -> SnapshotReader:
    """Changelog checkpoints: changes, and what they change."""
    cases = [case for case in OWN if case.case.startswith("changelog-") and not case.version.startswith("2.3")]
    return SnapshotReader(find_targets(cases, is_keyed), is_keyed, most_states=1)


def make_operator_state_reader() -> SnapshotReader:
    """Operator state, broadcast state and raw state."""
    cases = choose("heap", "rocksdb", "heap-native", "finished", "rocksdb-incremental", "unaligned")
    return SnapshotReader(find_targets(cases, is_operator_state), is_operator_state)


def make_in_flight_reader() -> SnapshotReader:
    """Buffers of unaligned checkpoints."""
    return SnapshotReader(find_targets(choose("unaligned"), _is_in_flight), _is_in_flight)


def make_handle_reader() -> HandleReading:
    """Whole snapshots with a damaged `_metadata`, and with it handles, offsets and key groups that are wrong."""
    names = ("heap-checkpoint", "heap", "rocksdb-native", "rocksdb-full", "changelog-heap-files", "unaligned", "forst")
    return HandleReading(tuple((case.open(), (case.path / "_metadata").read_bytes()) for case in choose(*names)))


SNAPSHOT_READERS: dict[str, Callable[[], SnapshotReader | HandleReading]] = {
    "canonical": make_canonical_reader,
    "heap": make_heap_reader,
    "rocksdb": make_rocksdb_reader,
    "rocksdb-forged": make_forged_rocksdb_reader,
    "changelog": make_changelog_reader,
    "operator-state": make_operator_state_reader,
    "in-flight": make_in_flight_reader,
    "handles": make_handle_reader,
}
"""By name: makes the reader."""
