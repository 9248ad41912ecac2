"""What damaged input has shown, one test for each."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from state_pipelines.operations.dump import dump
from tests.snapshots import OWN

if TYPE_CHECKING:
    from pathlib import Path


def test_timers_are_shown_where_one_subtask_has_a_namespace_that_nothing_reads(tmp_path: Path) -> None:
    (case,) = (each for each in OWN if each.name == "types-2.2-heap")
    target = tmp_path / "savepoint"
    shutil.copytree(case.path, target)
    void = b"VoidNamespaceSerializer$Void"
    files = [
        file for file in sorted(target.iterdir()) if b"_timer_state/" in (data := file.read_bytes()) and void in data
    ]
    files[0].write_bytes(files[0].read_bytes().replace(void, b"VoidNamespaceSerialiZer$Void"))
    timers = [line for line in dump(str(target)) if line["kind"] == "timer"]
    sound = [line for line in dump(str(case.path)) if line["kind"] == "timer"]
    assert len(timers) == len(sound)
    unread = [line for line in timers if line["ns"] is not None and "@reason" in str(line["ns"])]
    assert 0 < len(unread) < len(sound)
