"""A function whose state is in PyFlink's layout goes on in the real PyFlink, and PyFlink's function here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.datastream.pyflink_states import KEYS, ROUNDS, expect
from tests.datastream.test_pyflink_layout import SAVEPOINT
from tests.flink import pyflink_jobs
from tests.flink.harness import HarnessError
from tests.spark.test_pyflink_state import OTHERS, run, show

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.flink, pytest.mark.spark]


@pytest.fixture(scope="module", autouse=True)
def _pyflink() -> None:
    if reason := pyflink_jobs.missing_python():
        pytest.skip(reason)
    try:
        pyflink_jobs.install()
    except HarnessError as error:
        pytest.skip(f"PyFlink cannot be installed: {error}")


def read(savepoint: str, folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """What PyFlink finds in the states of each key; those of pickles left out."""
    from pathlib import Path as LocalPath

    lines = pyflink_jobs.read_savepoint(LocalPath(savepoint), folder, "--small", *options)
    left_out = {"operator", "key", "pickled", "all"}
    return {line["key"]: {name: line[name] for name in line if name not in left_out} for line in lines}


def test_pyflink_goes_on_from_a_function_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    result = run(spark, range(ROUNDS * KEYS), savepoint=str(tmp_path / "savepoint"), pyflink_state=True)
    assert result.snapshot is not None
    assert read(result.snapshot.path, tmp_path / "read") == {f"key-{key}": expect(key) for key in range(KEYS)}


def assert_goes_on(spark: SparkSession, source: str, folder: Path, backend: str, options: dict[str, Any]) -> None:
    """Let the function process one round more from a savepoint, and PyFlink read its checkpoint."""
    start = ROUNDS * KEYS
    result = run(
        spark,
        range(start, start + KEYS),
        checkpoint=str(folder / "checkpoints"),
        from_snapshot=source,
        options=OTHERS | {"state.backend.type": backend} | options,
    )
    assert result.snapshot is not None
    found = read(result.snapshot.path, folder / "read", "--backend", backend)
    assert found == {f"key-{key}": expect(key, ROUNDS + 1) for key in range(KEYS)}


@pytest.mark.slow
def test_a_function_on_rocksdb_goes_on_from_pyflink_and_pyflink_from_it(spark: SparkSession, tmp_path: Path) -> None:
    taken = pyflink_jobs.make_savepoint(tmp_path / "job", backend="rocksdb", form="NATIVE", small=True)
    assert show(spark, str(taken)) == {f"key-{key}": expect(key) for key in range(KEYS)}
    assert_goes_on(spark, str(taken), tmp_path, "rocksdb", {"execution.checkpointing.incremental": True})


@pytest.mark.slow
def test_a_function_with_changelog_goes_on_from_pyflink_and_pyflink_from_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert_goes_on(spark, str(SAVEPOINT), tmp_path, "hashmap", {"state.changelog.enabled": True})
