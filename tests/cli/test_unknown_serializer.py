"""A snapshot of five operators, one of which has a serializer that nothing reads: the rest works in every command."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from tests.flink.harness import diff_entries
from tests.snapshots import ENTRY_KINDS, UNKNOWN, UNKNOWN_SERIALIZER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called
    from tests.flink.harness import Entry
    from tests.snapshots import Case

CLASS = "unknown.PurseSerializer$PurseSnapshot"
each_case = pytest.mark.parametrize("case", UNKNOWN, ids=lambda case: case.case)
framed_cases = pytest.mark.parametrize(
    "case", [case for case in UNKNOWN if case.case != "heap-native"], ids=lambda case: case.case
)


@pytest.fixture
def run(call: Callable[..., Called]) -> Callable[..., Called]:
    """Call a command about a case."""

    def run_command(command: str, case: Case, *options: object) -> Called:
        return call(command, case.path, *options, *(each for text in case.path_mapping for each in ("--map", text)))

    return run_command


def is_purse(entry: Entry) -> bool:
    return bool(entry["op"] == "purses" and entry.get("state") == "purse")


def entries(called: Called) -> list[Entry]:
    return [line for line in called.lines if line["kind"] in ENTRY_KINDS]


def expected(case: Case) -> list[Entry]:
    """The entries as the running job saw them; purses are tuples there, and have the declared fields here."""
    return [each | {"value": tell_fields(each["value"])} if is_purse(each) else each for each in case.entries()]


def tell_fields(value: Entry) -> Entry:
    name, cents = value["@tuple"]
    return {"f0": name, "f1": cents}


def write_purse(value: Entry) -> str:
    text = str(value["f0"]).encode()
    written = struct.pack(">H", len(text)) + text + struct.pack(">q", value["f1"])
    return written.hex()


def test_there_are_cases_of_three_formats() -> None:
    assert [case.case for case in UNKNOWN] == ["canonical", "heap-native", "rocksdb-native"]


@each_case
def test_inspect_shows_every_state_and_a_note(run: Callable[..., Called], case: Case) -> None:
    called = run("inspect", case, "--json")
    assert called.code == 0
    assert called.err.startswith("note: operator purses: state purse is shown as bytes: ")
    assert called.err.count("\n") == 1
    states = {operator["uid"]: [each["name"] for each in operator["states"]] for operator in called.json["operators"]}
    assert {"tally", "seen", "shares"} < set(states["tallies"])
    assert {"purse", "visits"} < set(states["purses"])
    assert (states["log"], states["offsets"], states["rates"]) == (["numbers"], ["numbers"], ["rates"])
    assert [note for note in called.json["notes"] if CLASS in note] == called.json["notes"] != []


@each_case
def test_strict_makes_it_exit_code_3(run: Callable[..., Called], case: Case) -> None:
    assert run("inspect", case, "--strict").code == 3
    assert run("dump", case, "--strict").code == 3
    assert run("dump", case, "--strict", "--operator", "tallies").code == 0


@each_case
def test_dump_gives_all_other_entries(run: Callable[..., Called], case: Case) -> None:
    called = run("dump", case)
    assert called.code == 0
    others = [line for line in entries(called) if not is_purse(line)]
    assert not diff_entries([entry for entry in expected(case) if not is_purse(entry)], others)


@framed_cases
def test_dump_gives_the_unknown_values_as_bytes(run: Callable[..., Called], case: Case) -> None:
    lines = entries(run("dump", case, "--operator", "purses", "--state", "purse"))
    assert {CLASS in line["value"]["@reason"] for line in lines} == {True}
    purses = {entry["key"]: write_purse(entry["value"]) for entry in expected(case) if is_purse(entry)}
    assert {line["key"]: line["value"]["@bytes"] for line in lines} == purses


def test_dump_gives_whole_key_groups_where_entries_cannot_be_told_apart(run: Callable[..., Called]) -> None:
    (case,) = [each for each in UNKNOWN if each.case == "heap-native"]
    lines = entries(run("dump", case, "--operator", "purses", "--state", "purse"))
    by_group = {line["kg"]: line["value"]["@bytes"] for line in lines}
    for entry in expected(case):
        if is_purse(entry):
            assert write_purse(entry["value"]) in by_group[entry["kg"]]


@each_case
def test_a_declared_serializer_is_decoded(run: Callable[..., Called], case: Case) -> None:
    called = run("dump", case, "--serializer", UNKNOWN_SERIALIZER, "--strict")
    assert (called.code, called.err) == (0, "")
    assert not diff_entries(expected(case), entries(called))


@framed_cases
@pytest.mark.parametrize("body", ["utf, i32", "bytes(18)"])
def test_the_body_of_the_snapshot_can_be_declared(run: Callable[..., Called], case: Case, body: str) -> None:
    text = UNKNOWN_SERIALIZER.replace("=", f"({body})=")
    assert run("inspect", case, "--serializer", text, "--strict").code == 0


@each_case
def test_a_snapshot_is_the_same_as_itself(run: Callable[..., Called], case: Case) -> None:
    assert run("diff", case, case.path).code == 0


@framed_cases
def test_read_gives_keys_and_bytes(run: Callable[..., Called], case: Case) -> None:
    called = run("read", case, "--operator", "purses", "--state", "purse", "--json")
    assert called.code == 0
    row = called.lines[0]
    assert row["state_key"].startswith("key-")
    assert CLASS in row["reason"]


@pytest.mark.parametrize("target", ["keep", "canonical"])
@each_case
def test_a_copy_has_the_same_entries(
    run: Callable[..., Called], call: Callable[..., Called], case: Case, target: str, tmp_path: Path
) -> None:
    called = run("convert", case, "--format", target, "--out", tmp_path / "copy")
    if (case.case, target) == ("heap-native", "canonical"):
        assert called.code == 2
        assert "state purse" in called.err
        assert "--serializer" in called.err
        return
    assert called.code == 0
    copied = call("dump", tmp_path / "copy", "--serializer", UNKNOWN_SERIALIZER)
    assert not diff_entries(expected(case), entries(copied))


@each_case
def test_another_parallelism_keeps_all_entries(
    run: Callable[..., Called], call: Callable[..., Called], case: Case, tmp_path: Path
) -> None:
    assert run("rescale", case, "--parallelism", 3, "--out", tmp_path / "rescaled").code == 0
    again = call("dump", tmp_path / "rescaled", "--serializer", UNKNOWN_SERIALIZER)
    copied = ("offsets", "rates")
    single = [entry for entry in expected(case) if entry["op"] not in copied]
    assert not diff_entries(single, [line for line in entries(again) if line["op"] not in copied])


@each_case
def test_other_key_groups_are_written_once_it_is_declared(
    run: Callable[..., Called], call: Callable[..., Called], case: Case, tmp_path: Path
) -> None:
    options = ("--max-parallelism", 256, "--serializer", UNKNOWN_SERIALIZER, "--out", tmp_path / "rescaled")
    assert run("rescale", case, *options).code == 0
    again = call("dump", tmp_path / "rescaled", "--serializer", UNKNOWN_SERIALIZER)
    old, new = ([each for each in found if each["kind"] == "keyed"] for found in (expected(case), entries(again)))
    assert not diff_entries(old, new, ("subtask", "kg"))


@each_case
def test_the_balance_counts_what_can_be_told_apart(run: Callable[..., Called], case: Case) -> None:
    called = run("inspect", case, "--balance", "--json")
    assert called.code == 0
    (operator,) = (each for each in called.json["balance"]["operators"] if each["uid"] == "purses")
    sizes = {state["name"]: state for state in operator["states"]}
    assert operator["error"] == ""
    assert (sizes["visits"]["records"], sizes["visits"]["keys"]) == (12, 12)
    is_heap = case.case == "heap-native"
    assert sizes["purse"]["records"] == (None if is_heap else 12)
    assert sizes["purse"]["bytes"] > 12 * len("purse-0-")
    assert [note for note in operator["notes"] if CLASS in note and "records and keys of purse" in note] == (
        operator["notes"] if is_heap else []
    )
    assert sum(operator["now"]["loads"]["bytes"]) == sum(state["bytes"] for state in sizes.values())


def test_converting_heap_state_of_unknown_ends_names_what_to_declare(
    run: Callable[..., Called], tmp_path: Path
) -> None:
    (case,) = [each for each in UNKNOWN if each.case == "heap-native"]
    called = run("convert", case, "--format", "canonical", "--out", tmp_path / "copy")
    assert called.code == 2
    assert "state purse" in called.err
    assert "nothing in the file tells where an entry ends" in called.err
    assert f"--serializer '{CLASS}=LAYOUT'" in called.err
