"""JVMs that run the Java programs of the harness, one after the other: starting and warming one up takes seconds."""

from __future__ import annotations

import atexit
import select
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_IDLE = 2
"""JVMs of this process that wait for a program; each takes some 500 MB."""

TIMEOUT_SECONDS = 300


class WorkerError(RuntimeError):
    """A JVM does not answer in time."""


def write_request(target: Path, words: Sequence[str]) -> bytes:
    """Write the words that `harness.Worker` reads for one program; returns the line of its input."""
    target.write_bytes(b"".join(word.encode() + b"\0" for word in words))
    return f"{target}\n".encode()


@dataclass(frozen=True)
class Worker:
    """A JVM with `harness.Worker` as its main class.

    Attributes:
        command: that started it.
        scratch: its temporary directory.
        process: the JVM.
    """

    command: tuple[str, ...]
    scratch: Path
    process: subprocess.Popen[bytes]

    def run(self, words: Sequence[str]) -> int:
        """Run a program; returns its exit code, or that of the JVM if the program ended it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(write_request(self.scratch / "request", words))
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], TIMEOUT_SECONDS)[0]:
            raise WorkerError(f"{words[2]} took more than {TIMEOUT_SECONDS} s")
        answer = self.process.stdout.readline()
        return int(answer) if answer else self.process.wait() or 1

    def end(self) -> None:
        """End the JVM and remove its files."""
        self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.scratch, ignore_errors=True)


@dataclass
class Workers:
    """The JVMs of this process.

    Attributes:
        idle: those that have ended a program without an error, the one used last at the end.
    """

    idle: list[Worker] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(
        self, java: Iterable[str], program: str, arguments: Sequence[str], mapping: str, *, own_jvm: bool = False
    ) -> tuple[int, str]:
        """Run a program of the harness.

        A JVM whose program failed is not used again: its cluster may still be running.

        Args:
            java: command that starts Java with its options, among them the class path.
            program: class of the package `harness`, with `static int run(String[])`.
            arguments: of the program.
            mapping: value of the property `harness.mapping`.
            own_jvm: run it in a new JVM and end that afterwards.

        Returns:
            The exit code and the output.
        """
        worker = _start(tuple(java)) if own_jvm else self._take(tuple(java))
        log = worker.scratch / "output.log"
        log.unlink(missing_ok=True)
        code = -1
        try:
            code = worker.run([str(log), mapping, program, *arguments])
            output = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        finally:
            ended = own_jvm or code != 0
            if ended:
                worker.end()
        with self._lock:
            self.idle += [] if ended else [worker]
            while len(self.idle) > MOST_IDLE:
                self.idle.pop(0).end()
        return code, output

    def end(self) -> None:
        """End all of them."""
        while self.idle:
            self.idle.pop().end()

    def _take(self, command: tuple[str, ...]) -> Worker:
        with self._lock:
            found = [worker for worker in self.idle if worker.command == command]
            if found:
                self.idle.remove(found[-1])
                return found[-1]
        return _start(command)


def _start(command: tuple[str, ...]) -> Worker:
    scratch = Path(tempfile.mkdtemp())
    words = [command[0], f"-Djava.io.tmpdir={scratch}", *command[1:], "harness.Worker"]
    with (scratch / "errors.log").open("wb") as errors:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    return Worker(command, scratch, process)


WORKERS = Workers()
atexit.register(WORKERS.end)
