"""Multi-part uploads to S3."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import StateError
from state_pipelines.storage.faults import request
from state_pipelines.storage.part_uploads import FileRange, PartUpload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.storage.locations import Location


class S3Upload(PartUpload):
    """A new object on S3, which keeps none of the parts of an upload that is given up."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        bucket, key, _ = location.filesystem.split_path(location.path)
        self._object = {"Bucket": bucket, "Key": key}

    def _begin(self) -> None:
        self._object["UploadId"] = str(self._call("create_multipart_upload")["UploadId"])

    def _send_part(self, number: int, data: bytes) -> str:
        return str(self._call("upload_part", PartNumber=number, Body=data)["ETag"])

    def _copy_part(self, number: int, source: FileRange) -> str:
        bucket, key, version = source.location.filesystem.split_path(source.location.path)
        copied = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
        wanted = {"CopySource": copied, "CopySourceRange": f"bytes={source.start}-{source.end - 1}"}
        answer = self._call("upload_part_copy", source.location, PartNumber=number, **wanted)
        return str(answer["CopyPartResult"]["ETag"])

    def _complete(self, parts: Sequence[str]) -> None:
        listed = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(parts, 1)]
        filesystem, path = self._location.filesystem, self._location.path

        def complete() -> None:
            try:
                filesystem.call_s3("complete_multipart_upload", **self._object, MultipartUpload={"Parts": listed})
            except FileNotFoundError:
                # The upload is gone after an attempt whose answer was lost.
                if int(filesystem.call_s3("head_object", **_without_id(self._object))["ContentLength"]) != self.size:
                    raise
            filesystem.invalidate_cache(path)

        request(self._location, "write the file", complete, writes=True)

    def _abort(self) -> None:
        with suppress(StateError):
            self._call("abort_multipart_upload")

    def _call(self, method: str, source: Location | None = None, **arguments: Any) -> dict[str, Any]:
        filesystem = self._location.filesystem

        def call() -> dict[str, Any]:
            answer: dict[str, Any] = filesystem.call_s3(method, **self._object, **arguments)
            return answer

        if source is None:
            return request(self._location, "write the file", call, writes=True)
        return request(source, f"copy the file to {self._location}", call)


def _without_id(arguments: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in arguments.items() if name != "UploadId"}
