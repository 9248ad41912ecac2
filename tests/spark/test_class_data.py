from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from state_pipelines.spark.session import ClassData, find_java, locate_class_data, make_class_data

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
from pathlib import Path
from state_pipelines.spark.session import create_session

session = create_session("test", cores=1, memory="512m")
jvm = session._jvm.java.lang.ProcessHandle.current().pid()
print(session.range(10).selectExpr("sum(id)").collect()[0][0], sys.argv[1] in Path(f"/proc/{jvm}/maps").read_text())
session.stop()
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def made(cache: Path) -> ClassData:
    """The archive that `make install` has made, copied into a cache of its own; it is made where there is none."""
    java = find_java()
    installed = locate_class_data(java)
    with pytest.MonkeyPatch.context() as context:
        context.setenv("XDG_CACHE_HOME", str(cache))
        if not installed.exists:
            return make_class_data(java)
        copy = locate_class_data(java)
    shutil.copytree(installed.home, copy.home)
    program = copy.home / "bin" / "java"
    old, new = (shlex.quote(str(each.archive)) for each in (installed, copy))
    program.write_text(program.read_text().replace(old, new))
    return copy


def start_session(cache: Path, archive: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(archive)],
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
    assert start_session(cache, made.archive) == (0, "45 True\n", "")


@pytest.mark.spark
@pytest.mark.slow
def test_a_damaged_archive_does_no_harm(cache: Path, made: ClassData) -> None:
    content = made.archive.read_bytes()
    made.archive.chmod(0o644)
    try:
        made.archive.write_bytes(content[: len(content) // 2])
        assert start_session(cache, made.archive) == (0, "45 False\n", "")
    finally:
        made.archive.write_bytes(content)


def test_making_an_archive_leaves_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], problem: str) -> None:
        """Write what the recording session and Java write."""
        if "-Xshare:dump" in command:
            (name,) = (each.partition("=")[2] for each in command if each.startswith("-XX:SharedArchiveFile="))
            Path(name).write_text("archive")
            return
        for name in ("classes", "path", "paths"):
            Path(command[-1], name).write_text(f"/jars/{name}.jar")

    monkeypatch.setattr("state_pipelines.spark.session._run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch()
    before = make_class_data(java)
    (tmp_path / "release").write_text('JAVA_VERSION="21.0.9"\n')
    after = make_class_data(java)
    assert after.exists
    assert after.archive.read_text() == "archive"
    assert f"-XX:SharedArchiveFile={after.archive}" in (after.home / "bin" / "java").read_text()
    assert sorted(each.name for each in after.home.iterdir()) == ["bin", "classes.jsa"]
    # That of the same Java before its update is gone.
    assert before.home != after.home
    assert [*after.home.parent.iterdir()] == [after.home]


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
