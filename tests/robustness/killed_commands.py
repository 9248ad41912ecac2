"""Commands that write, in processes of their own whose calls to the local disk fail, or that are killed at one.

python -m tests.robustness.killed_commands --command 'convert to heap' --way 'kill -9'
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import state_pipelines as sp
from benchmarks.generate import OPERATOR
from state_pipelines.cli import main as run_command
from state_pipelines.errors import StateError
from state_pipelines.operations.dump import dump
from state_pipelines.storage import METADATA_FILE, resolve
from state_pipelines.storage.resolution import find_scratch_target
from state_pipelines.storage.snapshot_writer import find_snapshots
from tests.robustness.__main__ import write
from tests.robustness.faulty_writers import DESCRIPTION, first_key, generated, make_rows
from tests.robustness.local_calls import WAYS, LocalCalls

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "convert": "convert SOURCE --format keep --out TARGET",
    "convert to heap": "convert SOURCE --format heap --out TARGET",
    "convert to heap, two processes": "convert SOURCE --format heap --processes 2 --out TARGET",
    "convert to RocksDB": "convert SOURCE --format rocksdb --out TARGET",
    "rescale": "rescale SOURCE --parallelism 3 --out TARGET",
    "rescale key groups": "rescale SOURCE --max-parallelism 64 --out TARGET",
    "merge": "rescale SOURCE --merge OTHER --on-equal first --out TARGET",
    "erase": "erase SOURCE --key KEY --out TARGET",
    "bootstrap": "bootstrap new.yaml --out TARGET",
}
"""By name: a command in a directory that holds its input."""


class Finding(Exception):
    """Something that must not be."""


@dataclass
class Tally:
    """Outcome of the faults of one command.

    Attributes:
        outcomes: number of attempts by how they ended.
        discarded: number of attempts after which the same command needed `--discard-partial`.
        scratch: number of attempts after which temporary files stay for `retain`.
        findings: what must not be.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    discarded: int = 0
    scratch: int = 0
    findings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Attributes:
        code: its exit code, negative for a signal.
        err: what it wrote on stderr.
        calls: number of its calls to the local disk; 0 where it did not come to its end.
    """

    code: int
    err: str
    calls: int


class Attempt:
    """A directory with the input of a command, and nothing else."""

    def __init__(self, name: str, directory: Path) -> None:
        self.directory = directory
        for file, content in generated().items():
            (directory / "job" / file).parent.mkdir(parents=True, exist_ok=True)
            (directory / "job" / file).write_bytes(content)
        rows = directory / "job/rows.parquet"
        rows.write_bytes(make_rows())
        (directory / "job/new.yaml").write_text(DESCRIPTION.replace("counted:///job/rows.parquet", str(rows)))
        (directory / "tmp").mkdir()
        self.target = directory / "results/new"
        self.target.parent.mkdir()
        places = {
            "SOURCE": str(directory / "job/savepoint"),
            "OTHER": str(directory / "job/other"),
            "TARGET": str(self.target),
            "KEY": first_key(),
            "new.yaml": str(directory / "job/new.yaml"),
        }
        self.arguments = [places.get(each, each) for each in COMMANDS[name].split()]
        self.input = self._digest()

    def _digest(self) -> str:
        digest = sha256()
        for file in sorted((self.directory / "job").rglob("*")):
            digest.update(str(file).encode() + (file.read_bytes() if file.is_file() else b""))
        return digest.hexdigest()

    def run(self, way: str | None = None, number: int = -1, *more: str) -> Ended:
        """Run the command in a process of its own, and wait until that and all its processes are gone."""
        calls, err = self.directory / "tmp.calls", self.directory / "tmp.err"
        for each in (calls, err):
            each.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            self._be_child(way, number, [*self.arguments, *more], calls, err)
        _, status = os.waitpid(child, 0)
        # Processes that it has started notice a moment later that it is gone.
        until = time.monotonic() + 60
        while is_there(child):
            if time.monotonic() > until:
                raise Finding("processes are left")
            time.sleep(0.01)
        count = int(calls.read_text()) if calls.exists() else 0
        text = err.read_text(errors="replace")
        for each in (calls, err):
            each.unlink(missing_ok=True)
        return Ended(os.waitstatus_to_exitcode(status), text, count)

    def _be_child(self, way: str | None, number: int, arguments: Sequence[str], calls: Path, err: Path) -> None:
        code = 70
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            file = os.open(err, os.O_CREAT | os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(file, stream)
            tempfile.tempdir = str(self.directory / "tmp")
            os.environ["TMPDIR"] = tempfile.tempdir
            heard = LocalCalls(self.directory, WAYS[way](number) if way else lambda *_: None)
            heard.watch()
            try:
                run_command(list(arguments))
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
                raise
            count = heard.count
            sys.stderr.flush()
            fd = os.open(os.fsencode(calls).replace(b"/tmp.calls", b"/./tmp.calls"), os.O_CREAT | os.O_WRONLY)
            os.write(fd, str(count).encode())
        finally:
            os._exit(code)

    def judge(self, name: str, way: str, ended: Ended, tally: Tally) -> None:
        """Judge what an attempt has left, and run the command again."""
        _require(self._digest() == self.input, "the input is not as it was")
        complete = (self.target / METADATA_FILE).exists()
        lines = ended.err.strip().splitlines()
        if ended.code == -signal.SIGKILL:
            outcome = "killed"
        else:
            outcome = {0: "finished", 2: "refused", 130: "interrupted"}.get(ended.code, "")
            if (ended.code == 1 and "Nothing was published" in ended.err) or (
                ended.code == 3 and "not searched" in ended.err
            ):
                # The proof could not read what was written, or `erase` what it was to search.
                outcome = "refused"
            _require(bool(outcome), f"exit code {ended.code}: {lines[-1:]}")
            _require(ended.code != 2 or 1 <= len(lines) <= 4, f"{len(lines)} lines: {ended.err}")
        tally.outcomes[outcome] += 1
        if complete:
            _require(show(self.target) == expected(name), "the new snapshot holds something else")
        else:
            _require(outcome != "finished", "it is said to be done, and is not")
            _require_no_snapshot(self.target)
        # A process that was killed cannot clear up; where a removal fails, the error says so.
        if outcome != "killed" and not complete and "could not be removed" not in ended.err:
            _require(not self.left(), f"left: {self.left()}")
        if not complete:
            again = self.run()
            if again.code == 2 and "--discard-partial" in again.err:
                tally.discarded += 1
                again = self.run(None, -1, "--discard-partial")
            _require(again.code == 0, f"it cannot be run again: {again.err}")
            _require(show(self.target) == expected(name), "the second run gives something else")
        left = self.left()
        scratch = [name for name in left if self._goes_later(self.directory / name)]
        tally.scratch += bool(scratch)
        _require(left == scratch, f"left after the second run: {left}")
        # Another process might use them, so that only `retain` removes them, after a time.
        _require(outcome == "killed" or not scratch, f"temporary files are left: {scratch}")

    def _goes_later(self, path: Path) -> bool:
        """Return whether `retain`, or a later command, removes temporary files after a time."""
        if path.parent.name == "tmp" and path.name.startswith("state-pipelines-scratch-"):
            return {each.name for each in path.iterdir()} <= {".lock.pending"}
        return find_scratch_target(path.name) == self.target.name

    def left(self) -> list[str]:
        """Files and directories that are neither input nor the target when it is complete."""
        roots = [self.directory / "tmp", self.directory / "results"]
        found = [path for root in roots for path in root.iterdir()]
        complete = (self.target / METADATA_FILE).exists()
        return [str(path.relative_to(self.directory)) for path in found if not (complete and path == self.target)]


def is_there(group: int) -> bool:
    """Return whether a process group has processes."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def show(target: Path) -> list[str]:
    """All entries of a snapshot."""
    return sorted(map(str, dump(sp.open_snapshot(str(target), uids=[OPERATOR]))))


_EXPECTED: dict[str, tuple[int, list[str]]] = {}


def expected(name: str) -> list[str]:
    """Contents of the result of a command."""
    return _undisturbed(name)[1]


def count_calls(name: str) -> int:
    """Number of calls of a command to the local disk."""
    return _undisturbed(name)[0]


def _undisturbed(name: str) -> tuple[int, list[str]]:
    if name not in _EXPECTED:
        with tempfile.TemporaryDirectory() as directory:
            attempt = Attempt(name, Path(directory).resolve())
            ended = attempt.run()
            if ended.code:
                raise RuntimeError(f"{name} fails without a fault: {ended.err}")
            _EXPECTED[name] = ended.calls, show(attempt.target)
    return _EXPECTED[name]


def fail_calls(name: str, way: str, numbers: Sequence[int], tally: Tally) -> None:
    """Run a command once for each number of a call, which fails in some way, and judge what is left."""
    for number in numbers:
        with tempfile.TemporaryDirectory() as directory:
            try:
                attempt = Attempt(name, Path(directory).resolve())
                attempt.judge(name, way, attempt.run(way, number), tally)
            except Finding as finding:
                tally.findings.append(f"{name}, {way}, call {number}: {finding}")


def _require_no_snapshot(target: Path) -> None:
    listed = [str(each.location) for each in find_snapshots(resolve(str(target.parent)))]
    _require(listed == [], f"a listing shows {listed}")
    try:
        sp.open_snapshot(str(target))
    except StateError:
        return
    raise Finding("the target opens")


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise Finding(text)


def main() -> int:
    """Run the commands that were asked for, and print what came of them; returns 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.killed_commands", description="Fail local calls.")
    parser.add_argument("--command", action="append", choices=COMMANDS, help="may be repeated; default: all")
    parser.add_argument("--way", action="append", choices=WAYS, help="may be repeated; default: all")
    parser.add_argument("--points", type=int, help="calls that fail in each way, spread over all; default: each")
    options = parser.parse_args()
    found = False
    titles = ("calls", "attempts", *OUTCOMES, "discarded", "scratch", "findings")
    write(f"{'command':30} " + " ".join(f"{title:>11}" for title in titles))
    for name in options.command or COMMANDS:
        count = count_calls(name)
        tally = Tally()
        for way in options.way or WAYS:
            points = min(options.points or count, count)
            fail_calls(name, way, [(2 * each + 1) * count // (2 * points) for each in range(points)], tally)
        attempts = tally.outcomes.total()
        numbers = (
            count,
            attempts,
            *(tally.outcomes[each] for each in OUTCOMES),
            tally.discarded,
            tally.scratch,
            len(tally.findings),
        )
        write(f"{name:30} " + " ".join(f"{number:11,}" for number in numbers))
        for finding in tally.findings:
            write(f"  {finding}")
        found |= bool(tally.findings)
    return 1 if found else 0


OUTCOMES = ("finished", "refused", "interrupted", "killed")

if __name__ == "__main__":
    sys.exit(main())
