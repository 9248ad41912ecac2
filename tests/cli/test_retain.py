from __future__ import annotations

import json
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.operations.retention.trees import UUIDS, install_job, install_savepoint, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Called


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Checkpoints of a job, one orphan, and a file of somebody."""
    job = install_job(tmp_path / "root")
    put(job / "shared" / UUIDS[0])
    put(job / "notes.txt")
    return tmp_path / "root"


def test_the_plan_is_shown_and_nothing_deleted(call: Callable[..., Called], root: Path) -> None:
    before = sorted(root.rglob("*"))
    called = call("retain", root)
    assert (called.code, called.err) == (0, "")
    for text in (UUIDS[0], "no snapshot references it", "notes.txt: not a name that Flink writes", "chk-3"):
        assert text in called.out
    assert "1 path with 5 B would go" in called.out
    assert sorted(root.rglob("*")) == before


def test_json_has_the_fingerprint_that_people_see(call: Callable[..., Called], root: Path) -> None:
    found = call("retain", root, "--json").json
    assert [each["path"].rpartition("/")[2] for each in found["delete"]] == [UUIDS[0]]
    assert f"fingerprint {found['fingerprint']}; nothing was deleted" in call("retain", root).out


def test_a_policy_of_a_file(call: Callable[..., Called], root: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("checkpoints: {last: 1}\nprice: 0.5\n")
    found = call("retain", root, "--policy", tmp_path / "policy.yaml", "--json").json
    assert [each["path"].rpartition("/")[2] for each in found["snapshots"] if each["delete"]] == ["chk-2"]
    assert found["monthly_saving"] == pytest.approx(found["bytes"] / 2**30 * 0.5)


def test_a_wrong_policy_names_file_and_field(call: Callable[..., Called], root: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("checkpoints: {lats: 1}\n")
    called = call("retain", root, "--policy", tmp_path / "policy.yaml")
    assert called.code == 2
    assert str(tmp_path / "policy.yaml") in called.err
    assert "checkpoints does not know 'lats'" in called.err


@pytest.mark.slow
def test_the_price_is_an_option(call: Callable[..., Called], root: Path) -> None:
    put(root / "savepoint-66118e-0123456789ab" / UUIDS[1], bytes(100 << 20))
    assert "9.77 EUR a month" in call("retain", root, "--price", "100", "--currency", "EUR").out


def test_the_floor_is_an_option(call: Callable[..., Called], root: Path) -> None:
    assert call("retain", root, "--min-age", "60d", "--json").json["delete"] == []


def test_a_wrong_age_is_wrong_use(call: Callable[..., Called], root: Path) -> None:
    called = call("retain", root, "--min-age", "soon")
    assert called.code == 2
    assert "'soon' is not a duration" in called.err


def test_a_damaged_metadata_is_shown(call: Callable[..., Called], root: Path) -> None:
    metadata = next(root.glob("*/chk-2/_metadata"))
    metadata.write_bytes(b"damaged")
    called = call("retain", root)
    assert called.code == 0
    assert f"stopped: {metadata} cannot be read" in called.out
    assert call("retain", root, "--strict").code == 3


def test_a_missing_root_is_wrong_use(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("retain", tmp_path / "nothing")
    assert called.code == 2
    assert "there is no such directory" in called.err


def test_pins(call: Callable[..., Called], tmp_path: Path) -> None:
    install_savepoint(tmp_path)
    old = install_savepoint(tmp_path, name="savepoint-b1f07a-000000000001", age=timedelta(days=60))
    (tmp_path / "policy.yaml").write_text("keep: {last: 1}\n")
    plan = ("retain", tmp_path, "--policy", tmp_path / "policy.yaml", "--json")
    assert call(*plan).json["delete"][0]["path"] == str(old / "_metadata")
    pinned = call("retain", tmp_path, "--pin", old, "--reason", "audit")
    assert (pinned.code, "audit" in pinned.out) == (0, True)
    assert call(*plan).json["delete"] == []
    assert call("retain", tmp_path, "--pins", "--json").json["pins"][0]["path"] == old.name
    assert call("retain", tmp_path, "--unpin", old.name).code == 0
    assert len(call(*plan).json["delete"]) > 0


def test_a_pin_outside_the_roots_is_refused(call: Callable[..., Called], root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "root2")
    called = call("retain", root, "--pin", tmp_path / "root2")
    assert called.code == 2
    assert "below none of the roots" in called.err


def test_a_reason_without_a_pin_is_refused(call: Callable[..., Called], root: Path) -> None:
    assert call("retain", root, "--reason", "why").code == 2


@pytest.mark.slow
def test_a_plan_is_applied_by_its_fingerprint(call: Callable[..., Called], root: Path) -> None:
    fingerprint = call("retain", root, "--json").json["fingerprint"]
    called = call("retain", root, "--apply", fingerprint)
    assert (called.code, "1 path with 5 B deleted" in called.out) == (0, True)
    assert not list(root.glob(f"*/shared/{UUIDS[0]}"))
    assert call("retain", root, "--json").json["delete"] == []


def test_another_fingerprint_deletes_nothing(call: Callable[..., Called], root: Path) -> None:
    fingerprint = call("retain", root, "--json").json["fingerprint"]
    put(next(root.glob("*/shared")) / UUIDS[1])
    called = call("retain", root, "--apply", fingerprint)
    assert called.code == 1
    assert f"the current plan is not {fingerprint}" in called.err
    assert len(call("retain", root, "--json").json["delete"]) == 2


@pytest.mark.slow
def test_an_application_that_is_limited_continues(call: Callable[..., Called], root: Path) -> None:
    put(next(root.glob("*/shared")) / UUIDS[1])
    fingerprint = call("retain", root, "--json").json["fingerprint"]
    first = call("retain", root, "--apply", fingerprint, "--max-paths", 1, "--json")
    assert (first.code, first.json["paths"], first.json["remaining"]) == (1, 1, 1)
    second = call("retain", root, "--apply", fingerprint, "--json")
    assert (second.code, second.json["paths"], second.json["finished"]) == (0, 1, True)


@pytest.mark.slow
def test_quarantine_and_back(call: Callable[..., Called], root: Path) -> None:
    fingerprint = call("retain", root, "--json").json["fingerprint"]
    file = next(root.glob(f"*/shared/{UUIDS[0]}"))
    assert "moved to quarantine" in call("retain", root, "--apply", fingerprint, "--quarantine").out
    assert not file.exists()
    assert "1 file with 5 B restored" in call("retain", root, "--restore", fingerprint).out
    assert file.read_bytes() == b"state"


@pytest.mark.slow
def test_a_quarantine_is_purged(call: Callable[..., Called], root: Path) -> None:
    fingerprint = call("retain", root, "--json").json["fingerprint"]
    call("retain", root, "--apply", fingerprint, "--quarantine")
    assert "no file is old enough" in call("retain", root, "--purge", "7d").out
    assert "1 file with 5 B purged" in call("retain", root, "--purge", "0s").out
    assert call("retain", root, "--restore", fingerprint).code == 2


def test_limits_need_apply(call: Callable[..., Called], root: Path) -> None:
    assert call("retain", root, "--quarantine").code == 2


@pytest.mark.slow
def test_a_grace_period_comes_before_the_application(call: Callable[..., Called], root: Path) -> None:
    put(next(root.glob("*/shared")) / UUIDS[1])
    fingerprint = call("retain", root, "--json").json["fingerprint"]
    assert call("retain", root, "--apply", "0123456789abcdef", "--grace", "0.1s").code == 1
    assert call("retain", root, "--apply", fingerprint, "--grace", "0.1s", "--max-paths", 1).code == 1
    assert call("retain", root, "--apply", fingerprint, "--grace", "0.1s").code == 0
    assert call("retain", root, "--json").json["delete"] == []


def test_nothing_is_deleted_while_the_newest_snapshot_is_damaged(call: Callable[..., Called], root: Path) -> None:
    fingerprint = call("retain", root, "--json").json["fingerprint"]
    (newest,) = root.glob("*/chk-3")
    for file in newest.iterdir():
        if file.name != "_metadata":
            times = file.stat()
            file.write_bytes(b"\xff" * times.st_size)
            os.utime(file, (times.st_atime, times.st_mtime))
    before = sorted(root.rglob("*"))
    called = call("retain", root, "--apply", fingerprint)
    assert called.code == 1
    for text in (f"{newest}", "damaged", "Nothing was deleted"):
        assert text in called.err
    assert sorted(root.rglob("*")) == before


@pytest.mark.slow
def test_a_plan_of_a_file_is_applied_though_more_could_go(
    call: Callable[..., Called], root: Path, tmp_path: Path
) -> None:
    (tmp_path / "plan.json").write_text(call("retain", root, "--json").out)
    fingerprint = json.loads((tmp_path / "plan.json").read_text())["fingerprint"]
    put(next(root.glob("*/shared")) / UUIDS[1])
    called = call("retain", root, "--apply", fingerprint, "--plan", tmp_path / "plan.json")
    assert (called.code, "1 path with 5 B deleted" in called.out) == (0, True)
    assert [each["path"].rpartition("/")[2] for each in call("retain", root, "--json").json["delete"]] == [UUIDS[1]]


def test_the_plan_of_a_file_must_have_the_fingerprint(call: Callable[..., Called], root: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    for path in (tmp_path / "plan.json", tmp_path / "nothing.json"):
        called = call("retain", root, "--apply", "0123456789abcdef", "--plan", path)
        assert (called.code, str(path) in called.err) == (2, True)
    assert call("retain", root, "--plan", tmp_path / "plan.json").code == 2


@pytest.mark.parametrize("name", ["_retention", "_retention/quarantine"])
@pytest.mark.parametrize("arguments", [("--purge", "1d"), ("--restore", "0123456789abcdef")])
def test_a_quarantine_that_is_a_link_is_wrong_use(
    call: Callable[..., Called], root: Path, tmp_path: Path, name: str, arguments: tuple[str, ...]
) -> None:
    inner = "quarantine/20200101T000000Z-0123456789abcdef/x/precious"
    precious = put(tmp_path / "victim" / inner if name == "_retention" else tmp_path / "victim" / inner[11:])
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).symlink_to(tmp_path / "victim")
    called = call("retain", root, *arguments)
    assert (called.code, called.out) == (2, "")
    assert f"symbolic link, and retention follows none to its own files [file {root / name}]" in called.err
    assert precious.exists()
    assert not list(root.rglob("precious"))


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"[]\n",
        b'{"event": "started"}\n{"kind": "no kind"}\n',
        b'{"path": "/a", "bytes": 1e400, "kind": "shared", "reason": "", "modified": null}\n',
        b'{"path": "/a", "bytes": 1, "kind": "quarantined", "reason": "", "modified": null, "outcome": "intended",'
        b' "fingerprint": "0123456789abcdef", "time": "2020-01-01T00:00:00"}\n',
    ],
)
def test_a_damaged_audit_log_is_one_error(call: Callable[..., Called], root: Path, content: bytes) -> None:
    run = root / "_retention" / "log" / "20200101T000000000000Z-0123456789abcdef"
    put(run / "000000-started.jsonl", content)
    before = sorted(root.rglob("*"))
    called = call("retain", root, "--apply", "0123456789abcdef")
    assert (called.code, called.out) == (2, "")
    assert "out of the audit log" in called.err
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize(
    "change",
    [
        {"path": ["a"]},
        {"path": None},
        {"bytes": "7"},
        {"bytes": 1.5},
        {"reason": {}},
        {"kind": "no kind"},
        {"modified": 5},
    ],
)
def test_a_damaged_plan_is_wrong_use(
    call: Callable[..., Called], root: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    plan = call("retain", root, "--json").json
    plan["delete"][0] |= change
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    called = call("retain", root, "--apply", plan["fingerprint"], "--plan", tmp_path / "plan.json")
    assert called.code == 2
    assert f"does not hold the plan {plan['fingerprint']}" in called.err


@pytest.mark.slow
def test_a_root_with_a_way_up_is_the_same_root(call: Callable[..., Called], root: Path) -> None:
    up = f"{root}/../{root.name}"
    fingerprint = call("retain", root, "--json").json["fingerprint"]
    called = call("retain", up, "--apply", fingerprint, "--quarantine")
    assert (called.code, "moved to quarantine" in called.out) == (0, True)
    assert not list(root.glob(f"*/shared/{UUIDS[0]}"))
    assert call("retain", up, "--restore", fingerprint).code == 0
    assert list(root.glob(f"*/shared/{UUIDS[0]}"))


@pytest.mark.slow
def test_a_restored_snapshot_that_is_not_complete(call: Callable[..., Called], tmp_path: Path) -> None:
    job = install_job(tmp_path / "root")
    (tmp_path / "policy.yaml").write_text("checkpoints: {last: 1}\n")
    command = ("retain", tmp_path / "root", "--policy", tmp_path / "policy.yaml")
    planned = call(*command, "--json").json
    assert call(*command, "--apply", planned["fingerprint"], "--quarantine").code == 0
    shared = next(Path(each["path"]).name for each in planned["delete"] if each["kind"] == "shared")
    (lost,) = (tmp_path / "root" / "_retention" / "quarantine").rglob(shared)
    lost.unlink()
    called = call("retain", tmp_path / "root", "--restore", f"{job.name}/chk-2")
    assert called.code == 1
    assert "the restored snapshot is not complete" in called.out
    assert shared in called.out


@pytest.mark.slow
def test_the_next_plan_keeps_a_restored_snapshot(call: Callable[..., Called], tmp_path: Path) -> None:
    job = install_job(tmp_path / "root")
    (tmp_path / "policy.yaml").write_text("checkpoints: {last: 1}\n")
    command = ("retain", tmp_path / "root", "--policy", tmp_path / "policy.yaml")
    fingerprint = call(*command, "--json").json["fingerprint"]
    assert call(*command, "--apply", fingerprint, "--quarantine").code == 0
    called = call("retain", tmp_path / "root", "--restore", f"{job.name}/chk-2", "--json")
    assert (called.code, called.json["pinned"]) == (0, [str(job / "chk-2")])
    kept = [each for each in call(*command, "--json").json["delete"] if "chk-2" in each["path"]]
    assert kept == []


@pytest.mark.slow
def test_names_of_files_forge_no_lines(call: Callable[..., Called], root: Path) -> None:
    shared = next(root.glob("*/shared"))
    forged = "0 paths with 0 B would go; 9 files stay"
    put(shared / f"x\n{forged}\n\x1b[2K\r{forged}")
    put(root / f"a\n{forged}" / "shared" / UUIDS[1])
    for command in (("retain", root), ("retain", root, "--all")):
        called = call(*command)
        assert forged not in called.out.splitlines()
        assert all(each.isprintable() for each in called.out.splitlines())
        assert f"\\n{forged}" in called.out
    fingerprint = call("retain", root, "--json").json["fingerprint"]
    assert call("retain", root, "--apply", fingerprint, "--quarantine").code == 0
    put(root / f"a\n{forged}" / "shared" / UUIDS[1])
    called = call("retain", root, "--restore", fingerprint)
    assert (called.code, forged in called.out.splitlines()) == (1, False)
    assert "a new file at its former path" in called.out


def test_wrong_options_are_called_by_their_names(call: Callable[..., Called], root: Path) -> None:
    called = call("retain", root, "--min-age", "3")
    assert (called.code, "'3' is not a duration [at --min-age]" in called.err) == (2, True)
    called = call("retain", root, "--apply", "zz")
    assert (called.code, "'zz' is no fingerprint" in called.err) == (2, True)


def test_what_is_too_young_is_counted(call: Callable[..., Called], root: Path) -> None:
    put(next(root.glob("*/shared")) / UUIDS[0], age=timedelta(hours=1))
    called = call("retain", root)
    assert "nothing is old enough to go: 0 snapshots and 1 files" in called.out
    assert "old enough" not in call("retain", root, "--min-age", "0s").out
