"""Digests of new state: of the rows as they are encoded, and of what the new files hold, decoded again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from state_pipelines.codecs.columns import plan_columns
from state_pipelines.errors import UnsupportedError, at
from state_pipelines.keyed.digests import ColumnDigest, Sums, add_sums, identify_rows
from state_pipelines.operations.local_processes import count_kernel_threads
from state_pipelines.operatorstate import read_broadcast_state, read_list_state
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import BackendStateType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.snapshot.operator_state import NonKeyedSubtaskState

NULLS = "# nulls"
"""The digest of which values are null; no field has such a name."""

VALUES = "value"
"""The digest of a value without fields."""

_TIMESTAMP = 8
"""Bytes in front of the key of a timer."""


@dataclass
class StateDigests:
    """Digests of a state by key group, and how many of its keys are where they do not belong.

    Attributes:
        sums: by key group and column.
        misplaced: keys in another key group than their hash gives, by key group.
        unhashed: keys whose hash is not known.
    """

    sums: Sums = field(default_factory=dict)
    misplaced: Counter[int] = field(default_factory=Counter)
    unhashed: int = 0

    def add(self, other: StateDigests) -> None:
        """Add those of another task."""
        add_sums(self.sums, other.sums)
        self.misplaced.update(other.misplaced)
        self.unhashed += other.unhashed


def combine_digests(found: Iterable[StateDigests]) -> StateDigests:
    """Those of several tasks together."""
    total = StateDigests()
    for each in found:
        total.add(each)
    return total


class StateDigester:
    """Digests decoded rows of one keyed state, batch by batch.

    Args:
        layout: of the state.
    """

    def __init__(self, layout: KeyedLayout) -> None:
        self._is_timer = layout.state_type == StateKind.TIMER
        kind = plan_columns(layout.value).type if not self._is_timer else pa.null()
        self._fields = [each.name for each in kind] if pa.types.is_struct(kind) else []
        names = [] if self._is_timer else [NULLS, *(self._fields or [VALUES])]
        self._digest = ColumnDigest(layout.max_parallelism, names)

    def add(self, key_groups: npt.NDArray[np.int32], keys: pa.StructArray, values: pa.Array) -> None:
        """Take rows.

        Args:
            key_groups: i32[n].
            keys: of the layout of the keys.
            values: of the layout of the values; those of timers do not count.
        """
        identities = identify_rows([keys.field(index) for index in range(keys.type.num_fields)])
        columns: dict[str, pa.Array] = {}
        if not self._is_timer:
            columns[NULLS] = values.is_null()
            columns |= dict(zip(self._fields, values.flatten(), strict=True)) if self._fields else {VALUES: values}
        self._digest.add(key_groups, identities, columns)

    @property
    def sums(self) -> Sums:
        """Digests of the rows that were added."""
        return self._digest.sums


@dataclass(frozen=True)
class FileDigests:
    """Reads some states of one file and digests them; one task.

    Attributes:
        operator: label, for errors.
        file: the new file.
        layouts: of the states, by name.
        context: of the operator.
        hashes: hashes the keys.
    """

    operator: str
    file: KeyedFile
    layouts: Mapping[str, KeyedLayout]
    context: RecordContext
    hashes: KeyHasher

    @property
    def threads(self) -> int:
        """See `local_processes.Work`."""
        return count_kernel_threads([self.file])

    def run(self) -> dict[str, StateDigests]:
        """Do the work.

        Raises:
            StateError: the file cannot be read.
        """
        file, names = self.file, {number: info.name for number, info in enumerate(self.file.header.states)}
        wanted = [number for number, name in names.items() if name in self.layouts]
        digesters = {name: StateDigester(layout) for name, layout in self.layouts.items()}
        found = {name: StateDigests() for name in self.layouts}
        with at(operator=self.operator):
            for number, records in file.scan(wanted, self.context, file.key_groups):
                name = names[number]
                layout = self.layouts[name]
                with at(state=name):
                    keys = plan_columns(layout.key).decode(records.data, records.key_starts, records.key_ends).array
                    values = pa.nulls(len(records))
                    if layout.state_type != StateKind.TIMER:
                        spans = (records.data, records.value_starts, records.value_ends)
                        values = plan_columns(layout.value).decode(*spans).array
                    digesters[name].add(records.key_groups, keys, values)
                    skip = _TIMESTAMP if layout.state_type == StateKind.TIMER else 0
                    try:
                        groups = self.hashes.assign_keys(records, layout.max_parallelism, skip=skip)
                    except UnsupportedError:
                        found[name].unhashed += len(records)
                        continue
                    wrong = records.key_groups[groups != records.key_groups]
                    found[name].misplaced.update(wrong.tolist())
        for name, digester in digesters.items():
            found[name].sums = digester.sums
        return found


def digest_elements(subtasks: npt.NDArray[np.int32], keys: pa.Array | None, values: pa.Array, parallelism: int) -> Sums:
    """Digests of elements of a list state, or of entries of a broadcast state, by subtask.

    Args:
        subtasks: i32[n].
        keys: of entries; None of elements, which are identified by their values. Their order does not count.
        values: elements, or values of the entries.
        parallelism: number of subtasks.
    """
    digest = ColumnDigest(parallelism, [VALUES])
    digest.add(subtasks, identify_rows([values if keys is None else keys]), {VALUES: values})
    return digest.sums


@dataclass(frozen=True)
class SubtaskDigests:
    """Reads what one subtask has of a list or broadcast state and digests it; one task.

    Attributes:
        operator: label, for errors.
        subtask_state: of the subtask.
        context: of the layouts.
        parallelism: number of subtasks.
    """

    operator: str
    subtask_state: NonKeyedSubtaskState
    context: LayoutContext
    parallelism: int

    def run(self) -> Sums:
        """Do the work.

        Raises:
            StateError: the state cannot be read.
        """
        info = self.subtask_state.info
        with at(operator=self.operator, state=info.name):
            file = self.subtask_state.read()
            keys: pa.Array | None = None
            if info.backend_type is BackendStateType.BROADCAST:
                keys, values = read_broadcast_state(file, info, self.context)
            else:
                values = read_list_state(file, info, self.context)
            subtasks = np.full(len(values), self.subtask_state.subtask, np.int32)
            return digest_elements(subtasks, keys, values, self.parallelism)
