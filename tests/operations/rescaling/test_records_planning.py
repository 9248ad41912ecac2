from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.keyed.canonical import CanonicalFile
from state_pipelines.operations.rescale import parse_request, plan_rescale, records
from state_pipelines.operations.rescale.records import MOST_BLOCKS, MOST_TASKS, SPLIT_SIZE
from state_pipelines.operations.rescale.snapshot_merge import SAMPLED_BYTES
from state_pipelines.operations.write.spills import BATCH, BLOCK, Spill, SpilledBlock
from state_pipelines.snapshot.snapshot import Operator
from state_pipelines.storage import join, resolve
from tests.snapshot.savepoints import types

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state_pipelines.operations.rescale.records import OperatorTasks, Shuffle

FIRST_TO_MERGE = (MOST_BLOCKS + 1) * BLOCK


def plan_operators(target: Path) -> list[OperatorTasks]:
    plan = plan_rescale(types(variant="heap").open(), resolve(str(target)), parse_request({"max_parallelism": 1024}))
    return [each for each in plan.operators if each.records is not None]


def list_shuffles(plans: list[OperatorTasks]) -> list[Shuffle]:
    return [piece for each in plans if each.records is not None for source in each.records.shuffles for piece in source]


@pytest.mark.parametrize(
    ("size", "piece", "merges"),
    [
        (1, SPLIT_SIZE, False),
        (FIRST_TO_MERGE - 1, SPLIT_SIZE, False),
        (FIRST_TO_MERGE, SPLIT_SIZE, True),
        (MOST_TASKS * SPLIT_SIZE, SPLIT_SIZE, True),
        (4 << 40, 1 << 30, True),
    ],
)
def test_pieces_grow_and_become_one_block_each_with_the_state(
    size: int, piece: int, merges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set()

    def split(file: CanonicalFile, size: int, *rest: Any) -> Iterator[CanonicalFile]:
        asked.add(size)
        return original(file, size, *rest)

    original = CanonicalFile.split
    monkeypatch.setattr(CanonicalFile, "split", split)
    monkeypatch.setattr(Operator, "keyed_size", size)
    shuffles = list_shuffles(plan_operators(tmp_path / "new"))
    # The hash of a class in the keys is looked for in smaller ones.
    assert asked - {SAMPLED_BYTES} == {piece}
    assert {each.merges for each in shuffles} == {merges}
    assert {(each.block, each.batch) for each in shuffles} == {(BLOCK, BATCH)}


def test_there_are_about_as_many_tasks_as_there_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SPLIT_SIZE", 1)
    numbers = []
    for most in (2, 10):
        monkeypatch.setattr(records, "MOST_TASKS", most)
        plans = plan_operators(tmp_path / "new")
        numbers.append([len(list_shuffles([each])) for each in plans])
    # Files end inside a task, and key groups are not cut.
    assert max(numbers[0]) <= 2 + 2
    assert 2 < max(numbers[1]) <= 10 + 10


def test_bytes_of_keyed_state_are_those_of_its_files() -> None:
    for operator in types(variant="heap").open().operators:
        sizes = [file.stream.size for _, file in operator.keyed_files if isinstance(file, CanonicalFile)]
        assert operator.keyed_size == sum(sizes)


def test_windows_follow_from_the_blocks_of_all_spills(tmp_path: Path) -> None:
    (plan, *_) = plan_operators(tmp_path / "new")
    target = resolve(str(tmp_path / "new"))
    for number, batch in ((1, BATCH), (1024, 32 << 20)):
        blocks = tuple(SpilledBlock(0, 0, 0) for _ in range(number // 2))
        spills = [Spill(join(target, f"spill-{each}"), 1024, blocks) for each in range(2)]
        pieces = plan.gather(target, [spills[:1], spills[1:]], parse_request({"max_parallelism": 1024}), verify=True)
        assert {each.batch for each in pieces} == {batch}
