from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import FormatError, TargetExistsError, UsageError
from state_pipelines.operations.retention import own_directory
from state_pipelines.operations.retention.own_directory import (
    AuditLog,
    AuditRecord,
    AuditRun,
    DeletionOutcome,
    find_leftovers,
)
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FINGERPRINT = "0123456789abcdef"


def make_record(path: str, outcome: DeletionOutcome = DeletionOutcome.INTENDED, detail: str = "") -> AuditRecord:
    return AuditRecord(path, 7, "shared", "no snapshot references it", NOW, FINGERPRINT, outcome, NOW, detail)


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    return AuditLog(resolve(str(tmp_path / "log")))


def start(log: AuditLog, *paths: str) -> AuditRun:
    return log.start_run(FINGERPRINT, map(make_record, paths), time=NOW, roots=["/data"])


def test_every_path_is_a_json_line_with_all_that_is_known_of_it(log: AuditLog, tmp_path: Path) -> None:
    start(log, "/data/a").append([make_record("/data/a", DeletionOutcome.KEPT, "it has changed")])
    lines = [json.loads(line) for file in sorted(tmp_path.rglob("*.jsonl")) for line in file.read_text().splitlines()]
    assert lines[0] == {"time": NOW.isoformat(), "event": "started", "name": FINGERPRINT, "roots": ["/data"]}
    common = {"bytes": 7, "kind": "shared", "reason": "no snapshot references it", "fingerprint": FINGERPRINT}
    common |= {"path": "/data/a", "modified": NOW.isoformat(), "time": NOW.isoformat()}
    assert lines[1:] == [common | {"outcome": "intended"}, common | {"outcome": "kept", "detail": "it has changed"}]


def test_records_are_read_back(log: AuditLog) -> None:
    run = start(log, "/data/a", "/data/ü\n")
    run.append([make_record("/data/a", DeletionOutcome.DELETED)])
    assert list(log.read()) == [
        *map(make_record, ("/data/a", "/data/ü\n")),
        make_record("/data/a", DeletionOutcome.DELETED),
    ]


def test_no_log_is_an_empty_one(log: AuditLog) -> None:
    assert log.find_runs() == []


def test_run_is_unfinished_until_it_says_otherwise(log: AuditLog) -> None:
    run = start(log, "/data/a")
    assert [each.name for each in log.find_unfinished_runs()] == [FINGERPRINT]
    run.finish(NOW)
    assert log.find_unfinished_runs() == []


@pytest.mark.parametrize(
    ("outcome", "left"),
    [(each, each in (DeletionOutcome.INTENDED, DeletionOutcome.FAILED)) for each in DeletionOutcome],
)
def test_intended_and_failed_paths_are_left_to_do(log: AuditLog, outcome: DeletionOutcome, *, left: bool) -> None:
    start(log, "/data/a", "/data/b").append([make_record("/data/a", outcome)])
    (run,) = log.find_unfinished_runs()
    assert ("/data/a" in run.unfinished_records()) is left
    assert "/data/b" in run.unfinished_records()


def test_two_processes_cannot_continue_one_run(log: AuditLog) -> None:
    start(log, "/data/a")
    (first,), (second,) = log.find_runs(), log.find_runs()
    first.append([make_record("/data/a", DeletionOutcome.DELETED)])
    with pytest.raises(TargetExistsError):
        second.append([make_record("/data/a", DeletionOutcome.DELETED)])


def test_files_of_the_log_are_never_changed(log: AuditLog, tmp_path: Path) -> None:
    run = start(log, "/data/a")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.jsonl")}
    run.append([make_record("/data/a", DeletionOutcome.DELETED)])
    run.finish(NOW)
    assert {file: file.read_bytes() for file in before} == before


def test_a_run_that_was_killed_before_its_first_file_is_no_run(log: AuditLog, tmp_path: Path) -> None:
    directory = tmp_path / "log" / f"20260102T030405000000Z-{FINGERPRINT}"
    directory.mkdir(parents=True)
    (directory / ".000000-started.jsonl.17").write_text('{"time": "2026')
    assert log.find_runs() == []


def test_damaged_line_names_file_and_line(log: AuditLog, tmp_path: Path) -> None:
    start(log, "/data/a")
    (file,) = tmp_path.rglob("*.jsonl")
    file.write_text(file.read_text() + '{"path": 1}\n')
    with pytest.raises(FormatError, match=r"000000-started\.jsonl.*line 3"):
        list(log.read())


def test_a_run_whose_first_line_is_damaged_says_what_to_do(log: AuditLog, tmp_path: Path) -> None:
    run = start(log, "/data/a")
    (file,) = tmp_path.rglob("*.jsonl")
    file.write_text(file.read_text()[:40])
    with pytest.raises(
        FormatError, match=r"out of the audit log.*000000-started\.jsonl|000000-started\.jsonl.*out of the"
    ):
        run.read_header()


LINE = make_record("/data/a").to_json()


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b'{"event": "started"}\n\xff',
        b"[]",
        b"5",
        b'"event"',
        b"null",
        b"",
        b"[" * 100_000,
        json.dumps(LINE | {"kind": "no kind"}).encode(),
        json.dumps(LINE | {"kind": ["shared"]}).encode(),
        json.dumps(LINE | {"outcome": "no outcome"}).encode(),
        json.dumps(LINE | {"path": ["a"]}).encode(),
        json.dumps(LINE | {"path": None}).encode(),
        json.dumps(LINE | {"bytes": -1}).encode(),
        json.dumps(LINE | {"bytes": True}).encode(),
        json.dumps(LINE | {"bytes": "7"}).encode(),
        json.dumps(LINE).replace(": 7,", ": 1e400,").encode(),
        json.dumps(LINE).replace(": 7,", f": {'9' * 5000},").encode(),
        json.dumps(LINE | {"modified": "9" * 1_000_000}).encode(),
        json.dumps(LINE | {"time": 5}).encode(),
    ],
    ids=range(20),
)
def test_files_that_are_not_of_a_log_are_one_error(log: AuditLog, tmp_path: Path, content: bytes) -> None:
    run = start(log, "/data/a")
    (file,) = tmp_path.rglob("*.jsonl")
    file.write_bytes(content)
    for call in (lambda: list(log.read()), lambda: find_leftovers(log), lambda: list(run.read())):
        with pytest.raises(FormatError, match=r"000000-started\.jsonl") as caught:
            call()
        assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[]", b"5", b'"roots"', b""])
def test_first_lines_that_are_not_of_a_log_are_one_error(log: AuditLog, tmp_path: Path, content: bytes) -> None:
    run = start(log, "/data/a")
    (file,) = tmp_path.rglob("*.jsonl")
    file.write_bytes(content)
    with pytest.raises(FormatError, match=r"000000-started\.jsonl"):
        run.read_header()


def test_files_that_are_too_large_are_neither_read_nor_written(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(log, "/data/a")
    monkeypatch.setattr(own_directory, "MOST_LINES", 100)
    with pytest.raises(FormatError, match="more than 100 bytes"):
        list(log.read())
    with pytest.raises(FormatError, match="more than 100 bytes"):
        run.read_header()
    with pytest.raises(UsageError, match="fewer roots"):
        run.append([make_record("/data/a", DeletionOutcome.DELETED)])


@pytest.mark.parametrize("name", ["a\u2028b", "a\x0bb", "a\x85b", "a\x1cb", "a\rb", "a\nb", "a\udcffb"])
def test_names_with_any_characters_are_read_back(log: AuditLog, name: str) -> None:
    start(log, name)
    assert list(log.read()) == [make_record(name)]
