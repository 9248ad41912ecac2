"""Input that is broken: one clear error with the file in it, exit code 2, and nothing is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.metadata.handles import KeyGroupsSavepointStateHandle
from tests.flink.harness import ORDERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.metadata import OperatorState, SubtaskState
    from tests.cli.conftest import Called

MIGRATION = ORDERS / "migrations" / "0001_amount_as_double.yaml"
STRING = b"org.apache.flink.api.common.typeutils.base.StringSerializer$StringSerializerSnapshot"
UNKNOWN = b"com.acme.orders.serialization.SpecialKeySerializer".ljust(len(STRING), b"X")


def find_orders(snapshot: Path) -> Path:
    """The file with the keyed state of the first subtask of `orders`."""
    named = [path for path in snapshot.iterdir() if b"quantities" in path.read_bytes() and path.name != "_metadata"]
    return max(named, key=lambda path: path.stat().st_size)


def cut_data(snapshot: Path) -> Path:
    file = find_orders(snapshot)
    file.write_bytes(file.read_bytes()[:-20])
    return file


def cut_header(snapshot: Path) -> Path:
    file = find_orders(snapshot)
    file.write_bytes(file.read_bytes()[:100])
    return file


def cut_metadata(snapshot: Path) -> Path:
    file = snapshot / "_metadata"
    file.write_bytes(file.read_bytes()[:-20])
    return file


def empty_metadata(snapshot: Path) -> Path:
    file = snapshot / "_metadata"
    file.write_bytes(b"")
    return file


def spoil_magic(snapshot: Path) -> Path:
    file = snapshot / "_metadata"
    file.write_bytes(b"\xca\xfe\xba\xbe" + file.read_bytes()[4:])
    return file


def append_to_metadata(snapshot: Path) -> Path:
    file = snapshot / "_metadata"
    file.write_bytes(file.read_bytes() + b"\0")
    return file


def move_offsets(snapshot: Path) -> Path:
    """Let every key group of `orders` begin behind the end of its file."""
    file = snapshot / "_metadata"
    metadata = read_metadata(file.read_bytes(), str(file))
    operators = tuple(map(_move_offsets, metadata.operator_states))
    file.write_bytes(write_metadata(replace(metadata, operator_states=operators)))
    return snapshot


def _move_offsets(operator: OperatorState) -> OperatorState:
    if operator.uid != "orders":
        return operator
    return replace(operator, subtasks=tuple(map(_move_subtask, operator.subtasks)))


def _move_subtask(subtask: SubtaskState) -> SubtaskState:
    handle = subtask.managed_keyed_state
    assert isinstance(handle, KeyGroupsSavepointStateHandle)
    offsets = tuple(offset + (1 << 40) if offset else 0 for offset in handle.offsets)
    return replace(subtask, managed_keyed_state=replace(handle, offsets=offsets))


def remove_data(snapshot: Path) -> Path:
    file = find_orders(snapshot)
    file.unlink()
    return file


def name_unknown_serializer(snapshot: Path) -> Path:
    """A class of the user in place of the serializer of the keys."""
    file = find_orders(snapshot)
    raw = file.read_bytes()
    assert STRING in raw
    file.write_bytes(raw.replace(STRING, UNKNOWN, 1))
    return file


BREAK = pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut_data, ""),
        (cut_header, ""),
        (cut_metadata, ""),
        (empty_metadata, ""),
        (spoil_magic, "magic"),
        (append_to_metadata, ""),
        (move_offsets, ""),
        (remove_data, "does not exist"),
    ],
)
BREAK_OR_NAME_UNKNOWN = pytest.mark.parametrize(
    ("spoil", "message"), [*BREAK.args[1], (name_unknown_serializer, UNKNOWN.decode())]
)


def expect_error(called: Called, file: Path, message: str) -> None:
    assert called.code == 2
    assert called.err.startswith("error: ")
    assert called.err.count("\n") == 1
    assert str(file) in called.err
    assert message in called.err


@BREAK
def test_inspect(call: Callable[..., Called], broken: Path, spoil: Callable[[Path], Path], message: str) -> None:
    file = spoil(broken)
    expect_error(call("inspect", broken), file, message)


@BREAK
def test_read(call: Callable[..., Called], broken: Path, spoil: Callable[[Path], Path], message: str) -> None:
    file = spoil(broken)
    expect_error(call("read", broken, "--operator", "orders", "--state", "order", "--json"), file, message)


@BREAK
def test_dump(call: Callable[..., Called], broken: Path, spoil: Callable[[Path], Path], message: str) -> None:
    file = spoil(broken)
    expect_error(call("dump", broken), file, message)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "dump", "read --operator orders --state order"])
def test_an_unknown_serializer_is_a_note(call: Callable[..., Called], broken: Path, command: str) -> None:
    name_unknown_serializer(broken)
    name, *options = command.split()
    called = call(name, broken, *options)
    assert (called.code, called.err.splitlines()[0][:5]) == (0, "note:")
    assert UNKNOWN.decode() in called.err
    assert call(name, broken, *options, "--strict").code == 3


@BREAK_OR_NAME_UNKNOWN
def test_check(
    call: Callable[..., Called], broken: Path, savepoint: Path, spoil: Callable[[Path], Path], message: str
) -> None:
    file = spoil(broken)
    called = call("check", broken, savepoint)
    if spoil is name_unknown_serializer:
        assert called.code == 3
        assert message in called.out
    else:
        expect_error(called, file, message)


@pytest.mark.slow
@BREAK_OR_NAME_UNKNOWN
@pytest.mark.usefixtures("spark")
def test_migrate(
    call: Callable[..., Called], broken: Path, tmp_path: Path, spoil: Callable[[Path], Path], message: str
) -> None:
    file = spoil(broken)
    target = tmp_path / "target"
    called = call("migrate", broken, "--migration", MIGRATION, "--out", target)
    *_, last = called.err.splitlines()
    if spoil is name_unknown_serializer:
        # The header was read: no offset in its file is at fault.
        assert called.code == 2
        assert message in last
        assert "[operator orders, state order]" in last
    else:
        expect_error(replace(called, err=f"{last}\n"), file, message)
    assert not target.exists()
