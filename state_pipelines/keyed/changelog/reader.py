"""Keyed state of the changelog state backend: a materialized base and the changes since.

Changes are replayed over the base when records are asked for, some key groups at a time. State that has no changes
passes through as it is. Source: `ChangelogBackendRestoreOperation`, `ChangelogBackendLogApplier`.
"""

from __future__ import annotations

import heapq
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from state_pipelines.errors import FormatError, StateError, UnsupportedError, Where, at
from state_pipelines.keyed.changelog.change_streams import ChangeLog, Changes, locate, open_change_log
from state_pipelines.keyed.changelog.changed_states import ChangedState, derive_replay_layout, state_ids_of
from state_pipelines.keyed.changelog.handle_checks import check_changelog_handle
from state_pipelines.keyed.changelog.replay import replay
from state_pipelines.keyed.digests.record_digests import RecordDigest, digest_run
from state_pipelines.keyed.digests.stored_bytes import digest_changes
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.keyed_file import FileFormat, KeyedFormat, gather_key_groups
from state_pipelines.keyed.record_layout import concat_records
from state_pipelines.metadata.handles import IncrementalRemoteKeyedStateHandle, KeyGroupRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.changelog.change_data import ChangeFiles
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext, Runs
    from state_pipelines.keyed.keys.key_filter import KeySeeks
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.metadata.handles import ChangelogStateBackendHandle, KeyedStateHandle, StreamStateHandle
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.rocksdb.manifest import TableFile
    from state_pipelines.rocksdb.scan import TableCache
    from state_pipelines.serializers.declared_snapshots import DeclaredSerializer
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

WINDOW = 16 << 20
"""Bytes of base and changes that are replayed at once; a key group that has more is replayed as a whole."""


@dataclass(frozen=True)
class ChangelogFile(KeyedFormat):
    """The state of a handle of the changelog state backend.

    Attributes:
        bases: the materialized state; nothing before the first materialization.
        log: the changes since.
        states: the states of the bases, then those that the log adds; the last description of each.
        key_serializer: of the bases, or as the caller says; None when it is not known (see `key_serializers`).
        key_groups: range of the handle.
        name: of the handle, for errors.
        ids: per change set of the log, the state (position in `states`) of each state id.
        earlier: (position, key serializer or None, description) where a base or an earlier change says it otherwise.
    """

    bases: tuple[KeyedFile, ...]
    log: ChangeLog
    states: tuple[StateMetaInfo, ...]
    key_serializer: Serializer | None
    key_groups: KeyGroupRange
    name: str
    ids: tuple[Mapping[int, int], ...] = field(repr=False, hash=False)
    earlier: tuple[tuple[int, Serializer | None, StateMetaInfo], ...] = field(default=(), repr=False)

    format: ClassVar[FileFormat] = FileFormat.CHANGELOG

    @property
    def header(self) -> KeyedHeader:
        """Key serializer and states.

        Raises:
            UnsupportedError: the key serializer is not known.
        """
        if self.key_serializer is None:
            raise UnsupportedError(
                "nothing has been materialized yet, and the changes do not say which serializer the keys have",
                where=Where(file=self.name),
                hint="Give it with --key-serializer OPERATOR=TYPE, or use a checkpoint after the first materialization",
            )
        return KeyedHeader(key_serializer=self.key_serializer, states=self.states)

    def scan(
        self,
        state_ids: Sequence[int],
        context: RecordContext,
        key_groups: KeyGroupRange | None = None,
        *,
        window: int = WINDOW,
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """The records of some states after their changes, `window` bytes at a time (see `KeyedFile.scan`).

        Raises:
            FormatError: the bytes are not change sets, or a change does not fit the serializers.
            UnsupportedError: the key serializer is not known, or a change takes code of the user's.
        """
        wanted = self.key_groups if key_groups is None else self.key_groups.intersect(key_groups)
        header = self.header
        self._check_descriptions(state_ids, context)
        chosen = dict.fromkeys(state_ids)
        for groups, held in self._windows(list(chosen), context, wanted, window):
            changes = self.log.read(groups)
            states = self.find_states(changes)
            for state_id in chosen:
                batches = held.get(state_id, [])
                base = concat_records(batches) if batches else None
                mine = changes.select(states == state_id)
                if len(mine):
                    info = header.states[state_id]
                    with at(state=info.name), self.placing(mine):
                        layout, unknown = derive_replay_layout(
                            info, header.key_serializer, context.max_parallelism, context.layouts
                        )
                        base = replay(ChangedState(info.name, layout, self.name, unknown), base, mine)
                if base is not None and len(base):
                    yield state_id, base

    def scan_key_groups(self, context: RecordContext, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """All records, one key group after the other, ascending."""
        everything = range(len(self.states))
        wanted = self.key_groups.intersect(key_groups)
        found: dict[int, list[KeyedRecords]] = {}
        last = -1
        for state_id, records in self.scan(everything, context, wanted):
            if state_id <= last:
                yield from _by_key_group(found)
                found = {}
            found.setdefault(state_id, []).append(records)
            last = state_id
        yield from _by_key_group(found)

    def split(
        self, size: int, context: RecordContext, key_groups: KeyGroupRange | None = None
    ) -> Iterator[ChangelogFile]:
        """Parts of about `size` bytes; how the bytes spread over the key groups is not looked up."""
        wanted = self.key_groups if key_groups is None else self.key_groups.intersect(key_groups)
        changed = self.log.size * len(wanted) // max(1, len(self.key_groups))
        count = sum(1 for base in self.bases for _ in base.split(size, context, wanted))
        # The remainder of the changes goes with the parts of the bases, which are not full either.
        count = count + changed // size if count else -(-changed // size)
        count = min(count, len(wanted))
        for number in range(count):
            start, end = (len(wanted) * each // count for each in (number, number + 1))
            yield replace(self, key_groups=KeyGroupRange(wanted.start + start, end - start))

    def digest_stored_bytes(self, context: RecordContext, key_groups: KeyGroupRange) -> RecordDigest:
        """Digest the changes, and the bytes of the bases, or their records where `KeyedFile.needs_layouts` is false."""
        total = digest_changes(self.log, key_groups)
        for base in self.bases:
            held = base.key_groups.intersect(key_groups)
            stored = base.digest_stored_bytes(context, held)
            if stored is not None:
                total += stored
                continue
            for _, records in base.scan(range(len(base.header.states)), context, held):
                total += digest_run(records, is_map=False).without_key_groups
        return total

    def table_files(self) -> Iterator[tuple[TableFile, TableCache]]:
        """Tables of the bases."""
        for base in self.bases:
            yield from base.table_files()

    def change_logs(self) -> tuple[ChangelogFile, ...]:
        """See `KeyedFile`."""
        return (self,)

    def described_states(self) -> tuple[Serializer | None, tuple[StateMetaInfo, ...]]:
        """See `KeyedFile`."""
        return self.key_serializer, self.states

    def with_key_serializer(self, serializer: Serializer) -> ChangelogFile:
        """See `KeyedFile`."""
        return self if self.key_serializer is not None else replace(self, key_serializer=serializer)

    def with_described_states(self, key: Serializer | None, states: tuple[StateMetaInfo, ...]) -> ChangelogFile:
        """See `KeyedFile`."""
        return replace(self, key_serializer=key, states=states)

    def narrow_to_keys(self, keys: KeySeeks) -> ChangelogFile:
        """The file with only wanted keys in its bases; the changes of other keys are replayed over what is left."""
        return replace(self, bases=tuple(base.narrow_to_keys(keys) for base in self.bases))

    def find_states(self, changes: Changes) -> npt.NDArray[np.int64]:
        """i64[n], the state of each change: its position in `states`.

        Raises:
            FormatError: a change names a state id that no metadata change explained.
        """
        pairs, inverse = np.unique(changes.sets << 16 | state_ids_of(changes), return_inverse=True)
        states = np.empty(len(pairs), np.int64)
        for index, pair in enumerate(pairs.tolist()):
            state_id = self.ids[pair >> 16].get(pair & 0xFFFF)
            if state_id is None:
                name = self.log.sets[pair >> 16].stream.name
                what = f"a change is of state id {pair & 0xFFFF}, which no change of metadata explains"
                raise FormatError(what, where=Where(file=name))
            states[index] = state_id
        return states[inverse]

    @contextmanager
    def placing(self, changes: Changes) -> Iterator[None]:
        """Turn positions in the bytes of `changes` that errors name into positions in files."""
        try:
            yield
        except StateError as error:
            if error.where.file in (None, self.name):
                locate(error, self.log, changes)
            raise

    def _windows(
        self, state_ids: list[int], context: RecordContext, key_groups: KeyGroupRange, window: int
    ) -> Iterator[tuple[KeyGroupRange, dict[int, list[KeyedRecords]]]]:
        """Key groups, one range after the other, and the records that the bases have of them."""
        groups = self._scan_bases(state_ids, context, key_groups)
        pending = next(groups, None)
        held: dict[int, list[KeyedRecords]] = {}
        start, size = key_groups.start, 0
        for key_group, changed in zip(key_groups, self.log.sizes(key_groups).tolist(), strict=True):
            size += changed
            while pending is not None and pending[0] == key_group:
                for state_id, records in pending[1]:
                    held.setdefault(state_id, []).append(records)
                    size += int((records.key_ends - records.key_starts).sum())
                    size += int((records.value_ends - records.value_starts).sum())
                pending = next(groups, None)
            if size >= window or key_group == key_groups.end:
                yield KeyGroupRange(start, key_group - start + 1), held
                start, size, held = key_group + 1, 0, {}

    def _scan_bases(
        self, state_ids: list[int], context: RecordContext, key_groups: KeyGroupRange
    ) -> Iterator[tuple[int, Runs]]:
        """The records of some states in the bases, by ascending key group."""
        return heapq.merge(
            *(self._scan_base(base, state_ids, context, key_groups) for base in self.bases), key=itemgetter(0)
        )

    def _scan_base(
        self, base: KeyedFile, state_ids: list[int], context: RecordContext, key_groups: KeyGroupRange
    ) -> Iterator[tuple[int, Runs]]:
        names = {self.states[state_id].name: state_id for state_id in state_ids}
        ours = {theirs: names[info.name] for theirs, info in enumerate(base.header.states) if info.name in names}
        if not ours or not len(wanted := base.key_groups.intersect(key_groups)):
            return
        # Changes are of single records.
        context = replace(context, by_block=False)
        if len(ours) == 1:
            (theirs,) = ours
            stream = (records for _, records in base.scan([theirs], context, wanted))
            groups = gather_key_groups({theirs: stream})
        else:
            groups = base.scan_key_groups(context, wanted)
        for key_group, runs in groups:
            yield key_group, [(ours[theirs], records) for theirs, records in runs if theirs in ours]

    def _check_descriptions(self, state_ids: Sequence[int], context: RecordContext) -> None:
        """Make sure that base and log write the bytes of a state alike: one description must do for all records."""
        header = self.header
        for position, key_serializer, info in self.earlier:
            if position not in state_ids:
                continue
            now = header.states[position]
            (one, unknown), (other, _) = (
                derive_replay_layout(each, key, context.max_parallelism, context.layouts)
                for each, key in ((now, header.key_serializer), (info, key_serializer or header.key_serializer))
            )
            is_alike = (one.key, one.value) == (other.key, other.value)
            if not is_alike or (unknown and now.value_serializer != info.value_serializer):
                raise UnsupportedError(
                    "the state has other serializers in its changes than in its base",
                    where=Where(file=self.name, state=info.name),
                    hint="Take a savepoint (`flink savepoint --type canonical`), or wait for the next materialization",
                )


def find_bases(handle: ChangelogStateBackendHandle) -> tuple[KeyedStateHandle, ...]:
    """The materialized handles of a handle, each once.

    After a change of parallelism a subtask has those of all subtasks that its key groups come from, one after the other
    (`ChangelogKeyedStateBackend.completeRestore`). Handles of RocksDB files are passed on whole
    (`IncrementalRemoteKeyedStateHandle.getIntersection`), so that one of a former subtask comes back more than once.
    """
    found: dict[KeyedStateHandle, KeyedStateHandle] = {}
    for base in handle.materialized:
        files = base
        if isinstance(base, IncrementalRemoteKeyedStateHandle):
            # Number and size are of the checkpoint that names the files (`rebound`).
            files = replace(base, checkpoint_id=0, persisted_size=None, state_handle_id=None)
        found.setdefault(files, base)
    return tuple(found.values())


def open_changelog(
    handle: ChangelogStateBackendHandle,
    bases: Sequence[KeyedFile],
    open_stream: Callable[[StreamStateHandle], StateStream],
    *,
    key_serializer: Serializer | None = None,
    declared: Sequence[DeclaredSerializer] = (),
    files: ChangeFiles | None = None,
) -> ChangelogFile:
    """Open the state of a handle; only the metadata changes of the log are read.

    Args:
        handle: the handle.
        bases: its materialized handles, opened; see `find_bases`.
        open_stream: opens the stream of a handle.
        key_serializer: known to the caller; that of a base takes precedence.
        declared: snapshot classes that the user declares.
        files: files of changes of the snapshot; None where no other log shares them.

    Raises:
        UnsupportedError: a handle does not hold changes, or several bases hold the same key groups.
        FormatError: the bytes are not change sets, or changes are missing.
    """
    name = f"changelog {handle.state_handle_id}"
    check_changelog_handle(handle, name)
    _require_disjoint(bases, handle.key_groups, name)
    log = open_change_log(handle.non_materialized, handle.key_groups, open_stream, files)
    states: dict[str, StateMetaInfo] = {}
    known: list[tuple[Serializer | None, StateMetaInfo]] = []
    for base in bases:
        key_serializer = base.header.key_serializer
        for info in base.header.states:
            states[info.name] = info
            known.append((key_serializer, info))
    ids: list[Mapping[int, int]] = []
    current: dict[int, str] = {}
    positions: dict[str, int] = {each: position for position, each in enumerate(states)}
    for changes in log.metadata(declared):
        for change in changes:
            states[change.info.name] = change.info
            positions.setdefault(change.info.name, len(positions))
            known.append((None, change.info))
            current[change.state_id] = change.info.name
        ids.append({state_id: positions[state] for state_id, state in current.items()})
    earlier = {
        (positions[info.name], key, info)
        for key, info in known
        if info != states[info.name] or key not in (None, key_serializer)
    }
    return ChangelogFile(
        bases=tuple(bases),
        log=log,
        states=tuple(states.values()),
        key_serializer=key_serializer,
        key_groups=handle.key_groups,
        name=name,
        ids=tuple(ids),
        earlier=tuple(sorted(earlier, key=itemgetter(0))),
    )


def _require_disjoint(bases: Sequence[KeyedFile], key_groups: KeyGroupRange, name: str) -> None:
    """Make sure that each key group is in one base only.

    Flink writes such bases over each other, in an order that depends on its release and on the new parallelism; what
    was removed between them comes back (`RocksDBIncrementalRestoreOperation`). That is no state to read.
    """
    ranges = sorted((base.key_groups.intersect(key_groups) for base in bases), key=lambda each: each.start)
    for one, other in pairwise(each for each in ranges if len(each)):
        if other.start <= one.end:
            raise UnsupportedError(
                f"several materialized states hold key group {other.start}, "
                "of times before and after a change of parallelism, and nothing says which one counts",
                where=Where(file=name),
                hint="Take a savepoint (`flink savepoint --type canonical`), or use a checkpoint after the next "
                "materialization (`state.changelog.periodic-materialize.interval`)",
            )


def _by_key_group(found: dict[int, list[KeyedRecords]]) -> Iterator[tuple[int, Runs]]:
    return gather_key_groups({state_id: iter(batches) for state_id, batches in found.items()})
