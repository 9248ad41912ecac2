"""Tables of Parquet, written by the tasks of Spark through fsspec, so that any root will do."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from state_pipelines.storage import join, resolve
from state_pipelines.storage.files import create_file, list_directory, remove_directory, remove_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

_RESULT = pa.schema([("file", pa.string()), ("rows", pa.int64())])
_DONE = "_SUCCESS"


def write_parquet(frame: DataFrame, path: str) -> int:
    """Write a frame as the Parquet files of a directory, in place of what was there; gives the number of rows.

    A file `_SUCCESS` is written last. Files of attempts that failed are removed.

    Args:
        frame: the rows.
        path: the directory; a path or a URL that fsspec reaches, from all workers.

    Raises:
        StorageError: the storage refuses.
    """
    directory = resolve(path)
    remove_directory(directory)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Another attempt at the same task has another name.
        name, rows = f"part-{uuid4().hex}.parquet", 0
        with ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for batch in batches:
                if not batch.num_rows:
                    continue
                if writer is None:
                    file = stack.enter_context(create_file(join(resolve(path), name)))
                    writer = stack.enter_context(pq.ParquetWriter(file, batch.schema))
                writer.write_batch(batch)
                rows += batch.num_rows
        if rows:
            yield pa.RecordBatch.from_pylist([{"file": name, "rows": rows}], _RESULT)

    written = {row["file"]: row["rows"] for row in frame.mapInArrow(write, "file string, rows bigint").collect()}
    if not written:
        schema = to_arrow_schema(frame.schema)
        with create_file(join(directory, "part-empty.parquet")) as file:
            pq.write_table(schema.empty_table(), file)
    else:
        for entry in list_directory(directory):
            if entry.location.name not in written:
                remove_file(entry.location)
    with create_file(join(directory, _DONE)):
        pass
    return sum(written.values())
