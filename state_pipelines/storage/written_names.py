"""Names that Flink and this package give to directories and files of snapshots.

Sources: `AbstractFsCheckpointStorageAccess` for directories, `FsCheckpointStreamFactory` for files.
"""

from __future__ import annotations

import re

CHECKPOINT_DIRECTORY = re.compile(r"chk-(\d+)")
"""Directory of one checkpoint (`CHECKPOINT_DIR_PREFIX`); the group is its number."""

JOB_DIRECTORY = re.compile(r"[0-9a-f]{32}")
"""Directory of one job: its id."""

SAVEPOINT_DIRECTORY = re.compile(r"savepoint-(?:([0-9a-f]{6})-)?[0-9a-f]{12}")
"""Directory of one savepoint: digits of the job id, then random ones (`initializeLocationForSavepoint`)."""

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""Pattern of a random UUID as text."""

PENDING_METADATA = re.compile(r"_metadata\.pending(?:\.[0-9a-f]{32}\.pending)?")
"""The unfinished `_metadata` of `SnapshotWriter`, and the file that becomes it (`files.replace_file`)."""

MANIFEST_FILE = "_state-pipelines.json"
"""Name of the manifest, in the directory of the snapshot."""

_MANIFEST = re.escape(MANIFEST_FILE)
_STATE_FILE = re.compile(rf"{UUID}|{_MANIFEST}")
# Flink's names, and those of `NativeFiles.write_rocksdb`: a UUID with the number of a file, or `meta`.
_OWN_FILE = re.compile(rf"{UUID}(?:-(?:\d+|meta))?|{_MANIFEST}", re.ASCII)
_SCRATCH = re.compile(rf"\.(.+)-{UUID}")


def is_state_file(name: str) -> bool:
    """Return whether a file has a name that Flink gives to files of state, a random UUID, or is a manifest."""
    return _STATE_FILE.fullmatch(name) is not None


def is_own_file(name: str) -> bool:
    """Return whether a file has a name that this package gives to the files of a new snapshot."""
    return _OWN_FILE.fullmatch(name) is not None


def find_scratch_target(name: str) -> str | None:
    """Return the name of the target whose scratch directory (`scratch.name_scratch`) has this name; None for others."""
    found = _SCRATCH.fullmatch(name)
    return None if found is None else found[1]
