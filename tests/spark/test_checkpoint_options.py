"""Each option of the table of checkpoints on a run: honoured, at its default, or refused before anything runs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.backends.rocksdb_store import FIXED
from state_pipelines.checkpoints.coordinator import EXCEEDED_MESSAGE, Clock
from state_pipelines.checkpoints.options import FOREIGN_OPTIONS, FOREIGN_PREFIXES, OPTIONS
from state_pipelines.datastream import CheckpointedFunction
from state_pipelines.errors import IncompatibleError, StateError, UnsupportedError, UsageError
from state_pipelines.operations.inspect import inspect
from state_pipelines.spark import micro_batches
from state_pipelines.spark.keyed_step import KeyedStep
from state_pipelines.spark.micro_batches import keyed_batches
from tests.checkpoints.tasks import Hands
from tests.spark.test_keyed_changelog import list_shared_files
from tests.spark.test_keyed_process import UID, CountClicks, clicks, expect, list_tables, read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.operations.inspect import KeyedFormatReport
    from state_pipelines.spark import KeyedProcessResult

CHECKPOINTING, RECOVERY = "execution.checkpointing.", "execution.state-recovery."
LATENCY, CHANGELOG = "state.latency-track.", "state.changelog."


class Decline(CountClicks, CheckpointedFunction):
    """Takes no snapshot for some times, over all attempts of a run."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder, self.times = folder, times

    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        number = len([*self.folder.iterdir()])
        if number < self.times:
            (self.folder / str(number)).touch()
            raise OSError("no space left")


def read_format(result: KeyedProcessResult) -> KeyedFormatReport:
    assert result.snapshot is not None
    (operator,) = inspect(result.snapshot.path).operators
    (found,) = operator.keyed_formats
    return found


def fail(run: Callable[[], object]) -> StateError:
    with pytest.raises(StateError) as caught:
        run()
    return caught.value


class Runs:
    """Runs of one function; `seen` has what each option has changed, by its name."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        schema = "user string, page string, at long"
        self.one = spark.createDataFrame(clicks(0, 60), schema).repartition(1)
        self.two = spark.createDataFrame(clicks(60, 90), schema).repartition(1)
        self.folder, self.seen = folder, {}
        saved = self.save()
        self.run_on_heap()
        self.run_on_rocksdb()
        self.run_with_changelog(saved)
        self.run_as_stream()

    seen: dict[str, object]

    def run(self, df: DataFrame, options: Mapping[str, Any], **others: Any) -> KeyedProcessResult:
        arguments: dict[str, Any] = {"key": "user", "function": CountClicks(), "uid": UID, "parallelism": 1}
        return KeyedStep(**(arguments | others), options=options).run(df)

    def make(self, name: str) -> Path:
        (self.folder / name).mkdir()
        return self.folder / name

    def save(self) -> KeyedProcessResult:
        """Take a savepoint, and start another operator from it."""
        saved = self.run(self.one, {}, savepoint=str(self.folder / "savepoints"))
        other: dict[str, Any] = {"from_snapshot": saved.snapshot, "uid": "other"}
        assert isinstance(fail(lambda: self.run(self.two, {}, **other)), IncompatibleError)
        dropped = self.run(self.two, {RECOVERY + "ignore-unclaimed-state": True}, **other)
        self.seen["allow_non_restored_state"] = dropped.snapshot is None
        assert read_format(saved).compression == "none"
        return saved

    def run_on_heap(self) -> None:
        """The third attempt succeeds; another run tolerates one failure, and a third one takes too long."""
        hands = Hands()
        options: dict[str, Any] = {
            "state.backend.type": "hashmap",
            CHECKPOINTING + "dir": str(self.folder / "checkpoints"),
            CHECKPOINTING + "create-subdir": False,
            CHECKPOINTING + "num-retained": 2,
            CHECKPOINTING + "mode": "AT_LEAST_ONCE",
            CHECKPOINTING + "interval": "1 h",
            CHECKPOINTING + "tolerable-failed-checkpoints": 2,
            CHECKPOINTING + "snapshot-compression": True,
            CHECKPOINTING + "data-inline-threshold": 0,
            LATENCY + "keyed-state-enabled": True,
            LATENCY + "sample-interval": 1,
            LATENCY + "history-size": 1,
            LATENCY + "state-name-as-variable": False,
        }
        function = Decline(self.make("declines"), 2)
        first = self.run(self.one, options, function=function, clock=Clock(wait=hands.waits.append))
        assert first.snapshot is not None
        path = Path(first.snapshot.path)
        latency = next(each for each in first.metrics if each.name == "count.valueStateUpdateLatency")
        error = fail(
            lambda: self.run(
                self.one,
                {CHECKPOINTING + "tolerable-failed-checkpoints": 1},
                checkpoint=str(self.folder / "exceeded"),
                function=Decline(self.make("more declines"), 9),
            )
        )
        # Whoever looks at this clock finds that a minute has passed.
        expired = fail(
            lambda: self.run(
                self.one,
                {CHECKPOINTING + "timeout": "1 min"},
                checkpoint=str(self.folder / "expired"),
                clock=Clock(read=Hands(step=60_000).read),
            )
        )
        self.seen |= {
            "directory": path.parent == self.folder / "checkpoints",
            "create_subdirectory": path.name == "chk-1",
            "mode": read_state(first, "count") == expect(0, 60)[0],
            "tolerable_failures": (
                [each.reason.name for each in first.failures] == ["CHECKPOINT_DECLINED"] * 2
                and error.what.startswith(f"{EXCEEDED_MESSAGE} Checkpoint was declined. OSError: no space left")
                and error.details["reason"] == "CHECKPOINT_DECLINED"
                and len([*self.folder.glob("more declines/*")]) == 2
            ),
            # Between the attempts of a run.
            "interval": len(hands.waits) == 2 and all(hands.waits),
            "timeout": (
                expired.details["reason"] == "CHECKPOINT_EXPIRED"
                and not [*self.folder.glob("expired/*/chk-*"), *self.folder.glob("exceeded/*/chk-*")]
            ),
            "compression": read_format(first).compression == "snappy",
            "inline_threshold": len([*path.iterdir()]) > len(["_metadata", "manifest"]),
            "latency_tracking": latency.kind == "histogram",
            "latency_interval": latency.numbers["count"] == 60,
            # All quantiles are those of the last one.
            "latency_history": len({each for name, each in latency.numbers.items() if name.startswith("p")}) == 1,
            "latency_variable": "state_name" not in latency.name,
        }
        self.first = first

    def run_on_rocksdb(self) -> None:
        """Two runs go on from the last one, and reference its tables."""
        assert self.first.snapshot is not None
        options: dict[str, Any] = {
            "state.backend.type": "rocksdb",
            CHECKPOINTING + "dir": str(self.folder / "checkpoints"),
            CHECKPOINTING + "create-subdir": False,
            CHECKPOINTING + "num-retained": 2,
            CHECKPOINTING + "incremental": True,
            CHECKPOINTING + "local-backup.enabled": True,
            CHECKPOINTING + "local-backup.dirs": str(self.folder / "kept"),
        }
        second = self.run(self.two, options | {RECOVERY + "path": self.first.snapshot.path})
        assert second.snapshot is not None
        tables = list_tables(second)
        self.seen["restore_path"] = read_state(second, "count") == expect(0, 90)[0]
        self.seen["backend"] = read_format(second).format == "RocksDB incremental"
        third = self.run(self.two, options | {RECOVERY + "path": second.snapshot.path})
        self.seen["incremental"] = bool(tables & list_tables(third))
        retained = sorted(path.name for path in self.folder.glob("checkpoints/chk-*"))
        self.seen["num_retained"] = retained == ["chk-2", "chk-3"]
        backups = [path.name for path in self.folder.glob("kept/*/*/*/chk-*")]
        self.seen |= {"local_backup": "chk-3" in backups, "local_directories": "chk-3" in backups}

    def run_with_changelog(self, saved: KeyedProcessResult) -> None:
        """The savepoint is claimed; an old base is kept where none is replaced, and is replaced after the interval."""
        assert saved.snapshot is not None
        common = {CHANGELOG + "enabled": True, CHANGELOG + "dstl.dfs.compression.enabled": True}
        interval, last = CHANGELOG + "periodic-materialize.", saved.snapshot
        bases: list[set[str]] = []
        logs: list[set[str]] = []
        compressions: list[str] = []
        for options in (
            {RECOVERY + "claim-mode": "CLAIM"},
            {interval + "enabled": False, interval + "interval": "30 min"},
            {interval + "interval": "30 min"},
        ):
            # The age of a base is that of its files.
            for path in self.folder.glob("logged/*/shared/*"):
                os.utime(path, (path.stat().st_mtime - 3600,) * 2)
            result = self.run(self.two, common | options, checkpoint=str(self.folder / "logged"), from_snapshot=last)
            assert result.snapshot is not None
            last = result.snapshot
            found = list_shared_files(result)
            bases.append(found[0])
            logs.append(found[1])
            compressions.append(read_format(result).change_compression)
        self.seen |= {
            "claim_mode": not [*self.folder.glob("savepoints/*/_metadata")],
            "changelog": [bool(each) for each in logs] == [False, True, False],
            "materialization": bases[1] == bases[0],
            "materialization_interval": not bases[2] & bases[1],
            "log_compression": compressions[1] == "snappy",
        }

    def run_as_stream(self) -> None:
        """The second batch waits for the pause after the first."""
        hands = Hands()
        postponed: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(micro_batches, "SYSTEM_CLOCK", hands.clock)
            process = keyed_batches(
                key="user",
                function=CountClicks(),
                uid=UID,
                parallelism=1,
                checkpoints=str(self.folder / "stream"),
                job_id="ab" * 16,
                options={CHECKPOINTING + "min-pause": "1 h"},
                on_checkpoint=lambda result: postponed.append(result.postponed),
            )
        process(self.one, 0)
        process(self.two, 1)
        self.seen["min_pause"] = postponed == [0, 3_600_000] and hands.waits == [3_600_000]


@pytest.fixture(scope="module")
def runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(spark, tmp_path_factory.mktemp("options"))


def test_every_option_of_the_table_has_its_effect_on_a_run(runs: Runs) -> None:
    assert runs.seen.keys() == {each.name for each in OPTIONS}
    assert [name for name, holds in runs.seen.items() if not holds] == []


def step(options: Mapping[str, Any]) -> KeyedStep:
    return KeyedStep(key="user", function=CountClicks(), uid=UID, options=options, checkpoint="/nowhere")


def stream(options: Mapping[str, Any]) -> object:
    return keyed_batches(key="user", function=CountClicks(), uid=UID, options=options, checkpoints="/nowhere")


# These have no default that could be accepted; a prefix is tried with an option below it.
UNKNOWN = [f"{each}x" if each.endswith(".") else each for each in FOREIGN_PREFIXES]
NOTHING: Any = object()
"""No rows: a run that looks at them ends in an `AttributeError`, not a refusal."""


@pytest.mark.parametrize("key", [key for each in FOREIGN_OPTIONS for key in each.keys[:1]] + UNKNOWN)
def test_what_is_not_possible_is_refused_before_anything_runs(key: str) -> None:
    option = next((each for each in FOREIGN_OPTIONS if key in each.keys), None)
    value: Any = "jobmanager"
    if option is not None and not isinstance(option.default, str):
        value = not option.default if isinstance(option.default, bool) else 7
    with pytest.raises(UsageError, match=re.escape(key)) as refused_run:
        step({key: value}).run(NOTHING)
    with pytest.raises(UsageError, match=re.escape(key)) as refused_stream:
        stream({key: value})
    for caught in (refused_run, refused_stream):
        assert option is None or option.reason in caught.value.what
    if option is not None:
        # At its default nothing is refused: the run gets as far as its rows.
        with pytest.raises(AttributeError):
            step({key: option.default}).run(NOTHING)
        stream({key: option.default})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({CHECKPOINTING + "min-pause": "1 h"}, "takes a single checkpoint"),
        ({"execution.checkpointing.timeuot": 3}, "Check the spelling"),
        *(({f"state.backend.rocksdb.{name}": "no"}, name) for name in ("localdirs", *FIXED)),
    ],
)
def test_a_run_refuses_what_it_cannot_do(options: dict[str, Any], message: str) -> None:
    options = {"state.backend.type": "rocksdb"} | options
    with pytest.raises((UsageError, UnsupportedError), match=re.escape(message)):
        step(options).run(NOTHING)
    if message != "takes a single checkpoint":
        with pytest.raises((UsageError, UnsupportedError), match=re.escape(message)):
            stream(options)
