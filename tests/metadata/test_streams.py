from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import FormatError, MissingFileError, OutOfReachError
from state_pipelines.metadata.checkpoint import read_metadata
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    EmptySegmentFileStateHandle,
    FileStateHandle,
    KeyGroupRange,
    KeyGroupsStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from state_pipelines.metadata.streams import (
    StateStream,
    check_stream,
    copy_stream,
    list_references,
    locate_file,
    open_stream,
    read_stream_range,
    read_whole_stream,
)
from state_pipelines.storage import Location, PathMapping, create_file, join, read_file, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
STATE = b"0123456789"


@pytest.fixture
def directory(tmp_path: Path) -> Location:
    (tmp_path / "state").write_bytes(STATE)
    (tmp_path / "merged").write_bytes(b"before" + STATE + b"after")
    return resolve(str(tmp_path))


def make_handle(kind: str, directory: Location) -> StreamStateHandle:
    relative = RelativeFileStateHandle("state", len(STATE))
    path = directory.path
    handles: dict[str, StreamStateHandle] = {
        "inlined": ByteStreamStateHandle("name", STATE),
        "file": FileStateHandle(f"file:{path}/state", len(STATE)),
        "relative file": relative,
        "segment": SegmentFileStateHandle(f"{path}/merged", 6, len(STATE), CheckpointedStateScope.SHARED, "id"),
        "key groups": KeyGroupsStateHandle(KeyGroupRange(0, 1), (0,), relative),
    }
    return handles[kind]


@pytest.fixture(params=["inlined", "file", "relative file", "segment", "key groups"])
def stream(request: pytest.FixtureRequest, directory: Location) -> StateStream:
    return open_stream(make_handle(request.param, directory), directory)


def test_the_whole_state_is_read(stream: StateStream) -> None:
    assert read_whole_stream(stream) == STATE


def test_a_range_is_read(stream: StateStream) -> None:
    assert read_stream_range(stream, 3, 7) == b"3456"


def test_an_empty_range_at_the_end_is_read(stream: StateStream) -> None:
    assert read_stream_range(stream, 10, 10) == b""


@pytest.mark.parametrize(("start", "end"), [(3, 11), (11, 12), (-1, 2), (5, 4), (0, 1 << 60)])
def test_a_range_outside_the_state_is_an_error(stream: StateStream, start: int, end: int) -> None:
    with pytest.raises(FormatError, match=r"are not inside|are wanted but"):
        read_stream_range(stream, start, end)


def test_the_size_is_that_of_the_handle(stream: StateStream) -> None:
    assert stream.size == len(STATE)


def test_state_that_is_there_passes_the_check(stream: StateStream) -> None:
    check_stream(stream)


def test_state_is_copied(stream: StateStream, directory: Location) -> None:
    target = Location(directory.filesystem, directory.path + "/copies/one")
    assert copy_stream(stream, target) == len(STATE)
    assert read_file(target) == STATE


def test_empty_segment_has_no_bytes(directory: Location) -> None:
    assert read_whole_stream(open_stream(EmptySegmentFileStateHandle(), directory)) == b""


@pytest.mark.parametrize("size", [11, 1 << 60])
@pytest.mark.parametrize("read", [read_whole_stream, check_stream])
def test_file_shorter_than_its_handle_says_is_an_error(
    directory: Location, size: int, read: Callable[[StateStream], object]
) -> None:
    stream = open_stream(RelativeFileStateHandle("state", size), directory)
    with pytest.raises(FormatError, match=f"the file has 10 bytes, but its handle declares {size}"):
        read(stream)


def test_segment_behind_the_end_of_its_file_is_an_error(directory: Location) -> None:
    handle = SegmentFileStateHandle(f"{directory.path}/merged", 20, 10, CheckpointedStateScope.SHARED, "id")
    with pytest.raises(FormatError, match="bytes 20 to 30 are wanted but the file has 21"):
        read_whole_stream(open_stream(handle, directory))


def test_byte_that_the_handle_does_not_count_is_read(directory: Location) -> None:
    stream = open_stream(RelativeFileStateHandle("state", len(STATE) - 1), directory)
    assert read_whole_stream(stream) == STATE
    assert read_stream_range(stream, 1, 10) == STATE[1:]


@pytest.mark.parametrize("read", [read_whole_stream, check_stream])
def test_the_handle_of_compressed_changes_says_how_many_bytes_they_were(
    directory: Location, read: Callable[[StateStream], object]
) -> None:
    Path(directory.path, "changes").write_bytes(b"\1compressed")
    stream = open_stream(RelativeFileStateHandle("changes", 4000), directory, holds_changes=True)
    read(stream)
    assert copy_stream(stream, join(directory, "copy")) == 11


@pytest.mark.parametrize("content", [b"\0plain", b""], ids=["plain", "empty"])
@pytest.mark.parametrize("read", [read_whole_stream, check_stream])
def test_a_file_of_plain_changes_is_not_shorter_than_its_handle_says(
    directory: Location, content: bytes, read: Callable[[StateStream], object]
) -> None:
    Path(directory.path, "changes").write_bytes(content)
    stream = open_stream(RelativeFileStateHandle("changes", 4000), directory, holds_changes=True)
    with pytest.raises(FormatError, match="its handle declares 4000"):
        read(stream)


def test_moved_file_is_found_through_the_mapping(directory: Location) -> None:
    mapping = PathMapping((("/flink-data", directory.path),))
    stream = open_stream(FileStateHandle("file:/flink-data/state", 10), directory, mapping)
    assert read_whole_stream(stream) == STATE


def test_missing_absolute_file_gives_the_hint_to_map(directory: Location) -> None:
    (Path(directory.path) / "_metadata").touch()
    stream = open_stream(FileStateHandle(f"file:{directory.path}/gone", 10), directory)
    with pytest.raises(MissingFileError, match=r"does not exist \[file /.*/gone\].*--map FROM=TO"):
        read_whole_stream(stream)


@pytest.mark.parametrize("kind", [FileStateHandle, SegmentFileStateHandle])
def test_a_file_out_of_reach_is_refused_with_its_handle(directory: Location, kind: type) -> None:
    path = "file:/etc/passwd"
    segment = SegmentFileStateHandle(path, 0, 10, CheckpointedStateScope.SHARED, "id")
    handle = segment if kind is SegmentFileStateHandle else FileStateHandle(path, 10)
    with pytest.raises(OutOfReachError, match=rf"a {kind.__name__} names .* \[file file:/etc/passwd\].*--allow-root"):
        open_stream(handle, directory)
    assert open_stream(handle, directory, PathMapping(roots=("/etc",))).name == "/etc/passwd"


@pytest.mark.parametrize("verify", [False, True])
def test_only_the_bytes_that_a_handle_names_are_copied(directory: Location, verify: bool) -> None:
    stream = open_stream(RelativeFileStateHandle("merged", 6), directory)
    assert copy_stream(stream, join(directory, "copy"), verify=verify) == 6
    assert Path(directory.path, "copy").read_bytes() == b"before"


def test_a_store_copies_only_the_bytes_that_a_handle_names(directory: Location) -> None:
    store = resolve("memory://named-bytes")
    with create_file(join(store, "file"), replace=True) as file:
        file.write(b"before" + STATE)
    stream = open_stream(RelativeFileStateHandle("file", 6), store)
    assert copy_stream(stream, join(store, "copy")) == 6
    assert read_file(join(store, "copy")) == b"before"


def test_a_file_that_is_far_longer_than_its_handle_says_is_not_held_in_memory(directory: Location) -> None:
    with Path(directory.path, "endless").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="its handle declares 10"):
        read_whole_stream(open_stream(RelativeFileStateHandle("endless", 10), directory))


def test_missing_relative_file_gives_no_such_hint(directory: Location) -> None:
    (Path(directory.path) / "_metadata").touch()
    with pytest.raises(MissingFileError) as caught:
        read_whole_stream(open_stream(RelativeFileStateHandle("gone", 10), directory))
    assert caught.value.hint == ""


@pytest.mark.parametrize("path", ["../state", "a/../../state", "/etc/passwd", ""])
def test_relative_path_that_leaves_the_directory_is_an_error(directory: Location, path: str) -> None:
    with pytest.raises(FormatError, match=r"does not stay below|not one of Flink's"):
        locate_file(RelativeFileStateHandle(path, 1), directory)


def test_chained_file_system_is_an_error(directory: Location) -> None:
    with pytest.raises(FormatError, match="not one of Flink's"):
        locate_file(FileStateHandle("simplecache::file:///state", 1), directory)


@pytest.mark.slow
@pytest.mark.skipif(not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink")
def test_every_relative_file_of_flink_has_the_size_that_its_handle_says() -> None:
    sizes: Counter[bool] = Counter()
    for path in Path(FIXTURES or "").rglob("_metadata"):
        directory = resolve(str(path.parent))
        for reference in list_references(read_metadata(path.read_bytes(), str(path))):
            if isinstance(reference.handle, RelativeFileStateHandle):
                stream = open_stream(reference.handle, directory)
                sizes[len(read_whole_stream(stream)) == stream.size] += 1
    assert sizes[True] > 1000
    assert not sizes[False]
