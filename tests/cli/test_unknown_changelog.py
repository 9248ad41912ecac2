"""Changelog checkpoints of Flink without the reader of a serializer: everything else works, and bytes move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines import operatorstate
from state_pipelines.keyed import sections
from state_pipelines.serializers import registry
from tests.flink.harness import diff_entries
from tests.snapshots import ENTRY_KINDS, OWN, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Called
    from tests.flink.harness import Entry

UNREAD = "org.apache.flink.api.java.typeutils.runtime.PojoSerializerSnapshot"
CASES = [each for each in OWN if "changelog" in each.case and each.version.startswith("2.2")]
TIMERS = ("_timer_state/event_user-timers", "_timer_state/processing_user-timers")
HEAP_BASE = "changelog-heap-materialized"
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.case)


@pytest.fixture(autouse=True)
def _without_a_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    families = {name: family for name, family in registry._functions.items() if name != UNREAD}
    assert len(families) == len(registry._functions) - 1
    monkeypatch.setattr(registry, "_functions", families)
    _forget()
    yield
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    """Headers that were read before are read again."""
    for cached in (sections._parse_header, operatorstate._parse_header, operatorstate._settle_header):
        cached.cache_clear()


def options(case: Case) -> list[str]:
    uids = [text for uid in case.uids for text in ("--uid", uid)]
    return [*uids, *(text for mapping in case.path_mapping for text in ("--map", mapping))]


def is_list(line: Entry) -> bool:
    return (line["op"], line.get("state")) == ("few-states", "list")


@each_case
def test_the_other_states_are_dumped(call: Callable[..., Called], case: Case) -> None:
    called = call("dump", case.path, *options(case))
    assert called.code == 0
    found = [line for line in called.lines if line["kind"] in ENTRY_KINDS and not is_list(line)]
    unread = {line["state"] for line in called.lines if line["kind"] == "unread"}
    # Their entries come after those of the unknown state in the files of the heap base, whose ends are not known.
    behind = {*TIMERS, "list"} if case.case == HEAP_BASE else set()
    assert unread == behind
    expected = [entry for entry in case.entries() if not is_list(entry) and not (behind and entry["kind"] == "timer")]
    assert not diff_entries(expected, found)


@each_case
def test_the_unknown_elements_are_bytes_where_they_can_be_told_apart(call: Callable[..., Called], case: Case) -> None:
    called = call("dump", case.path, "--operator", "few-states", "--state", "list", *options(case))
    if case.case == HEAP_BASE:
        # Entries of the materialized heap state are not separated without their serializer.
        assert [(line["kind"], UNREAD in line["error"], line["damaged"]) for line in called.lines] == [
            ("unread", True, False)
        ]
        return
    assert {UNREAD in line["value"]["@reason"] for line in called.lines} == {True}
    assert {line["key"] for line in called.lines} == {entry["key"] for entry in case.entries() if is_list(entry)}


@each_case
def test_another_parallelism_is_proven_by_bytes(call: Callable[..., Called], case: Case, tmp_path: Path) -> None:
    called = call("rescale", case.path, "--parallelism", 3, "--out", tmp_path / "rescaled", *options(case))
    if case.case == HEAP_BASE:
        assert (called.code, f"--serializer '{UNREAD}=LAYOUT'" in called.err) == (2, True)
        return
    # The source `numbers` has two splits, and may have more in its enumerator.
    assert (called.code, called.err.count("note: "), "the readers of the source have 2 splits" in called.err) == (
        0,
        1,
        True,
    )


@each_case
def test_another_uid_is_proven_by_the_bytes_of_base_and_log(
    call: Callable[..., Called], case: Case, tmp_path: Path
) -> None:
    called = call("rescale", case.path, "--rename", "few-states=other", "--out", tmp_path / "renamed", *options(case))
    assert (called.code, called.err) == (0, "")
