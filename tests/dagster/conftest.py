from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from state_pipelines.dagster import FlinkJob, build_flink_job
from state_pipelines.dagster.storage import REPORTS
from state_pipelines.operations.inventory import make_partition_key

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
ORDERS = ROOT / "examples" / "orders"
SAVEPOINTS = {
    "1.20": ORDERS / "savepoints" / "flink-1.20" / "savepoint-a809c1-1b934b0b6f5c",
    "2.2": ORDERS / "savepoints" / "flink-2.2" / "savepoint-df4606-efe91b44c091",
}
MIGRATIONS = ORDERS / "migrations"


UIDS = ("orders", "revenue-per-minute", "order-counter", "pricing", "order-source", "price-source")


def build(job: FlinkJob) -> dg.Definitions:
    """The definitions of one job, which brings its resources."""
    return dg.Definitions.merge(build_flink_job(job), dg.Definitions(executor=dg.in_process_executor))


def list_executable(defs: dg.Definitions) -> list[dg.AssetsDefinition]:
    """The assets that Dagster makes; those without an op are external."""
    return [each for each in defs.resolve_asset_graph().assets_defs if each.is_executable]


def find_asset(job: FlinkJob, name: str) -> dg.AssetsDefinition:
    return build(job).resolve_assets_def(job.key(name))


@dataclass(frozen=True)
class Deployment:
    """A job with directories and an instance of their own."""

    root: Path
    instance: dg.DagsterInstance
    job: FlinkJob

    @property
    def snapshots(self) -> Path:
        return Path(self.job.roots[0])

    @property
    def results(self) -> list[Path]:
        return sorted(each for each in Path(self.job.results).glob("*") if each.name != REPORTS)

    def change(self, **fields: Any) -> Deployment:
        """The same with other fields of the job."""
        return replace(self, job=self.job.model_copy(update=fields))

    def add(self, release: str) -> str:
        """Copy a savepoint below the root and add its partition."""
        return self.add_copy(SAVEPOINTS[release], f"flink-{release}")

    def add_copy(self, source: Path, name: str) -> str:
        """Copy a snapshot into a directory below the root and add its partition."""
        target = self.snapshots / name / source.name
        shutil.copytree(source, target)
        key = make_partition_key(self.job.storage.open(str(target)))
        self.instance.add_dynamic_partitions(str(self.job.partitions.name), [key])
        return key

    def run(self, job: str, key: str | None, **config: dict[str, Any]) -> dg.ExecuteInProcessResult:
        """Execute a job; `config` by name of the asset."""
        return (
            build(self.job)
            .resolve_job_def(self.job.prefix(job))
            .execute_in_process(
                partition_key=key,
                instance=self.instance,
                raise_on_error=False,
                run_config={"ops": {self.job.op(name): {"config": each} for name, each in config.items()}},
            )
        )

    def materialize(self, assets: list[str], key: str, **config: dict[str, Any]) -> dg.ExecuteInProcessResult:
        """Materialise some assets of the job for a snapshot."""
        return dg.materialize(
            [find_asset(self.job, name) for name in assets],
            partition_key=key,
            instance=self.instance,
            raise_on_error=False,
            run_config={"ops": {self.job.op(name): {"config": each} for name, each in config.items()}},
        )


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    root = tmp_path_factory.mktemp("deployment")
    job = FlinkJob(
        name="shop",
        roots=(str(root / "snapshots"),),
        results=str(root / "results"),
        tables=str(root / "tables"),
        uids=UIDS,
        migrations=str(MIGRATIONS),
        owners=("team:streaming",),
    )
    (root / "snapshots").mkdir()
    with dg.DagsterInstance.ephemeral() as instance:
        yield Deployment(root, instance, job)
