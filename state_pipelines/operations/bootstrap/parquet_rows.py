"""Rows of new states from Parquet files, and descriptions of a bootstrap in YAML that name these."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from state_pipelines.codecs.columns import KernelCodec, plan_columns
from state_pipelines.codecs.logical_values import conform, to_plain
from state_pipelines.errors import FormatError, StateError, UsageError, ValueRangeError, Where, at
from state_pipelines.operations.bootstrap.encoding import EncodedElements, EncodedRows, deal_rows
from state_pipelines.operations.bootstrap.new_states import NewOperator, NewState
from state_pipelines.operations.local_processes import KERNEL_THREADS, choose_processes
from state_pipelines.operations.write.savepoint_plan import make_layouts
from state_pipelines.storage import Location, join, parent, read_file, resolve
from state_pipelines.storage.documents import MOST_TEXT, parse_yaml
from state_pipelines.storage.files import CHECKED_FROM, exists, file_size, is_directory, require_memory
from state_pipelines.storage.locations import is_local, request, translating
from state_pipelines.storage.resolution import normalize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.codecs.kryo import FieldLists
    from state_pipelines.codecs.layout import LayoutContext
    from state_pipelines.operations.bootstrap.encoding import ElementEncoding, KeyedEncoding
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.snapshot import Snapshot

Columns = tuple[tuple[str, str | tuple[tuple[str, str], ...]], ...]
"""For each column of a state: (its name, the column of the files; or (name, column) for each field of a struct)."""

BATCH_ROWS = 1 << 16
"""Maximum number of rows that are encoded at once."""

BATCH_BYTES = 32 << 20
"""Maximum bytes, in Arrow, of the rows that are encoded at once, unless one row has more.

Encoding needs several times as much memory.
"""

MOST_ROW = 256 << 20
"""Maximum bytes of one row in the columns of a state. Compressed, a row with more may be in a small file."""

_LARGE_VALUE = 1 << 20
"""If the average value of a column chunk has more bytes, the memory for the whole chunk is checked before reading.

Such a chunk may have large pages, and Arrow decompresses a page at once.
"""

_HIGH_RATIO = 100
"""If a column chunk is compressed by a higher ratio, its memory is checked as for `_LARGE_VALUE`."""

_TEXT = "BYTE_ARRAY"

_ROW = re.compile(r"^row (\d+)")
"""Beginning of messages about a row, with its index in the batch."""

_PER_TASK = 1 << 21
"""Maximum number of rows in the row groups that one task reads, unless one row group has more."""


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files with the rows of a state.

    Attributes:
        path: a file, a directory of files, or a pattern such as `events/*.parquet`; a local path or a URL.
    """

    path: str

    def list_files(self) -> list[Location]:
        """List the files, sorted by path.

        Raises:
            UsageError: there are no files.
        """
        location = resolve(self.path)
        files = location.filesystem
        # Methods of fsspec such as `isdir` and `exists` are not used here: they return False for every error.
        if any(each in self.path for each in "*?["):
            found = request(location, "list the files", lambda: files.glob(location.path))
        elif is_directory(location):
            pattern = f"{location.path.rstrip('/')}/**/*.parquet"
            found = request(location, "list the files", lambda: files.glob(pattern))
        else:
            found = [location.path] if exists(location) else []
        if not found:
            raise UsageError(
                "there are no Parquet files", where=Where(file=self.path), hint="Give a file, a directory or a pattern"
            )
        return [Location(files, str(each)) for each in sorted(found)]


@dataclass(frozen=True)
class RowGroups:
    """Row groups of Parquet files, read as the columns of a state.

    Attributes:
        groups: (file, index of the row group), for each row group.
        columns: columns of the files from which the columns of the state are made.
        schema: types of the columns of the state, to which the columns of every file are converted.
    """

    groups: tuple[tuple[Location, int], ...]
    columns: Columns
    schema: pa.Schema

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches with the columns of the state.

        Raises:
            FormatError: a file is not a Parquet file, or is damaged.
            ValueRangeError: a value does not fit the schema, or a row has more than `MOST_ROW` bytes.
            StorageError: a file cannot be read, or there is not enough memory.
        """
        names = list(dict.fromkeys(path for _, paths in self.columns for path in _list_paths(paths)))
        for file, index in self.groups:
            with open_parquet(file, names) as parquet:
                rows = _plan_batches(parquet.metadata.row_group(index), names, str(file))
                batches = parquet.iter_batches(rows, row_groups=[index], columns=names, use_threads=False)
                done = 0
                while True:
                    with _reading(file):
                        batch = next(batches, None)
                    if batch is None:
                        break
                    for start, stop in _bound_batches(batch, done):
                        # Copy the rows: for a slice, Arrow would decode the lists of all rows of the batch.
                        wanted = batch.take(pa.array(range(start, stop))) if stop - start < len(batch) else batch
                        chosen = choose_columns(wanted, self.columns)
                        arrays = [conform(chosen.column(each.name), each.type, each.name) for each in self.schema]
                        yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
                    done += len(batch)


def _list_chunks(group: pq.RowGroupMetaData, names: Sequence[str]) -> list[pq.ColumnChunkMetaData]:
    """List the column chunks of a row group that hold these columns, or fields of them; names may be dotted paths."""
    chunks = [group.column(each) for each in range(group.num_columns)]
    return [each for each in chunks if any(f"{each.path_in_schema}.".startswith(f"{name}.") for name in names)]


def _plan_batches(group: pq.RowGroupMetaData, names: Sequence[str], file: str) -> int:
    """Return the number of rows of a row group to decode at once, so that they have about `BATCH_BYTES`.

    Columns with a dictionary count as empty, since only small indices are decoded for each row.

    Args:
        group: metadata of the row group.
        names: names of the columns that are read.
        file: the file, for errors.

    Raises:
        ValueRangeError: some row has more than `MOST_ROW` bytes.
        StorageError: there is not enough memory for a column chunk that may have large pages.
    """
    size = 0
    for each in _list_chunks(group, names):
        bytes_, values = each.total_uncompressed_size, max(1, each.num_values)
        if bytes_ // max(1, min(values, group.num_rows)) > MOST_ROW:
            raise _too_large(bytes_ // values, f"a row group of {group.num_rows:,} rows", file)
        if bytes_ // values > _LARGE_VALUE or bytes_ > _HIGH_RATIO * each.total_compressed_size:
            # The bytes are in memory twice: as a decompressed page, and as an array.
            require_memory(2 * bytes_, file)
        size += 0 if each.has_dictionary_page else bytes_
    return int(max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(1, size))))


def _bound_batches(batch: pa.RecordBatch, first: int) -> Iterator[tuple[int, int]]:
    """Divide a batch into ranges (start, stop) of rows that have at most `BATCH_BYTES`, unless a single row has more.

    Values in dictionaries count as often as rows refer to them.

    Args:
        batch: rows as they were read.
        first: index of the first row of the batch in its row group, for errors.

    Raises:
        ValueRangeError: a row has more than `MOST_ROW` bytes.
    """
    pending = [(0, len(batch))]
    while pending:
        start, stop = pending.pop()
        size = sum(map(_measure, batch.slice(start, stop - start).columns))
        if size > BATCH_BYTES and stop - start > 1:
            middle = (start + stop) // 2
            pending += [(middle, stop), (start, middle)]
        elif size > MOST_ROW:
            raise _too_large(size, f"row {first + start}")
        else:
            yield start, stop


def _too_large(size: int, what: str, file: str | None = None) -> ValueRangeError:
    return ValueRangeError(
        f"{what}: {size / (1 << 20):,.0f} MiB in the columns of the state, and a row may have {MOST_ROW >> 20} MiB",
        where=Where(file=file),
        hint="Leave such rows out, or divide their values",
    )


def _measure(array: pa.Array) -> int:
    """Return the bytes of an array as if its dictionaries were decoded."""
    of, is_type = array.type, pa.types
    if isinstance(array, pa.ExtensionArray):
        return _measure(array.storage)
    if is_type.is_dictionary(of):
        if not any(each(of.value_type) for each in (is_type.is_string, is_type.is_binary, is_type.is_large_string)):
            return int(array.nbytes)
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return int(pc.sum(lengths.take(array.indices)).as_py() or 0)
    if is_type.is_struct(of):
        return sum(map(_measure, array.flatten()))
    if is_type.is_map(of):
        start, stop = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(_measure(each.slice(start, stop - start)) for each in (array.keys, array.items))
    if is_type.is_list(of) or is_type.is_large_list(of) or is_type.is_fixed_size_list(of):
        return _measure(array.flatten())
    return int(array.nbytes)


def choose_columns(batch: pa.RecordBatch, columns: Columns) -> pa.RecordBatch:
    """Make the columns of a state from the columns of a file.

    Raises:
        UsageError: the file lacks a column, or has several of the same name.
    """
    chosen = {}
    for name, paths in columns:
        if isinstance(paths, str):
            chosen[name] = to_plain(find_column(batch, paths), name)
        else:
            children = [to_plain(find_column(batch, path), name) for _, path in paths]
            chosen[name] = pa.StructArray.from_arrays(children, names=[each for each, _ in paths])
    return pa.RecordBatch.from_pydict(chosen)


def find_column(batch: pa.RecordBatch, path: str) -> pa.Array:
    """Return the column with a name, or the field of a struct column with a dotted path.

    Raises:
        UsageError: there is no such column, or there are several.
    """
    first, *rest = (path,) if path in batch.schema.names else path.split(".")
    _require_one(batch.schema.names, first, path, f"They have {', '.join(batch.schema.names)}")
    array = batch.column(first)
    for name in rest:
        names = [each.name for each in array.type] if pa.types.is_struct(array.type) else []
        _require_one(names, name, path, f"{first} is {array.type}")
        array = pc.struct_field(array, name)
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _require_one(names: Sequence[str], name: str, path: str, hint: str) -> None:
    count = names.count(name)
    if count > 1:
        raise UsageError(f"the file has {count} columns {path}", hint="Write it with one column of each name")
    if not count:
        raise UsageError(f"the files have no column {path}", hint=hint)


def _list_paths(paths: str | tuple[tuple[str, str], ...]) -> list[str]:
    return [paths] if isinstance(paths, str) else [path for _, path in paths]


def open_parquet(file: Location, names: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a Parquet file.

    Args:
        file: the file.
        names: columns to read. Text and bytes of these columns stay dictionary-encoded in memory, if they are so in the
            file.

    Raises:
        FormatError: the file is not a Parquet file, or is damaged.
        StorageError: the file cannot be read.
    """
    with _reading(file):
        stream = file.filesystem.open(file.path, "rb")
        try:
            parquet = pq.ParquetFile(stream, pre_buffer=True)
            groups = map(parquet.metadata.row_group, range(parquet.num_row_groups if names else 0))
            chunks = (chunk for group in groups for chunk in _list_chunks(group, names))
            repeated = {
                each.path_in_schema for each in chunks if each.has_dictionary_page and each.physical_type == _TEXT
            }
            if not repeated:
                return parquet
            parquet = pq.ParquetFile(
                stream, metadata=parquet.metadata, read_dictionary=sorted(repeated), pre_buffer=True
            )
            return parquet
        except BaseException:
            stream.close()
            raise


@contextmanager
def _reading(file: Location) -> Iterator[None]:
    """Translate errors of Arrow and of the storage, raised in the block, to errors of this package."""
    with translating(file, "read the file"):
        try:
            yield
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise FormatError(f"the file cannot be read as Parquet: {error}", where=Where(file=str(file))) from None
        except OSError as error:
            # Arrow raises a plain OSError without `errno` for pages that it cannot decode. Others are storage errors.
            if type(error) is not OSError or error.errno is not None:
                raise
            raise FormatError(f"the Parquet file is damaged: {error}", where=Where(file=str(file))) from None


class _Origin:
    """File, row group and first row of the batch that is being encoded, to be named in errors."""

    def __init__(self) -> None:
        self._file, self._group, self._row = "", 0, 0

    def read(self, rows: RowGroups) -> Iterator[pa.RecordBatch]:
        """Yield the batches of row groups, and remember where the last one comes from."""
        for file, index in rows.groups:
            self._file, self._group, self._row = str(file), index, 0
            for batch in replace(rows, groups=((file, index),)).read():
                yield batch
                self._row += len(batch)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Add the file to errors of the block, and convert their row numbers from the batch to the row group."""
        try:
            yield
        except StateError as error:
            error.where = replace(error.where, file=error.where.file or self._file)
            error.what = _ROW.sub(lambda row: f"row {int(row[1]) + self._row} of row group {self._group}", error.what)
            raise


@dataclass(frozen=True)
class _EncodeKeyed:
    """Task that encodes some row groups of one keyed state."""

    rows: RowGroups
    encoding: KeyedEncoding

    @property
    def threads(self) -> int:
        """Number of such tasks that can run in threads; see `local_processes.Work`.

        It is one if Python code must encode a type. Compiled kernels and Arrow release the interpreter lock.
        """
        layout = self.encoding.shape.layout
        by_kernels = all(isinstance(plan_columns(each), KernelCodec) for each in (layout.key, layout.value))
        return KERNEL_THREADS if by_kernels else 1

    def run(self) -> EncodedRows:
        """Read and encode the rows; see `KeyedEncoding.write`."""
        origin = _Origin()
        with origin.naming():
            return self.encoding.write(origin.read(self.rows))


def _hold(rows: RowGroups) -> Iterator[pa.RecordBatch]:
    """Yield the batches of row groups for a caller that keeps all of them, while there is enough free memory.

    Raises:
        StorageError: there is not enough memory for all batches.
    """
    size = 0
    for batch in rows.read():
        size += batch.nbytes
        if size > CHECKED_FROM:
            require_memory(CHECKED_FROM + 1, ", ".join(dict.fromkeys(str(file) for file, _ in rows.groups)))
        yield batch


@dataclass(frozen=True)
class _EncodeElements:
    """Task that encodes all rows of one list or broadcast state."""

    rows: RowGroups
    encoding: ElementEncoding

    def run(self) -> EncodedElements:
        """Read and encode the rows; see `ElementEncoding.write`."""
        if not self.encoding.is_broadcast:
            return self.encoding.write(deal_rows(list(_hold(self.rows)), self.encoding.parallelism))
        origin = _Origin()
        with origin.naming():
            return self.encoding.write(origin.read(self.rows))


@dataclass(frozen=True)
class Footer:
    """Information from the footer of one Parquet file.

    Attributes:
        file: the file.
        schema: types of its columns.
        rows: numbers of rows of its row groups.
    """

    file: Location
    schema: pa.Schema
    rows: tuple[int, ...]


@dataclass
class ParquetRows:
    """Rows of Parquet files; see `RowEngine`. The footer of each file is read once.

    Attributes:
        run: runs the tasks.
    """

    run: Runner
    from_source: None = None
    _footers: dict[str, tuple[Footer, ...]] = field(default_factory=dict, init=False, repr=False)

    def find_schema(self, state: NewState) -> pa.Schema:
        """Return the types of the columns of a state; if files have numbers of different widths, the widest type.

        Raises:
            UsageError: there are no files, a file lacks a column, or files have columns or types that do not fit.
        """
        return self._describe(state).schema

    def read_rows(self, state: NewState) -> pa.Table:
        """Read all rows of a small state."""
        schema = self.find_schema(state)
        tables = [pa.Table.from_batches(each.read(), schema) for each in self._split(state)]
        return pa.concat_tables(tables)

    def encode_keyed(self, states: Sequence[tuple[NewState, KeyedEncoding]]) -> list[tuple[int, list[EncodedRows]]]:
        """Encode the rows in tasks, each of which reads some row groups for one state."""
        return [
            (
                self._count(state),
                self.run([_EncodeKeyed(rows, encoding) for rows in self._split(state)], encoding.failure),
            )
            for state, encoding in states
        ]

    def encode_elements(self, state: NewState, encoding: ElementEncoding) -> tuple[int, list[EncodedElements]]:
        """Encode the rows in one task."""
        groups = tuple(group for rows in self._split(state) for group in rows.groups)
        rows = replace(self._describe(state), groups=groups)
        return self._count(state), self.run([_EncodeElements(rows, encoding)], encoding.failure)

    def _count(self, state: NewState) -> int:
        """Number of rows of a state according to the footers of its files."""
        return sum(sum(footer.rows) for footer in self._read_footers(state))

    def _read_footers(self, state: NewState) -> tuple[Footer, ...]:
        files = _files(state)
        if files.path not in self._footers:
            found = []
            for file in files.list_files():
                with open_parquet(file) as parquet:
                    rows = tuple(parquet.metadata.row_group(each).num_rows for each in range(parquet.num_row_groups))
                    found.append(Footer(file, parquet.schema_arrow, rows))
            self._footers[files.path] = tuple(found)
        return self._footers[files.path]

    def _describe(self, state: NewState) -> RowGroups:
        """Find the columns of a state and their types in all files.

        Returns:
            Row groups with these columns and types, but with empty `groups`.

        Raises:
            UsageError: as for `find_schema`.
        """
        footers = self._read_footers(state)
        first = footers[0].file
        with at(file=str(first)):
            columns = _choose_paths(state, footers[0])
            schemas = [_find_schema(footers[0], columns)]
        schema = schemas[0]
        hint = "Write all files of a state with one schema"
        for footer in footers[1:]:
            with at(file=str(footer.file)):
                if _choose_paths(state, footer) != columns:
                    raise UsageError(
                        f"{first} and this file do not have the same columns of the state",
                        hint="Write a column that rows may have into all files, or into none",
                    )
                schemas.append(_find_schema(footer, columns))
                try:
                    schema = pa.unify_schemas([schema, schemas[-1]], promote_options="permissive")
                except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                    raise UsageError(f"the types of the columns are not those of {first}: {error}", hint=hint) from None
        for footer, own in zip(footers, schemas, strict=True):
            with at(file=str(footer.file)):
                _require_fitting(own, schema, hint)
        return RowGroups((), columns, schema)

    def _split(self, state: NewState) -> list[RowGroups]:
        described = self._describe(state)
        found: list[RowGroups] = []
        pending: list[tuple[Location, int]] = []
        rows = 0
        for footer in self._read_footers(state):
            for index, more in enumerate(footer.rows):
                if pending and rows + more > _PER_TASK:
                    found.append(replace(described, groups=tuple(pending)))
                    pending, rows = [], 0
                pending.append((footer.file, index))
                rows += more
        return [*found, replace(described, groups=tuple(pending))]


def _find_schema(footer: Footer, columns: Columns) -> pa.Schema:
    return choose_columns(pa.RecordBatch.from_pylist([], schema=footer.schema), columns).schema


def _require_fitting(own: pa.Schema, united: pa.Schema, hint: str) -> None:
    """Refuse a file whose structs lack fields that other files have. Arrow unifies such schemas, filling in nulls.

    Args:
        own: types of the columns in the file.
        united: types of the columns unified over all files.
        hint: hint of the error.

    Raises:
        UsageError: a field is missing; the error names it.
    """
    for found, wanted in zip(own, united, strict=True):
        try:
            conform(pa.array([], found.type), wanted.type, found.name)
        except ValueRangeError as error:
            text = f"the types of the columns are not those of the other files: {error.what}"
            raise UsageError(text, where=error.where, hint=hint) from None


def _choose_paths(state: NewState, footer: Footer) -> Columns:
    """Choose the columns of one file from which the columns of a state are made.

    Raises:
        UsageError: a required column is missing.
    """
    names = footer.schema.names
    chosen: list[tuple[str, str | tuple[tuple[str, str], ...]]] = []
    for name in (*state.wanted, *state.optional):
        if name in state.columns:
            chosen.append((name, _parse_paths(state.columns[name])))
        elif name in names:
            chosen.append((name, name))
        elif name in state.wanted:
            hint = f"They have {', '.join(names)}"
            raise UsageError(f"the files have no column {name}, and `columns` does not say where it is", hint=hint)
    return tuple(chosen)


def _parse_paths(paths: str | Sequence[str] | Mapping[str, str]) -> str | tuple[tuple[str, str], ...]:
    """Parse a value of `NewState.columns`: the name of a column, or names of the columns of a struct's fields.

    Returns:
        The name, or (field, column) for each field. A field without a given name is named after its column.

    Raises:
        UsageError: two fields would have the same name.
    """
    if isinstance(paths, str):
        return paths
    if hasattr(paths, "items"):
        return tuple(paths.items())
    fields = tuple((path.rpartition(".")[2], path) for path in paths)
    if len(dict(fields)) < len(fields):
        raise UsageError(
            f"two fields of the struct of {', '.join(paths)} have one name",
            hint="Name them: {field: column, other field: other column}",
        )
    return fields


def _files(state: NewState) -> ParquetFiles:
    if not isinstance(state.rows, ParquetFiles):
        raise UsageError(f"the rows are {type(state.rows).__name__}, not ParquetFiles")
    return state.rows


def choose_row_processes(operators: Sequence[NewOperator]) -> int:
    """Choose the number of processes that suits the size of the files of new states.

    Raises:
        UsageError: a state has no files.
    """
    states = [state for new in operators for state in new.states]
    return choose_processes(sum(file_size(file) for state in states for file in _files(state).list_files()))


_DESCRIPTION = {"operators": list, "classes": list, "flink_version": str}
_OPERATOR = {"uid": str, "states": list, "key": str, "parallelism": int, "max_parallelism": int, "hashes": dict}
_STATE = {
    "name": str,
    "rows": str,
    "kind": str,
    "type": str,
    "key_type": str,
    "namespace": str,
    "ttl": bool,
    "columns": dict,
}


@dataclass(frozen=True)
class BootstrapDescription:
    """Operators of a new savepoint, and what the layouts of their states depend on.

    Attributes:
        operators: the operators with their new states.
        classes: paths of jars, directories, class files and field lists that describe the classes that Kryo writes.
        flink_version: release that starts from the savepoint, such as 1.20.
    """

    operators: list[NewOperator]
    classes: tuple[str, ...] = ()
    flink_version: str | None = None

    def make_layouts(
        self,
        base: Snapshot | None = None,
        classes: FieldLists | Sequence[str] | None = None,
        flink_version: str | None = None,
    ) -> LayoutContext:
        """Make the context of the layouts of the new states (see `operations.write.savepoint_plan.make_layouts`).

        Args:
            base: snapshot from which all other state is taken.
            classes: fields of classes that Kryo writes, or paths as in the attribute `classes`; used only if the
                attribute is empty.
            flink_version: release that starts from the savepoint; may also be given in the description.

        Raises:
            UsageError: the description names another release, or the base is of another line.
            MissingFileError: a file does not exist.
        """
        if None not in (self.flink_version, flink_version) and self.flink_version != flink_version:
            raise UsageError(
                f"flink_version of the description is {self.flink_version}, and {flink_version} is asked for",
                hint="Leave one of them out",
            )
        return make_layouts(self.classes or classes or None, self.flink_version or flink_version, base)


def load_bootstrap(path: str) -> BootstrapDescription:
    """Read a description from a YAML file. Paths of Parquet files and classes in it are relative to its directory.

    Raises:
        UsageError: the file is not YAML, or has an unknown, wrong or missing entry.
    """
    with at(file=path):
        try:
            content = parse_yaml(read_file(resolve(path), most=MOST_TEXT))
        except yaml.YAMLError as error:
            raise UsageError(f"the file is no YAML: {' '.join(str(error).split())}") from None
        _check(content, _DESCRIPTION, ("operators",), "the description")
        classes = content.get("classes", [])
        if not all(isinstance(each, str) for each in classes):
            raise UsageError(
                f"classes of the description are {classes!r:.80}, not a list of paths", hint="Such as [classes.yaml]"
            )
        return BootstrapDescription(
            [_read_operator(each, path) for each in content["operators"]],
            tuple(_find_path(each, path) for each in classes),
            content.get("flink_version"),
        )


def _read_operator(content: Any, path: str) -> NewOperator:
    _check(content, _OPERATOR, ("uid", "states"), "an operator")
    with at(operator=content["uid"]):
        for name, expression in content.get("hashes", {}).items():
            if not isinstance(name, str) or not isinstance(expression, str):
                raise UsageError(f"the hash of {name} is {expression!r:.80}, not text", hint="Such as objects(a, b)")
        given = {name: value for name, value in content.items() if name != "states"}
        return NewOperator(states=[_read_state(each, path) for each in content["states"]], **given)


def _read_state(content: Any, path: str) -> NewState:
    _check(content, _STATE, ("name", "rows"), "a state")
    with at(state=content["name"]):
        for name, given in content.get("columns", {}).items():
            paths = given.values() if isinstance(given, dict) else given if isinstance(given, list) else [given]
            if not isinstance(name, str) or not all(isinstance(each, str) for each in paths):
                raise UsageError(f"the column {name} is {given!r}, not a name, a list of names or names by field")
        return NewState(**(content | {"rows": ParquetFiles(_find_path(content["rows"], path))}))


def _find_path(given: str, path: str) -> str:
    """Resolve the path or URL of a file that the description in `path` names, relative to its directory."""
    if given.startswith("/") or "://" in normalize(given):
        return given
    found = join(parent(resolve(path)), given)
    return found.path if is_local(found) else found.url


def _check(content: Any, known: Mapping[str, type], needed: tuple[str, ...], what: str) -> None:
    """Check the entries of a mapping in the description of a bootstrap.

    Args:
        content: the parsed YAML.
        known: type of the value of each entry that it may have.
        needed: entries that it must have.
        what: what the mapping describes, for errors.

    Raises:
        UsageError: it is not a mapping, or an entry is unknown, has another type or is missing.
    """
    if not isinstance(content, dict):
        raise UsageError(f"{what} is {content!r:.80}, not a mapping of {', '.join(known)}")
    where = Where(operator=str(content["uid"])) if "uid" in content else Where()
    for name, value in content.items():
        if name not in known:
            raise UsageError(f"{what} has no {name!r}", where=where, hint=f"It has {', '.join(known)}")
        if not isinstance(value, known[name]) or (known[name] is int and isinstance(value, bool)):
            raise UsageError(f"{name} of {what} is {value!r:.80}, not of type {known[name].__name__}", where=where)
    for name in needed:
        if not content.get(name):
            raise UsageError(f"{what} lacks {name!r}", where=where)
