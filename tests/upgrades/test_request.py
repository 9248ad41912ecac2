from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.upgrades.upgrade_request import Need, Program, UpgradeRequest, load_upgrade_request

if TYPE_CHECKING:
    from pathlib import Path

JOB = """\
name: orders
cluster: {rest: "http://flink:8081"}
results: s3://bucket/results
migrations: migrations
upgrade:
  savepoints: s3://bucket/savepoints
  old: {jar: orders-1.jar}
  new: {jar: orders-2.jar, entry_class: com.acme.Orders, arguments: [--topic, 7], parallelism: 4}
"""


def load(directory: Path, text: str) -> UpgradeRequest:
    (directory / "JOB.yaml").write_text(text)
    return load_upgrade_request(directory / "JOB.yaml")


def test_paths_start_at_the_file(tmp_path: Path) -> None:
    request = load(tmp_path, JOB)
    assert request.migrations == str(tmp_path / "migrations")
    assert request.results == "s3://bucket/results"
    assert request.new_classes == (str(tmp_path / "orders-2.jar"),)
    assert request.job == "orders"
    assert request.settings.automatic == (Need.COMPATIBLE, Need.MIGRATED)


def test_the_command_starts_the_program_by_hand() -> None:
    program = Program(jar="orders.jar", entry_class="com.acme.Orders", arguments=("--topic", "a"), parallelism=4)
    assert program.describe_command("s3://b/savepoint-1") == (
        "flink run -d -s s3://b/savepoint-1 -c com.acme.Orders -p 4 orders.jar --topic a"
    )


def test_the_file_of_a_job_of_dagster_is_read(tmp_path: Path) -> None:
    body = "\n".join(f"  {line}" for line in (*JOB.splitlines(), "tables: s3://bucket/tables"))
    text = f"type: state_pipelines.dagster.FlinkJobComponent\nattributes:\n{body}\n"
    assert load(tmp_path, text).settings.savepoints == "s3://bucket/savepoints"
    with pytest.raises(UsageError, match="results has a template"):
        load(tmp_path, text.replace("s3://bucket/results", "\"{{ env('RESULTS') }}\""))


def test_words_may_be_values_of_yaml_and_an_empty_text_is_left_out(tmp_path: Path) -> None:
    text = JOB.replace("migrations: migrations", "migrations: ''\njob: ''\nmigrate_to:\nuids: [7]")
    request = load(tmp_path, text.replace("arguments: [--topic, 7]", "arguments: [--idle, true]"))
    assert (request.migrations, request.job, request.migrate_to) == (None, "orders", "head")
    assert request.declarations["uids"] == ("7",)
    assert request.settings.new.arguments == ("--idle", "True")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: orders", "names: orders", "the description of the job does not know 'names'"),
        ("name: orders", "name: ../orders", "is no name of a job"),
        ("results: s3://bucket/results", "", "the description of the job lacks the field 'results'"),
        ("  savepoints: s3://bucket/savepoints", "", "upgrade lacks the field 'savepoints'"),
        ("parallelism: 4", "parallelism: 0", "parallelism of upgrade.new is 0, not a number from 1 on"),
        ("{jar: orders-1.jar}", "{jar: a.jar, image: b}", "upgrade.old names jar and image"),
        ("{jar: orders-1.jar}", "{}", "upgrade.old names none"),
        ("upgrade:", "upgrade:\n  automatic: [anything]", r"upgrade\.automatic\[0\] is 'anything'"),
        ("upgrade:", "upgrade:\n  savepoint_format: fast", "savepoint_format of upgrade is 'fast'"),
        ("upgrade:", "target_release: 1.20\nupgrade:", "target_release is a number.* write it in quotes"),
        ("upgrade:", "allow_python: true\nupgrade:", "does not know 'allow_python'"),
        ("upgrade:", "upgrade:\n  watch: 20", "upgrade.watch: '?20'? is not a duration"),
    ],
)
def test_a_wrong_description_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(tmp_path, JOB.replace(old, new))
