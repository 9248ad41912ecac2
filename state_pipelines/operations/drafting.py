"""Drafts of migration files: what a check says about the fields of a POJO, as steps.

A draft is a starting point. A new name is guessed from the old one and the type; where SQL does not know how to make
the new type of the old one, the expression is `TODO`, which no migration runs.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import MigrationError, UsageError
from state_pipelines.operations.job import Place
from state_pipelines.operations.migration.steps import TODO
from state_pipelines.serializers.compatibility import Finding, Outcome
from state_pipelines.serializers.text import parse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.operations.check_report import CheckReport, StateCheck

_SIMILAR = 0.5
_PAYLOADS = {
    Place.VALUE: r"value(?:\[\]|\{value\})?",
    Place.ELEMENT: r"element",
    Place.MAP_VALUE: r"map_value",
}
_NAME = r"(?:[\w$]+|`(?:[^`]|``)+`)"
_NUMBERS = frozenset({"Byte", "Short", "Int", "Long", "Float", "Double", "BigDec"})
# Types whose values SQL's CAST makes of one another.
_CASTS = (_NUMBERS, _NUMBERS | {"String"}, frozenset({"Boolean", "String"}))
_DEFAULTS = {
    "Boolean": False,
    **dict.fromkeys(_NUMBERS - {"BigDec", "Float", "Double"}, 0),
    "Float": 0.0,
    "Double": 0.0,
}


def draft_migration(check: StateCheck, revision: str = "0001") -> dict[str, Any]:
    """The content of a migration file for one state: renamed, added, changed and removed fields of its POJO.

    Args:
        check: what is said of the value, list element or map value.
        revision: for the file.

    Raises:
        MigrationError: there is no step for what has changed; names it.
    """
    if check.operator is None or check.state is None or check.place not in _PAYLOADS:
        raise MigrationError(f"no step changes the {check.place} of a state")
    pattern = re.compile(rf"{_PAYLOADS[check.place]}\.({_NAME})")
    fields: dict[str, Finding] = {}
    for finding in check.findings:
        if finding.outcome is Outcome.RECONFIGURED or (finding.outcome is Outcome.AS_IS and not finding.loss):
            continue
        named = pattern.fullmatch(finding.path)
        if named is None:
            raise MigrationError(f"no step changes {finding.path} ({finding.reason})")
        fields[_unquote(named[1])] = finding
    if not fields:
        raise MigrationError("nothing has changed that a migration changes")
    removed = {name: each.old for name, each in fields.items() if each.new is None and each.old is not None}
    added = {name: each.new for name, each in fields.items() if each.old is None and each.new is not None}
    changed = {name: (each.old, each.new) for name, each in fields.items() if each.old and each.new}
    renamed = _match_names(removed, added)
    upgrade: list[dict[str, Any]] = []
    downgrade: list[dict[str, Any]] = []
    if renamed:
        upgrade.append({"rename": dict(renamed)})
    upgrade += [_add(name, kind) for name, kind in sorted(added.items()) if name not in renamed.values()]
    upgrade += [_cast(name, *sides) for name, sides in sorted(changed.items())]
    gone = [name for name in sorted(removed) if name not in renamed]
    upgrade += [{"drop": {"field": name}} for name in gone]
    downgrade += [_add(name, removed[name]) for name in gone]
    downgrade += [_cast(name, after, before) for name, (before, after) in sorted(changed.items())]
    downgrade += [{"drop": {"field": name}} for name in sorted(added) if name not in renamed.values()]
    if renamed:
        downgrade.append({"rename": {new: old for old, new in renamed.items()}})
    content: dict[str, Any] = {
        "revision": revision,
        "description": f"Drafted by check for {check.operator} / {check.state}. Read it before it runs.",
        "operator": check.operator,
        "state": check.state,
        "upgrade": upgrade,
        "downgrade": downgrade,
    }
    if gone:
        content["loss"] = [{"field": name, "reason": "the upgrade drops the field"} for name in gone]
    return content


def draft_migrations(report: CheckReport) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Drafts for all states that need one, by file name; and why there is none for others."""
    drafts: dict[str, dict[str, Any]] = {}
    undrafted: list[str] = []
    for check in report.checks:
        if not _wants_migration(check):
            continue
        revision = f"{len(drafts) + 1:04}"
        try:
            content = draft_migration(check, revision)
        except MigrationError as error:
            names = " / ".join(filter(None, (check.operator, check.state, str(check.place))))
            undrafted.append(f"{names}: {error.what}")
            continue
        name = re.sub(r"[^\w.-]+", "_", f"{check.operator}_{check.state}")
        drafts[f"{revision}_{name}.yaml"] = content
    return drafts, undrafted


def format_migration(content: dict[str, Any]) -> str:
    """The text of a migration file; lines that somebody has to fill in say so."""
    text = yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)
    heads = ["# A draft: check the renamed fields, the defaults and the casts."]
    if f"expression: {TODO}" in text:
        heads.append(f"# Replace every {TODO} by an expression in Spark SQL.")
    return "\n".join([*heads, text])


def _wants_migration(check: StateCheck) -> bool:
    """Refused values, and fields whose values a restore would lose."""
    if check.place not in _PAYLOADS:
        return False
    return check.outcome is Outcome.INCOMPATIBLE or any(finding.loss for finding in check.findings)


def _match_names(removed: dict[str, str], added: dict[str, str]) -> dict[str, str]:
    """Removed fields that probably have another name now: the same type, and names that are alike."""
    pairs: Iterable[tuple[float, str, str]] = (
        (SequenceMatcher(None, old.lower(), new.lower()).ratio(), old, new)
        for old, before in removed.items()
        for new, after in added.items()
        if before == after
    )
    renamed: dict[str, str] = {}
    for similarity, old, new in sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2])):
        if similarity >= _SIMILAR and old not in renamed and new not in renamed.values():
            renamed[old] = new
    return renamed


def _add(name: str, kind: str) -> dict[str, Any]:
    _require_type(name, kind)
    return {"add": {"field": name, "type": kind, "default": _DEFAULTS.get(kind)}}


def _cast(name: str, before: str | None, after: str | None) -> dict[str, Any]:
    _require_type(name, after or "")
    if any(before in group and after in group for group in _CASTS):
        return {"cast": {"field": name, "to": after}}
    return {"cast": {"field": name, "to": after, "expression": TODO}}


def _require_type(name: str, kind: str) -> None:
    """A migration file names types in readable form, which not every serializer has."""
    try:
        parse(kind)
    except UsageError:
        raise MigrationError(f"no step makes a field of type {kind} (field {name})") from None


def _unquote(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
