"""Committers of sinks: committables that are waiting, by checkpoint.

Facts from `org.apache.flink.streaming.runtime.operators.sink.committables`: `CommittableCollectorSerializer`
(version 2; checkpoints version 0 and 1, subtasks 0 to 2, requests 0), `SinkV1CommittableDeserializer` (version 1, the
state of 1.13 and 1.14), `CommitRequestState`; the state name is that of `CommitterOperator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_pipelines.binary.data_views import Writer
from state_pipelines.connectors import file_sink, kafka
from state_pipelines.connectors.registry import (
    ConnectorStateKind,
    Versioned,
    expect_magic,
    read_versioned,
    read_versioned_list,
    require,
    versioned_state,
    write_magic,
    write_versioned,
    write_versioned_list,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.binary.data_views import Reader
    from state_pipelines.connectors.registry import Row

MAGIC = 0xB91F252C
STATE_NAME = "streaming_committer_raw_states"
STATES = ("RECEIVED", "RETRY", "FAILED", "COMMITTED")

HEAD_COLUMNS = pa.schema(
    [
        pa.field("checkpoint_id", pa.int64()),
        pa.field("subtask", pa.int32()),
        pa.field("retries", pa.int32()),
        pa.field("commit_state", pa.string()),
    ]
)
"""Columns before those of the committable; null if an old version does not store them."""

OPAQUE_COLUMNS = pa.schema(
    [
        pa.field("committable_version", pa.int32(), False),
        pa.field("committable", pa.binary(), False),
    ]
)


@dataclass(frozen=True)
class CommitRequest:
    """A committable and how far its commit is.

    Attributes:
        committable: as its connector decodes it.
        retries: how often it was tried again.
        state: one of `STATES`.
    """

    committable: object
    retries: int = 0
    state: str = "RECEIVED"


@dataclass(frozen=True)
class SubtaskCommittables:
    """Committables of one subtask of the writers (`SubtaskCommittableManager`).

    Attributes:
        requests: those that are still there.
        expected: how many the subtask announced.
        drained: how many are done with; stored in versions 0 and 1.
        failed: how many failed.
        subtask: the subtask; stored from version 1 on.
    """

    requests: tuple[CommitRequest, ...]
    expected: int
    drained: int | None
    failed: int
    subtask: int | None


@dataclass(frozen=True)
class CheckpointCommittables:
    """Committables of one checkpoint (`CheckpointCommittableManagerImpl`).

    Attributes:
        checkpoint_id: the checkpoint; Long.MAX_VALUE is the end of the input.
        subtasks: the committables of each subtask of the writers.
        subtask_version: 0 to 2, version of `subtasks`.
        number_of_subtasks: parallelism of the writers; stored in version 1.
    """

    checkpoint_id: int
    subtasks: tuple[SubtaskCommittables, ...]
    subtask_version: int = 2
    number_of_subtasks: int | None = None


@dataclass(frozen=True)
class Committables:
    """State of a committer.

    Attributes:
        checkpoints: committables by checkpoint; none in version 1 of the state.
        checkpoint_version: 0 or 1, version of `checkpoints`.
        plain: committables of no known checkpoint: version 1 of the state; None in version 2.
        plain_version: version of the committables there.
    """

    checkpoints: tuple[CheckpointCommittables, ...] = ()
    checkpoint_version: int = 1
    plain: tuple[object, ...] | None = None
    plain_version: int = 0


ReadCommittable = Callable[[Versioned], Any]
WriteCommittable = Callable[[Any], Versioned]


def read_committables(versioned: Versioned, read: ReadCommittable) -> Committables:
    """Read the state of a committer.

    Args:
        versioned: the bytes.
        read: reads one committable.

    Raises:
        FormatError: the bytes are no committables, or `read` refuses one.
        UnsupportedError: an unknown version.
    """
    with versioned.open("the state of a committer", 1, 2) as reader:
        expect_magic(reader, MAGIC, "the state of a committer")
        version, elements = read_versioned_list(reader)
    if versioned.version == 1:
        return Committables(plain=tuple(read(each) for each in elements), plain_version=version)
    return Committables(tuple(_read_checkpoint(each, read) for each in elements), version)


def write_committables(state: Committables, write: WriteCommittable) -> Versioned:
    """Write what `read_committables` reads."""
    writer = Writer()
    write_magic(writer, MAGIC)
    if state.plain is not None:
        write_versioned_list(writer, state.plain_version, [write(each).data for each in state.plain])
        return Versioned(1, writer.getvalue())
    elements = [_write_checkpoint(each, state.checkpoint_version, write) for each in state.checkpoints]
    write_versioned_list(writer, state.checkpoint_version, elements)
    return Versioned(2, writer.getvalue())


def committable_rows(rows: Callable[[Any], Iterable[Mapping[str, Any]]], state: Committables) -> Iterator[Row]:
    """Yield the rows of `HEAD_COLUMNS` and those of each committable."""
    for committable in state.plain or ():
        yield from map(dict, rows(committable))
    for checkpoint in state.checkpoints:
        for subtask in checkpoint.subtasks:
            for request in subtask.requests:
                head = {
                    "checkpoint_id": checkpoint.checkpoint_id,
                    "subtask": subtask.subtask,
                    "retries": request.retries,
                    "commit_state": request.state,
                }
                for row in rows(request.committable):
                    yield {**head, **row}


def register_committables(
    connector: str,
    read: ReadCommittable,
    write: WriteCommittable,
    rows: Callable[[Any], Iterable[Mapping[str, Any]]],
    columns: pa.Schema,
    *,
    last_resort: bool = False,
) -> None:
    """Make the committables of a sink known, inside the state of its committer.

    Args:
        connector: name of the connector.
        read: reads one committable; must refuse those of other sinks.
        write: its mirror.
        rows: rows of a committable.
        columns: their schema.
        last_resort: used only if no other connector can read the committables.
    """
    versioned_state(
        connector,
        kind=ConnectorStateKind.COMMITTER,
        operator_state_names=[STATE_NAME],
        write=lambda state: write_committables(state, write),
        rows=partial(committable_rows, rows),
        columns=pa.schema([*HEAD_COLUMNS, *columns]),
        last_resort=last_resort,
    )(lambda versioned: read_committables(versioned, read))


def _read_checkpoint(versioned: Versioned, read: ReadCommittable) -> CheckpointCommittables:
    with versioned.open("the committables of a checkpoint", 0, 1) as reader:
        checkpoint_id = reader.i64()
        number = reader.i32() if versioned.version > 0 else None
        require(reader, checkpoint_id >= 0, f"{checkpoint_id} is no checkpoint id")
        version, elements = read_versioned_list(reader)
    subtasks = tuple(_read_subtask(each, read) for each in elements)
    return CheckpointCommittables(checkpoint_id, subtasks, version, number)


def _write_checkpoint(checkpoint: CheckpointCommittables, version: int, write: WriteCommittable) -> bytes:
    writer = Writer()
    writer.i64(checkpoint.checkpoint_id)
    if version > 0:
        writer.i32(checkpoint.number_of_subtasks or 0)
    elements = [_write_subtask(each, checkpoint.subtask_version, write) for each in checkpoint.subtasks]
    write_versioned_list(writer, checkpoint.subtask_version, elements)
    return writer.getvalue()


def _read_subtask(versioned: Versioned, read: ReadCommittable) -> SubtaskCommittables:
    version = versioned.version
    with versioned.open("the committables of a subtask", 0, 1, 2) as reader:
        subtask = reader.i32() if version > 0 else None
        request_version, elements = read_versioned_list(reader)
        Versioned(request_version, b"").expect("a commit request", 0)
        expected = reader.i32()
        drained = reader.i32() if version < 2 else None
        failed = reader.i32()
    requests = tuple(_read_request(each.reader(), read) for each in elements)
    return SubtaskCommittables(requests, expected, drained, failed, subtask)


def _write_subtask(subtask: SubtaskCommittables, version: int, write: WriteCommittable) -> bytes:
    writer = Writer()
    if version > 0:
        writer.i32(subtask.subtask or 0)
    write_versioned_list(writer, 0, [_write_request(each, write) for each in subtask.requests])
    writer.i32(subtask.expected)
    if version < 2:
        writer.i32(subtask.drained or 0)
    writer.i32(subtask.failed)
    return writer.getvalue()


def _read_request(reader: Reader, read: ReadCommittable) -> CommitRequest:
    committable = read(read_versioned(reader))
    retries, state = reader.i32(), reader.i32()
    require(reader, 0 <= state < len(STATES), f"{state} is no state of a commit request")
    reader.expect_end("a commit request")
    return CommitRequest(committable, retries, STATES[state])


def _write_request(request: CommitRequest, write: WriteCommittable) -> bytes:
    writer = Writer()
    write_versioned(writer, write(request.committable))
    writer.i32(request.retries)
    writer.i32(STATES.index(request.state))
    return writer.getvalue()


def _same(versioned: Versioned) -> Versioned:
    return versioned


def _opaque_rows(committable: Versioned) -> Iterator[Row]:
    yield {"committable_version": committable.version, "committable": committable.data}


register_committables(
    "kafka",
    kafka.read_kafka_committable,
    kafka.write_kafka_committable,
    kafka.committable_rows,
    kafka.COMMITTABLE_COLUMNS,
)
register_committables(
    "file",
    file_sink.read_file_committable,
    file_sink.write_file_committable,
    file_sink.committable_rows,
    file_sink.COMMITTABLE_COLUMNS,
)
# Of any other sink the committables are bytes, but how many wait, and for which checkpoint, is known.
register_committables("unknown sink", _same, _same, _opaque_rows, OPAQUE_COLUMNS, last_resort=True)
