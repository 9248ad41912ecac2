"""The manifest of a snapshot that this package wrote: sizes and checksums of its files, in a file beside `_metadata`.

Flink reads only files that `_metadata` names, so that it ignores the manifest. docs/formats.md describes the format.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import FormatError, MissingFileError, UnsupportedVersionError, Where
from state_pipelines.storage.files import file_size, read_file
from state_pipelines.storage.reach import locate_named
from state_pipelines.storage.written_files import CHECKSUM, RecordedFile, compute_checksum
from state_pipelines.storage.written_names import MANIFEST_FILE

if TYPE_CHECKING:
    from state_pipelines.storage.locations import Location
    from state_pipelines.storage.path_mapping import PathMapping

MANIFEST_VERSION = 1
"""Version of the format that is written; a reader refuses a later one."""

# A million files.
_LARGEST = 256 << 20


@dataclass(frozen=True)
class Manifest:
    """Sizes and checksums of the files of a snapshot.

    Attributes:
        metadata: of `_metadata`; always with a checksum.
        files: of the data files in the directory of the snapshot, by name; without a checksum where the bytes did not
            pass through this package.
        referenced: of files elsewhere, as `_metadata` names them: their paths with the sizes that their handles state.
    """

    metadata: RecordedFile
    files: tuple[RecordedFile, ...]
    referenced: tuple[RecordedFile, ...] = ()


def write_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest; the inverse of `read_manifest`."""
    content = {
        "format": "state-pipelines-manifest",
        "version": MANIFEST_VERSION,
        "algorithm": CHECKSUM,
        "metadata": _to_json(manifest.metadata),
        "files": {each.name: _to_json(each) for each in manifest.files},
        "referenced": {each.name: _to_json(each) for each in manifest.referenced},
    }
    return json.dumps(content | {"checksum": _sign(content)}, indent=1).encode()


def _to_json(file: RecordedFile) -> dict[str, object]:
    return {"size": file.size} if file.checksum is None else {"size": file.size, "checksum": file.checksum}


def _sign(content: dict[str, Any]) -> str:
    return compute_checksum([json.dumps(content, sort_keys=True, separators=(",", ":")).encode()])


def read_manifest(data: bytes, file: str) -> Manifest:
    """Decode a manifest.

    Args:
        data: its content.
        file: its name in errors.

    Raises:
        FormatError: it is damaged.
        UnsupportedVersionError: a later release wrote it.
    """
    where = Where(file=file)
    hint = "Without it, only the checksums inside the files can be checked"
    try:
        content = json.loads(data)
        signature = content.pop("checksum")
        version = content["version"]
        is_whole = signature == _sign(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError("the manifest is damaged: it is not JSON with a checksum", where=where, hint=hint) from None
    if is_whole and version != MANIFEST_VERSION:
        what = f"the manifest has version {version}, this release reads {MANIFEST_VERSION}"
        raise UnsupportedVersionError(what, where=where, hint="Use the release that wrote the snapshot, or a later one")
    if not is_whole:
        what = "the manifest is damaged: it does not match its own checksum"
        raise FormatError(what, where=where, hint=hint)
    try:
        metadata = _from_json("_metadata", content["metadata"])
        if metadata.checksum is None:
            raise ValueError(metadata)
        return Manifest(
            metadata,
            tuple(_from_json(_require_plain(name), each) for name, each in content["files"].items()),
            tuple(_from_json(name, each) for name, each in content["referenced"].items()),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError("the manifest does not have the fields of its version", where=where, hint=hint) from None


def _from_json(name: str, each: dict[str, Any]) -> RecordedFile:
    size, checksum = each["size"], each.get("checksum")
    if type(size) is not int or size < 0 or not isinstance(checksum, str | None):
        raise ValueError(each)
    return RecordedFile(name, size, checksum)


def _require_plain(name: str) -> str:
    """Refuse names that lead out of the directory: `verify` reads the files, and the manifest may be forged."""
    if re.fullmatch(r"[\w.-]+", name, re.ASCII) is None or name in {".", ".."}:
        raise ValueError(name)
    return name


def find_manifest(directory: Location, path_mapping: PathMapping) -> Manifest | None:
    """Read the manifest of the snapshot in a directory; None where there is none.

    Raises:
        FormatError: it is damaged.
        OutOfReachError: it is a link to a file that the snapshot may not name, or a device.
        StorageError: the storage does not answer.
        UnsupportedVersionError: a later release wrote it.
    """
    location = locate_named(MANIFEST_FILE, directory, path_mapping, relative=True, handle="manifest")
    try:
        size = file_size(location)
        if size > _LARGEST:
            raise FormatError(
                f"the manifest has {size:,} bytes, more than one can have", where=Where(file=str(location))
            )
        data = read_file(location)
    except MissingFileError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise
    return read_manifest(data, str(location))
