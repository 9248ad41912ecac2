"""Whole rescalings, on snapshots that real Flink made."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import (
    IncompatibleError,
    NotFoundError,
    ProofError,
    TargetExistsError,
    UnsupportedError,
    UsageError,
)
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.operations.dump import dump
from state_pipelines.operations.local_processes import COPY_THREADS, KERNEL_THREADS, Processes, Work, run_tasks
from state_pipelines.operations.rescale import (
    RescaleResult,
    parse_request,
    plan_rescale,
    records,
    rescale,
    run_rescale,
)
from state_pipelines.operations.rescale.records import Gather, Shuffle, Way
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.operations.write.transaction import RecordedWork
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.storage import resolve
from state_pipelines.storage.files import remove_directory
from tests.snapshots import DATA, OWN, RESCALING, Case, select

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Entries = tuple[Counter[str], frozenset[str]]
MOVED = {"kg", "subtask", "index"}
"""Fields of an entry that say where it lies."""

# A snapshot with records in flight, and files that are not read.
SKIPPED = ("unaligned", "rocksdb-async-native", "finished")
CASES = [case for case in [*OWN, *RESCALING] if case.case not in SKIPPED]


def gather(lines: Iterable[dict[str, Any]]) -> Entries:
    """Entries without their places; of broadcast state one copy."""
    counts: Counter[str] = Counter()
    copies = set()
    for line in lines:
        if line["kind"] in ("keyed", "timer", "operator"):
            counts[json.dumps({key: value for key, value in line.items() if key not in MOVED}, sort_keys=True)] += 1
        elif line["kind"] == "broadcast":
            copies.add(json.dumps({key: value for key, value in line.items() if key not in MOVED}, sort_keys=True))
    return counts, frozenset(copies)


def run(snapshot: Snapshot, target: Path, **content: Any) -> RescaleResult:
    return rescale(snapshot, str(target), parse_request(content))


def reopen(result: RescaleResult, snapshot: Snapshot) -> Snapshot:
    # With `files=REFERENCE` the result names files of the snapshot it comes from.
    return open_snapshot(
        result.path, snapshot.declarations, uids=["renamed"], allow_roots=[result.path.rpartition("/")[0]]
    )


@pytest.fixture
def types() -> Snapshot:
    (case,) = (each for each in select("2.2", "heap") if each.name.startswith("types-"))
    return case.open_told()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_entry_is_there_again(case: Case, tmp_path: Path) -> None:
    """With both numbers changed; one at a time: `tests.conformance.test_changed_snapshots`."""
    snapshot = case.open_told()
    content = {"parallelism": 7, "max_parallelism": 96}
    result = run(snapshot, tmp_path / "new", **content)
    new = reopen(result, snapshot)

    assert gather(dump(new)) == gather(dump(snapshot))
    assert result.proof is not None
    assert result.proof.ok
    for operator in new.operators:
        if operator.max_parallelism != 1:
            assert operator.parallelism == content.get("parallelism", operator.parallelism)
            assert operator.max_parallelism == content.get("max_parallelism", case.max_parallelism)
        for state in operator.keyed_states:
            for batch in state.batches():
                rows = zip(batch.column("subtask").to_pylist(), batch.column("key_group").to_pylist(), strict=True)
                for subtask, key_group in set(rows):
                    assert key_group in compute_key_group_range(subtask, operator.parallelism, operator.max_parallelism)


class Watched:
    """Processes, and what of the work threads could do."""

    def __init__(self, shared: Processes) -> None:
        self.shared = shared
        self.threads: dict[str, set[int]] = {}

    def __call__(self, pieces: Sequence[Work[Any]], what: str) -> list[Any]:
        for piece in pieces:
            # What writes is inside of what notes the files that are written.
            work = piece.work if isinstance(piece, RecordedWork) else piece
            self.threads.setdefault(type(work).__name__, set()).add(getattr(piece, "threads", 1))
        return self.shared.run(pieces, what)


# One operator has keys of a class, which no kernel hashes; heap files are read by the scalar codec, in part.
BOTH = {1, KERNEL_THREADS}
COPIES = {"FileCopy": {COPY_THREADS}, "CountOperatorState": {KERNEL_THREADS}, "CountKeyed": {KERNEL_THREADS}}
ASSEMBLY = COPIES | {"FileAssembly": {COPY_THREADS}}
REGROUPING = COPIES | {"Shuffle": BOTH, "Gather": BOTH, "CountKeyed": BOTH}
BY_THREADS = [
    ("canonical-snappy", {"parallelism": 3}, ASSEMBLY),
    ("heap-native", {"parallelism": 3}, ASSEMBLY | {"CountKeyed": {1}}),
    ("rocksdb-native", {"parallelism": 3}, COPIES | {"Collect": {KERNEL_THREADS}}),
    ("canonical-snappy", {"max_parallelism": 1024}, REGROUPING),
    ("heap-native", {"max_parallelism": 1024}, REGROUPING | {"Shuffle": {1}}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "content", "threads"), BY_THREADS)
def test_threads_and_processes_do_the_same(
    form: str, content: dict[str, int], threads: dict[str, set[int]], tmp_path: Path
) -> None:
    case = next(each for each in RESCALING if each.version.startswith("2.2") and each.case == form)
    snapshot, request = case.open_told(), parse_request(content)
    alone = rescale(snapshot, str(tmp_path / "alone"), request)
    plan = plan_rescale(snapshot, resolve(str(tmp_path / "shared")), request)
    with Processes(2) as shared:
        run = Watched(shared)
        result = run_rescale(plan, run)
    assert gather(dump(reopen(result, snapshot))) == gather(dump(reopen(alone, snapshot)))
    assert result.proof is not None
    assert alone.proof is not None
    assert result.states == alone.states
    assert run.threads == threads


@pytest.mark.slow
def test_there_and_back_gives_the_same_place_to_every_entry(types: Snapshot, tmp_path: Path) -> None:
    away = reopen(run(types, tmp_path / "away", parallelism=5, max_parallelism=1024), types)
    back = reopen(run(away, tmp_path / "back", parallelism=2, max_parallelism=128), types)

    def keyed(snapshot: Snapshot) -> list[str]:
        found = (line for line in dump(snapshot) if line["kind"] in ("keyed", "timer"))
        return sorted(json.dumps(line, sort_keys=True) for line in found)

    assert keyed(back) == keyed(types)


@pytest.mark.slow
def test_the_hash_of_a_class_is_found_and_told(types: Snapshot, tmp_path: Path) -> None:
    result = run(types, tmp_path / "new", max_parallelism=1024)
    (told,) = (text for change in result.plan.changes for text in change.hashes)
    assert told.startswith("hashCode of types.Place is ")
    assert "12 distinct keys" in told


def test_a_wrong_hash_is_refused_before_anything_is_written(types: Snapshot, tmp_path: Path) -> None:
    hashes = {"state-kinds": {"key_hash": {"types.Place": "objects(region)"}}}
    with pytest.raises(UnsupportedError, match=r"only \d+ of 12 keys lie in the key group that the hash gives"):
        run(types, tmp_path / "new", max_parallelism=1024, operators=hashes)
    assert not (tmp_path / "new").exists()


def test_parallelism_alone_reads_no_records(types: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from state_pipelines.keyed import kernels

    def refuse(*arguments: object) -> None:
        raise AssertionError("records were looked at")

    monkeypatch.setattr(kernels, "scan_records", refuse)
    result = rescale(types, str(tmp_path / "new"), parse_request({"parallelism": 3}), prove=False)
    assert {change.keyed for change in result.plan.changes} == {Way.RANGES, Way.NONE}
    assert result.proof is None


@pytest.mark.slow
@pytest.mark.parametrize("mode", [FileMode.LINK, FileMode.REFERENCE])
def test_files_that_stay_cost_nothing(types: Snapshot, tmp_path: Path, mode: FileMode) -> None:
    single = reopen(run(types, tmp_path / "single", parallelism=1), types)
    result = rescale(single, str(tmp_path / "new"), parse_request({"parallelism": 4}), files=mode)
    keyed = sum(change.keyed is not Way.NONE for change in result.plan.changes)
    assert keyed >= 5
    assert gather(dump(reopen(result, types))) == gather(dump(types))
    assert result.bytes < single.file_size // 2
    assert any("name" in note or "self-contained" in note for note in result.notes)


@pytest.mark.slow
def test_a_dropped_state_is_gone_and_nothing_else(types: Snapshot, tmp_path: Path) -> None:
    operator = types.operator("state-kinds")
    keyed = next(state.name for state in operator.keyed_states if state.kind == "MAP")
    listed = next(state.name for state in types.operator("operator-states").operator_states if state.kind == "UNION")
    result = run(
        types,
        tmp_path / "new",
        operators={"state-kinds": {"drop_states": [keyed]}, "operator-states": {"drop_states": [listed]}},
    )
    new = reopen(result, types)
    wanted = [
        line
        for line in dump(types)
        if (line["op"], line.get("state")) not in (("state-kinds", keyed), ("operator-states", listed))
    ]
    assert gather(dump(new)) == gather(wanted)
    assert keyed not in [state.name for state in new.operator("state-kinds").states]
    assert listed not in [state.name for state in new.operator("operator-states").states]
    assert {state.name for state in operator.states} - {state.name for state in new.operator("state-kinds").states} == {
        keyed
    }


@pytest.mark.slow
def test_a_dropped_operator_is_gone(types: Snapshot, tmp_path: Path) -> None:
    result = run(types, tmp_path / "new", operators={"array-types": {"drop": True}})
    assert gather(dump(reopen(result, types))) == gather(line for line in dump(types) if line["op"] != "array-types")
    assert result.plan.dropped == ("array-types",)


@pytest.mark.slow
def test_a_renamed_operator_has_its_state(types: Snapshot, tmp_path: Path) -> None:
    result = run(types, tmp_path / "new", operators={"array-types": {"uid": "renamed"}})
    moved = [line | {"op": "renamed"} if line["op"] == "array-types" else line for line in dump(types)]
    assert gather(dump(reopen(result, types))) == gather(moved)


@pytest.mark.slow
@pytest.mark.parametrize("content", [{}, {"max_parallelism": 512}], ids=["same key groups", "other key groups"])
def test_only_the_chosen_keys_stay(types: Snapshot, tmp_path: Path, content: dict[str, int]) -> None:
    lines = [line for line in dump(types) if line["op"] == "basic-types" and line["kind"] == "keyed"]
    keys = sorted({int(str(line["key"])) for line in lines})
    chosen, others = keys[:5], keys[5:]
    kept = run(types, tmp_path / "kept", operators={"basic-types": {"keep_keys": chosen}}, **content)
    gone = run(types, tmp_path / "gone", operators={"basic-types": {"drop_keys": others}}, **content)
    wanted = gather(line for line in dump(types) if line["op"] != "basic-types" or line["key"] in chosen)
    assert gather(dump(reopen(kept, types))) == wanted
    assert gather(dump(reopen(gone, types))) == wanted


def test_keys_of_another_type_are_refused(types: Snapshot, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="alice': not of the type of the keys, int32"):
        run(types, tmp_path / "new", operators={"basic-types": {"keep_keys": ["alice"]}})


def split_in_two(snapshot: Snapshot, tmp_path: Path) -> tuple[str, str]:
    """Two snapshots with disjoint keys of one operator; the second one has no other state."""
    lines = [line for line in dump(snapshot) if line["op"] == "basic-types" and line["kind"] == "keyed"]
    keys = sorted({int(str(line["key"])) for line in lines})
    rest = {each.label: {"drop": True} for each in snapshot.operators if each.label != "basic-types"}
    first = run(snapshot, tmp_path / "first", operators={"basic-types": {"keep_keys": keys[:7]}})
    second = run(snapshot, tmp_path / "second", operators={"basic-types": {"drop_keys": keys[:7]}} | rest)
    return first.path, second.path


@pytest.mark.slow
@pytest.mark.parametrize("content", [{}, {"max_parallelism": 300, "parallelism": 3}], ids=["plain", "rescaled"])
def test_snapshots_with_other_keys_are_merged(types: Snapshot, tmp_path: Path, content: dict[str, int]) -> None:
    first, second = split_in_two(types, tmp_path)
    result = run(open_snapshot(first), tmp_path / "merged", merge={"with": [second]}, **content)
    assert gather(dump(reopen(result, types))) == gather(dump(types))


@pytest.mark.slow
def test_keys_that_both_have_need_a_rule(types: Snapshot, tmp_path: Path) -> None:
    _, second = split_in_two(types, tmp_path)
    with pytest.raises(IncompatibleError, match="more than one snapshot has the key"):
        run(types, tmp_path / "merged", merge={"with": [second]})
    assert not (tmp_path / "merged").exists()
    result = run(types, tmp_path / "merged", merge={"with": [second], "on_equal": "first"})
    assert gather(dump(reopen(result, types))) == gather(dump(types))


@pytest.mark.slow
def test_an_operator_is_taken_from_another_snapshot_and_rescaled(tmp_path: Path) -> None:
    orders = open_snapshot("examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091")
    (path,) = (DATA / "types/flink-2.2/heap").glob("savepoint-*")
    result = run(
        orders, tmp_path / "new", take={"kinds": {"from": str(path), "operator": "state-kinds"}}, max_parallelism=256
    )
    new = open_snapshot(result.path)
    taken = [line | {"op": "state-kinds"} for line in dump(new) if line["op"] == "kinds"]
    wanted = [line for line in dump(open_snapshot(str(path))) if line["op"] == "state-kinds"]
    assert gather(taken) == gather(wanted)
    assert new.operator("kinds").max_parallelism == 256


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ({}, UsageError, "the request changes nothing"),
        ({"parallelism": 129}, UsageError, "parallelism of 129 does not go with a max parallelism of 128"),
        ({"max_parallelism": 1}, UsageError, "parallelism of 2 does not go with a max parallelism of 1"),
        ({"max_parallelism": 40_000}, UsageError, "40000 is not between 1 and 32768"),
        ({"operators": {"nobody": {"parallelism": 3}}}, NotFoundError, "has no operator nobody"),
        ({"operators": {"state-kinds": {"drop_states": ["none"]}}}, NotFoundError, "has no state none"),
        ({"parallelism": 3, "union_limit": 10}, UnsupportedError, "union state of .* bytes would be loaded 3 times"),
    ],
)
def test_what_is_impossible_is_refused_before_anything_is_written(
    types: Snapshot, tmp_path: Path, content: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(types, tmp_path / "new", **content)
    assert not (tmp_path / "new").exists()


def test_records_in_flight_are_refused(tmp_path: Path) -> None:
    (case,) = select("2.2", "unaligned")
    with pytest.raises(UnsupportedError, match="in-flight data"):
        run(case.open_told(), tmp_path / "new", parallelism=3)


@pytest.mark.slow
def test_what_was_lost_fails_the_proof(types: Snapshot, tmp_path: Path) -> None:
    def lose(pieces: Sequence[Any], what: str) -> list[Any]:
        """Leaves out all but the first spill."""
        fewer = [
            replace(piece, work=replace(piece.work, sources=tuple(spills[:1] for spills in piece.work.sources)))
            if isinstance(piece, RecordedWork) and isinstance(piece.work, Gather)
            else piece
            for piece in pieces
        ]
        return run_tasks(fewer, what)

    with pytest.raises(ProofError, match=r"entries of .* bytes where there must be"):
        rescale(types, str(tmp_path / "new"), parse_request({"max_parallelism": 256}), run=lose)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("prove", [True, False])
@pytest.mark.parametrize("storage", ["local", "memory"])
def test_every_entry_is_there_again_when_blocks_were_merged(
    storage: str, prove: bool, types: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_BLOCKS", -1)
    found: list[list[int]] = []

    def run(pieces: Sequence[Any], what: str) -> list[Any]:
        small = [
            replace(each, work=replace(each.work, block=300, batch=500))
            if isinstance(each, RecordedWork) and isinstance(each.work, Shuffle)
            else each
            for each in pieces
        ]
        works = [each.work for each in pieces if isinstance(each, RecordedWork)]
        gathers = [each for each in works if isinstance(each, Gather)]
        found.extend([len(spill.blocks) for source in each.sources for spill in source] for each in gathers)
        return run_tasks(small, what)

    target = str(tmp_path / "new") if storage == "local" else f"memory://{tmp_path.name}/new"
    result = rescale(types, target, parse_request({"max_parallelism": 1024}), prove=prove, run=run)
    assert found
    assert {number for each in found for number in each} == {1}
    assert gather(dump(reopen(result, types))) == gather(dump(types))
    assert (result.proof is not None) == prove
    assert [each.name for each in tmp_path.iterdir()] == (["new"] if storage == "local" else [])
    remove_directory(resolve(target))


@pytest.fixture
def orders() -> Snapshot:
    return open_snapshot("examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091")


def with_lists(orders: Snapshot) -> Snapshot:
    """The operator `orders` has the list states of `order-counter`, too."""
    lists = {each.index: each.managed_operator_state for each in orders.operator("order-counter").metadata.subtasks}
    operators = tuple(
        replace(
            operator,
            subtasks=tuple(replace(each, managed_operator_state=lists[each.index]) for each in operator.subtasks),
        )
        if operator.uid == "orders"
        else operator
        for operator in orders.metadata.operator_states
        if operator.uid != "order-counter"
    )
    return Snapshot(orders.location, replace(orders.metadata, operator_states=operators), orders.path_mapping)


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("prove", [True, False])
def test_a_list_state_is_dropped_beside_keyed_state(
    orders: Snapshot, tmp_path: Path, parallelism: int, prove: bool
) -> None:
    snapshot = with_lists(orders)
    request = parse_request({"parallelism": parallelism, "operators": {"orders": {"drop_states": ["counts"]}}})
    result = rescale(snapshot, str(tmp_path / "new"), request, prove=prove)
    wanted = [line for line in dump(snapshot) if line.get("state") != "counts"]
    assert gather(dump(open_snapshot(result.path))) == gather(wanted)


def split_orders(orders: Snapshot, tmp_path: Path) -> tuple[Snapshot, str]:
    """Two regions: some keys of `orders` each, the lists of all operators in both, no windows in the second one."""
    keys = sorted({str(line["key"]) for line in dump(orders) if line["op"] == "orders" and line["kind"] == "keyed"})
    first = run(orders, tmp_path / "first", operators={"orders": {"keep_keys": keys[:90]}})
    second = run(
        orders,
        tmp_path / "second",
        operators={"orders": {"drop_keys": keys[:90]}, "revenue-per-minute": {"drop": True}},
    )
    return open_snapshot(first.path), second.path


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [{}, {"parallelism": 1}, {"parallelism": 4}, {"parallelism": 3, "max_parallelism": 256}], ids=str
)
def test_two_regions_become_one(orders: Snapshot, tmp_path: Path, content: dict[str, int]) -> None:
    first, second = split_orders(orders, tmp_path)
    new = open_snapshot(run(first, tmp_path / "merged", merge={"with": [second]}, **content).path)
    counts, copies = gather(dump(orders))
    lists, _ = gather(line for line in dump(orders) if line["kind"] == "operator")
    assert gather(dump(new)) == (counts + lists, copies)
    prices = {(line["subtask"], line["ukey"]) for line in dump(new) if line["kind"] == "broadcast"}
    assert len(prices) == 12 * new.operator("pricing").parallelism


@pytest.mark.slow
def test_regions_with_other_broadcast_state_do_not_mix(orders: Snapshot, types: Snapshot, tmp_path: Path) -> None:
    first, second = split_orders(orders, tmp_path)
    less = run(open_snapshot(second), tmp_path / "less", operators={"pricing": {"drop_states": ["prices"]}})
    taken = {"pricing": {"from": str(types.path), "operator": "operator-states"}}
    other = run(open_snapshot(less.path), tmp_path / "other", operators={"pricing": {"drop": True}}, take=taken)
    renamed = {line["state"] for line in dump(open_snapshot(other.path)) if line["kind"] == "broadcast"}
    assert renamed.isdisjoint({"prices"})
    merged = run(first, tmp_path / "merged", merge={"with": [other.path]})
    assert {line["state"] for line in dump(open_snapshot(merged.path)) if line["kind"] == "broadcast"} == {
        "prices",
        *renamed,
    }


@pytest.mark.slow
def test_without_the_hash_key_groups_may_be_joined(types: Snapshot, tmp_path: Path) -> None:
    result = run(types, tmp_path / "new", max_parallelism=32)
    assert [change.hashes for change in result.plan.changes if change.label == "state-kinds"] == [()]
    again = run(reopen(result, types), tmp_path / "again", max_parallelism=128)
    assert gather(dump(reopen(again, types))) == gather(dump(types))


@pytest.mark.parametrize("keys", [{"keep_keys": [10_000]}, {"drop_keys": [10_000]}])
def test_keys_that_are_not_there_are_told(types: Snapshot, tmp_path: Path, keys: dict[str, list[int]]) -> None:
    with pytest.raises(NotFoundError, match="the operator has none of the chosen keys"):
        run(types, tmp_path / "new", operators={"basic-types": keys})
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_keys_have_the_form_of_a_dump(types: Snapshot, tmp_path: Path) -> None:
    keys = [line["key"] for line in dump(types) if line["op"] == "composite-types" and line["kind"] == "keyed"]
    (first, *_) = (key["@tuple"] if isinstance(key, dict) else key for key in keys)
    result = run(types, tmp_path / "new", operators={"composite-types": {"keep_keys": [first]}})
    left = {json.dumps(line["key"]) for line in dump(reopen(result, types)) if line["op"] == "composite-types"}
    assert len(left) == 1


def test_a_field_that_the_key_does_not_have_is_refused(types: Snapshot, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a key of type struct<number: int32, region: string>"):
        run(types, tmp_path / "new", operators={"state-kinds": {"keep_keys": [{"regoin": "x"}]}})


def test_key_groups_that_differ_are_noted(types: Snapshot, tmp_path: Path) -> None:
    result = run(types, tmp_path / "new", operators={"basic-types": {"max_parallelism": 256}})
    assert any("if any of these are chained, Flink loses state" in note for note in result.notes)


@pytest.mark.slow
def test_an_operator_without_keyed_state_may_have_more_subtasks_than_key_groups_before(
    orders: Snapshot, tmp_path: Path
) -> None:
    result = run(orders, tmp_path / "new", parallelism=200, max_parallelism=1024)
    assert {each.parallelism for each in open_snapshot(result.path).operators} == {200}


def test_a_target_that_holds_something_is_refused_at_once(types: Snapshot, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    with pytest.raises(TargetExistsError):
        plan_rescale(types, resolve(str(tmp_path / "new")), parse_request({"parallelism": 3}))
