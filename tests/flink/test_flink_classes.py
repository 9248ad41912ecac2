"""The table of Flink's serializer snapshot classes, held against class loading in real Flink."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from state_pipelines.operations.check.check import parse_release
from state_pipelines.operations.check.class_checks import explain_missing_class
from state_pipelines.serializers.snapshot_classes import CLASSES_FILE, find_releases
from tests.flink import harness

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.flink

# Packages that `flink-dist` has whole; other classes are in jars that the cache of these tests leaves out.
CORE = ("org.apache.flink.api.common.", "org.apache.flink.api.java.typeutils.", "org.apache.flink.runtime.")
PROGRAM = "tests/flink/java/loading/LoadClasses.java"


def test_flink_loads_the_classes_that_the_table_has(version: str, tmp_path: Path) -> None:
    home = harness.install(version)
    names = [line.partition("\t")[0] for line in CLASSES_FILE.read_text().splitlines()[1:]]
    names = [name for name in names if name.endswith(("Snapshot", "Config"))]
    (tmp_path / "names").write_text("\n".join(names))
    class_path = ":".join(map(str, home.jars))
    command = ["java", "-cp", class_path, str(harness.ROOT / PROGRAM), str(tmp_path / "names")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    errors = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    release = parse_release(version)
    known = {name for name in names if release in find_releases(name)}
    assert errors.keys() == set(names)
    for name in set(names) - known:
        assert errors[name] == explain_missing_class(name, release)
    assert {name: errors[name] for name in known if name.startswith(CORE) and errors[name]} == {}
    assert len(set(names) - known) > 10
