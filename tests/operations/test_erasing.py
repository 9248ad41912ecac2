from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import state_pipelines as sp
from state_pipelines.errors import ProofError, StateError, TargetExistsError
from state_pipelines.keyed.keys import KeyText, encode_keys
from state_pipelines.operations.dump import dump
from state_pipelines.operations.erase import plan_erasure, run_erasure, search_below
from state_pipelines.operations.key_search import search_keys
from state_pipelines.operations.rescale import records
from state_pipelines.operations.rescale.records import Way
from state_pipelines.snapshot import open_snapshot
from tests.flink.harness import diff_entries
from tests.operations.comparing.test_diff import write_totals
from tests.operations.test_converting import with_subtasks
from tests.snapshot.savepoints import orders
from tests.snapshots import OWN, RESCALING, UNKNOWN, Case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.metadata import SubtaskState
    from state_pipelines.operations.key_search import KeySearch
    from state_pipelines.operations.rescale import RescaleResult
    from state_pipelines.snapshot import Snapshot

FORMATS = (
    *("heap", "heap-native-snappy", "heap-checkpoint", "rocksdb-incremental", "rocksdb-full", "rocksdb-file-merging"),
    *("rocksdb-heap-timers", "changelog-heap-files", "changelog-rocksdb-materialized"),
)
CASES = [case for case in OWN if case.version.startswith("2.2") and case.case in FORMATS]


def erase(snapshot: Snapshot, keys: Sequence[object], target: str) -> tuple[KeySearch, RescaleResult | None]:
    plan = plan_erasure(snapshot, keys, target)
    return plan.search, run_erasure(plan)


def find_keys(case: Case) -> dict[str, Any]:
    """The first key of each operator, as `dump` shows it."""
    keys: dict[str, Any] = {}
    for entry in case.entries():
        if "key" in entry:
            keys.setdefault(entry["op"], entry["key"])
    return keys


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_key_goes_from_every_state_and_nothing_else(case: Case, tmp_path: Path) -> None:
    keys = list(find_keys(case).values())
    search, result = erase(case.open_told(), [KeyText(json.dumps(key)) for key in keys], str(tmp_path / "new"))
    assert result is not None
    assert result.proof is not None
    entries = case.entries()
    rest = [entry for entry in entries if "key" not in entry or entry["key"] not in keys]
    assert not diff_entries(rest, dump(open_snapshot(result.path, declarations=case.open_told().declarations)))
    assert sum(each.entries for each in search.found) == len(entries) - len(rest) > 0


@pytest.mark.slow
@pytest.mark.parametrize("case", RESCALING, ids=str)
def test_keys_of_every_type_are_found_as_dump_prints_them(case: Case) -> None:
    snapshot = case.open_told()
    lines = [line for line in dump(snapshot) if "key" in line]
    for uid, key in {str(line["op"]): line["key"] for line in lines}.items():
        search = search_keys(snapshot, [key])
        wanted = [line for line in lines if line["op"] == uid and line["key"] == key]
        assert sum(each.entries for each in search.found if each.operator == uid) == len(wanted)
        assert search.unsearched == ()


def test_operators_without_the_key_are_copied(tmp_path: Path) -> None:
    snapshot = orders().open()
    _, result = erase(snapshot, [KeyText("order-0064")], str(tmp_path / "new"))
    assert result is not None
    assert {change.label: change.keyed_text for change in result.plan.changes if change.keyed is not Way.NONE} == {
        "orders": "records (only some keys)",
        "revenue-per-minute": "as it is",
    }
    assert result.files_taken > 0


def test_the_public_function_does_the_same(tmp_path: Path) -> None:
    result = sp.erase(str(orders().path), ["order-0064"], str(tmp_path / "new"))
    assert result is not None
    assert search_keys(open_snapshot(result.path), ["order-0064"]).found == ()
    assert sp.erase(result.path, ["order-0064"], str(tmp_path / "other")) is None


def test_each_key_is_counted_by_itself() -> None:
    search = search_keys(orders().open(), [KeyText("nobody"), KeyText("order-0064"), KeyText("order-0085")])
    counted = {(each.state, each.key): each.entries for each in search.found}
    assert counted["order", 1] == counted["order", 2] == 1
    assert {key for _, key in counted} == {1, 2}


def test_a_key_that_is_nowhere_writes_nothing(tmp_path: Path) -> None:
    search, result = erase(orders().open(), [KeyText("nobody")], str(tmp_path / "new"))
    assert (search.found, search.unsearched, result) == ((), (), None)
    assert not (tmp_path / "new").exists()


def damage(target: Path) -> str:
    """A copy of the savepoint of which no keyed state can be read."""
    shutil.copytree(orders().path, target)
    for path in target.iterdir():
        if path.name != "_metadata":
            path.write_bytes(b"no state")
    return str(target)


def test_what_cannot_be_searched_is_never_taken_for_free_of_the_keys(tmp_path: Path) -> None:
    damaged = damage(tmp_path / "damaged")
    for strict in (True, False):
        with pytest.raises(StateError, match="it is not certain that the keys are gone: some state cannot be searched"):
            sp.erase(damaged, ["order-0064"], str(tmp_path / "new"), strict=strict)
    assert not (tmp_path / "new").exists()


def test_the_state_that_cannot_be_searched_is_named(tmp_path: Path) -> None:
    (case,) = (each for each in UNKNOWN if each.case == "heap-native")
    keys = [line["key"] for line in dump(case.open()) if "key" in line][:1]
    with pytest.raises(StateError, match=r"some state cannot be searched \(.*state purse") as caught:
        sp.erase(case.open(), keys, str(tmp_path / "new"))
    assert caught.value.where.operator == "purses"


def test_a_key_of_another_type_is_not_there() -> None:
    assert search_keys(orders().open(), [{"a": 1}, 7.5, [1]]).found == ()


def test_without_a_target_nothing_is_written() -> None:
    before = sorted(orders().path.parent.iterdir())
    assert plan_erasure(orders().open(), [KeyText("order-0064")]).rescaling is not None
    assert sorted(orders().path.parent.iterdir()) == before


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(TargetExistsError):
        erase(orders().open(), [KeyText("order-0064")], str(tmp_path))


def test_a_key_that_stays_fails_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "encode_keys", lambda layout, keys: encode_keys(layout, keys[:1]))
    with pytest.raises(ProofError, match=r"may still be in the new snapshot: .*order.*operator orders"):
        erase(orders().open(), [KeyText("order-0064"), KeyText("order-0085")], str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_raw_keyed_state_that_nobody_reads_is_named(tmp_path: Path) -> None:
    (case,) = (each for each in CASES if each.case == "rocksdb-heap-timers")

    def spoil(subtask: SubtaskState) -> SubtaskState:
        handle: Any = subtask.raw_keyed_state
        data = b"\x07" * len(handle.delegate.data)
        return replace(subtask, raw_keyed_state=replace(handle, delegate=replace(handle.delegate, data=data)))

    spoiled = with_subtasks(case.open(), "few-states", spoil, tmp_path / "old")
    ((operator, reason),) = search_keys(spoiled, [3]).unsearched
    assert operator == "few-states"
    assert reason.startswith("raw keyed state: ")


@pytest.mark.parametrize("case", UNKNOWN, ids=str)
def test_an_unknown_serializer_hides_no_key_of_another_state(case: Case) -> None:
    snapshot = case.open()
    keys = [line["key"] for line in dump(snapshot) if "key" in line]
    search = search_keys(snapshot, keys[:1])
    assert {each.operator for each in search.found} == {"tallies", "purses"}
    # Only their serializers know where heap native entries end.
    unsearched = {"purses"} if case.case == "heap-native" else set()
    assert {operator for operator, _ in search.unsearched} == unsearched
    assert all("state purse" in reason for _, reason in search.unsearched)


@pytest.mark.slow
def test_values_that_nobody_reads_are_carried(tmp_path: Path) -> None:
    (case,) = (each for each in UNKNOWN if each.case == "rocksdb-native")
    keys = [line["key"] for line in dump(case.open()) if "key" in line][:1]
    _, result = erase(case.open(), keys, str(tmp_path / "new"))
    assert result is not None
    rest = [line for line in dump(case.open()) if line.get("key") != keys[0]]
    assert not diff_entries(rest, dump(open_snapshot(result.path, uids=case.uids)))


@pytest.mark.slow
def test_snapshots_below_a_directory_tell_what_they_hold(tmp_path: Path) -> None:
    erase(orders().open(), [KeyText("order-0064")], str(tmp_path / "a" / "without"))
    erase(orders().open(), [KeyText("order-0085")], str(tmp_path / "a" / "with"))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "_metadata").write_bytes(b"nothing")
    found = {search.path.rpartition("/")[2]: search for search in search_below(str(tmp_path), [KeyText("order-0064")])}
    assert {name: bool(search.found) for name, search in found.items()} == {
        "with": True,
        "without": False,
        "damaged": False,
    }
    assert found["damaged"].unsearched[0][1].startswith("not a _metadata file")
    assert found["without"].unsearched == ()


@pytest.mark.parametrize("keys", [["key-3"], [f"key-{number}" for number in range(40)]], ids=["one", "many"])
def test_only_the_key_groups_of_the_keys_are_read(keys: list[str], tmp_path: Path) -> None:
    snapshot = write_totals(tmp_path / "totals", {f"key-{number}": number for number in range(40)})
    rows = snapshot.operator("totals").state("total").to_arrow().to_pylist()
    (subtask,) = (row["subtask"] for row in rows if row["state_key"] == "key-3")
    (other,) = (file for index, file in snapshot.operator("totals").keyed_files if index != subtask)
    path = Path(other.name)
    path.write_bytes(path.read_bytes()[:-20])
    search = search_keys(open_snapshot(snapshot.path, uids=["totals"]), keys, everywhere=False)
    assert ("key-3" in [keys[each.key] for each in search.found], bool(search.unsearched)) == (True, len(keys) > 1)
