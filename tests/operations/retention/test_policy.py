from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.operations.retention import KeepRule, PolicyRule, load_policy, parse_policy
from state_pipelines.operations.retention.policy import (
    FOREVER,
    RuleConditions,
    SnapshotFormat,
    parse_duration,
    parse_size,
)

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = """\
min-age: 12h
grace: 10min
num-retained: 3
checkpoints: {last: 5}
savepoints: {within: 30d, daily: 7, keep-weekly: 4, monthly: 12, tags: [release], max-size: 500GiB}
rules:
  - match: {kind: savepoint, format: native, job: "33*", path: "*/manual/*", tag: keep}
    keep: all
equal-schemes: [[s3, oss]]
equal-authorities: [["nn1:8020", Nameservice]]
price: 0.023
currency: EUR
"""


def test_a_policy_is_read_from_yaml(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(WHOLE)
    policy = load_policy(tmp_path / "policy.yaml")
    assert (policy.min_age, policy.grace) == (timedelta(hours=12), timedelta(minutes=10))
    assert (policy.num_retained, policy.price, policy.currency) == (3, 0.023, "EUR")
    assert (policy.equal_schemes, policy.equal_authorities) == ((("s3", "oss"),), (("nn1:8020", "nameservice"),))
    kept = KeepRule(within=timedelta(days=30), daily=7, weekly=4, monthly=12, tags=("release",), max_size=500 << 30)
    conditions = RuleConditions(
        kind="savepoint", format=SnapshotFormat.NATIVE, job="33*", path="*/manual/*", tag="keep"
    )
    assert policy.ordered_rules == {
        "rules[0]": PolicyRule(match=conditions, keep=KeepRule.parse({"last": "all"})),
        "checkpoints": PolicyRule(match=RuleConditions(kind="checkpoint"), keep=KeepRule(last=5)),
        "savepoints": PolicyRule(match=RuleConditions(kind="savepoint"), keep=kept),
    }
    assert policy.ordered_rules["rules[0]"].keep.last == FOREVER


def test_underscores_are_hyphens() -> None:
    assert parse_policy({"min_age": "1h", "keep": {"max_size": "1k"}}).keep == KeepRule(max_size=1024)


def test_an_empty_policy_keeps_three_days() -> None:
    assert parse_policy(None).min_age == timedelta(days=3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "the retention policy is not a mapping"),
        (
            {"min-ages": "3d"},
            "the retention policy does not know 'min-ages'. It knows min-age, grace",
        ),
        ({"min-age": "soon"}, "min-age: 'soon' is not a duration"),
        ({"min-age": 3}, "min-age: 3 is not a duration"),
        ({"min-age": "-3d"}, "min-age: '-3d' is not a duration"),
        ({"grace": True}, "grace: True is not a duration"),
        ({"num-retained": 0}, "num-retained of the retention policy is 0, not a number from 1 on"),
        ({"keep": {}}, "keep has no option that says what to keep: give one of last, within"),
        ({"keep": {"last": -1}}, "keep.last is -1, not a number of snapshots"),
        ({"keep": {"last": -2}}, "last of keep is -2"),
        ({"keep": {"last": "5"}}, "last of keep is not a whole number but '5'"),
        ({"keep": {"last": True}}, "last of keep is not a whole number but True"),
        ({"keep": {"daily": 1.5}}, "daily of keep is not a whole number"),
        ({"keep": {"newest": 1}}, "keep does not know 'newest'. It knows last, within"),
        ({"keep": {"tags": [1]}}, "keep.tags[0] is not text but 1"),
        ({"keep": {"max-size": "5 parsec"}}, "keep.max-size: '5 parsec' is not a size"),
        ({"keep": "some"}, "keep is not a mapping but 'some'"),
        ({"savepoints": 5}, "savepoints is not a mapping"),
        ({"savepoints": None}, "the retention policy gives no value for savepoints"),
        ({"rules": {}}, "rules of the retention policy is not a list"),
        ({"rules": [{"match": {"kind": "savepoint"}}]}, "rules[0] lacks the field 'keep'"),
        (
            {"rules": [{"match": {"kind": "unknown"}, "keep": "all"}]},
            "kind of rules[0].match is 'unknown'. Choose fr",
        ),
        (
            {"rules": [{"match": {"format": "avro"}, "keep": "all"}]},
            "format of rules[0].match is 'avro'. Choose",
        ),
        ({"rules": [{"match": {"job": 5}, "keep": "all"}]}, "job of rules[0].match is not text"),
        ({"rules": [{"match": {"job": ""}, "keep": "all"}]}, "job of rules[0].match is '', with less than 1 character"),
        ({"rules": [{"keep": "all"}, {"keep": {"last": None}}]}, "rules[1].keep gives no value for last"),
        ({"rules": [{"keep": "all"}, {"keep": {"lats": 1}}]}, "rules[1].keep does not know 'lats'. It knows last"),
        ({"equal-schemes": [["s3"]]}, "equal-schemes[0] is ['s3'], with less than 2 entries"),
        ({"price": "cheap"}, "price of the retention policy is not a number"),
        ({"price": -1}, "price of the retention policy is -1, not a number from 0 on"),
        ({"price": float("nan")}, "price of the retention policy is not a number but nan"),
    ],
)
def test_errors_name_the_field(content: object, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_policy(content)


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("keep: [")
    with pytest.raises(UsageError, match="not YAML") as error:
        load_policy(tmp_path / "policy.yaml")
    assert error.value.where.file == str(tmp_path / "policy.yaml")


def test_a_policy_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_policy(tmp_path / "policy.yaml")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90s", 90), ("90 min", 5400), ("1.5h", 5400), ("3 days", 259_200), ("2W", 1_209_600)],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize(("text", "size"), [(10, 10), ("1kb", 1024), ("1.5 MiB", 1_572_864), ("2t", 2 << 40)])
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["99999999999999d", "1e999d"])
def test_durations_without_end_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("min-age: 30d\nmin-age: 1h", "the key 'min-age' is there twice, in lines 1 and 2"),
        ("checkpoints: {last: 9}\nkeep: all\ncheckpoints: {last: 1}", "'checkpoints' is there twice, in lines 1 and 3"),
        ("rules: []\n'rules': [{keep: all}]", "'rules' is there twice"),
        ("keep: {last: 9, last: 1}", "'last' is there twice, in lines 1 and 1"),
        ("rules: [{match: {job: a, job: b}, keep: all}]", "'job' is there twice"),
        ("min-age: 30d\nmin_age: 1h", "has min-age and min_age, which are the same field"),
        ("keep: {last: 9, keep-last: 1}", "has last and keep-last, which are the same field"),
        ("keep: {keep_daily: 9, keep-daily: 1}", "has keep_daily and keep-daily, which are the same field"),
        ("checkpoints: {max-size: 1k, max_size: 1G}", "has max-size and max_size, which are the same field"),
        (
            "equal-schemes: [[s3, oss]]\nequal_schemes: []",
            "has equal-schemes and equal_schemes",
        ),
    ],
)
def test_policies_that_contradict_themselves(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(UsageError) as error:
        load_policy(tmp_path / "policy.yaml")
    assert found in str(error.value)
    assert str(tmp_path / "policy.yaml") in str(error.value)


@pytest.mark.parametrize("text", ["1m", "1M", "30 m"])
def test_minutes_and_months_are_said(text: str) -> None:
    # `restic forget` reads months.
    with pytest.raises(UsageError, match=r"minutes or months.*Write \d+min for minutes, or \d+mo for months"):
        parse_policy({"min-age": text})
    assert parse_duration("1min") == timedelta(minutes=1)
    assert parse_duration("1mo") == timedelta(days=30)
