"""`sql check`: whether a changed query keeps the state of a savepoint."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import state_pipelines as sp
from state_pipelines.cli import main
from state_pipelines.errors import UsageError
from state_pipelines.sql.verdict import Verdict
from tests.snapshots import DATA
from tests.sql.changed_plans import CHANGES, read_changed
from tests.sql.recorded_pairs import NAMES, unpack

if TYPE_CHECKING:
    from click.testing import Result

EXAMPLE = DATA.parents[1] / "examples/totals"
SAVEPOINT = str(EXAMPLE / "savepoint")
TOTALS, SWAPPED, COUNTED = (str(EXAMPLE / f"{name}.json") for name in ("totals", "swapped", "counted"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sql", "check", *arguments])


def shifted(directory: Path, path: str) -> str:
    """A plan with other numbers, as in a file."""
    content = json.loads(Path(path).read_text())
    for node in content["nodes"]:
        node["id"] += 10
    for edge in content["edges"]:
        edge["source"] += 10
        edge["target"] += 10
    target = directory / "shifted.json"
    target.write_text(json.dumps(content))
    return str(target)


def test_the_same_query_keeps_all() -> None:
    found = run(TOTALS, TOTALS, SAVEPOINT)
    assert found.exit_code == 0
    assert found.output.startswith("kept exactly\n")
    assert "accState: SUM(orders.amount), SUM(orders.shipping): carried" in found.output
    report = sp.sql.check(TOTALS, TOTALS, SAVEPOINT)
    assert (report.verdict, report.exact, report.restores_as_it_is) == (Verdict.CARRIED, True, True)


def test_other_numbers_are_a_rename(tmp_path: Path) -> None:
    other = shifted(tmp_path, TOTALS)
    found = run(TOTALS, other, SAVEPOINT)
    assert found.exit_code == 0
    assert "3_group-aggregate → 13_group-aggregate: carried" in found.output
    assert "needs a migration" in found.output
    assert not sp.sql.check(TOTALS, other, SAVEPOINT).restores_as_it_is


def test_a_function_of_a_job_without_uids_is_found_by_its_states(tmp_path: Path) -> None:
    pair = unpack("function-view", tmp_path)
    report = sp.sql.check(shifted(tmp_path, pair.old), pair.new, pair.savepoint)
    assert report.verdict is Verdict.CARRIED
    assert report.binding.unknown == report.binding.missing == ()


def test_numbers_of_another_compilation_are_said(tmp_path: Path) -> None:
    pair = unpack("join-swap", tmp_path)
    other = unpack("swap", tmp_path)
    found = run(other.old, other.new, pair.savepoint)
    assert found.exit_code == 3
    assert "give the compiled plan that the job was started from" in found.output


def test_a_swap_is_called_so() -> None:
    found = run(TOTALS, SWAPPED, SAVEPOINT)
    assert found.exit_code == 1
    assert "silent swap" in found.output
    assert "SUM(orders.amount) would be taken for SUM(orders.shipping)" in found.output
    assert "SUM(orders.shipping): carried (column 2 becomes column 1)" in found.output
    assert run(TOTALS, SWAPPED, SAVEPOINT, "--migrating").exit_code == 0
    assert run(TOTALS, SWAPPED, SAVEPOINT, "--migrating", "--strict").exit_code == 0


def test_a_new_aggregate_starts_empty() -> None:
    found = run(TOTALS, COUNTED, SAVEPOINT)
    assert found.exit_code == 0
    assert "COUNT(*): starts empty (partial for keys that had rows before, until a backfill)" in found.output
    assert "sink totals: rows that it has already written keep their orders until their key changes" in found.output
    assert run(TOTALS, COUNTED, SAVEPOINT, "--strict").exit_code == 1


def test_json_has_the_source_of_every_column() -> None:
    content: dict[str, Any] = json.loads(run(TOTALS, SWAPPED, SAVEPOINT, "--json").output)
    assert (content["verdict"], content["exact"], content["restores_as_it_is"]) == ("carried", True, False)
    assert len(content["silent_swaps"]) == 1
    (operator,) = (each for each in content["operators"] if each["states"])
    (state,) = operator["states"]
    assert [(each["meaning"], each["old"], each["new"], each["derivation"]) for each in state["columns"]] == [
        ("SUM(orders.shipping)", 1, 0, "copy"),
        ("SUM(orders.amount)", 0, 1, "copy"),
    ]


def test_markdown_is_written_for_a_pull_request(tmp_path: Path) -> None:
    target = tmp_path / "report.md"
    assert run(TOTALS, SWAPPED, SAVEPOINT, "--markdown", str(target)).exit_code == 1
    text = target.read_text()
    assert text.startswith("### State of the SQL query: kept exactly")
    assert "**Silent swap**" in text
    assert "| operator | state | column | verdict | why |" in text
    assert run(TOTALS, SWAPPED, SAVEPOINT, "--markdown", "-").output == text
    assert run(TOTALS, SWAPPED, SAVEPOINT, "--markdown", "-", "--json").exit_code == 2


def test_without_the_old_query_equal_types_are_to_be_determined() -> None:
    found = run("-", SWAPPED, SAVEPOINT)
    assert found.exit_code == 3
    assert "3_group-aggregate has states of equal types" in found.output
    assert "only the old query says whether they hold the same" in found.output
    counted = sp.sql.check(None, COUNTED, SAVEPOINT)
    assert counted.verdict is Verdict.UNDETERMINED
    (operator,) = counted.comparison.operators
    assert "other types" in operator.reasons[0]


def test_operators_without_uids_are_found_by_their_states() -> None:
    report = sp.sql.check(TOTALS, SWAPPED, str(CHANGES / "savepoint-without-uids"))
    assert report.binding.labels["3_group-aggregate"] == "20ba6b65f97481d5570070de90e4e791"
    assert report.verdict is Verdict.CARRIED
    assert not report.restores_as_it_is
    assert report.swaps != ()


def test_a_plan_of_another_job_is_seen(tmp_path: Path) -> None:
    found = run(COUNTED, COUNTED, SAVEPOINT)
    assert found.exit_code == 3
    assert "it is not the query of the job that wrote the savepoint" in found.output
    other = tmp_path / "join.json"
    other.write_text(json.dumps(read_changed()["window"]))
    text = run(str(other), TOTALS, SAVEPOINT).output
    assert "which the old query does not say" in text
    assert "the savepoint has no state of 6_global-window-aggregate, which the old query keeps" in text


def test_a_plan_that_names_columns_is_not_in_the_way() -> None:
    found = run(TOTALS, SWAPPED, SAVEPOINT, "--plan", TOTALS, "--migrating")
    assert (found.exit_code, found.output) == (0, run(TOTALS, SWAPPED, SAVEPOINT, "--migrating").output)


def test_a_refusal_says_why(tmp_path: Path) -> None:
    content = json.loads(Path(TOTALS).read_text())
    aggregate = next(each for each in content["nodes"] if each["type"].startswith("stream-exec-group-aggregate"))
    aggregate["grouping"] = [1]
    target = tmp_path / "other.json"
    target.write_text(json.dumps(content))
    found = run(TOTALS, str(target), SAVEPOINT)
    assert found.exit_code == 1
    assert "refused: some state cannot be kept" in found.output
    assert "the grouping key changes from orders.customer to orders.amount" in found.output


def test_wrong_use() -> None:
    assert run(TOTALS, SWAPPED, SAVEPOINT, "--match", "3_group-aggregate").exit_code == 2
    assert run(TOTALS, SWAPPED, SAVEPOINT, "--match", "3_group-aggregate=9_join").exit_code == 2
    assert run(TOTALS, "nothing.json", SAVEPOINT).exit_code == 2
    with pytest.raises(UsageError, match="no operator 1"):
        sp.sql.check(TOTALS, SWAPPED, SAVEPOINT, match={"1": "3_group-aggregate"})


def test_scripts_need_flink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLINK_HOME", str(tmp_path / "nowhere"))
    shutil.copy(EXAMPLE / "totals.sql", tmp_path / "totals.sql")
    found = run(str(tmp_path / "totals.sql"), TOTALS, SAVEPOINT)
    assert found.exit_code == 2
    assert "no such directory of Flink" in found.output


def test_a_change_that_no_migration_carries_out(tmp_path: Path) -> None:
    pair = unpack("dedup-add", tmp_path)
    new = Path(pair.new)
    new.write_text(re.sub(r'("name" : "note",\s+"fieldType" : "[^"]+)"', r'\1 NOT NULL"', new.read_text()))
    found = run(pair.old, pair.new, pair.savepoint, "--migrating")
    assert found.exit_code == 1
    assert found.output.startswith("not carried out: ")
    assert "does not carry out this change: rows from before the savepoint have no value of o.note" in found.output
    assert sp.sql.check(pair.old, pair.new, pair.savepoint).to_json()["obstacle"]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_in_the_way_of_a_change_that_was_carried_out(name: str, tmp_path: Path) -> None:
    pair = unpack(name, tmp_path)
    assert sp.sql.check(pair.old, pair.new, pair.savepoint).obstacle == ""
