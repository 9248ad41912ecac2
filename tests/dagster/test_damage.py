"""Damaged and removed snapshots, and steps that fail: which partitions, checks and tags show it."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from state_pipelines.dagster import FlinkJob
from state_pipelines.dagster.assets.snapshots import build_restore_audit
from state_pipelines.dagster.failures import ERROR_TAG, NOT_EVALUATED, OPERATOR_TAG, read_outcome, reporting_failures
from state_pipelines.dagster.flink_asset import SKIPPED_TAG, AssetStep, flink_asset
from state_pipelines.errors import FormatError, NotFoundError, StorageError, Where
from state_pipelines.operations.inventory import make_partition_key
from tests.dagster.conftest import SAVEPOINTS

CHECKPOINT = "0123456789abcdef0123456789abcdef/chk-7"


@pytest.fixture
def job(tmp_path: Path) -> FlinkJob:
    (tmp_path / "snapshots").mkdir()
    return FlinkJob(name="shop", roots=(str(tmp_path / "snapshots"),), results=str(tmp_path / "results"))


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def add(job: FlinkJob, name: str, age: int = 0, release: str = "2.2") -> tuple[str, Path]:
    """Copy a snapshot below the root of a job; return its key and its directory."""
    target = Path(job.roots[0], name)
    shutil.copytree(SAVEPOINTS[release], target)
    os.utime(target / "_metadata", (1_700_000_000 - age,) * 2)
    return make_partition_key(job.storage.open(str(target))), target


def damage(directory: Path) -> None:
    next(each for each in sorted(directory.iterdir()) if each.name != "_metadata").unlink()


def audit(job: FlinkJob, instance: dg.DagsterInstance, key: str) -> dg.ExecuteInProcessResult:
    instance.add_dynamic_partitions(str(job.partitions.name), [key])
    return dg.materialize([build_restore_audit(job)], partition_key=key, instance=instance, raise_on_error=False)


def test_latest_passes_over_snapshots_that_cannot_be_restored_and_names_them(job: FlinkJob) -> None:
    sound, directory = add(job, "savepoint-df4606-000000000001", age=3)
    damaged, broken = add(job, "savepoint-df4606-000000000002", age=2, release="1.20")
    damage(broken)
    _, unreadable = add(job, "savepoint-df4606-000000000003", age=1)
    (unreadable / "_metadata").write_bytes(b"no metadata")
    warnings: list[str] = []
    assert job.storage.find_named("latest", warn=warnings.append) == (sound, str(directory))
    first, second = warnings
    assert first.startswith(f"latest is not {unreadable}: it cannot be read: ")
    assert second.startswith(f"latest is not {damaged}: it is damaged: ")
    # By its name, it is what was asked for.
    assert job.storage.find_named(broken.name) == (damaged, str(broken))
    shutil.rmtree(directory)
    with pytest.raises(NotFoundError, match="the newest 2 snapshots are damaged or cannot be read"):
        job.storage.find_named("latest")


def test_latest_passes_over_damage_that_only_the_audit_has_found(job: FlinkJob, instance: dg.DagsterInstance) -> None:
    sound, directory = add(job, "savepoint-df4606-000000000001", age=2)
    key, broken = add(job, "savepoint-df4606-000000000002", age=1, release="1.20")
    for file in broken.iterdir():
        if file.name != "_metadata":
            file.write_bytes(bytes(file.stat().st_size))
    assert job.storage.find_named("latest") == (key, str(broken))
    assert not audit(job, instance, key).success
    report = json.loads(Path(str(job.storage.locate_report("restore_audit", key))).read_text())
    assert report["verdict"] == "damaged"
    warnings: list[str] = []
    assert job.storage.find_named("latest", warn=warnings.append) == (sound, str(directory))
    assert warnings == [f"latest is not {key}: its newest audit found damage; audit it again if it was repaired"]


def test_a_checkpoint_that_flink_has_removed_is_skipped_with_the_reason(
    job: FlinkJob, instance: dg.DagsterInstance
) -> None:
    key, directory = add(job, CHECKPOINT)
    savepoint, other = add(job, "savepoint-df4606-000000000001")
    job.storage.update_inventory()
    shutil.rmtree(directory.parent)
    shutil.rmtree(other)
    for again in (False, True):
        result = audit(job, instance, key)
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        assert result.success
        assert run.tags[SKIPPED_TAG].startswith("the checkpoint was removed, as Flink removes those that newer ones")
        assert ERROR_TAG not in run.tags
        assert not result.get_asset_check_evaluations()
        (event,) = result.get_asset_materialization_events()
        metadata = {name: each.value for name, each in event.materialization.metadata.items()}
        assert (event.partition, metadata) == (key, {"skipped": run.tags[SKIPPED_TAG]})
        # The second time, the inventory has its key only.
        assert again or not job.storage.update_inventory().inventory.find(key)
    # Nobody but a person deletes a savepoint.
    assert not audit(job, instance, savepoint).success


def test_a_step_that_fails_shows_as_failed_only_the_checks_that_failed(
    job: FlinkJob, instance: dg.DagsterInstance
) -> None:
    texts = {"first": "Passed before.", "second": "Failed before.", "third": "Never evaluated."}
    attempts = []

    @flink_asset(job, "proof", step=AssetStep.SEE, kinds={"flink"}, checks=texts, partitioned=False)
    def proof(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckResult]:
        attempts.append(context.retry_number)
        if context.retry_number == 0:
            raise StorageError("reset", transient=True)
        yield dg.AssetCheckResult(asset_key=job.key("proof"), check_name="first", passed=True)
        yield dg.AssetCheckResult(asset_key=job.key("proof"), check_name="second", passed=False)
        raise FormatError("the magic number is wrong at s3://user:secretpw1@bucket/x")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("state_pipelines.dagster.failures.FIRST_WAIT", 0)
        result = dg.materialize([proof], instance=instance, raise_on_error=False)
    assert attempts == [0, 1]
    assert not result.success
    found = {each.check_name: each for each in result.get_asset_check_evaluations()}
    assert {name: (each.passed, each.severity.value) for name, each in found.items()} == {
        "first": (True, "ERROR"),
        "second": (False, "ERROR"),
        "third": (False, "WARN"),
    }
    reason = str(found["third"].metadata[NOT_EVALUATED].value)
    assert "the magic number is wrong" in reason
    assert "secretpw1" not in reason
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert set(read_outcome(instance, run).failed_checks) == {"second"}


def test_a_re_execution_does_not_keep_the_error_of_the_run_before(instance: dg.DagsterInstance) -> None:
    error: FormatError | None = FormatError("the magic number is wrong")

    @dg.op
    @reporting_failures
    def read(context: dg.OpExecutionContext) -> None:
        if error is not None:
            raise error

    @dg.op
    @reporting_failures
    def log(context: dg.OpExecutionContext) -> None:
        pass

    @dg.job
    def nightly() -> None:
        read()
        log()

    def execute(**tags: str) -> dict[str, str]:
        result = nightly.execute_in_process(instance=instance, raise_on_error=False, tags=tags)
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        return {name: run.tags[name] for name in (ERROR_TAG, OPERATOR_TAG) if name in run.tags}

    first = execute()
    assert first == {ERROR_TAG: "FormatError"}
    parent = instance.get_runs(limit=1)[0].run_id
    # As Dagster does it: the tags of the run before, and which one that was.
    lineage = {"dagster/parent_run_id": parent, "dagster/root_run_id": parent}
    assert execute(**first, **{OPERATOR_TAG: "orders"}, **lineage) == {ERROR_TAG: "FormatError", OPERATOR_TAG: ""}
    error = FormatError("the magic number is wrong", where=Where(operator="prices"))
    assert execute(**first, **lineage) == {ERROR_TAG: "FormatError", OPERATOR_TAG: "prices"}
    error = None
    assert execute(**first, **lineage) == {ERROR_TAG: ""}
    assert execute(**first) == first
