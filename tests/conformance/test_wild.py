"""Snapshots of other projects' jobs: everything opens, and copies and rescaled ones hold the same bytes.

Once with all readers, and once without those of Apache Beam, of the Kafka connectors and of users: what nothing reads
then must not stop anything else.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from state_pipelines import operatorstate
from state_pipelines.cli import main
from state_pipelines.keyed import sections
from state_pipelines.serializers import registry
from state_pipelines.snapshot import open_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

WILD = os.environ.get("FLINK_STATE_WILD")
FOLDERS = sorted(path.parent for path in Path(WILD).rglob("_metadata")) if WILD else []
DESTROYED = "2022-06-02-scala2.12-a0313de2"
"""The folder of a snapshot that a conversion of text has destroyed."""

MOVED = {"chk-6": "file:/state/checkpoint"}
"""By folder of the snapshot the directory that its absolute paths name; it is two folders above the snapshot."""

READABLE = [folder for folder in FOLDERS if DESTROYED not in folder.parts]

pytestmark = pytest.mark.skipif(
    not WILD, reason="FLINK_STATE_WILD is unset: it names the directory with snapshots of other projects' jobs"
)


@pytest.fixture(params=READABLE, ids=lambda folder: str(folder.relative_to(str(WILD)))[:60])
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(params=["all readers", "readers of Flink"], autouse=True)
def readers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether all readers are registered, and not only those of Flink itself."""
    complete = request.param == "all readers"
    if not complete:
        own = {
            name: family
            for name, family in registry._functions.items()
            if name.startswith("org.apache.flink.") and ".connectors." not in name
        }
        monkeypatch.setattr(registry, "_functions", own)
    _forget()
    yield complete
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    """Headers that were read before are read again."""
    for cached in (sections._parse_header, operatorstate._parse_header, operatorstate._settle_header):
        cached.cache_clear()


def call(command: str, folder: Path, *options: object) -> tuple[int, str, str]:
    mapping = (f"{MOVED[folder.name]}={folder.parents[1]}",) if folder.name in MOVED else ()
    arguments = [command, folder, *options, *(each for text in mapping for each in ("--map", text))]
    result = CliRunner().invoke(main, [str(each) for each in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def test_inspect(folder: Path) -> None:
    code, out, _ = call("inspect", folder, "--json")
    report = json.loads(out)
    assert code == 0
    assert [each["error"] for each in report["operators"] if each["error"]] == []
    assert {each["id"] for each in report["operators"]} == {each.id for each in open_snapshot(str(folder)).operators}


def test_inspect_shows_a_checkpoint_whose_files_are_elsewhere(readers: bool) -> None:
    (moved,) = [each for each in READABLE if each.name in MOVED]
    result = CliRunner().invoke(main, ["inspect", str(moved), "--json"], catch_exceptions=False)
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert "--map FROM=TO" in result.stderr
    states = [state for operator in report["operators"] for state in operator["states"]]
    assert any(state["kind"] == "SPLIT_DISTRIBUTE" and state["entries"] is not None for state in states)
    assert CliRunner().invoke(main, ["inspect", str(moved), "--strict"], catch_exceptions=False).exit_code == 3


def test_dump(folder: Path) -> None:
    code, out, _ = call("dump", folder)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line for line in lines if line["kind"] == "unread"] == []


def test_dump_gives_every_element_of_operator_state(folder: Path) -> None:
    _, out, _ = call("dump", folder)
    lines = [json.loads(line) for line in out.splitlines()]
    stored = [
        offset
        for operator in open_snapshot(str(folder)).operators
        for subtask in operator.metadata.subtasks
        if subtask.managed_operator_state is not None
        for state in subtask.managed_operator_state.states
        if state.mode.name != "BROADCAST"
        for offset in state.offsets
    ]
    assert sum(line["kind"] == "operator" for line in lines) == len(stored)


def test_diff_with_itself(folder: Path) -> None:
    code, out, _ = call("diff", folder, folder)
    assert (code, out.splitlines()[0]) == (0, "the same")


def test_rescale(folder: Path, tmp_path: Path) -> None:
    assert call("rescale", folder, "--parallelism", 3, "--out", tmp_path / "rescaled")[0] == 0
    assert call("inspect", tmp_path / "rescaled")[0] == 0


@pytest.mark.parametrize("target", ["keep", "canonical"])
def test_convert(folder: Path, tmp_path: Path, target: str, readers: bool) -> None:
    code, _, err = call("convert", folder, "--format", target, "--out", tmp_path / "copy")
    if target == "canonical" and not readers and code:
        # The ends of heap entries are not known without a reader of their serializers.
        assert (code, "FSSingleKafkaOperatorState" in folder.parts, "--serializer" in err) == (2, True, True)
        return
    assert code == 0
    assert call("diff", folder, tmp_path / "copy")[0] == 0


def test_a_file_that_a_conversion_of_text_destroyed_is_called_so(readers: bool) -> None:
    (destroyed,) = [folder for folder in FOLDERS if DESTROYED in folder.parts]
    for command in ("inspect", "dump"):
        code, out, err = call(command, destroyed)
        assert (code, out) == (2, "")
        assert "destroyed by a conversion of text" in err


def test_what_nothing_reads_is_noted(folder: Path, readers: bool) -> None:
    code, _, err = call("inspect", folder, "--strict")
    unread = "gimral" in str(folder) or "nussknacker" in str(folder)
    if unread and not readers:
        assert (code, "no reader is registered for the serializer snapshot class" in err) == (3, True)
    assert code == (3 if err else 0)
