from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import FormatError, UsageError
from state_pipelines.operations.requests import Operation, RequestStatus, describe_result, list_requests, parse_request
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from pathlib import Path


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "{operation: migrate, snapshot: latest, to: head}",
        "{operation: migrate, snapshot: chk-7, from_revision: '0003'}",
        "{operation: migrate, snapshot: latest, match: {3_join: 8_join}, backfill: {total: s3://tables/total.parquet}}",
        "{operation: rescale, snapshot: latest, parallelism: 6, files: link}",
        "{operation: convert, snapshot: latest, format: rocksdb, compress: true, in_flight: drop}",
        "{operation: copy, snapshot: latest, target: /backup/one}",
        "{operation: pin, snapshot: savepoint-1a2b, reason: before the release}",
        "{operation: unpin, snapshot: savepoint-1a2b}",
        "{operation: verify, snapshot: latest, depth: whole}",
        "{operation: retain, policy: {keep: {last: 3}}}",
        "{operation: retain, apply: 0123456789abcdef}",
    ],
)
def test_every_operation_can_be_asked_for(tmp_path: Path, text: str) -> None:
    write(tmp_path, "a.yaml", text)
    (file,) = list_requests(resolve(str(tmp_path)))
    assert file.read().operation.value in text


def test_without_an_operation_a_rescaling_is_asked_for() -> None:
    request = parse_request({"snapshot": "latest", "max_parallelism": 1024})
    assert (request.operation, request.snapshot) == (Operation.RESCALE, "latest")
    assert request.to_yaml() == "max_parallelism: 1024\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "not a mapping"),
        ({"operation": "destroy", "snapshot": "latest"}, "operation is 'destroy'.*Choose from migrate"),
        ({"operation": "migrate"}, "names no snapshot"),
        ({"operation": "retain", "snapshot": "latest"}, "concerns all snapshots"),
        ({"operation": "pin", "snapshot": "a", "until": "2027"}, "does not know 'until'.*It knows reason"),
        (
            {"operation": "convert", "snapshot": "a", "format": "parquet"},
            "format of a request to convert.*canonical, heap",
        ),
        ({"operation": "convert", "snapshot": "a", "compress": "yes"}, "compress must be true or false, not 'yes'"),
        ({"operation": "migrate", "snapshot": "a", "to": True}, "to of a request to migrate is not text but True"),
        ({"operation": "migrate", "snapshot": "a", "from_revision": 3}, 'is not text but 3.*quotes: from_revision: "'),
        ({"operation": "pin", "snapshot": "a", "reason": 5}, "reason of a request to pin is not text but 5"),
        ({"operation": "retain", "apply": 1234567}, "apply of a request to retain is not text but 1234567"),
        ({"operation": "migrate", "snapshot": "a", "match": ["3=8"]}, "match is not a mapping but"),
        ({"operation": "migrate", "snapshot": "a", "match": {3: "8_join"}}, "a name in match is not text but 3"),
        ({"operation": "migrate", "snapshot": "a", "match": {"3": 8}}, "3 of match is not text but 8"),
        ({"operation": "migrate", "snapshot": "a", "backfill": {"total": None}}, "total of backfill is not text"),
        (
            {"operation": "migrate", "snapshot": "a", "backfill": {"total": "s3://user:secret@tables/total"}},
            "backfill has a user, a password or a query",
        ),
        ({"operation": "convert", "snapshot": "a", "fromat": "heap"}, "a request to convert does not know 'fromat'"),
        ({"operation": "copy", "snapshot": "a", "target": 1.5}, "target of a request to copy is not text but 1.5"),
        ({"operation": "verify", "snapshot": 2026}, "snapshot is 2026, not text"),
        ({"operation": "verify", "snapshot": "a", "depth": "deep"}, "depth of .* is 'deep'.*files, sample, whole"),
        ({"operation": "rehearse", "depth": "deep"}, "a request to rehearse does not know 'depth'.*It knows no field"),
        ({"operation": ["pin"], "snapshot": "a"}, "operation is a list, not text"),
        (
            {"operation": "pin", "snapshot": "a", "reason": "x" * 5000},
            "reason has 5,000 characters",
        ),
        ({"snapshot": "a"}, "asks for nothing"),
        ({"snapshot": "a", "parallelism": 2, "files": "steal"}, "files of the request is 'steal'"),
        ({"snapshot": "a", "operators": {"o": {"keep_keys": {"file": "x"}}}}, "operators.o.keep_keys names a file"),
        ({"snapshot": "a", "parallelism": "many"}, "parallelism of the request is not a whole number"),
    ],
)
def test_wrong_requests_are_refused(content: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_request(content)


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"\xff\xfe", b"{", b"a: b: c", b"[" * 20_000, b'[&a *b, "\\UFFFFFFFF"]'])
def test_what_is_not_yaml_names_its_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.yaml").write_bytes(data)
    (file,) = list_requests(resolve(str(tmp_path)))
    with pytest.raises(UsageError, match=r"a\.yaml"):
        file.read()


def test_aliases_of_aliases_are_refused_before_they_are_resolved(tmp_path: Path) -> None:
    levels = [f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]" for level in range(1, 12)]
    write(tmp_path, "a.yaml", "\n".join(["l0: &l0 [x]", *levels, "operation: *l11"]))
    (file,) = list_requests(resolve(str(tmp_path)))
    with pytest.raises(UsageError, match="aliases repeat more than"):
        file.read()


def test_a_file_that_takes_long_to_parse_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", f"[{'1,' * (150 << 10)}]")
    (file,) = list_requests(resolve(str(tmp_path)))
    with pytest.raises(FormatError, match="more than 262,144 bytes"):
        file.read()


def test_results_and_other_files_are_no_requests(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "{}")
    write(tmp_path, "b.yml", "{}")
    write(tmp_path, "a.yaml.result.json", "{}")
    write(tmp_path, "notes.txt", "")
    (tmp_path / "c.yaml").mkdir()
    assert [file.name for file in list_requests(resolve(str(tmp_path)))] == ["a.yaml", "b.yml"]
    assert list_requests(resolve(str(tmp_path / "nowhere"))) == []


def test_a_changed_file_has_another_mark(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "{}")
    (before,) = list_requests(resolve(str(tmp_path)))
    write(tmp_path, "a.yaml", "{snapshot: latest}")
    (after,) = list_requests(resolve(str(tmp_path)))
    assert before.mark != after.mark


def test_a_result_says_what_came_of_the_request(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "{}")
    (file,) = list_requests(resolve(str(tmp_path)))
    finished = datetime(2026, 1, 2, tzinfo=UTC)
    content = json.loads(describe_result(file, RequestStatus.SUCCEEDED, finished=finished, run="42", path="/new"))
    assert file.result.name == "a.yaml.result.json"
    assert content == {
        "request": "a.yaml",
        "mark": file.mark,
        "status": "succeeded",
        "run": "42",
        "finished": "2026-01-02T00:00:00+00:00",
        "error": None,
        "path": "/new",
    }
