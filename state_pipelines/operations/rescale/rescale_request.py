"""Requests for a rescaling, as values and in a file.

    parallelism: 6                    # of all operators; left out: as it is
    max_parallelism: 1024             # of all operators
    operators:
      orders:                         # uid, or 32-digit id
        parallelism: 12
        max_parallelism: 512
        uid: orders-v2                # the new uid
        key_hash: {com.acme.OrderKey: "objects(customer, region)"}
        drop_states: [cache]
      sessions:
        keep_keys: [alice, bob]       # values as `dump` shows them, or {file: keys.jsonl}
      obsolete: {drop: true}
      legacy: {operator_id: 0a44...}  # the new id, as `setUidHash` gives it
    take:
      enriched: {from: s3://bucket/other-savepoint, operator: enricher}
    merge:
      with: [s3://bucket/eu-savepoint]
      on_equal: error                 # or first, or last: what happens to keys that several have
    allow_idle_sources: true          # sources may get more subtasks than they know splits
    union_limit: 1073741824           # bytes of union state that a restored job may hold in all its subtasks together

JSON is YAML, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import UsageError, Where, at
from state_pipelines.metadata.checkpoint import parse_operator_id
from state_pipelines.operations.rescale.snapshot_merge import MergeRule
from state_pipelines.redaction import redact
from state_pipelines.storage.documents import MOST_LINES, parse_yaml, read_given_text

if TYPE_CHECKING:
    from collections.abc import Mapping


UNION_LIMIT = 1 << 30
"""Bytes of union state that a restored job may hold altogether, unless the request says more."""


@dataclass(frozen=True, kw_only=True)
class KeyChoice:
    """Only some keys.

    Attributes:
        keys: values as `keys.encode_keys` takes them.
        keep: the keys stay and all others go; False is the other way round.
    """

    keys: tuple[object, ...]
    keep: bool = True


@dataclass(frozen=True, kw_only=True)
class OperatorRequest:
    """Request for one operator.

    Attributes:
        operator: uid or 32-digit id.
        parallelism: the new number of subtasks; None as the request says for all.
        max_parallelism: the new number of key groups; None as the request says for all.
        uid: the new uid.
        operator_id: the new id, where a job gives ids instead of uids (`setUidHash`).
        drop: the operator goes, with all its state.
        drop_states: names of states that go.
        keys: only some keys stay.
        key_hashes: (class, hash expression) of classes in the keys, instead of what is found.
    """

    operator: str
    parallelism: int | None = None
    max_parallelism: int | None = None
    uid: str | None = None
    operator_id: str | None = None
    drop: bool = False
    drop_states: tuple[str, ...] = ()
    keys: KeyChoice | None = None
    key_hashes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class TakeRequest:
    """An operator out of another snapshot.

    Attributes:
        uid: the uid (or 32-digit id) that it gets.
        snapshot: path of the other snapshot.
        operator: its uid or id there.
    """

    uid: str
    snapshot: str
    operator: str


@dataclass(frozen=True, kw_only=True)
class RescaleRequest:
    """A rescaling; one that says nothing leaves everything as it is.

    Attributes:
        parallelism: of all operators that do not say it themselves.
        max_parallelism: likewise.
        operators: by operator.
        take: operators out of other snapshots.
        merge: paths of snapshots of the same job whose state comes in.
        on_equal: what happens to entries that several of them have.
        union_limit: bytes of union state that a restored job may hold altogether; every subtask gets all of it.
        allow_idle_sources: sources that are named may get more subtasks than they know splits.
    """

    parallelism: int | None = None
    max_parallelism: int | None = None
    operators: tuple[OperatorRequest, ...] = ()
    take: tuple[TakeRequest, ...] = ()
    merge: tuple[str, ...] = ()
    on_equal: MergeRule = MergeRule.ERROR
    union_limit: int = UNION_LIMIT
    allow_idle_sources: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it asks for nothing."""
        return self == RescaleRequest(
            on_equal=self.on_equal, union_limit=self.union_limit, allow_idle_sources=self.allow_idle_sources
        )


_REQUEST = ("parallelism", "max_parallelism", "operators", "take", "merge", "union_limit", "allow_idle_sources")
_OPERATOR = (
    *("parallelism", "max_parallelism", "uid", "operator_id", "drop", "drop_states"),
    *("keep_keys", "drop_keys", "key_hash"),
)
_TAKE = ("from", "operator")
_MERGE = ("with", "on_equal")


def read_request(path: str | Path) -> tuple[dict[str, Any], Path]:
    """Content of a request file, and the directory to which names of files in it are relative.

    Raises:
        UsageError: the file cannot be read, or is no mapping.
    """
    try:
        content = parse_yaml(read_given_text(path, "the request"))
    except yaml.YAMLError as error:
        raise UsageError(f"the request is not YAML: {error}", where=Where(file=str(path))) from None
    with at(file=str(path)):
        return dict(_open(content, None, "the request")), Path(path).parent


def load_request(path: str | Path) -> RescaleRequest:
    """Read a request from a file; names of files of keys in it are relative to its directory.

    Raises:
        UsageError: the file is not such a request; says where.
    """
    content, directory = read_request(path)
    with at(file=str(path)):
        return parse_request(content, directory)


def parse_request(content: object, directory: Path = Path()) -> RescaleRequest:
    """A request from the values of a file.

    Args:
        content: what the file holds.
        directory: where files of keys lie.

    Raises:
        UsageError: it is not such a request; says where.
    """
    known = _open(content, _REQUEST, "the request")
    merge = _open(known.get("merge"), _MERGE, "merge")
    operators = _open(known.get("operators"), None, "operators")
    taken = _open(known.get("take"), None, "take")
    limit = _read_number(known, "union_limit", "the request")
    if known.get("allow_idle_sources") not in (None, True, False):
        raise UsageError("allow_idle_sources of the request is true or false")
    return RescaleRequest(
        parallelism=_read_number(known, "parallelism", "the request"),
        max_parallelism=_read_number(known, "max_parallelism", "the request"),
        operators=tuple(_parse_operator(str(name), body, directory) for name, body in operators.items()),
        take=tuple(_parse_take(str(name), body) for name, body in taken.items()),
        merge=_read_texts(merge, "with", "merge"),
        on_equal=_read_rule(merge),
        union_limit=UNION_LIMIT if limit is None else limit,
        allow_idle_sources=bool(known.get("allow_idle_sources")),
    )


def _parse_operator(name: str, content: object, directory: Path) -> OperatorRequest:
    path = f"operators.{name}"
    body = _open(content, _OPERATOR, path)
    if body.get("drop") not in (None, True, False):
        raise UsageError(f"{path}.drop is true or false")
    if body.get("drop") and len(body) > 1:
        raise UsageError(f"{path} is dropped, so nothing else can be asked of it")
    if body.get("uid") is not None and body.get("operator_id") is not None:
        raise UsageError(f"{path} gets a uid or an operator_id, not both")
    new_id = body.get("operator_id")
    with at(path=path):
        return OperatorRequest(
            operator=name,
            parallelism=_read_number(body, "parallelism", path),
            max_parallelism=_read_number(body, "max_parallelism", path),
            uid=None if body.get("uid") is None else str(body["uid"]),
            operator_id=None if new_id is None else parse_operator_id(str(new_id)).hex(),
            drop=bool(body.get("drop")),
            drop_states=_read_texts(body, "drop_states", path),
            keys=_read_keys(body, path, directory),
            key_hashes=tuple(
                (str(class_name), str(text))
                for class_name, text in _open(body.get("key_hash"), None, f"{path}.key_hash").items()
            ),
        )


def _parse_take(uid: str, content: object) -> TakeRequest:
    body = _open(content, _TAKE, f"take.{uid}")
    if body.get("from") is None:
        raise UsageError(f"take.{uid} says no snapshot", hint="Such as from: s3://bucket/savepoint-1a2b")
    return TakeRequest(uid=uid, snapshot=str(body["from"]), operator=str(body.get("operator", uid)))


def _open(content: object, known: tuple[str, ...] | None, path: str) -> Mapping[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a mapping but {redact(repr(content))[:60]}")
    if known is not None:
        for name in content:
            if name not in known:
                raise UsageError(f"{path} does not know {name!r}", hint=f"It knows {', '.join(known)}")
    return content


def _read_number(content: Mapping[str, Any], name: str, path: str) -> int | None:
    value = content.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{name} of {path} is not a whole number but {value!r}")
    return value


def _read_texts(content: Mapping[str, Any], name: str, path: str) -> tuple[str, ...]:
    value = content.get(name) or []
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise UsageError(f"{name} of {path} is not a list but {redact(repr(value))[:60]}")
    return tuple(map(str, value))


def _read_rule(merge: Mapping[str, Any]) -> MergeRule:
    value = merge.get("on_equal", MergeRule.ERROR.value)
    try:
        return MergeRule(value)
    except ValueError:
        known = ", ".join(each.value for each in MergeRule)
        raise UsageError(f"on_equal of merge is {value!r}", hint=f"Choose from {known}") from None


def _read_keys(content: Mapping[str, Any], path: str, directory: Path) -> KeyChoice | None:
    chosen = [name for name in ("keep_keys", "drop_keys") if content.get(name) is not None]
    if not chosen:
        return None
    if len(chosen) > 1:
        raise UsageError(f"{path} has keep_keys and drop_keys; one of them says it all")
    value = content[chosen[0]]
    if isinstance(value, dict):
        value = read_keys(directory / str(_open(value, ("file",), f"{path}.{chosen[0]}").get("file", "")))
    if not isinstance(value, list):
        raise UsageError(f"{chosen[0]} of {path} is neither a list nor {{file: ...}}")
    return KeyChoice(keys=tuple(value), keep=chosen[0] == "keep_keys")


def read_keys(path: str | Path) -> list[object]:
    """Keys from a file with one JSON value per line.

    Raises:
        UsageError: the file cannot be read, or a line is not JSON.
    """
    lines = read_given_text(path, "the keys", most=MOST_LINES).splitlines()
    keys = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                keys.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                hint = 'One JSON value per line, text in quotes: "alice"'
                raise UsageError(
                    f"line {number} is not JSON: {error}", where=Where(file=str(path)), hint=hint
                ) from None
    return keys
