"""A savepoint that is migrated and rescaled on S3, copied down, and restored by real Flink."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from benchmarks.s3_server import S3Server, start_s3
from state_pipelines.storage import list_files, read_file, resolution, resolve, use_storage_options
from tests.flink import harness, jobs
from tests.flink.test_migrated_savepoint import MIGRATION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.flink

PARALLELISM = 3


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with start_s3() as server:
        yield server


@pytest.fixture
def changed(server: S3Server, orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The orders, migrated and rescaled on S3, as a local directory."""
    (snapshot,) = orders.glob("savepoint-*")
    bucket = f"flow-{tmp_path.name.replace('_', '-').lower()}"[:60].strip("-")
    server.put(bucket, {f"savepoint/{path.name}": path.read_bytes() for path in snapshot.iterdir()})
    stored = {f"s3://{bucket}": server.options}
    settings = tmp_path / "storage.yaml"
    settings.write_text(yaml.safe_dump(stored))

    def call(*arguments: str) -> None:
        # Flink 1.20 stores only the hash of an operator's uid
        command = [sys.executable, "-m", "state_pipelines", *arguments]
        command += ["--uid", "orders", "--storage-options", str(settings)]
        done = subprocess.run(command, cwd=harness.ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    root = f"s3://{bucket}"
    call("migrate", f"{root}/savepoint", "--migration", str(MIGRATION), "--out", f"{root}/migrated")
    call("rescale", f"{root}/migrated", "--parallelism", str(PARALLELISM), "--out", f"{root}/rescaled")
    monkeypatch.setattr(resolution, "_registered", {})
    use_storage_options(stored)
    target = tmp_path / "rescaled"
    target.mkdir()
    for entry in list_files(resolve(f"{root}/rescaled")):
        (target / entry.location.name).write_bytes(read_file(entry.location))
    return target


def test_flink_restores_what_was_migrated_and_rescaled_on_s3(
    version: str, orders: Path, changed: Path, backend: str
) -> None:
    result = harness.restore(version, changed, jobs.orders_job("v2"), backend=backend, parallelism=PARALLELISM)

    assert result.ok, result.error
    assert not harness.diff_entries(harness.read_entries(orders / "expected-migrated.jsonl.gz"), result.entries)
