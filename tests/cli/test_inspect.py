from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.connectors.test_kafka import SPLIT
from tests.connectors.vectors import element, versioned
from tests.serializers.literals import i32
from tests.snapshot.built import build_snapshot, list_operator
from tests.snapshot.large import write_incremental_checkpoint, write_keyed_savepoint
from tests.snapshot.savepoints import orders
from tests.snapshots import OWN, select

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

FORBIDDEN = ("pyspark", "dagster", "pandas", "great_expectations", "matplotlib")


def test_json_lists_every_operator(call: Callable[..., Called], savepoint: Path) -> None:
    report = call("inspect", savepoint, "--json").json
    assert [operator["uid"] for operator in report["operators"]] == [
        "order-counter",
        "revenue-per-minute",
        "pricing",
        "price-source",
        "order-source",
        "orders",
    ]


def test_json_tells_of_a_state(call: Callable[..., Called], savepoint: Path) -> None:
    operators = call("inspect", savepoint, "--json").json["operators"]
    (state,) = [each for operator in operators for each in operator["states"] if each["name"] == "quantities"]
    assert state == {
        "name": "quantities",
        "kind": "MAP",
        "key": "String",
        "namespace": "VoidNamespace",
        "value": "Map<String, Long>",
        "subtasks": [0, 1],
        "key_groups": [[0, 63], [64, 127]],
        "entries": 383,
        "bytes": 12108,
        "used_key_groups": 104,
        "undecoded": "",
        "format": "canonical",
        "connector": None,
        "python": None,
        "error": "",
        "damaged": False,
        "undetermined": False,
        "unreachable": False,
        "columns": [],
        "ttl": None,
    }


def test_the_table_names_snapshot_operators_and_states(call: Callable[..., Called], savepoint: Path) -> None:
    out = call("inspect", savepoint).out
    for text in (
        str(savepoint),
        "revenue-per-minute",
        "AGGREGATING",
        "Pojo<Order>",
        "0-63, 64-127",
        "metadata version 6",
    ):
        assert text in out


def test_the_metadata_file_names_the_snapshot_too(call: Callable[..., Called], savepoint: Path) -> None:
    assert call("inspect", savepoint / "_metadata").out == call("inspect", savepoint).out


def test_without_count_nothing_is_counted(call: Callable[..., Called], savepoint: Path) -> None:
    operators = call("inspect", savepoint, "--json", "--no-count").json["operators"]
    assert {state["entries"] for operator in operators for state in operator["states"]} == {None}


def test_uids_name_operators_that_are_stored_by_hash(call: Callable[..., Called]) -> None:
    old = orders("1.20").path
    operators = call("inspect", old, "--json", "--uid", "orders", "--uid", "pricing").json["operators"]
    assert {operator["uid"] for operator in operators} == {None, "orders", "pricing"}


def test_a_directory_without_snapshot_is_wrong_use(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("inspect", tmp_path)
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith("error: the directory has no _metadata")


def test_an_error_is_one_line(call: Callable[..., Called], tmp_path: Path) -> None:
    assert call("inspect", tmp_path / "missing").err.count("\n") == 1


def test_splits_of_a_source_are_a_table(call: Callable[..., Called], tmp_path: Path) -> None:
    build_snapshot(tmp_path, list_operator("source", "SourceReaderState", [element(0, SPLIT)]))
    lines = call("inspect", tmp_path, "--uid", "source").out.splitlines()
    start = lines.index("  SourceReaderState: kafka split, 1 split of orders")
    assert [line.split() for line in lines[start + 1 : start + 3]] == [
        ["topic", "partition", "offset", "stopping_word"],
        ["orders", "3", "42", "none"],
    ]


def test_a_connector_decides_what_is_ambiguous(call: Callable[..., Called], tmp_path: Path) -> None:
    enumerator = i32(1) + versioned(1, bytes(4))
    build_snapshot(tmp_path, list_operator("source", "SourceReaderState", [], coordinator=enumerator))
    assert "could be that of kafka or number-sequence" in call("inspect", tmp_path).out
    called = call("inspect", tmp_path, "--connector", "source=kafka", "--json")
    assert called.json["operators"][0]["coordinator"]["connector"]["connector"] == "kafka"


def test_a_missing_file_is_shown_and_the_exit_code_is_2(call: Callable[..., Called], broken: Path) -> None:
    largest = max((file for file in broken.iterdir() if file.name != "_metadata"), key=lambda file: file.stat().st_size)
    largest.unlink()
    called = call("inspect", broken)
    assert called.code == 2
    assert "cannot be read: the file does not exist" in called.out
    assert "SourceReaderState" in called.out


@pytest.mark.slow
def test_files_in_a_directory_that_is_not_here_are_a_note(call: Callable[..., Called]) -> None:
    (case,) = (each for each in select("2.2", "rocksdb-incremental") if each in OWN)
    called = call("inspect", case.path, "--json")
    (operator,) = (each for each in called.json["operators"] if each["uid"] == "state-kinds")
    assert called.code == 0
    assert "give their new location with --map FROM=TO" in called.err
    assert (operator["damaged"], "directories that this snapshot may name" in operator["error"]) == (False, True)
    assert call("inspect", case.path, "--strict").code == 3
    assert call("inspect", case.path, "--strict", "--map", case.path_mapping[0]).code == 0


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("unaligned", "in-flight input: 2 handles, 2 channels, 2 buffers, "),
        ("forst", "keyed state: ForSt incremental, compression snappy, 28 shared files"),
        ("rocksdb-file-merging", "in merged files"),
        ("changelog-heap-memory", "key serializer, inferred since the snapshot does not store it: String"),
        ("changelog-heap-materialized", "2 materialized handles, 4 streams of changes"),
        ("finished", "finished"),
    ],
)
def test_people_see_how_state_is_stored(call: Callable[..., Called], case: str, expected: str) -> None:
    (found,) = [each for each in select("2.2.1", case) if "types" in each.name]
    assert expected in call("inspect", found.path, "--map", *found.path_mapping).out


@pytest.mark.parametrize("arguments", [["--debug", "inspect"], ["inspect", "--debug"]], ids=["before", "behind"])
def test_debug_shows_the_traceback(call: Callable[..., Called], tmp_path: Path, arguments: list[str]) -> None:
    assert "Traceback" in call(*arguments, tmp_path).err


def imported(code: str, *names: str) -> tuple[int, str]:
    """The exit code of a new process that runs `code`, and which of some packages it has imported behind it."""
    told = f"\nimport sys; print(sorted(set({names!r}) & set(sys.modules)), file=sys.stderr)\n"
    done = subprocess.run([sys.executable, "-c", code + told], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def inspecting(path: Path, *arguments: str) -> str:
    return f"from state_pipelines.cli import main\nmain({['inspect', str(path), *arguments]!r}, standalone_mode=False)"


@pytest.mark.slow
def test_nothing_heavy_is_imported(savepoint: Path) -> None:
    assert imported(inspecting(savepoint, "--json"), *FORBIDDEN) == (0, "[]\n")


@pytest.mark.slow
def test_without_counting_no_kernel_is_compiled(tmp_path: Path) -> None:
    write_keyed_savepoint(tmp_path / "canonical", 2, 2)
    write_incremental_checkpoint(tmp_path / "incremental", 1, 2, 0)
    for name in ("canonical", "incremental"):
        code = inspecting(tmp_path / name, "--no-count")
        assert imported(code, *FORBIDDEN, "numba", "llvmlite") == (0, "[]\n")


@pytest.mark.slow
def test_opening_a_snapshot_and_asking_for_a_schema_compiles_no_kernel(tmp_path: Path) -> None:
    path = tmp_path / "savepoint"
    write_keyed_savepoint(path, 1, 2)
    code = (
        "import state_pipelines\n"
        f"snapshot = state_pipelines.open_snapshot({str(path)!r})\n"
        "operator = snapshot.operator('operator-0')\n"
        "assert operator.state('total').schema.names[-1] == 'value'\n"
        "assert operator.schema.names\n"
    )
    assert imported(code, *FORBIDDEN, "numba", "llvmlite") == (0, "[]\n")


def test_a_savepoint_with_many_handles_is_read_without_reading_state(
    call: Callable[..., Called], tmp_path: Path
) -> None:
    path = tmp_path / "savepoint"
    write_keyed_savepoint(path, 3, 20, size=1 << 24)
    operators = call("inspect", path, "--json").json["operators"]
    states = [state for operator in operators[1:] for state in operator["states"]]
    assert {(state["key"], state["value"], state["format"], state["error"]) for state in states} == {
        ("String", "Long", "canonical", "")
    }
    assert {tuple(state["subtasks"]) for state in states} == {tuple(range(20))}


@pytest.mark.slow
def test_the_package_can_be_run(savepoint: Path) -> None:
    command = [sys.executable, "-m", "state_pipelines", "inspect", str(savepoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "revenue-per-minute" in done.stdout


def test_the_help_lists_every_command(call: Callable[..., Called]) -> None:
    out = call("--help").out
    assert [name for name in ("inspect", "read", "dump", "check", "migrate", "demo") if f"\n  {name} " not in out] == []


@pytest.mark.parametrize("name", ["inspect", "read", "dump", "check", "migrate", "demo"])
def test_every_command_has_help(call: Callable[..., Called], name: str) -> None:
    assert call(name, "--help").out.startswith(f"Usage: main {name}")


def test_an_unknown_command_is_wrong_use(call: Callable[..., Called]) -> None:
    assert call("frobnicate").code == 2
