"""Install the package alone, with `spark` and with `dagster` into environments of their own, and use it there.

The environments are kept in `.cache/extras` for as long as `pyproject.toml` and the lock stay as they are; the package
itself is installed again when one of its files has changed, and compiles its kernels again then.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "extras"
(SAVEPOINT,) = (ROOT / "examples/orders/savepoints/flink-2.2").glob("savepoint-*")
(NEWER,) = (ROOT / "examples/orders/savepoints/flink-2.3").glob("savepoint-*")
DEFINITIONS = """
from state_pipelines.dagster import ExpectationsResource, FlinkJob, SparkResource, build_flink_job
import dagster as dg

job = FlinkJob(name="orders", roots=("{roots}",), results="results", migrations="{migrations}")
resources = {{"spark": SparkResource(), "expectations": ExpectationsResource()}}
defs = dg.Definitions.merge(build_flink_job(job), dg.Definitions(resources=resources))
"""

BASE = (
    ["state-pipelines", "inspect", str(SAVEPOINT)],
    ["state-pipelines", "read", str(SAVEPOINT), "--operator", "orders", "--state", "order"],
    ["state-pipelines", "check", str(SAVEPOINT), str(NEWER)],
    ["state-pipelines", "convert", str(SAVEPOINT), "--out", "native", "--format", "rocksdb"],
    ["state-pipelines", "rescale", str(SAVEPOINT), "--out", "rescaled", "--max-parallelism", "1024"],
    ["state-pipelines", "diff", str(SAVEPOINT), "native"],
)
MIGRATE = ["state-pipelines", "migrate", str(SAVEPOINT), "--migrations", str(ROOT / "examples/orders/migrations")]
WORK = {
    "": BASE,
    "spark": ([*MIGRATE, "--out", "migrated"], ["state-pipelines", "verify", "migrated", "--depth", "whole"]),
    "dagster": (["dagster", "definitions", "validate", "-f", "definitions.py"],),
}
"""Commands of each extra; all must succeed."""

ABSENT = {"": ("pyspark", "dagster"), "spark": ("dagster", "great_expectations"), "dagster": ()}
"""Packages that an extra must do without."""


def run(*command: str | Path, **options: object) -> None:
    """Run a command; print its output only if it fails, and end then."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")


def write_constraints() -> Path:
    """The versions of the lock, without hashes: a directory has none, and pip wants them for all or for nothing."""
    lock = (ROOT / "requirements.lock").read_text()
    target = CACHE / "constraints.txt"
    target.write_text("\n".join(re.findall(r"^[\w.-]+==[^\\\n]+", lock, re.MULTILINE)))
    return target


def hash_package() -> str:
    """Hash of the files of the package."""
    files = sorted(
        each for each in (ROOT / "state_pipelines").rglob("*") if each.suffix in {".py", ".yaml", ".properties"}
    )
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:12]


def install(extra: str, wheel: Path, constraints: Path) -> Path:
    """Make the environment of an extra, or take the one that is there; returns its `bin`."""
    told = b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "requirements.lock"))
    mark = hashlib.sha256(told + sys.version.encode()).hexdigest()[:12]
    directory = CACHE / (extra or "base")
    pip = (directory / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "install")
    if not (directory / mark).exists():
        run(sys.executable, "-m", "venv", "--clear", directory)
        run(*pip, "--require-hashes", "-r", ROOT / "requirements-build.lock")
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        # A few commands import a small part of it, and compile that.
        run(*pip, "--no-compile", "--no-build-isolation", "--constraint", constraints, wanted)
        (directory / mark).touch()
    package = directory / f"package-{hash_package()}"
    if not package.exists():
        for old in directory.glob("package-*"):
            old.unlink()
        run(*pip, "--no-deps", "--force-reinstall", wheel)
        package.touch()
    return directory / "bin"


def use(extra: str, programs: Path) -> None:
    """Do the work of an extra in an empty directory."""
    for name in ABSENT[extra]:
        script = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{name}') is not None)"
        run(programs / "python", "-c", script)
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        names = {"roots": SAVEPOINT.parents[1], "migrations": ROOT / "examples/orders/migrations"}
        (Path(folder) / "definitions.py").write_text(DEFINITIONS.format(**names))
        for program, *arguments in WORK[extra]:
            run(programs / program, *arguments, cwd=folder, env=environment)


def main() -> None:
    """All extras, one after the other."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for old in CACHE.glob("*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory() as copy:
        # Built from a copy: a build leaves its directory in the tree.
        run("cp", "-r", *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE", "state_pipelines")), copy)
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", CACHE, copy)
    (wheel,) = CACHE.glob("*.whl")
    constraints = write_constraints()
    for extra in WORK:
        started = time.monotonic()
        programs = install(extra, wheel, constraints)
        installed = time.monotonic()
        use(extra, programs)
        name = f".[{extra}]" if extra else "."
        done = time.monotonic()
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(  # noqa: T201
            f"{name}: installed in {installed - started:.0f} s, used in {done - installed:.0f} s; "
            f"{usage.ru_utime + usage.ru_stime:.0f} s of CPU so far",
            flush=True,
        )


if __name__ == "__main__":
    main()
