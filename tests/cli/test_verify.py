"""`verify`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import state_pipelines as sp

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Called


def largest_file(snapshot: Path) -> Path:
    files = [path for path in snapshot.iterdir() if path.name != "_metadata"]
    return max(files, key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("depth", ["files", "sample", "whole"])
def test_a_sound_snapshot_is_restorable(call: Callable[..., Called], savepoint: Path, depth: str) -> None:
    called = call("verify", savepoint, "--depth", depth)
    assert called.code == 0
    assert called.out.startswith("restorable: savepoint")


def test_damage_is_exit_code_one_with_file_and_operator(call: Callable[..., Called], broken: Path) -> None:
    file = largest_file(broken)
    os.truncate(file, file.stat().st_size - 1)
    called = call("verify", broken, "--depth", "files")
    assert called.code == 1
    assert called.out.startswith("damaged: savepoint")
    assert f"file {file}" in called.out
    assert "operator " in called.out


def test_json_has_every_finding(call: Callable[..., Called], broken: Path) -> None:
    file = largest_file(broken)
    file.unlink()
    called = call("verify", broken, "--json")
    (report,) = called.json["snapshots"]
    assert (called.code, called.json["verdict"], report["verdict"]) == (1, "damaged", "damaged")
    (finding,) = report["findings"]
    assert (finding["severity"], finding["property"], finding["file"]) == ("error", "files", str(file))
    assert report["properties"]["files"]["error"] == 1
    assert (called.json["newest_restorable"], report["findings_left_out"]) == (None, 0)


def test_damaged_metadata_is_damage(call: Callable[..., Called], broken: Path) -> None:
    os.truncate(broken / "_metadata", 100)
    called = call("verify", broken)
    assert called.code == 1
    assert str(broken / "_metadata") in called.out


def test_an_unknown_version_of_metadata_is_undetermined(call: Callable[..., Called], broken: Path) -> None:
    data = bytearray((broken / "_metadata").read_bytes())
    data[7] = 99
    (broken / "_metadata").write_bytes(data)
    assert call("verify", broken).code == 3


def test_a_path_without_snapshots_is_wrong_use(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("verify", tmp_path)
    assert (called.code, "no snapshot is in the directory" in called.err) == (2, True)


@pytest.fixture
def root(tmp_path: Path, savepoint: Path) -> Path:
    """Three copies of a savepoint, a minute apart, and the newest one damaged."""
    for age, name in enumerate(("savepoint-c", "savepoint-b", "savepoint-a")):
        copy = tmp_path / "root" / name
        shutil.copytree(savepoint, copy)
        os.utime(copy / "_metadata", (1_700_000_000 - 60 * age,) * 2)
    largest_file(tmp_path / "root" / "savepoint-c").unlink()
    return tmp_path / "root"


def test_the_newest_restorable_snapshot_below_a_root_is_named(call: Callable[..., Called], root: Path) -> None:
    called = call("verify", root, "--depth", "files")
    assert called.code == 1
    assert called.out.splitlines()[-1] == f"newest without an error: {root / 'savepoint-b'}"


def test_snapshots_below_a_root_come_newest_first(call: Callable[..., Called], root: Path) -> None:
    report = call("verify", root, "--depth", "files", "--json").json
    assert [Path(each["path"]).name for each in report["snapshots"]] == ["savepoint-c", "savepoint-b", "savepoint-a"]
    assert report["newest_restorable_by_directory"] == {str(root): str(root / "savepoint-b")}


def test_a_missing_file_is_looked_for_in_other_snapshots(call: Callable[..., Called], root: Path) -> None:
    called = call("verify", root / "savepoint-c", "--depth", "files", "--search", root / "savepoint-a")
    assert f"A file of this name and size is in {root / 'savepoint-a'}" in called.out


def test_the_python_api_gives_the_same(broken: Path) -> None:
    file = largest_file(broken)
    file.unlink()
    report = sp.verify(str(broken), depth="files")
    summary = sp.verify_all(str(broken.parent), depth="files")
    assert [each.file for each in report.findings] == [str(file)]
    assert summary.reports[0].findings == report.findings
    assert summary.newest_restorable is None


def make_drill(tmp_path: Path, text: str) -> str:
    script = tmp_path / "drill.sh"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return f"{script} --job orders.jar"


def test_a_drill_that_restores_is_a_property_that_holds(
    call: Callable[..., Called], savepoint: Path, tmp_path: Path
) -> None:
    drill = make_drill(tmp_path, f'test "$*" = "--job orders.jar {savepoint}"')
    called = call("verify", savepoint, "--json", "--drill", drill)
    (report,) = called.json["snapshots"]
    assert (called.code, report["properties"]["restore"]["error"]) == (0, 0)


def test_a_drill_that_fails_is_damage_with_its_output(
    call: Callable[..., Called], savepoint: Path, tmp_path: Path
) -> None:
    called = call("verify", savepoint, "--drill", make_drill(tmp_path, "echo StateMigrationException; exit 3"))
    assert called.code == 1
    assert "exit code 3: StateMigrationException" in called.out


def test_damaged_snapshots_are_not_drilled(call: Callable[..., Called], broken: Path, tmp_path: Path) -> None:
    largest_file(broken).unlink()
    called = call("verify", broken, "--json", "--drill", make_drill(tmp_path, f"touch {tmp_path}/ran"))
    assert (called.code, (tmp_path / "ran").exists()) == (1, False)
    assert "restore" not in called.json["snapshots"][0]["properties"]


def test_a_drill_that_does_not_exist_is_wrong_use(call: Callable[..., Called], savepoint: Path) -> None:
    called = call("verify", savepoint, "--drill", "/nowhere/drill")
    assert (called.code, "cannot be started" in called.err) == (2, True)
