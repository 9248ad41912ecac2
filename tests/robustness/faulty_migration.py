"""The driver of `migrate`, whose calls to the local disk fail one after the other.

python -m tests.robustness.faulty_migration --points 20
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import tempfile
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from state_pipelines.errors import StateError, TargetExistsError
from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import Direction, load_migration, parse_migration
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import create_session, migrate
from state_pipelines.storage import METADATA_FILE, resolve
from state_pipelines.storage.resolution import find_scratch_target
from state_pipelines.storage.snapshot_writer import discard_partial
from tests.flink.harness import ORDERS
from tests.robustness.__main__ import write
from tests.robustness.local_calls import LocalCalls
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

MIGRATION = ORDERS / "migrations" / "0001_amount_as_double.yaml"
FILTER = """
revision: "2"
operator: orders
state: history
upgrade: [filter: {keep: length(value) > 3, reason: "none is shorter"}]
downgrade: {impossible: "not asked"}
"""
"""A change that Spark computes, so that it needs temporary files; `MIGRATION` needs none."""


class Killed(BaseException):
    """The process ends here: nothing that it does from now on reaches the disk."""


WAYS: dict[str, tuple[Callable[[], BaseException], bool]] = {
    "full": (lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), False),
    "full from then on": (lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), True),
    "refused": (lambda: PermissionError(errno.EACCES, os.strerror(errno.EACCES)), False),
    "broken": (lambda: OSError(errno.EIO, os.strerror(errno.EIO)), False),
    "interrupt": (KeyboardInterrupt, False),
    "kill": (Killed, True),
}
"""By name: makes what the call raises, and whether all later ones do too. A full disk can be read."""


class FaultyMigration:
    """A migration whose calls to the local disk fail; only those of the driver.

    Args:
        spark: the session.
        directory: an empty directory.

    Attributes:
        count: number of the calls.
        removal: number of the call that removes the temporary files.
        outcomes: number of attempts by how they ended.
        discarded: number of attempts after which `--discard-partial` was needed.
        scratch: number of attempts after which temporary files were left.
        findings: what must not be, each with the way and the number of the call.
    """

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.outcomes: Counter[str] = Counter()
        self.discarded = self.scratch = 0
        self.findings: list[str] = []
        self._spark = spark
        self._chain = [
            (load_migration(MIGRATION), Direction.UPGRADE),
            (parse_migration(yaml.safe_load(FILTER)), Direction.UPGRADE),
        ]
        self._directory = directory.resolve()
        self._rule: Callable[[int, bool], None] = _pass
        self._calls = LocalCalls(self._directory, lambda number, grows: self._rule(number, grows))
        self._calls.watch()
        error = self._run(self._directory / "sound")
        assert error is None, error
        self.count = self._calls.count
        # Tasks make the temporary files; the driver only removes them.
        self.removal = next(number for number, name in enumerate(self._calls.names) if find_scratch_target(name))
        self._expected = _show(self._directory / "sound")
        self._input = _digest(orders().path)

    def fail(self, way: str, numbers: Sequence[int]) -> None:
        """Migrate once for each number of a call, which fails in some way, and judge what is left."""
        for number in numbers:
            with tempfile.TemporaryDirectory(dir=self._directory) as directory:
                try:
                    self._attempt(way, number, Path(directory) / "new")
                except AssertionError as finding:
                    self.findings.append(f"{way}, call {number}: {finding}")

    def _run(self, target: Path) -> BaseException | None:
        self._calls.count = 0
        try:
            migrate(orders().open(), self._chain, str(target), spark=self._spark)
        except (StateError, KeyboardInterrupt, Killed) as error:
            return error
        finally:
            self._rule = _pass
        return None

    def _attempt(self, way: str, number: int, target: Path) -> None:
        make_fault, onwards = WAYS[way]

        def rule(now: int, grows: bool) -> None:
            if (now == number or (onwards and now > number)) and (grows or not way.startswith("full")):
                raise make_fault()

        self._rule = rule
        error = self._run(target)
        assert _digest(orders().path) == self._input, "the input is not as it was"
        complete = (target / METADATA_FILE).exists()
        self.outcomes["finished" if error is None else "refused" if isinstance(error, StateError) else "ended"] += 1
        if isinstance(error, StateError):
            lines = [*str(error).splitlines(), *getattr(error, "__notes__", ())]
            assert 1 <= len(lines) <= 4, f"the message has {len(lines)} lines: {error}"
        assert complete or error is not None, "it is said to be done, and is not"
        # Nothing of the end of a process that was killed runs: `retain` removes its temporary files later. So it does
        # where the call that fails is the one that removes them; the error names them then.
        said = "" if error is None else str(error) + "".join(getattr(error, "__notes__", ()))
        if not complete:
            left = sorted(path.name for path in target.parent.iterdir())
            assert way == "kill" or all(name in said for name in left), f"left: {left}"
            again = self._run(target)
            if isinstance(again, TargetExistsError) and "--discard-partial" in str(again):
                self.discarded += 1
                discard_partial(resolve(str(target)))
                again = self._run(target)
            assert again is None, f"it cannot be run again: {again!r}"
        assert _show(target) == self._expected, "the new snapshot holds something else"
        rest = {path.name for path in target.parent.iterdir()} - {"new"}
        scratch = {name for name in rest if find_scratch_target(name) == "new"}
        assert rest == scratch, f"left after the second run: {rest}"
        assert way == "kill" or all(name in said for name in scratch), f"temporary files are left: {scratch}"
        self.scratch += bool(scratch)


def _pass(_: int, __: bool) -> None:
    pass


def _show(target: Path) -> list[str]:
    return sorted(map(str, dump(open_snapshot(str(target), uids=orders().uids))))


def _digest(directory: Path) -> str:
    digest = sha256()
    for file in sorted(each for each in directory.rglob("*") if each.is_file()):
        digest.update(str(file).encode() + file.read_bytes())
    return digest.hexdigest()


def spread(points: int, count: int) -> list[int]:
    """Return so many numbers, spread over all below a count."""
    return [(2 * each + 1) * count // (2 * points) for each in range(min(points, count))]


def main() -> int:
    """Fail the calls, and print what came of them; returns 1 where something was found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.robustness.faulty_migration", description="Fail local calls."
    )
    parser.add_argument("--way", action="append", choices=WAYS, help="may be repeated; default: all")
    parser.add_argument("--points", type=int, help="calls that fail in each way, spread over all; default: each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        migration = FaultyMigration(create_session("faults"), Path(directory))
        for way in options.way or WAYS:
            before = migration.outcomes.copy()
            migration.fail(way, spread(options.points or migration.count, migration.count))
            write(f"{way}: {migration.count} calls, {dict(migration.outcomes - before)}")
        for finding in migration.findings:
            write(f"  {finding}")
        numbers = f"{migration.discarded} discarded, {migration.scratch} with temporary files left"
        write(f"{migration.outcomes.total()} attempts, {numbers}, {len(migration.findings)} findings")
        return 1 if migration.findings else 0


if __name__ == "__main__":
    sys.exit(main())
