"""Options that errors name: they are options of the commands that print the error."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

import state_pipelines
from state_pipelines.cli.commands import COMMANDS, load_command
from state_pipelines.operations.migration.step_entries import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(state_pipelines.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-zA-Z][\w-]*")


def _find_options() -> dict[str, set[str]]:
    found = {}
    for name in COMMANDS:
        command = load_command(name)
        parameters = [*command.params]
        if isinstance(command, click.Group):
            parameters += [parameter for each in command.commands.values() for parameter in each.params]
        found[name] = {
            text
            for parameter in parameters
            if isinstance(parameter, click.Option)
            for text in (*parameter.opts, *parameter.secondary_opts)
        }
    return found


OPTIONS = _find_options()
OPENING = {name for name, options in OPTIONS.items() if {"--map", "--uid"} <= options}
"""The commands that open a snapshot; errors of the lower layers come from any of them."""

PRINTED_BY: tuple[tuple[str, set[str]], ...] = (
    ("operations/rescale/", {"rescale"}),
    ("storage/snapshot_writer.py", {"bootstrap", "convert", "erase", "migrate", "rescale"}),
    ("operations/migration/migration_files.py", {"migrate", "history", "current", "revision"}),
    ("spark/analysis.py", {"migrate"}),
    ("spark/expectations.py", {"migrate"}),
    # `history` and `current` name no options in errors of their own.
    ("operations/migration/history.py", {"migrate", "revision"}),
    ("operations/migration/", {"migrate"}),
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
    ("operations/jobs/new_job.py", {"check", "revision"}),
    ("flink/status.py", {"status"}),
    ("sql/templates.py", {"sql"}),
    ("plugins.py", set()),
)
"""By start of the path the commands that print the errors of a module; the others are printed by all of `OPENING`."""


def _find_printers(path: str) -> set[str]:
    for start, commands in PRINTED_BY:
        if path.startswith(start):
            return commands
    name = path.removeprefix("cli/").removesuffix(".py")
    return {each for each, (module, _) in COMMANDS.items() if path.startswith("cli/") and module == name} or OPENING


def _find_texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Texts of errors: what is raised, and what is given or assigned as a hint."""
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call() as made):
                yield from _join(made)
            case ast.keyword(arg="hint", value=value):
                yield from _join(value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.lower().endswith("hint"):
                yield from _join(value)


def _join(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    else:
        for each in ast.iter_child_nodes(node):
            yield from _join(each)


def _find_wrong(path: str, text: str) -> list[str]:
    """Options in a text that the command which prints it, or the command named in front of it, does not have."""
    wrong = []
    for found in OPTION.finditer(text):
        before = text[: found.start()]
        named = [name for name in COMMANDS if re.search(rf"(`|\(|state-pipelines ){name}\b[^`;()]*$", before)]
        if re.search(r"(`flink \w+|\bprotoc)\b[^`;]*$", before):
            continue
        commands = {named[-1]} if named else _find_printers(path)
        lacking = [f"{name} has no {found.group()}" for name in sorted(commands) if found.group() not in OPTIONS[name]]
        # The errors of a module of commands are those of one of them.
        wrong += lacking if not path.startswith("cli/") or len(lacking) == len(commands) else []
    return wrong


MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES)
def test_options_in_errors_are_those_of_the_command(path: str) -> None:
    found = _find_texts(ast.parse((PACKAGE / path).read_text(encoding="utf-8")))
    wrong = [(line, text, each) for line, text in dict.fromkeys(found) for each in _find_wrong(path, text)]
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
