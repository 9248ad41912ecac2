from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.snappy_frames import decompress
from state_pipelines.errors import FormatError
from state_pipelines.keyed.canonical import (
    Block,
    CanonicalWriter,
    RecordBuffer,
    copy_records,
    gather_runs,
    join_blocks,
    join_runs,
)
from state_pipelines.keyed.digests import digest_run
from state_pipelines.keyed.record_layout import KeyedRecords
from state_pipelines.metadata.handles import KeyGroupRange
from tests.keyed.canonical_files import Record, Run, make_file, make_header, make_section

FOUR = KeyGroupRange(0, 4)


def records(*rows: tuple[int, bytes, bytes], window: int = 0) -> KeyedRecords:
    data, spans = bytearray(b"\xee\xee"), []
    for _, key, value in rows:
        spans.append((len(data), len(data) + len(key), len(data) + len(key) + 1, len(data) + len(key) + 1 + len(value)))
        data += key + b"\xee" + value
    data += bytes(window)
    starts, ends, value_starts, value_ends = np.array(spans, np.int64).reshape(-1, 4).T.copy()
    groups = np.array([key_group for key_group, _, _ in rows], np.int32)
    raw = np.frombuffer(bytes(data), np.uint8)
    return KeyedRecords(groups, raw, starts, ends, value_starts, value_ends, 0, "file")


def test_sections_are_what_flink_writes() -> None:
    buffer = RecordBuffer(1, frozenset(), 1 << 20)
    buffer.add(2, records((5, b"k", b"v"), (3, b"lm", b""), (5, b"n", b"wx")))
    buffer.add(0, records((5, b"o", b"y")))
    block = buffer.sort(KeyGroupRange(3, 4))
    assert block.runs[["key_group", "state", "offset", "size", "records"]].tolist() == [
        (3, 2, 0, 11, 1),
        (5, 0, 11, 11, 1),
        (5, 2, 22, 23, 2),
    ]
    key_groups, ends, data = join_runs(gather_runs([(0, block)]))
    first = "0002 00000003 83 6c6d 00000000 ffff"
    second = "0000 00000002 85 6f 00000001 79  0002 00000002 05 6b 00000001 76  00000002 85 6e 00000002 7778 ffff"
    assert data.tobytes() == bytes.fromhex(first + second)
    assert (key_groups.tolist(), ends.tolist()) == ([3, 5], [15, len(data)])


def test_prefix_of_two_bytes() -> None:
    buffer = RecordBuffer(2, frozenset(), 1 << 20)
    buffer.add(0, records((300, b"k", b"v")))
    _, _, data = join_runs(gather_runs([(0, buffer.sort(KeyGroupRange(300, 1)))]))
    assert data.tobytes() == bytes.fromhex("0000 00000003 812c 6b 00000001 76 ffff")


def test_runs_of_several_blocks_become_one() -> None:
    blocks = []
    for source, key in enumerate((b"a", b"b")):
        buffer = RecordBuffer(1, frozenset(), 1 << 20)
        buffer.add(0, records((1, key, b"")))
        blocks.append((source, buffer.sort(KeyGroupRange(0, 2))))
    _, _, data = join_runs(gather_runs(blocks))
    assert data.tobytes() == bytes.fromhex("0000 00000002 01 61 00000000  00000002 81 62 00000000 ffff")


def test_runs_know_what_they_hold() -> None:
    rows = [(1, b"k", b"\1pad"), (0, b"l", b"\0v"), (1, b"m", b"\0w")]
    buffer = RecordBuffer(1, frozenset([4]), 1 << 20)
    buffer.add(4, records(*rows))
    runs = buffer.sort(KeyGroupRange(0, 2)).runs
    for key_group, run in zip((0, 1), runs, strict=True):
        digest = digest_run(records(*(row for row in rows if row[0] == key_group)), is_map=True)
        assert (digest.records, digest.bytes) == (run["records"], run["bytes"])
        assert (digest.digest, digest.content) == (run["digest"], run["content"])


def test_nothing_gives_nothing() -> None:
    block = RecordBuffer(1, frozenset(), 1 << 20).sort(KeyGroupRange(0, 128))
    key_groups, ends, data = join_runs(gather_runs([(0, block)]))
    assert (len(key_groups), len(ends), len(data)) == (0, 0, 0)


def test_blocks_joined_are_the_block_of_all_records() -> None:
    rows = [(3, b"k", b"v"), (1, b"lm", b""), (3, b"n", b"wx"), (0, b"o", b"y"), (3, b"", b"")]
    whole, parts = RecordBuffer(1, frozenset(), 1 << 20), []
    for state in (2, 0):
        whole.add(state, records(*rows))
    for part in (rows[:1], rows[1:3], rows[3:]):
        buffer = RecordBuffer(1, frozenset(), 1 << 20)
        for state in (2, 0):
            buffer.add(state, records(*part))
        parts.append(buffer.sort(FOUR))
    expected, joined = whole.sort(FOUR), join_blocks(parts)
    assert joined.data.tobytes() == expected.data.tobytes()
    assert joined.runs.tolist() == expected.runs.tolist()


def test_record_of_another_key_group_is_refused() -> None:
    buffer = RecordBuffer(1, frozenset(), 1 << 20)
    buffer.add(0, records((2, b"k", b"v")))
    with pytest.raises(FormatError, match="key groups 2 to 2, not in 0 to 1"):
        buffer.sort(KeyGroupRange(0, 2))


def test_windows_with_few_wanted_records_are_not_held() -> None:
    buffer = RecordBuffer(1, frozenset(), 1000)
    windows = [records((0, bytes([number]), b"v"), window=2000) for number in range(20)]
    for each in windows:
        buffer.add(0, each)
    assert buffer.held <= 4 * 1000 + 2000
    assert buffer.sort(KeyGroupRange(0, 1)).runs["records"].tolist() == [20]


def test_copied_records_are_the_same() -> None:
    original = records((0, b"key", b"value"), (7, b"", b""), (2, b"k", b""))
    copied = copy_records(original)
    assert len(copied.data) == len(b"keyvaluek")
    assert digest_run(copied, is_map=False) == digest_run(original, is_map=False)


RECORDS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=90)), min_size=1, max_size=8)
RUNS = st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 2)), RECORDS, max_size=9).map(
    lambda found: [(*place, rows) for place, rows in sorted(found.items())]
)


def sort_runs(runs: list[Run], prefix: int, key_groups: KeyGroupRange, rows: slice) -> Block:
    """Some rows of each run; the key groups come mixed."""
    buffer = RecordBuffer(prefix, frozenset(), 1 << 20)
    for state in range(3):
        found: list[tuple[int, int, Record]] = [
            (number, key_group, record)
            for key_group, its_state, held in runs
            if its_state == state and key_group in key_groups
            for number, record in enumerate(held[rows])
        ]
        found.sort(key=lambda row: row[:2])
        buffer.add(state, records(*((key_group, *record) for _, key_group, record in found)))
    return buffer.sort(key_groups)


@pytest.mark.slow
@given(
    runs=RUNS, prefix=st.sampled_from([1, 2]), compressed=st.booleans(), cut=st.integers(0, 8), step=st.integers(1, 4)
)
def test_files_are_what_the_format_says_however_records_come(
    *, runs: list[Run], prefix: int, compressed: bool, cut: int, step: int
) -> None:
    header = make_header(states=3, compressed=compressed)
    writer = CanonicalWriter(output := io.BytesIO(), header, FOUR, prefix)
    for start in range(0, len(FOUR), step):
        key_groups = KeyGroupRange(start, min(step, len(FOUR) - start))
        parts = (slice(cut), slice(cut, None))
        blocks = [(source, sort_runs(runs, prefix, key_groups, rows)) for source, rows in enumerate(parts)]
        writer.write_sections(*join_runs(gather_runs(blocks)))
    assert (output.getvalue(), writer.offsets) == make_file(header, FOUR, prefix, runs)
    assert writer.size == len(output.getvalue())


@pytest.mark.slow
@given(runs=RUNS.filter(bool), cuts=st.lists(st.integers(0, 200), max_size=4).map(sorted))
def test_a_section_in_pieces_is_the_same_section(runs: list[Run], cuts: list[int]) -> None:
    runs = [run for run in runs if run[0] == runs[0][0]]
    section = make_section(runs, 1)
    pieces = [section[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
    plain, compressed = make_header(states=3), make_header(states=3, compressed=True)
    writer = CanonicalWriter(output := io.BytesIO(), plain, FOUR, 1)
    writer.write_section(runs[0][0], pieces)
    assert (output.getvalue(), writer.offsets) == make_file(plain, FOUR, 1, runs)
    writer = CanonicalWriter(output := io.BytesIO(), compressed, FOUR, 1)
    start = writer.size
    writer.write_section(runs[0][0], pieces)
    assert decompress(output.getvalue(), start) == section
    assert writer.offsets[runs[0][0]] == start
