"""Run the code blocks of a page in order, in one directory, as a reader would who follows the page.

`bash`: each command must end with code 0, or with the code in a comment behind it (`# exit code 1`). `python`: all
blocks of a page share their names; `spark` is a session. `text` directly after one of these is its output, in which `…`
stands for anything. A block whose title is a file name becomes that file. `yaml`, `toml` and `json` without a title are
parsed, migrations and jobs by their own readers.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from click.testing import CliRunner

from state_pipelines.cli import main
from state_pipelines.dagster import FlinkJob
from state_pipelines.operations.migration import parse_migration
from tests.docs.blocks import Block, read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PROGRAM = "state-pipelines"
ANYTHING = "…"
_CODE = re.compile(r"\s+# exit code (\d)$")


class PageError(AssertionError):
    """A block does not do what the page says."""

    def __init__(self, block: Block, what: str) -> None:
        super().__init__(f"{block}: {what}")


class PageRunner:
    """Runs blocks one after the other.

    Args:
        folder: where; the examples and the test data of the project must be in it under their own names.
        make_session: gives the Spark session when a block needs one.
    """

    def __init__(self, folder: Path, make_session: Callable[[], SparkSession]) -> None:
        self.folder = folder
        self.make_session = make_session
        self.names: dict[str, Any] = {"__name__": "page"}
        self.output: str | None = None

    def run(self, block: Block) -> None:
        """Run a block, or check its content.

        Raises:
            PageError: it does not do what the page says.
        """
        if block.language == "text":
            self._compare(block)
            return
        self.output = None
        if not block.is_run:
            return
        if block.title:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            return
        runners: dict[str, Callable[[Block], object]] = {
            "bash": self._run_commands,
            "python": self._run_python,
            "yaml": check_yaml,
            "toml": check_toml,
            "json": check_json,
        }
        if block.language not in runners:
            raise PageError(block, f"nothing runs or checks blocks of the language {block.language!r}")
        with contextlib.chdir(self.folder):
            runners[block.language](block)

    def _run_commands(self, block: Block) -> None:
        output = []
        for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            code = _CODE.search(line)
            found, text = self._call(_CODE.sub("", line))
            wanted = int(code[1]) if code else 0
            if found != wanted:
                raise PageError(block, f"{line}\nended with {found}, not {wanted}:\n{text}")
            output.append(text)
        self.output = "".join(output)

    def _call(self, line: str) -> tuple[int, str]:
        """Exit code and output of a command; ours run in this process unless the shell has something to do."""
        words = list(shlex.shlex(line, posix=True, punctuation_chars=True))
        if words[0].startswith("state") and not set(words) & {"|", ">", "&&", "<"} and "$" not in line:
            program, *arguments = shlex.split(line, comments=True)
            # Spark's workers open class paths, and those of the session of the tests run in another directory.
            if program == PROGRAM and not {"migrate", "--classes"} <= set(arguments):
                if arguments[0] == "migrate":
                    self.make_session()
                result = CliRunner().invoke(main, arguments)
                if result.exception is not None and not isinstance(result.exception, SystemExit):
                    raise result.exception
                return result.exit_code, result.output
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def _run_python(self, block: Block) -> None:
        if re.search(r"\b(spark|migrate)\b", block.text):
            self.names.setdefault("spark", self.make_session())
        printed = io.StringIO()
        # As many empty lines as there are above the block, so that a traceback names lines of the page.
        code = compile("\n" * block.line + block.text, str(block.page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(code, self.names)
        self.output = printed.getvalue()

    def _compare(self, block: Block) -> None:
        if self.output is None:
            return
        lines = [
            re.escape(" ".join(line.split())).replace(ANYTHING, ".*")
            for line in block.text.splitlines()
            if line.strip()
        ]
        pattern = "".join(r"(?:.*\n)*" if line == ".*" else f"{line}\n" for line in lines)
        found = "".join(f"{' '.join(line.split())}\n" for line in self.output.splitlines() if line.strip())
        if not re.fullmatch(pattern, found):
            raise PageError(block, f"the output is not that of the page:\n{self.output}")


def check_yaml(block: Block) -> None:
    """Check a migration or the description of a job with its own reader.

    Raises:
        PageError: it is neither: give the block the name of its file as a title, and use it in a command.
    """
    content = yaml.safe_load(block.text)
    if not isinstance(content, dict):
        raise PageError(block, "this is no mapping")
    if content.get("type") == "state_pipelines.dagster.FlinkJobComponent":
        FlinkJob.model_validate(content["attributes"])
    elif {"upgrade", "changes"} & set(content):
        parse_migration({"revision": "page", **content})
    else:
        raise PageError(block, "nothing checks this YAML; give it a file name as title, and use it")


def check_toml(block: Block) -> None:
    """Parse a block of TOML."""
    tomllib.loads(block.text)


def check_json(block: Block) -> None:
    """Parse a block of JSON."""
    json.loads(block.text)


def follow(page: Path, folder: Path, make_session: Callable[[], SparkSession]) -> None:
    """Run all blocks of a page in a directory."""
    runner = PageRunner(folder, make_session)
    for block in read_blocks(page):
        runner.run(block)
