"""Options of Flink that a job that runs here cannot honour; each is accepted at the one value that holds here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state_pipelines.checkpoints.option_values import (
    parse_bool,
    parse_float,
    parse_int,
    parse_memory_size,
    parse_millis,
    parse_text,
)
from state_pipelines.operations.jobs.flink_config import SAVEPOINTS, TTL

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class ForeignOption:
    """An option that has one value here.

    Attributes:
        keys: the key of Flink 2, then older ones.
        parse: parses a value.
        default: the only value that is accepted: Flink's default, but for the retention.
        reason: why no other one is possible.
    """

    keys: tuple[str, ...]
    parse: Callable[[Any, str], Any]
    default: Any
    reason: str


_UNALIGNED = "no barriers flow between tasks here, so that nothing is in flight and no checkpoint is unaligned"
_MERGING = "tasks write one file each, none of which is shared with others"
_NETWORK = "Spark moves the records, not Flink's network stack"
_FAILED_BASE = "a base that cannot be written fails its checkpoint, like any other file"
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
    ForeignOption(
        (_EXECUTION + "force",), parse_bool, False, "streams of iterations, for which it was, do not run here"
    ),
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
    _LOGS + "base-path": "changes lie beside the other shared files of execution.checkpointing.dir",
    _LOGS: "files of changes are written and read like all other files",
    **dict.fromkeys(SAVEPOINTS, "a savepoint goes where the call that takes it says (`savepoint`)"),
    "taskmanager.network.": _NETWORK,
    "taskmanager.memory.network.": _NETWORK,
}
"""Beginnings of keys without a default that could be accepted, with the reason."""
