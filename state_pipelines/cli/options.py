"""Options that commands share, options that are the fields of a model, and rules on options that exclude each other.

Options that contradict each other, or have no effect without another one, are wrong use.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from state_pipelines.cli.commands import UNDETERMINED, WRONG_USE, set_debug
from state_pipelines.cli.display import echo
from state_pipelines.errors import UsageError
from state_pipelines.operations.models import list_options
from state_pipelines.snapshot import Declarations, Snapshot, declare, open_snapshot
from state_pipelines.snapshot.checks import check_declared_names
from state_pipelines.snapshot.declarations import KINDS
from state_pipelines.storage import resolve
from state_pipelines.storage.resolution import VARIABLE, is_options_text, load_storage_options, use_storage_options
from state_pipelines.storage.snapshot_writer import discard_partial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from enum import Enum

    from pydantic import BaseModel

    from state_pipelines.operations.models import OptionField

MAP = click.option(
    "--map",
    "path_mapping",
    metavar="FROM=TO",
    multiple=True,
    help="Where a directory lies now that the snapshot names.",
)
ALLOW_ROOT = click.option(
    "--allow-root",
    "allow_roots",
    metavar="DIR",
    multiple=True,
    help="A directory that the snapshot may name files in, besides its own and that of its job.",
)
_DEBUG = click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, hidden=True)


def choice_option(name: str, choices: Iterable[Enum], default: Enum, help: str) -> Callable[..., Any]:
    """Make an option that takes the values of an enumeration."""
    values = click.Choice([each.value for each in choices])
    return click.option(name, type=values, default=default.value, show_default=True, help=help)


def _use_storage_options(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        use_storage_options(load_storage_options(value))
        # Set the environment variable too: processes that Spark starts read it.
        os.environ[VARIABLE] = (
            str(Path(value).absolute()) if not is_options_text(value) and Path(value).exists() else value
        )


STORAGE_OPTIONS = click.option(
    "--storage-options",
    metavar="FILE",
    expose_value=False,
    callback=_use_storage_options,
    help=f"YAML file of storage options by root (docs/storage.md); also {VARIABLE}.",
)
SCRATCH = click.option(
    "--scratch",
    metavar="DIR",
    help="Directory (path or URL) of temporary files. Default: beside a local target, else TMPDIR of this machine.",
)
ALLOW_PYTHON = click.option(
    "--allow-python", is_flag=True, help="Run Python files among the migrations, and functions that they name."
)
DISCARD_PARTIAL = click.option(
    "--discard-partial",
    is_flag=True,
    help="Remove first what a command that was killed has left at TARGET. It must not run any more.",
)
STRICT = click.option("--strict", is_flag=True, help="Exit code 3 when something could not be shown decoded.")


def _remember_json(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    """Note for the display of errors that JSON is wanted."""
    ctx.meta["json"] = value
    return value


AS_JSON = click.option("--json", "as_json", is_flag=True, callback=_remember_json, help="Print JSON, for machines.")


SNAPSHOT_FLAGS = ("--map", "--allow-root", *(each.flag for each in KINDS))
"""Names of the options of `Opener`."""


@dataclass(frozen=True)
class Opener:
    """Opens the snapshots of a command as its options say.

    Attributes:
        path_mapping: texts `FROM=TO`.
        allow_roots: directories that the snapshots may name files in.
        declarations: information that the snapshots do not hold.
    """

    path_mapping: tuple[str, ...]
    allow_roots: tuple[str, ...]
    declarations: Declarations

    def open(self, path: str) -> Snapshot:
        """Open the snapshot at `path`, and check that it has what the declarations name (`check_declared_names`)."""
        (snapshot,) = self.open_together(path)
        return snapshot

    def open_together(self, *paths: str) -> list[Snapshot]:
        """Open snapshots, and check that what each declaration names exists in at least one of them."""
        snapshots = [self.open_unchecked(path) for path in paths]
        for note in check_declared_names(*snapshots):
            echo(f"note: {note}", err=True)
        return snapshots

    def open_unchecked(self, path: str) -> Snapshot:
        """Open a snapshot without checking the declared names, as one of many that need not all have them."""
        return open_snapshot(path, self.declarations, path_mapping=self.path_mapping, allow_roots=self.allow_roots)


def snapshot_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Opener`: `--map`, `--allow-root`, `--storage-options` and declarations."""

    @wraps(command)
    def call(*arguments: object, path_mapping: tuple[str, ...], allow_roots: tuple[str, ...], **others: object) -> None:
        texts = {kind.name: cast("tuple[str, ...]", others.pop(kind.name)) for kind in KINDS}
        command(*arguments, opener=Opener(path_mapping, allow_roots, declare(texts)), **others)

    decorated: Callable[..., None] = _DEBUG(call)
    for kind in reversed(KINDS):
        decorated = click.option(kind.flag, kind.name, metavar=kind.metavar, multiple=True, help=kind.help)(decorated)
    return MAP(ALLOW_ROOT(STORAGE_OPTIONS(decorated)))


_SHOWN_NOTES = 10
_SHOWN_SUBJECTS = 4
_SUBJECT = re.compile(r"operator [^:]+: (?:state \S+ )?")
_VARYING = re.compile(rf"^{_SUBJECT.pattern}|\[file [^\]]*\]")
"""Texts that differ between notes of one kind."""


def finish_with_notes(
    notes: Sequence[str], *, strict: bool, damage: Sequence[str] = (), undetermined: bool = False
) -> None:
    """Print notes on what could not be shown to stderr, and exit if they determine the exit code.

    Args:
        notes: what could not be shown, and why.
        strict: exit with code 3 if there are any notes.
        damage: errors about bytes that are damaged or missing; exit code 2.
        undetermined: some notes are about formats of an unknown version; exit code 3.
    """
    grouped = group_notes(notes)
    for note in grouped[:_SHOWN_NOTES]:
        echo(f"note: {' '.join(note.split())}", err=True)
    if len(grouped) > _SHOWN_NOTES:
        echo(f"note: and {len(grouped) - _SHOWN_NOTES} more", err=True)
    context = click.get_current_context()
    if damage:
        others = f" (and {len(damage) - 1} more)" if damage[1:] else ""
        echo(f"error: {' '.join(damage[0].split())}{others}", err=True)
        context.exit(WRONG_USE)
    if undetermined or (notes and strict):
        context.exit(UNDETERMINED)


def group_notes(notes: Sequence[str]) -> list[str]:
    """Merge notes that differ only in operator, state or file into one, which names or counts the others.

    Args:
        notes: texts that may begin with `operator …: state …`, and name files in brackets.
    """
    groups: dict[str, list[str]] = {}
    for note in notes:
        groups.setdefault(_VARYING.sub("", note), []).append(note)
    return [
        first if not others else f"{first} (and the same of {_name_subjects(others)})"
        for first, *others in groups.values()
    ]


def _name_subjects(notes: Sequence[str]) -> str:
    subjects = list(dict.fromkeys(match[0].rstrip(": ") for note in notes if (match := _SUBJECT.match(note))))
    if not subjects or len(subjects) > _SHOWN_SUBJECTS:
        return f"{len(notes)} more"
    return ", ".join(subjects)


def discard_left_over(target: str) -> None:
    """Remove what a killed command has left at a target (`discard_partial`), and say how much that was."""
    removed = discard_partial(resolve(target))
    if removed:
        echo(f"note: {removed} files and directories of a killed command were removed", err=True)


@dataclass(frozen=True)
class Excludes:
    """Rule: an option cannot be combined with any of some others.

    Attributes:
        option: such as `--json`.
        others: options that it cannot be combined with.
        reason: why.
        values: values of the others that are excluded; empty for all values.
    """

    option: str
    others: tuple[str, ...]
    reason: str
    values: tuple[str, ...] = ()

    def check(self, given: Mapping[str, tuple[str, object]]) -> None:
        """Refuse the options of a call that break the rule.

        Args:
            given: see `list_given`.
        """
        if self.option not in given:
            return
        for other in self.others:
            name, value = given.get(other, ("", None))
            if not name or (self.values and value not in self.values):
                continue
            named = f"{name} {value}" if self.values else name
            raise UsageError(
                f"{given[self.option][0]} does not go with {named}: {self.reason}",
                hint="Leave one of them out",
            )


@dataclass(frozen=True)
class Needs:
    """Rule: some options need at least one of some other options or arguments.

    Attributes:
        options: such as `--apply`.
        others: options or arguments, one of which is needed.
        reason: what the options are about.
    """

    options: tuple[str, ...]
    others: tuple[str, ...]
    reason: str

    def check(self, given: Mapping[str, tuple[str, object]]) -> None:
        """Refuse the options of a call that break the rule; see `Excludes.check`."""
        if not given.keys().isdisjoint(self.others):
            return
        for option in self.options:
            if option in given:
                name, needed = given[option][0], " or ".join(self.others)
                raise UsageError(
                    f"{name} has no effect without {needed}: {self.reason}", hint=f"Add {needed}, or leave {name} out"
                )


Rule = Excludes | Needs


class RuledCommand(click.Command):
    """A command that checks its rules before anything is opened.

    Attributes:
        rules: in the order in which they are checked.
    """

    def __init__(self, *arguments: Any, rules: Sequence[Rule] = (), **options: Any) -> None:
        """Take the rules, and the arguments of `click.Command`."""
        super().__init__(*arguments, **options)
        self.rules = tuple(rules)

    def invoke(self, ctx: click.Context) -> Any:
        """Check the rules, and run the command.

        Raises:
            UsageError: a rule is broken.
        """
        given = list_given(ctx)
        for rule in self.rules:
            rule.check(given)
        return super().invoke(ctx)


def list_given(ctx: click.Context) -> dict[str, tuple[str, object]]:
    """Map every name of each option and argument of a call to (the name to show in messages, the value)."""
    found: dict[str, tuple[str, object]] = {}
    for parameter in ctx.command.params:
        value = ctx.params.get(parameter.name or "")
        is_given = ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if not is_given or value is None or value == ():
            continue
        if isinstance(parameter, click.Argument):
            found[parameter.human_readable_name] = parameter.human_readable_name, value
            continue
        shown = max(parameter.opts, key=len)
        if value is False and parameter.secondary_opts:
            shown = parameter.secondary_opts[0]
        found |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), (shown, value))
    return found


def model_options(model: type[BaseModel]) -> Callable[..., Any]:
    """Add the options of a model to a command, in the model's order; `add_options` takes their values."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for fields in reversed(list(_group(model).values())):
            command = _make_option(fields)(command)
        return command

    return decorate


def add_options(model: type[BaseModel], content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the content of a request, with the values of options added.

    Args:
        model: the model of the request.
        content: names and values of a request, such as those of a file.
        values: of the options, by the names of their parameters.

    Raises:
        UsageError: the text of an option is malformed, or an option is given twice for the same subject.
    """
    content = dict(content)
    for name, fields in _group(model).items():
        given = values[_name_parameter(name)]
        own, inner = _split_subject(fields)
        if inner is None:
            assert own is not None
            if given not in (None, ()) and given != own.default:
                _set(content, own, list(given) if isinstance(given, tuple) else given)
            continue
        syntax = _write_syntax(fields)
        seen: Counter[str] = Counter()
        for text in given:
            subject, detail, value = _parse(text, own, inner, syntax)
            field = inner if subject else own
            assert field is not None
            seen[f"{subject}:{detail}" if detail else subject] += 1
            _set(content, field, _convert(field, value, text, syntax), subject, detail)
        if not inner.is_list and (repeated := [each for each, count in seen.items() if count > 1]):
            raise UsageError(
                f"{name} is given twice for {repeated[0] or 'all operators'}", hint=f"Leave one {name} out"
            )
    return content


def _group(model: type[BaseModel]) -> dict[str, list[OptionField]]:
    """Group fields by option: an option may have a field for all subjects, such as operators, and one per subject."""
    found: dict[str, list[OptionField]] = {}
    for field in list_options(model):
        found.setdefault(field.name, []).append(field)
    return found


def _split_subject(fields: list[OptionField]) -> tuple[OptionField | None, OptionField | None]:
    own = next((each for each in fields if not each.subject), None)
    return own, next((each for each in fields if each.subject), None)


def _name_parameter(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _write_syntax(fields: list[OptionField]) -> str:
    own, inner = _split_subject(fields)
    assert inner is not None
    subject = f"{inner.subject}:{inner.detail}" if inner.detail else inner.subject
    if not inner.value:
        return subject
    return f"[{subject}=]{inner.value}" if own is not None else f"{subject}={inner.value}"


def _make_option(fields: list[OptionField]) -> Callable[..., Any]:
    own, inner = _split_subject(fields)
    if inner is not None:
        return click.option(inner.name, metavar=_write_syntax(fields), multiple=True, help=inner.help)
    assert own is not None
    if own.kind is bool and own.default is None:
        switches = f"{own.name}/--no-{own.name.removeprefix('--')}"
        return click.option(switches, default=None, help=own.help)
    if own.kind is bool:
        return click.option(own.name, is_flag=True, help=own.help)
    names = tuple(filter(None, (own.name, own.other_name)))
    # The default is only shown in the help: an option that is not given adds nothing to the request.
    default = getattr(own.default, "value", own.default)
    shown = f"{own.help}  [default: {default}]" if isinstance(default, str) and default else own.help
    if own.choices:
        return click.option(*names, type=click.Choice(own.choices), help=shown)
    kind = int if own.kind is int else str
    return click.option(*names, metavar=own.value, type=kind, multiple=own.is_list, help=shown)


def _parse(text: str, own: OptionField | None, inner: OptionField, syntax: str) -> tuple[str, str, str]:
    """Return subject, detail and value of the text of an option; the subject is empty if it applies to everything."""
    if not inner.value:
        return text, "", ""
    # With an optional subject, the value is a number and has no `=`, so split at the last `=`. Other values may have
    # some, so split at the first.
    subject, equals, value = text.rpartition("=") if own is not None else text.partition("=")
    if own is None and not (subject and equals and value):
        raise UsageError(f"{text!r} does not have the form {syntax}")
    detail = ""
    if inner.detail:
        subject, _, detail = subject.rpartition(":")
        if not subject:
            raise UsageError(f"{text!r} does not have the form {syntax}")
    return subject, detail, value


def _convert(field: OptionField, value: str, text: str, syntax: str) -> object:
    if field.kind is bool:
        return True
    if field.kind is int:
        if not value.isdecimal():
            raise UsageError(f"{text!r} does not have the form {syntax}")
        return int(value)
    if field.is_file:
        # File names in a request file are relative to its directory; those in options, to the current directory.
        return {"file": str(Path(value).absolute())}
    return [value] if field.is_list else value


def _set(content: dict[str, Any], field: OptionField, value: object, subject: str = "", detail: str = "") -> None:
    *parents, name = (*(subject if each is None else each for each in field.path), *([detail] if detail else []))
    for each in parents:
        content = _open(content, each)
    if isinstance(value, list):
        given = content.get(name) or []
        value = [*([given] if isinstance(given, str) else given), *value]
    content[name] = value


def _open(content: dict[str, Any], name: str) -> dict[str, Any]:
    """Replace the mapping under a name by a copy, and return the copy; it is empty if there is no mapping."""
    # A key in YAML may be a number. Several keys may share one mapping (aliases), so change a copy under this key only.
    key: Any = next(_find_keys(content, name), name)
    content[key] = inner = dict(content.get(key) or {})
    return inner


def _find_keys(content: Mapping[str, Any], name: str) -> Iterator[str]:
    return (each for each in content if str(each) == name)
