from __future__ import annotations

import json

import pytest

from state_pipelines.binary.java_stream import (
    SERIALIZABLE,
    JavaArray,
    JavaClassData,
    JavaClassDesc,
    JavaFieldDesc,
    JavaObject,
    write_stream,
)
from state_pipelines.connectors import ConnectorState, detect, encode_elements
from state_pipelines.connectors.cdc import FinishedSplit, MySqlSplit, read_mysql_split, split_rows, write_mysql_split
from state_pipelines.connectors.registry import Versioned
from state_pipelines.errors import FormatError
from tests.connectors.vectors import BYTES, element, i64, wrap
from tests.serializers.literals import i32, utf

LONG = JavaClassDesc("java.lang.Long", 1, SERIALIZABLE, (JavaFieldDesc("J", "value"),))
KEY = JavaArray(JavaClassDesc("[Ljava.lang.Object;", 2, SERIALIZABLE), (JavaObject(LONG, (JavaClassData((100,)),)),))
NULL, START = "aced000570", write_stream(KEY).hex()
OFFSET = '{"file":"mysql-bin.000003","pos":"154"}'
SCHEMA = '{"id":"shop.orders"}'
CHUNK = utf("`shop`.`orders`") + utf("shop.orders:0") + utf("ROW<`id` BIGINT NOT NULL>") + utf(NULL) + utf(START)
SCHEMAS = i32(1) + utf('"shop"."orders"') + wrap(SCHEMA.encode())
SPLIT = MySqlSplit(
    4,
    1,
    "shop.orders:0",
    "`shop`.`orders`",
    "ROW<`id` BIGINT NOT NULL>",
    NULL,
    START,
    OFFSET,
    schemas=(('"shop"."orders"', SCHEMA),),
)
FINISHED = FinishedSplit('"shop"."orders"', "shop.orders:0", NULL, START, OFFSET)
BINLOG = i32(2) + utf("binlog-split") + utf("") + b"\1" + wrap(OFFSET.encode()) + b"\0"
DONE = i32(1) + utf('"shop"."orders"') + utf("shop.orders:0") + utf(NULL) + utf(START) + b"\1" + wrap(OFFSET.encode())
SPLITS = {
    "a chunk": (4, i32(1) + CHUNK + b"\1" + wrap(OFFSET.encode()) + SCHEMAS, SPLIT),
    "a chunk that is not read yet": (
        2,
        i32(1) + CHUNK + b"\0" + i32(0),
        MySqlSplit(2, 1, "shop.orders:0", "`shop`.`orders`", "ROW<`id` BIGINT NOT NULL>", NULL, START),
    ),
    "the binlog": (
        4,
        BINLOG + DONE + SCHEMAS + i32(1) + b"\0",
        MySqlSplit(
            4,
            2,
            "binlog-split",
            offset=OFFSET,
            finished=(FINISHED,),
            schemas=(('"shop"."orders"', SCHEMA),),
            finished_size=1,
            suspended=False,
        ),
    ),
    "the binlog of version 2": (2, BINLOG + i32(0) + i32(0), MySqlSplit(2, 2, "binlog-split", offset=OFFSET)),
    "the binlog of version 1": (
        1,
        i32(2) + utf("binlog-split") + utf("") + b"\1" + utf("mysql-bin.000003") + i64(154) + b"\0" + i32(0) + i32(0),
        MySqlSplit(1, 2, "binlog-split", offset='{"file": "mysql-bin.000003", "pos": "154"}'),
    ),
}


@pytest.mark.parametrize(("version", "data", "split"), SPLITS.values(), ids=SPLITS.keys())
def test_splits_are_read_and_written(version: int, data: bytes, split: MySqlSplit) -> None:
    assert read_mysql_split(Versioned(version, data)) == split
    assert write_mysql_split(split) == Versioned(version, data)


def test_the_row_of_a_chunk_says_its_keys_and_its_high_watermark() -> None:
    assert [*split_rows(SPLIT)] == [
        {
            "kind": "snapshot",
            "split_id": "shop.orders:0",
            "table": "`shop`.`orders`",
            "key_type": "ROW<`id` BIGINT NOT NULL>",
            "split_start": None,
            "split_end": "[100]",
            "offset": OFFSET,
            "ending_offset": None,
            "finished_splits": None,
            "suspended": None,
            "tables": ['"shop"."orders"'],
        }
    ]


def test_the_row_of_the_binlog_says_its_offset() -> None:
    (row,) = split_rows(SPLITS["the binlog"][2])
    assert (row["kind"], row["table"], row["offset"], row["finished_splits"]) == ("binlog", None, OFFSET, 1)


def test_the_state_of_a_reader_is_that_of_mysql() -> None:
    version, data, _ = SPLITS["the binlog"]
    state = detect("SourceReaderState", BYTES, [element(version, data)])
    assert isinstance(state, ConnectorState)
    assert state.connector == "mysql-cdc"


@pytest.mark.parametrize(
    "data",
    [
        i32(3) + CHUNK + b"\0" + i32(0),
        i32(1) + CHUNK.replace(START.encode(), START.encode()[:-2] + b"zz") + b"\0" + i32(0),
        i32(1) + CHUNK + b"\1" + wrap(b"[]") + i32(0),
        i32(1) + CHUNK + b"\0" + i32(0) + b"\0",
        BINLOG + i32(0) + i32(1) + utf("t") + wrap(b"{") + i32(0),
    ],
)
def test_what_mysql_could_not_have_written_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_mysql_split(Versioned(4, data))


def test_offsets_of_debezium_are_rows_and_written_as_they_were() -> None:
    text = '{"sourcePartition":{"server":"shop"},"sourceOffset":{"file":"mysql-bin.000003","pos":154}}'
    state = detect("offset-states", BYTES, [wrap(text.encode())])
    assert isinstance(state, ConnectorState)
    ((row,),) = state.rows
    assert json.loads(row["partition"]) == {"server": "shop"}
    assert json.loads(row["offset"]) == {"file": "mysql-bin.000003", "pos": 154}
    assert encode_elements(state, BYTES) == (wrap(text.encode()),)


@pytest.mark.parametrize("text", ["{}", "[]", "not JSON"])
def test_other_bytes_are_no_offsets_of_debezium(text: str) -> None:
    assert detect("offset-states", BYTES, [wrap(text.encode())]) is None
