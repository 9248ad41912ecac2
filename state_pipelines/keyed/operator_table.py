"""All keyed states of an operator as one table: a row per key and namespace.

Columns: `key_group` int32, `subtask` int32, `state_key`, `state_namespace`, then one per state, named like it: the
value; of a list state list<element>, of a map state map<key, value>, of timers list<int64>, ascending (milliseconds).
With TTL a value (element, map value) is a struct of `value` and `ttl_last_access`. A missing state of a key is null.

A state without columnar form has a column `<state>_bytes` of stored bytes in place of that (of a map state
map<bytes, bytes>), keys without one `key_bytes` in place of `state_key` and `state_namespace`; the column `reason` says
why. Where single records may well fail to be decoded (Kryo), and where `reason` is among the wanted columns, these
columns are added for failures. A state whose name is that of another column gets the prefix
`state_`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import ColumnCodec, plan_columns
from state_pipelines.errors import UnsupportedError, UsageError, at
from state_pipelines.keyed.keys import KeySeeks
from state_pipelines.keyed.operator_columns import (
    KEY_COLUMNS,
    KeyRows,
    RecordRows,
    StateLayout,
    choose_columns,
    decode_keys,
    decode_matched,
    find_decodability,
    join_arrays,
    locate_keys,
    make_column,
    match_rows,
    merge_runs,
    name_columns,
    namespace_layout,
    require_one,
    spread,
    stored_type,
    unmeasured,
)
from state_pipelines.keyed.record_layout import VOID, KeyedRecords
from state_pipelines.keyed.state_table import encode_key
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.serializers.tree import StateKind

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from state_pipelines.keyed.keyed_file import KeyedFile

WINDOW = 8 << 20
"""Bytes of file whose key groups are matched at once; a larger key group is still matched as a whole."""

BATCH_ROWS = 1 << 17
BATCH_BYTES = 64 << 20
"""Maximum number of rows, and of bytes of records, in a batch."""


@dataclass(frozen=True)
class OperatorTableOptions:
    """Selection of states and columns of an operator.

    Attributes:
        states: names of the states in the table; None is all keyed states.
        timers: timers are in the table, too.
        columns: names or dotted paths such as `profile.address.zip`; None is all.
        raw: keep keys and values as bytes.
        key: only rows of this key (in the form that `state_key` has in Arrow).
    """

    states: tuple[str, ...] | None = None
    timers: bool = False
    columns: tuple[str, ...] | None = None
    raw: bool = False
    key: object = None


class OperatorTable:
    """Converter of the records of all states of an operator to record batches.

    Args:
        states: the states in the table, in the order of their columns.
        options: the selection, with resolved `states` and `timers`.

    Raises:
        UsageError: the states have different namespaces, or a wanted column does not exist.
    """

    def __init__(self, states: Sequence[StateLayout], options: OperatorTableOptions) -> None:
        self._states = tuple(states)
        self._options = options
        self._ids = {state.name: index for index, state in enumerate(self._states)}
        self._main = find_namespace(self._states)
        self._key_reason, self._keys_may_fail = "", False
        if not options.raw:
            self._key_reason, self._keys_may_fail = _find_key_decodability(self._states)
        self._decodabilities = [find_decodability(state, raw=options.raw) for state in self._states]
        self._name_and_choose()
        self._columns = {
            index: make_column(state, name, self._chosen[name], decodability)
            for index, (state, name, decodability) in enumerate(
                zip(self._states, self._names, self._decodabilities, strict=True)
            )
            if name in self._chosen
        }
        self._keys = self._plan_keys()
        self.needle = None if options.key is None else self._encode_needle(options.key)
        self.schema = self._make_schema()

    @property
    def undecoded(self) -> str:
        """Reason why columns have stored bytes; empty if none has, or if bytes were requested."""
        reasons = [
            f"{self._states[index].name}: {self._decodabilities[index].reason}"
            for index in self._columns
            if self._decodabilities[index].reason
        ]
        if self._key_reason and "key_bytes" in self._chosen:
            reasons.insert(0, f"keys: {self._key_reason}")
        return "; ".join(reasons)

    def batches(
        self,
        files: Sequence[KeyedFile],
        subtask: int,
        key_groups: KeyGroupRange | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one subtask, or of some of its key groups.

        Args:
            files: files of the subtask; timers may be in a separate file.
            subtask: its index.
            key_groups: read only these key groups; None is all.

        Raises:
            FormatError: the bytes do not fit the serializers, or a key comes twice in a state that is no map.
            UnsupportedError: a value cannot be decoded, or the end of a key is not known because its serializer has no
                reader.
        """
        for split, groups in self.split(files, key_groups):
            yield from self.read(split, subtask, groups)

    def split(
        self, files: Sequence[KeyedFile], key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[tuple[KeyedFile, ...], KeyGroupRange | None]]:
        """Split the files of one subtask into inputs of `read` of about `WINDOW` bytes; arguments as of `batches`."""
        return split_files(choose_files(files, self._ids), WINDOW, key_groups)

    def narrow(self, file: KeyedFile) -> KeyedFile:
        """Restrict the file to the blocks that may have the wanted key, if any (see `KeyedFile.narrow_to_keys`)."""
        return file if self.needle is None else file.narrow_to_keys(KeySeeks(((self.needle.tobytes(), None),)))

    def read(
        self,
        files: Sequence[KeyedFile],
        subtask: int,
        key_groups: KeyGroupRange | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one input of `split`, all of whose records are in memory; arguments as of `batches`."""
        found: dict[int, list[KeyedRecords]] = {index: [] for index in range(len(self._states))}
        for stored in files:
            file = self.narrow(stored)
            states = enumerate(file.header.states)
            ids = {number: self._ids[info.name] for number, info in states if info.name in self._ids}
            for number, records in file.scan(tuple(ids), key_groups) if ids else ():
                found[ids[number]].append(records)
        batches = {index: self._locate(index, runs) for index, runs in found.items()}
        rows = match_rows(batches, [state.key for state in self._states], self.needle)
        if rows is None:
            return
        for index, each in rows.states.items():
            if not self._states[index].repeats:
                require_one(each, self._states[index].name, self._states[index].key)
        for first, stop in rows.cut(BATCH_ROWS, BATCH_BYTES):
            yield self._make_batch(rows, subtask, first, stop)

    def _locate(self, index: int, runs: list[KeyedRecords]) -> list[RecordRows]:
        state = self._states[index]
        with at(state=state.name):
            return [locate_keys(records, state.key) for records in merge_runs(runs)]

    def _make_batch(self, rows: KeyRows, subtask: int, first: int, stop: int) -> pa.RecordBatch:
        count = stop - first
        lenient = "reason" in self._chosen
        columns: dict[str, pa.Array] = {
            "key_group": pa.array(rows.key_groups[first:stop], pa.int32()),
            "subtask": pa.array(np.full(count, subtask, np.int32)),
        }
        failures = [("keys", each) for each in self._add_keys(rows, first, stop, columns, lenient=lenient)]
        for index, column in self._columns.items():
            state, kept = self._states[index], self._kept.get(index)
            if kept is not None:
                columns[kept] = pa.nulls(count, stored_type(state))
            if index not in rows.states:
                columns[column.name] = pa.nulls(count, column.type)
                continue
            with at(state=state.name):
                made = column.make(rows.states[index], first, stop, lenient=lenient)
            columns[column.name] = made.array
            if kept is not None and made.stored is not None:
                columns[kept] = made.stored
            failures += [(state.name, each) for each in made.failures]
        if lenient:
            columns["reason"] = _join_reasons(count, self.undecoded, failures)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _add_keys(
        self, rows: KeyRows, first: int, stop: int, columns: dict[str, pa.Array], *, lenient: bool
    ) -> list[tuple[int, str]]:
        """Add the key columns, decoded from the first record of each row; return the rows that fail, and why."""
        wanted = [name for name in (*KEY_COLUMNS, "key_bytes") if name in self._chosen]
        arrays: dict[str, list[pa.Array]] = {name: [] for name in wanted}
        indices: list[np.ndarray] = []
        failures: list[tuple[int, str]] = []
        stored = "key_bytes" in wanted
        for index in np.unique(rows.first_states[first:stop]).tolist() if wanted else ():
            at_rows = np.flatnonzero(rows.first_states[first:stop] == index)
            indexes = rows.first_records[first:stop][at_rows]
            batches = rows.states[index].batches
            indices.append(at_rows)
            failed = np.zeros(0, np.int64)
            if self._keys:
                with at(state=self._states[index].name):
                    decoded = decode_keys(self._keys[index], batches, indexes, lenient=lenient)
                failed = decoded.failed
                failures += [(int(at_rows[row]), reason) for row, reason in decoded.failures]
                children = decoded.array.flatten() if decoded.array.null_count else None
                for number, each in enumerate(decoded.array.type):
                    array = decoded.array.field(number) if children is None else children[number]
                    kind = self.schema.field(each.name).type
                    # The namespace of this state is void, so it is null in a column with the type of another state's
                    # namespace.
                    arrays[each.name].append(array if array.type == kind else pa.nulls(len(array), kind))
                if stored:
                    raw = decode_matched(batches, indexes[failed])
                    arrays["key_bytes"].append(spread(raw, failed, len(indexes)))
            elif stored:
                arrays["key_bytes"].append(decode_matched(batches, indexes))
        for name, found in arrays.items():
            columns[name] = join_arrays(found, indices, self.schema.field(name).type)
        return failures

    def _name_and_choose(self) -> None:
        """Choose the names of all columns, and the wanted columns."""
        asked = self._options.columns or ()
        wishes = [
            f"{s.column}_bytes" if decodability.stored else s.column
            for s, decodability in zip(self._states, self._decodabilities, strict=True)
        ]
        keeping = [
            index
            for index, (state, decodability) in enumerate(zip(self._states, self._decodabilities, strict=True))
            if not decodability.stored
            and (decodability.may_fail or f"{state.column}_bytes" in asked)
            and state.state_type != StateKind.TIMER
        ]
        names = name_columns([*wishes, *(f"{self._states[index].column}_bytes" for index in keeping)])
        self._names = names[: len(wishes)]
        kept = dict(zip(keeping, names[len(wishes) :], strict=True))
        stored_keys = self._options.raw or bool(self._key_reason)
        known = ["key_group", "subtask", *(("key_bytes",) if stored_keys else KEY_COLUMNS)]
        if self._keys_may_fail:
            known.append("key_bytes")
        for index, name in enumerate(self._names):
            known += [name, kept[index]] if index in kept else [name]
        if self._key_reason or self._keys_may_fail or kept or any(each.reason for each in self._decodabilities):
            known.append("reason")
        aliases = dict.fromkeys(KEY_COLUMNS, "key_bytes") if stored_keys else {}
        for state, decodability, name in zip(self._states, self._decodabilities, self._names, strict=True):
            for other in (state.column, state.name):
                if (decodability.stored or other != state.column) and other not in known:
                    aliases[other] = name
        self._chosen = choose_columns(self._options.columns, known, ("reason", "key_bytes"), aliases)
        self._kept = {index: name for index, name in kept.items() if name in self._chosen}
        if self._options.columns is not None:
            shown = zip(self._names, self._decodabilities, strict=True)
            hidden = [each.reason for name, each in shown if name in self._chosen]
            if any(hidden) or (self._key_reason and "key_bytes" in self._chosen):
                self._chosen.setdefault("reason", None)

    def _plan_keys(self) -> list[ColumnCodec]:
        paths: set[str] = set()
        for name in KEY_COLUMNS:
            if name in self._chosen:
                below = self._chosen[name]
                paths |= {name} if below is None else {f"{name}.{path}" for path in below}
        # Map keys are in the columns of their states, so they are not decoded here.
        fields = [
            tuple((name, lay.Rest() if name == "map_key" else each) for name, each in state.key.fields)
            for state in self._states
        ]
        return [plan_columns(lay.Struct(each), frozenset(paths)) for each in fields] if paths else []

    def _encode_needle(self, wanted: object) -> np.ndarray:
        if self._key_reason:
            raise UsageError(f"the table cannot be filtered by key: {self._key_reason}")
        key = dict(self._states[0].key.fields)["state_key"]
        return encode_key(lay.Struct((("state_key", unmeasured(key)),)), wanted)

    def _make_schema(self) -> pa.Schema:
        types = {each.name: each.type for each in self._columns.values()}
        types |= {name: stored_type(self._states[index]) for index, name in self._kept.items()}
        if self._keys:
            types |= {each.name: each.type for each in self._keys[self._main].type}
        types |= {"key_bytes": pa.binary(), "reason": pa.string()}
        fixed = {name: pa.field(name, pa.int32(), False) for name in ("key_group", "subtask")}
        return pa.schema([fixed.get(name) or pa.field(name, types[name]) for name in self._chosen])


def group_files(files: Iterable[tuple[int, KeyedFile]]) -> dict[int, tuple[KeyedFile, ...]]:
    """Group files by the index of their subtask."""
    found: dict[int, tuple[KeyedFile, ...]] = {}
    for subtask, file in files:
        found[subtask] = (*found.get(subtask, ()), file)
    return found


def choose_files(files: Iterable[KeyedFile], states: Container[str]) -> tuple[KeyedFile, ...]:
    """Return the files that have any of the states."""
    return tuple(file for file in files if any(info.name in states for info in file.header.states))


def split_files(
    files: Sequence[KeyedFile], size: int, key_groups: KeyGroupRange | None = None
) -> Iterator[tuple[tuple[KeyedFile, ...], KeyGroupRange | None]]:
    """Split the files of a subtask into splits of about `size` bytes; a split has all records of its key groups.

    Yields:
        (files, the key groups of the split; None is all in the files).
    """
    if len(files) == 1:
        for split in files[0].split(size, key_groups):
            yield (split,), key_groups
        return
    count = sum(sum(1 for _ in file.split(size, key_groups)) for file in files)
    if not count:
        return
    start = min(file.key_groups.start for file in files)
    groups = KeyGroupRange(start, max(file.key_groups.end for file in files) + 1 - start)
    if key_groups is not None:
        groups = groups.intersect(key_groups)
    count = min(count, len(groups))
    bounds = [groups.start + len(groups) * number // count for number in range(count + 1)]
    for first, stop in pairwise(bounds):
        yield tuple(files), KeyGroupRange(first, stop - first)


def find_namespace(states: Sequence[StateLayout]) -> int:
    """Choose the state whose namespace gives the type of the column `state_namespace`: the first that is not void.

    Raises:
        UsageError: the states have different namespaces that are not void.
    """
    found: dict[lay.Layout, list[int]] = {}
    for index, state in enumerate(states):
        namespace = namespace_layout(state.key)
        if namespace != VOID:
            found.setdefault(namespace, []).append(index)
    if len(found) > 1:
        groups = [", ".join(states[index].name for index in group) for group in found.values()]
        raise UsageError(
            f"the states have different namespaces: {' | '.join(groups)}",
            hint="Name the states of one of these groups (--states, in Spark states), or read one alone (--state, "
            "stateVarName of Spark)",
        )
    return next(iter(found.values()))[0] if found else 0


def _find_key_decodability(states: Sequence[StateLayout]) -> tuple[str, bool]:
    """Return why keys cannot be decoded (empty if they can), and whether single keys may well fail to be decoded."""
    may_fail = False
    for state in states:
        fields = tuple(each for each in state.key.fields if each[0] in KEY_COLUMNS)
        try:
            may_fail |= plan_columns(lay.Struct(fields)).may_fail
        except UnsupportedError as error:
            return error.what, False
    return "", may_fail


def _join_reasons(count: int, always: str, failures: Sequence[tuple[str, tuple[int, str]]]) -> pa.Array:
    """Make the column `reason`: per row, `always` and the failures of this row."""
    texts: list[str | None] = [always or None] * count
    for name, (row, reason) in failures:
        text = texts[row]
        texts[row] = f"{text}; {name}: {reason}" if text else f"{name}: {reason}"
    return pa.array(texts, pa.string())
