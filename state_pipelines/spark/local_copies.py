"""Local copies of the remote state files that a migration reads several times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.metadata import list_references
from state_pipelines.metadata.references import StateCategory, StreamRole
from state_pipelines.metadata.streams import copy_stream, open_stream
from state_pipelines.operations.write.keyed_rewrite import make_file_name
from state_pipelines.storage import join
from state_pipelines.storage.locations import Threads, is_local

if TYPE_CHECKING:
    from collections.abc import Collection

    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import Location

_FILES = 4
"""Files that are copied at a time, each by several requests."""

_READ = (
    StateCategory.MANAGED_KEYED,
    StateCategory.RAW_KEYED,
    StateCategory.MANAGED_OPERATOR,
)


def copy_operators(snapshot: Snapshot, operators: Collection[bytes], scratch: Location) -> dict[str, Location]:
    """Copy the remote state files of some operators into a directory of this machine.

    Slices of merged files are not copied: the rest of such a file belongs to others.

    Args:
        snapshot: the snapshot; it need not be published.
        operators: ids of the operators.
        scratch: the directory.

    Returns:
        Location of each copy by URL of its file, for `Snapshot.with_copies`; empty where `scratch` is not local.

    Raises:
        StateError: a file cannot be read, or its copy not be written.
    """
    if not is_local(scratch):
        return {}
    wanted: dict[str, StateStream] = {}
    for reference in list_references(snapshot.metadata):
        if reference.operator.operator_id not in operators or reference.category not in _READ:
            continue
        holds_changes = reference.role is StreamRole.CHANGES
        directory = snapshot.location.directory
        stream = open_stream(reference.handle, directory, snapshot.path_mapping, holds_changes=holds_changes)
        if stream.location is None or stream.is_segment or is_local(stream.location):
            continue
        known = wanted.setdefault(stream.location.url, stream)
        if stream.size > known.size:
            wanted[stream.location.url] = stream
    copies = {url: join(scratch, make_file_name()) for url in wanted}
    with Threads(_FILES) as pool:
        for done in [pool.submit(copy_stream, stream, copies[url]) for url, stream in wanted.items()]:
            done.result()
    return copies
