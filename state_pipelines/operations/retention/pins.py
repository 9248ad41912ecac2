"""Pins: snapshots that stay whatever a policy says, and tags that policies know, kept in one file per root."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import FormatError, MissingFileError, StateError, UsageError, Where
from state_pipelines.operations.retention.audit_log import Outcome
from state_pipelines.operations.retention.own_directory import locate_own
from state_pipelines.operations.retention.path_keys import PathKeys
from state_pipelines.storage import METADATA_FILE, Location, exists, join, read_file
from state_pipelines.storage.documents import MOST_TEXT, find_entry_lines, parse_yaml
from state_pipelines.storage.files import replace_file
from state_pipelines.storage.snapshot_listing import find_snapshots

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from state_pipelines.operations.retention.audit_log import AuditRecord

PINS_FILE = "pins.yaml"
"""Name of the pin file in the directory of retention of a root."""


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True)
class Pin:
    """An entry of a pin file.

    Attributes:
        path: directory of a snapshot relative to the root, or its absolute path; of a job, for all snapshots in it.
        reason: why, for people.
        tags: with tags, the snapshot stays only while a policy keeps one of them; without, it always stays.
        created: when the entry was made, as ISO text.
        line: of the entry in the file; 0 where it has been in none.
    """

    path: str
    reason: str = ""
    tags: tuple[str, ...] = ()
    created: str = ""
    line: int = field(default=0, compare=False)

    def to_json(self) -> dict[str, object]:
        """The entry, for YAML and JSON; without what is empty."""
        found: dict[str, object] = {"path": self.path, "reason": self.reason, "tags": list(self.tags)}
        found["created"] = self.created
        return {name: value for name, value in found.items() if value}


def locate_pins(root: Location) -> Location:
    """The pin file of a root; it need not exist.

    Raises:
        UsageError: it, or the directory of retention, is a symbolic link.
    """
    return locate_own(root, PINS_FILE)


def read_pins(root: Location) -> tuple[Pin, ...]:
    """The pins of a root; none without a pin file.

    Raises:
        FormatError: the file is not a pin file; nothing may be deleted on a guess.
        MissingFileError: the file is there and cannot be read.
        UsageError: the file, or the directory of retention, is a symbolic link.
    """
    location = locate_pins(root)
    try:
        data = read_file(location, most=MOST_TEXT)
    except MissingFileError:
        if exists(location):
            raise
        return ()
    try:
        content = parse_yaml(data)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _wrong(location, f"it is not YAML: {error}") from None
    # An empty file is what a full disk may leave of one with pins; without any it says `pins: []`.
    entries = content["pins"] if isinstance(content, dict) and set(content) == {"pins"} else None
    if not isinstance(entries, list):
        raise _wrong(location, "it is not a mapping with a list under pins")
    lines = find_entry_lines(data, "pins")
    return tuple(
        _parse_pin(entry, location, index, line) for index, (entry, line) in enumerate(zip(entries, lines, strict=True))
    )


def _parse_pin(entry: object, location: Location, index: int, line: int) -> Pin:
    body: dict[str, Any] = {"path": entry} if isinstance(entry, str) else entry if isinstance(entry, dict) else {}
    unknown = set(body) - {"path", "reason", "tags", "created"}
    path = body.get("path")
    tags = body.get("tags") or []
    what = f"line {line}: pins[{index}]"
    if unknown or not isinstance(path, str) or not path.strip().strip("/") or ".." in path.split("/"):
        known = "path, reason, tags and created"
        raise _wrong(location, f"{what} is not a path below the root, or has more than {known}")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise _wrong(location, f"{what}.tags is not a list of texts")
    return Pin(path.strip(), str(body.get("reason") or ""), tuple(tags), str(body.get("created") or ""), line)


def find_pinned_keys(base: str, path: str, keys: PathKeys) -> tuple[str, ...]:
    """The keys of the directories that a pin may mean: several for `/a`, which may begin at the root of the pin file.

    Args:
        base: key of the directory that has the pin file.
        path: as of `Pin`, in any spelling, also of the `_metadata` file.
        keys: the one spelling of paths.
    """
    path = path.strip().rstrip("/").removesuffix(f"/{METADATA_FILE}")
    if _URL.match(path):
        return (keys.directory_key(path),)
    found = keys.directory_key(f"{base}/{path}")
    return (found, keys.directory_key(path)) if path.startswith("/") and base.startswith("file:") else (found,)


def write_pins(root: Location, pins: Iterable[Pin]) -> None:
    """Replace the pin file of a root.

    Raises:
        StateError: the storage refuses.
    """
    content = {"pins": [pin.to_json() for pin in sorted(pins, key=lambda pin: pin.path)]}
    text = yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)
    replace_file(locate_pins(root), text.encode())


def pin_snapshot(
    root: Location, path: str, *, reason: str = "", tags: tuple[str, ...] = (), keys: PathKeys | None = None
) -> Pin:
    """Pin a snapshot below a root; an earlier pin of the same path is replaced.

    Args:
        root: the root.
        path: directory of the snapshot, relative to the root or absolute; or of a job.
        reason: why, for people.
        tags: see `Pin`.
        keys: the one spelling of paths.

    Raises:
        UsageError: there is no snapshot at the path.
        StateError: the pin file cannot be read or written.
    """
    keys = keys or PathKeys()
    found = find_pinnable(root, path, keys)
    if found is None:
        raise UsageError(
            "there is nothing to pin: no snapshot is there",
            where=Where(file=f"{root}/{path}"),
            hint="Give an existing snapshot below the root, or a directory that holds some",
        )
    pin = Pin(found, reason, tags, datetime.now(UTC).isoformat(timespec="seconds"))
    pinned = find_pinned_keys(keys.directory_key(root.url), found, keys)
    write_pins(root, [*_without(root, pinned, keys), pin])
    return pin


def pin_restored(
    roots: Sequence[Location], records: Iterable[AuditRecord], *, reason: str, keys: PathKeys | None = None
) -> list[str]:
    """Pin the snapshots that are back from quarantine, so that the next plan does not take them again.

    Args:
        roots: the roots that they are below.
        records: lines of the restore (`restore_quarantined`).
        reason: why, for people.
        keys: the one spelling of paths.

    Returns:
        their paths.

    Raises:
        UsageError: one is below none of the roots.
        StateError: a pin file cannot be read or written.
    """
    keys = keys or PathKeys()
    suffix = f"/{METADATA_FILE}"
    back = [each.path for each in records if each.outcome in (Outcome.RESTORED, Outcome.INCOMPLETE)]
    snapshots = [each.removesuffix(suffix) for each in back if each.endswith(suffix)]
    for path in snapshots:
        root = next((each for each in roots if find_pinnable(each, path, keys) is not None), roots[0])
        pin_snapshot(root, path, reason=reason, keys=keys)
    return snapshots


def find_pinnable(root: Location, path: str, keys: PathKeys) -> str | None:
    """The directory that a path means, relative to a root; None unless it is below the root and holds a snapshot."""
    base = keys.directory_key(root.url)
    for key in find_pinned_keys(base, path, keys) if path.strip() else ():
        relative = key[len(base) + 1 :]
        if key.startswith(f"{base}/") and next(find_snapshots(join(root, relative)), None) is not None:
            return relative
    return None


def unpin_snapshot(root: Location, path: str, *, keys: PathKeys | None = None) -> None:
    """Remove the pin of a snapshot.

    Args:
        root: the root.
        path: as the pin file names it, or another spelling of it.
        keys: the one spelling of paths.

    Raises:
        UsageError: the snapshot is not pinned.
        StateError: the pin file cannot be read or written.
    """
    keys = keys or PathKeys()
    pins = read_pins(root)
    rest = _without(root, find_pinned_keys(keys.directory_key(root.url), path, keys), keys)
    if len(rest) == len(pins):
        hint = f"Pinned are {', '.join(pin.path for pin in pins)}" if pins else "The root has no pins"
        raise UsageError(f"{path} is not pinned", where=Where(file=str(locate_pins(root))), hint=hint)
    write_pins(root, rest)


def _without(root: Location, pinned: Collection[str], keys: PathKeys) -> list[Pin]:
    """The pins of a root, but for those that may mean one of some directories."""
    base = keys.directory_key(root.url)
    return [each for each in read_pins(root) if not set(find_pinned_keys(base, each.path, keys)) & set(pinned)]


def _wrong(location: Location, what: str) -> StateError:
    hint = "Correct the file; nothing is planned while pins cannot be read"
    return FormatError(f"the pin file cannot be read: {what}", where=Where(file=str(location)), hint=hint)
