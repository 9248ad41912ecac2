"""Options of a command that are the fields of a model, and the content of a request that they say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from state_pipelines.errors import UsageError
from state_pipelines.operations.models import list_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic import BaseModel

    from state_pipelines.operations.models import OptionField


def model_options(model: type[BaseModel]) -> Callable[..., Any]:
    """Give a command the options of a model, in its order; their values come as `add_options` takes them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for fields in reversed(list(_group(model).values())):
            command = _make_option(fields)(command)
        return command

    return decorate


def add_options(model: type[BaseModel], content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Add what options say to the content of a request, which stays as it is.

    Args:
        model: the model of the request.
        content: names and values of a request, such as those of a file.
        values: of the options, by the names of their parameters.

    Raises:
        UsageError: an option does not have its form, or is given twice for one subject.
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
    """Fields by option: one may be about everything, and about one subject."""
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
    if own.choices:
        # Nothing that is not given is added to a request, so that the default is only shown.
        shown = f"{own.help}  [default: {getattr(own.default, 'value', own.default)}]"
        return click.option(own.name, type=click.Choice(own.choices), help=shown)
    kind = int if own.kind is int else str
    return click.option(own.name, metavar=own.value, type=kind, multiple=own.is_list, help=own.help)


def _parse(text: str, own: OptionField | None, inner: OptionField, syntax: str) -> tuple[str, str, str]:
    """Subject, detail and value of a text; the subject is empty where it is about everything."""
    if not inner.value:
        return text, "", ""
    # A number has no `=`, other values may have several.
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
        # Names in a request are relative to its file, those of options to the current directory.
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
    """The mapping of a name, to add to; a new one where there is none, or nothing after the name."""
    # In YAML a name may be a number, and one mapping may have several names (aliases): a copy belongs to this one.
    key: Any = next(_find_keys(content, name), name)
    content[key] = inner = dict(content.get(key) or {})
    return inner


def _find_keys(content: Mapping[str, Any], name: str) -> Iterator[str]:
    return (each for each in content if str(each) == name)
