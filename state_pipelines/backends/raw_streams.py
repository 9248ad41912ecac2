"""Raw keyed and raw operator state: bytes that an operator writes and reads itself (`StateSnapshotContext`)."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError
from state_pipelines.keyed.raw_timers import NEVER_STARTED, find_raw_sections
from state_pipelines.keyed.sections import read_sections
from state_pipelines.metadata.handles import KeyGroupsStateHandle, OperatorStreamStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.streams import read_whole_stream
from state_pipelines.operations.rescale.redistribution import redistribute
from state_pipelines.operatorstate import read_raw_partitions, write_raw_partitions
from state_pipelines.storage import create_file, join

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.metadata.handles import KeyGroupRange, KeyGroupsSavepointStateHandle, OperatorStateHandle
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.storage import Location


class RawKeyedOutput:
    """Bytes by key group that an operator writes at a snapshot (`KeyedStateCheckpointOutputStream`).

    Args:
        key_groups: range of the subtask.
    """

    def __init__(self, key_groups: KeyGroupRange) -> None:
        self._key_groups = key_groups
        self._current: bytearray | None = None
        self._written: dict[int, bytearray] = {}

    @property
    def content(self) -> dict[int, bytes]:
        """The bytes of the key groups that were started."""
        return {key_group: bytes(written) for key_group, written in self._written.items()}

    def get_key_group_list(self) -> Sequence[int]:
        """Return the key groups of the subtask."""
        return list(self._key_groups)

    def start_new_key_group(self, key_group: int) -> None:
        """Write the bytes that follow into a key group.

        Raises:
            UsageError: it is not one of the subtask, or was started before.
        """
        if key_group not in self._key_groups:
            raise UsageError(f"Key group {key_group} does not belong to the key groups of the subtask")
        if key_group in self._written:
            raise UsageError(f"Key group {key_group} has already been registered!")
        self._current = self._written[key_group] = bytearray()

    def write(self, data: bytes) -> None:
        """Write bytes into the key group that was started last.

        Raises:
            UsageError: none was started.
        """
        if self._current is None:
            raise UsageError("raw keyed state has no key group", hint="Call start_new_key_group first")
        self._current += data


class RawOperatorOutput:
    """Partitions that an operator writes at a snapshot (`OperatorStateCheckpointOutputStream`)."""

    def __init__(self) -> None:
        self._written: list[bytearray] = []

    @property
    def content(self) -> list[bytes]:
        """The partitions, in their order."""
        return [bytes(each) for each in self._written]

    def start_new_partition(self) -> None:
        """Write the bytes that follow into a partition of their own, which goes to one subtask as a whole."""
        self._written.append(bytearray())

    def write(self, data: bytes) -> None:
        """Write bytes into the partition that was started last.

        Raises:
            UsageError: none was started.
        """
        if not self._written:
            raise UsageError("raw operator state has no partition", hint="Call start_new_partition first")
        self._written[-1] += data


class RawState:
    """Raw state of a subtask: what was restored, until the function reads it or writes its own.

    Args:
        keyed: (key group, bytes) of the restored raw keyed state.
        partitions: of the restored raw operator state.
    """

    def __init__(self, keyed: Iterable[tuple[int, bytes]] = (), partitions: Iterable[bytes] = ()) -> None:
        self._keyed, self._partitions = dict(keyed), list(partitions)

    def take_keyed(self) -> Iterator[tuple[int, bytes]]:
        """Yield the restored (key group, bytes); what was taken is not carried over."""
        taken, self._keyed = self._keyed, {}
        yield from sorted(taken.items())

    def take_partitions(self) -> Iterator[bytes]:
        """Yield the restored partitions; what was taken is not carried over."""
        taken, self._partitions = self._partitions, []
        yield from taken

    def choose_keyed(self, written: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Return what a snapshot gets: what the function has written, else what nobody has taken."""
        return written or self._keyed

    def choose_partitions(self, written: list[bytes]) -> list[bytes]:
        """Return what a snapshot gets: what the function has written, else what nobody has taken."""
        return written or self._partitions


def write_raw_keyed(
    content: Mapping[int, bytes], key_groups: KeyGroupRange, directory: Location, name: str
) -> KeyGroupsStateHandle | None:
    """Write raw keyed state; the mirror of `read_raw_keyed`.

    Args:
        content: bytes by key group; key groups without an entry were never started.
        key_groups: range of the subtask.
        directory: of the snapshot.
        name: of the file; a leftover is replaced.

    Returns:
        The handle, relative to the directory; None without content.

    Raises:
        UsageError: a key group is not in the range.
    """
    for key_group in content:
        if key_group not in key_groups:
            raise UsageError(f"Key group {key_group} does not belong to the key groups of the subtask")
    if not content:
        return None
    offsets, size = [], 0
    with create_file(join(directory, name), replace=True) as output:
        for key_group in key_groups:
            offsets.append(size if key_group in content else NEVER_STARTED)
            size += output.write(content.get(key_group, b""))
    stream = RelativeFileStateHandle(name, size)
    return KeyGroupsStateHandle(key_groups, tuple(offsets), stream, state_handle_id=str(uuid.uuid4()))


def read_raw_keyed(
    handle: KeyGroupsStateHandle | KeyGroupsSavepointStateHandle, stream: StateStream, key_groups: KeyGroupRange
) -> Iterator[tuple[int, bytes]]:
    """(Key group, bytes) of the key groups of a subtask that were written.

    Args:
        handle: of any old subtask.
        stream: the stream of the handle.
        key_groups: range of the new subtask.

    Raises:
        FormatError: an offset is outside the stream.
    """
    for section in find_raw_sections(stream, handle.key_groups, handle.offsets):
        if section.key_group in key_groups:
            yield section.key_group, read_sections(stream, section.start, section.end)


def write_raw_operator(partitions: list[bytes], directory: Location, name: str) -> OperatorStreamStateHandle | None:
    """Write raw operator state; the mirror of `read_raw_operator`.

    Args:
        partitions: what can be dealt out to other subtasks, in order.
        directory: of the snapshot.
        name: of the file; a leftover is replaced.

    Returns:
        The handle, relative to the directory; None without partitions.
    """
    if not partitions:
        return None
    data, states = write_raw_partitions(partitions)
    with create_file(join(directory, name), replace=True) as output:
        output.write(data)
    return OperatorStreamStateHandle(states, RelativeFileStateHandle(name, len(data)))


def read_raw_operator(
    old: Sequence[tuple[OperatorStateHandle, StateStream] | None], subtask: int, parallelism: int
) -> Iterator[bytes]:
    """Partitions of raw operator state for one new subtask.

    Args:
        old: handle and stream of every old subtask, ascending; None of those without raw state.
        subtask: index of the new subtask.
        parallelism: number of new subtasks.

    Raises:
        FormatError: an offset is outside its stream.
    """
    handles = [(index, each[0]) for index, each in enumerate(old) if each is not None]
    if not handles:
        return
    # Partitions without bytes have the offset of the next one, so that offsets do not identify them: shares of one
    # old subtask are consecutive, in the order of the new subtasks.
    taken: Counter[int] = Counter()
    for number, shares in enumerate(redistribute(handles, parallelism, old_parallelism=len(old))):
        for share in shares:
            found, first = old[share.subtask], taken[share.subtask]
            taken[share.subtask] += len(share.offsets)
            if number == subtask and found is not None and share.offsets:
                handle, stream = found
                data, starts, ends = read_raw_partitions(read_whole_stream(stream), handle, stream.name)
                chosen = slice(first, taken[share.subtask])
                for start, end in zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True):
                    yield data[start:end].tobytes()
