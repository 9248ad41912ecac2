from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from state_pipelines.spark.java import ClassData, find_java, locate_class_data, make_class_data

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
from pathlib import Path
from state_pipelines.spark.session import create_session

session = create_session("test", cores=1, memory="512m")
jvm = session._jvm.java.lang.ProcessHandle.current().pid()
print(session.range(10).selectExpr("sum(id)").collect()[0][0], "classes.jsa" in Path(f"/proc/{jvm}/maps").read_text())
session.stop()
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def made(cache: Path) -> ClassData:
    with pytest.MonkeyPatch.context() as context:
        context.setenv("XDG_CACHE_HOME", str(cache))
        return make_class_data(find_java())


def start_session(cache: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what a process has mapped is read from /proc")
def test_a_session_maps_the_archive_and_says_nothing(cache: Path, made: ClassData) -> None:
    assert start_session(cache) == (0, "45 True\n", "")


@pytest.mark.spark
@pytest.mark.slow
def test_nothing_is_left_beside_the_archive(cache: Path, made: ClassData) -> None:
    names = [each.name for each in (cache / "state-pipelines").iterdir() if each.name.startswith(("spark-", "making-"))]
    assert names == [made.home.name]
    assert sorted(each.name for each in made.home.iterdir()) == ["bin", "classes.jsa"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_a_damaged_archive_does_no_harm(cache: Path, made: ClassData, damage: str) -> None:
    content = made.archive.read_bytes()
    made.archive.chmod(0o644)
    try:
        made.archive.write_bytes(content[: len(content) // 2] if damage == "cut" else b"\0" * len(content))
        assert start_session(cache) == (0, "45 False\n", "")
    finally:
        made.archive.write_bytes(content)


def test_an_archive_belongs_to_one_java(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch()
    before = locate_class_data(java).home
    (tmp_path / "release").write_text('JAVA_VERSION="21.0.9"\n')
    after = locate_class_data(java).home
    assert before != after
    assert before.name.split("-")[1] == after.name.split("-")[1]


def test_without_its_launcher_an_archive_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "classes.jsa").touch()
    assert not ClassData(tmp_path / "java", tmp_path).exists
