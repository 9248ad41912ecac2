"""`state_tables`: the states of a snapshot as Parquet tables."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.assets import flink_job
from state_pipelines.dagster.automation import NEW_SNAPSHOT, TABLES
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import make_table
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.errors import UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from state_pipelines.snapshot import State

NAME = "state_tables"

_COLUMNS = [
    dg.TableColumn("operator"),
    dg.TableColumn("state"),
    dg.TableColumn("kind"),
    dg.TableColumn("rows", "int"),
    dg.TableColumn("path"),
    dg.TableColumn("undecoded", description="why the table contains raw bytes"),
]


def build_state_tables(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `state_tables` of a job."""

    @flink_asset(
        job,
        NAME,
        step=AssetStep.SEE,
        kinds={"flink", "spark", "parquet"},
        deps=[flink_job.NAME],
        automation=NEW_SNAPSHOT,
        priority=TABLES,
    )
    def state_tables(context: dg.AssetExecutionContext, spark: SparkResource) -> Iterator[dg.MaterializeResult[None]]:
        """Each state of a snapshot as a Parquet table, with one row per entry or timer."""
        # Importing Spark takes seconds.
        from state_pipelines.spark.failures import translate_failures
        from state_pipelines.spark.tables import write_parquet

        snapshot = open_partition(context, job)
        tables: list[tuple[str, str, str, int, str, str]] = []
        columns: list[dg.TableColumn] = []
        unread: list[str] = []
        for operator in snapshot.operators:
            survey = operator.survey()
            unread += [str(failure.error) for failure in survey.failures]
            for state in survey.states:
                path = job.storage.name_table(context.partition_key, state)
                undecoded = state.undecoded
                frame = spark.read_state(snapshot, state)
                try:
                    with translate_failures(f"{operator.label}, {state.name} cannot be read"):
                        rows = write_parquet(frame, path)
                except UnsupportedError as error:
                    # Records that the serializer snapshots do not fully describe: write a table of raw bytes.
                    undecoded = error.what
                    frame = spark.read_state(snapshot, state, raw=True)
                    rows = write_parquet(frame, path)
                context.log.info("%s, %s: %d rows in %s", operator.label, state.name, rows, path)
                tables.append((operator.label, state.name, str(state.kind), rows, path, undecoded))
                columns += _name_columns(state, frame)
        yield dg.MaterializeResult(
            metadata={
                "tables": make_table(_COLUMNS, tables),
                "snapshot": dg.MetadataValue.path(snapshot.path),
                "states": len(tables),
                "undecoded": sum(bool(undecoded) for *_, undecoded in tables),
                "unread": unread,
                "dagster/row_count": sum(rows for _, _, _, rows, _, _ in tables),
                "dagster/column_schema": dg.TableSchema(columns),
            },
            data_version=dg.DataVersion(snapshot.fingerprint),
        )

    return state_tables


def _name_columns(state: "State", frame: "DataFrame") -> list[dg.TableColumn]:
    return [dg.TableColumn(_full_name(state, name), kind) for name, kind in frame.dtypes]


def _full_name(state: "State", column: str) -> str:
    return f"{state.operator.label}.{state.name}.{column}"
