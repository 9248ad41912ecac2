"""Copies of snapshots of real Flink, to be damaged."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.metadata.streams import list_references, locate_file, replace_stream_handles
from state_pipelines.operations.auditing import audit_snapshot
from state_pipelines.snapshot import open_snapshot
from tests.snapshots import CASES, Case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.metadata.streams import StreamReference
    from state_pipelines.operations.auditing import AuditReport, Depth
    from state_pipelines.snapshot import Snapshot

BY_NAME = {str(case): case for case in CASES}


@dataclass(frozen=True)
class Copy:
    """A copy of a case, with what its absolute paths name."""

    case: Case
    folder: Path
    path: Path

    @property
    def metadata(self) -> Path:
        return self.path / "_metadata"

    def open(self) -> Snapshot:
        mapping = (f"file:{self.case.written}={self.folder}",)
        return open_snapshot(str(self.path), path_mapping=mapping, uids=self.case.uids)

    def audit(self, depth: Depth | str) -> AuditReport:
        return audit_snapshot(self.open(), depth)

    def files(self, choose: Callable[[StreamReference], bool] = lambda _: True) -> list[Path]:
        """Physical files of the handles that are chosen, the largest first."""
        from pathlib import Path

        snapshot = self.open()
        found = {
            Path(locate_file(each.handle, snapshot.location.directory, snapshot.path_mapping).path)  # type: ignore[arg-type]
            for each in list_references(snapshot.metadata)
            if (hasattr(each.handle, "path") or hasattr(each.handle, "relative_path")) and choose(each)
        }
        return sorted(found, key=lambda path: (path.stat().st_size, str(path)), reverse=True)

    def edit(self, change: Callable[[CheckpointMetadata], CheckpointMetadata]) -> None:
        """Write a changed `_metadata`."""
        metadata = read_metadata(self.metadata.read_bytes())
        self.metadata.write_bytes(write_metadata(change(metadata)))

    def edit_handles(self, change: Callable[[StreamReference], StreamStateHandle]) -> None:
        self.edit(lambda metadata: replace_stream_handles(metadata, change))


def copy_case(name: str, target: Path) -> Copy:
    """Copy the folder of a case, with the snapshot and the files beside it."""
    case = BY_NAME[name]
    folder = target / case.folder.name
    shutil.copytree(case.folder, folder)
    return Copy(case, folder, folder / case.path.relative_to(case.folder))


__all__ = ["BY_NAME", "Copy", "copy_case", "replace"]
