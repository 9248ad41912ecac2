"""Flink jobs without a server: in a temporary directory for tests, and in the process of the demo."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.dagster.builder import build_flink_job
from state_pipelines.dagster.failures import NOT_EVALUATED
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.jobs import MIGRATE
from state_pipelines.operations.inventory import make_partition_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.snapshot import Snapshot


@dataclass(frozen=True)
class TestJob:
    """A Flink job with directories and an instance of its own.

    Attributes:
        job: the Flink job.
        instance: an ephemeral instance, in which each snapshot has its partition.
        keys: partition keys of the snapshots, in the order in which they were given.
        others: further definitions of the code location, such as the assets that are tested.
    """

    # Tell pytest that this class is not a test.
    __test__ = False

    job: FlinkJob
    instance: dg.DagsterInstance
    keys: tuple[str, ...]
    others: tuple[dg.Definitions, ...] = field(default=())

    @property
    def defs(self) -> dg.Definitions:
        """The definitions of the job and the others; runs are in the current process."""
        return dg.Definitions.merge(
            build_flink_job(self.job), *self.others, dg.Definitions(executor=dg.in_process_executor)
        )

    def having(self, *others: dg.Definitions) -> TestJob:
        """Return the job with further definitions in its code location."""
        return TestJob(self.job, self.instance, self.keys, (*self.others, *others))

    def open(self, key: str) -> Snapshot:
        """Open the snapshot of a partition."""
        return self.job.storage.find(key)

    def run(self, job: str, key: str | None = None, **config: Mapping[str, Any]) -> dg.ExecuteInProcessResult:
        """Run a job of the Flink job, such as `migrate_snapshot`; failures are in the result.

        Args:
            job: its name, without that of the Flink job.
            key: the partition, for jobs that run for a snapshot.
            config: configuration by name of the asset.
        """
        return self.defs.resolve_job_def(self.job.prefix(job)).execute_in_process(
            partition_key=key,
            instance=self.instance,
            raise_on_error=False,
            run_config={"ops": {self.job.op(name): {"config": dict(each)} for name, each in config.items()}},
        )

    def materialize(
        self, assets: Sequence[str | dg.AssetKey], key: str | None = None, **config: Mapping[str, Any]
    ) -> dg.ExecuteInProcessResult:
        """Materialise assets: those of the job by name, others by key; failures are in the result.

        Args:
            assets: names of assets of the Flink job, keys of others.
            key: the partition, for assets per snapshot.
            config: configuration by name of the asset.
        """
        keys = [self.job.key(each) if isinstance(each, str) else each for each in assets]
        defs = dg.Definitions.merge(self.defs, dg.Definitions(jobs=[dg.define_asset_job("materialize", keys)]))
        return defs.resolve_job_def("materialize").execute_in_process(
            partition_key=key,
            instance=self.instance,
            raise_on_error=False,
            run_config={"ops": {self.job.op(name): {"config": dict(each)} for name, each in config.items()}},
        )


def build_test_job(
    directory: str | Path,
    *snapshots: str | Path,
    name: str = "test",
    instance: dg.DagsterInstance | None = None,
    **fields: Any,
) -> TestJob:
    """Build a Flink job whose directories are below a temporary one, such as `tmp_path` of pytest.

    Args:
        directory: an existing directory; `snapshots`, `results`, `tables` and `dagster` are made in it.
        snapshots: directories of savepoints and checkpoints, which are copied below the root of the job.
        name: of the job.
        instance: by default an ephemeral instance, whose logs are in `dagster`.
        fields: further fields of the Flink job, such as `migrations`.
    """
    home = Path(directory)
    root = home / "snapshots"
    root.mkdir(exist_ok=True)
    found = FlinkJob(
        **{
            "name": name,
            "roots": (str(root),),
            "results": str(home / "results"),
            "tables": str(home / "tables"),
            **fields,
        }
    )
    for each in snapshots:
        shutil.copytree(each, root / Path(each).name, dirs_exist_ok=True)
    inventory = found.storage.update_inventory().inventory
    by_name = {each.path.rpartition("/")[2]: each.key for each in inventory}
    keys = tuple(by_name[Path(each).name] for each in snapshots)
    if instance is None:
        # The instance is never disposed of, so keep its files in a directory that the caller removes.
        artifacts = home / "dagster"
        artifacts.mkdir(exist_ok=True)
        instance = dg.DagsterInstance.ephemeral(tempdir=str(artifacts))
    instance.add_dynamic_partitions(str(found.partitions.name), list(keys))
    return TestJob(found, instance, keys)


@dataclass(frozen=True)
class CheckOutcome:
    """The result of one asset check.

    Attributes:
        name: of the check.
        passed: whether it passed.
        description: of the check.
        observed: the observed value.
    """

    name: str
    passed: bool
    description: str
    observed: str


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes:
        success: whether every step succeeded.
        metadata: metadata of each materialised asset, by its name without the prefix of the job.
        checks: results of checks, in execution order.
        failures: messages of failed steps.
    """

    success: bool
    metadata: Mapping[str, Mapping[str, Any]]
    checks: tuple[CheckOutcome, ...]
    failures: tuple[str, ...]


def migrate_snapshot(job: FlinkJob, snapshot: Snapshot, *, home: Path) -> RunResult:
    """Run the job `migrate_snapshot` for one snapshot, with logs and warnings of Dagster switched off.

    Args:
        job: the Flink job.
        snapshot: a snapshot below its roots.
        home: directory for `DAGSTER_HOME`, which must exist; it keeps the history that the UI shows.
    """
    os.environ["DAGSTER_HOME"] = str(home)
    key = make_partition_key(snapshot)
    shared = dg.Definitions(executor=dg.in_process_executor)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), dg.DagsterInstance.get() as instance:
            warnings.simplefilter("ignore")
            instance.add_dynamic_partitions(str(job.partitions.name), [key])
            defs = dg.Definitions.merge(build_flink_job(job), shared)
            result = defs.resolve_job_def(job.prefix(MIGRATE)).execute_in_process(
                instance=instance,
                partition_key=key,
                raise_on_error=False,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
            return _read_outcome(result)
    finally:
        logging.disable(logging.NOTSET)


def _read_outcome(result: dg.ExecuteInProcessResult) -> RunResult:
    metadata = {
        event.asset_key.path[-1]: {name: value.value for name, value in event.materialization.metadata.items()}
        for event in result.get_asset_materialization_events()
        if event.asset_key is not None
    }
    checks = [
        CheckOutcome(
            each.check_name,
            each.passed,
            each.description or each.check_name.replace("_", " "),
            str(each.metadata["observed"].value) if "observed" in each.metadata else "",
        )
        for each in result.get_asset_check_evaluations()
        if NOT_EVALUATED not in each.metadata
    ]
    failures = []
    for event in result.get_step_failure_events():
        error = event.step_failure_data.error
        while error is not None and error.cause is not None:
            error = error.cause
        failures.append(f"{event.step_key}: {error.message.strip() if error else 'failed'}")
    return RunResult(result.success, metadata, tuple(checks), tuple(failures))
