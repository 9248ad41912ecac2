from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.metadata import read_metadata, write_metadata
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

UIDS = [part for uid in ("orders", "pricing", "order-counter") for part in ("--uid", uid)]


def drop_operator(snapshot: Path, uid: str) -> None:
    file = snapshot / "_metadata"
    metadata = read_metadata(file.read_bytes(), str(file))
    kept = tuple(each for each in metadata.operator_states if each.uid != uid)
    file.write_bytes(write_metadata(replace(metadata, operator_states=kept)))


def test_state_that_restores(call: Callable[..., Called], savepoint: Path) -> None:
    called = call("check", savepoint, savepoint)
    assert called.code == 0
    assert called.out.startswith("fully compatible: Flink 2.2, any backend")


def test_json_holds_the_verdict(call: Callable[..., Called], savepoint: Path) -> None:
    report = call("check", savepoint, savepoint, "--json", "--backend", "rocksdb").json
    assert (report["verdict"], report["ok"], report["backend"], report["loses_state"]) == (
        "fully compatible",
        True,
        "rocksdb",
        False,
    )


def test_a_snapshot_that_the_target_cannot_read(call: Callable[..., Called], savepoint: Path) -> None:
    called = call("check", savepoint, savepoint, "--target", "1.20")
    assert called.code == 1
    assert called.out.startswith("incompatible")
    assert "Unrecognized checkpoint version number: 6" in called.out


def test_an_operator_that_the_new_job_does_not_have(call: Callable[..., Called], savepoint: Path, broken: Path) -> None:
    drop_operator(broken, "pricing")
    called = call("check", savepoint, broken)
    assert called.code == 1
    assert called.out.endswith("state would be lost: pricing\n")


def test_an_operator_that_is_new(call: Callable[..., Called], savepoint: Path, broken: Path) -> None:
    drop_operator(broken, "pricing")
    called = call("check", broken, savepoint)
    assert called.code == 0
    assert called.out.startswith("partially compatible")


def test_other_releases_may_be_compared(call: Callable[..., Called], savepoint: Path) -> None:
    assert call("check", orders("1.20").path, savepoint, *UIDS).code == 0


def test_markdown_goes_to_a_file(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.md"
    call("check", savepoint, savepoint, "--markdown", file)
    assert file.read_text(encoding="utf-8").startswith("## State compatibility: fully compatible")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "next"), "error: 'next' is not a release of Flink"),
        (("--backend", "redis"), "Invalid value for '--backend'"),
        (("--markdown", "missing/report.md"), "error: the report cannot be written"),
    ],
)
def test_wrong_use(call: Callable[..., Called], savepoint: Path, arguments: tuple[str, ...], message: str) -> None:
    called = call("check", savepoint, savepoint, *arguments)
    assert (called.code, called.out) == (2, "")
    assert message in called.err
