"""The snapshot that was taken before another one of the same job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from state_pipelines.errors import NotFoundError
from state_pipelines.operations.inventory.table import Inventory

if TYPE_CHECKING:
    from state_pipelines.operations.inventory.summary import SnapshotSummary

_ID_DIGITS = 6


def find_previous(inventory: Inventory, key: str) -> SnapshotSummary | None:
    """The newest readable snapshot that is older than that of a key; None when there is none.

    One of the same Flink job comes before others: a job that is started again has another id.

    Args:
        inventory: of the job, all of whose roots are those of one program.
        key: partition key.

    Raises:
        NotFoundError: the inventory does not have the key, or does not know its time.
    """
    found = inventory.find(key)
    if not found or found[0].modified is None:
        raise NotFoundError(f"the inventory has no time of a snapshot {key}", hint="Materialize the inventory first")
    # Of copies, the oldest is where the snapshot was taken.
    this = found[-1]
    table = inventory.table
    older = Inventory(
        table.filter(
            pc.and_(
                pc.and_(pc.less(table["modified"], this.modified), pc.not_equal(table["key"], key)),
                pc.equal(table["unreadable"], ""),
            )
        )
    )
    first = next(iter(older), None)
    if this.job_id is None:
        return first
    digits = this.job_id[:_ID_DIGITS]
    return next((each for each in older if each.job_id is not None and each.job_id.startswith(digits)), first)
