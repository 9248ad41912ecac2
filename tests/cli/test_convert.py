from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from state_pipelines.snapshot import open_snapshot
from tests.flink.harness import diff_entries
from tests.snapshot.savepoints import orders
from tests.snapshots import OWN, Case, select

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

UIDS = [text for uid in orders().uids for text in ("--uid", uid)]


def find(name: str) -> Case:
    (case,) = (each for each in select("2.2", name) if each in OWN)
    return case


def arguments(case: Case) -> list[object]:
    return [case.path, *(text for each in case.path_mapping for text in ("--map", each))]


@pytest.mark.slow
def test_the_new_snapshot_holds_what_the_old_one_does(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("convert", orders().path, "--out", tmp_path / "new", "--format", "rocksdb")
    assert called.code == 0
    assert called.out.endswith(f"read back and compared\nnew snapshot: {tmp_path / 'new'}\n")
    assert "4 subtasks rewritten, 7 files copied" in called.out
    assert not diff_entries(orders().entries(), call("dump", tmp_path / "new", *UIDS).lines)


@pytest.mark.slow
def test_canonical_is_the_default(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("convert", *arguments(find("rocksdb-incremental")), "--out", tmp_path / "new", "--json")
    assert called.json["format"] == "canonical"
    assert {name: called.json[name] for name in ("path", "converted", "verified", "notes")} == {
        "path": str(tmp_path / "new"),
        "converted": 4,
        "verified": True,
        "notes": [],
    }
    states = {(each["operator"], each["state"]): each["records"] for each in called.json["states"]}
    assert all(isinstance(count, int) for count in states.values())


@pytest.mark.slow
def test_notes_go_to_stderr(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("convert", orders().path, "--out", tmp_path / "new", "--format", "heap")
    assert called.err == (
        "note: the native format restores with state.backend.type: hashmap and Flink 1.15 or newer only; "
        "canonical restores everywhere\n"
    )


def test_a_dry_run_writes_nothing(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("convert", orders().path, "--out", tmp_path / "new", "--format", "heap", "--dry-run", *UIDS)
    assert called.code == 0
    assert "orders " in called.out
    assert called.out.endswith(f"nothing was written to {tmp_path / 'new'} (--dry-run)\n")
    assert "state.backend.type: hashmap" in called.err
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_as_json(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("convert", orders().path, "--out", tmp_path / "new", "--format", "heap", "--dry-run", "--json")
    assert called.json["path"] is None
    assert len(called.json["planned"]) == 4
    assert len(called.json["notes"]) == 1


def test_compression_and_no_verification(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("convert", orders().path, "--out", tmp_path / "new", "--compress", "--no-verify")
    assert "not read back (--no-verify)" in called.out
    operator = open_snapshot(str(tmp_path / "new")).operator("orders")
    assert {file.header.compressed for _, file in operator.keyed_files} == {True}


def test_copies_are_not_called_compared(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("convert", orders().path, "--out", tmp_path / "one", "--format", "keep")
    assert "\nnothing to compare: files were only copied\n" in called.out
    told = call("convert", orders().path, "--out", tmp_path / "two", "--json").json
    assert (told["verified"], told["verification"]) == (None, "nothing to compare: files were only copied")


def test_in_flight_data_are_refused(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("convert", *arguments(find("unaligned")), "--out", tmp_path / "new")
    assert (called.code, called.out) == (2, "")
    assert "in-flight data of" in called.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("choice", "kind"), [("keep", "checkpoint"), ("drop", "savepoint")])
def test_in_flight_data_are_kept_or_dropped(
    call: Callable[..., Called], tmp_path: Path, choice: str, kind: str
) -> None:
    called = call("convert", *arguments(find("unaligned")), "--out", tmp_path / "new", "--in-flight", choice)
    assert called.code == 0
    assert called.err.startswith("note: in-flight data of")
    assert open_snapshot(str(tmp_path / "new")).kind == kind


@pytest.mark.slow
def test_what_a_format_cannot_carry_is_refused(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("convert", *arguments(find("heap")), "--out", tmp_path / "new", "--format", "heap", "--compress")
    assert called.code == 2
    assert called.err.splitlines()[-1].startswith("error: a SQL timestamp is null")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(call: Callable[..., Called], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    called = call("convert", orders().path, "--out", tmp_path, "--format", "keep")
    assert called.code == 2
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_a_reference_takes_no_space(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("convert", orders().path, "--out", tmp_path / "new", "--format", "keep", "--files", "reference")
    assert "0 subtasks rewritten, 0 files copied, 0 B" in called.out
    assert "not self-contained" in called.err
    assert not diff_entries(
        orders().entries(), call("dump", tmp_path / "new", *UIDS, "--allow-root", orders().path).lines
    )


def test_checksums_are_told(call: Callable[..., Called], tmp_path: Path) -> None:
    arguments = ("convert", orders().path, "--format", "keep", "--checksums")
    assert "its checksum compared" in call(*arguments, "--out", tmp_path / "new").out
    assert call(*arguments, "--out", tmp_path / "other", "--json").json["checksums"] is True


def test_a_move_says_what_it_would_remove_and_removes_it(call: Callable[..., Called], tmp_path: Path) -> None:
    call("convert", orders().path, "--out", tmp_path / "old", "--format", "keep")
    move = ("convert", tmp_path / "old", "--out", tmp_path / "new", "--format", "keep", "--move")
    planned = call(*move, "--dry-run", "--json").json["removal"]
    assert sorted(planned) == sorted(map(str, (tmp_path / "old").iterdir()))
    assert f"{len(planned)} files of the old snapshot removed" in call(*move, "--apply").out
    assert not (tmp_path / "old").exists()


@pytest.mark.parametrize("files", ["copy", "link"])
def test_a_move_is_a_dry_run_unless_it_is_applied(call: Callable[..., Called], tmp_path: Path, files: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    call("convert", orders().path, "--out", old, "--format", "keep")
    before = sorted(old.iterdir())
    called = call("convert", old, "--out", new, "--format", "keep", "--move", "--files", files)
    assert (called.code, new.exists(), sorted(old.iterdir())) == (0, False, before)
    assert "nothing was written to" in called.out
    assert "(--move without --apply)" in called.out


def test_apply_alone_is_wrong_use(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("convert", orders().path, "--out", tmp_path / "new", "--apply")
    assert (called.code, "--apply has no effect without --move" in called.err) == (2, True)


@pytest.mark.slow
def test_spark_is_not_imported() -> None:
    code = "import sys, state_pipelines.cli.convert; print({'pyspark', 'dagster'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
