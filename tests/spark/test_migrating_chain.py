"""A chain of five revisions up and down again: one run each way, and the bytes of every entry are back."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pytest

from benchmarks.generate import OPERATOR, generate
from benchmarks.migrate import REVISIONS, count_equal, list_entries
from state_pipelines.operations.migration.flows import find_reads
from state_pipelines.operations.migration.history import RevisionDirectory
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.spark import MigrationResult, migrate
from state_pipelines.spark.migration_run import plan_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.operations.migration.migration_planner import Chain

pytestmark = pytest.mark.spark

KEYS = 3000


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    target = str(tmp_path_factory.mktemp("chain") / "old")
    generate(target, KEYS)
    return open_snapshot(target, uids=[OPERATOR])


@pytest.fixture(scope="module")
def up() -> Chain:
    return RevisionDirectory(str(REVISIONS)).between("base", "head")


@pytest.fixture(scope="module")
def down() -> Chain:
    return RevisionDirectory(str(REVISIONS)).between("head", "base")


@pytest.fixture(scope="module")
def risen(spark: SparkSession, old: Snapshot, up: Chain, tmp_path_factory: pytest.TempPathFactory) -> MigrationResult:
    return migrate(old, up, str(tmp_path_factory.mktemp("chain") / "up"))


def test_five_revisions_make_one_plan_with_one_read_per_state(old: Snapshot, up: Chain) -> None:
    assert len(up) == 5
    ((_, plan),) = plan_snapshot(old, up)
    assert {name: find_reads(flow) for name, flow in plan.changed.items()} == {
        "sums": ("total",),
        "profile": ("profile",),
    }
    assert plan.back is not None


def test_the_states_are_as_the_last_revision_says(risen: MigrationResult) -> None:
    operator = risen.snapshot.operator(OPERATOR)
    assert {state.name: state.kind for state in operator.states} == {"sums": "LIST", "profile": "VALUE"}
    assert "bench.Person" in describe(operator.state("profile").serializer)
    assert risen.proof is not None
    assert risen.proof.ok
    assert risen.rows == 2 * KEYS


def test_down_again_every_entry_has_the_bytes_that_it_had(
    spark: SparkSession, old: Snapshot, risen: MigrationResult, down: Chain, tmp_path: Path
) -> None:
    returned = migrate(risen.snapshot, down, str(tmp_path / "down"))
    assert returned.proof is not None
    assert returned.proof.ok
    assert count_equal(old, returned.snapshot) == 2 * KEYS
    changed = dict(chain.from_iterable(each.items() for _, each in list_entries(risen.snapshot)))
    assert changed.keys() == {"sums", "profile"}
