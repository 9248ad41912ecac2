"""Asks the real Flink for the serializers of `tests/data/classes` and writes `expected.json` beside them.

Run it with `python -m tests.flink.make_classes`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

from state_pipelines.binary.data_views import Reader
from state_pipelines.flink.local_cluster import OPENED_PACKAGES
from state_pipelines.serializers.registry import read_nested
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import Pojo
from tests.flink.harness import install

CLASSES = Path(__file__).resolve().parents[1] / "data" / "classes"
WHOLE = "x.All"
NESTED = ("B", "Rec", "Sub2", "Node", "Bean", "IsBean", "Iface", "NoCtor")


def ask_flink(version: str) -> dict[str, str]:
    """The serializers in readable form: of every field of `x.All`, and of some classes by themselves."""
    path = os.pathsep.join(map(str, install(version).jars))
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES]
    names = [WHOLE, *(f"{WHOLE}${name}" for name in NESTED)]
    with tempfile.TemporaryDirectory() as target:
        sources = [CLASSES / "src" / "x" / "All.java", CLASSES / "flink" / "Probe.java"]
        subprocess.run(["javac", "-nowarn", "-Xlint:none", "-cp", path, "-d", target, *sources], check=True)
        command = ["java", "-cp", os.pathsep.join((path, target)), *opened, "Probe", *names]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    answers: dict[str, str] = {}
    for name, snapshot in re.findall(r"^CLASS (\S+) (\S+)$", output, re.MULTILINE):
        node = read_nested(Reader(bytes.fromhex(snapshot)))
        if name == WHOLE and isinstance(node, Pojo):
            answers |= {each.name: describe(each.serializer) for each in node.fields if each.serializer is not None}
        else:
            answers[name] = describe(node)
    return answers


def main() -> None:
    """Write the answers of every release."""
    expected = {version.rpartition(".")[0]: ask_flink(version) for version in ("1.20.5", "2.2.1")}
    text = json.dumps(expected, indent=1, sort_keys=True)
    (CLASSES / "expected.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
