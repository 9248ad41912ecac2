"""Snapshots outside the roots of a plan that may need files of the roots.

A job that was restored with CLAIM goes on using the files of the job before, whose directory is mostly beside its own
(`CheckpointCoordinator.restoreSavepoint`). So where a root is the directory of one job, the jobs beside it are read as
well, and so is what symbolic links to directories lead to.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError, StorageError, UsageError, Where
from state_pipelines.operations.retention.references import READ_THREADS, MetadataFile
from state_pipelines.storage import METADATA_FILE, Location, join, list_directory
from state_pipelines.storage.locations import is_below, is_local, parent
from state_pipelines.storage.reach import COMMON
from state_pipelines.storage.snapshot_listing import RETENTION_DIRECTORY
from state_pipelines.storage.written_names import CHECKPOINT_DIRECTORY, JOB_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.operations.retention.path_keys import PathKeys
    from state_pipelines.operations.retention.survey import Root, Survey
    from state_pipelines.storage import FileEntry

_LOCAL = "file:"


def require_whole_jobs(roots: Iterable[Root]) -> None:
    """Refuse roots inside the directory of a job, whose snapshots beside the root need its files.

    Raises:
        UsageError: a root is a directory such as `shared` or `chk-3`, or below one; names the directory of the job.
    """
    for root in roots:
        job = _find_job_above(root)
        if job is not None:
            raise UsageError(
                "the root is inside the directory of a job, and snapshots beside it need its files",
                where=Where(file=root.path),
                hint=f"Give the directory of the job as the root: {job}",
            )


def _find_job_above(root: Root) -> Location | None:
    """The directory of the job in which a root is, links followed; None where it is in none."""
    location = root.location
    if is_local(location):
        location = Location(location.filesystem, root.key.removeprefix(_LOCAL) or "/")
    while "/" in location.path.strip("/") or (location.path.startswith("/") and location.path.strip("/")):
        name, above = location.name, parent(location)
        if CHECKPOINT_DIRECTORY.fullmatch(name) or (name in COMMON and _is_job(above)):
            return above
        location = above
    return None


def _is_job(directory: Location) -> bool:
    if JOB_DIRECTORY.fullmatch(directory.name):
        return True
    try:
        entries = list_directory(directory)
    except StateError:
        # Directories above that we may not list have a name by chance; Flink would list its own.
        return False
    return any(each.is_directory and CHECKPOINT_DIRECTORY.fullmatch(each.location.name) for each in entries)


def find_parents(roots: Iterable[Root]) -> list[Location]:
    """The directories above roots that are directories of jobs: those of checkpoints, with other jobs beside them."""
    locations = []
    for root in roots:
        location = root.location
        if is_local(location):
            location = Location(location.filesystem, root.key.removeprefix(_LOCAL))
        if "/" in location.path and _is_job(location):
            locations.append(parent(location))
    return list(dict.fromkeys(locations))


def list_beside(top: Location, roots: Iterable[Root], keys: PathKeys) -> tuple[list[FileEntry], list[StateError]]:
    """List the `_metadata` files in a directory, in those below it, and in the `chk-N` below these.

    Args:
        top: the directory, such as that of the checkpoints of all jobs.
        roots: directories that are left out.
        keys: the one spelling of paths.

    Returns:
        (the files, the errors of directories that cannot be listed).

    Raises:
        StorageError: the storage fails for the moment.
    """
    errors: list[StateError] = []
    skipped = {root.key for root in roots}

    def list_one(directory: Location) -> list[FileEntry]:
        try:
            return list_directory(directory)
        except StateError as error:
            if isinstance(error, StorageError) and error.transient:
                raise
            if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                errors.append(error)
            return []

    entries = list_one(top)
    metadata = [each for each in entries if _is_metadata(each)]
    for is_last in (False, True):
        inner = [each.location for each in entries if _may_hold_snapshots(each, only_checkpoints=is_last)]
        inner = [each for each in inner if keys.directory_key(each.url) not in skipped]
        with ThreadPoolExecutor(READ_THREADS) as threads:
            entries = [entry for listed in threads.map(list_one, inner) for entry in listed]
        metadata += [each for each in entries if _is_metadata(each)]
    return metadata, errors


def find_neighbours(found: Survey, keys: PathKeys) -> list[MetadataFile]:
    """Find the `_metadata` files of the jobs beside roots that are jobs, and behind links; notes what cannot be listed.

    Args:
        found: a survey with the listings of its roots.
        keys: the one spelling of paths.
    """
    files: dict[str, FileEntry] = {}
    errors: list[StateError] = []
    for top in dict.fromkeys((*find_parents(found.roots), *_find_linked(found))):
        listed, failed = list_beside(top, found.roots, keys)
        files.update((each.location.url, each) for each in listed)
        errors += failed
    if errors:
        more = f", and {len(errors) - 1:,} more" if len(errors) > 1 else ""
        found.notes.append(
            f"snapshots that need files of the roots may be where nothing can be listed: {errors[0]}{more}"
        )
    return [
        MetadataFile(
            str(each.location), keys.directory_key(parent(each.location).url), each.location, each.size, each.modified
        )
        for each in files.values()
    ]


def _find_linked(found: Survey) -> Iterable[Location]:
    """The directories outside the roots to which symbolic links below them lead."""
    for link in found.links:
        location = join(link.root.location, link.entry.name)
        if is_local(location) and os.path.isdir(location.path):  # noqa: PTH112
            real = os.path.realpath(location.path)
            key = f"{_LOCAL}{real}"
            if not any(is_below(root.key, key) or is_below(key, root.key) for root in found.roots):
                yield Location(location.filesystem, real)


def _is_metadata(entry: FileEntry) -> bool:
    return entry.location.name == METADATA_FILE and not entry.is_directory


def _may_hold_snapshots(entry: FileEntry, *, only_checkpoints: bool) -> bool:
    name = entry.location.name
    if not entry.is_directory or name in (*COMMON, RETENTION_DIRECTORY):
        return False
    return not only_checkpoints or CHECKPOINT_DIRECTORY.fullmatch(name) is not None
