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
    """A property of a snapshot, operator or state, with its values in both snapshots.

    Attributes:
        name: name of the property.
        one: value in one snapshot, as an object for `json.dumps`; None if it has no value there.
        other: value in the other snapshot.
        counts: whether different values make the snapshots different; otherwise the property is only shown.
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
    """A record that differs between the snapshots.

    Attributes:
        kind: kind of the difference.
        key: columns of the key as `read` shows them (key group, key, namespace, key of the map, timestamp), without
            those that are null; empty for operator state without keys.
        one: columns of the value in one snapshot; None if that has no such record.
        other: columns of the value in the other snapshot; None if that has no such record.
        note: remark if both values look the same, and only their bytes differ; else empty.
    """

    kind: ExampleKind
    key: dict[str, object]
    one: dict[str, object] | None
    other: dict[str, object] | None
    note: str = ""


@dataclass(frozen=True)
class ContentsDiff:
    """Comparison of the records of a state in both snapshots.

    Attributes:
        one: number, size and digests of the records in one snapshot; None if it does not have the state, or the state
            was not read.
        other: the same for the other snapshot.
        same: whether the records are the same; None if they cannot be compared.
        note: why records were not compared, or not one by one; empty if they were.
        key_groups: number of differing key groups; None for state without key groups, or if max parallelism differs.
        only_in_one: number of records that only `one` has; None if records were not compared one by one.
        only_in_other: number of records that only `other` has; None if records were not compared one by one.
        changed: number of records with the same key (namespace, map key) and another value; None if records were not
            compared one by one.
        examples: some of the records that differ.
        damaged: whether records were not compared because bytes are damaged or missing, or the storage fails; `note`
            says which.
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
    """Differences of a state; states of both snapshots are matched by name and sort (keyed, list, broadcast, raw).

    Attributes:
        name: name of the state.
        presence: which of the snapshots have it.
        properties: kind, serializers, TTL.
        contents: comparison of the records; None if that was not requested.
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
        """Kind of the state in `one`, or in `other` if only that has the state."""
        (kind,) = (each.one or each.other for each in self.properties if each.name == "kind")
        return str(kind)


@dataclass(frozen=True)
class OperatorDiff:
    """Differences of an operator; operators of both snapshots are matched by id.

    Attributes:
        id: 32 hexadecimal digits.
        label: the uid, or the id if the uid is not known.
        presence: which of the snapshots have it.
        properties: uid, name, parallelism and the like.
        states: the states of `one`, then those that only `other` has.
        error: why not all states could be compared; empty if they could.
        damage: errors about files that are damaged or missing, or that the storage does not give.
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
    """Differences of two snapshots.

    Attributes:
        one: path of one snapshot.
        other: path of the other snapshot.
        metadata_only: whether only properties were compared, and no records.
        properties: properties of the snapshots.
        operators: the operators of `one`, then those that only `other` has.
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
        """Whether everything that was requested could be compared."""
        contents = (state.contents for operator in self.operators for state in operator.states)
        return not any(operator.error for operator in self.operators) and not any(
            each is not None and (each.same is None or each.damaged) for each in contents
        )

    @property
    def damage(self) -> list[str]:
        """Errors about bytes that are damaged or missing, or that the storage does not give, each once."""
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
        """Whether both snapshots have the same states with the same records; other properties may differ.

        None if the comparison of records was not requested.
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
        """The differences in one line."""
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
        """Return the differences as an object for `json.dumps`; digests are hexadecimal text."""
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
    """Changes of a state between an older and a newer snapshot.

    Attributes:
        operator: the uid, or the id if the uid is not known.
        state: name; empty in an entry on the errors of an operator.
        kind: as in `StateReport`.
        before: number of records in the older snapshot; None if they were not counted.
        after: number of records in the newer snapshot; None if they were not counted.
        added: number of records that only the newer snapshot has; None if records were not compared one by one.
        removed: number of records that only the older snapshot has; None if records were not compared one by one.
        changed: number of records with another value; None if records were not compared one by one.
        note: why records were not compared, or properties that differ; empty otherwise.
        samples: some of the records that differ.
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
        """Return the samples of one kind: only in the older (`ONE`) or the newer snapshot (`OTHER`), or changed."""
        return [each for each in self.samples if each.kind is kind]


def list_changes(diff: SnapshotDiff) -> list[ComparedState]:
    """List the changes of all states in a comparison of an older snapshot (`one`) with a newer one (`other`)."""
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
