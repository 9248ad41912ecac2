"""`FlinkJobComponent`: a Flink job described in YAML, with templates such as `{{ env('NAME') }}`.

Dagster's own rendering of templates converts text that looks like a Python literal: the release "1.20" becomes the
number 1.2, and a password of digits becomes an integer. Here text stays text, and a missing variable is an error of its
field.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import InitErrorDetails

from state_pipelines.dagster.builder import build_flink_job
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.translation import AssetTranslator
from state_pipelines.dagster.unexported_names import LoadContextScope
from state_pipelines.errors import UsageError
from state_pipelines.operations.jobs.job_files import format_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.dagster.unexported_names import SourcePositionTree


class _Environment:
    """The name `env` in templates: `env('NAME')`, `env('NAME', 'default')`, `env.NAME`; empty variables are missing."""

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


class _Attributes(RootModel[dict[str, Any]]):
    """Attributes as YAML holds them, before templates are rendered; with the JSON schema of `FlinkJob`."""

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        return FlinkJob.model_json_schema(*args, **options)


class FlinkJobScaffolder(dg.Scaffolder[Any]):
    """Scaffolder of `dg scaffold defs`: a YAML file with a comment for each field."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write `defs.yaml`; the job is named after its directory."""
        name = re.sub(r"\W", "_", request.target_path.name, flags=re.ASCII)
        file = request.target_path / "defs.yaml"
        file.write_text(format_job(name), encoding="utf-8")


@dg.scaffold_with(FlinkJobScaffolder)
class FlinkJobComponent(dg.Component, AssetTranslator):
    """A Flink job: its snapshots, their tables and reports, migrations, rescalings, retention, and all their checks."""

    def __init__(self, job: FlinkJob) -> None:
        self.job = job

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the model of the attributes: the fields of `FlinkJob`, in which text may contain templates."""
        return _Attributes

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> FlinkJobComponent:
        """Render and validate the attributes.

        Raises:
            UsageError: attributes are invalid or missing; the message names file, line and field of each.
        """
        raw = attributes.root if isinstance(attributes, _Attributes) else {}
        scope = LoadContextScope(context)  # type: ignore[no-untyped-call]
        resolution = context.with_rendering_scope({"context": scope}).resolution_context
        tree = resolution.source_position_tree
        try:
            job = FlinkJob.model_validate(render_templates(raw, resolution.scope))
        except ValidationError as error:
            raise _describe(error, tree) from None
        return cls(job.beside(Path(tree.position.filename).parent) if tree else job)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions of the job."""
        return build_flink_job(self.job, translator=self)


def _describe(error: ValidationError, tree: SourcePositionTree | None) -> UsageError:
    """Describe each invalid field in one line: file, line, field, reason; without values, which may be secrets."""
    lines = []
    for each in error.errors(include_url=False, include_input=False):
        path: list[str | int] = ["attributes", *each["loc"]]
        position = "" if tree is None else f"{tree.lookup_closest_and_path(path, None)[0]}: "
        reason = _REASONS.get(each["type"]) or each["msg"].removeprefix("Value error, ")
        lines.append(f"{position}{'.'.join(map(str, path[1:]))}: {reason}")
    return UsageError("\n".join(("the description of the Flink job is invalid:", *lines)))


_REASONS = {"extra_forbidden": "there is no such field", "missing": "the field is missing"}
