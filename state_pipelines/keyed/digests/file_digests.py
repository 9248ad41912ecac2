"""Digests of all states of a keyed file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.keyed.digests.record_digests import RecordDigest, digest_run
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.metadata.handles import KeyGroupRange


def digest_states(file: KeyedFile, context: RecordContext, key_groups: KeyGroupRange) -> dict[str, RecordDigest]:
    """Digests of all states of a file, by name; one pass over it.

    The bytes after the flag of a null in a map do not count: some writers leave them out.
    """
    totals = {info.name: RecordDigest() for info in file.header.states}
    for state_id, records in file.scan(range(len(file.header.states)), context, key_groups):
        info = file.header.states[state_id]
        totals[info.name] += digest_run(records, is_map=info.state_type == StateKind.MAP)
    return totals
