"""Publication of a checkpoint through the one transaction, and what an error of the storage leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import MissingFileError, StateError
from state_pipelines.metadata import write_metadata
from state_pipelines.storage import METADATA_FILE, join, read_file

if TYPE_CHECKING:
    from collections.abc import Collection

    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.operations.write.transaction import SnapshotTransaction
    from state_pipelines.storage import Location


@dataclass(frozen=True)
class Publication:
    """The result of a publication that was not refused.

    Attributes:
        error: None for a published checkpoint, else the error that leaves open whether it was published.
    """

    error: StateError | None = None


def publish(
    transaction: SnapshotTransaction, metadata: CheckpointMetadata, beside: Collection[Location]
) -> Publication:
    """Write `_metadata` of a checkpoint whose data files are complete.

    Args:
        transaction: of the directory of the checkpoint, entered; it is left where the checkpoint is published or may
            be.
        metadata: of the checkpoint.
        beside: directories besides its own whose files it may name.

    Raises:
        StateError: it was not published; the transaction is still to be left.
    """
    try:
        transaction.stage(metadata, None, beside=beside)
        transaction.commit()
    except StateError as error:
        doubt = _find_doubt(transaction.target, write_metadata(metadata), error)
        if doubt is None:
            raise
        return doubt
    transaction.__exit__(None, None, None)
    return Publication()


def _find_doubt(target: Location, written: bytes, error: StateError) -> Publication | None:
    """Look for the `_metadata` after an error; None where there is none for certain.

    The last response of a storage may be lost after it has done what was asked (`PossibleInconsistentStateException`).
    """
    try:
        found = read_file(join(target, METADATA_FILE))
    except MissingFileError as missing:
        # Other causes, such as a permission, do not say that there is none.
        is_certain = isinstance(missing.__cause__, FileNotFoundError | NotADirectoryError)
        return None if is_certain else Publication(error)
    except StateError:
        return Publication(error)
    return Publication() if found == written else Publication(error)
