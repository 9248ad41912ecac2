"""Finding the key serializer of a changelog that nothing was materialized for, and that therefore does not name it.

A candidate is tried on every change: key, namespace and payload must use up its bytes, and the key must hash to the key
group under which the change was logged. Tuples of basic types are many, so that a sample of changes picks them first.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.programs.execution import decode_spans
from state_pipelines.codecs.programs.program import compile_layout
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import FormatError, UnsupportedError, UsageError, ValueRangeError, Where
from state_pipelines.keyed.changelog.changed_states import HEAD, REST, ChangedState, operations_of
from state_pipelines.keyed.changelog.changes import Operation
from state_pipelines.keyed.key_group_assignment import assign_key_groups
from state_pipelines.keyed.record_bounds import Measure, take_bytes
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic, tuple_of
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.changelog.change_streams import Changes
    from state_pipelines.keyed.keyed_file import LoggedFile, RecordContext
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

WINDOW = 64 << 20
"""Bytes of changes that are tried at once."""

COUNTED_KEYS = 100_000
"""Distinct keys are counted up to about here, so that counting does not grow with the state."""

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

The hashes of all of them are known: that some type has the right width says little.
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
"""Tuples that are tried; a Tuple1 has the bytes and the hash of its field, nothing can tell it from that."""

_SAMPLE = 500
_SAMPLE_OF_STATE = 100
"""So many changes, and of one state in one file, pick the tuples that are tried on everything."""

_SCALAR_ROWS = 1000
"""So many payloads of a state are parsed where only the scalar codec can do it."""

# Chances that a wrong type passes by its hash alone, as a power of two, below which the hash counts as proof.
_PROOF_BITS = 20
# For tuples it must hold over all that are tried.
_TUPLE_PROOF_BITS = _PROOF_BITS + sum(len(_TUPLE_FIELDS) ** size for size in _TUPLE_SIZES).bit_length()


@dataclass(frozen=True)
class FoundKeySerializer:
    """A key serializer and what speaks for it.

    Attributes:
        serializer: the serializer.
        origin: where the candidate comes from.
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
        """The reasons in one line."""
        many = "more than " if self.keys >= COUNTED_KEYS else ""
        text = f"{describe(self.serializer)}: {self.origin}; fits {self.changes} changes of {many}{self.keys} keys"
        text += ", whose hashes give their key groups" if self.hashed else "; the hash of such keys is not known"
        return text + (f"; so do {', '.join(self.others)}" if self.others else "")


_OPERATIONS = np.array(list(Operation), np.uint8)


@dataclass
class _Trial:
    """Result of trying a candidate on all changes."""

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
    """Changes of one state in one file."""

    file: LoggedFile
    info: StateMetaInfo
    changes: Changes


def find_key_serializer(
    files: Sequence[LoggedFile], context: RecordContext, candidates: Iterable[Serializer] = ()
) -> FoundKeySerializer:
    """The serializer of the keys of an operator, none of whose subtasks need have materialized anything.

    A subtask that has materialized state says it, and so do timers; what they say is tried all the same. Else the
    candidates and the basic types are tried, then, unless one is proven by its hashes, tuples of basic types, which
    count only with such a proof; one must be left.

    Args:
        files: the subtasks of the operator.
        context: of the operator.
        candidates: key serializers that other operators of the snapshot use.

    Raises:
        UnsupportedError: no candidate is left, or several that split the changes in different ways.
        FormatError: the bytes are not change sets.
    """
    known = find_written_serializers(files)
    trials: list[_Trial] = []
    for tier in (known, [(each, "key serializer of another operator") for each in candidates] + _basics()):
        seen: set[Serializer] = set()
        for serializer, origin in tier:
            if serializer not in seen:
                seen.add(serializer)
                if (trial := _try(_read_entries(files), context, serializer, origin)) is not None:
                    trials.append(trial)
        if trials or tier:
            # What subtasks and timers say is final, whether it fits or not.
            break
    proven = [trial for trial in trials if trial.is_proven(context.max_parallelism)]
    if not known and not proven:
        proven = _try_tuples(files, context)
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


def find_written_serializers(files: Sequence[LoggedFile]) -> list[tuple[Serializer, str]]:
    """Key serializers that materialized state and timers of an operator name, and where; candidates for others too."""
    known = [(file.key_serializer, "key serializer of the materialized state") for file in files if file.key_serializer]
    for file in files:
        for info in file.states:
            element = info.value_serializer
            if isinstance(element, tree.Timer):
                known.append((element.key, f"key serializer of the timers {info.name}"))
    return [(serializer, origin) for serializer, origin in known if serializer is not None]


def _basics() -> list[tuple[Serializer, str]]:
    return [(basic(kind), "basic type") for kind in _BASIC]


def _try_tuples(files: Sequence[LoggedFile], context: RecordContext) -> list[_Trial]:
    """The tuples that the hashes prove."""
    sample = _take_sample(files)
    fields = [basic(kind) for kind in _TUPLE_FIELDS]
    trials = []
    for serializer in (tuple_of(*each) for size in _TUPLE_SIZES for each in product(fields, repeat=size)):
        if _try(sample, context, serializer, "") is not None:
            trial = _try(_read_entries(files), context, serializer, "tuple of basic types")
            if trial is not None and trial.is_proven(context.max_parallelism, _TUPLE_PROOF_BITS):
                trials.append(trial)
    return trials


def _take_sample(files: Sequence[LoggedFile]) -> list[_MapEntry]:
    entries: list[_MapEntry] = []
    for entry in _read_entries(files):
        rows = len(entry.changes)
        chosen = np.linspace(0, rows - 1, min(rows, _SAMPLE_OF_STATE)).astype(np.int64)
        entries.append(_MapEntry(entry.file, entry.info, entry.changes.select(chosen)))
        if sum(len(each.changes) for each in entries) >= _SAMPLE:
            break
    return entries


def _read_entries(files: Iterable[LoggedFile]) -> Iterator[_MapEntry]:
    for file in files:
        for window in file.log.windows(file.key_groups, WINDOW):
            changes = file.log.read(window)
            unknown = np.setdiff1d(operations_of(changes), _OPERATIONS)
            if len(unknown):
                raise FormatError(f"{unknown[0]} is not an operation on state", where=Where(file=file.name))
            states = file.find_states(changes)
            for state_id in np.unique(states).tolist():
                yield _MapEntry(file, file.states[state_id], changes.select(states == state_id))


def _try(entries: Iterable[_MapEntry], context: RecordContext, serializer: Serializer, origin: str) -> _Trial | None:
    trial = _Trial(serializer, origin)
    for entry in entries:
        try:
            try:
                layout = derive_keyed_layout(entry.info, serializer, context.max_parallelism, context.layouts)
            except UnsupportedError:
                derive_layout(serializer, context.layouts)
                # The state has no layout, which is no evidence about the key.
                continue
            _try_state(trial, ChangedState(entry.info.name, layout, entry.file.name), entry.changes, context)
        except (FormatError, UsageError, UnsupportedError, ValueRangeError):
            # It is not this type: the bytes do not fit, or values of it are no keys, or none that can be read.
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
    """The spans of the keys; every change must be consumed completely."""
    payload = _payload(state, Operation(operation))
    starts = changes.starts + HEAD
    if payload is None:
        rows = 0
    else:
        layout = lay.Struct((*state.scope, ("payload", lay.Span(payload))))
        rows = len(changes) if _is_columnar(layout) else min(_SCALAR_ROWS, len(changes))
        try:
            checked = Measure(layout).spans(changes.data, starts[:rows], changes.ends[:rows], offset=0, name=state.file)
        except UnsupportedError:
            # A value of a class without a declaration is no evidence about the key.
            rows = 0
    rest = Measure(lay.Struct((*state.scope, ("payload", REST)))).spans(
        changes.data, starts[rows:], changes.ends[rows:], offset=0, name=state.file
    )
    return pa.concat_arrays([checked.field(0), rest.field(0)]) if rows else rest.field(0)


def _is_columnar(layout: lay.Layout) -> bool:
    try:
        compile_layout(layout)
    except UnsupportedError:
        return False
    return True


def _payload(state: ChangedState, operation: Operation) -> lay.Layout | None:
    """Layout of an operation after key and namespace.

    None where the state has no such operation, or where nothing reads the keys of its map.
    """
    value, state_type = state.value, state.layout.state_type
    match operation:
        case Operation.CLEAR:
            return lay.Constant(b"")
        case Operation.MERGE_NS:
            namespace = state.bare[1][1]
            return lay.Struct((("target", namespace), ("sources", lay.Sequence(namespace))))
    if state_type == StateKind.MAP:
        user_key = dict(state.layout.key.fields).get("map_key")
        match operation:
            case _ if user_key is None:
                return None
            case Operation.ADD:
                return lay.Mapping(user_key, lay.Optional(value))
            case Operation.ADD_ELEMENT | Operation.ADD_OR_UPDATE_ELEMENT:
                return lay.Struct((("key", user_key), ("value", value)))
            case Operation.REMOVE_ELEMENT:
                return user_key
        return None
    if state_type == StateKind.LIST:
        return value if operation == Operation.ADD_ELEMENT else lay.Sequence(value)
    return value


def _measure_timers(state: ChangedState, changes: Changes, operation: int) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """The spans of the keys of timers, and their key groups."""
    element = lay.Struct(tuple((name, lay.Span(each)) for name, each in state.layout.key.fields))
    layout = lay.Sequence(element) if operation == Operation.ADD_ELEMENT else element
    starts = changes.starts + HEAD
    array = Measure(layout).spans(changes.data, starts, changes.ends, offset=0, name=state.file)
    if operation != Operation.ADD_ELEMENT:
        return array.field("state_key"), changes.key_groups
    counts = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    return array.flatten().field("state_key"), np.repeat(changes.key_groups, counts)


def _check_hashes(trial: _Trial, keys: pa.Array, key_groups: npt.NDArray[np.int32], context: RecordContext) -> None:
    """Compare the key groups by hash with the recorded ones; distinct keys are hashed once.

    Raises:
        FormatError: they differ.
        UsageError: values of the type cannot be keys.
    """
    encoded = keys.dictionary_encode()
    distinct = encoded.dictionary
    if len(trial.keys) < COUNTED_KEYS:
        trial.keys.update(hashlib.blake2b(key, digest_size=16).digest() for key in distinct.to_pylist())
    if not trial.hashed or not len(distinct):
        return
    from state_pipelines.keyed.hashing import hash_codes  # many modules, for changelog state that lacks its keys' type

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
