from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from assets.definitions import defs
from assets.partitions import make_partition_key, snapshots
from resources import MigrationResource, SparkResource, StorageResource

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
ORDERS = ROOT / "examples" / "orders"
SAVEPOINTS = {
    "1.20": ORDERS / "savepoints" / "flink-1.20" / "savepoint-a809c1-1b934b0b6f5c",
    "2.2": ORDERS / "savepoints" / "flink-2.2" / "savepoint-df4606-efe91b44c091",
}
MIGRATIONS = ORDERS / "migrations"


@dataclass(frozen=True)
class Deployment:
    """The definitions with directories and an instance of their own."""

    root: Path
    instance: dg.DagsterInstance
    storage: StorageResource
    migrations: str = str(MIGRATIONS)

    @property
    def results(self) -> list[Path]:
        return sorted(Path(self.storage.results).glob("*"))

    def add(self, release: str) -> str:
        """Copy a savepoint into the watched directory and add its partition."""
        source = SAVEPOINTS[release]
        target = Path(self.storage.snapshots, f"flink-{release}", source.name)
        shutil.copytree(source, target)
        key = make_partition_key(self.storage.open(str(target)))
        self.instance.add_dynamic_partitions(str(snapshots.name), [key])
        return key

    def run(self, key: str) -> dg.ExecuteInProcessResult:
        """The job for one snapshot; the result tells whether it succeeded."""
        return defs.resolve_job_def("migrate_snapshot").execute_in_process(
            partition_key=key,
            instance=self.instance,
            raise_on_error=False,
            resources={
                "storage": self.storage,
                "migration": MigrationResource(migrations=self.migrations),
                "spark": SparkResource(),
            },
        )


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    root = tmp_path_factory.mktemp("deployment")
    storage = StorageResource(
        snapshots=str(root / "snapshots"),
        results=str(root / "results"),
        tables=str(root / "tables"),
        declarations={
            "uids": ["orders", "revenue-per-minute", "order-counter", "pricing", "order-source", "price-source"]
        },
    )
    (root / "snapshots").mkdir()
    with dg.DagsterInstance.ephemeral() as instance:
        yield Deployment(root, instance, storage)
