from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.flink.harness import diff_entries
from tests.snapshot.savepoints import ALL_ORDERS, ALL_TYPES, Savepoint
from tests.snapshots import select

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

GUEST = "types.Guest extends types.Person: [visits: int]"


@pytest.mark.slow
@pytest.mark.parametrize("savepoint", ALL_ORDERS + ALL_TYPES, ids=str)
def test_every_entry_is_printed(call: Callable[..., Called], savepoint: Savepoint, tmp_path: Path) -> None:
    classes = tmp_path / "classes.yaml"
    classes.write_text(GUEST, encoding="utf-8")
    uids = [part for uid in savepoint.uids for part in ("--uid", uid)]
    called = call("dump", savepoint.path, *uids, "--classes", classes)
    difference = diff_entries(savepoint.entries(), called.lines)
    assert not difference, str(difference)
    assert (called.code, called.err) == (0, "")


def test_one_state(call: Callable[..., Called], savepoint: Path) -> None:
    lines = call("dump", savepoint, "--operator", "pricing", "--state", "prices").lines
    assert {(line["op"], line["state"]) for line in lines} == {("pricing", "prices")}


def test_lines_before_an_error_are_printed(call: Callable[..., Called], broken: Path) -> None:
    assert call("inspect", broken, "--json").json["operators"][-1]["uid"] == "orders"
    largest = max(broken.iterdir(), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-20])
    called = call("dump", broken)
    assert called.code == 2
    assert {line["op"] for line in called.lines} >= {"pricing"}


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(savepoint: Path) -> None:
    command = [sys.executable, "-m", "state_pipelines", "dump", str(savepoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_data_in_flight_is_printed_when_it_is_asked_for(call: Callable[..., Called]) -> None:
    (case,) = [each for each in select("2.2.1", "unaligned") if "types" in each.name]
    kinds = Counter(line["kind"] for line in call("dump", case.path, "--in-flight").lines)
    assert kinds["inflight"] == 8
    assert {line["kind"] for line in call("dump", case.path).lines} == set(kinds) - {"inflight"}
