"""The plan of retention, its application, the schedule and the sensor, without Spark."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
import yaml
from pydantic import ValidationError

from state_pipelines.dagster import FlinkJob, apply_retention, pin, verify
from state_pipelines.dagster import plan_retention as plan_retention_op
from state_pipelines.dagster.job_settings import PlanApplication
from state_pipelines.dagster.sensors import plan_run
from state_pipelines.errors import UsageError
from state_pipelines.operations.requests import parse_request
from state_pipelines.operations.retention import list_quarantine, plan_retention
from state_pipelines.operations.retention.own_directory import read_pins
from state_pipelines.storage import resolve
from tests.dagster.conftest import ROOT, build
from tests.operations.retention.tree import Tree, make_tree, write_checkpoint
from tests.operations.retention.trees import rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POLICY = {"checkpoints": {"last": 2}, "price": 0.02}


@dataclass(frozen=True)
class Jobs:
    """A job with the snapshots of a tree."""

    tree: Tree
    instance: dg.DagsterInstance
    job: FlinkJob

    def change(self, **settings: Any) -> Jobs:
        """The same with other settings of retention."""
        fields = self.job.model_dump() | {"retention_runs": settings}
        return replace(self, job=FlinkJob(**fields))

    def plan(self) -> dg.ExecuteInProcessResult:
        return self.run("plan_retention", {})

    def apply(self, fingerprint: str, *, scheduled: bool = False) -> dg.ExecuteInProcessResult:
        config = {"fingerprint": fingerprint, "scheduled": scheduled}
        return self.run("apply_retention", {"ops": {self.job.op("applied_retention"): {"config": config}}})

    def run(self, name: str, config: dict[str, Any]) -> dg.ExecuteInProcessResult:
        found = build(self.job).resolve_job_def(self.job.prefix(name))
        return found.execute_in_process(instance=self.instance, raise_on_error=False, run_config=config)

    def is_plan_applied(self) -> bool:
        """Return the newest result of the check of the plan."""
        key = dg.AssetCheckKey(self.job.key("retention_plan"), "plan_is_applied")
        found = self.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])
        evaluation = found[key].evaluation
        assert evaluation is not None
        return evaluation.passed

    def tick(self) -> dg.RunRequest | dg.SkipReason:
        """Evaluate the sensor that applies plans."""
        sensor = build(self.job).resolve_sensor_def(self.job.prefix("agreed_plans"))
        with dg.build_sensor_context(instance=self.instance) as context:
            found = sensor(context)
        assert isinstance(found, dg.RunRequest | dg.SkipReason)
        return found

    @property
    def fingerprint(self) -> str:
        return plan_retention(self.tree.roots, self.job.policy).fingerprint


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    tree = make_tree(tmp_path, counts=(5, 3, 3))
    job = FlinkJob(name="shop", roots=tuple(tree.roots), results=str(tmp_path / "results"), retention=POLICY)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Jobs(tree, instance, job)


def metadata_of(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    (event,) = result.asset_materializations_for_node(f"shop__{asset}")
    return {name: value.value for name, value in event.metadata.items()}


def checks_of(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def state_files(tree: Tree) -> set[Path]:
    return {path for path in tree.files() if "_retention" not in path.parts}


def needed(tree: Tree) -> set[Path]:
    kept = [each for name in ("first", "second", "third") for each in tree.of(name)[-2:]] + tree.of("")
    return {file for snapshot in kept for file in snapshot.files} | tree.young | tree.foreign


class TestPlan:
    def test_nothing_is_deleted(self, jobs: Jobs) -> None:
        before = state_files(jobs.tree)
        assert jobs.plan().success
        assert state_files(jobs.tree) == before

    def test_numbers_chart_over_time(self, jobs: Jobs) -> None:
        planned = plan_retention(jobs.tree.roots, jobs.job.policy)
        metadata = metadata_of(jobs.plan(), "retention_plan")
        assert metadata["fingerprint"] == planned.fingerprint
        assert metadata["bytes to delete"] == planned.bytes
        assert metadata["snapshots to delete"] == 5
        by_kind = {name: value for name, value in metadata.items() if name.startswith("bytes to delete: ")}
        assert sum(by_kind.values()) == planned.bytes
        assert by_kind["bytes to delete: shared"] > 0
        assert metadata["saved per month"] == pytest.approx(planned.bytes / 2**30 * 0.02, rel=0.05)

    def test_a_check_asks_for_the_application(self, jobs: Jobs) -> None:
        check = checks_of(jobs.plan())["plan_is_applied"]
        assert not check.passed
        assert check.severity is dg.AssetCheckSeverity.WARN
        assert "shop_apply_retention" in str(check.metadata["how to apply"].value)
        assert check.metadata["fingerprint"].value == jobs.fingerprint

    def test_the_check_passes_when_nothing_goes(self, jobs: Jobs) -> None:
        jobs.apply(jobs.fingerprint)
        assert checks_of(jobs.plan())["plan_is_applied"].passed

    def test_an_unreadable_snapshot_is_a_warning(self, jobs: Jobs) -> None:
        (jobs.tree.of("first")[0].path / "_metadata").write_bytes(b"damaged")
        check = checks_of(jobs.plan())["references_are_known"]
        assert not check.passed
        assert "chk-1" in str(check.metadata["sample"].value)


class TestApplication:
    def test_what_the_plan_names_is_gone(self, jobs: Jobs) -> None:
        planned = plan_retention(jobs.tree.roots, jobs.job.policy)
        jobs.plan()
        result = jobs.apply(planned.fingerprint)
        assert state_files(jobs.tree) == needed(jobs.tree)
        metadata = metadata_of(result, "applied_retention")
        assert (metadata["paths"], metadata["bytes"]) == (len(planned.delete), planned.bytes)
        assert {name: check.passed for name, check in checks_of(result).items()} == {
            "second_plan_agrees": True,
            "everything_planned_is_done": True,
        }

    def test_the_plan_is_applied_and_its_check_passes(self, jobs: Jobs) -> None:
        jobs.plan()
        fingerprint = jobs.fingerprint
        assert not jobs.is_plan_applied()
        jobs.change(max_paths=20).apply(fingerprint)
        assert not jobs.is_plan_applied()
        jobs.apply(fingerprint)
        assert jobs.is_plan_applied()

    def test_the_application_of_another_plan_is_not_that_of_the_newest(self, jobs: Jobs, tmp_path: Path) -> None:
        other = jobs.fingerprint
        orphan = min(jobs.tree.orphans)
        orphan.rename(tmp_path / "orphan")
        jobs.plan()
        (tmp_path / "orphan").rename(orphan)
        assert jobs.apply(other).success
        assert not jobs.is_plan_applied()

    def test_another_plan_fails_the_run_and_says_what_changed(self, jobs: Jobs) -> None:
        jobs.plan()
        fingerprint = jobs.fingerprint
        orphan = min(jobs.tree.orphans)
        orphan.write_bytes(b"young again")
        before = state_files(jobs.tree)
        result = jobs.apply(fingerprint)
        assert not result.success
        assert state_files(jobs.tree) == before
        (failure,) = [event for event in result.all_events if event.is_step_failure]
        assert orphan.name in str(failure.event_specific_data)

    def test_a_limit_is_a_warning_and_the_next_run_continues(self, jobs: Jobs) -> None:
        fingerprint = jobs.fingerprint
        limited = jobs.change(max_paths=20)
        result = limited.apply(fingerprint)
        check = checks_of(result)["everything_planned_is_done"]
        assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert metadata_of(result, "applied_retention")["paths"] == 20
        jobs.apply(fingerprint)
        assert state_files(jobs.tree) == needed(jobs.tree)

    def test_nothing_goes_while_the_newest_snapshot_is_damaged(self, jobs: Jobs) -> None:
        newest = jobs.tree.of("second")[-1]
        fingerprint = jobs.fingerprint
        for victim in newest.own - {newest.path / "_metadata"}:
            times = victim.stat()
            victim.write_bytes(b"\xff" * times.st_size)
            os.utime(victim, (times.st_atime, times.st_mtime))
        before = state_files(jobs.tree)
        result = jobs.apply(fingerprint)
        assert not result.success
        assert state_files(jobs.tree) == before
        (failure,) = [event for event in result.all_events if event.is_step_failure]
        assert "damaged" in str(failure.event_specific_data)

    def test_quarantined_files_are_purged_by_a_later_run(self, jobs: Jobs) -> None:
        roots = [resolve(root) for root in jobs.tree.roots]
        kept_long = jobs.change(quarantine="7d")
        kept_long.apply(jobs.fingerprint)
        assert state_files(jobs.tree) == needed(jobs.tree)
        assert list_quarantine(roots)
        purged = metadata_of(jobs.change(quarantine="0s").apply(jobs.fingerprint), "applied_retention")
        assert purged["purged from quarantine"] > 0
        assert list_quarantine(roots) == []


def outputs_of(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = (each for each in result.all_events if each.event_type_value == "STEP_OUTPUT")
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


class TestRestore:
    """Snapshots that come back from quarantine."""

    def restore(self, jobs: Jobs, what: str) -> dg.ExecuteInProcessResult:
        name, config = plan_run(jobs.job, parse_request({"operation": "restore", "snapshot": what}))
        return jobs.run(name, dict(config))

    @pytest.fixture
    def quarantined(self, jobs: Jobs) -> Jobs:
        kept = jobs.change(quarantine="7d")
        assert kept.apply(jobs.fingerprint).success
        return kept

    @pytest.mark.parametrize("way", ["path", "end of the path"])
    def test_a_restored_snapshot_is_pinned_and_the_next_plan_keeps_it(self, quarantined: Jobs, way: str) -> None:
        snapshot = quarantined.tree.of("first")[0]
        assert not snapshot.path.exists()
        parts = snapshot.path.parts
        missing = snapshot.files - state_files(quarantined.tree)
        result = self.restore(quarantined, str(snapshot.path) if way == "path" else "/".join(parts[-2:]))
        assert result.output_for_node("shop_restore") == [str(snapshot.path)]
        assert snapshot.files <= state_files(quarantined.tree)
        metadata = outputs_of(result)
        assert (metadata["pinned"], metadata["files"]) == (1, len(missing))
        root = next(each for each in quarantined.tree.roots if str(snapshot.path).startswith(each))
        (pinned,) = read_pins(resolve(root))
        assert pinned.path == str(snapshot.path.relative_to(root))
        assert "restored from quarantine" in pinned.reason
        before = state_files(quarantined.tree)
        assert quarantined.apply(quarantined.fingerprint).success
        assert state_files(quarantined.tree) == before

    def test_a_name_that_several_snapshots_have_is_refused_with_their_paths(self, quarantined: Jobs) -> None:
        result = self.restore(quarantined, "chk-1")
        (failure,) = [each for each in result.all_events if each.is_step_failure]
        message = failure.step_failure_data.user_failure_data
        assert message is not None
        assert "snapshots in quarantine have the name chk-1" in str(message.description)
        assert str(quarantined.tree.of("first")[0].path) in str(message.description)
        assert not any(read_pins(resolve(root)) for root in quarantined.tree.roots)

    def test_a_file_that_cannot_come_back_is_a_failure_that_names_it(self, quarantined: Jobs) -> None:
        snapshot = quarantined.tree.of("first")[0]
        taken = next(each for each in sorted(snapshot.own) if each.name != "_metadata")
        taken.parent.mkdir(parents=True, exist_ok=True)
        taken.write_bytes(b"another file")
        result = self.restore(quarantined, str(snapshot.path))
        (failure,) = [each for each in result.all_events if each.is_step_failure]
        assert taken.name in str(failure.event_specific_data)

    def test_a_request_for_a_restore_waits_for_no_partition(self, quarantined: Jobs, tmp_path: Path) -> None:
        directory = tmp_path / "requests"
        directory.mkdir()
        path = str(quarantined.tree.of("first")[0].path)
        (directory / "back.yaml").write_text(f"{{operation: restore, snapshot: {path}, reason: needed}}")
        job = quarantined.job.model_copy(update={"requests": str(directory)})
        sensor = build(job).resolve_sensor_def("shop_requests")
        with dg.build_sensor_context(instance=quarantined.instance) as context:
            found = sensor(context)
        assert isinstance(found, dg.SensorResult)
        (request,) = found.run_requests or ()
        assert (request.job_name, request.partition_key) == ("shop_restore_snapshot", None)
        assert request.run_config == {"ops": {"shop_restore": {"config": {"snapshot": path, "reason": "needed"}}}}


class TestOps:
    """The same as ops of a composed job."""

    def test_a_plan_is_made_and_applied_by_one_job(self, jobs: Jobs) -> None:
        @dg.job(resource_defs={"flink_job": jobs.job})
        def clean_up() -> None:
            apply_retention(plan_retention_op())

        result = clean_up.execute_in_process(instance=jobs.instance)
        assert len(result.output_for_node("plan_retention")) == 16
        assert state_files(jobs.tree) == needed(jobs.tree)

    def test_a_pin_returns_the_snapshot_for_the_ops_that_follow(self, jobs: Jobs) -> None:
        snapshot = jobs.tree.of("second")[0]

        @dg.job(resource_defs={"flink_job": jobs.job})
        def keep() -> None:
            verify(pin())

        ops = {"pin": {"inputs": {"snapshot": str(snapshot.path)}, "config": {"reason": "release"}}}
        result = keep.execute_in_process(instance=jobs.instance, run_config={"ops": ops})
        assert result.output_for_node("verify") == str(snapshot.path)
        jobs.apply(jobs.fingerprint)
        assert snapshot.path.exists()

    def test_a_damaged_snapshot_ends_the_job(self, jobs: Jobs) -> None:
        snapshot = jobs.tree.of("second")[-1]
        next(each for each in sorted(snapshot.own) if each.name != "_metadata").unlink()

        @dg.job(resource_defs={"flink_job": jobs.job})
        def keep() -> None:
            pin(verify())

        ops = {"verify": {"inputs": {"snapshot": str(snapshot.path)}, "config": {"depth": "files"}}}
        result = keep.execute_in_process(instance=jobs.instance, run_config={"ops": ops}, raise_on_error=False)
        (failure,) = [each for each in result.all_events if each.is_step_failure]
        assert failure.step_key == "verify"
        assert "damaged" in str(failure.event_specific_data)
        assert not any(read_pins(resolve(root)) for root in jobs.tree.roots)


class TestScheduled:
    def test_only_a_scheduled_job_has_the_sensor(self, jobs: Jobs) -> None:
        names = {sensor.name for sensor in build(jobs.job).sensors or ()}
        assert "shop_agreed_plans" not in names
        names = {sensor.name for sensor in build(jobs.change(apply="scheduled").job).sensors or ()}
        assert "shop_agreed_plans" in names

    @pytest.mark.parametrize(
        ("apply", "status"),
        [("manual", dg.DefaultScheduleStatus.STOPPED), ("scheduled", dg.DefaultScheduleStatus.RUNNING)],
    )
    def test_plans_are_made_by_themselves_for_a_scheduled_job(
        self, jobs: Jobs, apply: str, status: dg.DefaultScheduleStatus
    ) -> None:
        schedule = build(jobs.change(apply=apply).job).resolve_schedule_def("shop_daily_retention_plan")
        assert schedule.default_status is status

    def test_without_a_plan_nothing_is_applied(self, jobs: Jobs) -> None:
        assert isinstance(jobs.change(apply="scheduled").tick(), dg.SkipReason)

    def test_a_reported_materialization_is_no_plan(self, jobs: Jobs) -> None:
        key = jobs.job.key("retention_plan")
        jobs.instance.report_runless_asset_event(dg.AssetMaterialization(key))
        assert isinstance(jobs.change(apply="scheduled").tick(), dg.SkipReason)
        assert jobs.apply(jobs.fingerprint).success

    def test_nothing_is_applied_during_the_grace_period(self, jobs: Jobs) -> None:
        scheduled = jobs.change(apply="scheduled", grace="1h")
        scheduled.plan()
        assert isinstance(scheduled.tick(), dg.SkipReason)

    def test_the_plan_is_applied_after_the_grace_period(self, jobs: Jobs) -> None:
        scheduled = jobs.change(apply="scheduled", grace="0s")
        scheduled.plan()
        request = scheduled.tick()
        assert isinstance(request, dg.RunRequest)
        assert scheduled.run("apply_retention", dict(request.run_config)).success
        assert state_files(jobs.tree) == needed(jobs.tree)

    def test_a_plan_is_requested_once(self, jobs: Jobs) -> None:
        scheduled = jobs.change(apply="scheduled", grace="0s")
        scheduled.plan()
        first, second = scheduled.tick(), scheduled.tick()
        assert isinstance(first, dg.RunRequest)
        assert isinstance(second, dg.RunRequest)
        assert first.run_key == second.run_key

    def test_a_plan_that_has_changed_is_a_warning_and_nothing_is_deleted(self, jobs: Jobs) -> None:
        scheduled = jobs.change(apply="scheduled", grace="0s")
        scheduled.plan()
        request = scheduled.tick()
        assert isinstance(request, dg.RunRequest)
        min(jobs.tree.orphans).write_bytes(b"young again")
        before = state_files(jobs.tree)
        result = scheduled.run("apply_retention", dict(request.run_config))
        assert result.success
        assert state_files(jobs.tree) == before
        assert result.asset_materializations_for_node("shop__applied_retention") == []
        check = checks_of(result)["second_plan_agrees"]
        assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)

    def test_a_checkpoint_written_between_both_plans_changes_nothing(self, jobs: Jobs) -> None:
        scheduled = jobs.change(apply="scheduled", grace="0s")
        scheduled.plan()
        request = scheduled.tick()
        assert isinstance(request, dg.RunRequest)
        before = state_files(jobs.tree)
        kept = needed(jobs.tree)
        new = write_checkpoint(jobs.tree, "first", 900, datetime.now(UTC))
        result = scheduled.run("apply_retention", dict(request.run_config))
        assert {name: check.passed for name, check in checks_of(result).items()} == {
            "second_plan_agrees": True,
            "everything_planned_is_done": True,
        }
        assert kept < before
        assert state_files(jobs.tree) == kept | new.files

    def test_a_path_that_a_new_checkpoint_references_stops_the_application(self, jobs: Jobs) -> None:
        scheduled = jobs.change(apply="scheduled", grace="0s")
        scheduled.plan()
        request = scheduled.tick()
        assert isinstance(request, dg.RunRequest)
        orphan = min(each for each in jobs.tree.orphans if each.parent.name == "shared")
        new = write_checkpoint(jobs.tree, "first", 900, datetime.now(UTC))
        shared = str(min(new.files - new.own))
        rewrite(new.path / "_metadata", lambda path: path.replace(shared, str(orphan)))
        before = state_files(jobs.tree)
        result = scheduled.run("apply_retention", dict(request.run_config))
        assert state_files(jobs.tree) == before
        check = checks_of(result)["second_plan_agrees"]
        assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert f"{orphan} would stay now: referenced by {new.path}" in str(check.metadata["changes"].value)

    def test_when_nothing_goes_nothing_is_requested(self, jobs: Jobs) -> None:
        scheduled = jobs.change(apply="scheduled", grace="0s")
        scheduled.apply(jobs.fingerprint)
        scheduled.plan()
        assert isinstance(scheduled.tick(), dg.SkipReason)


def test_the_shipped_deployment_applies_a_small_plan_by_itself(tmp_path: Path) -> None:
    text = (ROOT / "assets/defs/customers/defs.yaml").read_text(encoding="utf-8")
    attributes = yaml.safe_load(re.sub(r"\{\{ env\('\w+', '([^']*)'\) \}\}", r"\1", text))["attributes"]
    # Its stream has been running for a while, and is elsewhere.
    tree = make_tree(tmp_path / "stream", counts=(5, 3, 3))
    attributes["stream"] |= {"directory": str(tmp_path / "stream")}
    job = FlinkJob(**attributes | {"results": str(tmp_path / "results")})
    assert job.retention_runs.apply is PlanApplication.SCHEDULED
    assert {each.default_status for each in (build(job).schedules or ()) if "retention" in each.name} == {
        dg.DefaultScheduleStatus.RUNNING
    }
    with dg.DagsterInstance.ephemeral() as instance:
        shipped = Jobs(tree, instance, job)
        planned = shipped.plan()
        assert planned.success
        # The hour of its grace period is over at once here.
        settings = job.retention_runs.model_copy(update={"grace": "0s"})
        shipped = replace(shipped, job=job.model_copy(update={"retention_runs": settings}))
        request = shipped.tick()
        assert isinstance(request, dg.RunRequest)
        applied = shipped.run("apply_retention", dict(request.run_config))
        assert applied.success
        (event,) = applied.asset_materializations_for_node("customers__applied_retention")
        assert event.metadata["paths"].value
        assert shipped.is_plan_applied()
    for name in ("first", "second", "third"):
        kept = [each.path.exists() for each in tree.of(name)]
        assert kept == [False] * (len(kept) - 3) + [True] * 3
    # They are in quarantine, for a week.
    assert list_quarantine([resolve(root) for root in tree.roots])


@pytest.mark.parametrize(
    ("field", "value"),
    [("grace", "soon"), ("quarantine", "7 moons"), ("max_bytes", "much"), ("max_paths", 0), ("apply", "always")],
)
def test_wrong_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        FlinkJob(name="shop", roots=("a",), results="b", retention_runs={field: value})  # type: ignore[arg-type]


class TestRequests:
    def test_a_request_without_a_fingerprint_plans(self, jobs: Jobs) -> None:
        name, config = plan_run(jobs.job, parse_request({"operation": "retain"}))
        result = jobs.run(name, dict(config))
        assert metadata_of(result, "retention_plan")["fingerprint"] == jobs.fingerprint

    def test_a_request_with_the_fingerprint_applies(self, jobs: Jobs) -> None:
        name, config = plan_run(jobs.job, parse_request({"operation": "retain", "apply": jobs.fingerprint}))
        assert jobs.run(name, dict(config)).success
        assert state_files(jobs.tree) == needed(jobs.tree)

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ({"operation": "retain", "policy": {"keep": "all"}}, "a request cannot set the policy"),
        ],
    )
    def test_what_is_not_carried_out_is_refused(self, jobs: Jobs, content: dict[str, Any], reason: str) -> None:
        with pytest.raises(UsageError, match=reason):
            plan_run(jobs.job, parse_request(content))
