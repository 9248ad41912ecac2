"""Keyed state that somebody edited in `_metadata`: audits report it, and what writes snapshots refuses it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import FormatError
from state_pipelines.operations.auditing import Property, Severity
from state_pipelines.operations.convert import convert
from state_pipelines.operations.dump import dump
from state_pipelines.operations.rescale import parse_request, rescale
from state_pipelines.snapshot import open_snapshot
from tests.operations.auditing.damage import Copy, copy_case
from tests.operations.rescaling.test_rescaling import gather

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.metadata import CheckpointMetadata, OperatorState, SubtaskState


def edit_subtasks(change: Callable[[SubtaskState], SubtaskState]) -> Callable[[CheckpointMetadata], CheckpointMetadata]:
    """Change the first subtask of each operator that has keyed state in all of several subtasks."""

    def edit(operator: OperatorState) -> OperatorState:
        if len(operator.subtasks) < 2 or any(each.managed_keyed_state is None for each in operator.subtasks):
            return operator
        first, *others = operator.subtasks
        return replace(operator, subtasks=(change(first), *others))

    return lambda metadata: replace(metadata, operator_states=tuple(map(edit, metadata.operator_states)))


def edit_handle(change: Callable[[Any], Any]) -> Callable[[CheckpointMetadata], CheckpointMetadata]:
    return edit_subtasks(lambda each: replace(each, managed_keyed_state=change(each.managed_keyed_state)))


def edit_last_log(change: Callable[[Any], Any]) -> Callable[[CheckpointMetadata], CheckpointMetadata]:
    return edit_handle(
        lambda handle: replace(
            handle, non_materialized=(*handle.non_materialized[:-1], change(handle.non_materialized[-1]))
        )
    )


def summarize(copy: Copy, depth: str = "files") -> list[tuple[Severity, Property]]:
    return [(each.severity, each.property) for each in copy.audit(depth).findings]


def refuse(copy: Copy, tmp_path: Path, message: str) -> None:
    """Make sure that nothing reads the changes or writes a snapshot like it."""
    with pytest.raises(FormatError, match=message):
        # Says what is not read by an error or by a line.
        raise FormatError(str([each["error"] for each in dump(copy.open()) if each["kind"] == "unread"]))
    with pytest.raises(FormatError, match=message):
        convert(copy.open(), str(tmp_path / "new"), "canonical")
    with pytest.raises(FormatError, match=message):
        rescale(copy.open(), str(tmp_path / "new"), parse_request({"parallelism": 3}))
    assert not (tmp_path / "new").exists()


def test_a_change_that_is_missing_in_memory(tmp_path: Path) -> None:
    copy = copy_case("types-2.2-changelog-heap-memory", tmp_path)
    copy.edit(edit_last_log(lambda log: replace(log, changes=log.changes[:-1])))
    assert summarize(copy) == [(Severity.ERROR, Property.METADATA)]
    refuse(copy, tmp_path, "holds 105 changes, not the 106 of its sequence numbers 0-106")


@pytest.mark.parametrize("name", ["changelog-heap-memory", "changelog-rocksdb-files", "changelog-heap-materialized"])
def test_the_changes_of_the_checkpoint_that_are_missing(name: str, tmp_path: Path) -> None:
    copy = copy_case(f"types-2.2-{name}", tmp_path)
    copy.edit(edit_handle(lambda handle: replace(handle, non_materialized=handle.non_materialized[:-1])))
    assert summarize(copy) == [(Severity.ERROR, Property.METADATA)]
    refuse(copy, tmp_path, "the changes of this checkpoint are missing")


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_set_of_changes_that_is_missing(number: int, tmp_path: Path) -> None:
    copy = copy_case("types-2.2-changelog-heap-files", tmp_path)

    def drop(log: Any) -> Any:
        streams = list(log.streams)
        del streams[number]
        return replace(log, streams=tuple(streams))

    copy.edit(edit_last_log(drop))
    found = [each for each in copy.audit("sample").findings if each.severity is Severity.ERROR]
    assert any("a change set is missing" in each.what for each in found)
    if number:
        # Without the first set, which describes the states, the changes of the others cannot be assigned to any.
        refuse(copy, tmp_path, "a change set is missing")


def test_a_base_that_is_missing_is_a_warning(tmp_path: Path) -> None:
    copy = copy_case("types-2.2-changelog-heap-materialized", tmp_path)
    copy.edit(edit_handle(lambda handle: replace(handle, materialized=())))
    assert summarize(copy) == [(Severity.WARNING, Property.METADATA)]


def repeat(offsets: list[int], one: int, other: int) -> None:
    offsets[other] = offsets[one]


def swap(offsets: list[int], one: int, other: int) -> None:
    offsets[one], offsets[other] = offsets[other], offsets[one]


def remove(offsets: list[int], one: int, other: int) -> None:
    offsets[other] = 0


@pytest.mark.parametrize(
    ("name", "format", "change"),
    [
        *(
            (name, "heap", change)
            for name in ("heap-native", "heap-native-snappy", "heap-checkpoint")
            for change in (repeat, swap, remove)
        ),
        *((name, "canonical", change) for name in ("rocksdb", "rocksdb-snappy") for change in (repeat, swap)),
    ],
)
def test_files_with_wrong_offsets_are_not_copied(
    name: str, format: str, change: Callable[[list[int], int, int], None], tmp_path: Path
) -> None:
    copy = copy_case(f"types-2.2-{name}", tmp_path)

    def edit(handle: Any) -> Any:
        offsets = list(handle.offsets)
        present = [index for index, offset in enumerate(offsets) if offset]
        if len(present) > 2:
            # Not the first one, by which the format is told.
            change(offsets, present[1], present[2])
        return replace(handle, offsets=tuple(offsets))

    before = copy.open().metadata
    copy.edit(edit_handle(edit))
    assert copy.open().metadata != before
    with pytest.raises(FormatError, match=r"have the same offset|is not that of its section|has no offset") as error:
        convert(copy.open(), str(tmp_path / "new"), format)
    assert error.value.where.file
    with pytest.raises(FormatError):
        rescale(copy.open(), str(tmp_path / "new"), parse_request({"parallelism": 3}))
    assert not (tmp_path / "new").exists()


HANDLES = ("heap-snappy", "heap-native-snappy", "heap-checkpoint", "rocksdb-snappy", "rocksdb-native")
LOGS = ("changelog-heap-files", "changelog-rocksdb-materialized", "rocksdb-heap-timers", "rocksdb-file-merging")


@pytest.fixture(params=HANDLES + LOGS)
def without_subtask(request: pytest.FixtureRequest, tmp_path: Path) -> Copy:
    """A snapshot in which the first subtasks have no keyed state, as if they had seen no record."""
    copy = copy_case(f"types-2.2-{request.param}", tmp_path)
    copy.edit(edit_subtasks(lambda each: replace(each, managed_keyed_state=None, raw_keyed_state=None)))
    return copy


def test_a_subtask_without_keyed_state_is_a_warning(without_subtask: Copy) -> None:
    report = without_subtask.audit("files")
    assert report.verdict == "restorable"
    assert {(each.severity, each.property) for each in report.findings} == {(Severity.WARNING, Property.KEY_GROUPS)}
    assert all(each.what.startswith("key groups 0-") and "subtask 0 without " in each.what for each in report.findings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("without_subtask", "parallelism"),
    [(each, (1, 3, 5)[number % 3]) for number, each in enumerate(HANDLES + LOGS)],
    indirect=["without_subtask"],
)
def test_a_subtask_without_keyed_state_is_rescaled(without_subtask: Copy, parallelism: int, tmp_path: Path) -> None:
    snapshot = without_subtask.open()
    result = rescale(snapshot, str(tmp_path / "new"), parse_request({"parallelism": parallelism}))
    assert result.proof is not None
    assert result.proof.ok
    new = open_snapshot(str(tmp_path / "new"), snapshot.declarations)
    assert gather(dump(new)) == gather(dump(snapshot))
    again = rescale(new, str(tmp_path / "again"), parse_request({"parallelism": 2}))
    assert gather(dump(open_snapshot(again.path, snapshot.declarations))) == gather(dump(snapshot))


def test_a_subtask_without_keyed_state_is_converted(without_subtask: Copy, tmp_path: Path) -> None:
    snapshot = without_subtask.open()
    result = convert(snapshot, str(tmp_path / "converted"), "canonical")
    new = open_snapshot(result.path, snapshot.declarations)
    assert gather(dump(new)) == gather(dump(snapshot))
