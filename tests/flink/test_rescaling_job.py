"""The job that the rescaling tests restore: Flink itself rescales what it can, and the comparison sees what is lost."""

from __future__ import annotations

import pytest

from tests.flink import harness, jobs
from tests.flink.make_data import job_of_case
from tests.flink.rescaling import BY_SUBTASK, Maker, check
from tests.snapshots import RESCALING, Case

pytestmark = pytest.mark.flink

# A hash that is off by one puts a key into another key group: an operator does not find what it has of that key.
HASHED_BY_PLACE = ("pojo-objects", "pojo-nested", "tuple-of-pojo")


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("made"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in RESCALING if case.case in ("heap-native", "rocksdb-incremental")], ids=str
)
def test_stored_snapshot_restores_with_more_subtasks(case: Case) -> None:
    result = harness.restore(
        case.version,
        case.path,
        job_of_case(case),
        backend=case.backend,
        parallelism=3,
        mapping={case.written: case.folder},
    )

    check(result, case.entries(), 3)


@pytest.mark.slow
def test_flink_itself_changes_the_parallelism(maker: Maker, version: str, backend: str) -> None:
    made = maker.make(version)
    result = harness.restore(version, made.path, jobs.rescaling_job(), backend=backend, parallelism=7)

    check(result, made.entries, 7)


@pytest.mark.slow
def test_flink_refuses_another_max_parallelism(maker: Maker, version: str) -> None:
    result = harness.restore(version, maker.make(version).path, jobs.rescaling_job(1024))

    assert not result.ok
    assert "Max parallelism mismatch" in result.error


def test_keys_with_another_hash_are_missed(maker: Maker, version: str) -> None:
    made = maker.make(version)
    job = jobs.rescaling_job(wrong_hash=True)
    result = harness.restore(version, made.path, job, parallelism=1)

    assert result.ok, result.error
    difference = harness.diff_entries(made.entries, result.entries)
    assert difference
    for operator in HASHED_BY_PLACE:
        assert any(f'"op": "{operator}"' in line for line in difference.missing)
    before, after = (
        [entry for entry in each if entry["op"] not in HASHED_BY_PLACE] for each in (made.entries, result.entries)
    )
    assert not harness.diff_entries(before, after)


@pytest.mark.slow
def test_entries_know_their_subtask(maker: Maker, version: str) -> None:
    made = maker.make(version)
    moved = [entry | {"subtask": 1 - entry["subtask"]} for entry in made.entries]

    assert harness.diff_entries(made.entries, moved, BY_SUBTASK)
    assert not harness.diff_entries(made.entries, moved)
