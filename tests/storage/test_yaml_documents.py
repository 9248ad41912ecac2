from __future__ import annotations

import pytest
import yaml

from state_pipelines.storage.yaml_documents import MAX_DEPTH, parse_yaml


def test_values_and_texts() -> None:
    assert parse_yaml("a: [1, no]") == {"a": [1, False]}
    assert parse_yaml("a: [1, no]", as_texts=True) == {"a": ["1", "no"]}


@pytest.mark.parametrize("as_texts", [False, True])
def test_depth_is_bounded(as_texts: bool) -> None:
    assert parse_yaml("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1), as_texts=as_texts)
    with pytest.raises(yaml.YAMLError, match=f"nest deeper than {MAX_DEPTH}"):
        parse_yaml("[" * 20_000, as_texts=as_texts)


@pytest.mark.parametrize("text", ["revision: 2020-13-45", "time: 2020-01-01 25:00:00"])
def test_what_does_not_exist_is_an_error_of_yaml(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        parse_yaml(text)
