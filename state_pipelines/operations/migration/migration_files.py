"""Migration files: YAML, or a Python file that defines `MIGRATION`, to `Migration` and back.

A file says one change at the top level (`operator`, `state`, `upgrade`, `downgrade`, `loss`, `expect`) or several under
`changes`. `steps` declares what each step takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from state_pipelines.errors import MigrationError, StateError, UsageError, Where
from state_pipelines.operations.migration.step_entries import dump_step, make_object, make_schema, parse_step
from state_pipelines.operations.migration.steps import Direction, Filter, Key, RenameStates, Step
from state_pipelines.storage.documents import parse_yaml, read_given_file, run_python_file

_CHANGE = ("operator", "state", "upgrade", "downgrade", "loss", "expect")
_FILE = ("revision", "revises", "description", "changes")


@dataclass(frozen=True)
class Loss:
    """A field whose values are lost by an upgrade followed by a downgrade, and the reason why that is accepted."""

    field: str
    reason: str


@dataclass(frozen=True)
class RowExpectation:
    """An expectation of Great Expectations on the rows of the new state.

    Attributes:
        type: such as `expect_column_values_to_be_between`.
        arguments: (name, value) pairs; `column` may be a dotted path.
    """

    type: str
    arguments: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Change:
    """Change of one state, or of all keyed states of an operator.

    Attributes:
        operator: uid, id or name.
        state: state name; None for a change of the operator.
        downgrade: steps of the downgrade; empty if it is impossible.
        losses: fields whose values are lost by an upgrade followed by a downgrade.
        expectations: expectations on the rows of the new state.
        impossible: why there is no downgrade; empty if there is one.
    """

    operator: str
    state: str | None
    upgrade: tuple[Step, ...]
    downgrade: tuple[Step, ...]
    losses: tuple[Loss, ...] = ()
    expectations: tuple[RowExpectation, ...] = ()
    impossible: str = ""

    def steps(self, direction: Direction) -> tuple[Step, ...]:
        """Return the steps of a direction.

        Raises:
            MigrationError: the direction is a downgrade, and there is none.
        """
        if direction == Direction.DOWNGRADE and self.impossible:
            raise MigrationError(
                f"there is no downgrade: {self.impossible}",
                where=Where(operator=self.operator, state=self.state),
                hint="Go back to a snapshot from before the upgrade",
            )
        return self.upgrade if direction == Direction.UPGRADE else self.downgrade


@dataclass(frozen=True)
class Migration:
    """Content of a migration file.

    Attributes:
        revision: name of the revision in the history of the job.
        revises: the revision that it follows; None if the file does not say.
        fingerprint: first 16 hexadecimal digits of the SHA-256 of the file.
        path: the file.
    """

    revision: str
    revises: str | None
    description: str
    changes: tuple[Change, ...]
    fingerprint: str = ""
    path: str = field(default="", compare=False)

    @property
    def change(self) -> Change:
        """The only change.

        Raises:
            UsageError: there are several.
        """
        if len(self.changes) != 1:
            raise UsageError(f"revision {self.revision} has {len(self.changes)} changes, not one")
        return self.changes[0]

    @property
    def operator(self) -> str:
        """The operator of the only change."""
        return self.change.operator

    @property
    def state(self) -> str:
        """The state of the only change; empty if the change is about the operator."""
        return self.change.state or ""

    @property
    def upgrade(self) -> tuple[Step, ...]:
        """The upgrade steps of the only change."""
        return self.change.upgrade

    @property
    def downgrade(self) -> tuple[Step, ...]:
        """The downgrade steps of the only change."""
        return self.change.downgrade

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The losses of the only change."""
        return self.change.losses

    def steps(self, direction: Direction) -> tuple[Step, ...]:
        """Return the steps of a direction of the only change."""
        return self.change.steps(direction)


def load_migration(path: str | Path, *, allow_python: bool = False, named: bool = False) -> Migration:
    """Read a migration file; a file that ends in `.py` is run, if that is allowed.

    Args:
        path: path of the file. If the content names no revision, the name of the file is the revision.
        allow_python: whether Python files may be run.
        named: whether the file has to name its revision, as in a directory of revisions.

    Raises:
        MigrationError: the file is not a migration, or it is Python and that is not allowed; names the file and the
            position in it.
    """
    where = Where(file=str(path))
    is_python = Path(path).suffix == ".py"
    if is_python and not allow_python:
        hint = "Python can do anything on this machine; if you trust the file, allow it with --allow-python"
        raise MigrationError(
            "the migration file is Python, which is not run unless that is allowed", where=where, hint=hint
        )
    raw = read_given_file(path, "the migration file", kind=MigrationError)
    try:
        content = run_python_file(path, "MIGRATION", kind=MigrationError) if is_python else parse_yaml(raw)
    except yaml.YAMLError as error:
        raise MigrationError(f"the migration file is not YAML: {error}", where=where) from None
    if not isinstance(content, dict):
        raise MigrationError("the migration file is not a mapping", where=where)
    try:
        if named:
            _take_text(content, "revision", "the file")
        return parse_migration(content, fingerprint=hashlib.sha256(raw).hexdigest()[:16], path=str(path))
    except StateError as error:
        if error.where.file is None:
            error.where = replace(error.where, file=str(path))
        raise


def parse_migration(content: dict[str, Any], *, fingerprint: str = "", path: str = "") -> Migration:
    """Make a migration from the content of a file.

    Args:
        content: the parsed YAML.
        fingerprint: fingerprint of the file.
        path: the file; relative paths of schema files start at its directory.

    Raises:
        MigrationError: the content is not a migration; names the position of the mistake.
    """
    several = "changes" in content
    _allow(content, _FILE if several else (*_FILE, *_CHANGE), "")
    given = content.get("revision")
    revision = (Path(path).stem or "migration") if given is None else _take_text(content, "revision", "the file")
    directory = Path(path).parent
    if several:
        listed = content["changes"]
        if not isinstance(listed, list) or not listed:
            raise MigrationError("`changes` is not a list of changes")
        for number, each in enumerate(listed, 1):
            if not isinstance(each, dict):
                raise MigrationError("a change is a mapping", where=Where(path=f"change {number}"))
            _allow(each, _CHANGE, f"change {number}")
        changes = tuple(_parse_change(each, directory, f"change {number}, ") for number, each in enumerate(listed, 1))
    else:
        changes = (_parse_change(content, directory, ""),)
    revises = content.get("revises")
    return Migration(
        revision=revision,
        revises=None if revises is None else str(revises),
        description=str(content.get("description", "")),
        changes=changes,
        fingerprint=fingerprint,
        path=path,
    )


def _parse_change(content: dict[str, Any], directory: Path, where: str) -> Change:
    if not isinstance(content.get("loss") or [], list):
        raise MigrationError("`loss` is not a list", where=Where(path=where or None))
    losses = tuple(
        Loss(_take_text(each, "field", f"{where}loss {number}"), _take_text(each, "reason", f"{where}loss {number}"))
        for number, each in enumerate(content.get("loss") or (), 1)
    )
    operator = _take_text(content, "operator", f"{where}the file")
    upgrade = _parse_steps(content, Direction.UPGRADE, directory, where)
    of_operator = any(map(_changes_operator, upgrade))
    if of_operator and "state" in content:
        raise MigrationError(
            "`key`, `filter` with `by`, and `rename_state` of several states change a whole operator",
            where=Where(path=where or None),
            hint="Leave `state` out of this change",
        )
    state = None if of_operator else _take_text(content, "state", f"{where}the file")
    impossible = ""
    downgrade: tuple[Step, ...] = ()
    given = content.get(Direction.DOWNGRADE)
    if isinstance(given, dict) and list(given) == ["impossible"]:
        impossible = _take_text(given, "impossible", f"{where}downgrade")
    else:
        downgrade = _parse_steps(content, Direction.DOWNGRADE, directory, where)
    for step in (*upgrade, *downgrade):
        if of_operator != _changes_operator(step):
            raise MigrationError(
                "a change of a whole operator has only the steps `key`, `filter` with `by`, and `rename_state` of "
                "several states",
                where=Where(path=where or None),
                hint="Put the steps on states into changes of their own (`changes`)",
            )
    return Change(operator, state, upgrade, downgrade, losses, _parse_expectations(content, where), impossible)


def _changes_operator(step: Step) -> bool:
    return isinstance(step, Key | RenameStates) or (isinstance(step, Filter) and step.by is not None)


def _parse_expectations(content: dict[str, Any], where: str) -> tuple[RowExpectation, ...]:
    given = content.get("expect") or []
    if not isinstance(given, list):
        raise MigrationError("`expect` is not a list", where=Where(path=where or None))
    found = []
    for number, each in enumerate(given, 1):
        kind = _take_text(each, "type", f"{where}expect {number}")
        if not kind.startswith("expect_"):
            hint = "Types are those of Great Expectations, such as expect_column_values_to_not_be_null"
            raise MigrationError(
                f"{kind} is not an expectation", where=Where(path=f"{where}expect {number}"), hint=hint
            )
        found.append(RowExpectation(kind, tuple((str(name), value) for name, value in each.items() if name != "type")))
    return tuple(found)


def _parse_steps(content: dict[str, Any], direction: Direction, directory: Path, where: str) -> tuple[Step, ...]:
    steps = content.get(direction)
    if not isinstance(steps, list) or not steps:
        raise MigrationError(f"`{direction}` is not a list of steps", where=Where(path=where or None))
    return tuple(parse_step(step, f"{where}{direction} {number}", directory) for number, step in enumerate(steps, 1))


def _take_text(body: object, name: str, where: str) -> str:
    value = body.get(name) if isinstance(body, Mapping) else None
    if value is None or isinstance(value, dict | list):
        raise MigrationError(f"`{name}` is missing", where=Where(path=where))
    return str(value)


def _allow(content: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = sorted(str(name) for name in content if name not in known)
    if unknown:
        raise MigrationError(
            f"unknown entries {', '.join(unknown)}",
            where=Where(path=where or None),
            hint=f"Known are {', '.join(sorted(known))}",
        )


def make_migration_schema() -> dict[str, Any]:
    """Return the JSON schema of a migration file, for editors and other tools."""
    step = make_schema()
    text: dict[str, Any] = {"type": ["string", "number"]}
    steps = {"type": "array", "minItems": 1, "items": {"anyOf": step["anyOf"]}}
    impossible = make_object({"impossible": {"type": "string", "description": "Reason why there is no way back."}})
    loss = make_object({"field": text, "reason": text}, "field", "reason")
    expectation = {
        "type": "object",
        "properties": {"type": {"type": "string", "pattern": "^expect_"}},
        "required": ["type"],
    }
    change = {
        "operator": text | {"description": "Uid or 32-digit id of the operator."},
        "state": text | {"description": "Name of the state; left out by a change of the whole operator."},
        "upgrade": steps | {"description": "Steps of the change."},
        "downgrade": {"anyOf": [steps, impossible], "description": "Steps back, or the reason why there are none."},
        "loss": {"type": "array", "items": loss, "description": "Fields that the way back does not restore."},
        "expect": {"type": "array", "items": expectation, "description": "Expectations of Great Expectations."},
    }
    changes = {"type": "array", "minItems": 1, "items": make_object(change, "operator", "upgrade", "downgrade")}
    file = {
        "revision": text | {"description": "Name of the revision."},
        "revises": text | {"description": "The revision before it."},
        "description": text | {"description": "Purpose of the migration."},
    }
    one = make_object(file | change, "operator", "upgrade", "downgrade")
    return {"anyOf": [one, make_object(file | {"changes": changes}, "changes")], "$defs": step["$defs"]}


def dump_migration(migration: Migration) -> dict[str, Any]:
    """Return the content of a file from which `parse_migration` makes the migration again.

    Python functions stay function objects, which YAML cannot represent.
    """
    content: dict[str, Any] = {"revision": migration.revision}
    if migration.revises is not None:
        content["revises"] = migration.revises
    if migration.description:
        content["description"] = migration.description
    changes = [_dump_change(each) for each in migration.changes]
    return content | (changes[0] if len(changes) == 1 else {"changes": changes})


def _dump_change(change: Change) -> dict[str, Any]:
    content: dict[str, Any] = {"operator": change.operator}
    if change.state is not None:
        content["state"] = change.state
    # `safe_dump` cannot write enums: make them plain text.
    content["upgrade"] = [dump_step(step) for step in change.upgrade]
    content["downgrade"] = (
        {"impossible": change.impossible} if change.impossible else [dump_step(step) for step in change.downgrade]
    )
    if change.losses:
        content["loss"] = [{"field": each.field, "reason": each.reason} for each in change.losses]
    if change.expectations:
        content["expect"] = [{"type": each.type, **dict(each.arguments)} for each in change.expectations]
    return content
