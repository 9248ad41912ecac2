"""Operators under other uids are found by their states."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from state_pipelines.operations.check.check import (
    OperatorMatch,
    format_rename_request,
    make_rename_request,
    match_operators,
)
from state_pipelines.operations.jobs.job_state import JobDescription, JobOperator
from state_pipelines.operations.rescale import parse_request
from state_pipelines.serializers.text import parse
from tests.operations.test_check import state

COUNT, TOTAL = state("count", "VALUE", "Long"), state("total", "VALUE", "Double")


def operator(number: int, label: str, *states: object, **changes: object) -> JobOperator:
    made = JobOperator(f"{number:032x}", label, 2, 128, parse("String"), tuple(states))  # type: ignore[arg-type]
    return replace(made, **changes)  # type: ignore[arg-type]


def match(old: list[JobOperator], new: list[JobOperator]) -> list[tuple[str, str | None, tuple[str, ...]]]:
    found = match_operators(JobDescription("old", tuple(old)), JobDescription("new", tuple(new)))
    return [(each.old, each.new, each.candidates) for each in found]


def test_the_same_states_are_the_same_operator() -> None:
    old = [operator(1, "orders", COUNT, TOTAL), operator(2, "rates", state("rate")), operator(3, "stays", COUNT)]
    new = [operator(4, "rates-v2", state("rate")), operator(5, "orders-v2", COUNT, TOTAL), operator(3, "stays", COUNT)]
    assert match(old, new) == [("orders", "orders-v2", ("orders-v2",)), ("rates", "rates-v2", ("rates-v2",))]


def test_the_reason_says_what_they_share() -> None:
    (found,) = match_operators(
        JobDescription("old", (operator(1, "orders", COUNT, TOTAL),)),
        JobDescription("new", (operator(2, "new", COUNT, state("total", "VALUE", "Long")),)),
    )
    assert found.reason == "both have the states count, total, 1 of them of the same types"


def test_types_decide_between_operators_with_states_of_one_name() -> None:
    old = [operator(1, "counts", COUNT), operator(2, "texts", state("count", "VALUE", "String"))]
    new = [operator(3, "b", state("count", "VALUE", "String")), operator(4, "a", COUNT)]
    assert [each[:2] for each in match(old, new)] == [("counts", "a"), ("texts", "b")]


def test_several_that_fit_equally_are_not_chosen_from() -> None:
    assert match([operator(1, "old", COUNT)], [operator(2, "a", COUNT), operator(3, "b", COUNT)]) == [
        ("old", None, ("a", "b"))
    ]


def test_two_lost_operators_do_not_get_one_new_operator() -> None:
    found = match([operator(1, "x", COUNT), operator(2, "y", COUNT)], [operator(3, "a", COUNT)])
    assert found == [("x", None, ("a",)), ("y", None, ("a",))]


@pytest.mark.parametrize(
    "other",
    [
        operator(2, "other key", COUNT, key=parse("Long")),
        operator(2, "other kind", state("count", "LIST", "List<Long>")),
        operator(2, "few in common", COUNT, *(state(f"s{number}") for number in range(4))),
        operator(2, "other names", TOTAL),
        operator(2, "unread", unread="nobody knows"),
    ],
    ids=lambda each: each.label,
)
def test_what_does_not_fit_is_not_proposed(other: JobOperator) -> None:
    assert match([operator(1, "old", COUNT)], [other]) == [("old", None, ())]


def test_operators_without_state_are_not_missed() -> None:
    assert match([operator(1, "old", COUNT, has_state=False)], [operator(2, "new", COUNT)]) == []


def test_ids_that_nobody_gave_are_pointed_out() -> None:
    number = "0" * 31 + "1"
    assert OperatorMatch("orders", ("new",), "", is_certain=True).hint == ""
    assert (
        f"the id {number} is of a uid that was not named (--uid), or was generated"
        in OperatorMatch(number, ("new",), "").hint
    )


def test_the_request_renames_what_is_certain_and_lists_the_rest() -> None:
    number = "0" * 31 + "2"
    matches = [
        OperatorMatch("1", ("orders-v2",), "both have the state count", is_certain=True),
        OperatorMatch("by-id", (number,), "both have the state total", is_certain=True),
        OperatorMatch("open", ("a", "b"), "several fit"),
    ]
    text = format_rename_request(matches)
    assert "# open: several fit\n#   could be a\n#   could be b\n" in text
    assert "  # both have the state count\n" in text
    assert yaml.safe_load(text) == make_rename_request(matches)
    request = parse_request(yaml.safe_load(text))
    assert [(name, each.uid, each.operator_id) for name, each in request.operators.items()] == [
        ("1", "orders-v2", None),
        ("by-id", None, number),
    ]


def test_a_request_without_certain_matches_is_empty() -> None:
    assert yaml.safe_load(format_rename_request([OperatorMatch("open", ("a", "b"), "several fit")])) is None
