"""Templates in the YAML of a job: `{{ env('NAME') }}`, and the other names that Dagster defines.

Dagster's own rendering converts text that looks like a Python literal: the release "1.20" becomes the number 1.2, and a
password of digits becomes an integer. Here text stays text, and a missing variable is an error of its field.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pydantic_core import InitErrorDetails, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Environment:
    """`env('NAME')`, `env('NAME', 'default')` and `env.NAME`; an empty variable counts as missing."""

    def __call__(self, name: str, default: str | None = None) -> str:
        value = os.environ.get(name) or default
        if value is None:
            raise LookupError(f"the environment variable {name} is not set; env('{name}', 'VALUE') gives it a default")
        return value

    def __getattr__(self, name: str) -> str:
        if name.startswith(("_", "jinja")):
            raise AttributeError(name)
        return self(name)


def render_templates(attributes: Mapping[str, Any], scope: Mapping[str, Any]) -> dict[str, Any]:
    """Render the templates in all texts of a mapping.

    Args:
        attributes: attributes as YAML holds them.
        scope: names that templates may use; `env` is replaced.

    Raises:
        ValidationError: templates cannot be rendered; with one error per field.
    """
    errors: list[InitErrorDetails] = []
    rendered = _render(dict(attributes), {**scope, "env": _Environment()}, (), errors)
    if errors:
        raise ValidationError.from_exception_data("FlinkJob", errors)
    assert isinstance(rendered, dict)
    return rendered


def _render(value: Any, scope: Mapping[str, Any], path: tuple[str | int, ...], errors: list[InitErrorDetails]) -> Any:
    if isinstance(value, dict):
        return {key: _render(each, scope, (*path, key), errors) for key, each in value.items()}
    if isinstance(value, list):
        return [_render(each, scope, (*path, index), errors) for index, each in enumerate(value)]
    if not isinstance(value, str) or "{" not in value:
        return value
    from jinja2 import StrictUndefined, Template, TemplateError

    try:
        return Template(value, undefined=StrictUndefined).render(**scope)
    except (TemplateError, LookupError, TypeError, AttributeError) as error:
        context = {"error": ValueError(error.args[0] if error.args else str(error))}
        errors.append(InitErrorDetails(type="value_error", loc=path, input=value, ctx=context))
        return value
