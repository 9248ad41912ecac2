from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

CALLBACK = """
import ctypes, os, signal, sys
from state_pipelines.cli import main
from state_pipelines.operations.convert import conversion_tasks

before = conversion_tasks.SubtaskConversion.run
@ctypes.CFUNCTYPE(None)
def called():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass

def run(task):
    WHERE
    return before(task)

conversion_tasks.SubtaskConversion.run = run
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "where", ["called()", "os.kill(os.getpid(), signal.SIGINT)"], ids=["in a callback", "in Python"]
)
def test_an_interrupt_ends_the_command_and_leaves_nothing(tmp_path: Path, where: str) -> None:
    code = CALLBACK.replace("WHERE", where)
    command = ["convert", str(orders().path), "--out", str(tmp_path / "new"), "--format", "heap", "--processes", "1"]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "interrupted"
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_processes_that_were_started_end_too(tmp_path: Path) -> None:
    command = ["convert", str(orders().path), "--out", str(tmp_path / "new"), "--format", "heap", "--processes", "2"]
    run = subprocess.Popen(
        [sys.executable, "-m", "state_pipelines", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not list(tmp_path.iterdir()) and run.poll() is None:
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGINT)
    _, err = run.communicate()
    assert run.returncode in (130, 0)
    assert b"Traceback" not in err
    assert run.returncode == 0 or list(tmp_path.iterdir()) == []
    # The last ones notice a moment later that their parent is gone.
    while is_there(run.pid):
        time.sleep(0.01)


def is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
