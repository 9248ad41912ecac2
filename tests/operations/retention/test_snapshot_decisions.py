from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import FormatError, UsageError
from state_pipelines.metadata import list_references, read_metadata, write_metadata
from state_pipelines.metadata.handles import FileStateHandle
from state_pipelines.operations.retention import (
    PathKind,
    RetentionPlan,
    parse_policy,
    pin_snapshot,
    read_pins,
    survey,
    unpin_snapshot,
)
from state_pipelines.storage import resolve
from state_pipelines.storage.listing import list_tree
from tests.operations.retention.trees import (
    JOB,
    NATIVE,
    OTHER_JOB,
    SAVEPOINT,
    UUIDS,
    deleted,
    install_job,
    install_savepoint,
    kept_reason,
    plan,
    put,
    rewrite,
    set_age,
)

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 6, 17, 12, 30, tzinfo=UTC)


def add_savepoints(root: Path, *ages: timedelta, digits: str = "b1f07a") -> list[Path]:
    """Savepoints of one job, each with its age before `NOON`; the ids grow as the ages fall."""
    made = []
    for number, age in enumerate(ages):
        path = root / f"savepoint-{digits}-{number:012x}"
        shutil.copytree(SAVEPOINT, path)
        _set_id(path / "_metadata", len(ages) - number)
        set_age(path, datetime.now(UTC) - NOON + age)
        made.append(path)
    return made


def _set_id(metadata: Path, number: int) -> None:
    metadata.write_bytes(write_metadata(replace(read_metadata(metadata.read_bytes()), checkpoint_id=number)))


def plan_at_noon(root: Path, policy: object, min_age: timedelta = timedelta(0)) -> RetentionPlan:
    return plan(root, policy=parse_policy(policy), min_age=min_age, now=lambda: NOON)


def gone(result: RetentionPlan) -> list[str]:
    """Names of the snapshots that go."""
    return [snapshot.path.rpartition("/")[2] for snapshot in result.snapshots if snapshot.delete]


def days(*numbers: float) -> list[timedelta]:
    return [timedelta(days=number) for number in numbers]


def stayed(root: Path, policy: object, ages: list[timedelta]) -> list[int]:
    """Indexes of the savepoints that stay."""
    made = add_savepoints(root, *ages)
    names = gone(plan_at_noon(root, policy))
    return [number for number, path in enumerate(made) if path.name not in names]


def test_without_a_policy_snapshots_stay(tmp_path: Path) -> None:
    add_savepoints(tmp_path, *days(100, 200, 300))
    assert deleted(plan(tmp_path, now=lambda: NOON)) == []


@pytest.mark.parametrize(
    ("keep", "indexes"),
    [
        ({"last": 2}, [0, 1]),
        ({"last": 0}, [0]),
        ("none", [0]),
        ("all", [0, 1, 2, 3, 4, 5]),
        ({"within": "5d"}, [0, 1, 2]),
        ({"daily": 2}, [0, 2]),
        ({"hourly": 3}, [0, 1, 2]),
        ({"monthly": 3}, [0, 4, 5]),
        ({"yearly": 2}, [0, 5]),
        ({"weekly": 2}, [0, 3]),
        ({"weekly": 99}, [0, 3, 4, 5]),
        ({"last": 1, "yearly": 2}, [0, 5]),
    ],
)
def test_options_of_a_rule(tmp_path: Path, keep: object, indexes: list[int]) -> None:
    # Wednesday noon; the same day; Monday of the same week; Sunday before; a month before; the year before.
    assert stayed(tmp_path, {"keep": keep}, days(0, 0.25, 2, 10, 40, 400)) == indexes


def test_a_snapshot_of_a_deleted_one_goes_metadata_first(tmp_path: Path) -> None:
    old, _ = sorted(add_savepoints(tmp_path, *days(0, 40)), reverse=True)
    result = plan_at_noon(tmp_path, {"keep": {"last": 1}})
    assert deleted(result)[0] == str(old / "_metadata")
    assert set(deleted(result)) == {str(old), *map(str, old.iterdir())}
    assert result.delete[-1].kind is PathKind.DIRECTORY
    assert result.bytes == sum(file.stat().st_size for file in old.iterdir())


def test_every_metadata_goes_before_any_data(tmp_path: Path) -> None:
    add_savepoints(tmp_path, *days(0, 40, 50))
    kinds = [path.kind for path in plan_at_noon(tmp_path, {"keep": {"last": 1}}).delete]
    assert kinds[:2] == [PathKind.METADATA, PathKind.METADATA]
    assert PathKind.METADATA not in kinds[2:]


def test_jobs_are_counted_apart(tmp_path: Path) -> None:
    add_savepoints(tmp_path, *days(1, 2), digits="aaaaaa")
    add_savepoints(tmp_path, *days(3, 4), digits="bbbbbb")
    assert sorted(gone(plan_at_noon(tmp_path, {"keep": {"last": 1}}))) == [
        "savepoint-aaaaaa-000000000001",
        "savepoint-bbbbbb-000000000001",
    ]


def test_savepoints_belong_to_the_job_of_their_digits(tmp_path: Path) -> None:
    install_job(tmp_path)
    install_savepoint(tmp_path, name=f"savepoint-{JOB[:6]}-000000000001")
    assert {snapshot.job for snapshot in plan(tmp_path).snapshots} == {JOB}


def test_the_first_rule_that_matches_decides(tmp_path: Path) -> None:
    made = add_savepoints(tmp_path, *days(1, 2, 3))
    policy = {"rules": [{"match": {"path": f"*{made[2].name}"}, "keep": "all"}], "savepoints": {"last": 1}}
    assert gone(plan_at_noon(tmp_path, policy)) == [made[1].name]


def test_a_rule_for_a_format(tmp_path: Path) -> None:
    install_savepoint(tmp_path, NATIVE)
    install_savepoint(tmp_path, NATIVE, name="savepoint-5d2ba2-000000000001")
    install_savepoint(tmp_path, name="savepoint-5d2ba2-000000000002", age=timedelta(days=40))
    policy = {"rules": [{"match": {"format": "canonical"}, "keep": "none"}]}
    assert gone(plan(tmp_path, policy=policy)) == ["savepoint-5d2ba2-000000000002"]


def test_snapshots_that_no_rule_is_for_stay(tmp_path: Path) -> None:
    add_savepoints(tmp_path, *days(1, 2))
    assert gone(plan_at_noon(tmp_path, {"checkpoints": "none"})) == []


def test_a_shared_file_goes_with_its_last_referrer(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    policy = {"checkpoints": {"last": 1}}
    names = {metadata.parent.name: _references(metadata) for metadata in job.glob("chk-*/_metadata")}
    result = plan(tmp_path, policy=policy)
    assert gone(result) == ["chk-2"]
    shared = {path.path.rpartition("/")[2] for path in result.delete if path.kind is PathKind.SHARED}
    assert shared == names["chk-2"] - names["chk-3"] != set()
    assert {path.name for path in (job / "shared").iterdir()} & names["chk-3"] == {
        path.path.rpartition("/")[2] for path in result.keep if path.kind is PathKind.SHARED
    }


def _references(metadata: Path) -> set[str]:
    handles = [reference.handle for reference in list_references(read_metadata(metadata.read_bytes()))]
    return {handle.path.rpartition("/")[2] for handle in handles if isinstance(handle, FileStateHandle)}


def test_claimed_files_of_a_snapshot_that_goes_stay(tmp_path: Path) -> None:
    savepoint = install_savepoint(tmp_path / "savepoints", NATIVE, age=timedelta(days=50))
    install_savepoint(tmp_path / "savepoints", NATIVE, name="savepoint-5d2ba2-000000000001")
    job = install_job(tmp_path / "checkpoints")
    claimed = min(file for file in savepoint.iterdir() if file.name != "_metadata")
    shared = min((job / "shared").iterdir())
    for metadata in job.glob("chk-*/_metadata"):
        rewrite(metadata, lambda path: str(claimed) if path.endswith(shared.name) else path)
    result = plan(tmp_path / "checkpoints", tmp_path / "savepoints", policy={"savepoints": {"last": 1}})
    assert str(savepoint / "_metadata") in deleted(result)
    assert str(claimed) not in deleted(result)
    assert str(savepoint) not in deleted(result)
    assert "chk-" in kept_reason(result, claimed)


def test_a_claimed_file_that_is_referenced_at_the_wrong_place_stays(tmp_path: Path) -> None:
    savepoint = install_savepoint(tmp_path, NATIVE, age=timedelta(days=50))
    install_savepoint(tmp_path, name="savepoint-5d2ba2-000000000001")
    job = install_job(tmp_path)
    claimed = min(file for file in savepoint.iterdir() if file.name != "_metadata")
    shared = min((job / "shared").iterdir())
    for metadata in job.glob("chk-*/_metadata"):
        wrong = str(metadata.parent / claimed.name)
        rewrite(metadata, lambda path, wrong=wrong: wrong if path.endswith(shared.name) else path)  # type: ignore[misc]
    result = plan(tmp_path, policy={"savepoints": {"last": 1}})
    assert str(savepoint / "_metadata") in deleted(result)
    assert str(claimed) not in deleted(result)
    assert "may be its copy" in kept_reason(result, claimed)


def test_the_newest_restorable_snapshot_stays_when_newer_ones_are_broken(tmp_path: Path) -> None:
    made = add_savepoints(tmp_path, *days(1, 2, 3))
    next(file for file in made[0].iterdir() if file.name != "_metadata").unlink()
    result = plan_at_noon(tmp_path, {"keep": {"last": 0}})
    assert gone(result) == [made[0].name, made[2].name]
    assert [snapshot.restorable for snapshot in result.snapshots] == [False, True, True]


def test_a_file_that_was_cut_off_makes_a_snapshot_unrestorable(tmp_path: Path) -> None:
    savepoint = install_savepoint(tmp_path)
    file = next(file for file in savepoint.iterdir() if file.name != "_metadata")
    file.write_bytes(file.read_bytes()[:-1])
    assert [snapshot.restorable for snapshot in plan(tmp_path).snapshots] == [False]


def test_a_broken_snapshot_does_not_take_the_place_of_a_whole_one(tmp_path: Path) -> None:
    made = add_savepoints(tmp_path, *days(1, 2, 3, 4))
    next(file for file in made[0].iterdir() if file.name != "_metadata").unlink()
    assert gone(plan_at_noon(tmp_path, {"keep": {"last": 2}})) == [made[3].name]


def test_the_floor_protects_snapshots(tmp_path: Path) -> None:
    made = add_savepoints(tmp_path, *days(1, 2, 5))
    assert gone(plan_at_noon(tmp_path, {"keep": "none"}, timedelta(days=3))) == [made[2].name]


def test_checkpoints_of_a_job_that_may_run_stay_as_flink_retains_them(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    put(job / "shared" / UUIDS[0], age=timedelta(hours=1))
    assert gone(plan(tmp_path, policy={"keep": "none"})) == ["chk-2"]
    assert gone(plan(tmp_path, policy={"keep": "none", "num-retained": 2})) == []


def test_a_job_that_counts_again_is_ordered_by_time(tmp_path: Path) -> None:
    made = add_savepoints(tmp_path, *days(1, 5, 6))
    _set_id(made[0] / "_metadata", 1)
    _set_id(made[2] / "_metadata", 9)
    for path, age in zip(made, days(1, 5, 6), strict=True):
        set_age(path, datetime.now(UTC) - NOON + age)
    assert gone(plan_at_noon(tmp_path, {"keep": {"last": 1}})) == [made[1].name, made[2].name]


def test_a_copied_tree_is_ordered_by_id(tmp_path: Path) -> None:
    made = add_savepoints(tmp_path, *days(1, 1.0001, 1.0002))
    for path, seconds in zip(made, (3, 1, 2), strict=True):
        set_age(path, datetime.now(UTC) - NOON + timedelta(seconds=3600 + seconds))
    assert gone(plan_at_noon(tmp_path, {"keep": {"last": 1}})) == [made[1].name, made[2].name]


def test_a_budget_drops_the_oldest(tmp_path: Path) -> None:
    made = add_savepoints(tmp_path, *days(1, 2, 3))
    size = sum(file.stat().st_size for file in made[0].iterdir())
    assert gone(plan_at_noon(tmp_path, {"keep": {"max-size": 2 * size}})) == [made[2].name]
    assert gone(plan_at_noon(tmp_path, {"keep": {"max-size": 3 * size}})) == []
    assert gone(plan_at_noon(tmp_path, {"keep": {"max-size": 0}})) == [made[1].name, made[2].name]
    assert gone(plan_at_noon(tmp_path, {"keep": {"last": 2, "max-size": size}})) == [made[1].name, made[2].name]


def test_a_budget_counts_shared_files_once(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    whole = sum(file.stat().st_size for file in job.rglob("*") if file.is_file())
    assert gone(plan(tmp_path, policy={"keep": {"max-size": whole}})) == []
    assert gone(plan(tmp_path, policy={"keep": {"max-size": whole - 1}})) == ["chk-2"]


def test_an_unknown_age_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = add_savepoints(tmp_path, *days(1, 2, 3))

    def forget(root: object) -> list[object]:
        entries = list_tree(root)  # type: ignore[arg-type]
        return [replace(each, modified=None) if made[2].name in each.name else each for each in entries]

    monkeypatch.setattr(survey, "list_tree", forget)
    assert gone(plan_at_noon(tmp_path, {"keep": "none"})) == [made[1].name]


def test_a_pinned_snapshot_stays_with_its_reason(tmp_path: Path) -> None:
    made = add_savepoints(tmp_path, *days(1, 2, 3))
    pin_snapshot(resolve(str(tmp_path)), made[2].name, reason="before the release")
    result = plan_at_noon(tmp_path, {"keep": "none"})
    assert gone(result) == [made[1].name]
    assert result.snapshots[2].reasons[0] == "pinned: before the release"


def test_a_removed_pin_protects_no_more(tmp_path: Path) -> None:
    made = add_savepoints(tmp_path, *days(1, 2))
    root = resolve(str(tmp_path))
    pin_snapshot(root, made[1].name)
    unpin_snapshot(root, made[1].name)
    assert read_pins(root) == ()
    assert gone(plan_at_noon(tmp_path, {"keep": "none"})) == [made[1].name]


def test_a_pin_of_a_job_keeps_all_of_it(tmp_path: Path) -> None:
    install_job(tmp_path, job=OTHER_JOB)
    install_job(tmp_path)
    pin_snapshot(resolve(str(tmp_path)), OTHER_JOB)
    result = plan(tmp_path, policy={"keep": "none"})
    assert [snapshot.path for snapshot in result.snapshots if snapshot.delete] == [f"{tmp_path}/{JOB}/chk-2"]


def test_a_tag_keeps_where_the_policy_says_so(tmp_path: Path) -> None:
    made = add_savepoints(tmp_path, *days(1, 2, 3))
    pin_snapshot(resolve(str(tmp_path)), made[2].name, tags=("release",))
    assert gone(plan_at_noon(tmp_path, {"keep": {"tags": ["release"]}})) == [made[1].name]
    assert gone(plan_at_noon(tmp_path, {"keep": {"last": 1}})) == [made[1].name, made[2].name]


def test_pins_of_a_root_inside_a_root_count(tmp_path: Path) -> None:
    made = add_savepoints(tmp_path / "team", *days(1, 2))
    pin_snapshot(resolve(str(tmp_path / "team")), made[1].name)
    assert gone(plan_at_noon(tmp_path, {"keep": "none"})) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# none",
        "\ufeff",
        "{}",
        "pins:",
        "pins: {",
        "pin: []",
        "- a",
        "pins: [{path: ../a}]",
        "pins: [{reason: x}]",
        "pins: [5]",
    ],
)
def test_a_damaged_pin_file_stops_the_plan(tmp_path: Path, text: str) -> None:
    add_savepoints(tmp_path, *days(1, 2))
    put(tmp_path / "_retention" / "pins.yaml", text.encode())
    with pytest.raises(FormatError, match="pin file") as error:
        plan_at_noon(tmp_path, {"keep": "none"})
    assert error.value.where.file == str(tmp_path / "_retention" / "pins.yaml")


def test_a_pin_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to pin"):
        pin_snapshot(resolve(str(tmp_path)), "savepoint-1")


def test_what_is_not_pinned_cannot_be_unpinned(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not pinned"):
        unpin_snapshot(resolve(str(tmp_path)), "savepoint-1")
