"""Findings of a restore audit, and the report that groups them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from state_pipelines.codecs.columns import explain
from state_pipelines.errors import OutOfReachError, StorageError, UnsupportedError, UsageError
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.models import OperationModel
from state_pipelines.redaction import redact, redact_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from state_pipelines.errors import StateError

MOST_FINDINGS = 1000
"""Findings of one severity and property that a report holds; the others are only counted."""


class Depth(StrEnum):
    """Depth of an audit: how much of the snapshot it reads."""

    FILES = "files"
    """`_metadata` and listings of directories."""
    SAMPLE = "sample"
    """Headers, indexes, the first and last section of each file, and one batch of each state."""
    WHOLE = "whole"
    """Every section, table, checksum and record."""


class AuditRequest(OperationModel):
    """An audit of a snapshot."""

    depth: Annotated[Depth, Field(strict=False)] = Depth.SAMPLE
    """Depth of the audit: `files` lists directories, `sample` opens every file, `whole` reads every record."""


class AuditVerdict(StrEnum):
    """Verdict on a snapshot, the worst first."""

    DAMAGED = "damaged"
    UNDETERMINED = "undetermined"
    """No error was found, but not everything could be judged."""
    RESTORABLE = "restorable"


class Severity(StrEnum):
    """Severity of a finding: its effect on a restore."""

    ERROR = "error"
    """Bytes are missing or damaged: Flink cannot restore the state, or restores something else."""
    UNDETERMINED = "undetermined"
    """Something could not be judged, such as a format that this release does not read."""
    WARNING = "warning"
    """The snapshot can be restored today, but depends on something that may go away."""
    NOTE = "note"
    """Values could not be checked, but their bytes are complete."""


class Property(StrEnum):
    """A property of a snapshot that an audit checks."""

    METADATA = "metadata"
    """`_metadata` can be read, and its numbers agree."""
    FILES = "files"
    """Every file that a handle names exists."""
    SIZES = "sizes"
    """Every file has the size that its handle records."""
    LOCATIONS = "locations"
    """Every file is in a directory that belongs to the snapshot or its job."""
    SEGMENTS = "segments"
    """Segments of merged files are inside their file and do not overlap."""
    KEY_GROUPS = "key-groups"
    """Every key group is held exactly once."""
    OFFSETS = "offsets"
    """Offsets of key groups, elements and buffers are inside their files."""
    TABLES = "tables"
    """RocksDB tables are whole and agree with the MANIFEST."""
    CHECKSUMS = "checksums"
    """Every file is what the manifest says, where this package wrote the snapshot and with it a manifest."""
    RECORDS = "records"
    """Headers, sections, change sets and records can be decoded."""
    RESTORE = "restore"
    """A command of the user has restored the snapshot (`drill`)."""


DEPTHS: Mapping[Property, Depth] = {
    Property.TABLES: Depth.SAMPLE,
    Property.RECORDS: Depth.SAMPLE,
}
"""Smallest depth at which a property is checked; `FILES` where it is not listed."""


@dataclass(frozen=True)
class Finding:
    """Something that an audit found.

    Attributes:
        severity: effect on a restore.
        property: the property that the snapshot does not have.
        what: the problem, without its location.
        file: path or URL, or the name of an inlined handle.
        offset: byte offset inside `file`.
        operator: uid, or operator id.
        subtask: index of the first subtask in which it was found.
        state: state name.
        path: path to a field inside a value.
        hint: what to do.
        count: how often it was found; file, offset, subtask and path are those of the first occurrence.
    """

    severity: Severity
    property: Property
    what: str
    file: str | None = None
    offset: int | None = None
    operator: str | None = None
    subtask: int | None = None
    state: str | None = None
    path: str | None = None
    hint: str = ""
    count: int = 1

    def __post_init__(self) -> None:
        """Remove secrets from the texts: file names come from the snapshot, and may be URLs with passwords."""
        for name, text, clean in (
            ("what", self.what, redact),
            ("file", self.file, redact_path),
            ("hint", self.hint, redact),
        ):
            if text:
                object.__setattr__(self, name, clean(text))

    def __str__(self) -> str:
        fields = (
            ("file", self.file),
            ("offset", self.offset),
            ("operator", self.operator),
            ("subtask", self.subtask),
            ("state", self.state),
            ("at", self.path),
        )
        where = ", ".join(f"{name} {value}" for name, value in fields if value is not None)
        what = self.what if self.count == 1 else f"{self.what} ({self.count:,} times; the first one follows)"
        text = f"{what} [{where}]" if where else what
        return f"{text}. {self.hint}" if self.hint else text

    def to_json(self) -> dict[str, object]:
        """Return the finding as an object for `json.dumps`; attributes without a value are left out."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


def from_error(
    error: StateError,
    property: Property,
    *,
    operator: str | None = None,
    subtask: int | None = None,
    state: str | None = None,
    file: str | None = None,
) -> Finding:
    """Turn an error into a finding.

    Its severity is undetermined if this package does not support the format, if the storage fails or is unknown, or if
    a file must not be accessed; otherwise it is an error.
    """
    where = error.where
    covered = not isinstance(error, UnsupportedError)
    unknown = not covered or isinstance(error, StorageError | UsageError | OutOfReachError)
    return Finding(
        Severity.UNDETERMINED if unknown else Severity.ERROR,
        property,
        error.what if covered else explain(error),
        file=where.file or file,
        offset=where.offset,
        operator=where.operator or operator,
        subtask=subtask,
        state=where.state or state,
        path=where.path,
        hint=error.hint if covered else "",
    )


class Findings:
    """Collects findings, one for each cause, up to `MOST_FINDINGS` for each severity and property."""

    def __init__(self) -> None:
        self._found: dict[tuple[Severity, Property], dict[Finding, Finding]] = {}
        self._counts: dict[tuple[Severity, Property], int] = {}

    def add(self, finding: Finding) -> None:
        """Add a finding, or count it if one with the same cause is known.

        Damage of different files or offsets has different causes. Records that cannot be judged have the same cause if
        they are of the same operator and state, and the problem is the same.
        """
        key = finding.severity, finding.property
        group = self._found.setdefault(key, {})
        cause = _find_cause(finding)
        known = group.get(cause)
        if known is not None:
            group[cause] = replace(known, count=known.count + 1) if cause.file is None else known
            return
        self._counts[key] = self._counts.get(key, 0) + 1
        if len(group) < MOST_FINDINGS:
            group[cause] = finding

    def __iter__(self) -> Iterator[Finding]:
        for severity in Severity:
            for each in Property:
                yield from self._found.get((severity, each), {}).values()

    @property
    def counts(self) -> dict[tuple[Severity, Property], int]:
        """Number of findings by severity and property, including those above `MOST_FINDINGS`, which are not kept."""
        return dict(self._counts)


def _find_cause(finding: Finding) -> Finding:
    """Return the finding without the attributes that may differ between findings of the same cause."""
    if finding.severity is not Severity.ERROR and finding.property is Property.RECORDS:
        return replace(finding, file=None, offset=None, subtask=None, path=None)
    return finding if finding.file is None else replace(finding, subtask=None)


@dataclass(frozen=True)
class AuditTotals:
    """Numbers of what an audit has checked.

    Attributes:
        handles: number of stream handles, inlined ones included.
        files: number of physical files.
        bytes: sum of their sizes, as listed.
        directories: number of directories that handles name.
        inlined_bytes: bytes of state inside `_metadata`.
        tables: number of RocksDB tables that were opened.
        sections: number of key-group sections of canonical and heap files that were read.
        records: number of records that were decoded, or read as bytes if they cannot be decoded.
        checksums: number of files, `_metadata` included, that were compared with the checksums of the manifest.
        unchecked: number of files that were not compared: too large for the depth, or without a checksum.
    """

    handles: int = 0
    files: int = 0
    bytes: int = 0
    directories: int = 0
    inlined_bytes: int = 0
    tables: int = 0
    sections: int = 0
    records: int = 0
    checksums: int = 0
    unchecked: int = 0


@dataclass(frozen=True)
class AuditReport:
    """Result of the audit of one snapshot.

    Attributes:
        path: directory of the snapshot.
        depth: how much was read.
        findings: findings, sorted by severity and property; at most `MOST_FINDINGS` of each.
        counts: number of all findings by severity and property.
        totals: numbers of what the audit has checked.
        kind: savepoint or checkpoint.
        checkpoint_id: id of the checkpoint or savepoint; None when `_metadata` cannot be read.
        fingerprint: of the content of `_metadata`; empty when it cannot be read.
        modified: when `_metadata` was written, if the storage says so.
        seconds: duration of the audit.
        drilled: whether a command has tried to restore the snapshot (`run_drill`).
        has_manifest: whether the snapshot has a manifest; only this package writes one.
    """

    path: str
    depth: Depth
    findings: tuple[Finding, ...]
    counts: Mapping[tuple[Severity, Property], int]
    totals: AuditTotals = field(default_factory=AuditTotals)
    kind: SnapshotKind = SnapshotKind.UNKNOWN
    checkpoint_id: int | None = None
    fingerprint: str = ""
    modified: datetime | None = None
    seconds: float = 0.0
    drilled: bool = False
    has_manifest: bool = False

    def count(self, severity: Severity, property: Property | None = None) -> int:
        """Return the number of findings of a severity, for one property or for all."""
        return sum(
            number for (found, of), number in self.counts.items() if found is severity and property in (None, of)
        )

    @property
    def restorable(self) -> bool:
        """Whether no error was found."""
        return not self.count(Severity.ERROR)

    @property
    def verdict(self) -> AuditVerdict:
        """The verdict on the snapshot."""
        if not self.restorable:
            return AuditVerdict.DAMAGED
        return AuditVerdict.UNDETERMINED if self.count(Severity.UNDETERMINED) else AuditVerdict.RESTORABLE

    @property
    def properties(self) -> tuple[Property, ...]:
        """The properties that were checked."""
        order = list(Depth)
        reached = order.index(self.depth)
        return tuple(
            each
            for each in Property
            if (self.drilled if each is Property.RESTORE else order.index(DEPTHS.get(each, Depth.FILES)) <= reached)
        )

    def to_json(self) -> dict[str, object]:
        """Return the report as an object for `json.dumps`."""
        held: dict[tuple[Severity, Property], int] = {}
        for finding in self.findings:
            key = finding.severity, finding.property
            held[key] = held.get(key, 0) + 1
        return {
            "path": self.path,
            "verdict": self.verdict,
            "depth": str(self.depth),
            "kind": self.kind,
            "checkpoint_id": self.checkpoint_id,
            "fingerprint": self.fingerprint,
            "modified": None if self.modified is None else self.modified.isoformat(),
            "seconds": round(self.seconds, 3),
            "manifest": self.has_manifest,
            "totals": asdict(self.totals),
            "properties": {
                str(each): {str(severity): self.count(severity, each) for severity in Severity}
                for each in self.properties
            },
            "findings": [each.to_json() for each in self.findings],
            "findings_left_out": sum(self.counts.values()) - sum(held.values()),
        }
