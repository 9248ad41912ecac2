"""Another parallelism for a whole snapshot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.metadata import CheckpointProperties, write_metadata
from state_pipelines.operations.rescale.assembly import NeedsRecords
from state_pipelines.operations.rescale.rescale import plan_operator
from state_pipelines.operations.rescale.rescale_request import EditedOperator, OperatorRequest, RescaleRequest
from state_pipelines.operations.write.publication import FileMode, plan_copies
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import SnapshotWriter, resolve

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from state_pipelines.metadata import OperatorState
    from state_pipelines.operations.rescale.assembly import FileAssembly
    from state_pipelines.snapshot import Operator, Snapshot
    from state_pipelines.storage import Location


@dataclass(frozen=True)
class Reassigned:
    """An operator at its new parallelism, and its new files."""

    operator: OperatorState
    assemblies: tuple[FileAssembly, ...]


def plan_parallelism(
    operator: Operator, parallelism: int, target: Location, *, narrow: bool = True
) -> Reassigned | NeedsRecords:
    """The plan of one operator whose parallelism alone changes; files that stay are linked, so that handles narrow."""
    request = OperatorRequest(parallelism=parallelism)
    edited = EditedOperator(operator, (), request, operator.label)
    files = FileMode.LINK if narrow else FileMode.COPY
    plan = plan_operator(edited, RescaleRequest(), target, files=files, verify=True)
    return Reassigned(plan.state, plan.assemblies) if plan.records is None else NeedsRecords(plan.change.keyed_text)


def reassign(
    snapshot: Snapshot,
    parallelism: int,
    target: Path,
    *,
    operators: Container[str] | None = None,
    narrow: bool = True,
    files: FileMode = FileMode.COPY,
) -> Snapshot:
    """Write the snapshot with another parallelism of some operators (by id; of all), and open the result."""
    with SnapshotWriter(resolve(str(target))) as writer:
        states: list[OperatorState] = []
        assemblies: list[FileAssembly] = []
        for operator in snapshot.operators:
            plan = Reassigned(operator.metadata, ())
            if operators is None or operator.id in operators:
                planned = plan_parallelism(operator, parallelism, writer.target, narrow=narrow)
                assert isinstance(planned, Reassigned), planned
                plan = planned
            states.append(plan.operator)
            assemblies += plan.assemblies
        old = snapshot.metadata.properties
        metadata, copies = plan_copies(
            snapshot,
            replace(snapshot.metadata, operator_states=tuple(states)),
            writer.target,
            old if isinstance(old, CheckpointProperties) else None,
            files=files,
            verify=True,
        )
        for piece in assemblies:
            piece.run()
        for each in copies:
            each.run()
        writer.publish(write_metadata(metadata))
    return open_snapshot(str(target), snapshot.declarations)
