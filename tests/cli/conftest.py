from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from state_pipelines.cli import main
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Called:
    """What a command gave back."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(scope="session")
def call() -> Callable[..., Called]:
    """Call the command line in this process."""

    def run(*arguments: object) -> Called:
        result = CliRunner().invoke(main, [str(each) for each in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Called(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def savepoint() -> Path:
    """The savepoint of the orders example, by Flink 2.2."""
    return orders().path


@pytest.fixture
def broken(tmp_path: Path, savepoint: Path) -> Path:
    """A copy of that savepoint for tests to break."""
    target = tmp_path / savepoint.name
    shutil.copytree(savepoint, target)
    return target
