from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.operations.models import read_keywords
from state_pipelines.operations.rescale.rescale_request import (
    MergeRequest,
    OperatorRequest,
    RescaleRequest,
    TakeRequest,
    load_request,
    parse_request,
)
from state_pipelines.operations.rescale.snapshot_merge import MergeRule

if TYPE_CHECKING:
    from pathlib import Path


def test_everything_that_a_file_can_say(tmp_path: Path) -> None:
    (tmp_path / "keys.jsonl").write_text('"alice"\n\n{"f0": 1}\n')
    file = tmp_path / "request.yaml"
    file.write_text(
        """
        parallelism: 6
        max_parallelism: 1024
        operators:
          orders:
            parallelism: 12
            max_parallelism: 512
            uid: orders-v2
            key_hash: {com.acme.OrderKey: "objects(customer, region)"}
            drop_states: [cache]
          sessions: {keep_keys: {file: keys.jsonl}}
          counts: {drop_keys: [1, 2]}
          obsolete: {drop: true}
          legacy: {operator_id: 0A448493B4782967B150582570326227}
        take:
          enriched: {from: "s3://bucket/other", operator: enricher}
          prices: {from: elsewhere}
        merge: {with: [eu, us], on_equal: last}
        """
    )
    assert load_request(file) == RescaleRequest(
        parallelism=6,
        max_parallelism=1024,
        operators={
            "orders": OperatorRequest(
                parallelism=12,
                max_parallelism=512,
                uid="orders-v2",
                drop_states=("cache",),
                key_hash={"com.acme.OrderKey": "objects(customer, region)"},
            ),
            "sessions": OperatorRequest(keep_keys=("alice", {"f0": 1})),
            "counts": OperatorRequest(drop_keys=(1, 2)),
            "obsolete": OperatorRequest(drop=True),
            "legacy": OperatorRequest(operator_id="0a448493b4782967b150582570326227"),
        },
        take={
            "enriched": TakeRequest(snapshot="s3://bucket/other", operator="enricher"),
            "prices": TakeRequest(snapshot="elsewhere"),
        },
        merge=MergeRequest(snapshots=("eu", "us"), on_equal=MergeRule.LAST),
    )


def test_an_empty_file_asks_for_nothing() -> None:
    assert parse_request(None).is_empty
    assert not parse_request({"parallelism": 1}).is_empty


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"paralelism": 3}, "the request does not know 'paralelism'"),
        ({"parallelism": "3"}, "parallelism of the request is not a whole number but '3'"),
        ({"parallelism": True}, "not a whole number"),
        ({"operators": ["orders"]}, "operators is not a mapping"),
        ({"operators": {"orders": {"drop": True, "uid": "x"}}}, "operators.orders is dropped"),
        ({"operators": {"orders": {"drop": "yes"}}}, "operators.orders.drop must be true or false"),
        ({"operators": {"orders": {"uid": "x", "operator_id": "00" * 16}}}, "not both"),
        ({"operators": {"orders": {"operator_id": "12"}}}, "'12' is not an operator id"),
        ({"operators": {"orders": {"keep_keys": [], "drop_keys": []}}}, "has both keep_keys and drop_keys"),
        ({"operators": {"orders": {"keep_keys": "alice"}}}, "neither a list nor"),
        ({"operators": {"orders": {"keep_keys": {"file": "missing.jsonl"}}}}, "the keys cannot be read"),
        ({"take": {"orders": {"operator": "x"}}}, "take.orders lacks the field 'from'"),
        ({"merge": {"with": ["a"], "on_equal": "sum"}}, "on_equal of merge is 'sum'"),
    ],
)
def test_what_is_wrong_is_said(content: object, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", "\\(")):
        parse_request(content)


def test_a_line_that_is_no_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys.jsonl").write_text('"alice"\nbob\n')
    with pytest.raises(UsageError, match="line 2 is not JSON"):
        parse_request({"operators": {"orders": {"keep_keys": {"file": "keys.jsonl"}}}}, tmp_path)


def test_keywords_of_the_library_come_in_place_of_fields_of_a_request() -> None:
    keywords = {"operators": {"orders": {"parallelism": 4}}, "parallelism": None}
    given = read_keywords(RescaleRequest, keywords, "the rescaling")
    assert given.model_fields_set == {"operators"}
    assert given.operators == {"orders": OperatorRequest(parallelism=4)}
    with pytest.raises(UsageError, match=r"parallelism of operators\.orders is not a whole number but '4'"):
        read_keywords(RescaleRequest, {"operators": {"orders": {"parallelism": "4"}}}, "the rescaling")
    with pytest.raises(UsageError, match="union_limit of the rescaling is not a whole number"):
        read_keywords(RescaleRequest, {"union_limit": "much"}, "the rescaling")
