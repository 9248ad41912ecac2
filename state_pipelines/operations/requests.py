"""Requests: YAML files in which people ask a deployment for one operation each.

    operation: rescale          # migrate, rescale, convert, copy, pin, unpin, verify or retain
    snapshot: latest            # name of its directory, key of its partition, path below a root, or latest
    max_parallelism: 1024       # the rest are the fields of that operation

The default operation is `rescale`. Its fields are those of `operations.rescale.rescale_request`, and `files`. Keys are
part of the request itself, because the run may be on another machine than the file.

The outcome of a request is a JSON file of the same name with the ending `.result.json` beside it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import UsageError, Where, at
from state_pipelines.operations.convert.conversion_plan import InFlight
from state_pipelines.operations.rescale.rescale_request import parse_request as parse_rescale_request
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.operations.write.state_formats import Format
from state_pipelines.storage import Location, join, parent, read_file
from state_pipelines.storage.files import is_directory, list_directory
from state_pipelines.storage.yaml_documents import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

LATEST = "latest"
"""Stands for the newest snapshot of the job."""

RESULT_SUFFIX = ".result.json"
_REQUEST_SUFFIXES = (".yaml", ".yml")
_LARGEST = 1 << 20


class Operation(StrEnum):
    """Operations that a request can ask for."""

    MIGRATE = "migrate"
    RESCALE = "rescale"
    CONVERT = "convert"
    COPY = "copy"
    PIN = "pin"
    UNPIN = "unpin"
    VERIFY = "verify"
    RETAIN = "retain"


class RequestStatus(StrEnum):
    """Outcome of a request, in its result file."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"


# The fields of each operation with their type, besides `operation` and `snapshot`.
_TEXT, _FLAG = (str, int, float), (bool,)
_FIELDS: Mapping[Operation, Mapping[str, tuple[type, ...]]] = {
    Operation.MIGRATE: {"to": _TEXT, "from_revision": _TEXT},
    Operation.CONVERT: {"format": _TEXT, "compress": _FLAG, "in_flight": _TEXT, "files": _TEXT},
    Operation.COPY: {"target": _TEXT, "files": _TEXT},
    Operation.PIN: {"reason": _TEXT},
    Operation.UNPIN: {},
    Operation.VERIFY: {"depth": _TEXT},
    Operation.RETAIN: {"policy": (dict,), "apply": _TEXT},
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "format": tuple(each.value for each in Format),
    "in_flight": tuple(each.value for each in InFlight),
    "files": tuple(each.value for each in FileMode),
}


@dataclass(frozen=True)
class Request:
    """One operation that somebody asks for.

    Attributes:
        operation: the operation.
        snapshot: name, partition key, path or `latest`; None for `retain`, which concerns all snapshots of a job.
        options: the fields of the operation by name; for `rescale` the content that `parse_request` of
            `operations.rescale.rescale_request` takes, and `files`.
    """

    operation: Operation
    snapshot: str | None
    options: Mapping[str, Any]

    def to_yaml(self, *, without: Collection[str] = ()) -> str:
        """The options but some as YAML text, for the configuration of a run."""
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
        """
        where = Where(file=str(self.location))
        with at(file=str(self.location)):
            data = read_file(self.location, most=_LARGEST)
            try:
                content = parse_yaml(data.decode())
            except UnicodeDecodeError as error:
                raise UsageError(f"the request is not text: {error}", where=where) from None
            except (yaml.YAMLError, RecursionError, ValueError) as error:
                raise UsageError(f"the request is not YAML: {error}", where=where) from None
            return parse_request(content)


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
    """Check the content of a request file.

    Raises:
        UsageError: it is not a request; names the field.
    """
    if not isinstance(content, dict):
        raise UsageError(f"the request is not a mapping but {content!r:.60}")
    try:
        operation = Operation(content.get("operation", Operation.RESCALE.value))
    except ValueError:
        hint = f"Choose from {', '.join(Operation)}"
        raise UsageError(f"operation is {content.get('operation')!r}", hint=hint) from None
    options = {str(name): value for name, value in content.items() if name not in ("operation", "snapshot")}
    snapshot = _read_snapshot(operation, content)
    if operation is Operation.RESCALE:
        _check_rescale(options)
    else:
        _check_fields(operation, options)
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
    """Content of a result file.

    Args:
        request: the request.
        status: outcome of the request.
        finished: when the operation ended.
        run: id of the run that executed the request, empty when there was none.
        error: the reason of a failure.
        results: what the operation produced, such as `path`.
    """
    content = {
        "request": request.name,
        "mark": request.mark,
        "status": status,
        "run": run or None,
        "finished": finished.isoformat(),
        "error": error or None,
        **results,
    }
    return (json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n").encode()


def _read_snapshot(operation: Operation, content: Mapping[str, Any]) -> str | None:
    snapshot = content.get("snapshot")
    if operation is Operation.RETAIN:
        if snapshot is not None:
            raise UsageError("retain concerns all snapshots of the job, so a request for it names none")
        return None
    if not isinstance(snapshot, str) or not snapshot:
        raise UsageError("the request names no snapshot", hint=f"Such as snapshot: savepoint-1a2b, or {LATEST}")
    return snapshot


def _check_fields(operation: Operation, options: Mapping[str, Any]) -> None:
    known = _FIELDS[operation]
    for name, value in options.items():
        if name not in known:
            hint = f"It knows {', '.join(known) or 'no field but snapshot'}"
            raise UsageError(f"a request to {operation} does not know {name!r}", hint=hint)
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not _FLAG):
            raise UsageError(f"{name} of a request to {operation} is {value!r:.60}")
        _check_choice(name, value)


def _check_choice(name: str, value: object) -> None:
    if name in _CHOICES and value not in _CHOICES[name]:
        raise UsageError(f"{name} is {value!r}", hint=f"Choose from {', '.join(_CHOICES[name])}")


def _check_rescale(options: dict[str, Any]) -> None:
    if "files" in options:
        _check_choice("files", options["files"])
    rest = {name: value for name, value in options.items() if name != "files"}
    operators = rest.get("operators")
    for name, body in operators.items() if isinstance(operators, dict) else ():
        for choice in ("keep_keys", "drop_keys") if isinstance(body, dict) else ():
            if isinstance(body.get(choice), dict):
                raise UsageError(
                    f"{choice} of operators.{name} names a file, which a run cannot read",
                    hint=f"Write the keys into the request, such as {choice}: [alice, bob]",
                )
    if parse_rescale_request(rest).is_empty:
        raise UsageError("the request asks for nothing", hint="Give parallelism, max_parallelism or operators")
