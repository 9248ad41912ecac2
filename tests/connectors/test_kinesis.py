from __future__ import annotations

import pytest

from state_pipelines.connectors.message_queues import (
    KinesisEnumerator,
    KinesisSplit,
    kinesis_enumerator_rows,
    kinesis_split_rows,
    read_kinesis_enumerator,
    read_kinesis_split,
    write_kinesis_enumerator,
    write_kinesis_split,
)
from state_pipelines.connectors.registry import Versioned
from state_pipelines.errors import FormatError
from tests.connectors.vectors import wrap
from tests.serializers.literals import utf

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/clicks"
SHARD = "shardId-000000000002"
HEAD = utf(ARN) + utf(SHARD)
NUMBER = HEAD + utf("AFTER_SEQUENCE_NUMBER") + bytes.fromhex("01 00 01") + utf("4959")
KEYS = bytes.fromhex("00000001") + utf("shardId-000000000000") + utf("0") + utf("340282")
PARENTS, HASH_KEYS = ("shardId-000000000000",), ("0", "340282")
SPLITS = {
    0: (NUMBER, KinesisSplit(0, ARN, SHARD, "AFTER_SEQUENCE_NUMBER", "4959")),
    1: (NUMBER + KEYS, KinesisSplit(1, ARN, SHARD, "AFTER_SEQUENCE_NUMBER", "4959", PARENTS, HASH_KEYS)),
    2: (NUMBER + KEYS + b"\1", KinesisSplit(2, ARN, SHARD, "AFTER_SEQUENCE_NUMBER", "4959", PARENTS, HASH_KEYS, True)),
}
ENUMERATORS = {
    0: (
        b"\1" + utf(SHARD) + bytes.fromhex("00000001 00000000") + wrap(NUMBER),
        KinesisEnumerator(0, 0, (SPLITS[0][1],), (), SHARD),
    ),
    1: (
        bytes.fromhex("00 00000001 00000002") + wrap(SPLITS[2][0]) + bytes.fromhex("00000001"),
        KinesisEnumerator(1, 2, (SPLITS[2][1],), ("unassigned",)),
    ),
}


@pytest.mark.parametrize("version", SPLITS)
def test_every_version_of_a_split_is_read(version: int) -> None:
    assert read_kinesis_split(Versioned(version, SPLITS[version][0])) == SPLITS[version][1]


@pytest.mark.parametrize("version", SPLITS)
def test_every_version_of_a_split_is_written(version: int) -> None:
    assert write_kinesis_split(SPLITS[version][1]) == Versioned(version, SPLITS[version][0])


@pytest.mark.parametrize(
    ("kind", "marker", "data"),
    [("TRIM_HORIZON", None, "00"), ("AT_TIMESTAMP", 1_700_000_000_000, "01 01 0000018bcfe56800 00")],
)
def test_a_split_starts_at_a_time_or_nowhere_in_particular(kind: str, marker: int | None, data: str) -> None:
    raw = HEAD + utf(kind) + bytes.fromhex(data)
    split = read_kinesis_split(Versioned(0, raw))
    assert split.marker == marker
    assert write_kinesis_split(split).data == raw


@pytest.mark.parametrize(
    "data", [NUMBER + b"\0", NUMBER.replace(b"arn:", b"urn:"), NUMBER.replace(b"AFTER_", b"BELOW_")]
)
def test_what_kinesis_could_not_have_written_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_kinesis_split(Versioned(0, data))


def test_the_row_of_a_split_has_its_sequence_number() -> None:
    (row,) = kinesis_split_rows(SPLITS[2][1])
    assert (row["shard_id"], row["sequence_number"], row["timestamp"], row["finished"]) == (SHARD, "4959", None, True)


@pytest.mark.parametrize("version", ENUMERATORS)
def test_every_version_of_the_enumerator_is_read(version: int) -> None:
    assert read_kinesis_enumerator(Versioned(version, ENUMERATORS[version][0])) == ENUMERATORS[version][1]


@pytest.mark.parametrize("version", ENUMERATORS)
def test_every_version_of_the_enumerator_is_written(version: int) -> None:
    assert write_kinesis_enumerator(ENUMERATORS[version][1]) == Versioned(version, ENUMERATORS[version][0])


def test_the_rows_of_an_enumerator_say_what_is_assigned() -> None:
    assert [row["status"] for row in kinesis_enumerator_rows(ENUMERATORS[1][1])] == ["unassigned"]
