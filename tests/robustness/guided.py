"""Damaged input that is guided by coverage: `python -m tests.robustness.guided --seconds 60`.

It needs the package `atheris`, which is not among those of the tests:
`.venv/bin/python -m pip install atheris`. Compiled kernels are not guided, because Numba cannot compile functions that
are instrumented.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "state_pipelines"
SECONDS_OF_ONE = 10
MOST_MEGABYTES = 2048
"""Of the process; reading sound input takes some hundred of these."""

_DONE = re.compile(r"#(\d+)\s+DONE\s+cov: (\d+)")


def list_guided() -> list[str]:
    """Modules of the package that have no compiled functions."""
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / PACKAGE).rglob("*.py"))
        if path.name != "__init__.py" and "numba" not in path.read_text(encoding="utf-8")
    ]


def guide(name: str, seconds: int, directory: Path) -> None:
    """Read inputs of one reader until the time is up; does not return."""
    # By its name, because it is not installed where types are checked.
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=list_guided(), enable_loader_override=False):
        from state_pipelines.errors import StateError
        from tests.robustness.readers import make_reader
    reader = make_reader(name)
    reader.read_sound()
    for number, seed in enumerate(reader.seeds):  # type: ignore[union-attr]
        (directory / f"seed-{number}").write_bytes(seed)

    def read(data: bytes) -> None:
        with suppress(StateError):
            reader.read(data)  # type: ignore[union-attr]

    options = (f"-max_total_time={seconds}", f"-timeout={SECONDS_OF_ONE}", f"-rss_limit_mb={MOST_MEGABYTES}")
    places = (f"-artifact_prefix={directory}/", "-max_len=8192", "-print_final_stats=0")
    atheris.Setup([sys.argv[0], *options, *places, str(directory)], read)
    atheris.Fuzz()


def main() -> int:
    """Run the readers that were asked for, each in a process of its own; returns 1 where something was found."""
    # Of the readers of whole snapshots, input is more than bytes.
    from tests.robustness.byte_readers import BYTE_READERS
    from tests.robustness.text_readers import TEXT_READERS
    from tests.robustness.value_readers import VALUE_READERS

    readers = [*BYTE_READERS, *TEXT_READERS, *VALUE_READERS]
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.guided", description="Read damaged input.")
    parser.add_argument("--reader", action="append", choices=readers, help="may be repeated; default: all")
    parser.add_argument("--seconds", type=int, default=60, help="of each reader")
    options = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        sys.stderr.write("The package atheris is missing: .venv/bin/python -m pip install atheris\n")
        return 2
    found = False
    sys.stdout.write(f"{'reader':22} {'executions':>10} {'branches':>8}\n")
    for name in options.reader or readers:
        with tempfile.TemporaryDirectory() as directory:
            code = f"from tests.robustness.guided import *; guide({name!r}, {options.seconds}, Path({directory!r}))"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
            counted = _DONE.search(done.stderr)
            executions, branches = counted.groups() if counted else ("?", "?")
            sys.stdout.write(f"{name:22} {executions:>10} {branches:>8}\n")
            if done.returncode:
                found = True
                sys.stdout.write(done.stderr[-3000:])
                for file in sorted(Path(directory).glob("[clo]*-*")):
                    sys.stdout.write(f"  {file.name}: {file.read_bytes()!r}\n")
            sys.stdout.flush()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
