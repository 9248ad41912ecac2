"""Writers of snapshots, on a storage of which any request fails in any way."""

from __future__ import annotations

import errno
import gc
import io
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

import state_pipelines as sp
from benchmarks.generate import OPERATOR, generate
from benchmarks.shapes import Shape
from state_pipelines.errors import StateError, TargetExistsError
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.operations.bootstrap.bootstrap import plan_bootstrap
from state_pipelines.operations.bootstrap.parquet_rows import ParquetRows, load_bootstrap
from state_pipelines.operations.dump import dump
from state_pipelines.operations.local_processes import run_tasks
from state_pipelines.operations.rescale import MergeRequest, RescaleRequest
from state_pipelines.operations.rescale.snapshot_merge import MergeRule
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.spark.record_encoding import StateWriter
from state_pipelines.storage import METADATA_FILE, Location, exists, join, list_files, locations, resolve
from state_pipelines.storage.snapshot_writer import discard_partial, find_snapshots
from tests.storages import CountedFileSystem, Fault, LostRequest, LostResponse, empty_counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.snapshot import Snapshot

    Rule = Callable[[int, str, str], Fault | None]

TARGET = "/results/new"
DESCRIPTION = """
operators:
  - uid: customers
    key: String
    parallelism: 2
    states:
      - {name: total, rows: "counted:///job/rows.parquet", type: Long}
"""


class HttpFault(Exception):
    """As clients raise one for a response that is an error."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered {status}")
        self.status = status


class FlexibleChecksumError(Exception):
    """Named as the error of botocore for a body that does not have its checksum."""


class IncompleteRead(Exception):
    """Named as the error of urllib3 for a body that is too short."""


class Killed(BaseException):
    """The process ends here: nothing that it does from now on reaches the storage."""


def write_totals(source: Snapshot, target: str) -> None:
    """Write one state over the snapshot, in this process: as a task of Spark, and its driver."""
    operator = next(each for each in source.operators if each.keyed_states)
    state = operator.keyed_states[0]
    table = pa.Table.from_batches(list(state.batches(TableOptions())))
    options = {"path": target, "base": source.path, "operatorId": operator.label, "stateVarName": state.name}
    writer = StateWriter(options, StructType(), overwrite=False)
    message = None
    try:
        message = writer.write(iter(table.to_batches()))
        writer.commit([message])
    except BaseException:
        writer.abort([message])
        raise


def erase_key(source: Snapshot, target: str) -> None:
    """Erase one key."""
    result = sp.erase(source, [first_key()], target)
    assert result is not None


def bootstrap(_: Snapshot, target: str) -> None:
    """Write a savepoint out of a Parquet file, as the command does."""
    with TemporaryDirectory() as directory:
        file = Path(directory, "new.yaml")
        file.write_text(DESCRIPTION)
        plan = plan_bootstrap(resolve(target), load_bootstrap(str(file)).operators, ParquetRows(run_tasks))
    with SnapshotTransaction(plan.target) as transaction:
        plan.run(transaction)


def merge(source: Snapshot, target: str) -> None:
    """Merge the snapshot with another one."""
    sp.rescale(
        source,
        target,
        RescaleRequest(merge=MergeRequest(snapshots=("counted:///job/other",), on_equal=MergeRule.FIRST)),
    )


WRITERS: dict[str, Callable[[Snapshot, str], object]] = {
    "convert": lambda source, target: sp.convert(source, target, "keep"),
    "convert to heap": lambda source, target: sp.convert(source, target, "heap"),
    "convert to RocksDB": lambda source, target: sp.convert(source, target, "rocksdb"),
    "rescale": lambda source, target: sp.rescale(source, target, parallelism=3),
    "rescale key groups": lambda source, target: sp.rescale(source, target, max_parallelism=64),
    "rescale with scratch": lambda source, target: sp.rescale(
        source, target, max_parallelism=64, prove=False, scratch="counted://scratch"
    ),
    "merge": merge,
    "erase": erase_key,
    "write through Spark": write_totals,
    "bootstrap": bootstrap,
}
"""By name: writes a new snapshot from one, to a URL."""


@cache
def generated() -> dict[str, bytes]:
    """The files of two small canonical snapshots of two subtasks; the second one has a few keys more."""
    with TemporaryDirectory() as directory:
        for name, keys in (("savepoint", 60), ("other", 70)):
            generate(f"{directory}/{name}", keys, Shape(states=("value", "list", "timers")))
        return {
            str(path.relative_to(directory)): path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()
        }


@cache
def make_rows() -> bytes:
    """A Parquet file of keys and values."""
    file = io.BytesIO()
    table = pa.table({"state_key": [f"customer-{each}" for each in range(40)], "value": list(range(40))})
    pq.write_table(table, file)
    return file.getvalue()


@cache
def first_key() -> str:
    """A key of the snapshot."""
    put_snapshot()
    return str(next(line["key"] for line in dump(sp.open_snapshot("counted:///job/savepoint")) if "key" in line))


def put_snapshot() -> tuple[Snapshot, Location]:
    """The input of the writers on the storage, the snapshot opened, and a target."""
    root = empty_counted()
    for name, content in generated().items():
        root.filesystem.pipe_file(f"/job/{name}", content)
    root.filesystem.pipe_file("/job/rows.parquet", make_rows())
    snapshot = sp.open_snapshot("counted:///job/savepoint", uids=[OPERATOR])
    CountedFileSystem.requests.clear()
    return snapshot, Location(root.filesystem, TARGET)


@cache
def run_undisturbed(writer: str) -> tuple[int, list[str]]:
    """The number of requests of a writer, and what the result holds."""
    first_key()
    snapshot, target = put_snapshot()
    WRITERS[writer](snapshot, target.url)
    return len(CountedFileSystem.requests), show(target)


def show(target: Location) -> list[str]:
    """All entries of a snapshot."""
    CountedFileSystem.rule = None
    return sorted(map(str, dump(sp.open_snapshot(target.url, uids=[OPERATOR]))))


@contextmanager
def without_waits() -> Iterator[None]:
    """Requests are repeated at once, and the faults of this module are those of a client."""
    kinds = tuple((__name__, kind.__name__) for kind in (HttpFault, FlexibleChecksumError, IncompleteRead))
    try:
        with patch.object(locations, "_FIRST_WAIT", 0.0), patch.object(locations, "_CLIENT_ERRORS", kinds):
            yield
    finally:
        CountedFileSystem.rule = None


def once(fault: Fault) -> Callable[[int], Rule]:
    """Makes the rule by which one request fails."""
    return lambda number: lambda at, *_: fault if at == number else None


def onwards(fault: Fault, after: Fault | None = None) -> Callable[[int], Rule]:
    """Makes the rule by which all requests from one on fail; `after`: how the first of them fails."""
    return lambda number: lambda at, *_: (after or fault) if at == number else fault if at > number else None


def delay(number: int) -> Rule:
    """The rule by which one request is slow, so that others overtake it."""

    def wait(at: int, *_: str) -> None:
        if at == number:
            time.sleep(0.02)

    return wait


@dataclass(frozen=True)
class Way:
    """A way in which a request fails.

    Attributes:
        rule: makes the rule of the storage for the number of a request.
        repeats: the request is sent again, so that nothing comes of the fault.
        unsaid: the storage says that it has stored what it has not; where that is the mark of the writer, it takes the
            target for one of another writer, and leaves it as it is.
        dead: the storage does nothing more for the writer, so that it cannot clear up.
    """

    rule: Callable[[int], Rule]
    repeats: bool = False
    unsaid: bool = False
    dead: bool = False


_FULL = OSError(errno.ENOSPC, "No space left on device")

WAYS: dict[str, Way] = {
    "500": Way(once(HttpFault(500)), repeats=True),
    "503": Way(once(HttpFault(503)), repeats=True),
    "reset": Way(once(ConnectionResetError("reset by peer")), repeats=True),
    "timeout": Way(once(TimeoutError("timed out")), repeats=True),
    "truncated body": Way(once(IncompleteRead("5 bytes read, 9 more expected")), repeats=True),
    "wrong checksum": Way(once(FlexibleChecksumError("expected checksum a, got b")), repeats=True),
    "lost response": Way(once(LostResponse(TimeoutError("timed out"))), repeats=True),
    "slow": Way(delay, repeats=True),
    "refused": Way(once(PermissionError("access denied"))),
    "refused after it was done": Way(once(LostResponse(PermissionError("the token has expired")))),
    "full": Way(once(_FULL)),
    "full from then on": Way(onwards(_FULL), dead=True),
    "503 from then on": Way(onwards(HttpFault(503)), dead=True),
    "interrupt": Way(once(KeyboardInterrupt())),
    "interrupt after it was done": Way(once(LostResponse(KeyboardInterrupt()))),
    "kill": Way(onwards(Killed()), dead=True),
    "kill after it was done": Way(onwards(Killed(), LostResponse(Killed())), dead=True),
    "lost PUT": Way(once(LostRequest()), unsaid=True),
    "half a PUT": Way(once(LostRequest(0.5)), unsaid=True),
}
"""By name."""


@dataclass
class Tally:
    """Outcome of the faults of one writer.

    Attributes:
        outcomes: number of attempts by how they ended: `finished`, `refused`, `interrupted`, `killed`, `not noticed`.
        reruns: number of attempts after which the same command was run again, by what it needed.
        findings: what must not be, each with the way and the number of the request.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    reruns: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


def fail_requests(writer: str, way: str, numbers: range, tally: Tally) -> None:
    """Run a writer once for each number of a request, which fails in some way, and judge what is left."""
    for number in numbers:
        with without_waits(), TemporaryDirectory() as scratch, patch.object(tempfile, "tempdir", scratch):
            try:
                _attempt(writer, WAYS[way], number, Path(scratch), tally)
            except Finding as finding:
                tally.findings.append(f"{writer}, {way}, request {number}: {finding}")


class Finding(Exception):
    """Something that must not be."""


def _attempt(writer: str, way: Way, number: int, scratch: Path, tally: Tally) -> None:
    _, expected = run_undisturbed(writer)
    snapshot, target = put_snapshot()
    before = _digest_input(target)
    CountedFileSystem.rule = staticmethod(way.rule(number))
    ended, error = _run(writer, snapshot, target)
    CountedFileSystem.rule = None
    _require(_digest_input(target) == before, "the input is not as it was")
    _require([*scratch.iterdir()] == [], "temporary files are left on this machine")
    complete = exists(join(target, METADATA_FILE))
    _require(ended == "finished" or not way.repeats, f"it was not tried again: {error!r}")
    if isinstance(error, StateError):
        lines = [*str(error).splitlines(), *getattr(error, "__notes__", ())]
        _require(1 <= len(lines) <= 4, f"the message has {len(lines)} lines: {error}")
    if complete and way.unsaid and _is_refused(target, expected):
        ended = "not noticed"
    elif complete:
        _require(show(target) == expected, "the new snapshot holds something else")
    elif ended == "finished":
        _require(way.unsaid, "it is said to be done, and is not")
        ended = "not noticed"
    tally.outcomes[ended] += 1
    if complete:
        return
    _require_no_snapshot(target)
    if not (way.dead or way.unsaid) and exists(target):
        left = [each.location.path for each in list_files(target)]
        # Clearing up is a request as well: where it fails, files stay, and the error says so.
        _require(not left or bool(getattr(error, "__notes__", ())) or _is_removal(number), f"left: {left}")
    tally.reruns[_run_again(writer, target, expected)] += 1


def _run(writer: str, snapshot: Snapshot, target: Location) -> tuple[str, BaseException | None]:
    try:
        WRITERS[writer](snapshot, target.url)
    except StateError as error:
        return "refused", error
    except KeyboardInterrupt as error:
        return "interrupted", error
    except Killed as error:
        return "killed", error
    except Exception as error:
        raise Finding(f"{type(error).__name__}: {error}") from error
    return "finished", None


def _digest_input(target: Location) -> str:
    store = target.filesystem.store
    digest = sha256()
    for name in sorted(each for each in store if each.startswith("/job/")):
        digest.update(name.encode() + store[name].getvalue())
    return digest.hexdigest()


def _is_removal(number: int) -> bool:
    return CountedFileSystem.requests[number][0] in ("remove all", "list")


def _is_refused(target: Location, expected: list[str]) -> bool:
    try:
        return show(target) != expected
    except StateError:
        return True


def _require_no_snapshot(target: Location) -> None:
    root = Location(target.filesystem, "/results")
    listed = [each.location for each in find_snapshots(root)] if exists(root) else []
    _require(listed == [], f"a listing shows {listed}")
    try:
        sp.open_snapshot(target.url)
    except StateError:
        return
    raise Finding("the target opens")


def _run_again(writer: str, target: Location, expected: list[str]) -> str:
    """Run the same command again, as its error says; what that needed."""
    needed = "nothing"
    snapshot = sp.open_snapshot("counted:///job/savepoint", uids=[OPERATOR])
    _, error = _run(writer, snapshot, target)
    if isinstance(error, TargetExistsError):
        needed = "--discard-partial"
        _require(needed in str(error), f"the error does not say what to do: {error}")
        _require(discard_partial(target) > 0, "nothing was removed")
        _, error = _run(writer, snapshot, target)
    _require(error is None, f"it cannot be run again: {error}")
    _require(show(target) == expected, "the second run gives something else")
    return needed


@cache
def _unlock_properties() -> None:
    """Take the locks from cached properties, which Python 3.11 has one of for all objects of a class.

    The second writer runs inside of a request of the first, where it would wait for the first. As processes, they have
    locks of their own.
    """
    for each in gc.get_objects():
        if isinstance(each, cached_property) and hasattr(each, "lock"):
            each.lock = nullcontext()


def race(writer: str, numbers: range, tally: Tally) -> None:
    """Run a writer as a whole before one request of another one to the same target: at most one may finish."""
    _, expected = run_undisturbed(writer)
    _unlock_properties()
    for number in numbers:
        snapshot, target = put_snapshot()
        second: list[tuple[str, BaseException | None]] = []

        def intrude(
            at: int,
            *_: str,
            number: int = number,
            target: Location = target,
            second: list[tuple[str, BaseException | None]] = second,
        ) -> None:
            if at == number:
                other = sp.open_snapshot("counted:///job/savepoint", uids=[OPERATOR])
                second.append(_run(writer, other, target))

        with without_waits():
            CountedFileSystem.rule = staticmethod(intrude)
            try:
                ended = [_run(writer, snapshot, target)]
                CountedFileSystem.rule = None
                ended += second
                for how, error in ended:
                    _require(how == "finished" or isinstance(error, TargetExistsError), f"{error!r}")
                won = [how for how, _ in ended].count("finished")
                _require(won == 1, f"{won} of two writers to one target finish")
                _require(show(target) == expected, "the new snapshot holds something else")
                _require(sp.verify(target.url).restorable, "verify finds a fault")
                tally.outcomes["finished"] += 1
            except Finding as finding:
                tally.findings.append(f"{writer}, second writer at request {number}: {finding}")


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise Finding(text)
