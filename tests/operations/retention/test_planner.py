from __future__ import annotations

import json
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import state_pipelines as sp
from state_pipelines.errors import NotFoundError, StateError, UsageError
from state_pipelines.operations.retention import survey
from state_pipelines.operations.retention.policy import PathKeys, parse_equalities
from state_pipelines.storage.listing import list_tree
from tests.operations.retention.trees import UUIDS, deleted, install_job, kept_reason, plan, put, set_age

if TYPE_CHECKING:
    from pathlib import Path

MINUTE = timedelta(minutes=1)


def test_plans_of_one_state_are_equal(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    put(job / "shared" / UUIDS[0])
    one, other = plan(tmp_path), plan(tmp_path)
    assert (one.fingerprint, one.delete, one.keep) == (other.fingerprint, other.delete, other.keep)


def test_the_clock_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    put(job / "shared" / UUIDS[0])
    one = plan(tmp_path)
    assert plan(tmp_path, now=lambda: one.created + timedelta(days=1)).fingerprint == one.fingerprint


@pytest.mark.parametrize("change", ["size", "time", "path", "policy", "root"])
def test_what_matters_changes_the_fingerprint(tmp_path: Path, change: str) -> None:
    job = install_job(tmp_path / "root")
    (tmp_path / "other").mkdir()
    file = put(job / "shared" / UUIDS[0])
    before = plan(tmp_path / "root")
    roots, options = [tmp_path / "root"], {}
    if change == "size":
        put(file, b"other state")
    elif change == "time":
        set_age(file, timedelta(days=31))
    elif change == "path":
        put(job / "shared" / UUIDS[1])
    elif change == "policy":
        options = {"policy": {"checkpoints": {"last": 5}}}
    else:
        roots.append(tmp_path / "other")
    assert plan(*roots, **options).fingerprint != before.fingerprint


def test_the_json_form(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    orphan = put(job / "shared" / UUIDS[0])
    put(job / "notes.txt")
    found = json.loads(json.dumps(plan(tmp_path, policy={"price": 0.5, "currency": "EUR"}).to_json()))
    assert set(found) >= {"fingerprint", "delete", "keep", "unknown", "roots", "stopped"}
    assert [{name: each[name] for name in ("path", "bytes", "kind", "reason")} for each in found["delete"]] == [
        {"path": str(orphan), "bytes": 5, "kind": "shared", "reason": "no snapshot references it"}
    ]
    assert [each["path"] for each in found["unknown"]] == [str(job / "notes.txt")]
    files = {str(path) for path in tmp_path.rglob("*") if path.is_file()}
    assert {each["path"] for name in ("delete", "keep", "unknown") for each in found[name]} == files
    assert (found["monthly_saving"], found["currency"]) == (5 / (1 << 30) * 0.5, "EUR")


def test_the_public_function_is_the_same(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    put(job / "shared" / UUIDS[0])
    assert sp.plan_retention(str(tmp_path)).fingerprint == plan(tmp_path).fingerprint


def test_planning_writes_nothing(tmp_path: Path) -> None:
    install_job(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    plan(tmp_path, policy={"keep": "none"})
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_two_passes_that_agree(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    orphan = put(job / "shared" / UUIDS[0])
    waits: list[float] = []
    assert deleted(plan(tmp_path, grace=MINUTE, wait=waits.append)) == [str(orphan)]
    assert waits == [60]


def test_an_upload_that_gets_referenced_in_the_grace_period_stays(tmp_path: Path) -> None:
    source = install_job(tmp_path / "source")
    job = install_job(tmp_path / "root")
    shutil.rmtree(job / "chk-3")
    waits: list[float] = []

    def complete(seconds: float) -> None:
        if not waits:
            shutil.copytree(source / "chk-3", job / "chk-3", copy_function=shutil.copy2)
        waits.append(seconds)

    mapping = [f"{tmp_path}/source={tmp_path}/root"]
    # What only chk-3 references is an orphan until it is completed.
    assert len(plan(tmp_path / "root", path_mapping=mapping).delete) > 0
    assert deleted(plan(tmp_path / "root", path_mapping=mapping, grace=MINUTE, wait=complete)) == []
    assert len(waits) == 2


def test_what_could_go_only_since_the_first_pass_waits_for_the_next_plan(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    orphan = put(job / "shared" / UUIDS[0])
    result = plan(tmp_path, grace=MINUTE, wait=lambda _: put(job / "shared" / UUIDS[1]))
    assert deleted(result) == [str(orphan)]
    assert "later plan" in kept_reason(result, job / "shared" / UUIDS[1])


def test_a_checkpoint_that_vanishes_while_it_is_listed_is_collected_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = install_job(tmp_path)
    calls: list[object] = []

    def subsume(root):  # type: ignore[no-untyped-def]
        entries = list_tree(root)
        if not calls:
            shutil.rmtree(job / "chk-2")
        calls.append(root)
        return entries

    monkeypatch.setattr(survey, "list_tree", subsume)
    result = plan(tmp_path)
    assert [snapshot.path for snapshot in result.snapshots] == [str(job / "chk-3")]
    assert (len(calls), result.stopped) == (2, ())


def test_checkpoints_that_vanish_each_time_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = install_job(tmp_path)
    kept = tmp_path.parent / "kept"
    shutil.copytree(job / "chk-2", kept)

    def vanish(root):  # type: ignore[no-untyped-def]
        if not (job / "chk-2").exists():
            shutil.copytree(kept, job / "chk-2")
        entries = list_tree(root)
        shutil.rmtree(job / "chk-2")
        return entries

    monkeypatch.setattr(survey, "list_tree", vanish)
    with pytest.raises(StateError, match="vanished"):
        plan(tmp_path)


def test_a_root_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such directory"):
        plan(tmp_path / "nothing")


@pytest.mark.parametrize("roots", [[], ["/"], ["file:///"]])
def test_a_root_must_be_a_directory_of_its_own(roots: list[str]) -> None:
    with pytest.raises(UsageError):
        plan(*roots)


def test_a_directory_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    job = install_job(tmp_path)
    scan = os.scandir

    def refuse(path: str) -> object:
        if str(path).rstrip("/").endswith("chk-3"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StateError, match="chk-3"):
        plan(tmp_path)
    assert job.exists()


def test_a_metadata_that_cannot_be_opened_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from state_pipelines.errors import MissingFileError
    from state_pipelines.operations.retention import references
    from state_pipelines.storage import read_file

    job = install_job(tmp_path)
    put(job / "shared" / UUIDS[0])

    def refuse(location):  # type: ignore[no-untyped-def]
        if "chk-2" in location.path:
            raise MissingFileError("the file cannot be opened (access denied)")
        return read_file(location)

    monkeypatch.setattr(references, "read_metadata_bytes", refuse)
    result = plan(tmp_path)
    assert (deleted(result), "access denied" in result.stopped[0]) == ([], True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://bucket/a", "s3a://bucket/a"),
        ("s3n://bucket/a/", "s3p://BUCKET//a"),
        ("gs://b/a", "gcs://b/a"),
        ("abfss://c@acc.dfs.core.windows.net/a", "abfs://c/a"),
        ("hdfs://nn/a", "hdfs://nn:8020/a"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "file:/a/./b"),
        ("local:///a", "/a"),
        ("s3://b/a/x/../y", "s3://b/a/y"),
    ],
)
def test_spellings_of_one_path(one: str, other: str) -> None:
    assert PathKeys().key(one) == PathKeys().key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://a/x", "s3://b/x"),
        ("s3://a/x", "gs://a/x"),
        ("hdfs://nn1/a", "hdfs://nn2/a"),
        ("hdfs:///a", "/a"),
        ("/a/job1", "/a/job10"),
        ("s3://b/A", "s3://b/a"),
        ("hdfs://nn:9000/a", "hdfs://nn/a"),
    ],
)
def test_spellings_of_different_paths(one: str, other: str) -> None:
    assert PathKeys().key(one) != PathKeys().key(other)


def test_configured_equalities() -> None:
    spelling = PathKeys(parse_equalities(["oss=s3a"]), parse_equalities(["nn1:9000=nn2:9000=cluster"]))
    assert spelling.key("oss://b/a") == spelling.key("s3://b/a")
    assert spelling.key("hdfs://nn1:9000/a") == spelling.key("hdfs://CLUSTER/a")


def test_an_equality_needs_two_names() -> None:
    with pytest.raises(UsageError):
        parse_equalities(["s3"])
