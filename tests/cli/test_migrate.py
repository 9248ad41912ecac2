from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.flink.harness import ORDERS, diff_entries, read_entries
from tests.snapshot.older_ranges import make_older_ranges
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

MIGRATION = ORDERS / "migrations" / "0001_amount_as_double.yaml"

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(scope="module")
def upgraded(
    call: Callable[..., Called], spark: object, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Called]:
    target = tmp_path_factory.mktemp("migrate") / "upgraded"
    report = target.with_name("proof.json")
    called = call("migrate", orders().path, "--migration", MIGRATION, "--out", target, "--report", report)
    assert called.code == 0, called.err
    return target, called


def test_the_new_savepoint_holds_what_it_must(call: Callable[..., Called], upgraded: tuple[Path, Called]) -> None:
    expected = read_entries(orders().path.parent / "expected-migrated.jsonl.gz")
    difference = diff_entries(expected, call("dump", upgraded[0]).lines)
    assert not difference, str(difference)


@pytest.mark.parametrize(
    "text",
    [
        "upgrade 0001: Amounts become euros",
        "customer: String  customerId: String  renamed",
        "note: String                          dropped",
        "5 fields as before",
        "200 records of orders / order rewritten",
        "written_reads_back         passed",
    ],
)
def test_the_summary_tells(upgraded: tuple[Path, Called], text: str) -> None:
    assert text in upgraded[1].out


def test_the_summary_ends_with_the_place(upgraded: tuple[Path, Called]) -> None:
    target, called = upgraded
    assert called.out.endswith(f"new savepoint: {target}\n")


def test_the_report_holds_the_results_of_the_proof(upgraded: tuple[Path, Called]) -> None:
    report = json.loads(upgraded[0].with_name("proof.json").read_text())
    assert (report["ok"], report["revisions"]) == (True, [{"revision": "0001", "direction": "upgrade"}])
    (proof,) = report["proofs"]
    assert (proof["operator"], proof["state"], proof["rows"]) == ("orders", "order", 200)
    assert {check["name"] for check in proof["checks"] if check["ok"]} >= {"key_sets", "round_trip"}
    assert [each.name for each in upgraded[0].parent.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--report", "proof.txt"), "Markdown or JSON"),
        (("--report", "none/such/proof.md"), "directory of the report does not exist"),
        (("--report", "proof.md", "--no-proof"), "without a proof there is no report"),
    ],
)
def test_a_report_that_cannot_be_written_is_told_at_once(
    call: Callable[..., Called], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    called = call("migrate", orders().path, "--migration", MIGRATION, "--out", tmp_path / "new", *arguments)
    assert called.code == 2
    assert message in called.err
    assert not (tmp_path / "new").exists()


def test_progress_goes_to_stderr(upgraded: tuple[Path, Called]) -> None:
    target, called = upgraded
    assert called.err == f"upgrade of orders / order to {target}\n"


def test_check_refuses_the_new_savepoint_in_the_old_job(
    call: Callable[..., Called], upgraded: tuple[Path, Called]
) -> None:
    assert call("check", upgraded[0], orders().path).code == 1


def test_downgrade_without_proof_as_json(
    call: Callable[..., Called], upgraded: tuple[Path, Called], tmp_path: Path
) -> None:
    arguments = ("--migration", MIGRATION, "--out", tmp_path / "old", "--downgrade", "--no-proof", "--json")
    result = call("migrate", upgraded[0], *arguments).json
    assert {name: result[name] for name in ("path", "revisions", "rows", "proof")} == {
        "path": str(tmp_path / "old"),
        "revisions": [{"revision": "0001", "direction": "downgrade"}],
        "rows": 200,
        "proof": None,
    }
    (state,) = result["states"]
    assert (state["operator"], state["state"]) == ("orders", "order")
    assert {"before": "customerId: String", "after": "customer: String", "change": "renamed"} in state["fields"]


@pytest.mark.slow
def test_a_failed_proof_is_an_answer_and_is_reported(call: Callable[..., Called], tmp_path: Path) -> None:
    text = MIGRATION.read_text(encoding="utf-8")
    wrong, report = tmp_path / "wrong.yaml", tmp_path / "proof.md"
    wrong.write_text(text.replace("CAST(ROUND(amount * 100.0D) AS BIGINT)", "CAST(amount AS BIGINT)"), encoding="utf-8")
    arguments = ("--out", tmp_path / "new", "--json", "--report", report)
    called = call("migrate", orders().path, "--migration", wrong, *arguments)
    assert called.code == 1
    assert "| round_trip | **FAILED** |" in report.read_text()
    assert called.err.splitlines()[-1].startswith("error: the proof failed (round_trip)")
    assert [check["name"] for check in called.json["proof"]["checks"] if not check["ok"]] == ["round_trip"]
    assert not (tmp_path / "new").exists()


def test_nothing_is_written_over(call: Callable[..., Called], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    called = call("migrate", orders().path, "--migration", MIGRATION, "--out", tmp_path)
    assert called.code == 2
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("operator: orders", "operator: nobody", "the snapshot has no operator nobody"),
        ("state: order", "state: nothing", "the operator has no state nothing"),
        ("customer: customerId", "nothing: customerId", "there is no field nothing"),
        ("amount / 100.0D", "amount / cents", "cents"),
        ("rename:", "shuffle:", "`shuffle` is not a step"),
        ("revision:", "version:", "unknown entries version"),
    ],
)
def test_migrations_that_do_not_fit(
    call: Callable[..., Called], tmp_path: Path, old: str, new: str, message: str
) -> None:
    file = tmp_path / "migration.yaml"
    file.write_text(MIGRATION.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    called = call("migrate", orders().path, "--migration", file, "--out", tmp_path / "new")
    *_, last = called.err.splitlines()
    assert (called.code, called.out) == (2, "")
    assert last.startswith("error: ")
    assert message in last
    assert not (tmp_path / "new").exists()


def test_key_groups_of_an_older_rule_are_noted(call: Callable[..., Called], tmp_path: Path) -> None:
    older = make_older_ranges(orders().open(), tmp_path, "canonical")
    called = call("migrate", older.path, "--migration", MIGRATION, "--out", tmp_path / "target")
    assert called.code == 0
    assert "note: operator orders: its subtasks hold other key groups than Flink assigns today" in called.err
    assert "rescale --parallelism orders=6" in called.err
