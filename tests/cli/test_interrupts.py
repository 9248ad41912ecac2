from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.flink.harness import ORDERS
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = """
import ctypes, os, signal, sys, threading
from state_pipelines.cli import main
from state_pipelines.operations import convert

before = convert.SubtaskConversion.run

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

convert.SubtaskConversion.run = run
main(sys.argv[1:])
"""
WORKERS = """
import os, signal, sys
from state_pipelines.cli import main
from state_pipelines.operations import convert

def run(task):
    with open(os.environ["BEGUN"], "w") as pipe:
        pipe.write("begun")
    with open(os.environ["RELEASED"]) as pipe:
        pipe.read()

convert.SubtaskConversion.run = run
convert.SubtaskConversion.threads = 1
if __name__ == "__main__":
    main(sys.argv[1:])
"""
SPARK = """
import os, sys
from pyspark.sql.classic.dataframe import DataFrame
from state_pipelines.cli import main

def collect(frame):
    def wait(batches):
        with open(os.environ["BEGUN"], "w") as pipe:
            pipe.write("begun")
        with open(os.environ["RELEASED"]) as pipe:
            pipe.read()
        yield from batches
    frame.sparkSession.range(0, 1, 1, 1).mapInArrow(wait, "id long").count()

if __name__ == "__main__":
    DataFrame.collect = collect
    main(sys.argv[1:])
"""
CODES = {"SIGINT": 130, "SIGTERM": 143}


@pytest.mark.slow
@pytest.mark.parametrize(("where", "number"), [("called", "SIGTERM"), ("send", "SIGINT"), ("lose", "SIGTERM")])
def test_a_signal_ends_the_command_and_leaves_nothing(tmp_path: Path, where: str, number: str) -> None:
    code = COMMAND.replace("WHERE", where).replace("NUMBER", number)
    command = ["convert", str(orders().path), "--out", str(tmp_path / "new"), "--format", "heap", "--processes", "1"]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert done.returncode == CODES[number]
    assert done.stderr.splitlines()[-1] == "interrupted"
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


CONVERT = ("convert", str(orders().path), "--format", "heap", "--processes", "2")
MIGRATE = ("migrate", str(orders().path), "--migration", str(ORDERS / "migrations" / "0001_amount_as_double.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "command", "to_all"),
    [(WORKERS, CONVERT, True), (WORKERS, CONVERT, False), (SPARK, MIGRATE, True)],
    ids=["to all processes", "to the command", "to all of Spark"],
)
def test_a_request_to_end_reaches_a_command_with_processes(
    tmp_path: Path, code: str, command: tuple[str, ...], to_all: bool
) -> None:
    script, begun, released = (tmp_path / name for name in ("script.py", "begun", "released"))
    script.write_text(code)
    os.mkfifo(begun)
    os.mkfifo(released)
    # Open for both, it holds no writer back.
    pipe = os.open(begun, os.O_RDWR)
    target = tmp_path / "targets" / "new"
    target.parent.mkdir()
    run = subprocess.Popen(
        [sys.executable, str(script), *command, "--out", str(target)],
        env=os.environ | {"BEGUN": str(begun), "RELEASED": str(released)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    # Until a process works, unless the command has ended before.
    while not select.select([pipe], [], [], 0.1)[0]:
        assert run.poll() is None, run.communicate()[1]
    assert os.read(pipe, 5) == b"begun"
    if to_all:
        os.killpg(run.pid, signal.SIGTERM)
    else:
        os.kill(run.pid, signal.SIGTERM)
        release(run, released)
    _, err = run.communicate()
    os.close(pipe)
    assert run.returncode == 143, err
    # The JVM of Spark may say that its workers are gone.
    assert "interrupted" in err.decode().splitlines()
    assert b"Traceback (most" not in err
    assert list(target.parent.iterdir()) == []


def release(run: subprocess.Popen[bytes], pipe: Path) -> None:
    """Let processes that wait at a pipe go on until the command has ended."""
    while run.poll() is None:
        try:
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            # Nobody waits now.
            time.sleep(0.01)


@pytest.mark.slow
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
