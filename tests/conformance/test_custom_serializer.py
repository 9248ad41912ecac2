"""A package that teaches serializers of its own: found by its entry point, and used by everything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.serializers.literals import LONG, STRING, composite, i32, outer, utf, versioned

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples/custom_serializer"
MONEY = "com.acme.MoneySerializer$MoneySerializerSnapshot"
VALUE = "org.apache.flink.api.java.typeutils.runtime.ValueSerializer$ValueSerializerSnapshot"
LIST = "org.apache.flink.api.common.typeutils.base.ListSerializerSnapshot"
EUROS = versioned(MONEY, 1, utf("EUR") + STRING)
STATION = versioned(VALUE, 2, utf("com.acme.Station"))

# Each value by scalar codec, columns and JSON, there and back where there is a back.
PROGRAM = """
import json, sys
import numpy as np
from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.data_views import Writer
from state_pipelines.codecs.programs import decode_spans, encode_array
from state_pipelines.codecs.json import to_json
from state_pipelines.codecs.programs import compile_layout
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout, fixed_length
from state_pipelines.errors import UnsupportedError
from state_pipelines.serializers.compatibility import resolve
from state_pipelines.serializers.registry import read_snapshot, write_snapshot
from state_pipelines.serializers.text import describe

def tell(snapshot, other, data):
    node, stored, written = read_snapshot(Reader(snapshot)), Writer(), Writer()
    write_snapshot(stored, node)
    layout = derive_layout(node, LayoutContext())
    value = read_value(layout, Reader(data))
    write_value(layout, written, value)
    try:
        program = compile_layout(layout)
        column = decode_spans(program, np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([len(data)]))
        table = {"rows": column.to_pylist(), "again": encode_array(program, column).data.tobytes().hex()}
    except UnsupportedError as error:
        table = error.what
    return {
        "text": describe(node), "snapshot": stored.getvalue().hex(), "value": value, "data": written.getvalue().hex(),
        "columns": table, "json": to_json(node, value), "length": fixed_length(node, LayoutContext()),
        "check": resolve(node, read_snapshot(Reader(other))).outcome.name,
    }

print(json.dumps([tell(*map(bytes.fromhex, each)) for each in json.loads(sys.argv[1])]))
"""

PLAIN = i32(2) + EUROS
# By name: a serializer snapshot, a value, and the snapshot that it is checked against.
VALUES = {
    "plain": (PLAIN, "00000000000004d200036869", PLAIN),
    "nested": (LISTED := outer(LIST, 3, composite(1, b"", EUROS)), "00000001000000000000000101", LISTED),
    "dollars": (PLAIN, "000000000000000101", outer(MONEY, 1, utf("USD") + STRING)),
    "numbers": (PLAIN, "000000000000000101", outer(MONEY, 1, utf("EUR") + LONG)),
    "station": (i32(2) + STATION, "0003416c704028000000000000", i32(2) + STATION),
    "nested station": (
        NOTED := outer(MONEY, 1, utf("EUR") + STATION),
        "0000000000000001000003416c704028000000000000",
        NOTED,
    ),
}


@pytest.fixture(scope="module")
def python_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH on which the example is installed, entry point and all."""
    site = tmp_path_factory.mktemp("site")
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    info = site / f"acme_serializers-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, names in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines))
    shutil.copy(PACKAGE / "acme_serializers.py", site)
    return os.pathsep.join([str(site), str(ROOT)])


def run(python_path: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def told(python_path: str) -> dict[str, dict[str, object]]:
    """Of each value all that is said of it."""
    values = [(snapshot.hex(), other.hex(), data) for snapshot, data, other in VALUES.values()]
    found = json.loads(run(python_path, "-c", PROGRAM, json.dumps(values)))
    for (snapshot, _, data), each in zip(values, found, strict=True):
        assert (each.pop("snapshot"), each.pop("data")) == (snapshot, data)
    return dict(zip(VALUES, found, strict=True))


def test_a_family_of_ones_own_goes_through_scalar_codec_columns_and_json(told: dict[str, dict[str, object]]) -> None:
    rows = [{"cents": 1234, "note": "hi"}]
    assert told["plain"] == {
        "text": "Money<String>",
        "value": rows[0],
        "columns": {"rows": rows, "again": "00000000000004d200036869"},
        "json": {"@money": [1234, "EUR"], "note": "hi"},
        "length": None,
        "check": "AS_IS",
    }


def test_it_nests_in_flinks_families(told: dict[str, dict[str, object]]) -> None:
    nested = told["nested"]
    assert nested["text"] == "List<Money<String>>"
    assert nested["value"] == [{"cents": 1, "note": None}]
    assert nested["json"] == [{"@money": [1, "EUR"], "note": None}]


def test_its_rule_is_asked(told: dict[str, dict[str, object]]) -> None:
    assert told["dollars"]["check"] == "INCOMPATIBLE"


def test_the_rule_of_what_is_nested_is_asked(told: dict[str, dict[str, object]]) -> None:
    assert told["numbers"]["check"] == "INCOMPATIBLE"


def test_a_class_that_writes_itself_goes_by_its_layout(told: dict[str, dict[str, object]]) -> None:
    station = told["station"]
    assert station["value"] == station["json"] == {"name": "Alp", "height": 12.0}
    assert station["columns"] == {"rows": [{"name": "Alp", "height": 12.0}], "again": "0003416c704028000000000000"}
    assert station["length"] is None


def test_a_class_that_writes_itself_nests(told: dict[str, dict[str, object]]) -> None:
    assert told["nested station"]["json"] == {"@money": [1, "EUR"], "note": {"name": "Alp", "height": 12.0}}


SAVEPOINT = "flink/snapshots/type-serializer-snapshot-migration-itcase-flink1.16-rocksdb-savepoint"


def test_the_savepoint_of_flinks_test_of_a_user_defined_serializer_is_dumped(python_path: str, fixtures: Path) -> None:
    lines = run(python_path, "-m", "state_pipelines", "dump", str(fixtures / SAVEPOINT), "--state", "testState")
    entries = [json.loads(line) for line in lines.splitlines()]
    assert [(entry["key"], entry["value"]) for entry in entries] == [({"@tuple": [n]}, n) for n in range(4)]


def test_its_states_are_tables(python_path: str, fixtures: Path) -> None:
    program = (
        "import sys, state_pipelines as sp\n"
        "states = [s for o in sp.open_snapshot(sys.argv[1]).operators for s in o.states if s.name == 'testState']\n"
        "print([row['value'] for state in states for row in state.to_arrow().to_pylist()])\n"
    )
    assert run(python_path, "-c", program, str(fixtures / SAVEPOINT)) == "[0, 1, 2, 3]\n"


def test_the_documentation_shows_the_example() -> None:
    block = (
        (ROOT / "docs/serializers.md").read_text().split('```python title="acme_serializers.py"\n')[1].split("\n```")[0]
    )
    source = (PACKAGE / "acme_serializers.py").read_text()
    assert all(part in source for part in block.split("\n\n\n"))
