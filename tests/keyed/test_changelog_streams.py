"""Reading parts of the files of a log of changes."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.snappy_frames import STREAM_ID
from state_pipelines.errors import FormatError
from state_pipelines.keyed.changelog.changes import (
    AHEAD,
    DataChange,
    Lookahead,
    StateChangeOperation,
    write_change_stream,
)
from state_pipelines.keyed.changelog.reader import ChangelogFile, open_changelog
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    ChangelogStream,
    FileStateHandle,
    KeyGroupRange,
)
from state_pipelines.metadata.streams import open_stream
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.storage import resolve
from tests.keyed.changelogs import (
    ALL,
    CONTEXT,
    LONG,
    STRING,
    VALUE,
    change,
    encode,
    in_file,
    long,
    measure,
    metadata,
    open_log,
    read,
    write_data_change,
)
from tests.serializers.literals import i32

if TYPE_CHECKING:
    from pathlib import Path


class TestStreams:
    """Change sets in a file: the first states the state, the others have changes of each key group."""

    def write(self, folder: Path, *, compressed: bool) -> tuple[Path, ChangelogFile]:
        noise = random.Random(1)
        texts = ["".join(chr(each & 0x7F) for each in noise.randbytes(20_000)) for _ in range(8)]
        values = [encode(STRING, text) for text in texts]
        sets = [
            [change(group, StateChangeOperation.SET, long(group) + b"\0" + value) for group, value in enumerate(values)]
            for _ in range(3)
        ]
        sets = [[metadata(VALUE, 0)], *sets]
        data, offsets = write_change_stream(sets, compressed=compressed)
        path = folder / "changes"
        path.write_bytes(data)
        streams = tuple(ChangelogStream(each, FileStateHandle(str(path), len(data) - 1)) for each in offsets)
        size = measure(sets)
        log = ChangelogStateHandleStream(ALL, streams, size, size, "log", "filesystem")
        handle = ChangelogStateBackendHandle(ALL, 0, (), (log,), 1, "backend", 1)
        return path, open_changelog(
            handle, [], lambda each: open_stream(each, resolve(str(folder))), CONTEXT, key_serializer=LONG
        )

    @pytest.mark.parametrize("compressed", [False, True])
    def test_only_the_changes_of_the_wanted_key_groups_are_read(self, tmp_path: Path, compressed: bool) -> None:
        path, file = self.write(tmp_path, compressed=compressed)
        wanted = KeyGroupRange(4, 1)
        expected = read(file, wanted)
        assert [group for group, _ in expected["value"]] == [4]
        # Key group 0 in the last change set, some chunks before key group 4.
        others = read(file, KeyGroupRange(0, 1))
        data = bytearray(path.read_bytes())
        place = file.log.sets[-1].offset + 2_000
        data[place : place + 1_000] = bytes(1_000)
        path.write_bytes(data)
        assert read(file, wanted) == expected
        if compressed:
            with pytest.raises(FormatError, match="snappy chunk is damaged"):
                read(file, KeyGroupRange(0, 1))
        else:
            assert read(file, KeyGroupRange(0, 1)) != others

    def test_opening_a_compressed_stream_decodes_the_metadata_alone(self, tmp_path: Path) -> None:
        path, file = self.write(tmp_path, compressed=True)
        expected = file.states
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 8] = bytes(8)
        path.write_bytes(data)
        handle = FileStateHandle(str(path), len(data) - 1)
        log = ChangelogStateHandleStream(ALL, (ChangelogStream(0, handle),), 0, 0, "log", "filesystem")
        backend = ChangelogStateBackendHandle(ALL, 0, (), (log,), 1, "backend", 1)
        opened = open_changelog(
            backend, [], lambda each: open_stream(each, resolve(str(tmp_path))), CONTEXT, key_serializer=LONG
        )
        assert opened.states == expected
        with pytest.raises(FormatError, match="snappy chunk is damaged"):
            read(file)

    def test_where_things_lie_is_looked_up_once(self, tmp_path: Path) -> None:
        path, file = self.write(tmp_path, compressed=True)
        sizes = file.log.sizes(ALL).tolist()
        assert sizes[:9] == [sizes[0]] * 8 + [0]
        path.unlink()
        (part, *_) = file.split(1000)
        assert part.log.sizes(ALL).tolist() == sizes

    def test_where_things_lie_does_not_go_to_other_processes(self, tmp_path: Path) -> None:
        _, file = self.write(tmp_path, compressed=True)
        before = pickle.dumps(replace(file.log))
        file.log.sizes(ALL)
        assert pickle.dumps(file.log) == before

    @pytest.mark.parametrize("compressed", [False, True])
    def test_changes_longer_than_what_is_read_at_once(self, compressed: bool) -> None:
        texts = [b"\2a", encode(STRING, "b" * (AHEAD + 5)), b"\2c"]
        changes = [change(5, StateChangeOperation.SET, long(each) + b"\0" + text) for each, text in enumerate(texts)]
        found = read(open_log(in_file([[metadata(VALUE, 0)], changes, changes], compressed=compressed)))["value"]
        assert found == {(5, long(each) + b"\0"): text for each, text in enumerate(texts)}

    def test_metadata_longer_than_what_is_read_at_once(self) -> None:
        infos = [keyed_state(f"{each:05}" + "n" * 100, "VALUE", LONG, VOID_NAMESPACE) for each in range(600)]
        log = in_file([[metadata(info, number) for number, info in enumerate(infos)]], compressed=True)
        assert open_log(log).states == tuple(infos)

    def test_a_group_may_come_twice_in_a_change_set(self) -> None:
        key = long(1) + b"\0"
        texts = (b"\2a", b"\2b", b"\2c")
        raw = [write_data_change(DataChange(StateChangeOperation.SET, 0, key + text)) for text in texts]
        group = [
            i32(len(those)) + i32(5) + b"".join(i32(len(each)) + each for each in those) for those in (raw[:2], raw[2:])
        ]
        meta = metadata(VALUE, 0).change
        data = b"\0" + i32(3) + i32(1) + i32(-1) + i32(len(meta)) + meta + b"".join(group)
        stream = ChangelogStream(0, ByteStreamStateHandle("dstl/file", data))
        file = open_log(ChangelogStateHandleStream(ALL, (stream,), 0, 0, "log"))
        assert read(file) == {"value": {(5, key): b"\2c"}}

    def test_a_group_without_its_key_group(self) -> None:
        meta = metadata(VALUE, 0).change
        data = b"\0" + i32(2) + i32(1) + i32(-1) + i32(len(meta)) + meta + i32(0) + b"\0"
        stream = ChangelogStream(0, ByteStreamStateHandle("dstl/file", data))
        with pytest.raises(FormatError, match="beyond its change set"):
            read(open_log(ChangelogStateHandleStream(ALL, (stream,), 0, 0, "log")))

    def test_a_chunk_that_is_cut_off(self) -> None:
        log = in_file([[metadata(VALUE, 0)]], compressed=True)
        data = log.streams[0].handle.data  # type: ignore[union-attr]
        short = ChangelogStream(0, ByteStreamStateHandle("dstl/file", data[:-1]))
        with pytest.raises(FormatError, match="cut off") as error:
            open_log(ChangelogStateHandleStream(ALL, (short,), 0, 0, "log"))
        assert error.value.where.offset == 1 + len(STREAM_ID)

    @pytest.mark.slow
    @given(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50))), st.integers(1, 60))
    def test_looking_ahead_changes_no_bytes(self, data: bytes, takes: list[tuple[int, int]], ahead: int) -> None:
        flat = np.frombuffer(data, np.uint8)
        lookahead = Lookahead(lambda start, end: flat[start:end], len(data), ahead)
        for start, size in takes:
            if start <= len(data):
                assert lookahead.take(start, size).tobytes() == data[start : start + size]
                held = lookahead.take_held(start).tobytes()
                assert data[start:].startswith(held)
                assert bool(held) == (start < len(data))
