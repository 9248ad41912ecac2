"""Makes `state_pipelines/serializers/sql_types.tsv`: serializer snapshots of rows with one column, of each SQL type.

`python -m tests.flink.make_sql_types` writes the table, and `tests/data/sql/types.tsv` with types that are made of
those; `test_sql_types` holds that every Flink writes these bytes.
"""

from __future__ import annotations

import base64
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from state_pipelines.binary.data_views import Writer
from state_pipelines.serializers.registry import write_nested
from state_pipelines.serializers.table_runtime import RECORDED_FILE
from state_pipelines.serializers.text import describe_type
from state_pipelines.serializers.tree import RowData
from state_pipelines.snapshot import open_snapshot
from state_pipelines.sql.planner import compile_script, start_java
from state_pipelines.sql.templates import open_cluster
from tests.flink.harness import ROOT, VERSIONS, install_libraries
from tests.flink.planned_states import link_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

TYPES = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "DECIMAL(10, 2)"),
    *("CHAR(3)", "VARCHAR(20)", "BINARY(3)", "VARBINARY(20)", "TIME(3)", "TIMESTAMP(3)", "TIMESTAMP(6)"),
    *("TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(6)", "INTERVAL YEAR(2) TO MONTH", "INTERVAL DAY(2) TO SECOND(6)"),
    "ROW<`a` INT>",
)
"""A type of each kind, whose numbers and fields other types of the kind replace."""
ELEMENTS = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "DECIMAL(10, 2)"),
    *("VARCHAR(20)", "VARBINARY(20)", "TIME(3)", "TIMESTAMP(3)", "TIMESTAMP_LTZ(3)"),
)
COLLECTIONS = (*(f"ARRAY<{each}>" for each in ELEMENTS), "MAP<INT, INT>", "MULTISET<INT>")
MAP_VIEW = "RAW('org.apache.flink.table.api.dataview.MapView', ?)"
"""The column of a view of distinct values in an accumulator."""
OTHERS = (
    *("DECIMAL(38, 18)", "CHAR(20) NOT NULL", "STRING", "STRING NOT NULL", "BYTES", "BIGINT NOT NULL", "TIMESTAMP(9)"),
    *("TIMESTAMP_LTZ(0) NOT NULL", "TIME(0)", "INTERVAL YEAR(4) TO MONTH", "INTERVAL DAY(3) TO SECOND(3)"),
    *(
        "ROW<`id` BIGINT NOT NULL, `name` VARCHAR(30), `id2` BIGINT>",
        "ROW<`a` ROW<`b` INT, `c` DECIMAL(5, 1)> NOT NULL>",
    ),
    *(
        "ARRAY<BIGINT NOT NULL> NOT NULL",
        "ARRAY<DECIMAL(20, 4)>",
        "MAP<VARCHAR(7) NOT NULL, TIMESTAMP(9)>",
        "MAP<INT, DOUBLE>",
    ),
    *(
        "ARRAY<VARCHAR(2147483647)>",
        "MULTISET<VARCHAR(2147483647)> NOT NULL",
        "ROW<`a` ARRAY<INT>, `b` MAP<INT, DATE>>",
    ),
)
"""Types that are made of the recorded ones; tests compare their snapshots with those of Flink."""
EXTREMES = ("INT", "BIGINT", "DECIMAL(12, 3)", "VARCHAR(20)", "TIMESTAMP(3)")
"""Types of the values of MAX and MIN that take back rows; the accumulators of the first one are recorded."""
OTHERS_FILE = ROOT / "tests/data/sql/types.tsv"


@contextmanager
def open_flink(version: str) -> Iterator[Callable[[Sequence[str]], dict[str, bytes]]]:
    """Give a function that returns by type the serializer snapshot of a row with one column, as a Flink writes it."""
    with start_java(install_libraries(version).jars) as java:

        def write(texts: Sequence[str]) -> dict[str, bytes]:
            return {each: _write_row(java, each) for each in texts}

        yield write


def _write_row(java: Any, text: str) -> bytes:
    flink = java.org.apache.flink
    if text == MAP_VIEW:
        view = java.java.lang.Class.forName("org.apache.flink.table.api.dataview.MapView")
        of = flink.table.types.logical.RawType(view, flink.table.dataview.NullSerializer.INSTANCE)
    else:
        of = flink.table.types.logical.utils.LogicalTypeParser.parse(
            text, java.java.lang.Thread.currentThread().getContextClassLoader()
        )
    fields = java.java.util.ArrayList()
    fields.add(flink.table.types.logical.RowType.RowField("f0", of))
    row = flink.table.types.logical.RowType(fields)
    serializer = flink.table.runtime.typeutils.InternalSerializers.create(row)
    out = flink.core.memory.DataOutputSerializer(1024)
    utilities = flink.api.common.typeutils.TypeSerializerSnapshot
    utilities.writeVersionedSnapshot(out, serializer.snapshotConfiguration())
    return bytes(out.getCopyOfBuffer())


def write_accumulators(version: str, directory: Path) -> dict[str, bytes]:
    """Return by type the serializer snapshot of a row with the accumulator of a MAX or MIN that takes back rows."""
    columns = ", ".join(f"MAX(c{n}), MIN(c{n})" for n in range(len(EXTREMES)))
    fields = ", ".join(f"c{n} {of}" for n, of in enumerate(EXTREMES))
    last = "(SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY p DESC) AS r FROM source) WHERE r = 1"
    names = [f"r{n} {of}" for n, of in enumerate(each for of in EXTREMES for each in (of, of))]
    script = directory / "extremes.sql"
    script.write_text(
        f"CREATE TABLE source (id INT, k INT, {fields}, p AS PROCTIME()) WITH ('connector' = 'datagen');\n"
        f"CREATE TABLE target (k INT, {', '.join(names)}) WITH ('connector' = 'blackhole');\n"
        f"INSERT INTO target SELECT k, {columns} FROM {last} GROUP BY k;\n"
    )
    home = str(link_home(version, directory))
    plan = compile_script(str(script), flink_home=home).json
    with open_cluster(home) as take:
        snapshot = open_snapshot(take(plan, str(directory / "template")))
    (state,) = (each for operator in snapshot.operators for each in operator.keyed_states if each.name == "accState")
    row = state.stored_info.value_serializer
    assert isinstance(row, RowData)
    found = {}
    for of, java, serializer in zip(row.types, row.java_types, row.fields, strict=True):
        if of.root == "STRUCTURED_TYPE":
            writer = Writer()
            write_nested(writer, replace(row, types=(of,), java_types=(java,), fields=(serializer,), labels=None))
            found[describe_type(of)] = writer.getvalue()
    return found


def format_recorded(snapshots: Mapping[str, bytes]) -> str:
    """Format the table of recorded snapshots: type and snapshot in base64, a line each."""
    return "".join(f"{text}\t{base64.b64encode(raw).decode()}\n" for text, raw in snapshots.items())


def choose_recorded(accumulators: dict[str, bytes]) -> dict[str, bytes]:
    """The accumulators that the others are made of: those of MAX and MIN of the first type."""
    return dict(list(accumulators.items())[:2])


def main() -> None:
    """Record all types, as the last release writes them."""
    with TemporaryDirectory() as directory:
        accumulators = write_accumulators(VERSIONS[-1], Path(directory))
    with open_flink(VERSIONS[-1]) as write:
        texts = format_recorded(write((*TYPES, *COLLECTIONS, MAP_VIEW)) | choose_recorded(accumulators))
        RECORDED_FILE.write_text(texts, encoding="utf-8")
        OTHERS_FILE.write_text(format_recorded(write(OTHERS) | accumulators), encoding="utf-8")


if __name__ == "__main__":
    main()
