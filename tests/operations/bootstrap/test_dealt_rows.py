"""Rows of list state go to subtasks, none lost, however they are cut into batches."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from state_pipelines.errors import StateError
from state_pipelines.operations.bootstrap import encoding
from state_pipelines.operations.bootstrap.encoding import deal_rows

if TYPE_CHECKING:
    from collections.abc import Sequence


def deal(columns: dict[str, Any], cuts: Sequence[int], parallelism: int, rows: int = 1000) -> list[dict[str, Any]]:
    table = pa.table(columns)
    pieces = [table.slice(start, stop - start).combine_chunks() for start, stop in itertools.pairwise(cuts)]
    batches = [piece.to_batches() for piece in pieces]
    dealt = pa.Table.from_batches(deal_rows([each for found in batches for each in found], parallelism, rows))
    return dealt.to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("rows", [1, 3, 1000])
@pytest.mark.parametrize("cuts", [(0, 10), (0, 1, 4, 10), range(11)])
def test_rows_of_all_batches_are_dealt_in_turn(cuts: Sequence[int], rows: int) -> None:
    found = deal({"value": [f"v{number}" for number in range(10)]}, cuts, 3, rows)
    assert [row["value"] for row in found] == [f"v{number}" for first in range(3) for number in range(first, 10, 3)]
    assert [row["subtask"] for row in found] == [0] * 4 + [1] * 3 + [2] * 3


@pytest.mark.parametrize("cuts", [(0, 6), (0, 2, 3, 6)])
def test_places_of_the_rows_are_kept(cuts: Sequence[int]) -> None:
    columns = {"value": list("abcdef"), "subtask": [1, 0, 1, 0, 1, 0], "list_index": [2, 1, 1, 0, 0, 5]}
    assert [row["value"] for row in deal(columns, cuts, 2, 2)] == ["d", "b", "f", "e", "c", "a"]


def test_large_rows_come_in_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "DEALT_BYTES", 2500)
    batches = list(deal_rows([pa.RecordBatch.from_pydict({"value": ["x" * 1000]}) for _ in range(5)], 2))
    assert [len(each) for each in batches] == [2, 2, 1]


def test_no_rows_are_no_batches() -> None:
    assert list(deal_rows([], 2)) == []
    assert list(deal_rows([pa.RecordBatch.from_pydict({"value": pa.array([], pa.int64())})], 2)) == []


@pytest.mark.parametrize("column", ["subtask", "list_index"])
@pytest.mark.parametrize(("numbers", "message"), [(["0", "1"], "string does not fit"), ([0, None], "is null")])
def test_places_that_are_no_numbers_are_refused(column: str, numbers: list[Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        deal({"value": ["a", "b"], column: numbers}, (0, 2), 2)
