"""New blobs on Azure in blocks, and copies that the service makes itself (`Put Block From URL`, `Copy Blob`)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fsspec.asyn import sync

from state_pipelines.storage.faults import request
from state_pipelines.storage.part_uploads import FileRange, PartUpload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fsspec import AbstractFileSystem

    from state_pipelines.storage.locations import Location

_SCOPE = "https://storage.azure.com/.default"

_SIGNED_FOR = timedelta(hours=2)
"""Time for which the signature of a source is valid; a block of 100 MiB is copied in seconds."""

_PAUSE = 0.5
"""Seconds between two looks at a copy that the service goes on with."""

_METADATA = {"is_directory": "false"}
"""Metadata of a blob by which adlfs tells files from directories."""


class AzureUpload(PartUpload):
    """A new blob of blocks. The service drops the blocks of an upload that is given up after a week."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        # Blocks that another attempt has left at the same blob have other names.
        self._name = uuid4().hex

    def _begin(self) -> None:
        """Send nothing: a blob exists when its list of blocks is committed."""

    def _send_part(self, number: int, data: bytes) -> str:
        block = self._name_block(number)
        self._call("write the file", lambda blob: blob.stage_block(block, BytesIO(data), length=len(data)))
        return block

    def _copy_part(self, number: int, source: FileRange) -> str:
        block = self._name_block(number)

        async def copy(blob: Any) -> None:
            url, options = await authorize_source(source.location)
            await blob.stage_block_from_url(
                block, url, source_offset=source.start, source_length=len(source), **options
            )

        request(source.location, f"copy the file to {self._location}", lambda: _run(self._location, copy))
        return block

    def _complete(self, parts: Sequence[str]) -> None:
        # Imported late: it is there when there is a file system of it.
        from azure.storage.blob import BlobBlock

        blocks = [BlobBlock(block_id=each) for each in parts]
        self._call("write the file", lambda blob: blob.commit_block_list(blocks, metadata=_METADATA))
        self._location.filesystem.invalidate_cache(self._location.path.rpartition("/")[0])

    def _abort(self) -> None:
        """Remove nothing: there is no request for that."""

    def _name_block(self, number: int) -> str:
        # All names of blocks of a blob have the same length.
        return f"{self._name}{number:05}"

    def _call(self, operation: str, call: Callable[[Any], Awaitable[Any]]) -> None:
        request(self._location, operation, lambda: _run(self._location, call), writes=True)


def copy_blob(source: Location, target: Location) -> None:
    """Let Azure copy a whole file, and wait until it has; called by what repeats requests.

    Raises:
        OSError: the service has given the copy up.
    """
    # Imported late: it is there when there is a file system of it.
    from azure.core.exceptions import ResourceExistsError

    async def copy(blob: Any) -> None:
        url = _find_blob(source.filesystem, source.path).url
        try:
            started = await blob.start_copy_from_url(url, metadata=_METADATA)
            status, reason = started["copy_status"], None
        except ResourceExistsError as error:
            if getattr(error, "error_code", None) != "PendingCopyOperation":
                raise
            # An attempt whose response was lost has started it.
            status, reason = "pending", None
        # Inside one account it is mostly done by now, but need not be.
        while status == "pending":
            await asyncio.sleep(_PAUSE)
            properties = await blob.get_blob_properties()
            status, reason = properties.copy.status, properties.copy.status_description
        if status != "success":
            raise OSError(f"the copy ended as {status}{f': {reason}' if reason else ''}")

    _run(target, copy)
    target.filesystem.invalidate_cache(target.path.rpartition("/")[0])


async def authorize_source(source: Location) -> tuple[str, dict[str, str]]:
    """The URL from which the service may read a blob itself, and options of the request that it needs for that.

    With the key of the account the URL is signed for this blob, to be read; with a token the request has it; a shared
    access signature is part of the URL already.
    """
    blob = _find_blob(source.filesystem, source.path)
    credential = blob.credential
    if key := getattr(credential, "account_key", None):
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas

        signature = generate_blob_sas(
            credential.account_name,
            blob.container_name,
            blob.blob_name,
            account_key=key,
            permission=BlobSasPermissions(read=True),
            expiry=datetime.now(UTC) + _SIGNED_FOR,
        )
        return f"{blob.url}{'&' if '?' in blob.url else '?'}{signature}", {}
    if hasattr(credential, "get_token"):
        token = await credential.get_token(_SCOPE)
        return blob.url, {"source_authorization": f"Bearer {token.token}"}
    return blob.url, {}


def _find_blob(filesystem: AbstractFileSystem, path: str) -> Any:
    container, name, version = filesystem.split_path(path)
    return filesystem.service_client.get_blob_client(container, name, version_id=version)


def _run(location: Location, call: Callable[[Any], Awaitable[Any]]) -> None:
    """Run a call on the client of a blob, in the thread of its file system."""

    async def run() -> None:
        async with _find_blob(location.filesystem, location.path) as blob:
            await call(blob)

    sync(location.filesystem.loop, run)
