"""Files that are far too long, and pipes in place of files: refused at once, whatever command is given them."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import StateError
from state_pipelines.javaclasses import open_class_path
from state_pipelines.metadata.streams import StateCategory, StreamRole
from state_pipelines.storage import files
from state_pipelines.storage.resolution import MANIFEST_FILE
from tests.cli.test_wrong_use import require_wrong_use
from tests.operations.auditing.damage import copy_case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from state_pipelines.metadata.streams import StreamReference
    from tests.cli.conftest import Called

GIANT = 20 << 30

COMMANDS: dict[str, tuple[str, ...]] = {
    "migration": ("migrate", "SNAPSHOT", "--migration", "FILE.yaml", "--out", "OUT"),
    "request": ("rescale", "SNAPSHOT", "--request", "FILE", "--out", "OUT"),
    "keys": ("rescale", "SNAPSHOT", "--drop-keys", "orders=FILE", "--out", "OUT"),
    "policy": ("retain", "DIR", "--policy", "FILE"),
    "plan": ("retain", "DIR", "--apply", "0123456789abcdef", "--plan", "FILE"),
    "job": ("check", "SNAPSHOT", "FILE.yaml"),
    "schema": ("check", "SNAPSHOT", "--avro", "orders/total=FILE"),
    "field lists": ("inspect", "SNAPSHOT", "--classes", "FILE"),
    "descriptor set": ("inspect", "SNAPSHOT", "--proto", "FILE"),
    "proto": ("inspect", "SNAPSHOT", "--proto", "FILE.proto"),
    "thrift": ("inspect", "SNAPSHOT", "--thrift", "FILE"),
    "python types": ("inspect", "SNAPSHOT", "--python-types", "FILE"),
    "compiled plan": ("inspect", "SNAPSHOT", "--plan", "FILE"),
    "script": ("sql", "plan", "FILE"),
    "storage options": ("inspect", "SNAPSHOT", "--storage-options", "FILE"),
    "bootstrap": ("bootstrap", "FILE", "--out", "OUT"),
    "metadata": ("inspect", "FILE"),
}
"""By kind of file: a command that reads one."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """End what waits for a pipe."""

    def fail(*_: object) -> None:
        raise AssertionError(f"the command waited for more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fill_in(command: tuple[str, ...], file: Path, savepoint: Path, folder: Path) -> tuple[list[str], Path]:
    """The arguments, and the file that they name."""
    named = next(each for each in command if "FILE" in each)
    file = file.with_suffix(named.partition("FILE")[2])
    places = {"SNAPSHOT": str(savepoint), "OUT": str(folder / "out"), "DIR": str(savepoint.parent)}
    return [places.get(each, each.replace(named[named.index("FILE") :], str(file))) for each in command], file


def make_targets(folder: Path) -> None:
    """A giant file and a pipe, for links to them."""
    with (folder / "giant").open("wb") as content:
        content.truncate(GIANT)
    os.mkfifo(folder / "pipe")


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_giant_file_is_refused(call: Callable[..., Called], savepoint: Path, tmp_path: Path, kind: str) -> None:
    arguments, file = fill_in(COMMANDS[kind], tmp_path / "giant", savepoint, tmp_path)
    with file.open("wb") as content:
        content.truncate(GIANT)
    called = call(*arguments)
    require_wrong_use(called, str(file), "the file has more than")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_pipe_is_refused(call: Callable[..., Called], savepoint: Path, tmp_path: Path, kind: str) -> None:
    arguments, file = fill_in(COMMANDS[kind], tmp_path / "pipe", savepoint, tmp_path)
    os.mkfifo(file)
    with time_limit(30):
        called = call(*arguments)
    require_wrong_use(called, str(file), "a device or pipe, not a file")


@pytest.mark.parametrize("target", ["/dev/zero", "pipe", "giant"])
def test_migrations_behind_links_are_bounded(call: Callable[..., Called], tmp_path: Path, target: str) -> None:
    make_targets(tmp_path)
    file = tmp_path / "migrations" / "0001_a.yaml"
    file.parent.mkdir()
    file.symlink_to(tmp_path / target)
    with time_limit(30):
        require_wrong_use(call("history", file.parent), str(file))


@pytest.mark.parametrize("target", ["/dev/zero", "pipe", "giant"])
def test_class_files_in_directories_are_bounded(tmp_path: Path, target: str) -> None:
    make_targets(tmp_path)
    file = tmp_path / "classes" / "Order.class"
    file.parent.mkdir()
    file.symlink_to(tmp_path / target)
    classes = open_class_path([file.parent])
    with time_limit(30), pytest.raises(StateError, match=r"the file has more than|a device or pipe"):
        classes.find("Order")
    with time_limit(30), pytest.raises(StateError, match=r"the file has more than|a device or pipe"):
        _ = classes.direct_subclasses


def test_numbers_of_thousands_of_digits_are_refused(
    call: Callable[..., Called], savepoint: Path, tmp_path: Path
) -> None:
    digits = "0x" + "f" * 6000
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / "0001_a.yaml").write_text(f"revision: {digits}\noperators: {{}}\n")
    require_wrong_use(call("history", tmp_path / "migrations"), "0001_a.yaml", "6,002 digits")
    (tmp_path / "request.yaml").write_text(f"parallelism: {digits}\n")
    called = call("rescale", savepoint, "--request", tmp_path / "request.yaml", "--out", tmp_path / "out")
    require_wrong_use(called, "request.yaml", "6,002 digits")


@pytest.mark.parametrize("line", ["[" * 100_000, "9" * 6000])
def test_keys_that_json_cannot_hold_are_refused(
    call: Callable[..., Called], savepoint: Path, tmp_path: Path, line: str
) -> None:
    (tmp_path / "keys").write_text(line)
    called = call("rescale", savepoint, "--drop-keys", f"orders={tmp_path / 'keys'}", "--out", tmp_path / "out")
    require_wrong_use(called, "keys", "line 1 is not JSON")


def test_a_manifest_beside_a_snapshot_is_bounded(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    shutil.copytree(savepoint, tmp_path / "savepoint")
    with (tmp_path / "savepoint" / MANIFEST_FILE).open("wb") as content:
        content.truncate(GIANT)
    called = call("verify", tmp_path / "savepoint")
    assert called.code in (1, 2)
    assert "more than one can have" in called.out + called.err


@pytest.mark.parametrize(
    ("role", "message"),
    [("META", "more than the 256 MiB that are read"), ("MANIFEST", "1,024 MiB at most"), ("OPERATOR", "at once")],
)
def test_a_giant_data_file_is_refused(
    call: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, message: str
) -> None:
    monkeypatch.setattr(files, "measure_free_memory", lambda: 4 << 30)
    copy = copy_case("types-2.2-rocksdb-incremental", tmp_path)

    def is_wanted(each: StreamReference) -> bool:
        if role == "OPERATOR":
            return each.category is StateCategory.MANAGED_OPERATOR
        return each.role is StreamRole.META_DATA if role == "META" else (each.local_path or "").startswith("MANIFEST")

    for file in copy.files(is_wanted):
        with file.open("r+b") as content:
            content.truncate(GIANT)
    copy.edit_handles(lambda each: replace(each.handle, size=GIANT) if is_wanted(each) else each.handle)  # type: ignore[arg-type]
    mapping = f"--map=file:{copy.case.written}={copy.folder}"
    called = call("dump", copy.path, mapping)
    assert called.code == 2
    assert message in called.err
