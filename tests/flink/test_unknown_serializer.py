"""Real Flink restores snapshots with a serializer that nothing here reads, after they were rescaled or converted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from state_pipelines.cli import main
from tests.flink import harness
from tests.flink.make_data import job_of_case
from tests.snapshots import UNKNOWN

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.flink


@pytest.mark.parametrize(
    ("case", "command", "parallelism"),
    [
        ("canonical", "rescale --parallelism 3", 3),
        ("heap-native", "rescale --parallelism 3", 3),
        ("rocksdb-native", "convert --format canonical", 2),
    ],
)
@pytest.mark.parametrize("version", ["2.2.1", "2.3.0"])
def test_flink_restores_it(version: str, case: str, command: str, parallelism: int, tmp_path: Path) -> None:
    (found,) = [each for each in UNKNOWN if each.case == case]
    mapping = [each for text in found.path_mapping for each in ("--map", text)]
    target = tmp_path / "target"
    result = CliRunner().invoke(main, [*command.split(), str(found.path), "--out", str(target), *mapping])
    assert result.exit_code == 0, result.stderr
    restored = harness.restore(version, target, job_of_case(found), parallelism=parallelism)
    assert restored.ok, restored.error
    # Each subtask gets all of a union list.
    expected = [entry for entry in found.entries() if entry["op"] != "offsets"]
    assert not harness.diff_entries(expected, [entry for entry in restored.entries if entry["op"] != "offsets"])
