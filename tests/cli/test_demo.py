"""The demo, once, as a user runs it: another process, and no Java on the PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from state_pipelines.cli.demo import prepare_home
from state_pipelines.errors import UsageError
from tests.flink.harness import diff_entries, read_entries
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Called

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Demo:
    code: int
    out: str
    err: str
    target: Path

    @property
    def savepoint(self) -> Path:
        (found,) = (self.target / "savepoints").iterdir()
        return found


def hide_java(path: str) -> str:
    """The PATH without directories that hold a Java, as long as a shell is left."""
    without = os.pathsep.join(each for each in path.split(os.pathsep) if not Path(each, "java").exists())
    return without if shutil.which("bash", path=without) else path


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    target = tmp_path_factory.mktemp("demo") / "target"
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "DAGSTER_HOME")}
    environment |= {"PATH": hide_java(os.environ["PATH"]), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "state_pipelines", "demo", "--target", str(target)],
        capture_output=True,
        text=True,
        check=False,
        cwd=target.parent,
        env=environment,
    )
    return Demo(done.returncode, done.stdout, done.stderr, target)


pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_it_succeeds(demo: Demo) -> None:
    assert demo.code == 0, demo.out + demo.err


def test_it_is_quiet(demo: Demo) -> None:
    assert len(demo.err.splitlines()) == 1
    assert demo.err.startswith("materialising the assets")


@pytest.mark.parametrize(
    "text",
    [
        "6 operators, 14 states, 1,410 entries",
        "the old state in the new job: incompatible",
        "Cast to Double in a migration",
        "after the migration: fully compatible",
        "customer: String  customerId: String  renamed",
        "{amount: 182.55, customerId: o'neil, jr., priority: 0}",
        "row_counts_per_key_group   passed",
        "key_sets                   passed",
        "key_groups_match_key_hash  passed",
        "round_trip                 passed",
        "written_reads_back         passed",
        "14 states as Parquet",
        "dev -w workspace.yaml",
        "all passed",
    ],
)
def test_the_summary_tells(demo: Demo, text: str) -> None:
    assert text in demo.out


def test_the_summary_names_the_new_savepoint(demo: Demo) -> None:
    assert f"new savepoint: {demo.savepoint}\n" in demo.out


def test_the_new_savepoint_holds_what_it_must(demo: Demo, call: Callable[..., Called]) -> None:
    expected = read_entries(orders().path.parent / "expected-migrated.jsonl.gz")
    difference = diff_entries(expected, call("dump", demo.savepoint).lines)
    assert not difference, str(difference)


def test_the_history_is_kept_for_the_ui(demo: Demo) -> None:
    assert (demo.target / "dagster" / "history").is_dir()


def test_a_directory_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "savepoints").mkdir()
    with pytest.raises(UsageError, match="files that no demo made"):
        prepare_home(tmp_path, keep=False)
    assert [each.name for each in tmp_path.iterdir()] == ["savepoints"]


@pytest.mark.parametrize("keep", [True, False])
def test_results_of_an_earlier_demo(tmp_path: Path, keep: bool) -> None:
    prepare_home(tmp_path, keep=False).results.joinpath("old").touch()
    assert prepare_home(tmp_path, keep=keep).results.joinpath("old").exists() is keep
