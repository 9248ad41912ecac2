"""Options that errors name: they are options of the commands that print the error."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

import state_pipelines
from state_pipelines.cli.commands import COMMANDS, load_command
from state_pipelines.cli.running_jobs import SETTINGS, name_settings
from state_pipelines.operations.migration.step_entries import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(state_pipelines.__file__).parent
CLI = PACKAGE / "cli"
OPTION = re.compile(r"(?<![\w-])--[a-zA-Z][\w-]*")


def _list_commands() -> dict[str, click.Command]:
    """Every command by its name, those of a group as `sql check`."""
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = load_command(name)
        if isinstance(command, click.Group):
            found |= {f"{name} {own}": each for own, each in command.commands.items()}
        else:
            found[name] = command
    return found


def _find_options(command: click.Command) -> set[str]:
    return {
        text
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for text in (*parameter.opts, *parameter.secondary_opts)
    }


CALLS = _list_commands()
OPTIONS = {name: _find_options(command) for name, command in CALLS.items()}
UPGRADING = {"upgrade", "rehearse"}
for _name in UPGRADING:
    # Their texts name fields of the description of the job in place of these.
    OPTIONS[_name] |= {*SETTINGS}
GROUPS = {
    name: set.intersection(*(options for command, options in OPTIONS.items() if command.startswith(f"{name} ")))
    for name in COMMANDS
    if name not in CALLS
}
"""Options that all commands of a group have."""

OTHERS = {"--allowNonRestoredState", "--drain", "--add-modules"}
"""Options of `flink run`, `flink stop` and `java`."""

OPENING = UPGRADING | {name for name, options in OPTIONS.items() if {"--map", "--uid"} <= options}
"""The commands that open a snapshot; errors of the lower layers come from any of them."""

PRINTED_BY: tuple[tuple[str, set[str]], ...] = (
    ("operations/rescale/", {"rescale"}),
    ("storage/snapshot_writer.py", {"bootstrap", "convert", "erase", "migrate", "rescale"}),
    ("operations/migration/migration_files.py", {"migrate", "history", "current", "revision", *UPGRADING}),
    ("operations/check/", {"check", *UPGRADING}),
    ("operations/jobs/", {"check", "revision", *UPGRADING}),
    ("serializers/compatibility/", {"check", "revision", *UPGRADING}),
    ("operations/sql_check.py", {"sql check", "sql migrate", *UPGRADING}),
    ("spark/analysis.py", {"migrate", *UPGRADING}),
    ("spark/expectations.py", {"migrate", *UPGRADING}),
    # `history` and `current` name no options in errors of their own.
    ("operations/migration/history.py", {"migrate", "revision"}),
    ("operations/migration/", {"migrate", *UPGRADING}),
    ("operations/write/publication.py", {"convert", "rescale"}),
    ("operations/convert.py", {"convert"}),
    ("operations/auditing/", {"verify"}),
    ("operations/convert", {"convert"}),
    ("snapshot/snapshot.py", {"read"}),
    ("keyed/operator_table.py", {"read"}),
    ("keyed/operator_columns.py", {"read"}),
    ("keyed/keys.py", {"read"}),
    ("cli/profile.py", {"inspect"}),
    ("operations/retention/", {"retain"}),
    ("flink/status.py", {"status"}),
    ("sql/templates.py", {"sql migrate"}),
    ("plugins.py", set()),
)
"""By start of the path the commands that print the errors of a module; the others are printed by all of `OPENING`."""


@cache
def _parse(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))


Definition = tuple[str, str]
"""A module of commands, and a name that its top level defines."""


def _list_definitions(module: str) -> dict[str, list[ast.stmt]]:
    """The statements that define a name of a module: functions, classes, and values."""
    found: dict[str, list[ast.stmt]] = {}
    for node in _parse(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node)
    return found


def _list_names(nodes: list[ast.stmt]) -> set[str]:
    """Names that statements read and do not bind themselves."""
    inner = [each for node in nodes for each in ast.walk(node)]
    bound = {each.arg for each in inner if isinstance(each, ast.arg)}
    return {each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)} - bound


@cache
def _list_uses() -> dict[Definition, set[Definition]]:
    """The names that each definition in a module of commands uses, of its own module or of another one."""
    modules = [path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".") for path in CLI.glob("*.py")]
    definitions = {module: _list_definitions(module) for module in modules}
    uses: dict[Definition, set[Definition]] = {}
    for module in modules:
        known = {name: (module, name) for name in definitions[module]}
        for node in ast.walk(_parse(module)):
            if isinstance(node, ast.ImportFrom) and node.module:
                origin = node.module.removeprefix("state_pipelines.")
                names = definitions.get(origin, {})
                known |= {each.asname or each.name: (origin, each.name) for each in node.names if each.name in names}
        for name, nodes in definitions[module].items():
            used = _list_names(nodes)
            uses[module, name] = {known[each] for each in used if each in known}
    return uses


@cache
def _list_reached() -> dict[str, set[Definition]]:
    """By command the definitions that its function reaches."""
    uses = _list_uses()
    found = {}
    for name, command in CALLS.items():
        function = inspect.unwrap(command.callback)  # type: ignore[arg-type]
        module = function.__module__.removeprefix("state_pipelines.")
        reached: set[Definition] = set()
        open_ = [(module, function.__name__)]
        while open_:
            each = open_.pop()
            if each not in reached:
                reached.add(each)
                open_ += uses.get(each, ())
        found[name] = reached
    return found


def _find_printers(path: str, line: int) -> set[str]:
    for start, commands in PRINTED_BY:
        if path.startswith(start):
            return commands
    if not path.startswith("cli/"):
        return OPENING
    module = path.removesuffix(".py").replace("/", ".")
    around = {
        (module, name)
        for name, nodes in _list_definitions(module).items()
        for node in nodes
        if node.lineno <= line <= (node.end_lineno or node.lineno)
    }
    return {name for name, reached in _list_reached().items() if reached & around}


def _find_texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Texts of more than a word, without docstrings: errors, hints, remedies, notes, descriptions of options."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {id(each) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and id(node) not in inner):
            yield from ((line, text) for line, text in _join(node) if " " in text and id(node) not in docstrings)


def _join(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    else:
        for each in ast.iter_child_nodes(node):
            yield from _join(each)


def _find_wrong(path: str, text: str, line: int = 0) -> list[str]:
    """Options in a text that a command which prints it, or the command named in front of it, does not have."""
    wrong = []
    for found in OPTION.finditer(text):
        before = text[: found.start()]
        named = [name for name in (*CALLS, *GROUPS) if re.search(rf"(`|\(|state-pipelines ){name}\b[^`;()]*$", before)]
        if re.search(r"(`flink \w+|\bprotoc)\b[^`;]*$", before) or found.group() in OTHERS:
            continue
        commands = {max(named, key=len)} if named else _find_printers(path, line)
        wrong += [
            f"{name} has no {found.group()}"
            for name in sorted(commands)
            if found.group() not in (OPTIONS | GROUPS)[name]
        ]
    return wrong


MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES)
def test_options_in_errors_are_those_of_the_command(path: str) -> None:
    found = _find_texts(ast.parse((PACKAGE / path).read_text(encoding="utf-8")))
    wrong = [(line, text, each) for line, text in dict.fromkeys(found) for each in _find_wrong(path, text, line)]
    assert wrong == []


STEP = re.compile(r"step `(\w+)[:`]|`(\w+)` (?:the|it|changes|moves|gives|takes|makes|drops)\b|[Uu]se `(\w+)`")
"""Steps of migrations, as hints and remedies name them."""


def _find_unknown_steps(text: str) -> list[str]:
    named = (next(filter(None, found.groups())) for found in STEP.finditer(text))
    return [name for name in named if name not in (*STEPS, *COMMANDS)]


@pytest.mark.parametrize("path", [path for path in MODULES if path.startswith(("operations/", "serializers/"))])
def test_steps_in_hints_and_remedies_exist(path: str) -> None:
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    written = (node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr))
    texts = [text for node in written if id(node) not in docstrings for _, text in _join(node)]
    assert [name for text in dict.fromkeys(texts) for name in _find_unknown_steps(text)] == []


def test_a_step_that_does_not_exist_is_found() -> None:
    assert _find_unknown_steps("`edit` changes the offsets") == ["edit"]
    assert _find_unknown_steps("with the step `key: {type: TYPE}`, or `convert` it") == []


def test_an_option_that_does_not_exist_is_found() -> None:
    assert _find_wrong("metadata/streams.py", "Say it with --nowhere") != []
    assert _find_wrong("metadata/streams.py", "Say it with --map FROM=TO") == []
    assert _find_wrong("cli/diff.py", "Drop it first (convert --in-flight drop)") == []
    assert _find_wrong("cli/diff.py", "Drop it first (convert --limit 1)") == ["convert has no --limit"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Declare it (--python-types)", "Declare it (`python_types` in the description of the job)"),
        ("Say it with --map FROM=TO", "Say it with --map FROM=TO"),
        ("By hand: `migrate --classes a.jar`", "By hand: `migrate --classes a.jar`"),
        ("flink run -d -s p a.jar --classes b", "flink run -d -s p a.jar --classes b"),
        ("Start with --nothing", "Start with --nothing"),
    ],
)
def test_commands_of_a_job_name_the_fields_of_its_description(text: str, shown: str) -> None:
    assert name_settings(text, CALLS["upgrade"]) == shown
