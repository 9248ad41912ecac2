from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.retention import KeepRule, PolicyRule, load_policy, parse_policy
from state_pipelines.operations.retention.policy import FOREVER, SnapshotFormat, parse_duration, parse_size

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
    assert policy.rules == (
        PolicyRule(
            KeepRule(last=FOREVER),
            SnapshotKind.SAVEPOINT,
            SnapshotFormat.NATIVE,
            "33*",
            "*/manual/*",
            "keep",
            name="rules[0]",
        ),
        PolicyRule(KeepRule(last=5), kind=SnapshotKind.CHECKPOINT, name="checkpoints"),
        PolicyRule(
            KeepRule(within=timedelta(days=30), daily=7, weekly=4, monthly=12, tags=("release",), max_size=500 << 30),
            kind=SnapshotKind.SAVEPOINT,
            name="savepoints",
        ),
    )


def test_underscores_are_hyphens() -> None:
    assert parse_policy({"min_age": "1h", "keep": {"max_size": "1k"}}).rules[0].keep == KeepRule(max_size=1024)


def test_an_empty_policy_keeps_three_days() -> None:
    assert parse_policy(None).min_age == timedelta(days=3)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ([], ""),
        ({"min-ages": "3d"}, "min-ages"),
        ({"min-age": "soon"}, "min-age"),
        ({"min-age": 3}, "min-age"),
        ({"min-age": "-3d"}, "min-age"),
        ({"grace": True}, "grace"),
        ({"num-retained": 0}, "num-retained"),
        ({"keep": {}}, "keep"),
        ({"keep": {"last": -1}}, "keep.last"),
        ({"keep": {"last": "5"}}, "keep.last"),
        ({"keep": {"daily": 1.5}}, "keep.daily"),
        ({"keep": {"newest": 1}}, "keep.newest"),
        ({"keep": {"tags": [1]}}, "keep.tags"),
        ({"keep": {"max-size": "5 parsec"}}, "keep.max-size"),
        ({"savepoints": 5}, "savepoints"),
        ({"rules": {}}, None),
        ({"rules": "all"}, "rules"),
        ({"rules": [{"match": {"kind": "savepoint"}}]}, "rules[0]"),
        ({"rules": [{"match": {"kind": "backup"}, "keep": "all"}]}, "rules[0].match.kind"),
        ({"rules": [{"match": {"format": "avro"}, "keep": "all"}]}, "rules[0].match.format"),
        ({"rules": [{"match": {"job": 5}, "keep": "all"}]}, "rules[0].match.job"),
        ({"rules": [{"keep": "all"}, {"keep": {"last": None}}]}, "rules[1].keep.last"),
        ({"equal-schemes": [["s3"]]}, "equal-schemes"),
        ({"price": "cheap"}, "price"),
        ({"price": -1}, "price"),
        ({"price": float("nan")}, "price"),
    ],
)
def test_errors_name_the_field(content: object, field: str | None) -> None:
    if field is None:
        assert parse_policy(content).rules == ()
        return
    with pytest.raises(UsageError) as error:
        parse_policy(content)
    assert (error.value.where.path or "") == field


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
        ("min-age: 30d\nmin_age: 1h", "min-age and min_age are the same field"),
        ("keep: {last: 9, keep-last: 1}", "last and keep-last are the same field"),
        ("keep: {keep_daily: 9, keep-daily: 1}", "keep_daily and keep-daily are the same field"),
        ("checkpoints: {max-size: 1k, max_size: 1G}", "max-size and max_size are the same field"),
        ("equal-schemes: [[s3, oss]]\nequal_schemes: []", "equal-schemes and equal_schemes are the same field"),
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
