"""Another parallelism for a whole snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.metadata import CheckpointProperties, write_metadata
from state_pipelines.operations.publishing import FileMode, plan_copies
from state_pipelines.operations.rescaling.assembly import Reassigned, plan_parallelism
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import SnapshotWriter, resolve

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from state_pipelines.metadata import OperatorState
    from state_pipelines.operations.rescaling.assembly import FileAssembly
    from state_pipelines.snapshot import Snapshot


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
        pieces: list[FileAssembly] = []
        for operator in snapshot.operators:
            plan = Reassigned(operator.metadata, ())
            if operators is None or operator.id in operators:
                planned = plan_parallelism(operator, parallelism, writer.target, narrow=narrow)
                assert isinstance(planned, Reassigned), planned
                plan = planned
            states.append(plan.operator)
            pieces += plan.pieces
        old = snapshot.metadata.properties
        metadata, copies = plan_copies(
            snapshot,
            replace(snapshot.metadata, operator_states=tuple(states)),
            writer.target,
            old if isinstance(old, CheckpointProperties) else None,
            files=files,
            verify=True,
        )
        for piece in pieces:
            piece.run()
        for each in copies:
            each.run()
        writer.publish(write_metadata(metadata))
    return open_snapshot(
        str(target), uids=snapshot.uids, classes=snapshot.classes, key_serializers=snapshot.key_serializers
    )
