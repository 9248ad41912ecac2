"""`state_tables`: the states of a snapshot as Parquet tables; `state_expectations`: their Great Expectations suites."""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` as a class, not as text.

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa

from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob, TableSettings
from state_pipelines.dagster.metadata_values import ExpectationsResource, make_table
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.dagster.translation import NEW_SNAPSHOT, TABLES
from state_pipelines.errors import StateError, UnsupportedError
from state_pipelines.operations.proofs import DESCRIPTIONS, SUITES, ProofReport

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


STATE_TABLES = "state_tables"

DATA_VERSION_TAG = "dagster/data_version"

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
        STATE_TABLES,
        step=AssetStep.SEE,
        kinds={"flink", "spark", "parquet"},
        automation=NEW_SNAPSHOT,
        priority=TABLES,
    )
    def state_tables(
        context: dg.AssetExecutionContext, spark: SparkResource
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetMaterialization]:
        """Each state of a snapshot as a Parquet table, with one row per entry or timer."""
        # Importing Spark takes seconds.
        from state_pipelines.spark.tasks import translate_failures, write_parquet

        snapshot = open_partition(context, job)
        own = {each.key for each in build_state_specs(job)}
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
                columns += name_columns(f"{operator.label}.{state.name}", frame.schema)
                key = name_state(job, operator.label, state.name)
                if key in own:
                    yield dg.AssetMaterialization(
                        key,
                        partition=context.partition_key,
                        metadata={
                            "dagster/uri": str(path),
                            "dagster/table_name": f"{job.name}.{operator.label}.{state.name}",
                            "dagster/row_count": rows,
                            "dagster/column_schema": dg.TableSchema(name_columns("", frame.schema)),
                            "undecoded": undecoded,
                        },
                        tags={DATA_VERSION_TAG: snapshot.fingerprint},
                    )
        yield dg.MaterializeResult(
            metadata={
                "tables": make_table(_COLUMNS, tables),
                "snapshot": dg.MetadataValue.path(snapshot.path),
                "states": len(tables),
                "undecoded": sum(bool(undecoded) for *_, undecoded in tables),
                "unread": unread,
                "dagster/row_count": sum(rows for _, _, _, rows, _, _ in tables),
                "dagster/column_schema": dg.TableSchema(columns),
                "dagster/uri": job.storage.name_tables(context.partition_key),
            },
            data_version=dg.DataVersion(snapshot.fingerprint),
        )

    return state_tables


def build_state_specs(job: FlinkJob) -> list[dg.AssetSpec]:
    """Build an external asset for each state, which the runs of `state_tables` materialise.

    The states are those in the field `tables`, or else those of the newest snapshot in the stored inventory; there are
    none before the first inventory.
    """
    if not isinstance(job.tables, TableSettings) or job.tables.per != "state":
        return []
    states = [each.rpartition("/")[::2] for each in job.tables.states] or list(_find_states(job))
    return [
        job.specify(
            STATE_TABLES,
            description=f"The table of the state {state} of the operator {operator}.",
            kinds={"flink", "parquet"},
            deps=[job.key(STATE_TABLES)],
            partitions_def=job.partitions,
            metadata={"state-pipelines/operator": operator, "state-pipelines/state": state},
            automation_condition=None,
        ).replace_attributes(key=name_state(job, operator, state), automation_condition=None)
        for operator, state in states
    ]


def _find_states(job: FlinkJob) -> Iterator[tuple[str, str]]:
    newest = next((each for each in job.storage.read_inventory() if each.key), None)
    if newest is None:
        return
    try:
        snapshot = job.storage.open(newest.path)
        for operator in snapshot.operators:
            for state in operator.survey().states:
                yield operator.label, state.name
    except StateError as error:
        text = "The states of the job %s are not known, so that they have no assets: %s"
        dg.get_dagster_logger().warning(text, job.name, error)


def name_state(job: FlinkJob, operator: str, state: str) -> dg.AssetKey:
    """Return the key of the asset of a state; its operator is given by its label."""
    return dg.AssetKey([*job.key(STATE_TABLES).path, *(re.sub(r"[^\w.-]", "_", each) for each in (operator, state))])


def name_columns(prefix: str, schema: "StructType | pa.Schema") -> list[dg.TableColumn]:
    """Return the columns of a table, and the fields of those that are structs, such as `value.amount`."""
    columns = []
    for name, kind, fields in _list_fields(schema):
        full = f"{prefix}.{name}" if prefix else name
        columns.append(dg.TableColumn(full, kind))
        columns += [dg.TableColumn(f"{full}.{field}", inner) for field, inner in fields]
    return columns


def _list_fields(schema: "StructType | pa.Schema") -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    if isinstance(schema, pa.Schema):
        for each in schema:
            inner = list(each.type) if pa.types.is_struct(each.type) else []
            yield each.name, str(each.type), [(field.name, str(field.type)) for field in inner]
        return
    for each in schema.fields:
        inner = getattr(each.dataType, "fields", [])
        yield each.name, each.dataType.simpleString(), [(one.name, one.dataType.simpleString()) for one in inner]


STATE_EXPECTATIONS = "state_expectations"


def build_state_expectations(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `state_expectations` of a job with a directory of suites."""

    @flink_asset(
        job,
        STATE_EXPECTATIONS,
        step=AssetStep.JUDGE,
        kinds={"flink", "spark", "greatexpectations"},
        checks={SUITES: DESCRIPTIONS[SUITES]},
    )
    def state_expectations(
        context: dg.AssetExecutionContext, spark: SparkResource, expectations: ExpectationsResource
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """The rows of each state that has a suite, validated by Great Expectations."""
        from state_pipelines.spark.expectations import find_project, load_suites, run_suites  # Imports Spark.

        assert job.expectations is not None
        snapshot = open_partition(context, job)
        suites = load_suites(job.expectations)
        results = run_suites(
            spark.session,
            snapshot,
            suites,
            project=find_project(job.expectations, job.data_docs),
            title=context.partition_key,
        )
        rows = sum(len(check.rows) for check in results.checks)
        yield dg.MaterializeResult(
            asset_key=job.key(STATE_EXPECTATIONS),
            metadata={
                "suites": [suite.name for suite in suites],
                "snapshot": dg.MetadataValue.path(snapshot.path),
                "failed": sum(not check.ok for check in results.checks),
                "example rows": rows,
                **({"data docs": dg.MetadataValue.url(results.data_docs)} if results.data_docs else {}),
            },
            data_version=dg.DataVersion(snapshot.fingerprint),
        )
        yield from expectations.report(ProofReport("", "", 0, 0, results.checks), job.key(STATE_EXPECTATIONS))

    return state_expectations
