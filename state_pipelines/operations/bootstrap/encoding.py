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
"""The digest of which values are null; no field has such a name."""

VALUES = "value"
"""The digest of a value without fields."""

_TIMESTAMP = 8
"""Bytes in front of the key of a timer."""


@dataclass
class StateDigests:
    """Digests of a state by key group, and how many of its keys are where they do not belong.

    Attributes:
        sums: by key group and column.
        misplaced: keys in another key group than their hash gives, by key group.
        unhashed: keys whose hash is not known.
    """

    sums: Sums = field(default_factory=dict)
    misplaced: Counter[int] = field(default_factory=Counter)
    unhashed: int = 0

    def add(self, other: StateDigests) -> None:
        """Add those of another task."""
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
    """Digests decoded rows of one keyed state, batch by batch.

    Args:
        layout: of the state.
    """

    def __init__(self, layout: KeyedLayout) -> None:
        self._is_timer = layout.state_type == StateKind.TIMER
        kind = plan_columns(layout.value).type if not self._is_timer else pa.null()
        self._fields = [each.name for each in kind] if pa.types.is_struct(kind) else []
        names = [] if self._is_timer else [NULLS, *(self._fields or [VALUES])]
        self._digest = ColumnDigest(layout.max_parallelism, names)

    def add(self, key_groups: npt.NDArray[np.int32], keys: pa.StructArray, values: pa.Array) -> None:
        """Take rows.

        Args:
            key_groups: i32[n].
            keys: of the layout of the keys.
            values: of the layout of the values; those of timers do not count.
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
    """Reads some states of one file and digests them; one task.

    Attributes:
        operator: label, for errors.
        file: the new file.
        layouts: of the states, by name.
        hashes: hashes the keys.
    """

    operator: str
    file: KeyedFile
    layouts: Mapping[str, KeyedLayout]
    hashes: KeyHasher

    @property
    def threads(self) -> int:
        """See `local_processes.Work`."""
        return count_kernel_threads([self.file])

    def run(self) -> dict[str, StateDigests]:
        """Do the work.

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
    """Digests of elements of a list state, or of entries of a broadcast state, by subtask.

    Args:
        subtasks: i32[n].
        keys: of entries; None of elements, which are identified by their values. Their order does not count.
        values: elements, or values of the entries.
        parallelism: number of subtasks.
    """
    digest = ColumnDigest(parallelism, [VALUES])
    digest.add(subtasks, identify_rows([values if keys is None else keys]), {VALUES: values})
    return digest.sums


@dataclass(frozen=True)
class SubtaskDigests:
    """Reads what one subtask has of a list or broadcast state and digests it; one task.

    Attributes:
        operator: label, for errors.
        subtask_state: of the subtask.
        context: of the layouts.
        parallelism: number of subtasks.
    """

    operator: str
    subtask_state: NonKeyedSubtaskState
    context: LayoutContext
    parallelism: int

    def run(self) -> Sums:
        """Do the work.

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
"""Rows of list state that are encoded at once."""

DEALT_BYTES = 64 << 20
"""Largest average size in Arrow of the rows that a task gets."""

_LEAST_BLOCK = 4 << 20
"""Bytes of records in a block of one of many states."""


@dataclass(frozen=True)
class EncodedRows:
    """Encoded rows of a keyed state, of one task.

    Attributes:
        spills: one file, or none without rows.
        digests: of its rows; empty when nothing is to be proven.
        empty: rows with an empty list, which Flink does not store.
    """

    spills: tuple[StateSpill, ...] = ()
    digests: StateDigests = field(default_factory=StateDigests)
    empty: int = 0

    @property
    def rows(self) -> int:
        """Rows that were encoded or left out."""
        return sum(spill.records for spill in self.spills) + self.empty


@dataclass(frozen=True)
class KeyedEncoding:
    """Encodes rows of one keyed state, or of timers.

    Attributes:
        operator: label, for errors.
        encoder: knows the layouts.
        shape: brings rows into the columns of the state.
        directory: of the spills.
        digests: also digest the rows, for the proof.
    """

    operator: str
    encoder: RecordEncoder
    shape: RowShape
    directory: Location
    digests: bool

    @property
    def failure(self) -> str:
        """Description of the task for errors."""
        return f"state {self.encoder.state} of operator {self.operator} cannot be written"

    def check_types(self, schema: pa.Schema) -> None:
        """Refuse columns whose types do not fit, before anything runs.

        Raises:
            UsageError: a column is missing.
            ValueRangeError: a type does not fit.
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
        encodings: of the states.
        batches: for each batch of the input, the rows of each state.

    Raises:
        StateError: a row cannot be encoded.
    """
    with ExitStack() as files:
        # All buffers together are as large as that of one state.
        limit = max(BLOCK // len(encodings), _LEAST_BLOCK)
        writings = [_Writing(each, files, limit) for each in encodings]
        for rows in batches:
            for writing, batch in zip(writings, rows, strict=True):
                writing.add(batch)
    return [writing.finish() for writing in writings]


class _Writing:
    """The spill of one state in one task, which is created with its first row."""

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
        """Return the result of the task; to be called after the spill is closed."""
        spills = () if self._writer is None else (self._writer.written,)
        digests = StateDigests() if self._digester is None else StateDigests(self._digester.sums)
        return EncodedRows(spills, digests, self._empty)


@dataclass(frozen=True)
class EncodedElements:
    """Encoded rows of a list or broadcast state, of one task.

    Attributes:
        files: the element files.
        sums: digests of the rows by subtask; empty when nothing is to be proven.
    """

    files: tuple[ElementFile, ...] = ()
    sums: Sums = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows that were encoded."""
        return sum(file.records for file in self.files)


@dataclass(frozen=True)
class ElementEncoding:
    """Encodes rows of one list or broadcast state; of a broadcast state all of them in one task.

    Attributes:
        operator: label, for errors.
        encoder: knows the layouts.
        directory: of the element files.
        parallelism: number of subtasks.
        digests: also digest the rows, for the proof.
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
        """Description of the task for errors."""
        return f"state {self.encoder.info.name} of operator {self.operator} cannot be written"

    @property
    def is_broadcast(self) -> bool:
        """Whether every subtask gets all entries."""
        return self.encoder.info.backend_type is BackendStateType.BROADCAST

    def check_types(self, schema: pa.Schema) -> None:
        """Refuse columns whose types do not fit, before anything runs; errors as of `KeyedEncoding.check_types`."""
        with at(operator=self.operator, state=self.encoder.info.name):
            rows = pa.RecordBatch.from_pylist([], schema=schema)
            self._shape(rows)
            for name in () if self.is_broadcast else (SUBTASK, LIST_INDEX):
                if name in schema.names:
                    conform_number(rows.column(name), pa.int64(), name)

    def write(self, batches: Iterable[pa.RecordBatch]) -> EncodedElements:
        """Encode the rows of one task; those of one subtask follow each other.

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
        """The columns of the values, and of the keys of a broadcast state."""
        columns: dict[str, pa.Array] = {}
        for name, kind in self.encoder.types.items():
            array = name_fields(to_plain(_find_column(batch, name), name), kind)
            array = array if self.from_source is None else self.from_source(array, kind)
            columns[name] = conform_values(array, kind, name)
        return columns

    def _make_columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns that say where each row goes."""
        if self.is_broadcast:
            return {SUBTASK: pa.array(np.zeros(len(batch), np.int32))}
        columns = {
            name: conform_number(_find_column(batch, name), kind, name)
            for name, kind in ((SUBTASK, pa.int32()), (LIST_INDEX, pa.int64()))
        }
        subtasks = columns[SUBTASK].to_numpy()
        if len(subtasks) and not 0 <= subtasks.min() <= subtasks.max() < self.parallelism:
            raise UsageError(f"a subtask lies outside 0 to {self.parallelism - 1}")
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
                    hint="A broadcast state is a map: leave the others out",
                )
            seen.add(key)


def _find_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise UsageError(f"the rows have no column {name}", hint=f"they have {', '.join(batch.schema.names)}")
    return batch.column(index)


def deal_rows(batches: Sequence[pa.RecordBatch], parallelism: int, rows: int = DEALT_ROWS) -> Iterator[pa.RecordBatch]:
    """Rows of a list state, those of one subtask together and in order.

    Rows that name no subtask are dealt to subtasks in turn. Only subtasks and list indexes are sorted as a whole; the
    values stay in their batches, since one Arrow array of texts ends at 2 GiB.

    Args:
        batches: all rows, of one schema.
        parallelism: number of subtasks.
        rows: of a returned batch; fewer where rows are large.

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
