from __future__ import annotations

import numpy as np
import pytest
import xxhash

from state_pipelines.rocksdb.table import CRC32C, XXH3, find_wrong_block
from tests.rocksdb.checksums import masked_crc32c


def test_the_check_value_of_crc32c() -> None:
    crc = 0xE3069283
    assert masked_crc32c(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# The stored checksums of the block "block", not compressed.
@pytest.mark.parametrize(
    ("kind", "stored"), [(CRC32C, masked_crc32c(b"block\0")), (XXH3, xxhash.xxh3_64_intdigest(b"block"))]
)
def test_a_block_that_does_not_match_is_found(kind: int, stored: int) -> None:
    data = np.frombuffer(b"block\0" + (stored & 0xFFFFFFFF).to_bytes(4, "little"), np.uint8).copy()
    place, size, modifier = np.zeros(1, np.int64), np.array([5]), np.zeros(1, np.int64)
    assert find_wrong_block(kind, data, place, size, modifier) == -1
    data[2] ^= 1
    assert find_wrong_block(kind, data, place, size, modifier) == 0


# Several blocks are checked at once: each place in such a group, and what is left over.
@pytest.mark.parametrize("wrong", range(8))
def test_each_of_many_blocks_is_checked(wrong: int) -> None:
    blocks = [bytes(range(size)) for size in (0, 3, 250, 17, 8, 1, 99, 200)]
    modifiers = np.arange(8) << 28
    data = b""
    starts = []
    for block, modifier in zip(blocks, modifiers.tolist(), strict=True):
        starts.append(len(data))
        data += block + b"\1" + (masked_crc32c(block + b"\1") + modifier & 0xFFFFFFFF).to_bytes(4, "little")
    flat = np.frombuffer(data, np.uint8).copy()
    sizes = np.array([len(block) for block in blocks])
    assert find_wrong_block(CRC32C, flat, np.array(starts), sizes, modifiers) == -1
    flat[starts[wrong] + len(blocks[wrong])] ^= 1
    assert find_wrong_block(CRC32C, flat, np.array(starts), sizes, modifiers) == wrong
