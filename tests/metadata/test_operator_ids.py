from __future__ import annotations

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.metadata.checkpoint import (
    compute_operator_id,
    format_operator_id,
    is_operator_id,
    murmur3_128,
    parse_operator_id,
)


@pytest.mark.parametrize(
    ("uid", "operator_id"),
    [
        ("BrCheckpointingSource1", "81afaf64abeedc40a0f29989b81a3659"),
        ("CheckpointingKeyedStateFlatMap1", "d5c8b168c6cbfe8c507a10f88b325243"),
    ],
)
def test_uid_gives_the_id_that_flink_computes(uid: str, operator_id: str) -> None:
    assert format_operator_id(compute_operator_id(uid)) == operator_id


def test_hash_of_nothing_is_zero() -> None:
    assert murmur3_128(b"") == bytes(16)


def test_hash_of_whole_blocks() -> None:
    assert murmur3_128(b"The quick brown fox jumps over the lazy dog").hex() == "6c1b07bc7bbc4be347939ac4a93c437a"


def test_text_gives_the_bytes_back() -> None:
    operator_id = compute_operator_id("uid")
    assert parse_operator_id(format_operator_id(operator_id)) == operator_id


def test_upper_case_digits_are_fine() -> None:
    assert parse_operator_id("81AFAF64ABEEDC40A0F29989B81A3659")[0] == 0x81


@pytest.mark.parametrize("text", ["", "81afaf64", "g" * 32, "0" * 33])
def test_other_text_is_no_operator_id(text: str) -> None:
    assert not is_operator_id(text)
    with pytest.raises(UsageError, match="is not an operator id of 32 hexadecimal digits"):
        parse_operator_id(text)
