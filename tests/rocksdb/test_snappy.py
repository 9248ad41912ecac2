from __future__ import annotations

import random

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.rocksdb.kernels import decompress_snappy

GUARD = 32


def decompress(blocks: list[bytes], sizes: list[int]) -> tuple[int, list[bytes]]:
    """The first wrong block and the plain blocks; bytes around the output must stay as they are."""
    source = np.frombuffer(b"".join(blocks) + b"\0", np.uint8)
    ends = np.cumsum([len(block) for block in blocks])
    starts = ends - [len(block) for block in blocks]
    plain_ends = np.cumsum(np.array(sizes, np.int64) + GUARD)
    plain_starts = plain_ends - sizes
    target = np.full(int(plain_ends[-1]) + GUARD, 0xA5, np.uint8)
    wrong = decompress_snappy(source.ctypes.data, starts, ends, target.ctypes.data, plain_starts, plain_ends)
    found = []
    behind = 0
    for start, end in zip(plain_starts.tolist(), plain_ends.tolist(), strict=True):
        assert (target[behind:start] == 0xA5).all()
        found.append(target[start:end].tobytes())
        behind = end
    assert (target[behind:] == 0xA5).all()
    return int(wrong), found


@pytest.mark.parametrize(
    ("compressed", "plain"),
    [
        ("00", b""),
        ("03 08 616263", b"abc"),
        ("06 08 616263 0a 0300", b"abcabc"),
    ],
    ids=["empty", "a literal", "a copy"],
)
def test_literal_blocks(compressed: str, plain: bytes) -> None:
    assert decompress([bytes.fromhex(compressed)], [len(plain)]) == (-1, [plain])


def test_a_copy_that_overlaps_itself_repeats_a_pattern() -> None:
    # A literal "ab", then 20 bytes from 2 before.
    assert decompress([bytes.fromhex("16 04 6162 4e 0200")], [22]) == (-1, [b"ab" * 11])


def test_the_first_wrong_block_is_named() -> None:
    good, bad = bytes.fromhex("03 08 616263"), bytes.fromhex("03 0a 0100")
    assert decompress([good, good, bad, bad], [3, 3, 3, 3])[0] == 2


@pytest.mark.parametrize(
    "compressed",
    [
        "",
        "04 08 616263",
        "03 08 6162",
        "03 0c 61626364",
        "06 08 616263 0a 0400",
        "06 08 616263 0a 0000",
        "06 08 616263 0e 0300",
        "06 08 616263 0a 03",
        "03 f4 ff",
        "03 fc ffffffff 61",
    ],
    ids=[
        "nothing",
        "another size",
        "a literal that ends early",
        "a literal that is too long",
        "a copy from before the start",
        "a copy from itself",
        "a copy that is too long",
        "a copy without its distance",
        "a length that ends early",
        "a length beyond everything",
    ],
)
def test_wrong_blocks_are_noticed(compressed: str) -> None:
    raw = bytes.fromhex(compressed)
    assert decompress([raw], [raw[0] if raw and raw[0] != 4 else 3])[0] == 0


@pytest.mark.slow
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(1, 12))
def test_agrees_with_another_implementation(parts: list[bytes], repeat: int) -> None:
    plain = [part * repeat for part in parts]
    assert decompress([bytes(cramjam.snappy.compress_raw(each)) for each in plain], list(map(len, plain))) == (
        -1,
        plain,
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 4096, 70_000, 1 << 20])
def test_long_literals_and_far_copies(size: int) -> None:
    chance = random.Random(size)
    plain = (
        chance.randbytes(size) + bytes(size) + b"".join(chance.randbytes(chance.randrange(9)) * 5 for _ in range(size))
    )
    assert decompress([bytes(cramjam.snappy.compress_raw(plain))], [len(plain)]) == (-1, [plain])


@pytest.mark.slow
@given(st.binary(max_size=400), st.data())
def test_damage_never_leaves_the_buffers(plain: bytes, data: st.DataObject) -> None:
    compressed = bytearray(cramjam.snappy.compress_raw(plain * 3))
    for _ in range(3):
        compressed[data.draw(st.integers(0, len(compressed) - 1))] = data.draw(st.integers(0, 255))
    decompress([bytes(compressed)], [len(plain) * 3])
