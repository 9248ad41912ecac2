"""Models of operations: their fields are options of commands, keywords, requests, and configurations of runs.

A field is a name in a request file, a keyword argument of the library, and an entry of the JSON schema; `options` of a
model are those of its command (`cli.options`), and its plain fields those of the configuration of a run
(`dagster.flink_asset`). The docstring of a field is its description in all of them.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import Enum, EnumType
from functools import wraps
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from state_pipelines.errors import StateError, UsageError
from state_pipelines.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

_MOST_SHOWN = 60


@dataclass(frozen=True)
class Option:
    """Properties of the command-line option of a field that do not follow from the name and type of the field.

    Attributes:
        name: name of the option; by default that of the field.
        other_name: a further name of the option.
        value: placeholder for the value in the help, in capitals, such as `UID`.
        subject: for a mapping: placeholder for its keys, in capitals, such as `OPERATOR`. It comes first in the
            arguments of the options of its values.
        is_file: the option takes the path of a file with the values; a request may have `{file: …}`.
    """

    name: str = ""
    value: str = ""
    subject: str = ""
    is_file: bool = False
    other_name: str = ""


class OperationModel(BaseModel):
    """Base of the models with the options of an operation, or of one operator in it; a null counts as left out.

    Validators raise a ValueError whose text goes on after the name of the field or model: "is neither … nor …".
    """

    left_out: ClassVar[tuple[object, ...]] = (None,)
    """Values of fields that are left out."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        validate_by_name=True,
        validate_by_alias=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, content: object) -> object:
        """Leave out fields whose value is in `left_out`, such as null: in YAML, a name without a value is null."""
        if content is None:
            return {}
        if not isinstance(content, dict):
            return content
        known = {*cls.model_fields, *list_names(cls)}
        return {str(name): value for name, value in content.items() if value not in cls.left_out or name not in known}

    @classmethod
    def parse(cls, content: object, subject: str = "the request", **context: object) -> Self:
        """Make a model of the values of a file.

        Args:
            content: the values; None where the file is empty.
            subject: name of the values, for messages.
            context: context for the validators of the model.

        Raises:
            UsageError: the values do not fit the model; the error names the field.
        """
        try:
            return cls.model_validate(content, context=context)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            # Report unknown fields first: if a required field is misspelled, it is also reported as missing.
            unknown = [each for each in errors if each["type"] == "extra_forbidden"]
            raise _explain((unknown or errors)[0], cls, subject) from None


Model = TypeVar("Model", bound=OperationModel)
Function = TypeVar("Function", bound="Callable[..., Any]")


def read_keywords(model: type[Model], keywords: Mapping[str, Any], subject: str, **context: object) -> Model:
    """Make a model from keyword arguments; None means that a field is left out.

    Args:
        model: class of the model.
        keywords: values by name of the field.
        subject: name of the operation, for messages.
        context: context for the validators of the model.

    Raises:
        UsageError: a field does not accept its value; the error names the field.
    """
    words = {name: _take_word(model.model_fields[name], value) for name, value in keywords.items()}
    return model.parse(words, subject, **context)


def _take_word(field: FieldInfo, value: Any) -> Any:
    """Replace a member of an enumeration by its value if the field has literals; return other values as they are."""
    return value.value if isinstance(value, Enum) and value.value in find_choices(field) else value


def takes(model: type[OperationModel]) -> Callable[[Function], Function]:
    """Decorate a function with `**keywords` so that it takes the fields of a model as keyword arguments.

    Its signature and docstring, which `help` shows, get the fields with their defaults and descriptions, except fields
    that are parameters of the function already. Other keywords raise a TypeError.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        fields = {name: field for name, field in model.model_fields.items() if name not in signature.parameters}
        added = [_make_parameter(name, field) for name, field in fields.items()]
        made = signature.replace(parameters=[*own, *added])

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            made.bind(*arguments, **keywords)
            return function(*arguments, **keywords)

        described = "".join(f"        {name}: {_describe(field)}\n" for name, field in fields.items())
        lines = (function.__doc__ or "").splitlines(keepends=True)
        call.__doc__ = "".join(described if each.startswith("        keywords: ") else each for each in lines)
        vars(call)["__signature__"] = made
        return cast("Function", call)

    return decorate


def _make_parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    default = field.get_default(call_default_factory=True)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.annotation)


def _describe(field: FieldInfo) -> str:
    """Make the description of an argument from that of a field, with the words that the field accepts."""
    text = " ".join((field.description or "").split())
    words = ", ".join(f"`{each}`" for each in find_choices(field))
    return f"{text[:1].lower()}{text[1:]}" + (f" One of {words}." if words else "")


class Refusal(ValueError):
    """Error of a validator, with the `UsageError` of the parser that has refused the value."""

    def __init__(self, error: StateError) -> None:
        super().__init__(error.what)
        self.error = error


def parsed(parse: Callable[[Any], object]) -> BeforeValidator:
    """Return a validator that parses a value; the parser refuses invalid values with a `UsageError`."""

    def read(value: object) -> object:
        try:
            return parse(value)
        except UsageError as error:
            raise Refusal(error) from None

    return BeforeValidator(read)


def _to_texts(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _to_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_to_text)]
"""A text, which may be a number in YAML."""

Items = BeforeValidator(_to_texts)
"""Validator of lists of texts; a single text stands for a list with this text."""

Texts = Annotated[tuple[Text, ...], Items]
"""A list of texts, or a single one."""

Subjects = BeforeValidator(
    lambda value: {str(name): each for name, each in value.items()} if isinstance(value, dict) else value
)
"""Validator of mappings whose keys are names; YAML may have them as numbers."""


@dataclass(frozen=True)
class OptionField:
    """A field of a model as an option of a command.

    An argument of the option has the parts `SUBJECT:DETAIL=VALUE`, as far as the field has them.

    Attributes:
        name: name of the option, such as `--max-parallelism`.
        other_name: a further name; empty without one.
        path: names that lead to the field in a request, outermost first; None stands for the subject.
        subject: placeholder for the subject, in capitals, such as `OPERATOR`; empty without one.
        detail: for mappings: placeholder for the key, in capitals, such as `CLASS`; else empty.
        value: placeholder for the value, in capitals; empty for a flag.
        kind: type of the field: int, bool, str, tuple (of texts), dict (of texts), an enumeration or Literal.
        choices: values of an enumeration or Literal.
        is_file: the option takes the path of a file with the values.
        default: value of the field if it is left out; undefined for required fields.
        help: description of the field.
    """

    name: str
    path: tuple[str | None, ...]
    subject: str
    detail: str
    value: str
    kind: type
    choices: tuple[str, ...]
    is_file: bool
    default: object
    help: str
    other_name: str

    @property
    def is_list(self) -> bool:
        """Whether the option may be repeated to give several values for one subject."""
        return self.kind is tuple and not self.is_file


def list_options(model: type[BaseModel]) -> Iterator[OptionField]:
    """Yield the fields of a model, and of models nested in it, as options."""
    yield from _list_options(model, (), "")


def list_names(model: type[BaseModel]) -> list[str]:
    """List the names that the fields of a model have in requests."""
    return [name_field(name, field) for name, field in model.model_fields.items()]


def name_field(name: str, field: FieldInfo) -> str:
    """Return the name that a field has in requests."""
    return str(field.validation_alias or name)


def find_kind(field: FieldInfo) -> tuple[type, tuple[Any, ...]]:
    """Return the type of a field without None and annotations, and the arguments of this type."""
    kind: Any = field.annotation
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, UnionType):
            kind = next(each for each in get_args(kind) if each is not NoneType)
        else:
            return get_origin(kind) or kind, get_args(kind)


def find_choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the values that a field with an enumeration or literals accepts; none for other types."""
    kind: Any
    kind, arguments = find_kind(field)
    members: Any = kind if isinstance(kind, EnumType) else ()
    return arguments if kind is Literal else tuple(each.value for each in members)


def _list_options(model: type[BaseModel], path: tuple[str | None, ...], subject: str) -> Iterator[OptionField]:
    for name, field in model.model_fields.items():
        option = _find_option(field)
        kind, arguments = find_kind(field)
        own = (*path, name_field(name, field))
        inner = arguments[1] if kind is dict and isinstance(arguments[1], type) else kind
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _list_options(inner, (*own, None) if kind is dict else own, option.subject or subject)
            continue
        yield OptionField(
            name=option.name or f"--{name.replace('_', '-')}",
            path=own,
            subject=subject,
            detail=option.subject,
            value="" if kind is bool else option.value,
            kind=kind,
            choices=find_choices(field),
            is_file=option.is_file,
            default=field.get_default(call_default_factory=True),
            help=field.description or "",
            other_name=option.other_name,
        )


def _find_option(field: FieldInfo) -> Option:
    return next((each for each in field.metadata if isinstance(each, Option)), Option())


def _explain(error: ErrorDetails, model: type[BaseModel], subject: str) -> UsageError:
    """Translate an error of pydantic to one that names the field as the request does and shows no secrets.

    Args:
        error: the error of pydantic.
        model: class of the model that was validated.
        subject: name of the whole request, for errors that are about no single field.
    """
    *parents, last = error["loc"] or ("",)
    name, where = str(last), _join(parents) or subject
    path = _join((*parents, last)) or subject
    named = f"{name} of {where}" if isinstance(last, str) else path
    if last == "[key]":
        named = f"a name in {_join(parents[:-1])}"
    shown = redact(repr(error["input"]))[:_MOST_SHOWN]
    context = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            known = list_names(_find_model(model, parents))
            return UsageError(f"{where} does not know {name!r}", hint=f"It knows {', '.join(known) or 'no field'}")
        case "missing":
            description = _find_field(_find_model(model, parents), name).description or ""
            return UsageError(f"{where} lacks the field {name!r}", hint=description)
        case "model_type" | "model_attributes_type" | "dict_type":
            return UsageError(f"{path} is not a mapping but {shown}")
        case "tuple_type" | "list_type":
            return UsageError(f"{named} is not a list but {shown}")
        case "int_type" | "float_type" | "finite_number":
            number = "a whole number" if error["type"] == "int_type" else "a number"
            return UsageError(f"{named} is not {number} but {shown}")
        case "greater_than_equal":
            return UsageError(f"{named} is {shown}, not a number from {context['ge']:g} on")
        case "too_short" | "string_too_short":
            least = context["min_length"]
            return UsageError(f"{named} is {shown}, with less than {least} {'entries' if least > 1 else 'character'}")
        case "bool_type":
            return UsageError(f"{path} must be true or false, not {shown}")
        case "string_type":
            hint = f'Write it in quotes: {name}: "…"' if isinstance(last, str) else ""
            return UsageError(f"{named} is not text but {shown}", hint=hint)
        case "enum" | "literal_error":
            choices = str(context["expected"]).replace("'", "").replace(" or ", ", ")
            return UsageError(f"{named} is {shown}", hint=f"Choose from {choices}")
        case _ if isinstance(refusal := context.get("error"), Refusal):
            return UsageError(f"{path}: {refusal.error.what}", hint=refusal.error.hint)
        case _:
            return UsageError(f"{path} {error['msg'].removeprefix('Value error, ')}")


def _join(names: Sequence[int | str]) -> str:
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names).lstrip(".")


def _find_model(model: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    """Return the nested model at the location of an error; `path` has the names and indices that lead to it."""
    names = iter(path)
    for name in names:
        kind, arguments = find_kind(_find_field(model, str(name)))
        if kind in (dict, tuple):
            next(names, None)
            kind = arguments[0 if kind is tuple else 1]
        model = kind
    return model


def _find_field(model: type[BaseModel], name: str) -> FieldInfo:
    return next(field for own, field in model.model_fields.items() if name in (own, name_field(own, field)))


Choice = TypeVar("Choice", bound="Enum")


def parse_choice(choices: type[Choice], value: Choice | str, what: str) -> Choice:
    """Return the member of an enumeration that has a value.

    Args:
        choices: the enumeration.
        value: value of a member, or the member itself.
        what: description of the choice, for the error.

    Raises:
        UsageError: no member has the value.
    """
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(str(each.value) for each in choices)
        raise UsageError(f"{value!r} is no {what}", hint=f"Choose from {known}") from None
