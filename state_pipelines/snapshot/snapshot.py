"""A snapshot and its operators."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

from state_pipelines.metadata import compute_operator_id, write_metadata
from state_pipelines.snapshot.operator import Operator
from state_pipelines.snapshot.representation import format_bytes, format_count, make_html_table
from state_pipelines.snapshot.snapshot_files import SnapshotFiles
from state_pipelines.storage.reading import scan_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from state_pipelines.keyed.state_table import TableOptions
    from state_pipelines.snapshot.declarations import Declarations
    from state_pipelines.storage import Location


class Snapshot(SnapshotFiles):
    """A checkpoint or savepoint; nothing but `_metadata` is read before a state is asked for."""

    def __repr__(self) -> str:
        return f"<Snapshot {self._describe()}>"

    def _repr_html_(self) -> str:
        """Show the operators, in notebooks; nothing is read."""
        rows = (
            (
                each.label,
                each.name or "",
                f"{each.parallelism} of {each.max_parallelism}",
                format_bytes(each.keyed_size),
            )
            for each in self.operators
        )
        head = ("operator", "name", "parallelism", "keyed state")
        return make_html_table(self._describe(), head, rows, len(self.operators))

    def _describe(self) -> str:
        """One line; nothing is read."""
        number = f" {self.checkpoint_id}" if self.checkpoint_id >= 0 else ""
        counts = f"{format_count(len(self.operators), 'operator')}, {format_bytes(self.file_size)}"
        return f"{self.kind}{number}, {counts}, {self.path}"

    def with_declarations(self, declarations: Declarations) -> Snapshot:
        """The same snapshot, opened with other declarations."""
        return Snapshot(self.location, self.metadata, self.path_mapping, declarations, self.handles.copies)

    def with_copies(self, copies: Mapping[str, Location]) -> Snapshot:
        """The same snapshot, some files of which are read from copies, such as local ones.

        Args:
            copies: by URL of a file, the location of its copy.
        """
        return Snapshot(self.location, self.metadata, self.path_mapping, self.declarations, copies)

    @cached_property
    def fingerprint(self) -> str:
        """Stable identity of the content of `_metadata` (SHA-256, 16 hexadecimal digits)."""
        return hashlib.sha256(write_metadata(self.metadata)).hexdigest()[:16]

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators, in the order of the file."""
        uids = self.known_uids
        return tuple(Operator(self, each, uids.get(each.operator_id)) for each in self.metadata.operator_states)

    def batches_by_operator(
        self, options: TableOptions | None = None
    ) -> Iterator[tuple[Operator, Iterator[tuple[str, pa.RecordBatch]]]]:
        """Each operator with the rows of its keyed states and timers, as of `Operator.batches_by_state`.

        On a storage that is not local, the next operators are read ahead; loops over `operators` wait for each in turn.

        Args:
            options: which columns; default all.

        Yields:
            An operator, and its rows, which have to be taken before the next operator.

        Raises:
            StateError: a state cannot be read; raised by the rows of its operator.
        """
        # Once for all threads.
        self.read_headers()
        mean = self.file_size // max(1, len(self.operators))
        directory = self.location.directory
        return scan_ahead(self.operators, lambda each: each.batches_by_state(options=options), directory, mean)

    def get_operator(self, operator_id: bytes) -> Operator | None:
        """The operator of an id, 16 bytes; None when there is none."""
        return next((each for each in self.operators if each.metadata.operator_id == operator_id), None)

    def operator(self, name: str) -> Operator:
        """An operator by uid, 32-digit id, or operator name.

        A uid is hashed, so that it finds its operator in snapshots that store only ids too.

        Raises:
            NotFoundError: there is none; the error lists what there is.
        """
        found = self.find_operator(name)
        uid = name if compute_operator_id(name) == found.operator_id else None
        return Operator(self, found, self.known_uids.get(found.operator_id, uid))
