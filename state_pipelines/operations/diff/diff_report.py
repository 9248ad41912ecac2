"""The report of `diff`: properties side by side, equal and different records of states, changes with samples."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.keyed.digests import RecordDigest


class Presence(StrEnum):
    """Presence of an operator or a state in the two snapshots."""

    BOTH = "both"
    ONE = "only in one"
    OTHER = "only in other"


class ExampleKind(StrEnum):
    """Kinds of differences of a record."""

    CHANGED = "changed"
    ONE = "only in one"
    OTHER = "only in other"


@dataclass(frozen=True)
class ComparedProperty:
    """A property that both snapshots, operators or states have.

    Attributes:
        name: of the property.
        one: value in the one, as `json.dumps` takes it; None when it has none.
        other: value in the other.
        counts: differing values make the snapshots different; otherwise the property is only shown.
    """

    name: str
    one: object
    other: object
    counts: bool = True

    @property
    def differs(self) -> bool:
        """Whether the values are not the same."""
        return self.one != self.other


@dataclass(frozen=True)
class Example:
    """A record that is different.

    Attributes:
        kind: how.
        key: columns of the key as `read` shows them (key group, key, namespace, key of the map, timestamp), without
            those that are null; empty for operator state without keys.
        one: columns of the value in the one; None where it has no such record.
        other: likewise.
        note: set when both values look the same and only their bytes differ.
    """

    kind: ExampleKind
    key: dict[str, object]
    one: dict[str, object] | None
    other: dict[str, object] | None
    note: str = ""


@dataclass(frozen=True)
class ContentsDiff:
    """The records of a state on both sides.

    Attributes:
        one: records, bytes and digests; None when the one does not have the state or it was not read.
        other: likewise.
        same: None when the two cannot be compared.
        note: why they were not compared, or not record by record; empty when they were.
        key_groups: how many key groups differ; None for state without key groups, or if their numbers differ.
        only_in_one: records that only the one has; None when records were not compared one by one.
        only_in_other: likewise.
        changed: records with the same key (namespace, map key) and another value; likewise.
        examples: some of these records.
        damaged: records were not compared because bytes are damaged or missing; `note` says which.
    """

    one: RecordDigest | None
    other: RecordDigest | None
    same: bool | None
    note: str = ""
    key_groups: int | None = None
    only_in_one: int | None = None
    only_in_other: int | None = None
    changed: int | None = None
    examples: tuple[Example, ...] = ()
    damaged: bool = False


@dataclass(frozen=True)
class StateDiff:
    """Differences of a state, found by name among states of the same sort (keyed, list, broadcast, raw).

    Attributes:
        name: of the state.
        presence: which snapshot has it.
        properties: kind, serializers, TTL.
        contents: None when no contents were asked for.
    """

    name: str
    presence: Presence
    properties: tuple[ComparedProperty, ...]
    contents: ContentsDiff | None = None

    @property
    def same(self) -> bool:
        """Whether everything that counts was compared, and nothing differs."""
        properties = not any(each.counts and each.differs for each in self.properties)
        return self.presence is Presence.BOTH and properties and (self.contents is None or self.contents.same is True)

    @property
    def differs(self) -> bool:
        """Whether a difference was found, in what was compared."""
        properties = any(each.counts and each.differs for each in self.properties)
        return (
            self.presence is not Presence.BOTH
            or properties
            or (self.contents is not None and self.contents.same is False)
        )

    @property
    def kind(self) -> str:
        """Kind in the one, or in the other when only that has the state."""
        (kind,) = (each.one or each.other for each in self.properties if each.name == "kind")
        return str(kind)


@dataclass(frozen=True)
class OperatorDiff:
    """Differences of an operator, found by its id.

    Attributes:
        id: 32 hexadecimal digits.
        label: the uid, or the id when the uid is not known.
        presence: which snapshot has it.
        properties: uid, name, parallelism and the like.
        states: those of the one, then those that only the other has.
        error: why not all states could be compared; empty when they could.
        damage: errors about files that are damaged or missing.
    """

    id: str
    label: str
    presence: Presence
    properties: tuple[ComparedProperty, ...]
    states: tuple[StateDiff, ...]
    error: str = ""
    damage: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether everything that counts was compared, and nothing differs."""
        properties = not any(each.counts and each.differs for each in self.properties)
        states = all(state.same for state in self.states)
        return self.presence is Presence.BOTH and properties and states and not self.error

    @property
    def differs(self) -> bool:
        """Whether a difference was found, in what was compared."""
        properties = any(each.counts and each.differs for each in self.properties)
        return self.presence is not Presence.BOTH or properties or any(state.differs for state in self.states)


@dataclass(frozen=True)
class SnapshotDiff:
    """Two snapshots.

    Attributes:
        one: path.
        other: path.
        metadata_only: no contents were compared.
        properties: of the snapshots.
        operators: those of the one, then those that only the other has.
    """

    one: str
    other: str
    metadata_only: bool
    properties: tuple[ComparedProperty, ...]
    operators: tuple[OperatorDiff, ...]

    @property
    def same(self) -> bool:
        """Whether everything that counts was compared, and nothing differs."""
        return not any(each.counts and each.differs for each in self.properties) and all(
            operator.same for operator in self.operators
        )

    @property
    def differs(self) -> bool:
        """Whether a difference was found; if `same` is False too, some state could not be compared."""
        properties = any(each.counts and each.differs for each in self.properties)
        return properties or any(operator.differs for operator in self.operators)

    @property
    def is_complete(self) -> bool:
        """Whether everything that was asked for could be compared."""
        contents = (state.contents for operator in self.operators for state in operator.states)
        return not any(operator.error for operator in self.operators) and not any(
            each is not None and (each.same is None or each.damaged) for each in contents
        )

    @property
    def damage(self) -> list[str]:
        """Errors about bytes that are damaged or missing, each once."""
        opened = (error for operator in self.operators for error in operator.damage)
        read = (
            f"operator {operator.label}, state {state.name}: {state.contents.note}"
            for operator in self.operators
            for state in operator.states
            if state.contents is not None and state.contents.damaged and not operator.damage
        )
        return list(dict.fromkeys((*opened, *read)))

    @property
    def same_contents(self) -> bool | None:
        """Return whether both snapshots have the same states with the same records; other properties may differ.

        None when no contents were asked for.
        """
        if self.metadata_only:
            return None
        return all(
            not operator.error
            and all(state.contents is not None and state.contents.same is True for state in operator.states)
            for operator in self.operators
        )

    @property
    def summary(self) -> str:
        """Return the differences in one line."""
        if self.same:
            return "the same, contents not compared" if self.metadata_only else "the same"
        if not self.differs:
            return f"the same as far as compared: {', '.join(self._tell_differences())}"
        return f"different: {', '.join(self._tell_differences())}"

    def _tell_differences(self) -> Iterator[str]:
        if any(each.counts and each.differs for each in self.properties):
            yield "the snapshot itself"
        operators = sum(not each.same for each in self.operators)
        counted = Counter(_judge(state) for operator in self.operators for state in operator.states)
        if operators:
            yield f"{operators:,} of {len(self.operators):,} operators"
        if differing := sum(number for verdict, number in counted.items() if verdict):
            yield f"{differing:,} of {sum(counted.values()):,} states"
        if not_compared := counted["not compared"]:
            yield f"{not_compared:,} of them not compared"

    def to_json(self) -> dict[str, object]:
        """The report as an object for `json.dumps`; digests are hexadecimal text."""
        return {
            "one": self.one,
            "other": self.other,
            "same": self.same,
            "differs": self.differs,
            "same_contents": self.same_contents,
            "metadata_only": self.metadata_only,
            "facts": _properties_to_json(self.properties),
            "operators": [
                {
                    "id": operator.id,
                    "label": operator.label,
                    "presence": operator.presence.value,
                    "same": operator.same,
                    "facts": _properties_to_json(operator.properties),
                    "error": operator.error,
                    "damage": list(operator.damage),
                    "states": [_state_to_json(state) for state in operator.states],
                }
                for operator in self.operators
            ],
        }


def _judge(state: StateDiff) -> str:
    if state.same:
        return ""
    return "not compared" if state.contents is not None and state.contents.same is None else "different"


def _properties_to_json(properties: tuple[ComparedProperty, ...]) -> list[dict[str, object]]:
    return [{**asdict(each), "differs": each.differs} for each in properties]


def _state_to_json(state: StateDiff) -> dict[str, object]:
    return {
        "name": state.name,
        "kind": state.kind,
        "presence": state.presence.value,
        "same": state.same,
        "facts": _properties_to_json(state.properties),
        "contents": None if state.contents is None else _contents_to_json(state.contents),
    }


def _contents_to_json(contents: ContentsDiff) -> dict[str, object]:
    return {
        **asdict(contents),
        "one": _digest_to_json(contents.one),
        "other": _digest_to_json(contents.other),
        "examples": [asdict(each) for each in contents.examples],
    }


def _digest_to_json(digest: RecordDigest | None) -> dict[str, object] | None:
    if digest is None:
        return None
    texts = {"digest": f"{digest.digest:016x}", "content": f"{digest.content:016x}"}
    return {"records": digest.records, "bytes": digest.bytes, **texts}


@dataclass(frozen=True)
class ComparedState:
    """A state in an older and a newer snapshot.

    Attributes:
        operator: the uid, or the id when the uid is not known.
        state: name.
        kind: as in `StateReport`.
        before: records in the older snapshot; None when they were not counted.
        after: records in the newer snapshot; likewise.
        added: records that only the newer has; None when records were not compared one by one.
        removed: records that only the older has; likewise.
        changed: records with another value; likewise.
        note: why records were not compared, or serializers that differ; empty otherwise.
        samples: some of these records.
    """

    operator: str
    state: str
    kind: str
    before: int | None
    after: int | None
    added: int | None
    removed: int | None
    changed: int | None
    note: str = ""
    samples: tuple[Example, ...] = ()

    @property
    def is_changed(self) -> bool:
        """Whether a difference was found, or the records could not be compared."""
        return bool(self.note) or any((self.added, self.removed, self.changed)) or self.before != self.after

    def list_samples(self, kind: ExampleKind) -> list[Example]:
        """Samples of one kind: those only in the older (`ONE`), only in the newer (`OTHER`), or changed."""
        return [each for each in self.samples if each.kind is kind]


def list_changes(diff: SnapshotDiff) -> list[ComparedState]:
    """The states of a comparison of an older (`one`) and a newer snapshot (`other`)."""
    return list(_iter_changes(diff))


def _iter_changes(diff: SnapshotDiff) -> Iterator[ComparedState]:
    for operator in diff.operators:
        if operator.error:
            yield ComparedState(operator.label, "", "", None, None, None, None, None, operator.error)
        for state in operator.states:
            yield _describe(operator.label, state)


def _describe(operator: str, state: StateDiff) -> ComparedState:
    contents = state.contents
    one, other = (None, None) if contents is None else (contents.one, contents.other)
    before, after = (None if each is None else each.records for each in (one, other))
    added = removed = changed = None
    notes = [
        f"{each.name} was {each.one}, is {each.other}" for each in state.properties if each.counts and each.differs
    ]
    if state.presence is Presence.ONE:
        after, added, removed, changed = 0, 0, before, 0
        notes = ["the newer snapshot has no such state"]
    elif state.presence is Presence.OTHER:
        before, added, removed, changed = 0, after, 0, 0
        notes = ["the older snapshot has no such state"]
    elif contents is not None:
        added, removed, changed = contents.only_in_other, contents.only_in_one, contents.changed
        notes += [contents.note] if contents.note else []
    return ComparedState(
        operator,
        state.name,
        str(state.kind),
        before,
        after,
        added,
        removed,
        changed,
        "; ".join(notes),
        () if contents is None else contents.examples,
    )
