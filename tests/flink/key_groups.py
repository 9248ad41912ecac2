"""Runs the program that records keys and their key groups."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pyspark

from tests.flink import harness

# Libraries that keys come from; PySpark has them.
_LIBRARIES = (
    "avro-1*",
    "commons-lang3-*",
    "jackson-annotations-*",
    "jackson-core-*",
    "jackson-databind-*",
    "scala-library-*",
)


def record_keys(version: str, seed: int, count: int) -> str:
    """Lines as `harness.RecordKeyGroups` describes them.

    Args:
        version: of Flink.
        seed: of the random keys.
        count: keys of each type.
    """
    home = harness.install_libraries(version)
    jars = Path(pyspark.__file__).parent / "jars"
    found = [path for name in _LIBRARIES for path in sorted(jars.glob(f"{name}.jar"))]
    home = replace(home, libraries=(*home.libraries, *found))
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "keys.tsv"
        options = {"seed": seed, "count": count, "output": output}
        classes = harness._compile(home, ["tests/flink/java/keygroups"])
        code, text = harness._run(home, classes, "RecordKeyGroups", options)
        if code:
            raise harness.HarnessError(f"the keys were not recorded with Flink {version}:\n{text}")
        return output.read_text(encoding="utf-8")
