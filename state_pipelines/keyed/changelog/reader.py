"""Keyed state of the changelog state backend: a materialized base and the changes since.

* `ChangelogFile`, `open_changelog`: changes are replayed over the base when records are asked for, some key groups at a
  time. State that has no changes passes through as it is. Source: `ChangelogBackendRestoreOperation`,
  `ChangelogBackendLogApplier`.
* `find_key_serializer`: the key serializer of a changelog for which nothing was materialized, so that nothing names it.
  A candidate is tried on every change: key, namespace and payload must use up its bytes, and the key must hash to the
  key group under which the change was logged. Tuples of basic types are many, so that a sample of changes selects
  candidates first.
"""

from __future__ import annotations

import hashlib
import heapq
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.programs import compile_layout, decode_spans
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import FormatError, StateError, UnsupportedError, UsageError, ValueRangeError, Where, at
from state_pipelines.keyed.changelog.changes import (
    ChangeLog,
    Changes,
    StateChangeOperation,
    check_changelog_handle,
    locate,
    open_change_log,
)
from state_pipelines.keyed.changelog.replay import (
    HEAD,
    REST,
    ChangedState,
    derive_replay_layout,
    operations_of,
    replay,
    state_ids_of,
)
from state_pipelines.keyed.digests import RecordDigest, digest_changes, digest_run
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.keyed.keyed_file import FileFormat, KeyedFormat, gather_key_groups
from state_pipelines.keyed.record_layout import Measure, concat_records, derive_keyed_layout, take_bytes
from state_pipelines.metadata.handles import IncrementalRemoteKeyedStateHandle, KeyGroupRange
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic, tuple_of
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BasicKind, StateKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.changelog.changes import ChangeFiles
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext, Runs
    from state_pipelines.keyed.keys import KeySeeks
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.metadata.handles import ChangelogStateBackendHandle, KeyedStateHandle, StreamStateHandle
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.rocksdb.manifest import TableFile
    from state_pipelines.rocksdb.scans import TableCache
    from state_pipelines.serializers.snapshot_classes import DeclaredSerializer
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

SEARCH_WINDOW = 64 << 20
"""Bytes of changes that are tried at once."""

COUNTED_KEYS = 100_000
"""Approximate number of distinct keys after which counting stops, so that its memory does not grow with the state."""

_BASIC = (
    BasicKind.STRING,
    BasicKind.LONG,
    BasicKind.INT,
    BasicKind.SHORT,
    BasicKind.BYTE,
    BasicKind.BOOLEAN,
    BasicKind.CHAR,
    BasicKind.DOUBLE,
    BasicKind.FLOAT,
    BasicKind.BIG_INT,
    BasicKind.BIG_DEC,
    BasicKind.INSTANT,
    BasicKind.LOCAL_DATE,
    BasicKind.LOCAL_TIME,
    BasicKind.LOCAL_DATE_TIME,
    BasicKind.DATE,
    BasicKind.SQL_TIMESTAMP,
    BasicKind.STRING_VALUE,
)
"""Basic types that are keys, the more frequent first: of types with the same bytes the first is taken.

Only types whose hashes are known, so that key groups can confirm them: that the width fits says little.
"""

_TUPLE_FIELDS = (
    BasicKind.STRING,
    BasicKind.LONG,
    BasicKind.INT,
    BasicKind.SHORT,
    BasicKind.BYTE,
    BasicKind.BOOLEAN,
    BasicKind.DOUBLE,
    BasicKind.CHAR,
)
_TUPLE_SIZES = (2, 3)
"""Sizes of the tuples that are tried; a Tuple1 has the same bytes and the same hash as its field."""

_SAMPLE = 500
_SAMPLE_OF_STATE = 100
"""Maximum number of sampled changes per state and file; only tuples that fit all samples are tried on all changes."""

_SCALAR_ROWS = 1000
"""Maximum number of changes of a state whose operands are parsed if only the (slow) scalar codec can do it."""

# Hashes prove a type if a wrong type would pass by chance with a probability of at most 2**-20.
_PROOF_BITS = 20
# Many tuples are tried: the same bound has to hold for all of them together.
_TUPLE_PROOF_BITS = _PROOF_BITS + sum(len(_TUPLE_FIELDS) ** size for size in _TUPLE_SIZES).bit_length()


@dataclass(frozen=True)
class FoundKeySerializer:
    """The key serializer found for a changelog, and the evidence for it.

    Attributes:
        serializer: the serializer.
        origin: why the serializer was tried, such as "key serializer of another operator".
        keys: how many distinct keys were tried, as far as they were counted (`COUNTED_KEYS`).
        changes: how many changes were tried.
        hashed: the hashes of the keys agree with their key groups (else the hash is not known).
        others: types that fit just as well, and whose keys have the same bytes.
    """

    serializer: Serializer
    origin: str
    keys: int
    changes: int
    hashed: bool
    others: tuple[str, ...] = ()

    @property
    def evidence(self) -> str:
        """The evidence for the serializer as one line of text."""
        many = "more than " if self.keys >= COUNTED_KEYS else ""
        text = f"{describe(self.serializer)}: {self.origin}; fits {self.changes} changes of {many}{self.keys} keys"
        text += ", whose hashes give their key groups" if self.hashed else "; the hash of such keys is not known"
        return text + (f"; so do {', '.join(self.others)}" if self.others else "")


_OPERATIONS = np.array(list(StateChangeOperation), np.uint8)


@dataclass
class _Trial:
    """Result of trying a candidate for the key serializer on all logged changes."""

    serializer: Serializer
    origin: str
    changes: int = 0
    keys: set[bytes] = field(default_factory=set)
    hashed: bool = True
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def is_proven(self, max_parallelism: int, bits: int = _PROOF_BITS) -> bool:
        return self.hashed and len(self.keys) * (max_parallelism.bit_length() - 1) >= bits


@dataclass(frozen=True)
class _MapEntry:
    """Data changes of one state in one file, on which candidates for the key serializer are tried."""

    file: ChangelogFile
    info: StateMetaInfo
    changes: Changes


def find_key_serializer(files: Sequence[ChangelogFile], candidates: Iterable[Serializer] = ()) -> FoundKeySerializer:
    """Find the key serializer of an operator, even if no subtask has materialized state.

    Materialized state and timers name the serializer; it is checked against the changes nevertheless. Where nothing
    names it, the candidates and the basic types are tried. Unless hashes prove one of these, tuples of basic types are
    tried too, and accepted only if hashes prove them. All types that remain must find the same keys in the changes.

    Args:
        files: the subtasks of the operator.
        candidates: key serializers that other operators of the snapshot use.

    Raises:
        UnsupportedError: no candidate is left, or several that split the changes in different ways.
        FormatError: the bytes are not change sets.
    """
    known = find_written_serializers(files)
    read: Callable[[], Iterable[_MapEntry]] = partial(_read_entries, files)
    if sum(file.log.size for file in files) <= SEARCH_WINDOW:
        # Read once for all candidates.
        read = [*read()].copy
    max_parallelism = max((file.context.max_parallelism for file in files), default=1)
    trials: list[_Trial] = []
    for tier in (known, [(each, "key serializer of another operator") for each in candidates] + _basics()):
        seen: set[Serializer] = set()
        for serializer, origin in tier:
            if serializer not in seen:
                seen.add(serializer)
                if (trial := _try(read(), serializer, origin)) is not None:
                    trials.append(trial)
        if trials or tier:
            # Where state or timers name a serializer, no other is tried, even if it does not fit.
            break
    proven = [trial for trial in trials if trial.is_proven(max_parallelism)]
    if not known and not proven:
        proven = _try_tuples(read, max_parallelism)
    trials = proven or trials
    where = Where(file=files[0].name if files else None)
    hint = "Give it with --key-serializer OPERATOR=TYPE, or use a checkpoint after the first materialization"
    if not trials:
        raise UnsupportedError(
            "nothing has been materialized yet, and no type of keys that is known here fits the changes",
            where=where,
            hint=hint,
        )
    first, *rest = trials
    if any(trial.digest.digest() != first.digest.digest() for trial in rest):
        names = ", ".join(describe(trial.serializer) for trial in trials)
        raise UnsupportedError(
            f"nothing has been materialized yet, and the keys in the changes may be any of {names}",
            where=where,
            hint=hint,
        )
    others = tuple(describe(trial.serializer) for trial in rest)
    return FoundKeySerializer(first.serializer, first.origin, len(first.keys), first.changes, first.hashed, others)


def find_written_serializers(files: Sequence[ChangelogFile]) -> list[tuple[Serializer, str]]:
    """Return the key serializers that materialized state and timers of an operator name, each with its origin."""
    known = [(file.key_serializer, "key serializer of the materialized state") for file in files if file.key_serializer]
    for file in files:
        for info in file.states:
            element = info.value_serializer
            if isinstance(element, tree.Timer):
                known.append((element.key, f"key serializer of the timers {info.name}"))
    return [(serializer, origin) for serializer, origin in known if serializer is not None]


def _basics() -> list[tuple[Serializer, str]]:
    return [(basic(kind), "basic type") for kind in _BASIC]


def _try_tuples(read: Callable[[], Iterable[_MapEntry]], max_parallelism: int) -> list[_Trial]:
    """Try tuples of basic types as key serializers; return the trials of those that the hashes prove."""
    sample = _take_sample(read())
    fields = [basic(kind) for kind in _TUPLE_FIELDS]
    trials = []
    for serializer in (tuple_of(*each) for size in _TUPLE_SIZES for each in product(fields, repeat=size)):
        if _try(sample, serializer, "") is not None:
            trial = _try(read(), serializer, "tuple of basic types")
            if trial is not None and trial.is_proven(max_parallelism, _TUPLE_PROOF_BITS):
                trials.append(trial)
    return trials


def _take_sample(read: Iterable[_MapEntry]) -> list[_MapEntry]:
    entries: list[_MapEntry] = []
    for entry in read:
        rows = len(entry.changes)
        chosen = np.linspace(0, rows - 1, min(rows, _SAMPLE_OF_STATE)).astype(np.int64)
        entries.append(_MapEntry(entry.file, entry.info, entry.changes.select(chosen)))
        if sum(len(each.changes) for each in entries) >= _SAMPLE:
            break
    return entries


def _read_entries(files: Iterable[ChangelogFile]) -> Iterator[_MapEntry]:
    for file in files:
        for window in file.log.windows(file.key_groups, SEARCH_WINDOW):
            changes = file.log.read(window)
            unknown = np.setdiff1d(operations_of(changes), _OPERATIONS)
            if len(unknown):
                raise FormatError(
                    f"{unknown[0]} is not an operation on state that Flink logs", where=Where(file=file.name)
                )
            states = file.find_states(changes)
            for state_id in np.unique(states).tolist():
                yield _MapEntry(file, file.states[state_id], changes.select(states == state_id))


def _try(entries: Iterable[_MapEntry], serializer: Serializer, origin: str) -> _Trial | None:
    trial = _Trial(serializer, origin)
    for entry in entries:
        context = entry.file.context
        try:
            try:
                layout = derive_keyed_layout(entry.info, serializer, context.max_parallelism, context.layouts)
            except UnsupportedError:
                derive_layout(serializer, context.layouts)
                # Another serializer of the state has no layout. That says nothing about the candidate for the key.
                continue
            _try_state(trial, ChangedState(entry.info.name, layout, entry.file.name), entry.changes, context)
        except (FormatError, UsageError, UnsupportedError, ValueRangeError):
            # The candidate is wrong: the bytes do not fit its type, or values of this type cannot be keys or be read.
            return None
    return trial


def _try_state(trial: _Trial, state: ChangedState, changes: Changes, context: RecordContext) -> None:
    operations = operations_of(changes)
    for operation in np.unique(operations).tolist():
        mine = changes.select(operations == operation)
        if state.layout.state_type == StateKind.TIMER:
            spans, key_groups = _measure_timers(state, mine, operation)
        else:
            spans, key_groups = _measure_changes(state, mine, operation), mine.key_groups
        starts, stops = (spans.field(name).to_numpy(zero_copy_only=False) for name in ("start", "stop"))
        trial.digest.update(np.ascontiguousarray(stops).tobytes())
        trial.changes += len(mine)
        _check_hashes(trial, take_bytes(mine.data, starts, stops), key_groups, context)


def _measure_changes(state: ChangedState, changes: Changes, operation: int) -> pa.Array:
    """Return the spans of the keys of changes.

    Operands (the bytes after key and namespace) that can be parsed must end where their change ends.
    """
    payload = _payload(state, StateChangeOperation(operation))
    starts = changes.starts + HEAD
    if payload is None:
        rows = 0
    else:
        layout = lay.Struct((*state.scope, ("payload", lay.Span(payload))))
        _check_first(layout, changes, starts, state.file)
        rows = len(changes) if _is_columnar(layout) else min(_SCALAR_ROWS, len(changes))
        try:
            checked = Measure(layout).spans(changes.data, starts[:rows], changes.ends[:rows], offset=0, name=state.file)
        except UnsupportedError:
            # The value is of a class without a declaration, so its end is not known: check only key and namespace.
            rows = 0
    if rows and rows == len(changes):
        return checked.field(0)
    rest = Measure(lay.Struct((*state.scope, ("payload", REST)))).spans(
        changes.data, starts[rows:], changes.ends[rows:], offset=0, name=state.file
    )
    return pa.concat_arrays([checked.field(0), rest.field(0)]) if rows else rest.field(0)


def _check_first(layout: lay.Layout, changes: Changes, starts: npt.NDArray[np.int64], name: str) -> None:
    """Make sure that the first and the last change fit a layout, without compiling it.

    Nearly all candidates are wrong, which one change shows; to compile a layout takes far longer than to read that.

    Raises:
        FormatError: a change does not fit.
    """
    for row in {0, len(changes) - 1}:
        reader = Reader(changes.data[starts[row] : changes.ends[row]].tobytes(), name)
        try:
            read_value(layout, reader)
        except (UnsupportedError, ValueRangeError):
            # A value that Python does not have, or of a class without a declaration, is no evidence about the key.
            return
        reader.expect_end("the record")


def _is_columnar(layout: lay.Layout) -> bool:
    try:
        compile_layout(layout)
    except UnsupportedError:
        return False
    return True


def _payload(state: ChangedState, operation: StateChangeOperation) -> lay.Layout | None:
    """Return the layout of the operands of an operation: the bytes after key and namespace.

    None if the state has no such operation, or if its map keys have no layout.
    """
    value, state_type = state.value, state.layout.state_type
    match operation:
        case StateChangeOperation.CLEAR:
            return lay.Constant(b"")
        case StateChangeOperation.MERGE_NS:
            namespace = state.bare[1][1]
            return lay.Struct((("target", namespace), ("sources", lay.Sequence(namespace))))
    if state_type == StateKind.MAP:
        user_key = dict(state.layout.key.fields).get("map_key")
        match operation:
            case _ if user_key is None:
                return None
            case StateChangeOperation.ADD:
                return lay.Mapping(user_key, lay.Optional(value))
            case StateChangeOperation.ADD_ELEMENT | StateChangeOperation.ADD_OR_UPDATE_ELEMENT:
                return lay.Struct((("key", user_key), ("value", value)))
            case StateChangeOperation.REMOVE_ELEMENT:
                return user_key
        return None
    if state_type == StateKind.LIST:
        return value if operation == StateChangeOperation.ADD_ELEMENT else lay.Sequence(value)
    return value


def _measure_timers(state: ChangedState, changes: Changes, operation: int) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """Return the spans of the keys in changes of timers, and the key groups under which the changes were logged."""
    element = lay.Struct(tuple((name, lay.Span(each)) for name, each in state.layout.key.fields))
    layout = lay.Sequence(element) if operation == StateChangeOperation.ADD_ELEMENT else element
    starts = changes.starts + HEAD
    array = Measure(layout).spans(changes.data, starts, changes.ends, offset=0, name=state.file)
    if operation != StateChangeOperation.ADD_ELEMENT:
        return array.field("state_key"), changes.key_groups
    counts = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    return array.flatten().field("state_key"), np.repeat(changes.key_groups, counts)


def _check_hashes(trial: _Trial, keys: pa.Array, key_groups: npt.NDArray[np.int32], context: RecordContext) -> None:
    """Check that the hashes of keys give the key groups under which the changes were logged.

    Each distinct key is hashed once.

    Raises:
        FormatError: they do not.
        UsageError: values of the type cannot be keys.
    """
    encoded = keys.dictionary_encode()
    distinct = encoded.dictionary
    if len(trial.keys) < COUNTED_KEYS:
        trial.keys.update(hashlib.blake2b(key, digest_size=16).digest() for key in distinct.to_pylist())
    if not trial.hashed or not len(distinct):
        return
    from state_pipelines.keyed.hashing import hash_codes  # many modules, needed only if the key type is unknown

    layout = derive_layout(trial.serializer, context.layouts)
    _, offsets, data = distinct.buffers()
    stops = np.frombuffer(offsets, np.int32, len(distinct) + 1, 4 * distinct.offset).astype(np.int64)
    flat = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    try:
        values = decode_spans(compile_layout(layout), flat, stops[:-1], stops[1:])
        groups = assign_key_groups(hash_codes(trial.serializer, values), context.max_parallelism)
    except UnsupportedError:
        trial.hashed = False
        return
    if not np.array_equal(groups[encoded.indices.to_numpy()], key_groups):
        raise FormatError("the hashes of the keys do not give their key groups")


WINDOW = 16 << 20
"""Bytes of base and changes that are replayed at once; a key group that has more is replayed as a whole."""


@dataclass(frozen=True)
class ChangelogFile(KeyedFormat):
    """The state of a handle of the changelog state backend.

    Attributes:
        bases: the materialized state; nothing before the first materialization.
        log: the changes since the materialization.
        states: the states of the bases, then those that the log adds; each with its last meta info.
        key_serializer: of the bases, or given by the caller of `open_changelog`; None when it is not known.
        key_groups: range of the handle.
        context: of the operator. The context of the bases has `by_block` unset, since changes apply to single records.
        name: of the handle, for errors.
        ids: per change set of the log, the state (position in `states`) of each state id.
        earlier: (index in `states`, key serializer or None, meta info) of bases and earlier changes that differ from
            the last meta info of the state or from `key_serializer`.
    """

    bases: tuple[KeyedFile, ...]
    log: ChangeLog
    states: tuple[StateMetaInfo, ...]
    key_serializer: Serializer | None
    key_groups: KeyGroupRange
    context: RecordContext = field(repr=False, hash=False)
    name: str
    ids: tuple[Mapping[int, int], ...] = field(repr=False, hash=False)
    earlier: tuple[tuple[int, Serializer | None, StateMetaInfo], ...] = field(default=(), repr=False)

    format: ClassVar[FileFormat] = FileFormat.CHANGELOG

    @property
    def header(self) -> KeyedHeader:
        """Key serializer and states, as the header of a canonical file has them.

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
        key_groups: KeyGroupRange | None = None,
        *,
        window: int = WINDOW,
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """Yield the records of some states after their changes, `window` bytes at a time (see `KeyedFile.scan`).

        Raises:
            FormatError: the bytes are not change sets, or a change does not fit the serializers.
            UnsupportedError: the key serializer is not known, or a change cannot be replayed without the user's code.
        """
        wanted = self.key_groups if key_groups is None else self.key_groups.intersect(key_groups)
        header = self.header
        self._check_descriptions(state_ids)
        chosen = dict.fromkeys(state_ids)
        for groups, held in self._windows(list(chosen), wanted, window):
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
                            info, header.key_serializer, self.context.max_parallelism, self.context.layouts
                        )
                        base = replay(ChangedState(info.name, layout, self.name, unknown), base, mine)
                if base is not None and len(base):
                    yield state_id, base

    def scan_key_groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """Yield all records, one key group after the other, ascending."""
        everything = range(len(self.states))
        wanted = self.key_groups.intersect(key_groups)
        found: dict[int, list[KeyedRecords]] = {}
        last = -1
        for state_id, records in self.scan(everything, wanted):
            if state_id <= last:
                yield from _by_key_group(found)
                found = {}
            found.setdefault(state_id, []).append(records)
            last = state_id
        yield from _by_key_group(found)

    def split(self, size: int, key_groups: KeyGroupRange | None = None) -> Iterator[ChangelogFile]:
        """Split the file into files of about `size` bytes, as if all key groups were of the same size."""
        wanted = self.key_groups if key_groups is None else self.key_groups.intersect(key_groups)
        changed = self.log.size * len(wanted) // max(1, len(self.key_groups))
        count = sum(1 for base in self.bases for _ in base.split(size, wanted))
        # Rounded down: the last splits of the bases are smaller than `size` and have room for the rest of the changes.
        count = count + changed // size if count else -(-changed // size)
        count = min(count, len(wanted))
        for number in range(count):
            start, end = (len(wanted) * each // count for each in (number, number + 1))
            yield replace(self, key_groups=KeyGroupRange(wanted.start + start, end - start))

    def digest_stored_bytes(self, key_groups: KeyGroupRange) -> RecordDigest:
        """Digest the changes, and the stored bytes of the bases.

        The records of a base are digested instead if its format finds them without serializers.
        """
        total = digest_changes(self.log, key_groups)
        for base in self.bases:
            held = base.key_groups.intersect(key_groups)
            stored = base.digest_stored_bytes(held)
            if stored is not None:
                total += stored
                continue
            for _, records in base.scan(range(len(base.header.states)), held):
                total += digest_run(records, is_map=False).without_key_groups
        return total

    def table_files(self) -> Iterator[tuple[TableFile, TableCache]]:
        """Yield the tables (SST files) of the bases."""
        for base in self.bases:
            yield from base.table_files()

    def with_context(self, context: RecordContext) -> ChangelogFile:
        """See `KeyedFile`."""
        single = replace(context, by_block=False)
        return replace(self, context=context, bases=tuple(base.with_context(single) for base in self.bases))

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
        """Return the file with only the wanted keys in its bases; the changes of all keys are still replayed."""
        return replace(self, bases=tuple(base.narrow_to_keys(keys) for base in self.bases))

    def find_states(self, changes: Changes) -> npt.NDArray[np.int64]:
        """Return the state of each change as its position in `states`, i64[n].

        Raises:
            FormatError: a change has a state id that no metadata change has given to a state.
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
        """Convert the offsets in errors raised in the block from offsets in `changes` to offsets in files."""
        try:
            yield
        except StateError as error:
            if error.where.file in (None, self.name):
                locate(error, self.log, changes)
            raise

    def _windows(
        self, state_ids: list[int], key_groups: KeyGroupRange, window: int
    ) -> Iterator[tuple[KeyGroupRange, dict[int, list[KeyedRecords]]]]:
        """Yield ranges of key groups, each with the records of the bases in these key groups."""
        groups = self._scan_bases(state_ids, key_groups)
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

    def _scan_bases(self, state_ids: list[int], key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """Yield the records of some states in the bases, by ascending key group."""
        return heapq.merge(*(self._scan_base(base, state_ids, key_groups) for base in self.bases), key=itemgetter(0))

    def _scan_base(
        self, base: KeyedFile, state_ids: list[int], key_groups: KeyGroupRange
    ) -> Iterator[tuple[int, Runs]]:
        names = {self.states[state_id].name: state_id for state_id in state_ids}
        ours = {theirs: names[info.name] for theirs, info in enumerate(base.header.states) if info.name in names}
        if not ours or not len(wanted := base.key_groups.intersect(key_groups)):
            return
        if len(ours) == 1:
            (theirs,) = ours
            stream = (records for _, records in base.scan([theirs], wanted))
            groups = gather_key_groups({theirs: stream})
        else:
            groups = base.scan_key_groups(wanted)
        for key_group, runs in groups:
            yield key_group, [(ours[theirs], records) for theirs, records in runs if theirs in ours]

    def _check_descriptions(self, state_ids: Sequence[int]) -> None:
        """Make sure that base and log write a state with the same layouts: one meta info describes all records."""
        header = self.header
        for position, key_serializer, info in self.earlier:
            if position not in state_ids:
                continue
            now = header.states[position]
            (one, unknown), (other, _) = (
                derive_replay_layout(each, key, self.context.max_parallelism, self.context.layouts)
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
    """Return the materialized handles in a changelog handle, each once.

    After a change of parallelism a subtask has the materialized handles of all former subtasks that held its key groups
    (`ChangelogKeyedStateBackend.completeRestore`). Handles of RocksDB files are not cut by key group
    (`IncrementalRemoteKeyedStateHandle.getIntersection`), so that the handle of a former subtask may occur repeatedly.
    """
    found: dict[KeyedStateHandle, KeyedStateHandle] = {}
    for base in handle.materialized:
        files = base
        if isinstance(base, IncrementalRemoteKeyedStateHandle):
            # These fields may differ between handles that name the same files (`rebound` in Flink), so they do not
            # count when handles are compared.
            files = replace(base, checkpoint_id=0, persisted_size=None, state_handle_id=None)
        found.setdefault(files, base)
    return tuple(found.values())


def open_changelog(
    handle: ChangelogStateBackendHandle,
    bases: Sequence[KeyedFile],
    open_stream: Callable[[StreamStateHandle], StateStream],
    context: RecordContext,
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
        context: of the operator, with which the bases are opened too.
        key_serializer: the key serializer, if the caller knows it; that of a base takes precedence.
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
        context=context,
        name=name,
        ids=tuple(ids),
        earlier=tuple(sorted(earlier, key=itemgetter(0))),
    )


def _require_disjoint(bases: Sequence[KeyedFile], key_groups: KeyGroupRange, name: str) -> None:
    """Make sure that each key group is in one base only.

    Flink writes overlapping bases over each other, in an order that depends on its release and on the new parallelism;
    records that were removed between the two materializations reappear (`RocksDBIncrementalRestoreOperation`). Such a
    result is not the state of the job.
    """
    ranges = sorted((base.key_groups.intersect(key_groups) for base in bases), key=lambda each: each.start)
    for one, other in pairwise(each for each in ranges if len(each)):
        if other.start <= one.end:
            raise UnsupportedError(
                f"several materialized states hold key group {other.start}, "
                "of times before and after a change of parallelism, and the snapshot does not say which one is current",
                where=Where(file=name),
                hint="Take a savepoint (`flink savepoint --type canonical`), or use a checkpoint after the next "
                "materialization (`state.changelog.periodic-materialize.interval`)",
            )


def _by_key_group(found: dict[int, list[KeyedRecords]]) -> Iterator[tuple[int, Runs]]:
    return gather_key_groups({state_id: iter(batches) for state_id, batches in found.items()})
