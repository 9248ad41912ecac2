"""Upgrades of jobs of SQL, from one query to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.upgrades.state_changes import make_submission
from state_pipelines.upgrades.upgrade_reports import Result
from state_pipelines.upgrades.upgrade_request import load_upgrade_request
from state_pipelines.upgrades.upgrade_run import upgrade
from tests.upgrades.memory_cluster import MemoryCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from state_pipelines.upgrades.upgrade_reports import UpgradeReport
    from state_pipelines.upgrades.upgrade_request import UpgradeRequest

TOTALS = Path(__file__).resolve().parents[2] / "examples" / "totals"


def describe(directory: Path, new: str = "swapped.json", old: str = "totals.json", **more: Any) -> UpgradeRequest:
    """A description of the totals job; more fields of the new query."""
    job = {
        "name": "orders",
        "cluster": {"rest": "http://127.0.0.1:1"},
        "results": "results",
        "upgrade": {
            "savepoints": str(directory / "savepoints"),
            "old": {"plan": str(TOTALS / old)},
            "new": {"plan": str(TOTALS / new), **more},
        },
    }
    file = directory / "JOB.yaml"
    file.write_text(json.dumps(job))
    return load_upgrade_request(file)


def run(request: UpgradeRequest, cluster: MemoryCluster, **options: Any) -> UpgradeReport:
    return upgrade(request, clusters=(cluster, cluster), sleep=cluster.sleep, clock=cluster.clock, **options)


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(TOTALS / "savepoint")


@pytest.mark.spark
def test_a_changed_query_takes_its_migrated_state(tmp_path: Path, cluster: MemoryCluster, spark: SparkSession) -> None:
    request = describe(tmp_path, parallelism=2, max_parallelism=256)
    refused = run(request, cluster)
    assert refused.plan is not None
    cluster.broken = {"swapped.json": "fails.jar"}
    report = run(request, cluster, approve=refused.plan.fingerprint)
    assert report.result is Result.WENT_BACK
    new, old = cluster.submissions
    assert new.plan == str(TOTALS / "swapped.json")
    assert Path(str(new.savepoint)).parent == tmp_path / "results"
    assert new.configuration == {"pipeline.name": "orders", "pipeline.max-parallelism": "256"}
    assert (old.plan, old.savepoint) == (str(TOTALS / "totals.json"), cluster.jobs["a" * 32].savepoints[0].path)
    proofs = report.to_json()["record"]["steps"]["change"]["proofs"]
    assert {name: each["ok"] for name, each in proofs.items()} == {"migrate": True, "rescale": True}
    assert f"EXECUTE PLAN '{TOTALS / 'swapped.json'}'" in dict(report.commands)["new"]


def test_the_plan_says_what_a_restore_would_do_in_silence(tmp_path: Path, cluster: MemoryCluster) -> None:
    report = run(describe(tmp_path), cluster, plan_only=True)
    assert report.plan is not None
    assert report.plan.to_approve == ()
    lines = "\n".join(report.lines)
    assert "revision: query totals.json to swapped.json" in lines
    assert "SUM(orders.shipping)" in lines


def test_a_column_that_starts_empty_waits_for_an_approval(tmp_path: Path, cluster: MemoryCluster) -> None:
    report = run(describe(tmp_path, "counted.json"), cluster)
    assert report.result is Result.WAITS
    assert report.plan is not None
    assert report.plan.to_approve == ("partial",)
    assert any("COUNT(*): starts empty" in each for each in report.lines)


def test_the_same_query_needs_nothing(tmp_path: Path, cluster: MemoryCluster) -> None:
    report = run(describe(tmp_path, "totals.json"), cluster)
    assert report.result is Result.UPGRADED
    assert cluster.submissions[0].savepoint == cluster.jobs["a" * 32].savepoints[0].path


def test_another_old_query_is_refused(tmp_path: Path, cluster: MemoryCluster) -> None:
    report = run(describe(tmp_path, "swapped.json", old="counted.json"), cluster)
    assert report.result is Result.REFUSED
    assert [each.program for each in cluster.running] == ["old.jar"]
    assert "not the query of the job that wrote the savepoint" in report.lines[0]


def test_a_backfill_of_no_column_is_found_out_before_the_job_is_stopped(tmp_path: Path, cluster: MemoryCluster) -> None:
    report = run(describe(tmp_path, "counted.json", backfill={"nothing": "counts.parquet"}), cluster)
    assert report.result is Result.REFUSED
    assert "nothing" in report.lines[0]


def test_a_cluster_without_a_gateway_is_refused(tmp_path: Path, cluster: MemoryCluster) -> None:
    cluster.sql_obstacle = "it has no SQL Gateway"
    report = run(describe(tmp_path), cluster)
    assert report.result is Result.REFUSED
    assert "the new query cannot be started at memory://cluster: it has no SQL Gateway" in report.lines[0]


def test_a_plan_of_a_newer_flink_is_refused(tmp_path: Path, cluster: MemoryCluster) -> None:
    request = describe(tmp_path)
    body = json.loads((tmp_path / "JOB.yaml").read_text())
    (tmp_path / "JOB.yaml").write_text(json.dumps({**body, "target_release": "1.20"}))
    cluster.version = "1.20.5"
    report = run(load_upgrade_request(request.file), cluster)
    assert report.result is Result.REFUSED
    assert "was compiled by Flink 2.2, but target_release is 1.20" in report.lines[0]


def test_a_changed_query_has_another_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "new.json").write_bytes((TOTALS / "totals.json").read_bytes())
    request = describe(tmp_path, str(tmp_path / "new.json"))
    before = request.describe_change()
    (tmp_path / "new.json").write_bytes((TOTALS / "swapped.json").read_bytes())
    assert request.describe_change() != before
    (tmp_path / "new.json").unlink()
    with pytest.raises(UsageError, match="the query of the new program is not there"):
        request.describe_change()


def test_a_script_is_started_as_text_where_it_is_the_old_query(tmp_path: Path) -> None:
    script = tmp_path / "old.sql"
    script.write_text("SET 'parallelism.default' = '3'; CREATE TABLE t (a INT); INSERT INTO t VALUES (1);")
    request = describe(tmp_path, old=str(script))
    old = make_submission(request, request.settings.old, "savepoint", "1" * 32, job_name="orders")
    assert (old.script, old.plan) == (script.read_text(), None)
    # The new query is started as its compiled plan, with the options of its script.
    new = make_submission(request, request.settings.old, "savepoint", "1" * 32, plan="plan.json")
    assert (new.plan, new.script, new.configuration) == ("plan.json", None, {"parallelism.default": "3"})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ({"plan": "a.json"}, {"jar": "b.jar"}, "upgrade: one of old and new is a query"),
        ({"plan": "a.json"}, {"plan": "b.txt"}, r"upgrade.new.plan is .*b.txt"),
        ({"plan": "a.json"}, {"plan": "b.json", "match": "a=b"}, "upgrade.new.match is not a mapping"),
    ],
)
def test_wrong_queries_are_named(tmp_path: Path, old: Any, new: Any, message: str) -> None:
    body = {"name": "orders", "cluster": {}, "results": "r", "upgrade": {"savepoints": "s", "old": old, "new": new}}
    (tmp_path / "JOB.yaml").write_text(json.dumps(body))
    with pytest.raises(UsageError, match=message):
        load_upgrade_request(tmp_path / "JOB.yaml")
