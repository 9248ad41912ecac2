from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from dagster._core.definitions.partitions.utils import raise_error_on_invalid_partition_key_substring

from state_pipelines.errors import UsageError
from state_pipelines.operations.inventory import (
    LONG,
    SnapshotName,
    format_partition_key,
    name_snapshot,
    parse_partition_key,
)
from state_pipelines.storage import resolve
from tests.operations.inventory.trees import JOB, OTHER_JOB

FINGERPRINT = "bcb9ffffd1515483"


def name(path: str) -> str:
    return name_snapshot(resolve(path)).name


def test_a_checkpoint_has_six_digits_of_its_job() -> None:
    assert name_snapshot(resolve(f"/c/{JOB}/chk-17")) == SnapshotName("chk-17-1a2b3c", JOB)


def test_checkpoints_of_two_jobs_with_one_number_differ() -> None:
    assert name(f"/c/{JOB}/chk-17") != name(f"/c/{OTHER_JOB}/chk-17")


def test_a_checkpoint_without_a_directory_of_its_job_keeps_its_name() -> None:
    assert name_snapshot(resolve("/checkpoints/chk-17")) == SnapshotName("chk-17", None)


def test_a_savepoint_keeps_its_name_up_to_the_id_of_its_job() -> None:
    assert name_snapshot(resolve("/s/savepoint-df4606-efe91b44c091")) == SnapshotName("savepoint-df4606", "df4606")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("savepoint-before-upgrade", "savepoint-before-upgrade"),
        ("savepoint-df4606-efe91b44c091-0002", "savepoint-df4606-efe91b44c091-0002"),
        ("nightly 2026-11-22, 03:00", "nightly-2026-11-22-03-00"),
        ("a...b", "a.b"),
        ("größe", "größe"),
        ("x" * 60, "x" * 40),
        ("@", "-"),
    ],
)
def test_other_names_are_kept_as_far_as_keys_allow(given: str, expected: str) -> None:
    assert name(f"/s/{given}") == expected


@pytest.mark.parametrize("given", ["a\tb", "a\nb", "a...b", "a\0b", "....", " "])
def test_dagster_takes_every_key(given: str) -> None:
    raise_error_on_invalid_partition_key_substring([format_partition_key(name(f"/s/{given}"), FINGERPRINT)])


def test_a_key_is_the_name_and_eight_digits() -> None:
    assert format_partition_key("chk-17-1a2b3c", FINGERPRINT) == "chk-17-1a2b3c@bcb9ffff"


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("savepoint-df4606", "2026-11-27_savepoint-df4606@bcb9ffff"),
        ("chk-17", "chk-17@bcb9ffff"),
        ("2025-01-01_before-release", "2025-01-01_before-release@bcb9ffff"),
    ],
)
def test_a_savepoint_has_its_date_in_utc(given: str, key: str) -> None:
    taken = datetime(2026, 11, 28, 1, tzinfo=timezone(timedelta(hours=2)))
    assert format_partition_key(given, FINGERPRINT, taken=taken) == key
    assert parse_partition_key(key).fits(given, FINGERPRINT)


@pytest.mark.parametrize("size", [8, LONG])
def test_a_key_is_parsed(size: int) -> None:
    key = format_partition_key("a@b", FINGERPRINT, size)
    assert parse_partition_key(key) == ("a@b", FINGERPRINT[:size])


@pytest.mark.parametrize("key", ["", "chk-17", "@bcb9ffff", "chk-17@BCB9FFFF", "chk-17@bcb9fff", "chk-17@bcb9ffff0"])
def test_other_texts_are_no_keys(key: str) -> None:
    with pytest.raises(UsageError, match="not the key of a snapshot"):
        parse_partition_key(key)
