"""Run configurations: choices as enums, and validators that Dagster runs before a run starts."""

# Without the import of `annotations`: Dagster reads those of the decorated functions.

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import dagster as dg
from pydantic import ValidationError

from state_pipelines.dagster.unexported_names import PostProcessingError

# Enums in the launchpad. A Python enum would be spelled by the names of its members, such as CANONICAL.
FormatName = Literal["canonical", "heap", "rocksdb", "keep"]
"""The values of `Format`."""

NewFormatName = Literal["canonical", "heap", "rocksdb"]
"""The values of `Format` of which a savepoint without a source can be."""

FileModeName = Literal["copy", "link", "reference"]
"""The values of `FileMode`."""

InFlightName = Literal["refuse", "keep", "drop"]
"""The values of `InFlight`."""

DepthName = Literal["files", "sample", "whole"]
"""The values of `Depth`."""


class _NonEmptyText(type(dg.StringSource)):  # type: ignore[misc]
    def post_process(self, value: object) -> object:
        text = super().post_process(value)
        if not str(text).strip():
            raise PostProcessingError("the text is empty")
        return text


NON_EMPTY_TEXT: Any = _NonEmptyText()
"""Schema of a text, or of the environment variable that has it; no run starts with an empty one."""


def validate_early(definition: dg.OpDefinition, function: Callable[..., object]) -> None:
    """Let the validators of a configuration run when a run is requested, and not first in its step.

    Args:
        definition: the op, or that of an asset.
        function: its function; the parameter `config`, if there is one, is annotated by a subclass of `dg.Config`.
    """
    config = inspect.signature(function).parameters.get("config")
    if config is not None:
        schema: Any = definition.config_schema.config_type
        # Dagster calls it after it has checked types and filled in defaults, before there is an execution plan.
        schema.post_process = functools.partial(_validate, config.annotation)


def _validate(model: type[dg.Config], value: dict[str, Any]) -> dict[str, Any]:
    """Validate a configuration, and return it.

    Raises:
        PostProcessingError: it is invalid; Dagster shows why, and starts no run.
    """
    try:
        model(**value)
    except ValidationError as error:
        texts = [_describe(each) for each in error.errors(include_url=False, include_input=False)]
        raise PostProcessingError("; ".join(texts)) from None
    return value


def _describe(error: Mapping[str, Any]) -> str:
    """Describe an invalid field without its value, which may be the key of a user."""
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{'.'.join(map(str, error['loc']))}: {text}" if error["loc"] else text
