"""Logs of changes in memory, made and read for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from state_pipelines.binary.data_views import Writer
from state_pipelines.codecs.scalar import write_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.keyed.changelog.changes import (
    METADATA_KEY_GROUP,
    DataChange,
    MetadataChange,
    StateChangeOperation,
    write_change_stream,
    write_metadata_change,
)
from state_pipelines.keyed.changelog.reader import ChangelogFile, open_changelog
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    ChangelogStream,
    InMemoryChangelogStateHandle,
    KeyGroupRange,
    LoggedChange,
    StreamStateHandle,
)
from state_pipelines.metadata.streams import StateStream
from state_pipelines.serializers.build import TIME_WINDOW, VOID_NAMESPACE, basic, list_of, map_of, timer
from state_pipelines.serializers.state_meta_info import keyed_state, priority_queue
from tests.keyed.canonical_files import Record, make_canonical
from tests.serializers.literals import LONG_CLASS, i32, outer, utf

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.keyed.canonical import CanonicalFile
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

LONG, STRING, INT = basic("Long"), basic("String"), basic("Int")
VOID_CLASS = "org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot"
META_INFO = b"".join(
    [
        utf("state-name") + i32(0),
        i32(1) + utf("KEYED_STATE_TYPE") + utf("VALUE"),
        i32(2),
        utf("VALUE_SERIALIZER") + outer(LONG_CLASS, 3),
        utf("NAMESPACE_SERIALIZER") + outer(VOID_CLASS, 3),
    ]
)
METADATA = b"\x08" + i32(7) + META_INFO + bytes.fromhex("00 00 0003 00")
ALL = KeyGroupRange(0, 128)
CONTEXT = RecordContext(128, LayoutContext())

VALUE = keyed_state("value", "VALUE", STRING, VOID_NAMESPACE)
LIST = keyed_state("list", "LIST", list_of(INT), TIME_WINDOW)
SUM = keyed_state("sum", "REDUCING", LONG, TIME_WINDOW)
MAP = keyed_state("map", "MAP", map_of(STRING, LONG), VOID_NAMESPACE)
TIMERS = priority_queue("_timer_state/event_user-timers", timer(LONG, VOID_NAMESPACE))

Records = dict[str, dict[tuple[int, bytes], bytes]]


def encode(serializer: Serializer, value: object) -> bytes:
    writer = Writer()
    write_value(derive_layout(serializer, CONTEXT.layouts), writer, value)
    return writer.getvalue()


def long(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def window(start: int) -> bytes:
    return long(start) + long(start + 10)


def metadata(info: StateMetaInfo, state_id: int) -> LoggedChange:
    return LoggedChange(METADATA_KEY_GROUP, write_metadata_change(MetadataChange(info=info, state_id=state_id)))


def write_data_change(change: DataChange) -> bytes:
    """The bytes of a change of a key group."""
    return bytes((change.operation,)) + change.state_id.to_bytes(2, "big") + change.payload


def change(key_group: int, operation: StateChangeOperation, payload: bytes, state_id: int = 0) -> LoggedChange:
    return LoggedChange(key_group, write_data_change(DataChange(operation, state_id, payload)))


def inline(handle: StreamStateHandle) -> StateStream:
    assert isinstance(handle, ByteStreamStateHandle)
    return StateStream(handle.handle_name, len(handle.data), data=handle.data)


def in_memory(changes: Sequence[LoggedChange], key_groups: KeyGroupRange = ALL) -> InMemoryChangelogStateHandle:
    return InMemoryChangelogStateHandle(key_groups, 0, len(changes), tuple(changes), f"log {uuid4()}")


def in_file(sets: Sequence[Sequence[LoggedChange]], *, compressed: bool) -> ChangelogStateHandleStream:
    data, offsets = write_change_stream(sets, compressed=compressed)
    streams = tuple(ChangelogStream(offset, ByteStreamStateHandle("dstl/file", data)) for offset in offsets)
    size = measure(sets)
    return ChangelogStateHandleStream(ALL, streams, size, size, "log", "filesystem")


def measure(sets: Sequence[Sequence[LoggedChange]]) -> int:
    """Bytes of change sets as Flink counts them (`StateChangeSet.getSize`)."""
    return sum(len(each.change) for changes in sets for each in changes)


def open_log(
    *logs: InMemoryChangelogStateHandle | ChangelogStateHandleStream,
    bases: Sequence[KeyedFile] = (),
    key_groups: KeyGroupRange = ALL,
    key: Serializer | None = LONG,
) -> ChangelogFile:
    handle = ChangelogStateBackendHandle(key_groups, 0, (), tuple(logs), 1, "backend", 1)
    return open_changelog(handle, bases, inline, CONTEXT, key_serializer=key)


def make_base(
    info: StateMetaInfo,
    records: Iterable[tuple[int, bytes, bytes]],
    key: Serializer = LONG,
    key_groups: KeyGroupRange = ALL,
) -> CanonicalFile:
    groups: dict[int, list[Record]] = {}
    for key_group, key_bytes, value in records:
        groups.setdefault(key_group, []).append((key_bytes, value))
    runs = [(key_group, 0, groups[key_group]) for key_group in sorted(groups)]
    return make_canonical(KeyedHeader(key_serializer=key, states=(info,)), key_groups, 1, runs, name="base")


def read(file: KeyedFile, key_groups: KeyGroupRange | None = None, **options: int) -> Records:
    states = file.header.states
    found: Records = {info.name: {} for info in states}
    for state_id, records in file.scan(range(len(states)), key_groups, **options):
        assert records.key_groups.tolist() == sorted(records.key_groups.tolist())
        data = records.data.tobytes()
        for row in range(len(records)):
            key = (int(records.key_groups[row]), data[records.key_starts[row] : records.key_ends[row]])
            assert key not in found[states[state_id].name]
            found[states[state_id].name][key] = data[records.value_starts[row] : records.value_ends[row]]
    return found


def replay_one(info: StateMetaInfo, changes: Sequence[LoggedChange], **options: Any) -> dict[tuple[int, bytes], bytes]:
    return read(open_log(in_memory([metadata(info, 0), *changes]), **options))[info.name]
