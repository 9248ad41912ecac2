"""Faults of the storage in commands that read: once at any request, or for good from any request on."""

from __future__ import annotations

import re
from functools import cache
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest
from click.testing import CliRunner

from benchmarks.generate import OPERATOR, generate
from benchmarks.shapes import Shape
from state_pipelines.cli import main
from state_pipelines.storage import locations
from tests.storages import CountedFileSystem, Fault, empty_counted

ONE, OTHER = "counted:///job/savepoint-1", "counted:///job/savepoint-2"
UID = ("--uid", OPERATOR)
REVISIONS = str(Path(__file__).parents[2] / "benchmarks/revisions")
COMMANDS = {
    "inspect": ("inspect", ONE, "--count", "--json"),
    "dump": ("dump", ONE),
    "read a state": ("read", ONE, *UID, "--operator", OPERATOR, "--state", "total", "--json"),
    "read a key": ("read", OTHER, *UID, "--operator", OPERATOR, "--state", "total", "--key", "user-9", "--json"),
    "read all states": ("read", ONE, *UID, "--operator", OPERATOR, "--json"),
    "diff": ("diff", ONE, OTHER, "--json"),
    "check": ("check", ONE, OTHER, "--json"),
    "balance": ("inspect", ONE, "--balance", "--json"),
    "profile": ("inspect", ONE, "--profile", "--json"),
    "find a key": ("erase", ONE, *UID, "--key", "user-9", "--json"),
    "verify": ("verify", ONE, "--depth", "whole", "--json"),
    "verify all": ("verify", "counted:///job", "--json"),
    "verify a directory to search": ("verify", ONE, "--search", "counted:///job", "--json"),
    "retain": ("retain", "counted:///job", "--json"),
    "current": ("current", REVISIONS, ONE, *UID, "--json"),
    "history": ("history", REVISIONS, ONE, *UID, "--json"),
}
OTHERS = {
    "convert": "`test_faulty_writers` and `tests.robustness.faulty_writers`",
    "rescale": "`test_faulty_writers` and `tests.robustness.faulty_writers`",
    "bootstrap": "`tests.robustness.faulty_writers`",
    "migrate": "`tests.spark.test_s3_requests` and `tests.robustness.faulty_migration`",
    "revision": "local files",
    "savepoint": "`tests.upgrades`: a job",
    "status": "`tests.clusters`: an endpoint",
    "upgrade": "`tests.upgrades`: a cluster that fails",
    "rehearse": "`tests.upgrades`: a cluster that fails",
    "sql": "a script, which is read at once, and local files",
    "init": "local files",
    "prepare": "local files",
    "demo": "local files",
}
"""Commands that are not tried here: where they are, or what they work with."""
REPORTS = ("verify", "verify all", "retain", "find a key")
"""Commands that report state they cannot read, instead of ending."""
FAULTS: tuple[Fault, ...] = (
    TimeoutError("timed out"),
    ConnectionResetError("reset by peer"),
    OSError(5, "InternalError"),
    OSError(16, "Please reduce your request rate."),
)


@cache
def generated() -> dict[str, bytes]:
    """The same state in the canonical format and in RocksDB, by path."""
    with TemporaryDirectory() as directory:
        for number, format in ((1, "canonical"), (2, "rocksdb-native")):
            shape = Shape(states=("value", "map", "timers"), format=format)
            generate(f"{directory}/savepoint-{number}", 60, shape)
        return {str(path.relative_to(directory)): path.read_bytes() for path in Path(directory).rglob("*-*/*")}


@pytest.fixture(autouse=True)
def storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.0)
    root = empty_counted()
    for name, content in generated().items():
        root.filesystem.pipe_file(f"/job/{name}", content)
    CountedFileSystem.requests.clear()


def run(name: str) -> tuple[int, str, str]:
    """Exit code, output without what tells runs apart, and messages."""
    CountedFileSystem.requests.clear()
    result = CliRunner().invoke(main, COMMANDS[name])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, re.sub(r'"(seconds|made|now|at|time|created)": [^,\n}]*', "", result.stdout), result.stderr


def choose_requests(name: str) -> range:
    """Run a command, and choose some of its requests by number, the first and about twenty others."""
    run(name)
    count = len(CountedFileSystem.requests)
    return range(0, count, -(-count // 20))


def test_every_command_is_tried() -> None:
    assert isinstance(main, click.Group)
    known = main.list_commands(click.Context(main))
    assert {command for command, *_ in COMMANDS.values()} | OTHERS.keys() == set(known)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_request_that_fails_once_changes_nothing(name: str) -> None:
    expected = run(name)
    assert expected[0] in (0, 1)
    kinds = cycle(FAULTS)
    for number in choose_requests(name):
        fault = next(kinds)
        CountedFileSystem.rule = staticmethod(
            lambda at, *_, number=number, fault=fault: fault if at == number else None
        )
        assert run(name) == expected, number


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_storage_that_fails_for_good_is_one_short_error(name: str) -> None:
    expected = run(name)
    for number in choose_requests(name):
        CountedFileSystem.rule = staticmethod(
            lambda at, *_, number=number: ConnectionResetError("reset by peer") if at >= number else None
        )
        code, output, message = run(name)
        if code == 2:
            assert 1 <= len(message.splitlines()) <= 4, message
            assert "(5 attempts): reset by peer" in message
        elif len(CountedFileSystem.requests) > number:
            assert name in REPORTS
            assert "(5 attempts): reset by peer" in output
        else:
            # Several at a time are not always as many.
            assert (code, output, message) == expected
