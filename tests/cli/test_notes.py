"""Notes and hints in full, and each kind of note once."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from state_pipelines.cli.check import show_matches
from state_pipelines.cli.display import make_console
from state_pipelines.cli.options import group_notes
from state_pipelines.errors import FormatError, OutOfReachError, Where
from state_pipelines.operations.check.check import OperatorMatch
from state_pipelines.operations.convert import convert
from state_pipelines.operations.inspect import join_errors
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.cli.conftest import Called

REASON = "is not profiled: no reader is registered"


def test_notes_that_differ_in_operator_state_and_file_are_one() -> None:
    notes = [f"operator {uid}: state {state} {REASON} [file {state}-{uid}, offset 3]" for uid in "ab" for state in "xy"]
    assert group_notes([*notes, "something else"]) == [
        f"{notes[0]} (and the same of operator a: state y, operator b: state x, operator b: state y)",
        "something else",
    ]


def test_many_equal_notes_are_counted() -> None:
    notes = [f"operator a: state s{number} {REASON}" for number in range(400)]
    assert group_notes(notes) == [f"{notes[0]} (and the same of 399 more)"]


def test_different_notes_stay() -> None:
    notes = ["operator a: state x is not profiled: one", "operator a: state x is not profiled: two"]
    assert group_notes(notes) == notes


def test_the_hint_after_a_match_of_uids_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    match = OperatorMatch("20ba6b65f97481d5570070de90e4e791", ("b",), "both have the state x", is_certain=True)
    assert len(match.hint) > 120
    show_matches([match], None, make_console())
    assert f"  {match.hint}\n" in capsys.readouterr().out


def test_errors_that_differ_in_their_file_are_one() -> None:
    errors = [
        OutOfReachError("a file is outside", where=Where(file=str(number)), hint="Move it") for number in range(9)
    ]
    other = FormatError("damaged")
    assert join_errors([*errors, other]) == f"{errors[0]} (and 8 more of this kind); damaged"


def test_a_dry_run_of_a_copy_finds_files_that_are_out_of_reach(tmp_path: Path, call: Callable[..., Called]) -> None:
    shutil.copytree(orders().path, tmp_path / "old")
    convert(str(tmp_path / "old"), str(tmp_path / "new"), "keep", files="reference")
    for options in ((), ("--dry-run",)):
        called = call("convert", tmp_path / "new", "--format", "keep", "--out", tmp_path / "copy", *options)
        assert (called.code, "outside the directories" in called.err) == (2, True)
        assert not (tmp_path / "copy").exists()
