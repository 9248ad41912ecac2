"""Finding the Flink whose planner compiles, without one; `tests/flink/test_planned_states.py` runs it."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError, get_return_value
from pyspark.errors.exceptions.captured import capture_sql_exception

from state_pipelines import sql
from state_pipelines.errors import FormatError, MissingFileError, StateError, UsageError
from state_pipelines.sql import planner
from state_pipelines.sql.planner import find_flink, find_jars, start_java

if TYPE_CHECKING:
    from pathlib import Path


JARS = ("flink-dist-2.2.1.jar", "flink-table-planner-loader-2.2.1.jar", "flink-table-api-java-uber-2.2.1.jar")


def make_home(directory: Path, *names: str) -> str:
    (directory / "lib").mkdir()
    for name in names:
        (directory / "lib" / name).touch()
    return str(directory)


def test_an_installed_flink(tmp_path: Path) -> None:
    found = find_flink(make_home(tmp_path, *JARS, "flink-table-runtime-2.2.1.jar"), "2.2")
    assert found.line == "2.2"
    assert len(found.paths) == 4


def test_an_older_dist_names_its_scala(tmp_path: Path) -> None:
    names = [each.replace("2.2.1", "1.20.5") for each in (*JARS, "flink-table-runtime-2.2.1.jar")]
    assert find_flink(make_home(tmp_path, *names)).line == "1.20"


def test_the_variable_names_a_flink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLINK_HOME", make_home(tmp_path, *JARS, "flink-table-runtime-2.2.1.jar"))
    assert find_flink().line == "2.2"


@pytest.mark.parametrize(
    ("names", "line", "message"),
    [
        ((), None, "has no flink-dist"),
        (JARS, None, "has no flink-table-runtime….jar"),
        ((*JARS, "flink-table-runtime-2.2.1.jar"), "1.20", "the Flink found is 2.2, not 1.20"),
        (("flink-dist_2.12-1.14.6.jar",), None, "Flink 1.14 is not one of 1.20"),
    ],
)
def test_a_flink_that_does_not_do(tmp_path: Path, names: tuple[str, ...], line: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_flink(make_home(tmp_path, *names), line)


def test_paths_do_not_depend_on_the_directory_in_which_java_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flink").mkdir()
    make_home(tmp_path / "flink", *JARS, "flink-table-runtime-2.2.1.jar")
    with zipfile.ZipFile(tmp_path / "functions.jar", "w") as jar:
        jar.writestr("com/acme/F.class", b"")
    monkeypatch.chdir(tmp_path)
    assert all(each.is_absolute() for each in find_flink("flink").paths)
    whole = tmp_path / "functions.jar"
    assert find_jars(["functions.jar", f"file://{whole}"]) == [whole, whole]


@pytest.mark.parametrize(
    ("jar", "error", "message"),
    [
        ("none.jar", MissingFileError, "there is no such jar"),
        ("text.jar", FormatError, "the file is no jar"),
        ("s3://bucket/functions.jar", UsageError, "local jars only"),
    ],
)
def test_a_file_that_is_no_jar(
    jar: str, error: type[StateError], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.jar").write_text("no archive")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message) as caught:
        find_jars([jar])
    assert jar in str(caught.value)


def test_without_a_flink_the_error_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLINK_HOME", raising=False)
    monkeypatch.setattr(planner, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="there is no Flink") as error:
        find_flink()
    assert "--flink-home" in error.value.hint
    with pytest.raises(UsageError, match="no such directory"):
        find_flink(str(tmp_path / "none"))


def test_files_are_checked_before_java_starts(tmp_path: Path) -> None:
    home = make_home(tmp_path, *JARS, "flink-table-runtime-2.2.1.jar")
    (tmp_path / "job.sql").write_text("INSERT INTO t SELECT 1")
    with pytest.raises(MissingFileError) as error:
        sql.plan(str(tmp_path / "job.sql"), flink_home=home, jars=[str(tmp_path / "connector.jar")])
    assert error.value.where.file == str(tmp_path / "connector.jar")
    (tmp_path / "job.sql").write_text("SELECT 1")
    with pytest.raises(UsageError, match="SELECT is no part of a job") as refused:
        sql.plan(str(tmp_path / "job.sql"), flink_home=home)
    assert refused.value.where.file == str(tmp_path / "job.sql")


@pytest.mark.slow
def test_errors_of_java_arrive_beside_a_spark_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("py4j.java_gateway.get_return_value", capture_sql_exception(get_return_value))
    with start_java([]) as java:
        with pytest.raises(Py4JJavaError) as error:
            java.java.lang.Integer.parseInt("x")
        assert error.value.java_exception.getMessage() == 'For input string: "x"'
