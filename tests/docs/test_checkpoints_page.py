"""The tables of the page about checkpoints say what the code does."""

from __future__ import annotations

from enum import Enum

from state_pipelines.backends.rocksdb_store import DEFAULTS, FIXED, PROFILES
from state_pipelines.checkpoints.coordinator import FailureReason
from state_pipelines.checkpoints.options import FOREIGN_OPTIONS, OPTIONS, CheckpointOptions
from tests.docs.runner import ROOT

PAGE = (ROOT / "docs/checkpoints.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]


def find_row(first: str, cells: int | None = None) -> list[str]:
    (row,) = (each for each in ROWS if each[0] == first and cells in (None, len(each)))
    return row


def test_every_option_has_its_default_and_its_older_keys() -> None:
    for option in OPTIONS:
        key, *older = option.keys
        _, default, named, meaning = find_row(f"`{key}`")
        value = getattr(CheckpointOptions(), option.name)
        value = value.value if isinstance(value, Enum) else value
        text = "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"
        assert default == text, key
        assert named == ", ".join(f"`{each}`" for each in older), key
        assert meaning, key


def test_every_option_that_means_nothing_is_named_with_its_reason() -> None:
    for option in FOREIGN_OPTIONS:
        keys, default, reason = find_row(", ".join(f"`{key}`" for key in option.keys))
        assert keys
        assert default == f"`{str(option.default).lower() if isinstance(option.default, bool) else option.default}`"
        assert reason == option.reason


def test_every_option_of_rocksdb_is_there() -> None:
    for name, default in DEFAULTS.items():
        _, stated, meaning = find_row(f"`{name}`", 3)
        assert stated == (f"`{default}`" if default else "none"), name
        assert meaning, name
    for name, (default, reason) in FIXED.items():
        assert find_row(f"`{name}`", 3)[1:] == [f"`{default}`" if default else "none", reason]


def test_the_profiles_of_rocksdb_are_there() -> None:
    section = PAGE.split("The profiles of `predefined-options`", 1)[1].split("These have no effect", 1)[0]
    heads, _, *rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    names = [cell.strip(" `") for cell in heads[1:]]
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for option, *values in rows:
        for name, value in zip(names, values, strict=True):
            if value.strip():
                found[name][option.strip(" `")] = value.strip(" `")
    assert found == {name: dict(values) for name, values in PROFILES.items() if values}


def test_every_reason_of_a_failure_is_explained() -> None:
    for reason in FailureReason:
        assert f"### `{reason.name}`\n\n> {reason.message}\n" in PAGE
        rest = PAGE.split(f"### `{reason.name}`", 1)[1].split("\n#", 1)[0]
        if reason.impossible:
            assert f"Does not arise here. {reason.impossible}" in " ".join(rest.split())
        else:
            assert f"{reason.cause} {reason.remedy}" in " ".join(rest.split())
        assert ("Counts towards" in rest) == reason.counts
