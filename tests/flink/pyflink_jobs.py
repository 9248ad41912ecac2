"""Runs the job of `python/job.py` in the real PyFlink, which is installed once into an ignored folder of the tree."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.flink.harness import ROOT, HarnessError

VERSION = "2.2.1"
CACHE = ROOT / ".cache" / "pyflink"
JOB = Path(__file__).with_name("python") / "job.py"
PYTHONS = ((3, 9), (3, 12))
"""Releases of Python that this PyFlink runs on."""

_INSTALL_SECONDS, _RUN_SECONDS = 600, 240


def missing_python() -> str:
    """Why PyFlink cannot be installed for this Python; empty when it can."""
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        return ""
    return f"PyFlink {VERSION} does not run on Python {sys.version_info.major}.{sys.version_info.minor}"


def install() -> Path:
    """The Python of a virtual environment with PyFlink.

    Raises:
        HarnessError: it cannot be installed.
    """
    home = CACHE / VERSION
    python, done = home / "bin" / "python", home / "complete"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{VERSION}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(home, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(home)], _INSTALL_SECONDS)
            # Beam's dependencies of this release still import pkg_resources.
            wanted = [f"apache-flink=={VERSION}", "setuptools<81"]
            _run([str(python), "-m", "pip", "install", "--quiet", *wanted], _INSTALL_SECONDS)
            done.touch()
    return python


def make_savepoint(directory: Path, *, backend: str = "hashmap", form: str = "CANONICAL", small: bool = False) -> Path:
    """Run the job until each key has met every state, and stop it with a savepoint.

    Args:
        directory: a new directory.
        backend: hashmap or rocksdb.
        form: CANONICAL or NATIVE.
        small: the operator `states` alone.
    """
    markers = directory / "markers"
    markers.mkdir(parents=True)
    extra = ["--small"] if small else []
    _job("make", directory / "savepoints", markers, "--backend", backend, "--format", form, *extra)
    (savepoint,) = (directory / "savepoints").iterdir()
    return savepoint


def read_savepoint(savepoint: Path, directory: Path, *options: str) -> list[dict[str, Any]]:
    """Start the job from a savepoint; what its states hold, one object per operator and key."""
    markers, lines = directory / "markers", directory / "lines.jsonl"
    markers.mkdir(parents=True)
    _job("read", savepoint, markers, "--lines", str(lines), *options)
    return [json.loads(line) for line in lines.read_text().splitlines()]


def _job(command: str, savepoint: Path, markers: Path, *options: str) -> None:
    _run([str(install()), str(JOB), command, str(savepoint), "--markers", str(markers), *options], _RUN_SECONDS)


def _run(command: list[str], seconds: int) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise HarnessError(f"{command[:4]} took more than {seconds} seconds") from None
    if done.returncode:
        raise HarnessError(f"{command[:4]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
