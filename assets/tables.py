"""`state_tables`: the states of a snapshot as Parquet."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg

from assets.inventory import snapshot_inventory
from assets.partitions import open_partition, snapshots
from resources import SparkResource, StorageResource
from state_pipelines.errors import UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from state_pipelines.snapshot import State

_COLUMNS = [
    dg.TableColumn("operator"),
    dg.TableColumn("state"),
    dg.TableColumn("kind"),
    dg.TableColumn("rows", "int"),
    dg.TableColumn("path"),
    dg.TableColumn("undecoded", description="why the table holds raw bytes"),
]
# Where the inventory tells the serializer that a column comes from.
_SOURCES = {"state_key": "key", "state_namespace": "namespace"}


@dg.asset(
    deps=[snapshot_inventory],
    partitions_def=snapshots,
    group_name="flink_state",
    kinds={"flink", "spark", "parquet"},
    owners=["team:streaming"],
    tags={"state-pipelines/step": "see"},
)
def state_tables(
    context: dg.AssetExecutionContext, storage: StorageResource, spark: SparkResource
) -> Iterator[dg.MaterializeResult[None]]:
    """Every state of a snapshot as a Parquet table: one row per entry, or per timer."""
    from state_pipelines.spark.failures import translate_failures  # loading Spark takes seconds, so nobody else pays

    snapshot = open_partition(storage, context.partition_key)
    tables: list[dg.TableRecord] = []
    columns: list[dg.TableColumn] = []
    lineage: dict[str, list[dg.TableColumnDep]] = {}
    unread: list[str] = []
    for operator in snapshot.operators:
        survey = operator.survey()
        unread += [str(failure.error) for failure in survey.failures]
        for state in survey.states:
            path = storage.place_table(context.partition_key, state)
            undecoded = state.undecoded
            frame = spark.read_state(snapshot, state)
            try:
                with translate_failures(f"{operator.label}, {state.name} cannot be read"):
                    frame.write.mode("overwrite").parquet(path)
            except UnsupportedError as error:
                # Some records hold what the serializer snapshots do not describe: a table all the same, of bytes.
                undecoded = error.what
                frame = spark.read_state(snapshot, state, raw=True)
                frame.write.mode("overwrite").parquet(path)
            rows = spark.session.read.parquet(path).count()
            context.log.info("%s, %s: %d rows in %s", operator.label, state.name, rows, path)
            tables.append(_describe(state, rows, path, undecoded))
            columns += _name_columns(state, frame)
            lineage |= _trace_columns(state, frame)
    yield dg.MaterializeResult(
        metadata={
            "tables": dg.MetadataValue.table(tables, dg.TableSchema(_COLUMNS)),
            "snapshot": dg.MetadataValue.path(snapshot.path),
            "states": len(tables),
            "undecoded": sum(bool(table.data["undecoded"]) for table in tables),
            "unread": unread,
            "dagster/row_count": sum(int(str(table.data["rows"])) for table in tables),
            "dagster/column_schema": dg.TableSchema(columns),
            "dagster/column_lineage": dg.TableColumnLineage(lineage),
        },
        data_version=dg.DataVersion(snapshot.fingerprint),
    )


def _describe(state: "State", rows: int, path: str, undecoded: str) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "operator": state.operator.label,
            "state": state.name,
            "kind": state.kind,
            "rows": rows,
            "path": path,
            "undecoded": undecoded,
        }
    )


def _name_columns(state: "State", frame: "DataFrame") -> list[dg.TableColumn]:
    return [dg.TableColumn(_full_name(state, name), kind) for name, kind in frame.dtypes]


def _trace_columns(state: "State", frame: "DataFrame") -> dict[str, list[dg.TableColumnDep]]:
    return {
        _full_name(state, name): [dg.TableColumnDep(snapshot_inventory.key, _SOURCES.get(name, "value"))]
        for name in frame.columns
    }


def _full_name(state: "State", column: str) -> str:
    return f"{state.operator.label}.{state.name}.{column}"
