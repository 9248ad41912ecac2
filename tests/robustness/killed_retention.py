"""`retain` and moves, in processes of their own whose calls to the local disk fail, or that are killed at one.

python -m tests.robustness.killed_retention --command apply --way 'kill -9' --points 12

Beside the ways of `killed_commands` a process is killed right after a call, at a random moment, or is stopped before a
call while a second process runs the same command as a whole.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import state_pipelines as sp
from state_pipelines.cli import main as run_command
from state_pipelines.errors import StateError
from state_pipelines.operations.auditing import Severity, audit_snapshot
from state_pipelines.operations.dump import dump
from state_pipelines.operations.retention.own_directory import AuditLog, DeletionOutcome
from state_pipelines.storage import resolve
from tests.operations.retention.trees import NATIVE, SAVEPOINT, UUIDS, install_job, install_savepoint, put
from tests.robustness.__main__ import write
from tests.robustness.killed_commands import Ended, Finding, is_there
from tests.robustness.local_calls import WAYS, LocalCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

COMMANDS = {
    "apply": "retain ROOT --policy POLICY --apply FINGERPRINT",
    "apply to quarantine": "retain ROOT --policy POLICY --apply FINGERPRINT --quarantine",
    "restore": "retain ROOT --restore FINGERPRINT",
    "purge": "retain ROOT --purge 0s",
    "move": "convert SOURCE --format keep --move --apply --out TARGET",
}
"""By name: a command in a directory that holds its input."""

AFTER, RANDOM, SECOND = "kill -9 after", "kill -9 at random", "second process"
ALL_WAYS = ("kill -9", AFTER, RANDOM, SECOND, *(way for way in WAYS if way != "kill -9"))
OUTCOMES = ("finished", "told", "refused", "interrupted", "killed")
RULES = "checkpoints: {last: 1}\nsavepoints: {last: 1}\n"
UNFINISHED = "chk-1"
OWN = "_retention"
HERE, BEFORE = "here", "before"
ROOT, RESULTS, TMP, POLICY = "root", "results", "tmp", "policy.yaml"


@dataclass
class Tally:
    """Outcome of the faults of one command.

    Attributes:
        outcomes: number of attempts by how they ended; of two processes the one that was stopped.
        again: number of attempts after which the command was run again, by how that ended.
        seconds: number of second processes by how they ended.
        pending: number of attempts after which unfinished files of the audit log stay for ever.
        findings: what must not be.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    pending: int = 0
    findings: list[str] = field(default_factory=list)


class Attempt:
    """A root with checkpoints, savepoints and orphans, some of them in quarantine where the command needs that."""

    def __init__(self, tree: Tree) -> None:
        self.name, self.tree = tree.name, tree
        self.directory = tree.directory / HERE
        self.root = self.directory / ROOT
        # At one place, because `_metadata` names files by absolute paths.
        shutil.rmtree(self.directory)
        shutil.copytree(tree.directory / BEFORE, self.directory)
        places = {
            "ROOT": str(self.root),
            "POLICY": str(self.directory / POLICY),
            "FINGERPRINT": tree.fingerprint,
            "SOURCE": str(self.root / SAVEPOINT.name),
            "TARGET": str(self.directory / RESULTS / "new"),
        }
        self.arguments = [places.get(each, each) for each in COMMANDS[tree.name].split()]

    def run(self, way: str | None = None, number: int = -1) -> Ended:
        """Run the command in a process of its own, and wait until that is gone."""
        child = self._start(way, number)
        if way == RANDOM:
            time.sleep(number / 1000)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        return self._end(child, status)

    def run_two(self, number: int) -> tuple[Ended, Ended | None]:
        """Run the command; before its call of a number it is stopped, and a second process runs it as a whole."""
        child = self._start(SECOND, number)
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return self._end(child, status), None
        second = self.run()
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
        return self._end(child, status), second

    def _start(self, way: str | None, number: int) -> int:
        child = os.fork()
        if not child:
            self._be_child(_make_rule(way, number))
        return child

    def _end(self, child: int, status: int) -> Ended:
        until = time.monotonic() + 60
        while is_there(child):
            if time.monotonic() > until:
                raise Finding("processes are left")
            time.sleep(0.01)
        calls, err = (Path(f"{self.directory}.{child}.{name}") for name in ("calls", "err"))
        count = int(calls.read_text()) if calls.exists() else 0
        text = err.read_text(errors="replace") if err.exists() else ""
        for each in (calls, err):
            each.unlink(missing_ok=True)
        return Ended(os.waitstatus_to_exitcode(status), text, count)

    def _be_child(self, rule: Callable[[int, bool], None]) -> None:
        code = 70
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # Beside the directory, whose calls are counted.
            file = os.open(f"{self.directory}.{os.getpid()}.err", os.O_CREAT | os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(file, stream)
            tempfile.tempdir = os.environ["TMPDIR"] = str(self.directory / TMP)
            heard = LocalCalls(self.directory, rule)
            heard.watch()
            try:
                run_command(list(self.arguments))
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                sys.setprofile(None)
            sys.stdout.flush()
            sys.stderr.flush()
            Path(f"{self.directory}.{os.getpid()}.calls").write_text(str(heard.count))
        finally:
            os._exit(code)

    def judge(self, ended: Ended, second: Ended | None, tally: Tally) -> None:
        """Judge what an attempt has left, and run the command until it is done."""
        outcome = _name_outcome(ended)
        tally.outcomes[outcome] += 1
        if second is not None:
            tally.seconds[_name_outcome(second)] += 1
        self._require_nothing_lost()
        log = self._read_log()
        self._require_true_log(log)
        finished = "finished" in (outcome, _name_outcome(second) if second is not None else "")
        if not (finished and self._is_done()):
            self._repeat(tally)
            self._require_nothing_lost()
            self._require_true_log(self._read_log())
        else:
            tally.again["not needed"] += 1
        _require(self._is_done(), f"not done: {self._compare()}")
        _require(not any((self.directory / TMP).iterdir()), "temporary files of this machine are left")
        if self.name not in ("restore", "move"):
            left = plan_root(self.directory)["delete"]
            _require(not left, f"a new plan names {[each['path'] for each in left]}")
        tally.pending += any(path.name.startswith(".") for path in (self.root / OWN).rglob("*"))

    def _repeat(self, tally: Tally) -> None:
        """Run the command again; where its error asks for that, with a new plan, or with what it says."""
        again = self.run()
        outcome = _name_outcome(again)
        if self.name == "move" and outcome == "refused":
            outcome = self._repeat_move(again)
        elif self.name == "restore" and "It was restored before" in again.err:
            outcome = "not needed"
        elif outcome == "told" and "the current plan is not" in again.err:
            planned = plan_root(self.directory)
            outcome = "new plan"
            if planned["delete"]:
                self.arguments[self.arguments.index("--apply") + 1] = planned["fingerprint"]
                again = self.run()
                _require(again.code == 0, f"a new plan cannot be applied: {again.err}")
        else:
            _require(outcome == "finished", f"it cannot be run again: {again.code} {again.err}")
        tally.again[outcome] += 1

    def _repeat_move(self, again: Ended) -> str:
        if "--discard-partial" in again.err:
            self.arguments.append("--discard-partial")
            again = self.run()
            _require(again.code == 0, f"it cannot be run again: {again.err}")
            return "discarded"
        _require((self.directory / RESULTS / "new/_metadata").exists(), f"it cannot be run again: {again.err}")
        # The new snapshot is complete. What is left of the old one goes as an orphan.
        (self.directory / POLICY).write_text("{}")
        left = self.root / SAVEPOINT.name
        planned = plan_root(self.directory, "--min-age", "0s")
        if planned["delete"]:
            self.arguments = ["retain", str(self.root), "--policy", str(self.directory / POLICY)]
            self.arguments += ["--min-age", "0s", "--apply", planned["fingerprint"]]
            done = self.run()
            _require(done.code == 0, f"the rest cannot be removed: {done.err}")
        if (left / "_metadata").exists():
            # It was killed before it removed anything.
            shutil.rmtree(left)
        return "remains removed"

    def _require_nothing_lost(self) -> None:
        """Everything that stays is as it was; what was to move is in one of two places."""
        made = self.tree
        now = read_files(self.root)
        for name in made.kept:
            _require(now.get(name) == made.before[name], f"lost or changed: {name}")
        for snapshot in made.snapshots:
            if not (self.name == "move" and snapshot == SAVEPOINT.name):
                _require_sound(self.root / snapshot)
        if self.name in ("apply to quarantine", "restore"):
            places = [name.split("/", 3)[3] if name.startswith(f"{OWN}/quarantine/") else name for name in now]
            found = Counter(name for name in places if not name.startswith(f"{OWN}/"))
            want = [name.split("/", 3)[3] if name.startswith(f"{OWN}/quarantine/") else name for name in made.before]
            for name in (each for each in want if not each.startswith(f"{OWN}/")):
                _require(found[name] == 1, f"{name} is in {found[name]} places")
        if self.name == "move":
            old, new = self.root / SAVEPOINT.name, self.directory / RESULTS / "new"
            whole = [each for each in (old, new) if (each / "_metadata").exists()]
            _require(bool(whole), "neither the old nor the new snapshot is there")
            for each in whole:
                _require(show(each) == made.shown, f"{each.name} holds something else")

    def _read_log(self) -> list[tuple[str, str]]:
        directory = self.root / OWN / "log"
        try:
            return [(str(each.outcome), each.path) for each in AuditLog(resolve(str(directory))).read()]
        except StateError as error:
            raise Finding(f"the audit log cannot be read: {error}") from error

    def _require_true_log(self, log: Sequence[tuple[str, str]]) -> None:
        """A path that is gone was intended to go, and one of which the log says that it is gone is not there."""
        if self.name == "move":
            return
        last = {path: outcome for outcome, path in log if outcome != DeletionOutcome.INTENDED}
        for path, outcome in last.items():
            if outcome in (DeletionOutcome.DELETED, DeletionOutcome.QUARANTINED):
                _require(
                    self.name == "restore" or not os.path.lexists(path), f"{path} is there, the log says {outcome}"
                )
            if outcome == DeletionOutcome.RESTORED:
                _require(os.path.lexists(path), f"{path} is not there, the log says {outcome}")
        known = {path for _, path in log}
        for name in self.tree.before:
            file = self.root / name
            if not name.startswith(f"{OWN}/") and not file.exists():
                _require(str(file) in known or self.name == "purge", f"{name} is gone without a word in the log")

    def _is_done(self) -> bool:
        return not self._compare()

    def _compare(self) -> list[str]:
        """The names of files that are there and should not, or the other way round."""
        now, want = _places(read_files(self.root)), self.tree.after
        return sorted(now ^ want)


@dataclass(frozen=True)
class Tree:
    """A root before a command, and after it was run undisturbed.

    Attributes:
        name: of the command.
        directory: holds the root as it is before the command, and that of an attempt.
        fingerprint: of the plan.
        before: content by name below the root.
        kept: the names of the files that stay as they are.
        snapshots: the names of the snapshots that stay.
        shown: entries of the snapshot that is moved.
        after: the names of the files afterwards, without those of the audit log.
        calls: number of calls of the command to the local disk.
        milliseconds: duration of the command.
    """

    name: str
    directory: Path
    fingerprint: str
    before: dict[str, bytes]
    kept: frozenset[str]
    snapshots: tuple[str, ...]
    shown: list[str]
    after: frozenset[str] = frozenset()
    calls: int = 0
    milliseconds: int = 0


def prepare(name: str, directory: Path) -> Tree:
    """Make the root of a command below a directory, and run the command once undisturbed."""
    here = directory / HERE
    root = here / ROOT
    for each in (root, here / RESULTS, here / TMP):
        each.mkdir(parents=True)
    (here / POLICY).write_text(RULES)
    job = install_job(root)
    install_savepoint(root)
    install_savepoint(root, NATIVE)
    if name != "move":
        # After a move its remains are all that goes.
        for orphan in (job / "shared" / UUIDS[0], job / "shared" / UUIDS[1], job / UNFINISHED / UUIDS[2]):
            put(orphan)
    planned = plan_root(here)
    going = {str(Path(each["path"]).relative_to(root)) for each in planned["delete"]}
    kept = frozenset(read_files(root)) - going
    snapshots = [str(Path(each["path"]).relative_to(root)) for each in planned["snapshots"] if not each["delete"]]
    shown: list[str] = []
    if name == "move":
        kept = frozenset(each for each in read_files(root) if not each.startswith(f"{SAVEPOINT.name}/"))
        snapshots = [each for each in snapshots if each != SAVEPOINT.name]
        shown = show(root / SAVEPOINT.name)
    if name in ("restore", "purge"):
        policy = ("--policy", str(here / POLICY))
        _run_here("retain", str(root), *policy, "--apply", planned["fingerprint"], "--quarantine")
    shutil.copytree(here, directory / BEFORE)
    tree = Tree(name, directory, planned["fingerprint"], read_files(root), kept, tuple(snapshots), shown)
    attempt = Attempt(tree)
    began = time.monotonic()
    ended = attempt.run()
    duration = int(1000 * (time.monotonic() - began))
    if ended.code:
        raise RuntimeError(f"{name} fails without a fault: {ended.err}")
    return replace(tree, after=_places(read_files(root)), calls=ended.calls, milliseconds=duration)


def plan_root(directory: Path, *more: str) -> dict[str, Any]:
    """The plan of the root below a directory, as JSON."""
    arguments = ["retain", str(directory / ROOT), "--policy", str(directory / POLICY), "--json", *more]
    found: dict[str, Any] = json.loads(_run_here(*arguments))
    return found


def _run_here(*arguments: str) -> str:
    output = StringIO()
    with redirect_stdout(output):
        try:
            run_command(list(arguments))
        except SystemExit as end:
            if end.code:
                raise Finding(f"{' '.join(arguments)}: exit code {end.code}: {output.getvalue()}") from None
    return output.getvalue()


def read_files(root: Path) -> dict[str, bytes]:
    """The files below a root by name."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _places(names: dict[str, bytes]) -> frozenset[str]:
    """Names of files without those of the audit log; in the quarantine without the time and the fingerprint."""
    found = (name for name in names if not name.startswith(f"{OWN}/log/"))
    return frozenset(
        f"{OWN}/quarantine/{name.split('/', 3)[3]}" if name.startswith(f"{OWN}/quarantine/") else name for name in found
    )


def _name_outcome(ended: Ended) -> str:
    lines = ended.err.strip().splitlines()
    if ended.code == -signal.SIGKILL:
        return "killed"
    outcome = {0: "finished", 1: "told", 2: "refused", 130: "interrupted"}.get(ended.code, "")
    _require(bool(outcome), f"exit code {ended.code}: {lines[-1:]}")
    _require("Traceback" not in ended.err, f"a traceback: {ended.err}")
    _require(ended.code != 2 or 1 <= len(lines) <= 4, f"{len(lines)} lines: {ended.err}")
    return outcome


def _require_sound(snapshot: Path) -> None:
    """Refuse a snapshot that `verify --depth whole` finds anything in that it did not find before."""
    report = audit_snapshot(sp.open_snapshot(str(snapshot)), "whole")
    errors = [each for each in report.findings if each.severity is Severity.ERROR]
    _require(not errors, f"{snapshot.name} is damaged: {errors[:1]}")


def show(snapshot: Path) -> list[str]:
    """All entries of a snapshot."""
    return sorted(map(str, dump(sp.open_snapshot(str(snapshot)))))


def _make_rule(way: str | None, number: int) -> Callable[[int, bool], None]:
    if way in WAYS:
        return WAYS[way](number)

    def rule(now: int, _: bool) -> None:
        if now != number:
            return
        if way == AFTER:
            sys.setprofile(_kill_outside)
        elif way == SECOND:
            os.kill(os.getpid(), signal.SIGSTOP)

    return rule


def _kill_outside(frame: FrameType, _event: str, _argument: object) -> None:
    """End the process at its first step after a call that was announced to the audit hook, which is then made."""
    if frame.f_code.co_filename not in (__file__, LocalCalls.watch.__code__.co_filename):
        os.kill(os.getpid(), signal.SIGKILL)


def fail_calls(tree: Tree, way: str, numbers: Sequence[int], tally: Tally) -> None:
    """Run a command once for each number of a call, which fails in some way, and judge what is left."""
    for number in numbers:
        try:
            attempt = Attempt(tree)
            ended, second = attempt.run_two(number) if way == SECOND else (attempt.run(way, number), None)
            attempt.judge(ended, second, tally)
        except Finding as finding:
            tally.findings.append(f"{tree.name}, {way}, call {number}: {finding}")


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise Finding(text)


def _choose(way: str, tree: Tree, points: int | None) -> list[int]:
    """Numbers of calls; of random moments the milliseconds."""
    if way == RANDOM:
        chance = random.Random(tree.calls)
        return [chance.randrange(1 + tree.milliseconds * 6 // 5) for _ in range(points or tree.calls)]
    number = min(points or tree.calls, tree.calls)
    return [(2 * each + 1) * tree.calls // (2 * number) for each in range(number)]


def main() -> int:
    """Run the commands that were asked for, and print what came of them; returns 1 where something was found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.robustness.killed_retention", description="Fail local calls."
    )
    parser.add_argument("--command", action="append", choices=COMMANDS, help="may be repeated; default: all")
    parser.add_argument("--way", action="append", choices=ALL_WAYS, help="may be repeated; default: all")
    parser.add_argument("--points", type=int, help="calls that fail in each way, spread over all; default: each")
    options = parser.parse_args()
    found = False
    for name in options.command or COMMANDS:
        tally = Tally()
        with tempfile.TemporaryDirectory() as directory:
            tree = prepare(name, Path(directory).resolve())
            for way in options.way or ALL_WAYS:
                fail_calls(tree, way, _choose(way, tree, options.points), tally)
        write(f"{name}: {tree.calls} calls, {tally.outcomes.total()} attempts, {dict(tally.outcomes)}")
        write(f"  again: {dict(tally.again)}; second: {dict(tally.seconds)}; pending: {tally.pending}")
        write(f"  {len(tally.findings)} findings")
        for finding in tally.findings:
            write(f"    {finding}")
        found |= bool(tally.findings)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
