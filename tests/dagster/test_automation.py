"""Automation conditions, evaluated as the daemon does, tick by tick."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from dagster._core.definitions.automation_tick_evaluation_context import build_run_requests
from dagster._core.execution.api import create_execution_plan
from dagster._core.loader import LoadingContextForTest

from state_pipelines.dagster import FlinkJob
from state_pipelines.dagster.partitions import describe_savepoint
from state_pipelines.dagster.translation import DESCRIPTION, MIGRATION, NEW_SNAPSHOT, PRIORITY_TAG, TABLES
from state_pipelines.operations.inventory import SnapshotSummary
from tests.dagster.conftest import MIGRATIONS, build

if TYPE_CHECKING:
    from collections.abc import Iterator

# The tester of Dagster selects with an argument of its own, and warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter `include_sources`")

SNAPSHOTS = dg.DynamicPartitionsDefinition(name="snapshots")
NOON = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)


@dg.asset(partitions_def=SNAPSHOTS, automation_condition=NEW_SNAPSHOT)
def profile() -> None:
    """Derived from each snapshot."""


class Automation:
    """The evaluations of `profile`, two minutes apart."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.now = NOON
        self.cursor: dg.AssetDaemonCursor | None = None

    def tick(self, hours: int = 0) -> set[str]:
        """Return the partitions that the next evaluation requests."""
        self.now += timedelta(minutes=2, hours=hours)
        result = dg.evaluate_automation_conditions(
            defs=[profile], instance=self.instance, cursor=self.cursor, evaluation_time=self.now
        )
        self.cursor = result.cursor
        return {str(key) for key in result.get_requested_partitions(profile.key)}

    def end_run(self, key: str, status: dg.DagsterRunStatus) -> None:
        """Plan the asset for a partition in a run, and give the run a status, without a materialisation."""
        job = dg.Definitions(assets=[profile]).resolve_implicit_global_asset_job_def()
        self.instance.create_run_for_job(
            job, execution_plan=create_execution_plan(job), status=status, tags={"dagster/partition": key}
        )


@pytest.fixture
def automation() -> Iterator[Automation]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Automation(instance)


def test_every_snapshot_is_taken_once_those_at_the_first_evaluation_too(automation: Automation) -> None:
    requested = []
    automation.instance.add_dynamic_partitions("snapshots", ["old"])
    for tick in range(5):
        if tick == 2:
            automation.instance.add_dynamic_partitions("snapshots", ["new"])
        requested.append(automation.tick())
    assert requested == [{"old"}, set(), {"new"}, set(), set()]


@pytest.mark.parametrize(
    ("status", "again"),
    [
        (dg.DagsterRunStatus.CANCELED, {"a"}),
        (dg.DagsterRunStatus.FAILURE, set()),
        (dg.DagsterRunStatus.STARTED, set()),
    ],
)
def test_what_was_requested_and_did_not_run_is_requested_again_within_the_hour(
    automation: Automation, status: dg.DagsterRunStatus, again: set[str]
) -> None:
    automation.instance.add_dynamic_partitions("snapshots", ["a"])
    assert automation.tick() == {"a"}
    automation.end_run("a", status)
    assert automation.tick() == set()
    assert automation.tick(hours=1) == again
    assert automation.tick() == set()


def test_a_request_that_made_no_run_is_made_again(automation: Automation) -> None:
    automation.instance.add_dynamic_partitions("snapshots", ["a", "b"])
    assert automation.tick() == {"a", "b"}
    automation.instance.report_runless_asset_event(dg.AssetMaterialization(profile.key, partition="a"))
    assert automation.tick() == set()
    assert automation.tick(hours=1) == {"b"}


# --- the assets of a job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> FlinkJob:
    root = tmp_path_factory.mktemp("automation")
    return FlinkJob(
        name="shop",
        roots=(str(root),),
        results=str(root / "results"),
        tables=str(root / "tables"),
        migrations=str(MIGRATIONS),
    )


@pytest.fixture(scope="module")
def defs(job: FlinkJob) -> dg.Definitions:
    return build(job)


def test_two_new_snapshots_get_a_run_each_and_no_backfill(job: FlinkJob, defs: dg.Definitions) -> None:
    sensors = [defs.resolve_sensor_def(job.prefix(name)) for name in ("automation", "table_automation")]
    graph = defs.resolve_asset_graph()
    requested: list[dg.RunRequest] = []
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("shop_snapshots", ["a", "b"])
        for sensor in sensors:
            assert isinstance(sensor, dg.AutomationConditionSensorDefinition)
            result = dg.evaluate_automation_conditions(
                defs=defs, instance=instance, asset_selection=sensor.asset_selection
            )
            subsets = [each.true_subset for each in result.results if not each.true_subset.is_empty]
            requested += build_run_requests(
                subsets, graph, run_tags=sensor.run_tags, emit_backfills=sensor.emit_backfills
            )
    assert not any(each.requires_backfill_daemon() for each in requested)
    found = {
        (
            str(each.partition_key),
            each.tags[PRIORITY_TAG],
            frozenset(key.path[-1] for key in each.asset_selection or ()),
        )
        for each in requested
    }
    described = {"snapshot_profile", "snapshot_diff", "key_group_balance", "restore_audit", "compatibility_report"}
    assert found == {
        (key, str(priority), frozenset(assets))
        for key in ("a", "b")
        for priority, assets in ((DESCRIPTION, described), (TABLES, {"state_tables"}))
    }


def test_nothing_of_a_snapshot_depends_on_the_inventory(job: FlinkJob, defs: dg.Definitions) -> None:
    graph = defs.resolve_asset_graph()
    children = graph.get(job.key("snapshot_inventory")).child_keys
    assert not [key for key in children if graph.get(key).is_partitioned]


def test_a_new_savepoint_leaves_results_for_older_ones_in_sync(job: FlinkJob, defs: dg.Definitions) -> None:
    from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus

    report = job.key("compatibility_report")
    summary = SnapshotSummary("/savepoint-1", "/", "savepoint-1", None, None, 1, key="savepoint-1@00000000")
    with dg.DagsterInstance.ephemeral() as instance:

        @dg.asset(key=report, partitions_def=job.partitions, deps=[job.key("flink_job")])
        def materialise() -> None:
            pass

        instance.add_dynamic_partitions("shop_snapshots", ["a"])
        assert dg.materialize([materialise], partition_key="a", instance=instance).success
        instance.report_runless_asset_event(describe_savepoint(job, summary))
        graph = dg.Definitions(assets=[materialise, dg.AssetSpec(job.key("flink_job"))]).resolve_asset_graph()
        found = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        assert found.get_status(report, "a") is StaleStatus.FRESH


def test_migrations_run_before_descriptions_and_tables_last(job: FlinkJob, defs: dg.Definitions) -> None:
    migrate = defs.resolve_job_def(job.prefix("migrate_snapshot"))
    assert int(migrate.tags[PRIORITY_TAG]) == MIGRATION > 0 > DESCRIPTION > TABLES
    steps = {each.name: int(each.tags.get(PRIORITY_TAG, 0)) for each in migrate.nodes_in_topological_order}
    first, *_, last = sorted(steps, key=lambda name: -steps[name])
    assert (first, last) == ("shop__compatibility_report", "shop__state_tables")
