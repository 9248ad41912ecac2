"""Writer of keyed state as a RocksDB database and its meta stream; the mirror of `reader`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import FormatError, Where, at
from state_pipelines.keyed.canonical import kernels
from state_pipelines.keyed.header import write_keyed_header
from state_pipelines.keyed.keys.key_kernels import find_changes
from state_pipelines.keyed.record_bounds import take_bytes
from state_pipelines.keyed.record_layout import KeyedRecords, concat_records, cut_nulls
from state_pipelines.rocksdb.scan import Entries
from state_pipelines.rocksdb.writer import DatabaseWriter, list_files
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyGroupRecords, RecordContext
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo


@dataclass
class RocksWriter:
    """Writes one database, state after state; the mirror of `open_rocksdb` and `RocksFile`.

    Args:
        directory: local, empty or not there yet; it holds the database afterwards.
        header: from the meta stream.
        context: of the operator.
    """

    directory: Path
    header: KeyedHeader
    context: RecordContext

    def write(self, file: KeyGroupRecords, key_groups: KeyGroupRange) -> dict[int, int]:
        """Write all records of `file` in some key groups, and return their number by state.

        Raises:
            FormatError: a key comes twice.
        """
        counts = dict.fromkeys(range(len(self.header.states)), 0)
        names = [info.name for info in self.header.states]
        with DatabaseWriter(self.directory, names) as database:
            for _, runs in file.scan_key_groups(self.context, key_groups):
                by_state: dict[int, list[KeyedRecords]] = {}
                for state_id, records in runs:
                    by_state.setdefault(state_id, []).append(records)
                for state_id, batches in by_state.items():
                    counts[state_id] += self._write_state(database, self.header.states[state_id], batches)
            database.finish()
        return counts

    def _write_state(self, database: DatabaseWriter, info: StateMetaInfo, batches: list[KeyedRecords]) -> int:
        with at(state=info.name):
            run = concat_records(batches)
            database.write(info.name, _to_entries(run, self.context.prefix, is_map=info.state_type == StateKind.MAP))
            return len(run)

    @property
    def meta(self) -> bytes:
        """Content of the meta stream."""
        writer = Writer()
        # RocksDB compresses its own blocks.
        write_keyed_header(writer, replace(self.header, compressed=False))
        return writer.getvalue()

    @property
    def files(self) -> list[Path]:
        """The files that the handle names, once everything is written."""
        return list_files(self.directory)


def _to_entries(records: KeyedRecords, prefix: int, *, is_map: bool) -> Entries:
    """Records of one state and key group in the order of their keys, with the key-group prefix."""
    data = records.data
    value_ends = cut_nulls(records) if is_map else records.value_ends
    order = np.asarray(pc.sort_indices(take_bytes(data, records.key_starts, records.key_ends))).astype(np.int64)
    size = int((records.key_ends - records.key_starts).sum() + (value_ends - records.value_starts).sum())
    target = np.empty(size + prefix * len(records), np.uint8)
    spans = np.empty((4, len(records)), np.int64)
    columns = (records.key_starts, records.key_ends, records.value_starts, value_ends)
    kernels.prefix_records(
        int(records.key_groups[0]), prefix, data.ctypes.data, *columns, order, target.ctypes.data, spans
    )
    repeated = np.flatnonzero(~find_changes(target.ctypes.data, spans[0], spans[1]))
    if len(repeated):
        key = target[spans[0, repeated[0]] : spans[1, repeated[0]]].tobytes().hex()
        raise FormatError(f"the key {key} comes twice", where=Where(file=records.file))
    return Entries(target, spans[0], spans[1], spans[2], spans[3])
