"""Several snapshots of one job as one, and the hashes of keys that decide where records belong."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.binary.compiled import load_i32_big, load_u8, njit
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.errors import (
    FormatError,
    IncompatibleError,
    ProofError,
    StateError,
    UnsupportedError,
    UsageError,
    Where,
    at,
)
from state_pipelines.keyed.canonical import FramedRuns, concat_runs
from state_pipelines.keyed.digests import RecordDigest, digest_records
from state_pipelines.keyed.hashing.class_hashes import parse_hash_expression
from state_pipelines.keyed.hashing.hash_search import find_class_hashes
from state_pipelines.keyed.hashing.value_hashes import find_unknown_classes, make_key_hasher
from state_pipelines.keyed.kernels import number_keys
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.keyed.keys import TIMESTAMP
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.operations.local_processes import count_kernel_threads
from state_pipelines.serializers.state_meta_info import BackendStateType, join_infos
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import Opaque, StateKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.operatorstate import OperatorHeader
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Operator

StatePairs = tuple[tuple[int, int], ...]
"""(old state id, new state id), for each state of a file that stays."""


class MergeRule(Enum):
    """Rule for a record (a value, a whole list, an entry of a map) whose key more than one snapshot has.

    The rule does not apply to timers: several snapshots may have the same timer, and the result has it once.
    """

    ERROR = "error"
    FIRST = "first"
    LAST = "last"


def align_headers(
    headers: Sequence[KeyedHeader], dropped: Collection[str] = (), files: Sequence[str] = ()
) -> tuple[KeyedHeader, tuple[StatePairs, ...]]:
    """Make one header for the states of several files; states with equal names become one state.

    Args:
        headers: at least one. The result says that records are compressed if the first header says so.
        dropped: names of states that are left out.
        files: names of the files of the headers, for errors.

    Returns:
        (the header; for each old header: (old state id, new state id) of its states that stay).

    Raises:
        UsageError: no header was given.
        UnsupportedError: keys, or states of one name, have different serializers; or a header that can be parsed only
            in part would have to change.
    """
    if not headers:
        raise UsageError("there are no headers to align")
    _check_unread(headers, dropped, files)
    states: dict[str, StateMetaInfo] = {}
    for header, file in zip_longest(headers, files):
        with at(file=file):
            if header.key_serializer != headers[0].key_serializer:
                raise _differ("keys", *_tell_apart(headers[0].key_serializer, header.key_serializer))
            _add_states(states, header.states, dropped)
    numbers = {name: number for number, name in enumerate(states)}
    pairs = tuple(
        tuple((old, numbers[info.name]) for old, info in enumerate(header.states) if info.name in numbers)
        for header in headers
    )
    return replace(headers[0], states=tuple(states.values())), pairs


def check_operator_headers(headers: Sequence[OperatorHeader], dropped: Collection[str], files: Sequence[str]) -> None:
    """Refuse files of operator state that have different serializers or modes for a state of the same name.

    A subtask may get elements of several files, if not now, then after a later change of parallelism. Flink registers a
    state as the first file of a subtask describes it, and reads the elements in all its files with that serializer
    (`OperatorStateRestoreOperation`).

    Args:
        headers: headers of all files of an operator.
        dropped: names of states that are left out.
        files: names of the files, for errors.

    Raises:
        UnsupportedError: states of one name have different serializers or modes; or the headers differ and one of them
            can be parsed only in part.
    """
    if len({header.raw for header in headers}) > 1:
        raise _refuse_unread([(*header.lists, *header.broadcasts) for header in headers], files)
    states: dict[str, StateMetaInfo] = {}
    for header, file in zip(headers, files, strict=True):
        with at(file=file):
            _add_states(states, (*header.lists, *header.broadcasts), dropped)


def _add_states(states: dict[str, StateMetaInfo], infos: Iterable[StateMetaInfo], dropped: Collection[str]) -> None:
    """Add the states of a header to `states`, by name; the same state of several headers is joined.

    Raises:
        UnsupportedError: a state is in `states` with different serializers or another kind.
    """
    for info in infos:
        if info.name not in dropped:
            known = states.get(info.name, info)
            joined = join_infos(known, info)
            if joined is None:
                _require_alike(known, info)
            states[info.name] = joined or known


def _check_unread(headers: Sequence[KeyedHeader], dropped: Collection[str], files: Sequence[str]) -> None:
    """Refuse headers that can be parsed only in part, unless all of them are equal and no state is dropped.

    Such a header is written with the bytes that it has in the old file, so that its states cannot be changed.
    """
    if not any(map(_find_unread, (header.states for header in headers))):
        return
    # The first five bytes, version and compression, may differ: they are not copied from the old header.
    stored = {(header.raw[5:], *(info.name for info in header.states)) for header in headers}
    if len(stored) > 1 or not headers[0].raw or any(info.name in dropped for info in headers[0].states):
        raise _refuse_unread([header.states for header in headers], files)


def _find_unread(states: Iterable[StateMetaInfo]) -> tuple[str, str] | None:
    """Find the first state with a serializer snapshot whose end in the header is not known.

    Return (name of the state, class of the serializer snapshot); None if there is no such state.
    """
    for info in states:
        for _, serializer in info.serializers:
            if isinstance(serializer, Opaque) and serializer.raw is None:
                return info.name, serializer.unknown_class
    return None


def _refuse_unread(headers: Iterable[Iterable[StateMetaInfo]], files: Sequence[str]) -> UnsupportedError:
    state, unknown_class, file = next(
        (*found, file) for states, file in zip_longest(headers, files) if (found := _find_unread(states))
    )
    return UnsupportedError(
        f"the header can be read only up to the snapshot of {unknown_class}, whose end is not known: no state can be "
        "dropped from it, and files with another header cannot be joined with it",
        where=Where(state=state, file=file),
        hint=f"Declare the class (`--serializer '{unknown_class}=LAYOUT'`)",
    )


def _require_alike(first: StateMetaInfo, second: StateMetaInfo) -> None:
    kinds = [
        f"{info.backend_type} {info.state_type or info.distribution_mode or ''}".strip() for info in (first, second)
    ]
    if kinds[0] != kinds[1]:
        raise _differ("kinds of state", kinds[0], kinds[1], first.name)
    stored = dict(second.serializers)
    for role, serializer in first.serializers:
        other = stored.get(role)
        if serializer != other:
            what = f"serializers ({role.lower().replace('_', ' ')})"
            raise _differ(what, *_tell_apart(serializer, other), first.name)
    if more := stored.keys() - dict(first.serializers).keys():
        raise _differ("serializers", "nothing", f"{', '.join(sorted(more))} besides", first.name)


def _differ(what: str, first: str, second: str, state: str | None = None) -> UnsupportedError:
    return UnsupportedError(
        f"the {what} of the snapshots differ: {first} and {second}",
        where=Where(state=state),
        hint="Migrate one of the snapshots first, so that both store it alike"
        + (", or drop the state (--drop-state)" if state else ""),
    )


def _tell_apart(first: Serializer, second: Serializer | None) -> tuple[str, str]:
    """Make different texts of two different serializers, for an error.

    If their usual texts are equal, class and version of the innermost serializer snapshots that differ are appended.
    """
    if second is None:
        return describe(first), "nothing"
    texts = describe(first), describe(second)
    if texts[0] != texts[1]:
        return texts
    inner: tuple[Serializer, Serializer] = (first, second)
    while True:
        nested = zip(inner[0].nested, inner[1].nested, strict=False)
        below = next((pair for pair in nested if pair[0] != pair[1]), None)
        if below is None:
            break
        inner = below
    marks = [f"with {each.snapshot_class} version {each.snapshot_version}" for each in inner]
    return f"{texts[0]} {marks[0]}", f"{texts[1]} {marks[1]}"


def is_timer(info: StateMetaInfo) -> bool:
    """Return whether a state holds timers, which store a timestamp before each key."""
    return info.backend_type is BackendStateType.PRIORITY_QUEUE


def show_key(header: KeyedHeader, state: int, context: RecordContext, key: bytes) -> str:
    """Text with the key of a record, for errors; with its bytes if they cannot be decoded.

    Args:
        header: header with the state.
        state: id of the state.
        context: record context of the operator.
        key: key bytes of the record, without key-group prefix.
    """
    data = np.frombuffer(key, np.uint8)
    spans = (np.zeros(1, np.int64), np.full(1, len(key), np.int64))
    try:
        layout = derive_keyed_layout(
            header.states[state], header.key_serializer, context.max_parallelism, context.layouts
        )
        return repr(plan_columns(layout.key).decode(data, *spans).array[0]["state_key"].as_py())
    except StateError as error:
        # Do not raise: the caller needs the text for an error of its own, which matters more.
        return f"of the bytes {key.hex()} (not decoded: {error.what})"


def merge_duplicates(
    runs: FramedRuns, rule: MergeRule, header: KeyedHeader, context: RecordContext
) -> tuple[FramedRuns, dict[str, RecordDigest]]:
    """Keep only one of the records that several snapshots have under the same key.

    Args:
        runs: records of several snapshots, sorted by key group, state and snapshot.
        rule: which record stays.
        header: header of the new file.
        context: record context of the new operator.

    Returns:
        (the records that stay; digests of the records that were left out, by state).

    Raises:
        IncompatibleError: there are such records other than timers, and the rule is `ERROR`.
        FormatError: one snapshot has two records with the same key.
    """
    shared = _find_shared(runs)
    if not shared.any():
        return runs, {}
    records = _split_runs(runs.select(np.flatnonzero(shared)), header, context.prefix)
    codes = records.runs.key_groups.astype(np.int64) << 32 | records.runs.states
    rows = np.empty(len(codes), np.int64)
    firsts = number_keys(records.key_starts, records.key_ends - records.key_starts, codes, rows)
    if len(firsts) == len(rows):
        return runs, {}
    repeated = np.flatnonzero(np.bincount(rows)[rows] > 1)
    repeated = repeated[np.argsort(rows[repeated], kind="stable")]
    again = repeated[1:][rows[repeated[1:]] == rows[repeated[:-1]]]
    before = repeated[:-1][rows[repeated[1:]] == rows[repeated[:-1]]]
    twice = records.runs.sources[again] == records.runs.sources[before]
    if twice.any():
        raise FormatError(
            "one snapshot has this key twice: " + _show_key(records, int(again[twice][0]), header, context)
        )
    timers = np.array([is_timer(info) for info in header.states], np.bool_)[records.runs.states]
    if rule is MergeRule.ERROR and not timers[again].all():
        row = int(again[~timers[again]][0])
        raise IncompatibleError(
            "more than one snapshot has the key " + _show_key(records, row, header, context),
            where=Where(state=header.states[int(records.runs.states[row])].name),
            hint="Say which snapshot counts (first or last), or drop the keys from one of them before",
        )
    kept = np.zeros(len(rows), np.bool_)
    if rule is MergeRule.LAST:
        lasts = np.empty(len(firsts), np.int64)
        # If `rows` has an index several times, NumPy keeps the last assignment: the record of the last snapshot, since
        # records are sorted by snapshot.
        lasts[rows] = np.arange(len(rows))
        kept[lasts] = True
    else:
        kept[firsts] = True
    return _join(runs, shared, records, kept), _digest(records, ~kept, header)


@dataclass(frozen=True)
class _Records:
    """Records in memory, each as a run of its own.

    Attributes:
        runs: the runs of one record each.
        key_starts: i64[n], address of each key, after its key-group prefix.
        key_ends: i64[n], address after each key; the length of the value follows there.
        value_ends: i64[n], address after each value; for a null in a map the address after its null flag.
    """

    runs: FramedRuns
    key_starts: npt.NDArray[np.int64]
    key_ends: npt.NDArray[np.int64]
    value_ends: npt.NDArray[np.int64]


def _find_shared(runs: FramedRuns) -> npt.NDArray[np.bool_]:
    """Return a flag for each run: whether several snapshots have records of its state in its key group."""
    if not len(runs.sizes):
        return np.zeros(0, np.bool_)
    same = (np.diff(runs.key_groups) == 0) & (np.diff(runs.states) == 0)
    groups = np.concatenate([np.zeros(1, np.int64), np.cumsum(~same)])
    low = np.full(groups[-1] + 1, np.iinfo(np.int32).max, np.int32)
    high = np.full(groups[-1] + 1, -1, np.int32)
    np.minimum.at(low, groups, runs.sources)
    np.maximum.at(high, groups, runs.sources)
    shared: npt.NDArray[np.bool_] = (low < high)[groups]
    return shared


def _split_runs(runs: FramedRuns, header: KeyedHeader, prefix: int) -> _Records:
    count = int(runs.records.sum())
    maps = np.array([info.state_type == StateKind.MAP for info in header.states], np.bool_)[runs.states]
    addresses, sizes = np.empty(count, np.int64), np.empty(count, np.int64)
    key_ends, value_ends = np.empty(count, np.int64), np.empty(count, np.int64)
    found = split_records(
        runs.addresses, runs.sizes, runs.records, maps, prefix, addresses, sizes, key_ends, value_ends
    )
    if found != count:
        raise FormatError(
            "a temporary file does not hold the records that its index lists",
            hint="Another program has changed the file; run the command again",
        )
    groups, states, sources = (np.repeat(each, runs.records) for each in (runs.key_groups, runs.states, runs.sources))
    ones = np.ones(count, np.int64)
    single = FramedRuns(groups, states, sources, addresses, sizes, 4 * ones, ones, runs.held)
    return _Records(single, addresses + 4 + prefix, key_ends, value_ends)


def _join(
    runs: FramedRuns, shared: npt.NDArray[np.bool_], records: _Records, kept: npt.NDArray[np.bool_]
) -> FramedRuns:
    framed = [runs.select(np.flatnonzero(~shared)), records.runs.select(np.flatnonzero(kept))]
    joined = concat_runs(framed)
    return joined.select(np.lexsort((joined.states, joined.key_groups)))


def _digest(records: _Records, rows: npt.NDArray[np.bool_], header: KeyedHeader) -> dict[str, RecordDigest]:
    runs = records.runs
    dropped: dict[str, RecordDigest] = {}
    for state in np.unique(runs.states[rows]).tolist():
        found = np.flatnonzero(rows & (runs.states == state))
        starts, ends = records.key_starts[found], records.key_ends[found]
        total = digest_records(runs.key_groups[found], 0, starts, ends, ends + 4, records.value_ends[found])
        dropped[header.states[state].name] = RecordDigest(*total.tolist())
    return dropped


def _show_key(records: _Records, row: int, header: KeyedHeader, context: RecordContext) -> str:
    start, end = int(records.key_starts[row]), int(records.key_ends[row])
    state = int(records.runs.states[row])
    key = show_key(header, state, context, ctypes.string_at(start, end - start))
    return f"{key} (key group {records.runs.key_groups[row]} of state {header.states[state].name})"


@njit(cache=True, nogil=True)
def split_records(addresses, sizes, counts, maps, prefix, starts, lengths, key_ends, value_ends):  # type: ignore[no-untyped-def]
    """Find the records in runs.

    Args:
        addresses: i64[r], address of each run.
        sizes: i64[r], bytes of each run.
        counts: i64[r], number of records of each run.
        maps: bool[r], whether the values are entries of a map. Of a null in a map only the flag counts as its value.
        prefix: bytes of the key-group prefix.
        starts: output, i64[n]: address of each record; n is the sum of `counts`.
        lengths: output, i64[n]: bytes of each record.
        key_ends: output, i64[n]: address after the key of each record.
        value_ends: output, i64[n]: address after the value of each record.

    Returns:
        Number of records found; less than n if the bytes of a run are not as many records as `counts` says.
    """
    found = 0
    for run in range(len(addresses)):
        at = addresses[run]
        end = at + sizes[run]
        for _ in range(counts[run]):
            if at + 8 + prefix > end:
                return found
            size = load_i32_big(at)
            if size < prefix or at + 8 + size > end:
                return found
            value = at + 8 + size
            stop = value + load_i32_big(value - 4)
            if stop < value or stop > end:
                return found
            starts[found] = at
            lengths[found] = stop - at
            key_ends[found] = at + 4 + size
            value_ends[found] = value + 1 if maps[run] and stop > value and load_u8(value) != 0 else stop
            found += 1
            at = stop
        if at != end:
            return found - 1
    return found


def count_threads(hasher: KeyHasher | None, files: Sequence[KeyedFile] = ()) -> int:
    """Return the number of tasks that can read these files and hash their keys in concurrent threads; see `Work`.

    It is one if Python code must hash the keys, because no compiled kernel knows their type.
    """
    return count_kernel_threads(files) if hasher is None or hasher.has_kernel else 1


def hash_keys(hasher: KeyHasher, records: KeyedRecords, *, timers: bool) -> npt.NDArray[np.int32]:
    """Compute the Java `hashCode()` of the key of each record, i32[n].

    Args:
        hasher: computes the hash codes.
        records: the records.
        timers: they are timers, so that a timestamp before each key is skipped.
    """
    return hasher.hash_keys(replace(records, key_starts=records.key_starts + TIMESTAMP) if timers else records)


def require_key_groups(
    operator: str,
    file: KeyedFile,
    state: int,
    records: KeyedRecords,
    hashes: npt.NDArray[np.int32],
) -> None:
    """Check that each record is in the key group that the hash of its key gives.

    Args:
        operator: label of the operator, for errors.
        file: file of the records, with the max parallelism of their key groups.
        state: id of the state in this file.
        records: records of the state.
        hashes: i32[n], `hashCode()` of the key of each record.

    Raises:
        ProofError: a record is in another key group.
    """
    header, context = file.header, file.context
    key_groups = assign_key_groups(hashes, context.max_parallelism)
    wrong = np.flatnonzero(key_groups != records.key_groups)
    if len(wrong):
        row = int(wrong[0])
        key = records.data[records.key_starts[row] : records.key_ends[row]].tobytes()
        raise ProofError(
            f"the key {show_key(header, state, context, key)} is in key group {records.key_groups[row]} of "
            f"{context.max_parallelism}, but its hash gives {key_groups[row]} (in this batch, {len(wrong)} of "
            f"{len(records)} keys are in a wrong key group)",
            where=Where(
                file=records.file,
                offset=records.offset + int(records.key_starts[row]),
                operator=operator,
                state=header.states[state].name,
            ),
            hint="The hash is not that of the job's keys; nothing was published",
        )


SAMPLE_SIZE = 20_000
"""Number of records of each subtask, about, that are read to find the hash of a class."""

SAMPLED_BYTES = 1 << 20
"""Approximate bytes of a file that are read at a time to find the hash of a class."""


def find_key_hasher(
    operators: Sequence[Operator], key_serializer: Serializer, declared: Mapping[str, str]
) -> tuple[KeyHasher | None, tuple[str, ...]]:
    """Find out how to compute the hash codes of keys.

    If the keys contain user classes, the `hashCode` of these is searched for (or the declared one is checked) with a
    sample of the stored keys. Otherwise no key is read. Only a sample is checked here: whoever moves records checks all
    of them (`require_key_groups`).

    Args:
        operators: operators with keys of this type; the sample is from the first one that has keys.
        key_serializer: serializer of the keys.
        declared: hash expressions that the user has declared, by class.

    Returns:
        (the hasher; texts that say which `hashCode` was found for user classes, and what proves it). The hasher is None
        if a hash must be proven but there are no keys.

    Raises:
        UnsupportedError: the hash of a class is not proven.
        UsageError: values of the type cannot be keys, or a declared hash is not an expression.
        StateError: state cannot be read.
    """
    layouts = operators[0].snapshot.layout_context
    known = {name: parse_hash_expression(text) for name, text in declared.items()}
    if not known and not find_unknown_classes(key_serializer, known):
        return make_key_hasher(key_serializer, layouts), ()
    for operator in operators:
        for skip, timers in ((0, False), (TIMESTAMP, True)):
            samples = _sample(operator, timers=timers)
            finding = find_class_hashes(
                key_serializer, layouts, samples, operator.max_parallelism, known=known, skip=skip
            )
            if not finding.keys:
                continue
            if not finding.proven:
                hint = "Give the hash with --key-hash OPERATOR:CLASS=EXPRESSION, or key_hash in the request"
                raise UnsupportedError(finding.explain(), hint=hint)
            found = (finding.explain(),) if finding.classes else ()
            return make_key_hasher(key_serializer, layouts, known | finding.expressions), found
    return None, ()


def _sample(operator: Operator, *, timers: bool) -> Iterator[KeyedRecords]:
    """Yield at least `SAMPLE_SIZE` records of every subtask that has so many: only timers, or only other records."""
    kind = BackendStateType.PRIORITY_QUEUE if timers else BackendStateType.KEY_VALUE
    for _, file in operator.keyed_files:
        ids = [number for number, info in enumerate(file.header.states) if info.backend_type is kind]
        found = 0
        for split in file.split(SAMPLED_BYTES) if ids else ():
            for _, records in split.scan(ids):
                yield records
                found += len(records)
            if found >= SAMPLE_SIZE:
                break
