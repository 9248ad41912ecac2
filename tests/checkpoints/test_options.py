"""Options by Flink's keys: defaults, bounds, older keys and values, options that mean nothing here."""

from __future__ import annotations

from contextlib import nullcontext
from enum import Enum
from typing import Any

import pytest

from state_pipelines.checkpoints.options import (
    FOREIGN_OPTIONS,
    OPTIONS,
    CheckpointingMode,
    CheckpointOptions,
    ClaimMode,
    parse_options,
)
from state_pipelines.errors import UsageError

CHECKPOINTING = "execution.checkpointing."


def test_defaults_are_those_of_flink() -> None:
    found = {each.keys[0]: getattr(parse_options({}), each.name) for each in OPTIONS}
    assert {key: value.value if isinstance(value, Enum) else value for key, value in found.items()} == {
        "state.backend.type": "hashmap",
        "state.changelog.enabled": False,
        "state.changelog.periodic-materialize.enabled": True,
        "state.changelog.periodic-materialize.interval": 600_000,
        "state.changelog.dstl.dfs.compression.enabled": False,
        CHECKPOINTING + "interval": None,
        CHECKPOINTING + "timeout": 600_000,
        CHECKPOINTING + "min-pause": 0,
        CHECKPOINTING + "tolerable-failed-checkpoints": 0,
        CHECKPOINTING + "mode": "EXACTLY_ONCE",
        CHECKPOINTING + "num-retained": 1,
        CHECKPOINTING + "incremental": False,
        CHECKPOINTING + "snapshot-compression": False,
        CHECKPOINTING + "data-inline-threshold": 20480,
        CHECKPOINTING + "dir": None,
        CHECKPOINTING + "create-subdir": True,
        CHECKPOINTING + "local-backup.enabled": False,
        CHECKPOINTING + "local-backup.dirs": None,
        "execution.state-recovery.path": None,
        "execution.state-recovery.claim-mode": "NO_CLAIM",
        "execution.state-recovery.ignore-unclaimed-state": False,
        "state.latency-track.keyed-state-enabled": False,
        "state.latency-track.sample-interval": 100,
        "state.latency-track.history-size": 128,
        "state.latency-track.state-name-as-variable": True,
    }


@pytest.mark.parametrize(
    ("key", "value", "name", "expected"),
    [
        (CHECKPOINTING + "interval", "10 min", "interval", 600_000),
        (CHECKPOINTING + "interval", "500ms", "interval", 500),
        (CHECKPOINTING + "interval", 30_000, "interval", 30_000),
        (CHECKPOINTING + "timeout", "1 h", "timeout", 3_600_000),
        (CHECKPOINTING + "mode", "at-least-once", "mode", CheckpointingMode.AT_LEAST_ONCE),
        (CHECKPOINTING + "data-inline-threshold", "100 kb", "inline_threshold", 102_400),
        (CHECKPOINTING + "data-inline-threshold", "1M", "inline_threshold", 1 << 20),
        (CHECKPOINTING + "data-inline-threshold", 12, "inline_threshold", 12),
        (CHECKPOINTING + "incremental", "TRUE", "incremental", True),
        ("execution.state-recovery.claim-mode", "claim", "claim_mode", ClaimMode.CLAIM),
        (CHECKPOINTING + "timeout", "7 d", "timeout", 604_800_000),
    ],
)
def test_values_are_parsed_as_flink_does(key: str, value: Any, name: str, expected: Any) -> None:
    assert getattr(parse_options({key: value}), name) == expected


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (CHECKPOINTING + "interval", "9 ms", "must be at least 10 ms"),
        (CHECKPOINTING + "timeout", "1 ms", "must be at least 10 ms"),
        (CHECKPOINTING + "interval", "soon", "Write a duration"),
        (CHECKPOINTING + "interval", "10 parsecs", "Write a duration"),
        (CHECKPOINTING + "data-inline-threshold", "2 mb", "must be at most 1 mb"),
        (CHECKPOINTING + "data-inline-threshold", "20 kilo", "Write a memory size"),
        (CHECKPOINTING + "data-inline-threshold", "9999999999 tb", "does not fit in 64 bits"),
        (CHECKPOINTING + "max-concurrent-checkpoints", 5, "batches of a stream follow each other"),
        (
            CHECKPOINTING + "externalized-checkpoint-retention",
            "DELETE_ON_CANCELLATION",
            "none is deleted when a run ends",
        ),
        (CHECKPOINTING + "savepoint-dir", "s3://bucket/savepoints", "Leave it out"),
        (CHECKPOINTING + "num-retained", 0, "must be at least 1"),
        (CHECKPOINTING + "tolerable-failed-checkpoints", -1, "must be not negative"),
        (CHECKPOINTING + "num-retained", "many", "Write a whole number"),
        (CHECKPOINTING + "num-retained", True, "Write a whole number"),
        (CHECKPOINTING + "incremental", "yes", "Write true or false"),
        (CHECKPOINTING + "mode", "EXACTLY", "Write one of EXACTLY_ONCE, AT_LEAST_ONCE"),
        (CHECKPOINTING + "dir", " ", "is empty"),
        ("execution.state-recovery.claim-mode", "LEGACY", "Choose CLAIM or NO_CLAIM"),
        ("state.backend.type", "forst", "Choose hashmap or rocksdb"),
        (CHECKPOINTING + "intervall", "1 s", "Check the spelling"),
        ("state.changelog.enable", True, "Check the spelling"),
        ("state.changelog.periodic-materialize.interval", 0, "must be longer than 0"),
        ("state.changelog.storage", "memory", "Leave it out, or set it to filesystem"),
        ("state.changelog.dstl.dfs.base-path", "s3://logs", "Leave it out"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(key: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_options({key: value})
    assert key in caught.value.what


def test_no_interval_is_shorter_than_the_pause() -> None:
    assert CheckpointOptions(min_pause=5_000, interval=1_000).interval == 5_000


def test_the_retention_is_a_word_of_flink_in_any_case() -> None:
    key = CHECKPOINTING + "externalized-checkpoint-retention"
    assert parse_options({key: "retain-on-cancellation"}) == CheckpointOptions()


@pytest.mark.parametrize(("old", "new"), [(old, each.keys[0]) for each in OPTIONS for old in each.keys[1:]])
def test_an_old_key_means_the_new_one(old: str, new: str) -> None:
    value = _example(new)
    if old == "execution.state-recovery.from-local":
        assert parse_options({old: value}) == parse_options({new: value})
        return
    with pytest.warns(FutureWarning, match=f"{old} is an old key of {new}"):
        parsed = parse_options({old: value})
    assert parsed == parse_options({new: value}) != CheckpointOptions()


def _example(key: str) -> Any:
    name = next(each.name for each in OPTIONS if each.keys[0] == key)
    default = getattr(CheckpointOptions(), name)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 1
    return {"state.backend.type": "rocksdb", "execution.state-recovery.claim-mode": "CLAIM"}.get(key, "s3://bucket/a")


def test_the_key_of_today_wins() -> None:
    with pytest.warns(FutureWarning, match="old key"):
        options = parse_options({"state.checkpoints.num-retained": 3, CHECKPOINTING + "num-retained": 5})
    assert options.num_retained == 5


@pytest.mark.parametrize("value", ["filesystem", "jobmanager"])
def test_an_old_backend_is_the_heap(value: str) -> None:
    with pytest.warns(FutureWarning, match=f"{value} is an old value"):
        assert parse_options({"state.backend.type": value}).backend == "hashmap"


@pytest.mark.parametrize("key", [key for each in FOREIGN_OPTIONS for key in each.keys])
def test_what_has_one_value_here_is_accepted_at_that_only(key: str) -> None:
    option = next(each for each in FOREIGN_OPTIONS if key in each.keys)
    other = {bool: not option.default, str: "jobmanager"}.get(type(option.default), 7)
    is_old = key != option.keys[0]
    with pytest.warns(FutureWarning, match=f"{key} is an old key of {option.keys[0]}") if is_old else nullcontext():
        assert parse_options({key: option.default}) == CheckpointOptions()
    old = pytest.warns(FutureWarning) if is_old else nullcontext()
    with old, pytest.raises(UsageError, match="is not possible here") as caught:
        parse_options({key: other})
    assert option.reason in caught.value.what


def test_what_has_no_default_to_accept_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="no source reports a backlog"):
        parse_options({CHECKPOINTING + "interval-during-backlog": "1 min"})
    with pytest.raises(UsageError, match="Spark moves the records"):
        parse_options({"taskmanager.network.sort-shuffle.min-buffers": 512})
    with pytest.raises(UsageError, match="ForSt does not run here"):
        parse_options({"state.backend.forst.cache.size-based-limit": "1gb"})


def test_options_of_a_backend_are_left_to_it() -> None:
    assert parse_options({"state.backend.rocksdb.checkpoint.transfer.thread.num": 8}) == CheckpointOptions()
