from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from assets.definitions import defs
from assets.migration import migrated_savepoint
from resources import SparkResource
from state_pipelines.spark.reports import CHECK_NAMES, OWN
from tests.deployment.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def run_python(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    environment = os.environ | {"DAGSTER_HOME": str(home)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_code_location_is_valid(tmp_path: Path) -> None:
    done = run_python("-m", "dagster", "definitions", "validate", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "All code locations passed validation" in done.stdout + done.stderr


def test_loading_starts_neither_spark_nor_great_expectations(tmp_path: Path) -> None:
    code = "import sys, assets.definitions; print({'pyspark', 'great_expectations'} & set(sys.modules))"
    assert run_python("-c", code, home=tmp_path).stdout == "set()\n"


@pytest.mark.slow
@pytest.mark.spark
def test_the_session_that_a_run_starts_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import dagster as dg; from pyspark.sql import SparkSession; from resources import SparkResource\n"
        "with dg.build_resources({'spark': SparkResource(memory='512m')}) as resources:\n"
        "    print(SparkSession.getActiveSession(), resources.spark.session.range(3).count())\n"
        "print(SparkSession.getActiveSession())"
    )
    assert run_python("-c", code, home=tmp_path).stdout == "None 3\nNone\n"


def test_a_session_that_was_there_stays(spark: SparkSession) -> None:
    with dg.build_resources({"spark": SparkResource()}) as resources:
        assert resources.spark.session is spark
    assert spark.range(3).count() == 3


def test_the_proof_blocks_what_comes_after() -> None:
    specs = {spec.name: spec.blocking for spec in migrated_savepoint.check_specs}
    assert specs == dict.fromkeys((*CHECK_NAMES, OWN), True)


def test_assets_have_an_owner_a_group_and_a_description() -> None:
    for spec in defs.resolve_all_asset_specs():
        assert spec.owners
        assert spec.group_name == "flink_state"
        assert spec.description


def test_one_savepoint_is_written_at_a_time() -> None:
    assert migrated_savepoint.op.pool == "migrated_savepoint"
