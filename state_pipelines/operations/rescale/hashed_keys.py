"""Hashes of keys: whether keys lie in the key groups in which these put them, and who can compute them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from state_pipelines.errors import ProofError, Where
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.keyed.keys import TIMESTAMP
from state_pipelines.operations.local_processes import count_kernel_threads
from state_pipelines.operations.rescale.snapshot_merge import show_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.keyed.record_layout import KeyedRecords


class KeyHasher(Protocol):
    """Knows the hash codes of keys; can be sent to other processes and shared by threads."""

    @property
    def has_kernel(self) -> bool:
        """Whether keys are hashed by a kernel, where they lie."""

    def hash_keys(self, records: KeyedRecords) -> npt.NDArray[np.int32]:
        """`hashCode()` of each key, i32[n]; a key begins at `key_starts`, and more may follow it up to `key_ends`."""


def count_threads(hasher: KeyHasher | None, files: Sequence[KeyedFile] = ()) -> int:
    """Number of threads that can find the records of files, and hash their keys, at a time; see `Work`.

    Hashing of keys that no kernel knows is Python's.
    """
    return count_kernel_threads(files) if hasher is None or hasher.has_kernel else 1


def hash_keys(hasher: KeyHasher, records: KeyedRecords, *, timers: bool) -> npt.NDArray[np.int32]:
    """`hashCode()` of the key of each record, i32[n]; the key of a timer follows its timestamp."""
    return hasher.hash_keys(replace(records, key_starts=records.key_starts + TIMESTAMP) if timers else records)


def require_key_groups(
    operator: str,
    header: KeyedHeader,
    state: int,
    context: RecordContext,
    records: KeyedRecords,
    hashes: npt.NDArray[np.int32],
) -> None:
    """Check that keys lie in the key groups of their hashes.

    Args:
        operator: label of the operator, for errors.
        header: of the file.
        state: id of the state.
        context: of the operator, with the max parallelism of the key groups.
        records: of the state.
        hashes: i32[n], `hashCode()` of each key.

    Raises:
        ProofError: one does not.
    """
    key_groups = assign_key_groups(hashes, context.max_parallelism)
    wrong = np.flatnonzero(key_groups != records.key_groups)
    if len(wrong):
        row = int(wrong[0])
        key = records.data[records.key_starts[row] : records.key_ends[row]].tobytes()
        raise ProofError(
            f"the key {show_key(header, state, context, key)} lies in key group {records.key_groups[row]} of "
            f"{context.max_parallelism}, its hash says {key_groups[row]} ({len(wrong)} of {len(records)} keys at hand "
            "lie elsewhere)",
            where=Where(
                file=records.file,
                offset=records.offset + int(records.key_starts[row]),
                operator=operator,
                state=header.states[state].name,
            ),
            hint="The hash is not that of the job's keys; nothing was published",
        )
