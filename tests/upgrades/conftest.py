from __future__ import annotations

from pathlib import Path

import pytest

from state_pipelines.upgrades.upgrade_request import UpgradeRequest, load_upgrade_request

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT = ROOT / "examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091"


@pytest.fixture(scope="session")
def snapshot() -> Path:
    """A savepoint of the orders job."""
    return SNAPSHOT


def describe(
    directory: Path, *, new: str = "new.jar", more: str = "", new_more: str = "", job: str = "", savepoints: str = ""
) -> UpgradeRequest:
    """A description of the orders job, in a file; its jars are empty, and nothing reads them."""
    for name in ("old.jar", new):
        (directory / name).write_bytes(name.encode())
    text = f"""\
name: orders
cluster: {{rest: "http://127.0.0.1:1"}}
results: results
job_classes: []
{job}
upgrade:
  savepoints: {savepoints or directory / "savepoints"}
  old: {{jar: old.jar}}
  new: {{jar: {new}{new_more}}}
  checkpoints: 2
  watch: 20s
  start_timeout: 5s
  savepoint_timeout: 5s
{more}
"""
    file = directory / "JOB.yaml"
    file.write_text(text)
    return load_upgrade_request(file)
