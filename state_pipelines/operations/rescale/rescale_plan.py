"""Plan for one operator: in words, and as tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.operations.rescale.record_regrouping import Gather
from state_pipelines.operations.write.file_names import make_file_name
from state_pipelines.operations.write.spills import choose_batch
from state_pipelines.storage import join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import RecordContext
    from state_pipelines.metadata import OperatorState
    from state_pipelines.metadata.handles import KeyedStateHandle
    from state_pipelines.operations.rescale.file_ranges import FileAssembly
    from state_pipelines.operations.rescale.moved_key_groups import MovedKeyGroups
    from state_pipelines.operations.rescale.operator_edits import EditedOperator, EditedSnapshot
    from state_pipelines.operations.rescale.record_regrouping import Collect, Shuffle
    from state_pipelines.operations.rescale.rescale_request import RescaleRequest
    from state_pipelines.operations.write.publication import FileMode
    from state_pipelines.operations.write.spilled_blocks import Spill
    from state_pipelines.storage import Location

KeyedHandles = tuple["KeyedStateHandle | None", "KeyedStateHandle | None"]
"""Managed and raw keyed state of a subtask."""


class Way(Enum):
    """The way that state of an operator gets into the new snapshot; the values are the words of reports."""

    NONE = "none"
    """There is no state."""
    FINISHED = "finished, no state"
    """The operator had finished."""
    COPIED = "as it is"
    RANGES = "ranges of bytes"
    """Subtasks take ranges of the old files."""
    RECORDS = "records"
    """Records are read and written."""


@dataclass(frozen=True)
class OperatorChange:
    """Change of an operator, for reports.

    Attributes:
        former: its label before.
        label: its label afterwards.
        parallelism: before and after.
        max_parallelism: before and after.
        keyed: how its keyed state gets there.
        operator_state: how its operator state gets there.
        reason: why the records of its keyed state are written again; empty where they are not.
        hashes: of user classes in the keys, which hash code was found and what proves it.
        moved: key groups that change subtask; None without keyed state, and where all records move to other key groups.
    """

    former: str
    label: str
    parallelism: tuple[int, int]
    max_parallelism: tuple[int, int]
    keyed: Way
    operator_state: Way
    reason: str = ""
    hashes: tuple[str, ...] = ()
    moved: MovedKeyGroups | None = None

    @property
    def keyed_text(self) -> str:
        """The way of keyed state, and why."""
        return f"{self.keyed.value} ({self.reason})" if self.reason else self.keyed.value


@dataclass(frozen=True)
class RecordsPlan:
    """Plan of the move of the records of one operator.

    Attributes:
        shuffles: by source, the tasks of the first stage; empty where key groups stay.
        header: of the new files.
        context: of the new key groups.
        collects: the tasks where key groups stay.
        hasher: where they do not.
    """

    header: KeyedHeader
    context: RecordContext
    shuffles: tuple[tuple[Shuffle, ...], ...] = ()
    collects: tuple[Collect, ...] = ()
    hasher: KeyHasher | None = None


@dataclass(frozen=True)
class OperatorPlan:
    """Tasks for one operator.

    Attributes:
        edited: the operator before.
        change: for people.
        state: its new metadata, in which keyed state that moves by records is still missing.
        assemblies: new files made of ranges of bytes.
        records: how records move; None when they do not.
        dropped: names of states that go.
        notes: what users should know.
    """

    edited: EditedOperator
    change: OperatorChange
    state: OperatorState
    assemblies: tuple[FileAssembly, ...] = ()
    records: RecordsPlan | None = None
    dropped: frozenset[str] = frozenset()
    notes: tuple[str, ...] = field(default=())

    def gather(
        self, target: Location, spills: Sequence[Sequence[Spill]], request: RescaleRequest, *, verify: bool
    ) -> list[Gather]:
        """The tasks of the second stage, from the spills of each source."""
        assert self.records is not None
        batch = choose_batch(sum(len(spill.blocks) for source in spills for spill in source))
        return [
            Gather(
                operator=self.change.label,
                subtask=subtask,
                header=self.records.header,
                key_groups=compute_key_group_range(subtask, self.state.parallelism, self.state.max_parallelism),
                sources=tuple(map(tuple, spills)),
                context=self.records.context,
                target=join(target, make_file_name()),
                rule=request.on_equal,
                hasher=self.records.hasher,
                verify=verify,
                batch=batch,
            )
            for subtask in range(self.state.parallelism)
        ]


@dataclass(frozen=True)
class RescalePlan:
    """Plan of a rescaling.

    Attributes:
        edited: the old state under the new operators.
        request: what was asked for.
        target: directory of the new snapshot.
        operators: one per operator of the new snapshot.
        files: what happens to files that stay as they are.
        verify: all copied state is read again and compared.
        notes: what users should know.
    """

    edited: EditedSnapshot
    request: RescaleRequest
    target: Location
    operators: tuple[OperatorPlan, ...]
    files: FileMode
    verify: bool
    notes: tuple[str, ...]

    @property
    def changes(self) -> tuple[OperatorChange, ...]:
        """Change of each operator of the new snapshot."""
        return tuple(plan.change for plan in self.operators)

    @property
    def dropped(self) -> tuple[str, ...]:
        """Labels of the operators that go."""
        return self.edited.dropped

    @property
    def size(self) -> int:
        """Bytes of the old state."""
        return self.edited.snapshot.file_size

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return {
            "path": None,
            "operators": [_change_to_json(change) for change in self.changes],
            "dropped": list(self.dropped),
            "notes": list(self.notes),
        }


def _change_to_json(change: OperatorChange) -> dict[str, object]:
    return {
        "operator": change.label,
        "former": change.former,
        "parallelism": list(change.parallelism),
        "max_parallelism": list(change.max_parallelism),
        "keyed_state": change.keyed_text,
        "operator_state": change.operator_state.value,
        "hashes": list(change.hashes),
        "moved": None if change.moved is None else change.moved.to_json(),
    }
