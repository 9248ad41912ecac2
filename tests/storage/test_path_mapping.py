"""Rules of moved directories: which `=` separates them."""

from __future__ import annotations

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.storage.resolution import parse_path_mapping


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("/a=/b", ("/a", "/b")),
        ("/a=b", ("/a", "b")),
        ("file:/old=s3://b/day=1/new", ("file:/old", "s3://b/day=1/new")),
        ("s3://b/day=1/x=/day=1", ("s3://b/day=1/x", "/day=1")),
    ],
)
def test_the_separator_has_an_absolute_path_on_both_sides(text: str, rule: tuple[str, str]) -> None:
    assert parse_path_mapping([text]).rules == (rule,)


@pytest.mark.parametrize("text", ["a", "=", "/a=", "=/a", "a=b", "a=b=c", "/a=b=c", "/a=/b=/c"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="FROM=TO"):
        parse_path_mapping([text])
