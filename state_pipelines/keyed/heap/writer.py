"""Writer of keyed state in the native format of the heap backend; the mirror of `reader`.

Source: `HeapSnapshotStrategy`, `CopyOnWriteStateTableSnapshot`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from state_pipelines.binary.data_views import Writer
from state_pipelines.binary.snappy_frames import compress
from state_pipelines.errors import at
from state_pipelines.keyed.header import KeyedHeader, write_keyed_header
from state_pipelines.keyed.heap.entries import make_entry_codecs
from state_pipelines.keyed.heap.reader import KEY_GROUP
from state_pipelines.keyed.record_layout import KeyedRecords, concat_records

if TYPE_CHECKING:
    from state_pipelines.keyed.keyed_file import RecordContext, Runs
    from state_pipelines.metadata.handles import KeyGroupRange


@dataclass
class HeapWriter:
    """Writes one stream of the heap backend, key group after key group; the mirror of `open_heap` and `HeapFile`.

    Attributes:
        output: where the bytes go.
        header: written at once.
        key_groups: range of the handle.
        context: of the operator.
    """

    output: IO[bytes]
    header: KeyedHeader
    key_groups: KeyGroupRange
    context: RecordContext

    def __post_init__(self) -> None:
        writer = Writer()
        write_keyed_header(writer, self.header)
        self.size = self.output.write(writer.getvalue())
        self._offsets: list[int] = []
        self._codecs = make_entry_codecs(self.header, self.context)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Position per key group, for the handle."""
        return tuple(self._offsets)

    def write_key_group(self, key_group: int, runs: Runs) -> None:
        """Write the section of the next key group of the range, which may have no records.

        Args:
            key_group: the key groups come in order, all of them.
            runs: records of the canonical form by state id.

        Raises:
            FormatError: a record does not fit its serializers.
        """
        expected = self.key_groups.start + len(self._offsets)
        assert key_group == expected, f"key group {key_group} was written where {expected} comes"
        self._offsets.append(self.size)
        self._put(key_group.to_bytes(KEY_GROUP, "big"))
        by_state: dict[int, list[KeyedRecords]] = {}
        for state_id, records in runs:
            by_state.setdefault(state_id, []).append(records)
        for state_id, (info, codec) in enumerate(zip(self.header.states, self._codecs, strict=True)):
            count, entries = 0, b""
            if state_id in by_state:
                records = concat_records(by_state[state_id])
                with at(state=info.name):
                    made = codec.gather(records)
                count, entries = made.count, made.to_bytes(records.data)
            head = state_id.to_bytes(2, "big") + count.to_bytes(4, "big")
            for content in (compress(head + entries),) if self.header.compressed else (head, entries):
                self._put(content)

    def _put(self, raw: bytes) -> None:
        self.size += self.output.write(raw)
