from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.codecs.json import dumps
from state_pipelines.errors import NotFoundError
from state_pipelines.metadata.checkpoint import MasterState, SubtaskState
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.dump import dump
from state_pipelines.snapshot import open_snapshot
from tests.flink.harness import Entry, diff_entries
from tests.snapshot.built import build_snapshot, write_raw_keyed, write_raw_operator
from tests.snapshot.built import operator as operator_of
from tests.snapshot.savepoints import ALL_ORDERS, Savepoint, orders, types
from tests.snapshots import select

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.parametrize("savepoint", ALL_ORDERS, ids=str)
def test_every_entry_is_dumped_as_flink_read_it(savepoint: Savepoint) -> None:
    lines: list[Entry] = [json.loads(dumps(line)) for line in dump(savepoint.open())]
    difference = diff_entries(savepoint.entries(), lines)
    assert not difference, str(difference)


def test_operators_without_known_uid_are_named_by_their_id() -> None:
    snapshot = open_snapshot(str(orders("1.20").path))
    assert {line["op"] for line in dump(snapshot)} == {operator.id for operator in snapshot.operators}


def test_one_operator_is_dumped() -> None:
    lines = list(dump(orders().open(), operator="pricing"))
    assert {(line["op"], line["state"]) for line in lines} == {("pricing", "prices")}


def test_one_state_is_dumped_in_every_operator_that_has_it() -> None:
    lines = list(dump(types().open(), state="average"))
    assert {(line["op"], line["state"]) for line in lines} == {("state-kinds", "average"), ("ttl-states", "average")}


def test_a_state_that_no_operator_has_is_an_error() -> None:
    with pytest.raises(NotFoundError, match="no-such-state"):
        list(dump(orders().open(), state="no-such-state"))


def test_a_value_that_cannot_be_decoded_is_bytes_with_the_reason() -> None:
    lines = dump(types("2.2", "heap").open(), state="person-or-guest")
    values = [line["value"] for line in lines]
    undecoded = [value for value in values if isinstance(value, dict) and "@bytes" in value]
    assert len(values) == 12
    assert len(undecoded) == 6
    assert "types.Guest" in str(undecoded[0]["@reason"])
    assert bytes.fromhex(str(undecoded[0]["@bytes"]))[2:14] == b"\x0btypes.Guest"


def test_values_with_ttl_tell_their_last_access() -> None:
    (line, *_) = dump(types().open(), operator="ttl-states", state="value")
    assert isinstance(line["ttl_ts"], int)


def test_lists_with_ttl_tell_the_last_access_of_every_element() -> None:
    for line in dump(types().open(), operator="ttl-states", state="list"):
        assert isinstance(line["ttl_ts"], list)
        assert isinstance(line["value"], list)
        assert len(line["ttl_ts"]) == len(line["value"])


def raw_lines(directory: Path, **options: object) -> list[Entry]:
    subtask = SubtaskState(
        0,
        raw_keyed_state=write_raw_keyed({1: b"one", 2: b"2"}, KeyGroupRange(0, 4)),
        raw_operator_state=write_raw_operator([b"a", b"bc"]),
    )
    built = build_snapshot(
        directory,
        replace(operator_of("raw", subtask, coordinator=b"abc"), max_parallelism=4),
        uids=["raw"],
        masters=(MasterState("hook", 3, b"xyz"),),
    )
    return list(dump(built, **options))  # type: ignore[arg-type]


def test_state_that_only_its_operator_knows_is_dumped_as_stored(tmp_path: Path) -> None:
    assert raw_lines(tmp_path) == [
        {"kind": "master", "name": "hook", "version": 3, "bytes": b"xyz".hex()},
        {"kind": "coordinator", "op": "raw", "hex": b"abc".hex()},
        {
            "kind": "raw_keyed",
            "op": "raw",
            "subtask": 0,
            "range": "KeyGroupRange{startKeyGroup=0, endKeyGroup=3}",
            "offsets": [-1, 0, 3, -1],
            "hex": b"one2".hex(),
        },
        {"kind": "raw_operator", "op": "raw", "subtask": 0, "offsets": [0, 1], "hex": b"abc".hex()},
    ]


def test_one_operator_comes_without_the_job_master(tmp_path: Path) -> None:
    assert [line["kind"] for line in raw_lines(tmp_path, operator="raw")] == [
        "coordinator",
        "raw_keyed",
        "raw_operator",
    ]


def test_one_raw_state_is_dumped(tmp_path: Path) -> None:
    assert [line["kind"] for line in raw_lines(tmp_path, state="_raw_operator_state")] == ["raw_operator"]


def test_data_in_flight_is_dumped_when_it_is_asked_for() -> None:
    (case,) = select("2.2.1", "unaligned")
    plain = list(dump(case.open()))
    lines: list[Entry] = [dict(line) for line in dump(case.open(), in_flight=True) if line["kind"] == "inflight"]
    assert len(lines) == 8
    assert not [line for line in plain if line["kind"] == "inflight"]
    first = next(line for line in lines if line["op"] == "slow-map")
    assert (first["handle"], first["info"], first["subtask"], first["offsets"]) == (
        "InputChannelStateHandle",
        "InputChannelInfo{gateIdx=0, inputChannelIdx=1}",
        0,
        [4],
    )
    # Its handle lies inside the metadata and counts a version and a length too.
    assert [len(bytes.fromhex(each)) for each in first["buffers"]] == [first["size"] - 8]


def test_data_in_flight_is_dumped_alone_by_its_name() -> None:
    (case,) = select("2.2.1", "unaligned")
    lines = list(dump(case.open(), operator="numbers", state="_in_flight_data"))
    assert {(line["kind"], line["handle"]) for line in lines} == {("inflight", "ResultSubpartitionStateHandle")}
