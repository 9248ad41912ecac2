from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    OperatorStateMetaInfo,
    OperatorStateMode,
    OperatorStreamStateHandle,
)
from state_pipelines.operations.rescale.assembly import Share, redistribute
from tests.operations.rescaling.golden_redistribution import CASES, LINES, read_golden

if TYPE_CHECKING:
    from collections.abc import Iterable

SPLIT, UNION, BROADCAST = OperatorStateMode

State = tuple[str, OperatorStateMode, tuple[int, ...]]


def handle(*states: State) -> OperatorStreamStateHandle:
    return OperatorStreamStateHandle(
        tuple(OperatorStateMetaInfo(*state) for state in states), ByteStreamStateHandle("state", b"")
    )


def hand_out(old: list[list[State] | None], parallelism: int) -> tuple[tuple[Share, ...], ...]:
    handles = [(index, handle(*states)) for index, states in enumerate(old) if states is not None]
    return redistribute(handles, parallelism, old_parallelism=len(old))


def by_file(shares: Iterable[Share]) -> dict[tuple[int, str, int], tuple[int, ...]]:
    return {(share.subtask, share.state_name, share.mode): share.offsets for share in shares}


@dataclass(frozen=True)
class Recorded:
    old: list[list[State] | None]
    new: list[list[Share]]


def read_cases(line: str) -> list[Recorded]:
    return [
        Recorded(
            [
                states and [(name, OperatorStateMode(mode), tuple(at)) for name, mode, at in states]
                for states in case["old"]
            ],
            [
                [Share(old, name, OperatorStateMode(mode), tuple(at)) for old, name, mode, at in each]
                for each in case["new"]
            ],
        )
        for case in map(json.loads, read_golden(line))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_split_and_broadcast_state_goes_where_flink_puts_it(line: str) -> None:
    cases = read_cases(line)
    for case in cases:
        shares = hand_out(case.old, len(case.new))
        ours = [by_file(share for share in each if share.mode != UNION) for each in shares]
        assert ours == [by_file(share for share in each if share.mode != UNION) for each in case.new]
    assert len(cases) == CASES


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_union_state_is_there_once_and_in_the_order_in_which_flink_gives_it_to_everyone(line: str) -> None:
    for case in read_cases(line):
        shares = [share for each in hand_out(case.old, len(case.new)) for share in each if share.mode == UNION]
        flinks = by_file(share for share in case.new[0] if share.mode == UNION)
        assert by_file(shares) == flinks
        assert max(Counter((share.subtask, share.state_name) for share in shares).values(), default=1) == 1
        assert [share.subtask for share in sorted(shares, key=lambda share: share.state_name)] == [
            subtask for subtask, _, _ in sorted(flinks, key=lambda key: (key[1], key[0]))
        ]


def test_the_next_state_begins_where_the_one_before_has_stopped() -> None:
    shares = hand_out([[("a", SPLIT, (10, 20)), ("b", SPLIT, (30, 40))]], 4)
    assert [[(share.state_name, share.offsets) for share in each] for each in shares] == [
        [("a", (10,))],
        [("a", (20,))],
        [("b", (30,))],
        [("b", (40,))],
    ]


def test_nothing_moves_at_the_same_parallelism() -> None:
    shares = hand_out([[("a", SPLIT, (10, 20, 30)), ("u", UNION, (5,))], [], None], 3)
    assert shares == ((Share(0, "a", SPLIT, (10, 20, 30)), Share(0, "u", UNION, (5,))), (), ())


def test_union_entries_of_a_subtask_stay_together() -> None:
    shares = hand_out([[("u", UNION, (1, 2))], [("u", UNION, (3,))]], 5)
    assert [[share.offsets for share in each] for each in shares] == [[(1, 2)], [], [(3,)], [], []]


def test_every_subtask_gets_one_copy_of_broadcast_state() -> None:
    shares = hand_out([[("b", BROADCAST, (7,))], None, [("b", BROADCAST, (9,))]], 4)
    assert [[(share.subtask, share.offsets) for share in each] for each in shares] == [
        [(0, (7,))],
        [(2, (9,))],
        [(0, (7,))],
        [(2, (9,))],
    ]


def test_there_is_no_subtask_zero_of_none() -> None:
    with pytest.raises(UsageError):
        hand_out([[("a", SPLIT, (1,))]], 0)
