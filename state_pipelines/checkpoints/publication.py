"""Publication of a checkpoint through the one transaction, and what an error of the storage leaves open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import MissingFileError, StateError
from state_pipelines.metadata import write_metadata
from state_pipelines.storage import METADATA_FILE, join, read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.operations.write.transaction import SnapshotTransaction
    from state_pipelines.storage import Location


def publish(
    transaction: SnapshotTransaction,
    metadata: CheckpointMetadata,
    beside: Collection[Location],
    require_time: Callable[[], None],
) -> StateError | None:
    """Write `_metadata` of a checkpoint whose data files are complete.

    Args:
        transaction: of the directory of the checkpoint, entered; it is left where the checkpoint is published or may
            be.
        metadata: of the checkpoint.
        beside: directories besides its own whose files it may name.
        require_time: raises an error if the checkpoint has expired; called before the commit.

    Returns:
        None for a published checkpoint, else the error that leaves open whether it was published.

    Raises:
        StateError: it was not published; the transaction is still to be left.
    """
    try:
        transaction.stage(metadata, None, beside=beside)
        require_time()
        transaction.commit()
    except StateError as error:
        is_published = _find_out(transaction.target, write_metadata(metadata))
        if is_published is False:
            raise
        return None if is_published else error
    transaction.__exit__(None, None, None)
    return None


def _find_out(target: Location, written: bytes) -> bool | None:
    """Return whether the `_metadata` is there after an error; None where that is not certain.

    The last response of a storage may be lost after it has done what was asked (`PossibleInconsistentStateException`).
    """
    try:
        found = read_file(join(target, METADATA_FILE))
    except MissingFileError as missing:
        # Other causes, such as a permission, do not say that there is none.
        return False if isinstance(missing.__cause__, FileNotFoundError | NotADirectoryError) else None
    except StateError:
        return None
    return True if found == written else None
