"""Tables of the records that a proof found to differ."""

from __future__ import annotations

from typing import Any

import pytest

from state_pipelines.operations.proofs import DifferingRecord, arrange_rows


def show(before: Any, after: Any, **others: Any) -> dict[str, str]:
    columns, (cells,) = arrange_rows(
        [DifferingRecord("s", {"state_key": "k"}, {"after": after, "expected": before}, **others)]
    )
    return dict(zip(columns, cells, strict=True))


def test_the_fields_that_differ_come_first_by_their_path() -> None:
    before = {"id": 7, "address": {"zip": "1", "street": "long" * 100, "geo": {"lat": 1.0, "lon": 2.0}}, "note": None}
    after = {"id": 7, "address": {"zip": "2", "street": "long" * 100, "geo": {"lat": 1.0, "lon": 3.0}}}
    shown = show(before, after)
    assert list(shown.items()) == [
        ("differs", "address.zip, address.geo.lon, note"),
        ("state", "s"),
        ("key", "k"),
        ("after", '{"address": {"zip": "2", "geo": {"lon": 3.0}}}'),
        ("expected", '{"address": {"zip": "1", "geo": {"lon": 2.0}}, "note": null}'),
    ]


def test_only_compared_fields_are_shown_if_they_differ() -> None:
    assert show({"a": 1, "b": 1}, {"a": 2, "b": 2}, fields=frozenset({"b"}))["differs"] == "b"
    assert show({"a": 1, "b": 1}, {"a": 2, "b": 1}, fields=frozenset({"b"}))["differs"] == "a"


@pytest.mark.parametrize(("before", "after"), [(1, 2), ([1], [2]), ({"a": 1}, 2), ({"a": 1}, {"a": 1})])
def test_values_that_are_no_structs_are_shown_whole(before: Any, after: Any) -> None:
    shown = show(before, after)
    assert "differs" not in shown
    assert (shown["after"], shown["expected"]) == tuple(
        each if isinstance(each, str) else str(each).replace("'", '"') for each in (after, before)
    )
