"""Changelog handles out of which changes were taken."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import EDITED_METADATA, FormatError
from state_pipelines.keyed.changelog.changes import (
    StateChangeOperation,
    check_changelog_handle,
    find_missing_base,
    find_missing_changes,
)
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    KeyGroupsSavepointStateHandle,
)
from tests.keyed.changelogs import ALL, VALUE, change, in_file, in_memory, long, measure, metadata, open_log, read

if TYPE_CHECKING:
    from state_pipelines.metadata.handles import KeyedStateHandle

SETS = [
    [metadata(VALUE, 0)],
    [change(3, StateChangeOperation.SET, long(1) + b"\0\2a")],
    [change(5, StateChangeOperation.SET, long(2) + b"\0\2b")],
]
CHANGES = [each for changes in SETS for each in changes]
BASE = KeyGroupsSavepointStateHandle(ALL, (0,) * 128, ByteStreamStateHandle("base", b"base"))


def backend(
    *logs: KeyedStateHandle, persisted: int = 0, bases: tuple[KeyedStateHandle, ...] = (), number: int = 0
) -> ChangelogStateBackendHandle:
    return ChangelogStateBackendHandle(ALL, persisted, bases, logs, number, "backend", 1)


@pytest.mark.parametrize("kept", [0, 2, 4])
def test_in_memory_changes_are_as_many_as_their_sequence_numbers(kept: int) -> None:
    log = replace(in_memory(CHANGES), changes=(*CHANGES, CHANGES[-1])[:kept])
    with pytest.raises(FormatError, match=rf"holds {kept} changes, not the 3 of its sequence numbers 0-3") as error:
        open_log(log)
    assert error.value.hint == EDITED_METADATA


def test_sequence_numbers_do_not_begin_with_0() -> None:
    assert len(read(open_log(replace(in_memory(CHANGES), start=7, end=10)))["value"]) == 2


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_set_of_changes_is_found_by_the_size(missing: int, compressed: bool) -> None:
    log = in_file(SETS, compressed=compressed)
    streams = tuple(each for number, each in enumerate(log.streams) if number != missing)
    edited = open_log(replace(log, streams=streams))
    with pytest.raises(FormatError, match="a change set is missing, or another one is in its place") as error:
        read(edited)
    assert error.value.where.file == "dstl/file"
    # The size goes along to other processes.
    with pytest.raises(FormatError, match="a change set is missing"):
        pickle.loads(pickle.dumps(edited)).log.sizes(ALL)


def test_a_set_of_changes_of_another_subtask_is_found_by_the_size() -> None:
    log = in_file([*SETS, [change(3, StateChangeOperation.SET, long(1) + b"\0\4abc")]], compressed=False)
    swapped = (*log.streams[:2], log.streams[3])
    with pytest.raises(FormatError, match="another one is in its place"):
        read(open_log(replace(log, streams=swapped, size=measure(SETS), persisted_size=0)))


def test_the_size_after_a_change_of_parallelism_is_not_known() -> None:
    log = in_file(SETS, compressed=False)
    assert len(read(open_log(replace(log, size=0, persisted_size=0)))["value"]) == 2


def test_the_size_may_be_that_of_the_streams() -> None:
    """Checkpoints of DataStream functions state it."""
    log = in_file(SETS, compressed=False)
    stream = log.streams[0].handle
    assert isinstance(stream, ByteStreamStateHandle)
    assert len(read(open_log(replace(log, size=len(stream.data))))["value"]) == 2


@pytest.mark.parametrize(
    ("handle", "message"),
    [
        (backend(replace(in_file(SETS, compressed=False), streams=())), "names no set of changes"),
        (backend(replace(in_file(SETS, compressed=False), size=5)), r"of 5 bytes says .* added \d+ bytes"),
        (backend(persisted=30), "the changes of this checkpoint are missing"),
        (backend(in_memory(CHANGES), persisted=30), "the changes of this checkpoint are missing"),
        (backend(in_file(SETS[:1], compressed=False), persisted=30, bases=(BASE,)), "of this checkpoint are missing"),
    ],
    ids=["no sets", "larger than all", "no changes", "in memory", "in files"],
)
def test_sizes_that_do_not_fit(handle: ChangelogStateBackendHandle, message: str) -> None:
    with pytest.raises(FormatError, match=message) as error:
        check_changelog_handle(handle, "_metadata")
    assert (error.value.where.file, error.value.hint) == ("_metadata", EDITED_METADATA)


FILE = in_file(SETS, compressed=False)


@pytest.mark.parametrize(
    "handle",
    [
        backend(),
        backend(in_memory(CHANGES), persisted=measure(SETS)),
        backend(FILE, persisted=FILE.persisted_size),
        # Nothing new: all changes are of earlier checkpoints, or of one that was restored.
        backend(FILE),
        backend(replace(FILE, size=0, persisted_size=0), in_memory(CHANGES), persisted=measure(SETS)),
        # A base that a DataStream function of this package wrote.
        backend(persisted=4, bases=(BASE,), number=1),
        replace(backend(persisted=30), checkpoint_id=None),
    ],
    ids=["empty", "memory", "file", "nothing new", "restored", "base", "Flink 1.15"],
)
def test_sizes_that_flink_writes(handle: ChangelogStateBackendHandle) -> None:
    assert not list(find_missing_changes(handle))


def test_a_missing_base_is_suspected() -> None:
    assert find_missing_base(backend(number=2)) == (
        "a changelog handle counts 2 materializations and has no materialized state"
    )
    assert find_missing_base(backend(number=0)) is None
    assert find_missing_base(backend(bases=(BASE,), number=2)) is None
