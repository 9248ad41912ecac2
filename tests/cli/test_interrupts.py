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

COMMAND = """
import ctypes, os, signal, sys, threading
from state_pipelines.cli import main
from state_pipelines.operations.convert import conversion_tasks

before = conversion_tasks.SubtaskConversion.run

@ctypes.CFUNCTYPE(None)
def called():
    send()

def send():
    os.kill(os.getpid(), signal.NUMBER)
    for _ in range(1000):
        pass

def lose():
    # As compiled code does that clears errors, such as that of Arrow where it imports pandas.
    try:
        send()
    except KeyboardInterrupt:
        pass
    # The signal comes again before that.
    threading.Event().wait(120)

def run(task):
    WHERE()
    return before(task)

conversion_tasks.SubtaskConversion.run = run
main(sys.argv[1:])
"""
WORKERS = """
import os, signal, sys
from state_pipelines.cli import main
from state_pipelines.operations.convert import conversion_tasks

def run(task):
    with open(os.environ["BEGUN"], "w") as pipe:
        pipe.write("begun")
    with open(os.environ["RELEASED"]) as pipe:
        pipe.read()

conversion_tasks.SubtaskConversion.run = run
conversion_tasks.SubtaskConversion.threads = 1
if __name__ == "__main__":
    main(sys.argv[1:])
"""
CODES = {"SIGINT": 130, "SIGTERM": 143}


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("where", ["called", "send", "lose"])
def test_a_signal_ends_the_command_and_leaves_nothing(tmp_path: Path, where: str, number: str) -> None:
    code = COMMAND.replace("WHERE", where).replace("NUMBER", number)
    command = ["convert", str(orders().path), "--out", str(tmp_path / "new"), "--format", "heap", "--processes", "1"]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert done.returncode == CODES[number]
    assert done.stderr.splitlines()[-1] == "interrupted"
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to_all", [True, False], ids=["to the group", "to the command"])
def test_a_request_to_end_reaches_a_command_with_processes(tmp_path: Path, to_all: bool) -> None:
    script, begun, released = (tmp_path / name for name in ("script.py", "begun", "released"))
    script.write_text(WORKERS)
    os.mkfifo(begun)
    os.mkfifo(released)
    # Open for both, it holds no writer back.
    pipe = os.open(begun, os.O_RDWR)
    target = tmp_path / "targets" / "new"
    target.parent.mkdir()
    command = ["convert", str(orders().path), "--out", str(target), "--format", "heap", "--processes", "2"]
    run = subprocess.Popen(
        [sys.executable, str(script), *command],
        env=os.environ | {"BEGUN": str(begun), "RELEASED": str(released)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    # Reading waits for a process that works.
    assert os.read(pipe, 5) == b"begun"
    if to_all:
        os.killpg(run.pid, signal.SIGTERM)
    else:
        os.kill(run.pid, signal.SIGTERM)
        release(run, released)
    _, err = run.communicate()
    os.close(pipe)
    assert run.returncode == 143, err
    assert err.decode().splitlines()[-1] == "interrupted"
    assert b"Traceback" not in err
    assert list(target.parent.iterdir()) == []


def release(run: subprocess.Popen[bytes], pipe: Path) -> None:
    """Let processes that wait at a pipe go on until the command has ended."""
    while run.poll() is None:
        try:
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            # Nobody waits now.
            time.sleep(0.01)


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
