"""Options of commands that are fields of models: a field that is added to a model is known everywhere."""

from __future__ import annotations

import inspect
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import pytest
import yaml
from click.testing import CliRunner
from pydantic import Field, create_model

import state_pipelines as sp
from state_pipelines.cli.commands import load_command
from state_pipelines.cli.options import add_options, model_options
from state_pipelines.dagster.flink_asset import list_changed, make_config
from state_pipelines.errors import UsageError
from state_pipelines.operations.auditing.report import AuditRequest
from state_pipelines.operations.bootstrap.bootstrap import BootstrapRequest
from state_pipelines.operations.check.check import CheckRequest
from state_pipelines.operations.convert import ConversionRequest
from state_pipelines.operations.migration.history import MigrationRequest
from state_pipelines.operations.models import OperationModel, Option, Subjects, list_options, takes
from state_pipelines.operations.requests import MODELS
from state_pipelines.operations.rescale import OperatorRequest, RescaleRequest
from state_pipelines.upgrades.upgrade_request import JobFile

if TYPE_CHECKING:
    from collections.abc import Callable


_MODELS: list[type[OperationModel]] = [RescaleRequest, BootstrapRequest, CheckRequest, *MODELS.values()]
_COMMANDS = {
    "rescale": RescaleRequest,
    "convert": ConversionRequest,
    "bootstrap": BootstrapRequest,
    "check": CheckRequest,
    "migrate": MigrationRequest,
    "verify": AuditRequest,
}
_FUNCTIONS = {name: _COMMANDS[name] for name in ("rescale", "convert", "bootstrap", "check")}


class Color(StrEnum):
    """Colors of a request."""

    RED = "red"
    BLUE = "blue"


class ColoredOperator(OperatorRequest):
    """A request for an operator with two more fields."""

    sizes: Annotated[tuple[str, ...], Option("--size", value="SIZE"), Field(strict=False)] = ()
    """Sizes of the operator."""

    weight: Annotated[int | None, Option(value="KG")] = None
    """Weight of everything, or of one operator."""


class ColoredRequest(RescaleRequest):
    """A request with three more fields."""

    color: Annotated[Color, Field(strict=False)] = Color.RED
    """Color of everything."""

    weight: Annotated[int | None, Option(value="KG")] = None
    """Weight of everything."""

    operators: Annotated[dict[str, ColoredOperator], Subjects, Option(subject="OPERATOR")] = Field(default_factory=dict)  # type: ignore[assignment]


@pytest.fixture
def parse() -> Callable[..., ColoredRequest]:
    found: list[dict[str, object]] = []

    @click.command()
    @model_options(ColoredRequest)
    def command(**values: object) -> None:
        found.append(values)

    def run(*arguments: str, content: dict[str, object] | None = None) -> ColoredRequest:
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 0, result.output
        return ColoredRequest.parse(add_options(ColoredRequest, content or {}, found.pop()))

    run.help = CliRunner().invoke(command, ["--help"]).output  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize("model", _MODELS)
def test_a_field_that_is_added_to_a_model_is_known_everywhere(model: type[OperationModel]) -> None:
    number = Annotated[int | None, Option(value="N"), Field(description="Number of everything.")]
    added: type[OperationModel] = create_model(f"Added{model.__name__}", __base__=model, added=(number, None))

    @click.command()
    @model_options(added)
    def command(**values: object) -> None:
        request = added.parse(add_options(added, {}, values))
        click.echo(request.model_dump_json(include={"added"}))

    assert "--added N" in CliRunner().invoke(command, ["--help"]).output
    assert CliRunner().invoke(command, ["--added", "3"]).output == '{"added":3}\n'
    assert make_config(added)(added=3).model_dump()["added"] == 3
    assert make_config(added).model_fields["added"].description == "Number of everything."
    assert added.model_json_schema()["properties"]["added"]["description"] == "Number of everything."
    assert added.parse(yaml.safe_load("added: 3")).model_dump()["added"] == 3
    with pytest.raises(UsageError, match="added of the request is not a whole number but 'many'"):
        added.parse({"added": "many"})


@pytest.mark.parametrize(("name", "model"), _FUNCTIONS.items())
def test_a_field_that_is_added_to_a_model_is_a_keyword_of_the_library(name: str, model: type[OperationModel]) -> None:
    number = Annotated[int | None, Field(description="Number of everything.")]
    added: type[OperationModel] = create_model(f"Added{model.__name__}", __base__=model, added=(number, None))
    function = takes(added)(inspect.unwrap(getattr(sp, name)))
    parameter = inspect.signature(function).parameters["added"]
    assert (parameter.kind, parameter.default) == (inspect.Parameter.KEYWORD_ONLY, None)
    assert "\n        added: number of everything.\n" in str(function.__doc__)
    with pytest.raises(TypeError, match="'addde'"):
        function("snapshot", "target", addde=3)


@pytest.mark.parametrize(("name", "model"), _FUNCTIONS.items())
def test_the_library_takes_what_the_model_has(name: str, model: type[OperationModel]) -> None:
    function = getattr(sp, name)
    own = inspect.signature(inspect.unwrap(function)).parameters
    plain = inspect.unwrap(function)
    types = plain.__globals__[plain.__annotations__["keywords"].removeprefix("Unpack[").removesuffix("]")]
    assert {*types.__annotations__} | ({*model.model_fields} & {*own}) == {*model.model_fields}
    parameters = inspect.signature(function).parameters
    for each, field in model.model_fields.items():
        assert parameters[each].default == field.get_default(call_default_factory=True)
        assert each in own or f"\n        {each}: " in str(function.__doc__)


@pytest.mark.parametrize(("name", "model"), _COMMANDS.items())
def test_a_command_has_the_options_of_its_model(name: str, model: type[OperationModel]) -> None:
    known = {option: each.help for each in load_command(name).params for option in each.opts if hasattr(each, "help")}
    for field in list_options(model):
        assert field.name in known


def test_the_reference_has_every_model() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    lacking = [each.__name__ for each in _MODELS if each is not OperationModel and each.__name__ not in page]
    assert lacking == []


@pytest.mark.parametrize("model", [*_MODELS, JobFile])
def test_every_field_is_described(model: type[OperationModel]) -> None:
    assert all(each.help for each in list_options(model))
    config = make_config(model).model_fields
    assert all(config[name].description == model.model_fields[name].description for name in config)


def test_added_fields_are_in_the_help(parse: Callable[..., ColoredRequest]) -> None:
    text = " ".join(parse.help.split())  # type: ignore[attr-defined]
    assert "--color [red|blue] Color of everything." in text
    assert "--size OPERATOR=SIZE Sizes of the operator." in text
    assert "--weight [OPERATOR=]KG Weight of everything, or of one operator." in text


def test_added_fields_are_options(parse: Callable[..., ColoredRequest]) -> None:
    content = {"weight": 1, "operators": {"orders": {"sizes": ["a"]}}}
    request = parse(
        *("--color", "blue", "--size", "orders=b", "--size", "orders=c", "--weight", "2", "--weight", "orders=3"),
        content=content,
    )
    assert (request.color, request.weight) == (Color.BLUE, 2)
    assert request.operators == {"orders": ColoredOperator(sizes=("a", "b", "c"), weight=3)}
    assert content == {"weight": 1, "operators": {"orders": {"sizes": ["a"]}}}


@pytest.mark.parametrize("arguments", [("--weight", "2", "--weight", "3"), ("--weight", "o=2", "--weight", "o=3")])
def test_one_value_is_given_once(parse: Callable[..., ColoredRequest], arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"--weight is given twice for (all operators|o)\."):
        parse(*arguments)


def test_added_fields_are_in_a_request() -> None:
    request = ColoredRequest.parse({"color": "blue", "operators": {"orders": {"weight": 3}}})
    assert request == ColoredRequest(color=Color.BLUE, operators={"orders": ColoredOperator(weight=3)})
    with pytest.raises(UsageError, match="color of the request is 'green'") as caught:
        ColoredRequest.parse({"color": "green"})
    assert "Choose from red, blue" in str(caught.value)
    with pytest.raises(UsageError, match=r"weight of operators\.orders is not a whole number but '3'"):
        ColoredRequest.parse({"operators": {"orders": {"weight": "3"}}})
    with pytest.raises(UsageError, match=r"operators\.orders does not know 'wieght'.*weight"):
        ColoredRequest.parse({"operators": {"orders": {"wieght": 3}}})


def test_added_fields_are_in_the_configuration_of_a_run() -> None:
    config = make_config(ColoredRequest)
    assert config.model_fields["weight"].description == "Weight of everything."
    assert list_changed(config(weight=3, parallelism=2), ColoredRequest) == {"weight": 3, "parallelism": 2}
    assert list_changed(config(), ColoredRequest) == {}


def test_added_fields_are_in_the_schema() -> None:
    schema = ColoredRequest.model_json_schema()
    assert schema["properties"]["color"]["description"] == "Color of everything."
    assert schema["$defs"]["ColoredOperator"]["properties"]["sizes"]["description"] == "Sizes of the operator."
