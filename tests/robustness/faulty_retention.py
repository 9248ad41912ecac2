"""Retention, on a storage of which any request fails in any way: nothing is lost, and the next application finishes.

python -m tests.robustness.faulty_retention
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, IncompatibleError, StateError
from state_pipelines.operations.retention import ApplyLimits, apply_plan, plan_retention
from tests.operations.retention.trees import JOB, UUIDS, install_job, put
from tests.robustness.__main__ import write
from tests.robustness.faulty_writers import WAYS, Killed, without_waits
from tests.storages import CountedFileSystem, empty_counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.operations.retention import RetentionPlan

ROOT = "counted:///roots"
POLICY = {"checkpoints": {"last": 1}}
LATER = datetime.now(UTC) + timedelta(days=30)
FAST = ApplyLimits(paths_per_second=1e9, batch=3)
LOG = "/roots/_retention/"


@dataclass
class Tally:
    """Outcome of the faults.

    Attributes:
        outcomes: number of attempts by how they ended.
        moved: number of attempts after which the audit log was damaged, and had to be moved away.
        findings: what must not be, each with the way and the number of the request.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    moved: int = 0
    findings: list[str] = field(default_factory=list)


@cache
def _make_files() -> dict[str, bytes]:
    """Checkpoints of a job, one of which a policy deletes, and orphans."""
    with TemporaryDirectory() as directory:
        job = install_job(Path(directory), url=ROOT)
        put(job / "shared" / UUIDS[0])
        put(job / "chk-1" / UUIDS[1])
        return {f"/roots/{JOB}/{path.relative_to(job)}": path.read_bytes() for path in job.rglob("*") if path.is_file()}


def _put_files() -> RetentionPlan:
    root = empty_counted()
    for name, content in _make_files().items():
        root.filesystem.pipe_file(name, content)
    planned = _plan()
    CountedFileSystem.requests.clear()
    return planned


def _plan() -> RetentionPlan:
    return plan_retention(ROOT, POLICY, now=lambda: LATER)


def _apply(fingerprint: str) -> tuple[str, BaseException | None]:
    try:
        result = apply_plan(ROOT, POLICY, fingerprint=fingerprint, limits=FAST, now=lambda: LATER)
    except StateError as error:
        return "refused", error
    except KeyboardInterrupt as error:
        return "interrupted", error
    except Killed as error:
        return "killed", error
    return ("finished" if result.finished and not result.failed else "told"), None


def _files() -> dict[str, bytes]:
    store = CountedFileSystem.store
    return {name: file.getvalue() for name, file in store.items() if not name.startswith(LOG)}


def _drop_log() -> None:
    for name in [each for each in CountedFileSystem.store if each.startswith(LOG)]:
        del CountedFileSystem.store[name]


@cache
def run_undisturbed() -> tuple[int, frozenset[str]]:
    """The number of requests of an application, and the names of the files that stay."""
    planned = _put_files()
    assert planned.delete
    ended, error = _apply(planned.fingerprint)
    assert ended == "finished", error
    left = frozenset(_files())
    assert 0 < len(left) < len(_make_files()) - 2
    return len(CountedFileSystem.requests), left


def fail_requests(way: str, numbers: Iterable[int], tally: Tally) -> None:
    """Apply a plan once for each number of a request, which fails in some way, and judge what is left."""
    _, kept = run_undisturbed()
    for number in numbers:
        with without_waits(), TemporaryDirectory() as scratch:
            before, tempfile.tempdir = tempfile.tempdir, scratch
            try:
                problem = _attempt(way, number, kept, tally)
            finally:
                tempfile.tempdir = before
        if problem:
            tally.findings.append(f"{way}, request {number}: {problem}")


def _attempt(way: str, number: int, kept: frozenset[str], tally: Tally) -> str:
    planned = _put_files()
    CountedFileSystem.rule = staticmethod(WAYS[way].rule(number))
    ended, error = _apply(planned.fingerprint)
    CountedFileSystem.rule = None
    tally.outcomes[ended] += 1
    left = _files()
    if not kept <= left.keys():
        return f"lost: {sorted(kept - left.keys())}"
    if any(left[name] != content for name, content in _make_files().items() if name in left):
        return "a file has changed"
    if isinstance(error, StateError) and not 1 <= len(str(error).splitlines()) <= 4:
        return f"the message is too long: {error}"
    ended, error = _apply(planned.fingerprint)
    if WAYS[way].unsaid and isinstance(error, FormatError) and "out of the audit log" in str(error):
        # The storage has confirmed a file of the log that it does not have as a whole.
        _drop_log()
        tally.moved += 1
        ended, error = _apply(_plan().fingerprint)
    if isinstance(error, IncompatibleError):
        # The plan was applied, or what is left is another plan: it is made again, as the error says.
        again = _plan()
        ended, error = _apply(again.fingerprint) if again.delete else ("finished", None)
    if ended != "finished":
        return f"it cannot be run again: {ended} {error!r}"
    still = sorted([*set(_files()) - kept, *(each.path for each in _plan().delete)])
    return f"not deleted: {still}" if still else ""


def main() -> int:
    """Fail every request in every way, and print what came of it; returns 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.faulty_retention", description="Fail requests.")
    parser.add_argument("--way", action="append", choices=WAYS, help="may be repeated; default: all")
    parser.add_argument("--every", type=int, default=1, help="of so many requests one fails; default: each")
    options = parser.parse_args()
    count, _ = run_undisturbed()
    tally = Tally()
    for number, way in enumerate(options.way or WAYS):
        fail_requests(way, range(number % options.every, count, options.every), tally)
        write(f"{way}: {count} requests, {tally.outcomes.total()} attempts, {dict(tally.outcomes)}")
    for finding in tally.findings:
        write(f"  {finding}")
    write(f"{tally.moved} logs moved away, {len(tally.findings)} findings")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
