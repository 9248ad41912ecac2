"""An archive of the classes that Spark's JVM loads: half of the time in which a session starts goes into loading them.

Java can map classes that are parsed and verified from a file ("class data sharing"). The archive is made once, in a
step of its own, and kept in the user's cache directory together with the program that starts Java with it. It fits one
Java and one set of jars; the JVM checks both, and starts without it where they differ.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyspark

from state_pipelines.errors import UsageError, Where
from state_pipelines.spark.java import cache_directory, make_launcher

_ARCHIVE = "classes.jsa"
_PREFIX = "spark-"

# Spark's JVM is started with the class path that the archive was made with; the launcher script puts it, each jar named
# once, in the place of the two that Spark's scripts give. With any other, such as one with jars of a user, it starts
# without an archive. `cds` is where Java complains on standard output about an archive that does not fit.
_SHARED = """
    {paths}) set -- "$@" {path} -Xshare:auto -XX:SharedArchiveFile={archive} {quiet} ;;"""

_QUIET = "'-Xlog:disable' '-Xlog:all=warning:stderr' '-Xlog:cds*=off'"

# While classes are recorded: `-cp` and what follows it, which the script writes to a file.
_RECORDED = """
    */jars/\\*) printf '%s\\n' "$argument" >> {file}; set -- "$@" "$argument" ;;"""


@dataclass(frozen=True)
class ClassData:
    """An archive, there or not.

    Attributes:
        java: program whose classes are in it.
        home: directory for `JAVA_HOME`; its `bin/java` starts `java` with the archive.
    """

    java: Path
    home: Path

    @property
    def archive(self) -> Path:
        """The file with the classes."""
        return self.home / _ARCHIVE

    @property
    def exists(self) -> bool:
        """Whether it has been made."""
        return self.archive.is_file() and (self.home / "bin" / "java").is_file()


def locate_class_data(java: Path) -> ClassData:
    """The archive for a Java and the Spark that is installed; it may not have been made yet."""
    return ClassData(java, cache_directory() / f"{_PREFIX}{_identify_installation(java)}-{_identify_content(java)}")


def make_class_data(java: Path) -> ClassData:
    """Rebuild the archive: in a session of its own, do what the pipelines do, and keep the classes.

    It appears in one step. Those of the same Java and Spark before an update are removed.

    Raises:
        UsageError: the cache directory cannot be written, or Java makes no archive.
    """
    made = locate_class_data(java)
    try:
        made.home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.home.parent, prefix="making-") as name:
            directory = Path(name)
            _record(java, directory)
            _dump(java, directory, made)
            # A session that starts meanwhile finds the old files or the new ones.
            program = made.home / "bin" / "java"
            program.parent.mkdir(parents=True, exist_ok=True)
            (directory / _ARCHIVE).replace(made.archive)
            (directory / "java").replace(program)
        for each in made.home.parent.glob(f"{_PREFIX}{_identify_installation(java)}-*"):
            if each != made.home:
                shutil.rmtree(each)
    except OSError as error:
        raise UsageError(
            f"the class data of Spark cannot be written: {error.strerror}",
            where=Where(file=str(made.home)),
            hint="Point XDG_CACHE_HOME to a directory that can be written",
        ) from error
    return made


def _record(java: Path, directory: Path) -> None:
    """Run a session that lists its classes in `classes`, its class path in `path`, and the scripts' in `paths`."""
    launcher = directory / "recording" / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(make_launcher(java, _RECORDED.format(file=shlex.quote(str(directory / "paths")))))
    launcher.chmod(0o755)
    _run(
        [sys.executable, "-m", "state_pipelines.spark.class_recording", str(directory / "recording"), str(directory)],
        "Spark did not run",
    )


def _dump(java: Path, directory: Path, made: ClassData) -> None:
    """Write the archive of what was recorded, and `java`, which starts Java with it where it is to lie."""
    program = directory / "java"
    path = _join_path((directory / "path").read_text())
    _run(
        [
            str(java),
            "-Xshare:dump",
            f"-XX:SharedClassListFile={directory / 'classes'}",
            f"-XX:SharedArchiveFile={directory / _ARCHIVE}",
            "-Xlog:disable",
            "-Xlog:all=error:stderr",
            "-cp",
            path,
        ],
        "Java made no archive",
    )
    if not (directory / _ARCHIVE).is_file():
        raise UsageError("Java made no archive of Spark's classes and does not say why")
    more = _SHARED.format(
        paths="|".join(map(shlex.quote, dict.fromkeys((directory / "paths").read_text().splitlines()))),
        path=shlex.quote(path),
        archive=shlex.quote(str(made.archive)),
        quiet=_QUIET,
    )
    program.write_text(make_launcher(java, more))
    program.chmod(0o755)


def _join_path(path: str) -> str:
    """A class path with each entry once: Java drops the second when it makes an archive, and misses it later."""
    return os.pathsep.join(dict.fromkeys(path.strip().split(os.pathsep)))


def _run(command: list[str], problem: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()
        raise UsageError(f"{problem}, so there is no class data: {said[-1] if said else result.returncode}")


def _jar_directory() -> Path:
    home = os.environ.get("SPARK_HOME")
    return (Path(home) if home else Path(pyspark.__file__).parent) / "jars"


def _identify_installation(java: Path) -> str:
    return _digest(str(java.resolve()), str(_jar_directory()))


def _identify_content(java: Path) -> str:
    """Changes with Java, with the jars, and with what is written for them."""
    files = sorted(_jar_directory().glob("*.jar"))
    release = java.resolve().parents[1] / "release"
    stats = [(each.name, each.stat()) for each in (java, release, *files) if each.exists()]
    known = (f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)
    return _digest(str(java), make_launcher(java, _SHARED), _QUIET, *known)


def _digest(*stats: str) -> str:
    return hashlib.sha256("\n".join(stats).encode()).hexdigest()[:16]
