"""Flink's options of checkpoints and restores: keys, defaults, older keys, and those that are not possible here.

Source: `CheckpointingOptions`, `StateRecoveryOptions`, `StateBackendOptions`, `CheckpointConfig` of Flink 2.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from state_pipelines.backends.changelog import ChangelogSettings
from state_pipelines.errors import UsageError
from state_pipelines.operations.jobs.flink_config import (
    CHECKPOINTS,
    INTERVAL,
    NUM_RETAINED,
    SAVEPOINTS,
    TTL,
    StateBackend,
    parse_duration,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SIZE = re.compile(r"(\d+)\s*([a-z]*)", re.IGNORECASE)
# `MemorySize.MemoryUnit`: a number alone counts bytes; all units are binary.
_SIZE_UNITS = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kibibytes"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mebibytes"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gibibytes"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tebibytes"), 1 << 40),
}
_MAX_LONG = (1 << 63) - 1

_AnyEnum = TypeVar("_AnyEnum", bound="Enum")


def parse_millis(value: Any, key: str) -> int:
    """Parse a duration, which may be a `timedelta` already, to whole milliseconds.

    Raises:
        UsageError: the value is not a duration.
    """
    length = value if isinstance(value, timedelta) else parse_duration(value, key)
    return length // timedelta(milliseconds=1)


def parse_memory_size(value: Any, key: str) -> int:
    """Parse a memory size, such as `20kb` or `32 MB`, to bytes (`MemorySize.parseBytes`).

    Raises:
        UsageError: the value is not a memory size, or does not fit in 64 bits.
    """
    match = _SIZE.fullmatch(str(value).strip())
    unit = match and _SIZE_UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise UsageError(f"{key} is {value!r}, not a memory size", hint="Write a memory size, such as 20kb or 1 mb")
    size = int(match[1]) * unit
    if size > _MAX_LONG:
        raise UsageError(f"{key} is {value!r}, which does not fit in 64 bits")
    return size


def parse_bool(value: Any, key: str) -> bool:
    """Parse `true` or `false`, in any case.

    Raises:
        UsageError: the value is neither.
    """
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise UsageError(f"{key} is {value!r}, not a boolean", hint="Write true or false")
    return text == "true"


def parse_int(value: Any, key: str) -> int:
    """Parse a whole number.

    Raises:
        UsageError: the value is not a whole number.
    """
    text = str(value).strip()
    if isinstance(value, bool) or re.fullmatch(r"-?\d+", text) is None:
        raise UsageError(f"{key} is {value!r}, not a whole number", hint="Write a whole number")
    return int(text)


def parse_float(value: Any, key: str) -> float:
    """Parse a number.

    Raises:
        UsageError: the value is not a number.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{key} is {value!r}, not a number", hint="Write a number") from None


def parse_text(value: Any, key: str) -> str:
    """Parse a text that is not empty.

    Raises:
        UsageError: it is empty.
    """
    text = str(value).strip()
    if not text:
        raise UsageError(f"{key} is empty")
    return text


def parse_word(kind: type[_AnyEnum]) -> Callable[[Any, str], _AnyEnum]:
    """Make a parser for names of the members of an enumeration, in any case and with `-` for `_`, as in Flink."""

    def parse(value: Any, key: str) -> _AnyEnum:
        if isinstance(value, kind):
            return value
        name = str(value).strip().upper().replace("-", "_")
        if name not in kind.__members__:
            raise UsageError(
                f"{key} is {value!r}, an unknown value", hint=f"Write one of {', '.join(kind.__members__)}"
            )
        return kind[name]

    return parse


@dataclass(frozen=True)
class ForeignOption:
    """An option of Flink for which this package accepts one value only.

    Attributes:
        keys: the key of Flink 2, then older ones.
        parse: parses a value.
        default: the only value that is accepted: Flink's default, except for the retention.
        reason: why no other one is possible.
    """

    keys: tuple[str, ...]
    parse: Callable[[Any, str], Any]
    default: Any
    reason: str


_UNALIGNED = "no barriers flow between tasks here, so that nothing is in flight and no checkpoint is unaligned"
_MERGING = "tasks write one file each, none of which is shared with others"
_NETWORK = "Spark moves the records, not Flink's network stack"
_FAILED_BASE = "a materialization that cannot be written fails its checkpoint, like any other file"
_UPLOADED_AT_ONCE = "changes are kept in memory and uploaded once, with the checkpoint"
_TRACKING = "sizes of keys and values are measured in snapshots (`inspect --profile`), not at each access"
_ONE_AT_A_TIME = "a run takes one checkpoint, and the batches of a stream follow each other"
_RETENTION = (
    "the next run goes on from the checkpoint of the last one, so that none is deleted when a run ends, fails or is "
    "cancelled; num-retained says how many stay"
)
_EXECUTION = "execution.checkpointing."
_LOGS = "state.changelog.dstl.dfs."


def _parse_retention(value: Any, key: str) -> str:
    return parse_text(value, key).upper().replace("-", "_")


FOREIGN_OPTIONS: tuple[ForeignOption, ...] = (
    ForeignOption((_EXECUTION + "max-concurrent-checkpoints",), parse_int, 1, _ONE_AT_A_TIME),
    ForeignOption(
        (_EXECUTION + "externalized-checkpoint-retention",), _parse_retention, "RETAIN_ON_CANCELLATION", _RETENTION
    ),
    ForeignOption(
        (_EXECUTION + "checkpoints-after-tasks-finish", _EXECUTION + "checkpoints-after-tasks-finish.enabled"),
        parse_bool,
        True,
        "a task takes its snapshot before it ends, so that none has finished before a checkpoint",
    ),
    ForeignOption((_EXECUTION + "unaligned.enabled", _EXECUTION + "unaligned"), parse_bool, False, _UNALIGNED),
    ForeignOption((_EXECUTION + "unaligned.forced",), parse_bool, False, _UNALIGNED),
    ForeignOption((_EXECUTION + "unaligned.interruptible-timers.enabled",), parse_bool, False, _UNALIGNED),
    ForeignOption((_EXECUTION + "unaligned.max-subtasks-per-channel-state-file",), parse_int, 5, _UNALIGNED),
    ForeignOption(
        (_EXECUTION + "aligned-checkpoint-timeout", _EXECUTION + "alignment-timeout"), parse_millis, 0, _UNALIGNED
    ),
    ForeignOption((_EXECUTION + "force",), parse_bool, False, "it is for streaming iterations, which do not run here"),
    ForeignOption(
        ("execution.state-recovery.without-channel-state.checkpoint-id",),
        parse_int,
        -1,
        "checkpoints hold no channel state here",
    ),
    ForeignOption(
        (_EXECUTION + "storage", "state.checkpoint-storage"),
        parse_text,
        "filesystem",
        "there is no JobManager whose memory could hold checkpoints; they go to execution.checkpointing.dir",
    ),
    ForeignOption(
        (_EXECUTION + "cleaner.parallel-mode", "state.checkpoint.cleaner.parallel-mode"),
        parse_bool,
        True,
        "files are always deleted in parallel where the storage is remote",
    ),
    ForeignOption(
        (
            _EXECUTION + "write-buffer-size",
            "state.storage.fs.write-buffer-size",
            "state.backend.fs.write-buffer-size",
        ),
        parse_int,
        4096,
        "files are written in chunks of the storage's own size",
    ),
    ForeignOption(
        TTL,
        parse_millis,
        0,
        "no SQL runs here; the state of a function expires as its descriptor says (StateTtlConfig)",
    ),
    ForeignOption(("state.backend.async",), parse_bool, True, "snapshots are always asynchronous, in Flink too"),
    ForeignOption((_EXECUTION + "file-merging.enabled",), parse_bool, False, _MERGING),
    ForeignOption((_EXECUTION + "file-merging.across-checkpoint-boundary",), parse_bool, False, _MERGING),
    ForeignOption((_EXECUTION + "file-merging.max-file-size",), parse_memory_size, 32 << 20, _MERGING),
    ForeignOption((_EXECUTION + "file-merging.pool-blocking",), parse_bool, False, _MERGING),
    ForeignOption((_EXECUTION + "file-merging.max-subtasks-per-file",), parse_int, 4, _MERGING),
    ForeignOption((_EXECUTION + "file-merging.max-space-amplification",), parse_float, 2.0, _MERGING),
    ForeignOption(
        ("state.changelog.storage", "state.backend.changelog.storage"),
        parse_text,
        "filesystem",
        "changes in the memory of the JobManager are for tests of Flink, and there is no JobManager",
    ),
    ForeignOption(
        ("state.changelog.max-failures-allowed", "state.backend.changelog.max-failures-allowed"),
        parse_int,
        3,
        _FAILED_BASE,
    ),
    ForeignOption((_LOGS + "preemptive-persist-threshold",), parse_memory_size, 5 << 20, _UPLOADED_AT_ONCE),
    ForeignOption((_LOGS + "batch.persist-delay",), parse_millis, 10, _UPLOADED_AT_ONCE),
    ForeignOption((_LOGS + "batch.persist-size-threshold",), parse_memory_size, 10 << 20, _UPLOADED_AT_ONCE),
    ForeignOption(("state.size-track.keyed-state-enabled",), parse_bool, False, _TRACKING),
    ForeignOption(("state.size-track.sample-interval",), parse_int, 100, _TRACKING),
    ForeignOption(("state.size-track.history-size",), parse_int, 128, _TRACKING),
    ForeignOption(("state.size-track.state-name-as-variable",), parse_bool, True, _TRACKING),
    ForeignOption(("taskmanager.memory.network.fraction",), parse_float, 0.1, _NETWORK),
    ForeignOption(("taskmanager.memory.network.min",), parse_memory_size, 64 << 20, _NETWORK),
    ForeignOption(("taskmanager.network.memory.buffer-debloat.enabled",), parse_bool, False, _NETWORK),
    ForeignOption(("taskmanager.network.memory.buffers-per-channel",), parse_int, 2, _NETWORK),
    ForeignOption(("taskmanager.network.memory.floating-buffers-per-gate",), parse_int, 8, _NETWORK),
)
"""Options that are accepted at one value."""

FOREIGN_PREFIXES = {
    "state.backend.forst.": "ForSt does not run here, with its tables in the storage of checkpoints",
    _EXECUTION + "interval-during-backlog": "no source reports a backlog",
    _LOGS + "base-path": "changes are written next to the other shared files in execution.checkpointing.dir",
    _LOGS: "files of changes are written and read like all other files",
    **dict.fromkeys(SAVEPOINTS, "a savepoint goes where the call that takes it says (`savepoint`)"),
    "taskmanager.network.": _NETWORK,
    "taskmanager.memory.network.": _NETWORK,
}
"""Beginnings of keys that are refused with any value, with the reason."""

MIN_INTERVAL = 10
"""Shortest interval and timeout in milliseconds (`CheckpointCoordinatorConfiguration.MINIMAL_CHECKPOINT_TIME`)."""

MAX_INLINE_THRESHOLD = 1 << 20
"""Largest inline threshold in bytes (`FileSystemCheckpointStorage.MAX_FILE_STATE_THRESHOLD`)."""

BACKEND_PREFIXES = ("state.backend.rocksdb.",)
"""Beginnings of the options that belong to a state backend; `parse_options` leaves them alone."""


class CheckpointingMode(Enum):
    """The guarantee of a restore (`CheckpointingMode`); state here is exactly-once in both modes."""

    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


class ClaimMode(Enum):
    """The owner of the restored snapshot (`RecoveryClaimMode`)."""

    NO_CLAIM = "NO_CLAIM"
    """The user owns the snapshot: its files are never deleted, and not needed after the first checkpoint, which is
    full."""
    CLAIM = "CLAIM"
    """The job owns the snapshot, and deletes it when a checkpoint subsumes it."""


@dataclass(frozen=True)
class CheckpointOptions:
    """Options of checkpoints, in the order of Flink's documentation; durations in milliseconds, sizes in bytes.

    Attributes:
        backend: the state backend.
        changelog: every change is logged, and a checkpoint uploads the changes since the last one.
        materialization: all state is uploaded again now and then, so that logs stay short.
        materialization_interval: time between two such uploads.
        log_compression: logs are compressed (snappy).
        interval: time between the checkpoints of a stream; None for none.
        timeout: time after which a checkpoint expires: its snapshots and its publication, not the processing of input.
        min_pause: shortest time between the end of a checkpoint of a stream and the next one.
        tolerable_failures: consecutive failures before the job fails.
        mode: the guarantee of a restore.
        num_retained: completed checkpoints that are kept.
        incremental: checkpoints reference unchanged files of earlier ones.
        compression: snapshots are compressed (snappy); RocksDB's own files are compressed anyway.
        inline_threshold: files up to this size are inlined in `_metadata`.
        directory: directory of checkpoints.
        create_subdirectory: a directory by job id is made below `directory`.
        local_backup: workers keep copies of the files of their last checkpoints.
        local_directories: directories of these copies, separated by commas or colons; None for the temporary directory.
        restore_path: snapshot to restore.
        claim_mode: who owns that snapshot.
        allow_non_restored_state: state of operators that the job does not have is dropped.
        latency_tracking: accesses to keyed state are timed, and reported among the metrics of the function.
        latency_interval: one access in this many is timed.
        latency_history: number of latencies that a histogram keeps.
        latency_variable: metrics have the state name as the value of the variable `state_name`, not as a metric group.
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
        """Refuse values out of bounds, and raise an interval below `min_pause` to it."""
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
        # Raise the interval to `min_pause`, as Flink's `CheckpointCoordinator` does.
        if self.interval is not None and self.interval < self.min_pause:
            object.__setattr__(self, "interval", self.min_pause)

    @property
    def changelog_settings(self) -> ChangelogSettings | None:
        """Settings of the changelog; None if it is off."""
        if not self.changelog:
            return None
        interval = timedelta(milliseconds=self.materialization_interval) if self.materialization else None
        return ChangelogSettings(interval, self.log_compression, self.compression)

    def _require(self, name: str, holds: bool, bound: str) -> None:
        if not holds:
            key = next((each.keys[0] for each in OPTIONS if each.name == name), name)
            raise UsageError(f"{key} is {getattr(self, name)}", hint=f"It must be {bound}")


@dataclass(frozen=True)
class CheckpointOption:
    """An option of Flink's configuration.

    Attributes:
        name: field of `CheckpointOptions`.
        keys: the key of Flink 2, then older ones.
        parse: parses a value; called with value and key.
    """

    name: str
    keys: tuple[str, ...]
    parse: Callable[[Any, str], Any]


_OPTIONS_EXECUTION, _RECOVERY = "execution.checkpointing.", "execution.state-recovery."
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
            f"{key} is LEGACY, which does not say who owns the restored snapshot; Flink 2 has removed it",
            hint="Choose CLAIM or NO_CLAIM",
        )
    return parse_word(ClaimMode)(value, key)


OPTIONS: tuple[CheckpointOption, ...] = (
    CheckpointOption("backend", ("state.backend.type", "state.backend"), _parse_backend),
    CheckpointOption("changelog", ("state.changelog.enabled", "state.backend.changelog.enabled"), parse_bool),
    CheckpointOption("materialization", (_CHANGELOG + "periodic-materialize.enabled",), parse_bool),
    CheckpointOption(
        "materialization_interval",
        (_CHANGELOG + "periodic-materialize.interval", "state.backend.changelog.periodic-materialize.interval"),
        parse_millis,
    ),
    CheckpointOption(
        "log_compression", (_CHANGELOG + "dstl.dfs.compression.enabled", "dstl.dfs.compression.enabled"), parse_bool
    ),
    CheckpointOption("interval", INTERVAL, parse_millis),
    CheckpointOption("timeout", (_OPTIONS_EXECUTION + "timeout",), parse_millis),
    CheckpointOption("min_pause", (_OPTIONS_EXECUTION + "min-pause",), parse_millis),
    CheckpointOption("tolerable_failures", (_OPTIONS_EXECUTION + "tolerable-failed-checkpoints",), parse_int),
    CheckpointOption("mode", (_OPTIONS_EXECUTION + "mode",), parse_word(CheckpointingMode)),
    CheckpointOption("num_retained", NUM_RETAINED, parse_int),
    CheckpointOption("incremental", (_OPTIONS_EXECUTION + "incremental", "state.backend.incremental"), parse_bool),
    CheckpointOption("compression", (_OPTIONS_EXECUTION + "snapshot-compression",), parse_bool),
    CheckpointOption(
        "inline_threshold",
        (
            _OPTIONS_EXECUTION + "data-inline-threshold",
            "state.storage.fs.memory-threshold",
            "state.backend.fs.memory-threshold",
        ),
        parse_memory_size,
    ),
    CheckpointOption("directory", (*CHECKPOINTS, "state.backend.fs.checkpointdir"), parse_text),
    CheckpointOption(
        "create_subdirectory", (_OPTIONS_EXECUTION + "create-subdir", "state.checkpoints.create-subdir"), parse_bool
    ),
    CheckpointOption(
        "local_backup",
        (_OPTIONS_EXECUTION + "local-backup.enabled", _RECOVERY + "from-local", "state.backend.local-recovery"),
        parse_bool,
    ),
    CheckpointOption(
        "local_directories", (_OPTIONS_EXECUTION + "local-backup.dirs", "taskmanager.state.local.root-dirs"), parse_text
    ),
    CheckpointOption("restore_path", (_RECOVERY + "path", "execution.savepoint.path"), parse_text),
    CheckpointOption("claim_mode", (_RECOVERY + "claim-mode", "execution.savepoint-restore-mode"), _parse_claim_mode),
    CheckpointOption(
        "allow_non_restored_state",
        (_RECOVERY + "ignore-unclaimed-state", "execution.savepoint.ignore-unclaimed-state"),
        parse_bool,
    ),
    CheckpointOption(
        "latency_tracking", (_LATENCY + "keyed-state-enabled", _OLD_LATENCY + "keyed-state-enabled"), parse_bool
    ),
    CheckpointOption("latency_interval", (_LATENCY + "sample-interval", _OLD_LATENCY + "sample-interval"), parse_int),
    CheckpointOption("latency_history", (_LATENCY + "history-size", _OLD_LATENCY + "history-size"), parse_int),
    CheckpointOption(
        "latency_variable", (_LATENCY + "state-name-as-variable", _OLD_LATENCY + "state-name-as-variable"), parse_bool
    ),
)
"""Options that mean something here."""

# Flink still reads `execution.state-recovery.from-local` as a fallback of the newer key: it is not deprecated.
_NOT_DEPRECATED = frozenset({_RECOVERY + "from-local"})


def parse_options(options: Mapping[str, Any]) -> CheckpointOptions:
    """Parse Flink's options by their keys.

    Options of state backends (`BACKEND_PREFIXES`) are ignored. `FOREIGN_OPTIONS` are accepted with their only possible
    value.

    Args:
        options: values by current or older key; the current key wins.

    Returns:
        All options; those that are not given have Flink's default.

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
            raise UsageError(f"{key} has no effect here: {known}", hint="Leave it out")
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
