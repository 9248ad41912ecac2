"""Flink jobs in YAML."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.testing import create_defs_folder_sandbox

from state_pipelines.dagster import FlinkJob, FlinkJobComponent, build_flink_job
from state_pipelines.errors import UsageError
from state_pipelines.operations.jobs.job_files import format_job
from state_pipelines.snapshot.declarations import KINDS
from state_pipelines.storage.resolution import VARIABLE, find_storage_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dagster.components.testing import DefsFolderSandbox

HEAD = "type: state_pipelines.dagster.FlinkJobComponent\nattributes:\n"
WHOLE = HEAD + "  name: shop\n  roots: [savepoints, 's3://bucket/checkpoints']\n  results: results\n"


@dataclass(frozen=True)
class Project:
    """A project of `dg` with one component."""

    sandbox: DefsFolderSandbox

    @property
    def directory(self) -> Path:
        return self.sandbox.defs_folder_path / "shop"

    @property
    def file(self) -> Path:
        return self.directory / "defs.yaml"

    def load(self, text: str) -> FlinkJob:
        self.directory.mkdir()
        self.file.write_text(text, encoding="utf-8")
        with self.sandbox.build_component_tree() as tree:
            component = tree.load_component(self.directory)
        assert isinstance(component, FlinkJobComponent)
        return component.job

    def fail(self, text: str) -> str:
        """The error of a wrong file."""
        with pytest.raises(ComponentTreeException) as caught:
            self.load(text)
        cause = caught.value.__cause__
        assert isinstance(cause, UsageError), repr(cause)
        return str(cause)


@pytest.fixture
def project() -> Iterator[Project]:
    with create_defs_folder_sandbox() as sandbox:
        yield Project(sandbox)


def test_relative_paths_start_at_the_file(project: Project) -> None:
    job = project.load(WHOLE)
    assert job.roots == (str(project.directory / "savepoints"), "s3://bucket/checkpoints")
    assert job.results == str(project.directory / "results")


def test_paths_of_the_stream_and_the_bootstrap_start_at_the_file(project: Project) -> None:
    stream = (
        "{definition: stream.py:sum, directory: live, input: 'lake/*.parquet', from_snapshot: 's3://b/savepoint-1'}"
    )
    job = project.load(WHOLE + f"  bootstrap: states.py:describe\n  stream: {stream}\n")
    assert job.stream is not None
    assert job.stream.definition == f"{project.directory / 'stream.py'}:sum"
    assert job.stream.input == str(project.directory / "lake" / "*.parquet")
    assert job.stream.from_snapshot == "s3://b/savepoint-1"
    assert job.bootstrap == f"{project.directory / 'states.py'}:describe"
    # The directories of the stream are searched like the roots.
    live = project.directory / "live"
    assert job.all_roots == (*job.roots, str(live / "checkpoints"), str(live / "savepoints"))


def test_a_job_with_a_stream_needs_no_roots(project: Project) -> None:
    stream = "  stream: {definition: stream.py:sum, directory: live}\n"
    job = project.load(HEAD + "  name: shop\n  results: results\n" + stream)
    assert job.storage.searched_roots == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bootstrap: shop.states", "bootstrap: shop.states names no function"),
        ("stream: {definition: stream.py, directory: live}", "stream.definition: stream.py names no function"),
        (
            "stream: {definition: s.py:f, directory: live, options: {execution.checkpointing.interval: 7 min}}",
            "stream.options: execution.checkpointing.interval is 420000 ms, which no schedule has",
        ),
        ("rootz: [savepoints]", "rootz: there is no such field"),
        ("target_release: 1.20", 'target_release: write the release in quotes, such as "1.20"'),
        ("tags: {team: [a]}", "tags.team: Input should be a valid string"),
        ("migrations: '{{ env.SHOP_NOWHERE }}'", "migrations: the environment variable SHOP_NOWHERE is not set"),
        ("uids: ['{{ nobody }}']", "uids.0: 'nobody' is undefined"),
        ("uids: ['{{ ']", "uids.0: "),
        ("retention: {savepoints: {lasst: 3}}", "retention: "),
        ("data_docs: s3://bucket/docs", "data_docs: s3://bucket/docs is a URL"),
        ("thresholds: {max_imbalance: 0.5}", "thresholds.max_imbalance: Input should be greater than or equal to 1"),
        ("storage_options: {'s3://b': [a]}", "storage_options.s3://b: Input should be a valid dictionary"),
    ],
)
def test_an_error_names_file_line_and_field(project: Project, line: str, message: str) -> None:
    assert f"\n{project.file}:6: {message}" in project.fail(f"{WHOLE}  {line}\n")


def test_a_name_has_letters_digits_and_underscores(project: Project) -> None:
    text = project.fail(WHOLE.replace("name: shop", "name: my-shop"))
    assert f"{project.file}:3: name: 'my-shop' is not a name: use letters, digits and _" in text


def test_all_missing_fields_are_named(project: Project) -> None:
    text = project.fail(HEAD + "  roots: [savepoints]\n")
    assert f"{project.file}:2: name: the field is missing" in text
    assert f"{project.file}:2: results: the field is missing" in text


def test_a_job_needs_roots_or_the_configuration_of_flink(project: Project) -> None:
    text = project.fail(HEAD + "  name: shop\n  results: results\n")
    assert "there are no roots: set roots or flink_config" in text


def test_roots_and_num_retained_come_from_the_configuration_of_flink(project: Project) -> None:
    (project.sandbox.defs_folder_path / "config.yaml").write_text(
        "state: {checkpoints: {dir: 's3://b/checkpoints', num-retained: 4}, savepoints: {dir: 's3://b/savepoints'}}",
        encoding="utf-8",
    )
    job = project.load(HEAD + "  name: shop\n  results: results\n  flink_config: ../config.yaml\n")
    assert job.storage.roots == ("s3://b/checkpoints", "s3://b/savepoints")
    assert job.policy.num_retained == 4


def test_the_retention_policy_of_the_job_wins(project: Project) -> None:
    job = project.load(WHOLE + "  retention: {num-retained: 2, savepoints: {daily: 7}}\n")
    assert job.policy.num_retained == 2
    assert job.policy.ordered_rules["savepoints"].keep.daily == 7


def test_storage_options_reach_the_storage_with_secrets_of_the_environment(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_SECRET", "hunter2")
    monkeypatch.delenv(VARIABLE, raising=False)
    job = project.load(WHOLE + "  storage_options: {'s3://shop-bucket': {key: shop, secret: '${SHOP_SECRET}'}}\n")
    build_flink_job(job)
    # They are those of the job, not of the process.
    assert find_storage_options("s3a://shop-bucket/checkpoints") == {}
    with job.using_storage():
        assert find_storage_options("s3a://shop-bucket/checkpoints") == {"key": "shop", "secret": "hunter2"}
        assert "hunter2" not in os.environ[VARIABLE]
    assert VARIABLE not in os.environ
    assert "hunter2" not in repr(job)


def test_an_error_shows_no_value(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", "hunter2")
    assert "hunter2" not in project.fail(WHOLE + "  tags: ['{{ env.SHOP_SECRET }}']\n")


def test_text_stays_text(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_FLINK", "1.20")
    job = project.load(WHOLE + "  target_release: '{{ env.SHOP_FLINK }}'\n  uids: ['0012', '{{ env.SHOP_FLINK }}']\n")
    assert job.target_release == "1.20"
    assert job.uids == ("0012", "1.20")


def test_an_empty_variable_counts_as_unset(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_FLINK", "")
    assert project.load(WHOLE + "  target_release: \"{{ env('SHOP_FLINK', '2.3') }}\"\n").target_release == "2.3"


def test_a_list_may_be_one_string(project: Project) -> None:
    job = project.load(WHOLE + "  uids: 'a, b'\n  connectors: a=kafka;b=pulsar\n  path_mapping: ''\n")
    assert (job.uids, job.connectors, job.path_mapping) == (("a", "b"), ("a=kafka", "b=pulsar"), ())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_of_declaration_is_a_field(kind: object) -> None:
    assert getattr(kind, "name") in FlinkJob.model_fields  # noqa: B009


def test_the_schema_is_that_of_the_fields() -> None:
    schema = FlinkJobComponent.get_model_cls().model_json_schema()
    assert schema["properties"].keys() == FlinkJob.model_fields.keys()
    assert schema["required"] == ["name", "results"]


def test_the_schema_takes_a_list_as_one_string() -> None:
    schema = FlinkJobComponent.get_model_cls().model_json_schema()
    assert {"type": "string"} in schema["properties"]["uids"]["anyOf"]


def test_dg_scaffolds_a_file_that_loads(project: Project) -> None:
    path = project.sandbox.scaffold_component(FlinkJobComponent, defs_path="my-shop")
    with project.sandbox.build_component_tree() as tree:
        component = tree.load_component(path)
    assert isinstance(component, FlinkJobComponent)
    assert component.job.name == "my_shop"


def test_every_field_of_the_scaffolded_file_is_one_of_the_job(project: Project) -> None:
    text = format_job("shop", ["savepoints"], "results")
    named = set(re.findall(r"^  (?:# )?([a-z_]+):(?: |$)", text, re.MULTILINE))
    # Only one of `migrations` and `new_query` can be set.
    assert named == FlinkJob.model_fields.keys() - {"new_query"}
    assert "`new_query: " in text


def test_every_field_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs/dagster.md").read_text()
    table = page.split("### Fields")[1].split("\n\n")[1]
    columns = [row.split(" | ")[0] for row in table.splitlines()[2:]]
    assert {name for each in columns for name in re.findall(r"`(\w+)`", each)} == FlinkJob.model_fields.keys()


def test_the_scaffolded_file_loads_with_all_its_comments(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    text = format_job("shop", ["savepoints"], "results")
    lines = [
        re.sub(r"^  # (?=[a-z_]+:(?: |$)|  )", "  ", line) if line.startswith("  # ") else line
        for line in text.splitlines()
    ]
    job = project.load("\n".join(lines))
    assert job.thresholds.max_imbalance == 2
    assert job.retention == {"savepoints": {"last": 3, "daily": 7, "monthly": 12}, "checkpoints": {"last": 1}}
