"""Tasks that encode the rows of one new state, and digests of these rows and of what the new files hold."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.logical_values import to_plain
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import IncompatibleError, UnsupportedError, UsageError, at
from state_pipelines.keyed.digests import ColumnDigest, Sums, add_sums, identify_rows
from state_pipelines.operations.bootstrap.new_states import (
    LIST_INDEX,
    SUBTASK,
    RowShape,
    conform_number,
    conform_values,
    name_fields,
)
from state_pipelines.operations.local_processes import count_kernel_threads
from state_pipelines.operations.write.keyed_rewrite import make_file_name
from state_pipelines.operations.write.operator_rewrite import ElementEncoder, ElementFile, write_elements
from state_pipelines.operations.write.spills import BLOCK, StateSpill, create_state_spill
from state_pipelines.operatorstate import read_broadcast_state, read_list_state
from state_pipelines.serializers.state_meta_info import BackendStateType
from state_pipelines.serializers.tree import StateKind
from state_pipelines.storage import Location, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.keyed.state_table import RecordEncoder
    from state_pipelines.operations.write.spills import StateSpillWriter
    from state_pipelines.snapshot.operator_state import NonKeyedSubtaskState

NULLS = "# nulls"
"""Name of the digest of the null flags of values; no field has such a name."""

VALUES = "value"
"""Name of the digest of values that are not structs."""

_TIMESTAMP = 8
"""Bytes in front of the key of a timer."""


@dataclass
class StateDigests:
    """Digests of a keyed state by key group, and numbers of keys that are in a wrong key group.

    Attributes:
        sums: digests by key group and column.
        misplaced: number of keys in another key group than their hash gives, by the key group that holds them.
        unhashed: number of keys whose hash cannot be computed, so that their key groups were not checked.
    """

    sums: Sums = field(default_factory=dict)
    misplaced: Counter[int] = field(default_factory=Counter)
    unhashed: int = 0

    def add(self, other: StateDigests) -> None:
        """Add the digests and numbers of another task."""
        add_sums(self.sums, other.sums)
        self.misplaced.update(other.misplaced)
        self.unhashed += other.unhashed


def combine_digests(found: Iterable[StateDigests]) -> StateDigests:
    """Add up the digests of several tasks."""
    total = StateDigests()
    for each in found:
        total.add(each)
    return total


class StateDigester:
    """Computes digests of the decoded rows of one keyed state, batch by batch.

    Args:
        layout: layout of the state.
    """

    def __init__(self, layout: KeyedLayout) -> None:
        self._is_timer = layout.state_type == StateKind.TIMER
        kind = plan_columns(layout.value).type if not self._is_timer else pa.null()
        self._fields = [each.name for each in kind] if pa.types.is_struct(kind) else []
        names = [] if self._is_timer else [NULLS, *(self._fields or [VALUES])]
        self._digest = ColumnDigest(layout.max_parallelism, names)

    def add(self, key_groups: npt.NDArray[np.int32], keys: pa.StructArray, values: pa.Array) -> None:
        """Add the digests of a batch of rows.

        Args:
            key_groups: key group of each row, i32[n].
            keys: keys, as `plan_columns` decodes the key layout of the state.
            values: values, as `plan_columns` decodes the value layout; ignored for timers.
        """
        identities = identify_rows([keys.field(index) for index in range(keys.type.num_fields)])
        columns: dict[str, pa.Array] = {}
        if not self._is_timer:
            columns[NULLS] = values.is_null()
            columns |= dict(zip(self._fields, values.flatten(), strict=True)) if self._fields else {VALUES: values}
        self._digest.add(key_groups, identities, columns)

    @property
    def sums(self) -> Sums:
        """Digests of the rows that were added."""
        return self._digest.sums


@dataclass(frozen=True)
class FileDigests:
    """Task that reads the new states of one keyed file back, computes their digests and checks their key groups.

    Attributes:
        operator: label of the operator, for errors.
        file: the new file.
        layouts: layouts of the states to read, by name.
        hashes: computes the hashes of the keys.
    """

    operator: str
    file: KeyedFile
    layouts: Mapping[str, KeyedLayout]
    hashes: KeyHasher

    @property
    def threads(self) -> int:
        """Number of such tasks that can run in threads; see `local_processes.Work`."""
        return count_kernel_threads([self.file])

    def run(self) -> dict[str, StateDigests]:
        """Return the digests by name of the state.

        Raises:
            StateError: the file cannot be read.
        """
        file, names = self.file, {number: info.name for number, info in enumerate(self.file.header.states)}
        wanted = [number for number, name in names.items() if name in self.layouts]
        digesters = {name: StateDigester(layout) for name, layout in self.layouts.items()}
        found = {name: StateDigests() for name in self.layouts}
        with at(operator=self.operator):
            for number, records in file.scan(wanted, file.key_groups):
                name = names[number]
                layout = self.layouts[name]
                with at(state=name):
                    keys = plan_columns(layout.key).decode(records.data, records.key_starts, records.key_ends).array
                    values = pa.nulls(len(records))
                    if layout.state_type != StateKind.TIMER:
                        spans = (records.data, records.value_starts, records.value_ends)
                        values = plan_columns(layout.value).decode(*spans).array
                    digesters[name].add(records.key_groups, keys, values)
                    skip = _TIMESTAMP if layout.state_type == StateKind.TIMER else 0
                    try:
                        groups = self.hashes.assign_keys(records, layout.max_parallelism, skip=skip)
                    except UnsupportedError:
                        found[name].unhashed += len(records)
                        continue
                    wrong = records.key_groups[groups != records.key_groups]
                    found[name].misplaced.update(wrong.tolist())
        for name, digester in digesters.items():
            found[name].sums = digester.sums
        return found


def digest_elements(subtasks: npt.NDArray[np.int32], keys: pa.Array | None, values: pa.Array, parallelism: int) -> Sums:
    """Compute digests, by subtask, of elements of a list state or entries of a broadcast state; their order is ignored.

    Args:
        subtasks: subtask of each element or entry, i32[n].
        keys: keys of the entries; None for elements.
        values: the elements, or the values of the entries.
        parallelism: number of subtasks.
    """
    digest = ColumnDigest(parallelism, [VALUES])
    digest.add(subtasks, identify_rows([values if keys is None else keys]), {VALUES: values})
    return digest.sums


@dataclass(frozen=True)
class SubtaskDigests:
    """Task that reads a list or broadcast state of one subtask and computes its digests.

    Attributes:
        operator: label of the operator, for errors.
        subtask_state: the state of the subtask.
        context: context of the layouts.
        parallelism: number of subtasks.
    """

    operator: str
    subtask_state: NonKeyedSubtaskState
    context: LayoutContext
    parallelism: int

    def run(self) -> Sums:
        """Return the digests of the state, under the index of the subtask.

        Raises:
            StateError: the state cannot be read.
        """
        info = self.subtask_state.info
        with at(operator=self.operator, state=info.name):
            file = self.subtask_state.read()
            keys: pa.Array | None = None
            if info.backend_type is BackendStateType.BROADCAST:
                keys, values = read_broadcast_state(file, info, self.context)
            else:
                values = read_list_state(file, info, self.context)
            subtasks = np.full(len(values), self.subtask_state.subtask, np.int32)
            return digest_elements(subtasks, keys, values, self.parallelism)


DEALT_ROWS = 1 << 16
"""Maximum number of rows of list state that are encoded at once."""

DEALT_BYTES = 64 << 20
"""Bytes in Arrow, on average, of rows of list state that are encoded at once, unless one row has more."""

_LEAST_BLOCK = 4 << 20
"""Minimum bytes of records in the block of a state, if a task encodes many states at once."""


@dataclass(frozen=True)
class EncodedRows:
    """Rows of a keyed state that one task has encoded.

    Attributes:
        spills: the file with the rows; none if there were no rows.
        digests: digests of the rows; empty if no proof was requested.
        empty: number of rows with an empty list, which were left out because Flink does not store empty lists.
    """

    spills: tuple[StateSpill, ...] = ()
    digests: StateDigests = field(default_factory=StateDigests)
    empty: int = 0

    @property
    def rows(self) -> int:
        """Number of rows that were encoded or left out."""
        return sum(spill.records for spill in self.spills) + self.empty


@dataclass(frozen=True)
class KeyedEncoding:
    """Encodes rows of one keyed state, or of timers.

    Attributes:
        operator: label of the operator, for errors.
        encoder: encodes shaped rows to the bytes of keys and values.
        shape: converts rows to the columns and types of the state.
        directory: directory of the spills.
        digests: also compute digests of the rows, for the proof.
    """

    operator: str
    encoder: RecordEncoder
    shape: RowShape
    directory: Location
    digests: bool

    @property
    def failure(self) -> str:
        """Message for errors of a task that has failed."""
        return f"state {self.encoder.state} of operator {self.operator} cannot be written"

    def check_types(self, schema: pa.Schema) -> None:
        """Check the types of columns before any row is read.

        Raises:
            UsageError: a column is missing.
            ValueRangeError: the type of a column does not fit its serializer.
        """
        with at(operator=self.operator, state=self.encoder.state):
            self.shape.shape(pa.RecordBatch.from_pylist([], schema=schema))

    def write(self, batches: Iterable[pa.RecordBatch]) -> EncodedRows:
        """Encode the rows of one task into one spill.

        Raises:
            StateError: a row cannot be encoded.
        """
        return write_together([self], ([batch] for batch in batches))[0]


def write_together(
    encodings: Sequence[KeyedEncoding], batches: Iterable[Sequence[pa.RecordBatch]]
) -> list[EncodedRows]:
    """Encode the rows of one task for several keyed states in one pass, into one spill each.

    Args:
        encodings: encodings of the states.
        batches: for each batch of the input, its rows for each state, in the order of `encodings`.

    Returns:
        One result for each state.

    Raises:
        StateError: a row cannot be encoded.
    """
    with ExitStack() as files:
        # All buffers together should not be larger than the buffer of one state alone.
        limit = max(BLOCK // len(encodings), _LEAST_BLOCK)
        writings = [_Writing(each, files, limit) for each in encodings]
        for rows in batches:
            for writing, batch in zip(writings, rows, strict=True):
                writing.add(batch)
    return [writing.finish() for writing in writings]


class _Writing:
    """Encoding of one state in one task. The spill is created when the first row comes, so that there may be none."""

    def __init__(self, encoding: KeyedEncoding, files: ExitStack, limit: int) -> None:
        self._encoding, self._files, self._limit = encoding, files, limit
        self._digester = StateDigester(encoding.shape.layout) if encoding.digests else None
        self._writer: StateSpillWriter | None = None
        self._empty = 0

    def add(self, batch: pa.RecordBatch) -> None:
        encoding = self._encoding
        encoder = encoding.encoder
        if not len(batch):
            return
        with at(operator=encoding.operator, state=encoder.state):
            shaped = encoding.shape.shape(batch)
            self._empty += len(batch) - len(shaped)
            for rows in encoder.encode([shaped]):
                if self._writer is None:
                    target = join(encoding.directory, make_file_name())
                    self._writer = self._files.enter_context(create_state_spill(encoder, target, self._limit))
                self._writer.add(rows)
                if self._digester is not None:
                    keys, values = encoder.read_keys(rows.batch), encoder.read_values(rows.batch)
                    self._digester.add(rows.key_groups, keys, values)

    def finish(self) -> EncodedRows:
        """Return the result of the task. Call it after the spill is closed."""
        spills = () if self._writer is None else (self._writer.written,)
        digests = StateDigests() if self._digester is None else StateDigests(self._digester.sums)
        return EncodedRows(spills, digests, self._empty)


@dataclass(frozen=True)
class EncodedElements:
    """Rows of a list or broadcast state that one task has encoded.

    Attributes:
        files: the element files.
        sums: digests of the rows, by subtask; empty if no proof was requested.
    """

    files: tuple[ElementFile, ...] = ()
    sums: Sums = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows that were encoded."""
        return sum(file.records for file in self.files)


@dataclass(frozen=True)
class ElementEncoding:
    """Encodes rows of one list or broadcast state. For a broadcast state, one task must encode all rows.

    Attributes:
        operator: label of the operator, for errors.
        encoder: encodes rows to the bytes of elements or entries.
        directory: directory of the element files.
        parallelism: number of subtasks.
        digests: also compute digests of the rows, for the proof.
        from_source: see `RowShape`.
    """

    operator: str
    encoder: ElementEncoder
    directory: Location
    parallelism: int
    digests: bool
    from_source: Callable[[pa.Array, pa.DataType], pa.Array] | None = None

    @property
    def failure(self) -> str:
        """Message for errors of a task that has failed."""
        return f"state {self.encoder.info.name} of operator {self.operator} cannot be written"

    @property
    def is_broadcast(self) -> bool:
        """Whether it is a broadcast state, of which every subtask gets all entries."""
        return self.encoder.info.backend_type is BackendStateType.BROADCAST

    def check_types(self, schema: pa.Schema) -> None:
        """Check the types of columns before any row is read; errors as for `KeyedEncoding.check_types`."""
        with at(operator=self.operator, state=self.encoder.info.name):
            rows = pa.RecordBatch.from_pylist([], schema=schema)
            self._shape(rows)
            for name in () if self.is_broadcast else (SUBTASK, LIST_INDEX):
                if name in schema.names:
                    conform_number(rows.column(name), pa.int64(), name)

    def write(self, batches: Iterable[pa.RecordBatch]) -> EncodedElements:
        """Encode the rows of one task.

        Args:
            batches: the rows. Rows of list state have a subtask and a list index, and are sorted by them (`deal_rows`).

        Raises:
            IncompatibleError: a key of a broadcast state occurs twice.
            StateError: a row cannot be encoded.
        """
        sums: Sums = {}

        def shape() -> Iterator[pa.RecordBatch]:
            seen: set[bytes] = set()
            for batch in batches:
                rows = pa.RecordBatch.from_pydict(self._shape(batch) | self._make_columns(batch))
                if self.is_broadcast:
                    self._require_new_keys(rows, seen)
                if self.digests and len(rows):
                    keys = rows.column("map_key") if self.is_broadcast else None
                    values = rows.column("map_value" if self.is_broadcast else "value")
                    subtasks = rows.column(SUBTASK).to_numpy()
                    add_sums(sums, digest_elements(subtasks, keys, values, self.parallelism))
                yield rows

        with at(operator=self.operator, state=self.encoder.info.name):
            files = tuple(write_elements(self.encoder, shape(), self.directory))
        return EncodedElements(files, sums)

    def _shape(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Convert the columns with values (and keys, for broadcast state) to the types of their serializers."""
        columns: dict[str, pa.Array] = {}
        for name, kind in self.encoder.types.items():
            array = name_fields(to_plain(_find_column(batch, name), name), kind)
            array = array if self.from_source is None else self.from_source(array, kind)
            columns[name] = conform_values(array, kind, name)
        return columns

    def _make_columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Make the column with the subtask of each row and, for list state, the column with its index in the list."""
        if self.is_broadcast:
            return {SUBTASK: pa.array(np.zeros(len(batch), np.int32))}
        columns = {
            name: conform_number(_find_column(batch, name), kind, name)
            for name, kind in ((SUBTASK, pa.int32()), (LIST_INDEX, pa.int64()))
        }
        subtasks = columns[SUBTASK].to_numpy()
        if len(subtasks) and not 0 <= subtasks.min() <= subtasks.max() < self.parallelism:
            raise UsageError(f"a row has a subtask outside 0 to {self.parallelism - 1}")
        return columns

    def _require_new_keys(self, rows: pa.RecordBatch, seen: set[bytes]) -> None:
        layout = derive_layout(self.encoder.info.key_serializer, self.encoder.keys)
        if rows.column("map_key").null_count:
            raise UsageError("a key of the broadcast state is null")
        encoded = plan_columns(layout).encode(rows.column("map_key"))
        data = encoded.data.tobytes()
        for row, (start, stop) in enumerate(zip(encoded.starts.tolist(), encoded.stops.tolist(), strict=True)):
            key = data[start:stop]
            if key in seen:
                raise IncompatibleError(
                    f"several rows of the broadcast state have the key {rows.column('map_key')[row].as_py()!r}",
                    hint="A broadcast state is a map: leave only one row of each key",
                )
            seen.add(key)


def _find_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise UsageError(f"the rows have no column {name}", hint=f"they have {', '.join(batch.schema.names)}")
    return batch.column(index)


def deal_rows(batches: Sequence[pa.RecordBatch], parallelism: int, rows: int = DEALT_ROWS) -> Iterator[pa.RecordBatch]:
    """Sort the rows of a list state by subtask, then by list index.

    Without a column `subtask` the rows are assigned to subtasks in turn; without a column `list_index` they keep their
    order. Only these two columns are sorted as a whole. The values stay in their batches, because one Arrow array of
    texts cannot have more than 2 GiB.

    Args:
        batches: all rows, with one schema.
        parallelism: number of subtasks.
        rows: maximum number of rows of a returned batch; it has fewer if rows are large.

    Raises:
        ValueRangeError: `subtask` or `list_index` is not a number in every row.
    """
    bounds = np.cumsum([0, *map(len, batches)])
    total = int(bounds[-1])
    subtasks, indexes = _read_positions(batches, SUBTASK), _read_positions(batches, LIST_INDEX)
    if subtasks is None:
        subtasks = np.arange(total) % parallelism
    if indexes is None:
        indexes = np.arange(total)
    order = np.lexsort((indexes, subtasks))
    size = sum(batch.nbytes for batch in batches)
    step = max(1, min(rows, total * DEALT_BYTES // max(size, 1)))
    for start in range(0, total, step):
        chosen = order[start : start + step]
        numbers_of = np.searchsorted(bounds, chosen, side="right") - 1
        by_batch = np.argsort(numbers_of, kind="stable")
        positions = np.empty(len(chosen), np.int64)
        positions[by_batch] = np.arange(len(chosen))
        found, firsts = np.unique(numbers_of[by_batch], return_index=True)
        taken = [
            batches[number].take(pa.array(chosen[mine] - bounds[number]))
            for number, mine in zip(found.tolist(), np.split(by_batch, firsts[1:]), strict=True)
        ]
        batch = pa.concat_batches(taken).take(pa.array(positions))
        for name, numbers in ((SUBTASK, subtasks), (LIST_INDEX, indexes)):
            if name not in batch.schema.names:
                batch = batch.append_column(name, pa.array(numbers[chosen]))
        yield batch


def _read_positions(batches: Sequence[pa.RecordBatch], name: str) -> npt.NDArray[np.int64] | None:
    if not batches or name not in batches[0].schema.names:
        return None
    numbers = [conform_number(to_plain(each.column(name), name), pa.int64(), name).to_numpy() for each in batches]
    return np.concatenate(numbers)
