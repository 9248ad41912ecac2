"""Requests: YAML files in which people ask a deployment for one operation each.

    operation: rescale          # migrate, convert, copy, pin, unpin, restore, verify, retain, upgrade or rehearse
    snapshot: latest            # name of its directory, key of its partition, path below a root, or latest
    max_parallelism: 1024       # the rest are the fields of that operation

The default operation is `rescale`. Its fields are those of `operations.rescale.rescale_request`, and `files`. Keys are
part of the request itself, because the run may be on another machine than the file.

The outcome of a request is a JSON file of the same name with the ending `.result.json` beside it.

The writer of a request can read its result, but not every file that the reader of the request can read. So a link to a
file in another directory is refused, and messages describe values instead of quoting them.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import Field

from state_pipelines.errors import FormatError, MissingFileError, UsageError, Where, at
from state_pipelines.operations.auditing.report import AuditRequest
from state_pipelines.operations.convert import ConversionRequest
from state_pipelines.operations.migration.history import MigrationRequest
from state_pipelines.operations.models import OperationModel
from state_pipelines.operations.rescale.rescale_request import parse_request as parse_rescale_request
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.redaction import redact, redact_path
from state_pipelines.storage import Location, join, parent, read_file
from state_pipelines.storage.documents import parse_yaml
from state_pipelines.storage.files import is_directory, list_directory
from state_pipelines.storage.locations import is_below, is_local

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from datetime import datetime

LATEST = "latest"
"""Value of `snapshot` that stands for the newest snapshot of the job."""

RESULT_SUFFIX = ".result.json"
_REQUEST_SUFFIXES = (".yaml", ".yml")
# Parsing this many bytes of short values takes seconds; a tick of the sensor has a minute.
_MOST_BYTES = 256 << 10
_MOST_BYTES_OF_RESULT = 1 << 20
_MOST_TEXT = 4096
# The names of the result file and of its temporary file are longer than that of the request; file systems limit names
# to 255 bytes.
_MOST_NAME = 200
_MOST_MESSAGE = 1000
_MOST_SHOWN = 60


class Operation(StrEnum):
    """Operations that a request can ask for."""

    MIGRATE = "migrate"
    RESCALE = "rescale"
    CONVERT = "convert"
    COPY = "copy"
    PIN = "pin"
    UNPIN = "unpin"
    RESTORE = "restore"
    VERIFY = "verify"
    RETAIN = "retain"
    UPGRADE = "upgrade"
    REHEARSE = "rehearse"


class RequestStatus(StrEnum):
    """Outcome of a request, in its result file."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"


class QueryRequest(MigrationRequest):
    """A migration along revisions, or to the new query of a job."""

    match: dict[str, str] = Field(default_factory=dict)
    """By uid of an operator of the old query, that of the new one which keeps its state, for ties."""

    backfill: dict[str, str] = Field(default_factory=dict)
    """By name of a column that starts empty, a Parquet table with its values."""


class CopyRequest(OperationModel):
    """A copy of all files of a snapshot."""

    target: str = ""
    """Directory of the copy; by default one below the results of the job."""

    files: Annotated[FileMode, Field(strict=False)] = FileMode.COPY
    """Copy the files, link them on one local volume, or reference them: the old snapshot must stay."""


class PinRequest(OperationModel):
    """A pin: retention never deletes the snapshot."""

    reason: str = ""
    """Reason, for readers of the pin file."""


class RestoreRequest(OperationModel):
    """A snapshot that comes back from quarantine, and is pinned."""

    reason: str = "restored from quarantine"
    """Reason of the pin."""


class RetentionRequest(OperationModel):
    """A plan of retention, or its application."""

    policy: dict[str, Any] = Field(default_factory=dict)
    """Refused: the policy is that of the job."""

    apply: str = ""
    """Fingerprint of the plan to apply; by default one is made."""


class UpgradeApproval(OperationModel):
    """An upgrade of the running job."""

    approve: str = ""
    """Fingerprint of the plan that may be carried out, as the op shows it, for results that are not `automatic`."""


MODELS: Mapping[Operation, type[OperationModel]] = {
    Operation.MIGRATE: QueryRequest,
    Operation.CONVERT: ConversionRequest,
    Operation.COPY: CopyRequest,
    Operation.PIN: PinRequest,
    Operation.UNPIN: OperationModel,
    Operation.RESTORE: RestoreRequest,
    Operation.VERIFY: AuditRequest,
    Operation.RETAIN: RetentionRequest,
    Operation.UPGRADE: UpgradeApproval,
    Operation.REHEARSE: OperationModel,
}
"""Model of the fields of each operation, besides `operation` and `snapshot`.

The fields of `rescale` have no model here: `operations.rescale.rescale_request` parses them.
"""
_WITHOUT_SNAPSHOT: Mapping[Operation, str] = {
    Operation.RETAIN: "all snapshots of the job",
    Operation.UPGRADE: "the running job",
    Operation.REHEARSE: "the running job",
}
"""Operations whose requests name no snapshot, with the subject that they concern instead, for messages."""
# Fields with paths, or with mappings and lists of paths.
_PATHS = ("snapshot", "target", "take", "merge", "backfill")


@dataclass(frozen=True)
class Request:
    """The operation that a request file asks for.

    Attributes:
        operation: the operation.
        snapshot: name, partition key, path or `latest`; None for `retain`, `upgrade` and `rehearse`.
        options: the fields of the operation by name; for `rescale` the content that `parse_request` of
            `operations.rescale.rescale_request` takes, and `files`.
    """

    operation: Operation
    snapshot: str | None
    options: Mapping[str, Any]

    def to_yaml(self, *, without: Collection[str] = ()) -> str:
        """Return the options except those in `without` as YAML text, for the configuration of a run."""
        options = {name: value for name, value in self.options.items() if name not in without}
        return yaml.safe_dump(options, sort_keys=False, allow_unicode=True)


@dataclass(frozen=True)
class RequestFile:
    """A file with a request.

    Attributes:
        location: the file.
        mark: 12 hexadecimal digits that change with the size of the file and the time of its last change.
    """

    location: Location
    mark: str

    @property
    def name(self) -> str:
        """Name of the file without its directory."""
        return self.location.name

    @property
    def result(self) -> Location:
        """Location of the result file."""
        return join(parent(self.location), self.name + RESULT_SUFFIX)

    def read(self) -> Request:
        """Read and check the request.

        Raises:
            UsageError: the file is not such a request; names the file and the field.
            StateError: the file cannot be read.
        """
        self._check_name()
        where = Where(file=str(self.location))
        with at(file=str(self.location)):
            if is_local(self.location) and _leads_elsewhere(self.location.path):
                raise UsageError("the request is a link to a file outside its directory", hint="Copy the file")
            data = read_file(self.location, most=_MOST_BYTES)
            try:
                content = parse_yaml(data.decode())
            except UnicodeDecodeError as error:
                raise UsageError(f"the request is not text: {error}", where=where) from None
            except yaml.YAMLError as error:
                raise UsageError(f"the request is not YAML: {_explain(error)}", where=where) from None
            return parse_request(content)

    def has_result(self) -> bool:
        """Return whether there is a result file, and it belongs to the present content of the request file.

        Raises:
            StorageError: the storage failed, so that it is not known.
        """
        try:
            content = json.loads(read_file(self.result, most=_MOST_BYTES_OF_RESULT))
        except (FormatError, MissingFileError, ValueError, RecursionError):
            return False
        return isinstance(content, dict) and content.get("mark") == self.mark

    def _check_name(self) -> None:
        # The name becomes a tag of the run, and databases store tags as UTF-8.
        if not self.name.isprintable():
            raise UsageError(f"the name {self.name!a} has characters that cannot be printed", hint="Rename it")
        size = len(self.name.encode())
        if size > _MOST_NAME:
            raise UsageError(f"the name has {size} bytes, more than {_MOST_NAME}", hint="Rename the file")


def list_requests(directory: Location) -> list[RequestFile]:
    """List the YAML files directly in a directory, by name; none when it does not exist."""
    if not is_directory(directory):
        return []
    found = []
    for entry in list_directory(directory):
        if not entry.is_directory and entry.location.name.endswith(_REQUEST_SUFFIXES):
            text = f"{entry.size} {entry.modified}"
            found.append(RequestFile(entry.location, hashlib.sha256(text.encode()).hexdigest()[:12]))
    return found


def parse_request(content: object) -> Request:
    """Check the parsed content of a request file, and make the request from it.

    Raises:
        UsageError: the content is not a request; the message names the field.
    """
    if not isinstance(content, dict):
        raise UsageError(f"the request is not a mapping but {_show(content)}")
    hint = f"Choose from {', '.join(Operation)}"
    name = content.get("operation", Operation.RESCALE.value)
    _check_text("operation", name, hint)
    if name not in list(Operation):
        raise UsageError(f"operation is {_show(name)}", hint=hint)
    operation = Operation(name)
    for field in _PATHS:
        _check_secrets(field, content.get(field))
    options = {str(name): value for name, value in content.items() if name not in ("operation", "snapshot")}
    snapshot = _read_snapshot(operation, content)
    if operation is Operation.RESCALE:
        _check_rescale(options)
    else:
        MODELS[operation].parse(options, f"a request to {operation}")
        options = {name: value for name, value in options.items() if value is not None}
        for name, value in options.items():
            if isinstance(value, str):
                _check_text(name, value)
    return Request(operation, snapshot, options)


def describe_result(
    request: RequestFile,
    status: RequestStatus,
    *,
    finished: datetime,
    run: str = "",
    error: str = "",
    **results: object,
) -> bytes:
    """Return the content of a result file, as JSON.

    Args:
        request: the request.
        status: outcome of the request.
        finished: when the operation ended.
        run: id of the run that executed the request, empty when there was none.
        error: the reason of a failure; secrets in it are redacted.
        results: what the operation produced, such as `path`.
    """
    content = {
        "request": request.name,
        "mark": request.mark,
        "status": status,
        "run": run or None,
        "finished": finished.isoformat(),
        "error": redact(error) or None,
        **results,
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, default=str)
    # Lone surrogates, as in file names that are not UTF-8, become escapes that JSON allows.
    return f"{text}\n".encode(errors="backslashreplace")


def _read_snapshot(operation: Operation, content: Mapping[str, Any]) -> str | None:
    snapshot = content.get("snapshot")
    if operation in _WITHOUT_SNAPSHOT:
        if snapshot is not None:
            raise UsageError(
                f"{operation} concerns {_WITHOUT_SNAPSHOT[operation]}, so a request for it names no snapshot"
            )
        return None
    hint = f"Such as snapshot: savepoint-1a2b, or {LATEST}"
    if snapshot in (None, ""):
        raise UsageError("the request names no snapshot", hint=hint)
    _check_text("snapshot", snapshot, hint)
    return str(snapshot)


def _check_text(name: str, value: object, hint: str = "") -> None:
    if not isinstance(value, str):
        raise UsageError(f"{name} is {_show(value)}, not text", hint=hint)
    if len(value) > _MOST_TEXT:
        raise UsageError(f"{name} has {len(value):,} characters, more than {_MOST_TEXT:,}")


def _check_secrets(name: str, value: object) -> None:
    # Dagster stores the paths in the configuration of the run, and shows them to everybody.
    for text in _list_texts(value):
        if redact_path(text) != text:
            raise UsageError(
                f"{name} has a user, a password or a query, which the run would show: {redact_path(text)}",
                hint="Give credentials by the environment or among the storage options (docs/storage.md)",
            )


def _list_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | set | tuple):
        for each in (*value.keys(), *value.values()) if isinstance(value, dict) else value:
            yield from _list_texts(each)


def _show(value: object) -> str:
    if value is None or isinstance(value, dict | list | set | tuple):
        return "empty" if value is None else f"a {type(value).__name__}"
    # Redact before cutting, because a password that is cut in half would not be recognized.
    return redact(repr(value))[:_MOST_SHOWN]


def _explain(error: yaml.YAMLError) -> str:
    """Return the reason of an error without the line that PyYAML quotes.

    PyYAML may cut the end of that line inside a password, which `redact` would then not recognize.
    """
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
    return redact(getattr(error, "problem", None) or str(error))[:_MOST_MESSAGE] + where


def _leads_elsewhere(path: str) -> bool:
    return not is_below(os.path.realpath(path), os.path.realpath(Path(path).parent))


def _check_rescale(options: dict[str, Any]) -> None:
    if "files" in options:
        CopyRequest.parse({"files": options["files"]}, "the request")
    rest = {name: value for name, value in options.items() if name != "files"}
    if parse_rescale_request(rest, directory=None).is_empty:
        raise UsageError("the request asks for nothing", hint="Give parallelism, max_parallelism or operators")
