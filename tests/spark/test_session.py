from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.spark.session import (
    MINIMUM_VERSION,
    OWN_CONFIGURATION,
    create_java_home,
    create_session,
    find_java,
    list_java_options,
    read_version,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
# What Spark's start scripts call.
TOOLS = ("bash", "dirname", "env", "ps", "sh", "uname")

PROGRAM = """
import sys
from state_pipelines.spark.session import create_session

def interpreter(batches):
    import pyarrow
    import state_pipelines.errors
    for batch in batches:
        yield pyarrow.record_batch({"python": [sys.executable]})

session = create_session("test", cores=1, memory="512m")
rows = session.range(1).mapInArrow(interpreter, "python string").collect()
print(rows[0].python == sys.executable)
beans = session.sparkContext._jvm.java.lang.management.ManagementFactory
print(sorted(bean.getName() for bean in beans.getGarbageCollectorMXBeans()))
print(beans.getMemoryMXBean().getHeapMemoryUsage().getInit() >> 20)
session.stop()
"""


CHOSEN = """
from state_pipelines.spark.session import create_session

options = "-XX:+UseSerialGC -XX:MetaspaceSize=50m -Xms64m"
session = create_session("test", cores=1, memory="512m", conf={"spark.driver.extraJavaOptions": options})
beans = session.sparkContext._jvm.java.lang.management.ManagementFactory
print(sorted(bean.getName() for bean in beans.getGarbageCollectorMXBeans()))
print(beans.getMemoryMXBean().getHeapMemoryUsage().getInit() >> 20)
session.stop()
"""


@pytest.fixture
def path_without_java(tmp_path: Path) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in TOOLS:
        found = next(folder / tool for folder in (Path("/bin"), Path("/usr/bin")) if (folder / tool).exists())
        (directory / tool).symlink_to(found)
    return directory


def write_java(home: Path, listing: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\nprintf '%s\\n' {listing}\n")
    java.chmod(0o755)
    return java


@pytest.mark.spark
def test_a_session_starts_without_java_on_the_machine_and_says_nothing(tmp_path: Path, path_without_java: Path) -> None:
    (tmp_path / "home").mkdir()
    environment = {"HOME": str(tmp_path / "home"), "PATH": str(path_without_java), "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        cwd=tmp_path / "home",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n['PS MarkSweep', 'PS Scavenge']\n512\n", "")
    assert [entry.name for entry in (tmp_path / "home").iterdir()] == [".cache"]


@pytest.mark.spark
def test_options_of_java_that_the_user_chose_are_kept(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in OWN_CONFIGURATION}
    result = subprocess.run(
        [sys.executable, "-c", CHOSEN],
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "['Copy', 'MarkSweepCompact']\n64\n", "")


def test_a_garbage_collector_is_chosen_unless_the_user_did() -> None:
    options = {"spark.driver.memory": "3g", "spark.driver.extraJavaOptions": "-Dx=1 -XX:-UseG1GC"}
    assert {"-Xms3g", "-XX:+UseParallelGC"} <= set(list_java_options(options, {}).split())
    options["spark.driver.extraJavaOptions"] += " -XX:+UseZGC"
    assert not any("GC" in each for each in list_java_options(options, {}).split())


@pytest.mark.parametrize("variable", ["JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR"])
def test_java_is_left_to_who_configures_it(variable: str) -> None:
    assert list_java_options({"spark.driver.memory": "3g"}, {variable: "-Xmx512m"}) == ""


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = write_java(tmp_path, "java.base@17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == java


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = write_java(tmp_path, "java.base@11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert read_version(java) == 11
    found = find_java()
    assert found != java
    assert (read_version(found) or 0) >= MINIMUM_VERSION


def test_a_java_on_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = write_java(tmp_path, "java.base@21")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{java.parent}{os.pathsep}{os.environ['PATH']}")
    assert find_java() == java


@pytest.mark.parametrize("content", ["exit 1", "echo 'java version 1.8'"])
def test_a_program_that_lists_no_modules_has_no_version(tmp_path: Path, content: str) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\n{content}\n")
    java.chmod(0o755)
    assert read_version(java) is None


def test_the_java_home_drops_the_flag_and_keeps_every_other_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    home = create_java_home(write_java(tmp_path / "a 'java'", '"$@"'))
    arguments = ["-Dx=a b", "--add-modules=jdk.incubator.vector", "", "-cp", "*"]
    result = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["-Dx=a b", "", "-cp", "*"]


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        create_java_home(tmp_path / "java")


def test_the_active_session_is_used_again(spark: SparkSession) -> None:
    assert create_session("another", cores=1) is spark


def test_starting_leaves_the_environment_as_it_was(spark: SparkSession) -> None:
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ
    assert not os.environ.get("JAVA_HOME", "").startswith(str(Path.home() / ".cache" / "state-pipelines"))


def test_workers_import_this_package(spark: SparkSession) -> None:
    def locate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        import state_pipelines.errors

        for _ in batches:
            yield pyarrow.record_batch({"file": [state_pipelines.errors.__file__]})

    row = spark.range(1).mapInArrow(locate, "file string").collect()[0]
    assert Path(row.file) == ROOT / "state_pipelines" / "errors.py"


def test_times_are_in_utc(spark: SparkSession) -> None:
    assert spark.sql("select cast(timestamp_seconds(0) as string) as time").collect()[0].time == "1970-01-01 00:00:00"


def test_spark_listens_on_the_loopback_interface_only(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
