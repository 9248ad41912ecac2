"""A version that this release does not know says nothing about damage: exit code 3, and the version that was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.binary.data_views import Reader
from state_pipelines.connectors.kafka import read_kafka_split
from state_pipelines.connectors.registry import Versioned
from state_pipelines.errors import FormatError, StateError, UnsupportedVersionError, Where, unsupported_version
from state_pipelines.keyed.changelog.changes import read_metadata_change
from state_pipelines.keyed.header import read_keyed_header
from state_pipelines.metadata import read_metadata
from state_pipelines.operatorstate import read_operator_header
from state_pipelines.serializers.snapshot_classes import read_nested_count, read_outer_version

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

KEYED, OPERATOR = b"\0\0\0\6\0\0", b"\0\0\0\6\0\0\0\0"
KURTOSTFELD = "kurtostfeld+flink-kryo-upgrade-demo"
COMMANDS = (("verify",), ("inspect",), ("dump",), ("read",), ("read", "--operator", "orders", "--state", "amounts"))


def renumber(snapshot: Path, state: bytes) -> None:
    """Give all files that hold a state of some name a later version, which is that of a later Flink."""
    for file in snapshot.iterdir():
        data = file.read_bytes()
        if file.name != "_metadata" and state in data:
            file.write_bytes(b"\0\0\0\7" + data[4:])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_keyed_state_of_a_later_version_is_no_damage(
    call: Callable[..., Called], broken: Path, command: tuple[str, ...]
) -> None:
    renumber(broken, b"quantities")
    called = call(command[0], broken, *command[1:])
    text = " ".join((called.out + called.err).split())
    assert called.code == 3, text
    assert "keyed state has version 7, which is not known: this release reads 6" in text
    assert "damaged" not in text.replace('"damaged":false', "")


def test_commands_that_need_the_state_cannot_tell(call: Callable[..., Called], broken: Path, tmp_path: Path) -> None:
    renumber(broken, b"quantities")
    called = call("convert", broken, "--format", "heap", "--out", tmp_path / "new")
    assert (called.code, (tmp_path / "new").exists()) == (3, False)
    assert call("diff", broken, broken).code == 3


@pytest.mark.parametrize("command", ["verify", "inspect", "dump", "read"])
def test_metadata_of_a_later_version_are_no_damage(call: Callable[..., Called], broken: Path, command: str) -> None:
    file = broken / "_metadata"
    file.write_bytes(file.read_bytes().replace(b"\x49\x60\x67\x2d\0\0\0\6", b"\x49\x60\x67\x2d\0\0\0\x08", 1))
    called = call(command, broken)
    assert called.code == 3
    assert "metadata version 8 cannot be read" in " ".join((called.out + called.err).split())


def test_damage_beside_a_later_version_is_damage(call: Callable[..., Called], broken: Path) -> None:
    renumber(broken, b"quantities")
    file = next(each for each in broken.iterdir() if each.read_bytes().startswith(b"\0\0\0\6\0\0\1"))
    file.write_bytes(file.read_bytes()[:40])
    assert call("inspect", broken).code == 2
    assert call("verify", broken).code == 1


@pytest.mark.parametrize("command", ["verify", "inspect", "dump", "read"])
def test_a_snapshot_of_a_changed_flink(wild2: Path, call: Callable[..., Called], command: str) -> None:
    (path,) = (wild2 / KURTOSTFELD).glob("savepoint-932fdb-*/savepoint-932fdb-*")
    called = call(command, path)
    assert called.code == 3
    assert "keyed state has version 7" in " ".join((called.out + called.err).split())


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (lambda data: read_metadata(data), "4960672d 00000008"),
        (lambda data: read_keyed_header(Reader(data)), "00000007"),
        (lambda data: read_operator_header(Reader(data)), "00000007"),
        (lambda data: read_outer_version(Reader(data)), "00000003"),
        (lambda data: read_nested_count(Reader(data)), "001457fd 00000002 00000000"),
        (lambda data: read_metadata_change(data, "f"), "08 00000008"),
        (lambda data: read_kafka_split(Versioned(7, data)), ""),
    ],
    ids=["metadata", "keyed", "operator", "serializer", "nested", "change", "split"],
)
def test_every_reader_of_a_version_knows_that(read: Callable[[bytes], object], data: str) -> None:
    with pytest.raises(UnsupportedVersionError):
        read(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        (7, UnsupportedVersionError),
        (255, UnsupportedVersionError),
        (0, FormatError),
        (-1, FormatError),
        (256, FormatError),
    ],
)
def test_a_number_that_no_version_has_is_damage(version: int, kind: type[StateError]) -> None:
    error = unsupported_version("keyed state", version, 6, Where(file="f", offset=0))
    assert isinstance(error, kind)
    assert str(error).startswith(f"keyed state has version {version}, which ")
