"""Rows of new states from Parquet files, read by the processes that encode them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from state_pipelines.codecs.columns import KernelColumns, plan_columns
from state_pipelines.errors import FormatError, UsageError, Where
from state_pipelines.operations.bootstrap.encoding import EncodedElements, EncodedPart, deal_rows
from state_pipelines.operations.local_processes import KERNEL_THREADS, choose_processes
from state_pipelines.storage import Location, resolve
from state_pipelines.storage.faults import translating
from state_pipelines.storage.files import file_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.operations.bootstrap.encoding import ElementEncoding, KeyedEncoding
    from state_pipelines.operations.bootstrap.new_states import NewOperator, NewState
    from state_pipelines.operations.local_processes import Runner

BATCH_ROWS = 1 << 16
"""Rows that are encoded at once."""

_PER_TASK = 1 << 21
"""Rows of the row groups that one task reads, unless one row group has more."""


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files with the rows of a state.

    Attributes:
        path: a file, a directory of files, or a pattern such as `events/*.parquet`; a local path or a URL.
    """

    path: str

    def list_files(self) -> list[Location]:
        """The files, by name.

        Raises:
            UsageError: there are none.
        """
        place = resolve(self.path)
        files = place.filesystem
        with translating(place, "list the files"):
            if any(each in self.path for each in "*?["):
                found = files.glob(place.path)
            elif files.isdir(place.path):
                found = files.glob(f"{place.path.rstrip('/')}/**/*.parquet")
            else:
                found = [place.path] if files.exists(place.path) else []
        if not found:
            raise UsageError(
                "there are no Parquet files", where=Where(file=self.path), hint="Give a file, a directory or a pattern"
            )
        return [Location(files, str(each)) for each in sorted(found)]


@dataclass(frozen=True)
class RowGroups:
    """Some row groups of Parquet files, as the columns of a state.

    Attributes:
        groups: (file, index of the row group).
        columns: by name of a column of the state, where it comes from.
    """

    groups: tuple[tuple[Location, int], ...]
    columns: tuple[tuple[str, str | tuple[tuple[str, str], ...]], ...]

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows, in batches.

        Raises:
            FormatError: a file is no Parquet file.
            StorageError: it cannot be read.
        """
        paths = [path for _, source in self.columns for path in _list_paths(source)]
        for file, index in self.groups:
            with open_parquet(file) as parquet:
                names = list(dict.fromkeys(paths))
                for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[index], columns=names, use_threads=False):
                    yield self.choose(batch)

    def choose(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the state out of those of the files."""
        chosen = {}
        for name, source in self.columns:
            if isinstance(source, str):
                chosen[name] = find_column(batch, source)
            else:
                children = [find_column(batch, path) for _, path in source]
                chosen[name] = pa.StructArray.from_arrays(children, names=[each for each, _ in source])
        return pa.RecordBatch.from_pydict(chosen)


def find_column(batch: pa.RecordBatch, path: str) -> pa.Array:
    """A column by its name, or a field of one by its dotted path.

    Raises:
        UsageError: there is none.
    """
    first, *rest = (path,) if path in batch.schema.names else path.split(".")
    if first not in batch.schema.names:
        raise UsageError(f"the files have no column {path}", hint=f"They have {', '.join(batch.schema.names)}")
    array = batch.column(first)
    for name in rest:
        if not pa.types.is_struct(array.type) or array.type.get_field_index(name) < 0:
            raise UsageError(f"the files have no column {path}", hint=f"{first} is {array.type}")
        array = pc.struct_field(array, name)
    return array


def _list_paths(source: str | tuple[tuple[str, str], ...]) -> list[str]:
    return [source] if isinstance(source, str) else [path for _, path in source]


def open_parquet(file: Location) -> pq.ParquetFile:
    """Open a Parquet file.

    Raises:
        FormatError: it is none.
        StorageError: it cannot be read.
    """
    with translating(file, "read the file"):
        stream = file.filesystem.open(file.path, "rb")
        try:
            return pq.ParquetFile(stream, pre_buffer=True)
        except pa.ArrowInvalid as error:
            stream.close()
            raise FormatError(f"not a Parquet file: {error}", where=Where(file=str(file))) from None


@dataclass(frozen=True)
class _EncodeKeyed:
    """Encodes row groups of one keyed state."""

    rows: RowGroups
    encoding: KeyedEncoding

    @property
    def threads(self) -> int:
        """See `local_processes.Work`: kernels and Arrow do the work, and leave the interpreter to other threads."""
        layout = self.encoding.shape.layout
        by_kernels = all(isinstance(plan_columns(each), KernelColumns) for each in (layout.key, layout.value))
        return KERNEL_THREADS if by_kernels else 1

    def run(self) -> EncodedPart:
        """Do the work."""
        return self.encoding.write(self.rows.read())


@dataclass(frozen=True)
class _EncodeElements:
    """Encodes all rows of one list or broadcast state."""

    rows: RowGroups
    encoding: ElementEncoding

    def run(self) -> EncodedElements:
        """Do the work."""
        batches = self.rows.read()
        if not self.encoding.is_broadcast:
            batches = iter([deal_rows(pa.Table.from_batches(batches), self.encoding.parallelism)])
        return self.encoding.write(batches)


@dataclass
class ParquetRows:
    """Rows of Parquet files; see `RowEngine`.

    Attributes:
        run: runs the tasks.
    """

    run: Runner
    from_source: None = None

    def find_schema(self, state: NewState) -> pa.Schema:
        """Types of the columns of a state, by the schema of its first file.

        Raises:
            UsageError: there are no files, or a column is missing.
        """
        with open_parquet(_files(state).list_files()[0]) as parquet:
            empty = pa.RecordBatch.from_pylist([], schema=parquet.schema_arrow)
        return RowGroups((), self._choose_columns(state, empty.schema.names)).choose(empty).schema

    def read_rows(self, state: NewState) -> pa.Table:
        """All rows of a small state."""
        schema = self.find_schema(state)
        tables = [pa.Table.from_batches(each.read(), schema) for each in self._split(state)]
        return pa.concat_tables(tables)

    def encode_keyed(self, state: NewState, encoding: KeyedEncoding) -> list[EncodedPart]:
        """Encode the rows in tasks of some row groups each."""
        return self.run([_EncodeKeyed(rows, encoding) for rows in self._split(state)], encoding.failure)

    def encode_elements(self, state: NewState, encoding: ElementEncoding) -> list[EncodedElements]:
        """Encode the rows in one task."""
        groups = tuple(group for rows in self._split(state) for group in rows.groups)
        columns = self._choose_columns(state, self._names(state))
        return self.run([_EncodeElements(RowGroups(groups, columns), encoding)], encoding.failure)

    def _names(self, state: NewState) -> list[str]:
        with open_parquet(_files(state).list_files()[0]) as parquet:
            return list(parquet.schema_arrow.names)

    def _split(self, state: NewState) -> list[RowGroups]:
        columns = self._choose_columns(state, self._names(state))
        found: list[RowGroups] = []
        pending: list[tuple[Location, int]] = []
        rows = 0
        for file in _files(state).list_files():
            with open_parquet(file) as parquet:
                for index in range(parquet.num_row_groups):
                    more = parquet.metadata.row_group(index).num_rows
                    if pending and rows + more > _PER_TASK:
                        found.append(RowGroups(tuple(pending), columns))
                        pending, rows = [], 0
                    pending.append((file, index))
                    rows += more
        return [*found, RowGroups(tuple(pending), columns)]

    def _choose_columns(
        self, state: NewState, names: Sequence[str]
    ) -> tuple[tuple[str, str | tuple[tuple[str, str], ...]], ...]:
        chosen: list[tuple[str, str | tuple[tuple[str, str], ...]]] = []
        for name in (*state.wanted, *state.optional):
            if name in state.columns:
                chosen.append((name, _read_source(state.columns[name])))
            elif name in names:
                chosen.append((name, name))
            elif name in state.wanted:
                hint = f"They have {', '.join(names)}"
                raise UsageError(f"the files have no column {name}, and `columns` does not say where it is", hint=hint)
        return tuple(chosen)


def _read_source(source: str | Sequence[str] | Mapping[str, str]) -> str | tuple[tuple[str, str], ...]:
    if isinstance(source, str):
        return source
    if hasattr(source, "items"):
        return tuple(source.items())
    return tuple((path.rpartition(".")[2], path) for path in source)


def _files(state: NewState) -> ParquetFiles:
    if not isinstance(state.rows, ParquetFiles):
        raise UsageError(f"the rows are {type(state.rows).__name__}, not ParquetFiles")
    return state.rows


def choose_row_processes(operators: Sequence[NewOperator]) -> int:
    """Number of processes that suits the files of new states.

    Raises:
        UsageError: a state has no files.
    """
    states = [state for new in operators for state in new.states]
    return choose_processes(sum(file_size(file) for state in states for file in _files(state).list_files()))
