from __future__ import annotations

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.snappy_frames import (
    BLOCK_SIZE,
    HEAD_SIZE,
    STREAM_ID,
    compress,
    compress_chunks,
    decompress,
    decompress_into,
    iter_chunks,
    measure_chunk,
    measure_chunks,
)
from state_pipelines.errors import FormatError

# A string element as Flink 1.19 wrote it: too short to compress, so stored as it is.
DRAGONS = bytes.fromhex("01 150000 b29c145a 11") + b"Here be dragons!"


def test_chunk_of_flink_is_decoded() -> None:
    assert decompress(STREAM_ID + DRAGONS) == b"\x11Here be dragons!"


def test_chunk_is_written_as_flink_writes_it() -> None:
    assert compress(b"\x11Here be dragons!") == STREAM_ID + DRAGONS


def test_decoding_begins_at_a_chunk_without_stream_id() -> None:
    data = STREAM_ID + compress_chunks(b"first") + DRAGONS
    assert decompress(data, len(data) - len(DRAGONS)) == b"\x11Here be dragons!"


def test_nothing_is_a_stream_id_alone() -> None:
    assert compress(b"") == STREAM_ID
    assert decompress(STREAM_ID) == b""


@given(st.binary(max_size=300), st.integers(0, 3000))
def test_any_data_comes_back(piece: bytes, times: int) -> None:
    data = piece * times
    assert decompress(compress(data)) == data


@pytest.mark.parametrize("size", [BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE])
def test_blocks_hold_64_kib(size: int) -> None:
    chunks = list(iter_chunks(compress(bytes(size))))[1:]
    assert [len(chunk.data) for chunk in chunks] == [BLOCK_SIZE] * (size // BLOCK_SIZE) + [
        rest for rest in [size % BLOCK_SIZE] if rest
    ]


@pytest.mark.parametrize(("noise", "kind"), [(0.75, 0), (0.82, 1), (0.87, 1), (1.0, 1)])
def test_block_that_saves_less_than_15_percent_is_stored(noise: float, kind: int) -> None:
    noisy = int(BLOCK_SIZE * noise)
    data = random.Random(1).randbytes(noisy) + bytes(BLOCK_SIZE - noisy)
    framed = compress(data)
    assert framed[len(STREAM_ID)] == kind
    assert decompress(framed) == data


def test_chunks_tell_their_places() -> None:
    data = b"head" + STREAM_ID + DRAGONS
    places = [(chunk.start, chunk.end) for chunk in iter_chunks(data, 4)]
    assert places == [(4, 14), (14, 14 + len(DRAGONS))]


def test_chunks_before_foreign_bytes_are_given_first() -> None:
    chunks = iter_chunks(STREAM_ID + DRAGONS + bytes.fromhex("02 000000"))
    assert [next(chunks).data, next(chunks).data] == [b"", b"\x11Here be dragons!"]
    with pytest.raises(FormatError, match="0x02 is not a kind of snappy chunk"):
        next(chunks)


@pytest.mark.parametrize(
    ("data", "held"),
    [
        (STREAM_ID + DRAGONS * 2, 34),
        (DRAGONS, 17),
        (STREAM_ID, 0),
        (STREAM_ID + DRAGONS[:-1], None),
        (DRAGONS + STREAM_ID + DRAGONS, 34),
        (DRAGONS + STREAM_ID[:-1], None),
        (DRAGONS + bytes.fromhex("fe 000000"), None),
        (STREAM_ID + bytes.fromhex("00 090000 00000000 ffffffff7f"), None),
    ],
)
def test_chunks_of_data_tell_how_much_they_hold(data: bytes, held: int | None) -> None:
    assert measure_chunks(data, 0, len(data)) == held
    assert measure_chunks(data, 0, len(data) + 1) is None


def test_data_is_written_where_it_is_wanted() -> None:
    target = bytearray(40)
    assert decompress_into(
        b"head" + STREAM_ID + DRAGONS * 2 + b"tail", 4, 14 + 2 * len(DRAGONS), memoryview(target)[3:37]
    )
    assert target == bytes(3) + b"\x11Here be dragons!" * 2 + bytes(3)
    assert not decompress_into(DRAGONS, 0, len(DRAGONS), memoryview(bytearray(18)))
    assert not decompress_into(DRAGONS, 0, len(DRAGONS), memoryview(bytearray(16)))


def test_padding_and_repeated_stream_ids_are_skipped() -> None:
    assert decompress(STREAM_ID + bytes.fromhex("fe 020000 0000") + STREAM_ID + DRAGONS) == b"\x11Here be dragons!"


def test_section_ends_where_the_caller_says() -> None:
    data = STREAM_ID + DRAGONS + compress(b"next section")
    assert decompress(data, 0, len(STREAM_ID + DRAGONS)) == b"\x11Here be dragons!"


def test_chunk_beyond_the_end_is_an_error() -> None:
    data = b"head" + STREAM_ID + DRAGONS + b"more"
    with pytest.raises(FormatError, match=r"cut off \[file f, offset 14\]"):
        decompress(data, 4, len(data) - 5, name="f")


def test_end_behind_the_data_is_an_error() -> None:
    with pytest.raises(FormatError):
        decompress(STREAM_ID, 0, 100)


def test_wrong_checksum_is_an_error_with_file_and_offset() -> None:
    data = bytearray(compress(os.urandom(BLOCK_SIZE) + b"second block"))
    data[-1] ^= 1
    with pytest.raises(FormatError, match=rf"checksum.*\[file f, offset {10 + 8 + BLOCK_SIZE}\]"):
        decompress(bytes(data), name="f")


@pytest.mark.parametrize(
    "chunk",
    ["00 000000", "01 000000", "01 060001" + "00" * 65542, "00 090000 00000000 ffffffff7f", "ff 060000 734e61507058"],
)
def test_malformed_chunk_is_an_error(chunk: str) -> None:
    with pytest.raises(FormatError):
        decompress(STREAM_ID + bytes.fromhex(chunk))


@pytest.mark.parametrize("size", [1, 127, 128, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1])
@pytest.mark.parametrize("noise", [False, True])
def test_heads_of_chunks_tell_their_sizes(size: int, noise: bool) -> None:
    framed = compress(random.Random(1).randbytes(size) if noise else bytes(size))
    for chunk in iter_chunks(framed):
        head = framed[chunk.start : chunk.start + HEAD_SIZE]
        assert measure_chunk(head) == (chunk.end - chunk.start, len(chunk.data))


@pytest.mark.parametrize(
    ("head", "what"),
    [
        ("01 1500", "cut off"),
        ("01 030000 b29c14", "damaged"),
        ("00 050000 b29c145a", "damaged"),
        ("00 090000 b29c145a ffffff", "damaged"),
        ("00 090000 b29c145a 818004", "damaged"),
        ("02 090000 b29c145a 01", "0x02 is not a kind"),
    ],
)
def test_heads_that_are_none(head: str, what: str) -> None:
    with pytest.raises(FormatError, match=what) as error:
        measure_chunk(bytes.fromhex(head), name="file", position=7)
    assert (error.value.where.file, error.value.where.offset) == ("file", 7)
