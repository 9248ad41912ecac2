"""Elements of operator state for one new subtask, out of the files of all old subtasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import UnsupportedError, Where, at
from state_pipelines.metadata.handles import OperatorStateMode
from state_pipelines.operations.rescale.redistribution import redistribute
from state_pipelines.serializers.merged_subclasses import join_infos

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.codecs.layout import LayoutContext
    from state_pipelines.metadata.handles import OperatorStateHandle
    from state_pipelines.operations.rescale.redistribution import Share
    from state_pipelines.operatorstate import OperatorStateFile, UnreadOperatorState
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

OldOperatorState: TypeAlias = "UnreadOperatorState | None"
"""Operator state of one old subtask (`snapshot.handle_readers.HandleReader.open_operator`); None when it has none."""

Infos: TypeAlias = "dict[str, StateMetaInfo]"


@dataclass(frozen=True)
class _OldFiles:
    """Files of the old subtasks by index; each is read when it is first needed, and held."""

    unread: dict[int, UnreadOperatorState]
    parallelism: int
    held: dict[int, OperatorStateFile] = field(default_factory=dict)

    @property
    def handles(self) -> list[tuple[int, OperatorStateHandle]]:
        return [(index, unread.handle) for index, unread in self.unread.items()]

    def read(self, subtask: int) -> OperatorStateFile:
        if subtask not in self.held:
            self.held[subtask] = self.unread[subtask].read()
        return self.held[subtask]


def _index(old: Sequence[OldOperatorState]) -> _OldFiles:
    return _OldFiles({index: unread for index, unread in enumerate(old) if unread is not None}, len(old))


def restore_lists(
    old: Sequence[OldOperatorState], subtask: int, parallelism: int
) -> tuple[Infos, dict[str, list[bytes]]]:
    """List states of a new subtask.

    Args:
        old: state of every old subtask, ascending.
        subtask: index of the new subtask.
        parallelism: number of new subtasks.

    Returns:
        States and bytes of their elements, by name; union state has the elements of all old subtasks.

    Raises:
        UnsupportedError: old subtasks have different serializers for a state.
        StateError: state cannot be read.
    """
    files = _index(old)
    infos = _join_infos(info for unread in files.unread.values() for info in unread.header.lists)
    elements: dict[str, list[bytes]] = {name: [] for name in infos}
    for share in _find_shares(files, subtask, parallelism):
        if share.offsets and share.mode is not OperatorStateMode.BROADCAST:
            handle = files.unread[share.subtask].handle
            elements[share.state_name] += _take(files.read(share.subtask), handle, share)
    return infos, elements


def restore_broadcasts(
    old: Sequence[OldOperatorState], subtask: int, parallelism: int, layouts: LayoutContext
) -> tuple[Infos, dict[str, dict[bytes, bytes]]]:
    """Broadcast states of a new subtask: bytes of keys and values by name; arguments and errors as `restore_lists`."""
    files = _index(old)
    infos = _join_infos(info for unread in files.unread.values() for info in unread.header.broadcasts)
    entries: dict[str, dict[bytes, bytes]] = {name: {} for name in infos}
    for share in _find_shares(files, subtask, parallelism):
        if share.mode is OperatorStateMode.BROADCAST:
            file = files.read(share.subtask)
            with at(file=file.name, state=share.state_name):
                entries[share.state_name] = _cut_entries(file, infos[share.state_name], layouts)
    return infos, entries


def _find_shares(files: _OldFiles, subtask: int, parallelism: int) -> list[Share]:
    """Shares of one subtask; of union state all, by old subtask (`repartitionUnionState`)."""
    if not files.unread:
        return []
    dealt = redistribute(files.handles, parallelism, old_parallelism=files.parallelism)
    union = [share for shares in dealt for share in shares if share.mode is OperatorStateMode.UNION]
    own = [share for share in dealt[subtask] if share.mode is not OperatorStateMode.UNION]
    return own + sorted(union, key=lambda share: share.subtask)


def _take(file: OperatorStateFile, handle: OperatorStateHandle, share: Share) -> list[bytes]:
    data, starts, ends = file.elements(share.state_name)
    # Offsets are those of the file; spans are positions in what may have been decompressed.
    (state,) = [each for each in handle.states if each.state_name == share.state_name]
    rows = {offset: row for row, offset in enumerate(state.offsets)}
    if share.offsets == state.offsets:
        chosen = list(range(len(state.offsets)))
    elif len(rows) == len(state.offsets):
        chosen = [rows[offset] for offset in share.offsets]
    else:
        raise UnsupportedError(
            "elements without bytes are at one offset, so that they cannot be distinguished",
            where=Where(file=file.name, state=share.state_name),
            hint="Restore with the old parallelism",
        )
    return [
        data[start:end].tobytes() for start, end in zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True)
    ]


def _cut_entries(file: OperatorStateFile, info: StateMetaInfo, layouts: LayoutContext) -> dict[bytes, bytes]:
    data, start, end, count = file.broadcast(info.name)
    key, value = derive_layout(info.key_serializer, layouts), derive_layout(info.value_serializer, layouts)
    reader = Reader(data[start:end].tobytes())
    entries: dict[bytes, bytes] = {}
    for _ in range(count):
        first = reader.position
        read_value(key, reader, tail=False)
        middle = reader.position
        read_value(value, reader, tail=False)
        entries[reader.data[first:middle]] = reader.data[middle : reader.position]
    return entries


def _join_infos(infos: Iterable[StateMetaInfo]) -> Infos:
    joined: Infos = {}
    for info in infos:
        both = join_infos(joined.get(info.name, info), info)
        if both is None:
            raise UnsupportedError(
                "the old subtasks have this operator state with different serializers",
                where=Where(state=info.name),
                hint="Let every subtask write the state once with the new job and take a savepoint then",
            )
        joined[info.name] = both
    return joined
