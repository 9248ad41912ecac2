"""Options of commands that are fields of models: a field that is added to a model is known everywhere."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import click
import pytest
from click.testing import CliRunner
from pydantic import Field, create_model

from state_pipelines.cli.options import add_options, model_options
from state_pipelines.dagster.flink_asset import list_changed, make_config
from state_pipelines.errors import UsageError
from state_pipelines.operations.bootstrap.bootstrap import BootstrapRequest
from state_pipelines.operations.models import OperationModel, Option, Subjects, list_options
from state_pipelines.operations.requests import MODELS
from state_pipelines.operations.rescale import OperatorRequest, RescaleRequest

if TYPE_CHECKING:
    from collections.abc import Callable


_MODELS = [RescaleRequest, BootstrapRequest, *MODELS.values()]


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
    with pytest.raises(UsageError, match="added of the request is not a whole number but 'many'"):
        added.parse({"added": "many"})


@pytest.mark.parametrize("model", _MODELS)
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
