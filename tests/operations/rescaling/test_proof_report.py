"""Proofs of rescalings that fail: the entries that a person sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import ProofError
from state_pipelines.operations import proofs
from state_pipelines.operations.local_processes import run_tasks
from state_pipelines.operations.proofs import ProofReport
from state_pipelines.operations.rescale import parse_request, rescale
from state_pipelines.snapshot import Snapshot, open_snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ORDERS = "examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091"


@pytest.fixture
def orders() -> Snapshot:
    return open_snapshot(ORDERS, uids=["orders", "order-counter", "pricing"])


def fail(orders: Snapshot, target: Path, old: bytes, new: bytes, **request: Any) -> ProofReport:
    """The report after bytes of the new files were changed before the proof."""

    def run(pieces: Sequence[Any], what: str) -> list[Any]:
        done = run_tasks(pieces, what)
        if what == "files cannot be copied":
            (directory,) = [each for each in target.parent.iterdir() if each.name.startswith((target.name, "."))]
            changed = [file for file in directory.rglob("*") if file.is_file() and old in file.read_bytes()]
            assert changed
            for file in changed:
                file.write_bytes(file.read_bytes().replace(old, new))
        return done

    with pytest.raises(ProofError) as caught:
        rescale(orders, str(target), parse_request(request), run=run)
    assert not target.exists()
    assert isinstance(caught.value.report, ProofReport)
    return caught.value.report


def test_a_changed_value_is_shown_before_and_after(orders: Snapshot, tmp_path: Path) -> None:
    report = fail(orders, tmp_path / "new", b"leave at the door", b"leave at the D00R", parallelism=3)
    assert [each.name for each in report.failed] == ["contents_kept"]
    (check,) = report.failed
    assert check.counts is not None
    assert check.counts.differing >= len(check.rows) == 10
    assert (check.counts.missing, check.counts.unexpected) == (0, 0)
    for row in check.rows:
        assert row.values["before"]["note"] == row.values["expected"]["note"] == "leave at the door"
        assert row.values["after"]["note"] == "leave at the D00R"
        assert row.to_cells()["before"] == '{"note": "leave at the door"}'


def test_a_changed_key_is_missing_unexpected_and_in_the_wrong_key_group(orders: Snapshot, tmp_path: Path) -> None:
    report = fail(orders, tmp_path / "new", b"order-0198", b"order-9198", max_parallelism=256)
    checks = {each.name: each for each in report.failed}
    assert set(checks) == {"contents_kept", "key_groups_match_key_hash"}
    contents = checks["contents_kept"]
    shown = {(dict(row.key)["state_key"], row.absent) for row in contents.rows if "state_key" in row.key}
    assert shown <= {("order-0198", ("after",)), ("order-9198", ("before", "expected"))}
    assert contents.counts is not None
    assert contents.counts.missing == contents.counts.unexpected > 0
    misfiled = checks["key_groups_match_key_hash"].rows
    assert {dict(row.key)["state_key"] for row in misfiled} == {"order-9198"}
    assert all("by the hash of the key" in row.values["expected"] for row in misfiled)


def test_few_hashes_at_a_time_still_show_entries(
    orders: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "MOST_HASHES", 1)
    report = fail(orders, tmp_path / "new", b"leave at the door", b"leave at the D00R", parallelism=3)
    (check,) = report.failed
    assert check.rows
    assert check.counts is not None
    assert not check.counts.complete
    assert "at least" in check.observed


def test_a_proof_that_holds_has_numbers(orders: Snapshot, tmp_path: Path) -> None:
    report = rescale(orders, str(tmp_path / "new"), parse_request({"parallelism": 3})).proof
    assert report is not None
    assert report.ok
    assert report.numbers["rows compared"] == 1398
    assert report.numbers["rows differing"] == 0
    assert report.bytes > 0
    # No key group is new.
    assert "key_groups_match_key_hash" not in [each.name for each in report.checks]
