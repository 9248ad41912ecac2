"""Flink's options of checkpoints and restores: keys, defaults, older keys, and those that are not possible here.

Source: `CheckpointingOptions`, `StateRecoveryOptions`, `StateBackendOptions`, `CheckpointConfig` of Flink 2.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from state_pipelines.backends.changelog_snapshots import ChangelogSettings
from state_pipelines.checkpoints.foreign_options import FOREIGN_OPTIONS, FOREIGN_PREFIXES
from state_pipelines.checkpoints.option_values import (
    parse_bool,
    parse_int,
    parse_memory_size,
    parse_millis,
    parse_text,
    parse_word,
)
from state_pipelines.errors import UsageError
from state_pipelines.operations.jobs.flink_config import CHECKPOINTS, INTERVAL, NUM_RETAINED, StateBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MIN_INTERVAL = 10
"""Shortest interval and timeout in milliseconds (`CheckpointCoordinatorConfiguration.MINIMAL_CHECKPOINT_TIME`)."""

MAX_INLINE_THRESHOLD = 1 << 20
"""Largest inline threshold in bytes (`FileSystemCheckpointStorage.MAX_FILE_STATE_THRESHOLD`)."""

BACKEND_PREFIXES = ("state.backend.rocksdb.",)
"""Beginnings of the options that belong to a state backend; `parse_options` leaves them alone."""


class CheckpointingMode(Enum):
    """The guarantee of a restore (`CheckpointingMode`); state here is exactly-once under both."""

    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


class ClaimMode(Enum):
    """The owner of the restored snapshot (`RecoveryClaimMode`)."""

    NO_CLAIM = "NO_CLAIM"
    """The user; none of its files is ever deleted or needed after the first checkpoint, which is full."""
    CLAIM = "CLAIM"
    """The job, which deletes it when a checkpoint subsumes it."""


@dataclass(frozen=True)
class CheckpointOptions:
    """Options of checkpoints, in the order of Flink's documentation; durations in milliseconds, sizes in bytes.

    Attributes:
        backend: the state backend.
        changelog: every change is logged, and a checkpoint uploads the changes since the last one.
        materialization: all state is uploaded again now and then, so that logs stay short.
        materialization_interval: time between that.
        log_compression: logs are compressed (snappy).
        interval: time between the checkpoints of a stream; None for none.
        timeout: time after which a checkpoint expires: its snapshots and its publication, not the processing of input.
        min_pause: shortest time between the end of a checkpoint of a stream and the next one.
        tolerable_failures: consecutive failures before the job fails.
        mode: the guarantee of a restore.
        num_retained: completed checkpoints that are kept.
        incremental: checkpoints reference unchanged files of earlier ones.
        compression: snapshots are compressed (snappy); RocksDB's own files are compressed anyway.
        inline_threshold: files smaller than this are inlined in `_metadata`.
        directory: directory of checkpoints.
        create_subdirectory: a directory by job id is made below `directory`.
        local_backup: workers keep copies of the files of their last checkpoints.
        local_directories: where, separated by commas or colons; None for the directory for temporary files.
        restore_path: snapshot to restore.
        claim_mode: its owner.
        allow_non_restored_state: state of operators that the job does not have is dropped.
        latency_tracking: accesses to keyed state are timed, and reported among the metrics of the function.
        latency_interval: every how many accesses one is timed.
        latency_history: values that a histogram of latencies keeps.
        latency_variable: the name of the state is the value of the variable `state_name`, not a group.
    """

    backend: StateBackend = StateBackend.HASHMAP
    changelog: bool = False
    materialization: bool = True
    materialization_interval: int = 600_000
    log_compression: bool = False
    interval: int | None = None
    timeout: int = 600_000
    min_pause: int = 0
    tolerable_failures: int = 0
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    num_retained: int = 1
    incremental: bool = False
    compression: bool = False
    inline_threshold: int = 20 << 10
    directory: str | None = None
    create_subdirectory: bool = True
    local_backup: bool = False
    local_directories: str | None = None
    restore_path: str | None = None
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    allow_non_restored_state: bool = False
    latency_tracking: bool = False
    latency_interval: int = 100
    latency_history: int = 128
    latency_variable: bool = True

    def __post_init__(self) -> None:
        """Refuse values out of bounds; no interval is shorter than the pause."""
        if self.interval is not None:
            self._require("interval", self.interval >= MIN_INTERVAL, f"at least {MIN_INTERVAL} ms")
        self._require("materialization_interval", self.materialization_interval > 0, "longer than 0")
        self._require("timeout", self.timeout >= MIN_INTERVAL, f"at least {MIN_INTERVAL} ms")
        self._require("min_pause", self.min_pause >= 0, "not negative")
        self._require("tolerable_failures", self.tolerable_failures >= 0, "not negative")
        self._require("latency_interval", self.latency_interval >= 1, "at least 1")
        self._require("latency_history", self.latency_history >= 1, "at least 1")
        self._require("num_retained", self.num_retained >= 1, "at least 1")
        self._require("inline_threshold", 0 <= self.inline_threshold <= MAX_INLINE_THRESHOLD, "at most 1 mb")
        # As the coordinator of Flink does.
        if self.interval is not None and self.interval < self.min_pause:
            object.__setattr__(self, "interval", self.min_pause)

    @property
    def changelog_settings(self) -> ChangelogSettings | None:
        """Settings of the changelog; None without."""
        if not self.changelog:
            return None
        interval = timedelta(milliseconds=self.materialization_interval) if self.materialization else None
        return ChangelogSettings(interval, self.log_compression, self.compression)

    def _require(self, name: str, holds: bool, bound: str) -> None:
        if not holds:
            key = next((each.keys[0] for each in OPTIONS if each.name == name), name)
            raise UsageError(f"{key} is {getattr(self, name)}", hint=f"It must be {bound}")


@dataclass(frozen=True)
class Option:
    """One option of Flink.

    Attributes:
        name: field of `CheckpointOptions`.
        keys: the key of Flink 2, then older ones.
        parse: parses a value; gets value and key.
    """

    name: str
    keys: tuple[str, ...]
    parse: Callable[[Any, str], Any]


_EXECUTION, _RECOVERY = "execution.checkpointing.", "execution.state-recovery."
_CHANGELOG = "state.changelog."
_LATENCY, _OLD_LATENCY = "state.latency-track.", "state.backend.latency-track."
_OLD_BACKENDS = {"filesystem": StateBackend.HASHMAP, "jobmanager": StateBackend.HASHMAP}


def _parse_backend(value: Any, key: str) -> StateBackend:
    name = str(value).strip().lower()
    if name in _OLD_BACKENDS:
        _warn(
            f"{key}: {name} is an old value: the backend is {_OLD_BACKENDS[name]}, checkpoints go to {CHECKPOINTS[0]}"
        )
        return _OLD_BACKENDS[name]
    if name not in tuple(StateBackend):
        hint = f"Choose {' or '.join(StateBackend)}"
        raise UsageError(f"{key} is {value!r}, a backend that does not run here", hint=hint)
    return StateBackend(name)


def _parse_claim_mode(value: Any, key: str) -> ClaimMode:
    if str(value).strip().upper() == "LEGACY":
        raise UsageError(
            f"{key} is LEGACY, under which no side owns the restored snapshot; Flink 2 has removed it",
            hint="Choose CLAIM or NO_CLAIM",
        )
    return parse_word(ClaimMode)(value, key)


OPTIONS: tuple[Option, ...] = (
    Option("backend", ("state.backend.type", "state.backend"), _parse_backend),
    Option("changelog", ("state.changelog.enabled", "state.backend.changelog.enabled"), parse_bool),
    Option("materialization", (_CHANGELOG + "periodic-materialize.enabled",), parse_bool),
    Option(
        "materialization_interval",
        (_CHANGELOG + "periodic-materialize.interval", "state.backend.changelog.periodic-materialize.interval"),
        parse_millis,
    ),
    Option(
        "log_compression", (_CHANGELOG + "dstl.dfs.compression.enabled", "dstl.dfs.compression.enabled"), parse_bool
    ),
    Option("interval", INTERVAL, parse_millis),
    Option("timeout", (_EXECUTION + "timeout",), parse_millis),
    Option("min_pause", (_EXECUTION + "min-pause",), parse_millis),
    Option("tolerable_failures", (_EXECUTION + "tolerable-failed-checkpoints",), parse_int),
    Option("mode", (_EXECUTION + "mode",), parse_word(CheckpointingMode)),
    Option("num_retained", NUM_RETAINED, parse_int),
    Option("incremental", (_EXECUTION + "incremental", "state.backend.incremental"), parse_bool),
    Option("compression", (_EXECUTION + "snapshot-compression",), parse_bool),
    Option(
        "inline_threshold",
        (
            _EXECUTION + "data-inline-threshold",
            "state.storage.fs.memory-threshold",
            "state.backend.fs.memory-threshold",
        ),
        parse_memory_size,
    ),
    Option("directory", (*CHECKPOINTS, "state.backend.fs.checkpointdir"), parse_text),
    Option("create_subdirectory", (_EXECUTION + "create-subdir", "state.checkpoints.create-subdir"), parse_bool),
    Option(
        "local_backup",
        (_EXECUTION + "local-backup.enabled", _RECOVERY + "from-local", "state.backend.local-recovery"),
        parse_bool,
    ),
    Option("local_directories", (_EXECUTION + "local-backup.dirs", "taskmanager.state.local.root-dirs"), parse_text),
    Option("restore_path", (_RECOVERY + "path", "execution.savepoint.path"), parse_text),
    Option("claim_mode", (_RECOVERY + "claim-mode", "execution.savepoint-restore-mode"), _parse_claim_mode),
    Option(
        "allow_non_restored_state",
        (_RECOVERY + "ignore-unclaimed-state", "execution.savepoint.ignore-unclaimed-state"),
        parse_bool,
    ),
    Option("latency_tracking", (_LATENCY + "keyed-state-enabled", _OLD_LATENCY + "keyed-state-enabled"), parse_bool),
    Option("latency_interval", (_LATENCY + "sample-interval", _OLD_LATENCY + "sample-interval"), parse_int),
    Option("latency_history", (_LATENCY + "history-size", _OLD_LATENCY + "history-size"), parse_int),
    Option(
        "latency_variable", (_LATENCY + "state-name-as-variable", _OLD_LATENCY + "state-name-as-variable"), parse_bool
    ),
)
"""Options that mean something here."""

# `execution.state-recovery.from-local` is a fall-back of the newer key, not an old name.
_NOT_DEPRECATED = frozenset({_RECOVERY + "from-local"})


def parse_options(options: Mapping[str, Any]) -> CheckpointOptions:
    """Parse Flink's options by their keys.

    Options of state backends (`BACKEND_PREFIXES`) are not looked at. An option that has one value here is accepted at
    that.

    Args:
        options: values by key, of today or an older one; a key of today wins.

    Returns:
        All options, those that are not named at Flink's default.

    Raises:
        UsageError: a key is not known, a value is not of the type of its option or out of bounds, or it is not possible
            here.

    Warns:
        FutureWarning: an older key or value is used.
    """
    left = {key: value for key, value in options.items() if value is not None and not key.startswith(BACKEND_PREFIXES)}
    found: dict[str, Any] = {}
    for option in OPTIONS:
        named = [key for key in option.keys if key in left]
        for key in named:
            if key != option.keys[0] and key not in _NOT_DEPRECATED:
                _warn(f"{key} is an old key of {option.keys[0]}")
        values = [option.parse(left.pop(key), key) for key in named]
        if values:
            found[option.name] = values[0]
    for key, value in left.items():
        _require_default(key, value)
    return CheckpointOptions(**found)


def _require_default(key: str, value: Any) -> None:
    option = next((each for each in FOREIGN_OPTIONS if key in each.keys), None)
    if option is None:
        known = next((reason for prefix, reason in FOREIGN_PREFIXES.items() if key.startswith(prefix)), None)
        if known is not None:
            raise UsageError(f"{key} means nothing here: {known}", hint="Leave it out")
        raise UsageError(
            f"{key} is not an option of checkpoints", hint="Check the spelling; docs/checkpoints.md lists them"
        )
    if key != option.keys[0]:
        _warn(f"{key} is an old key of {option.keys[0]}")
    if option.parse(value, key) == option.default:
        return
    accepted = str(option.default).lower() if isinstance(option.default, bool) else option.default
    raise UsageError(
        f"{key} is {value!r}, which is not possible here: {option.reason}",
        hint=f"Leave it out, or set it to {accepted}",
    )


def _warn(text: str) -> None:
    warnings.warn(text, FutureWarning, stacklevel=4)
