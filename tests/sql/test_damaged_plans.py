"""Plans with missing or exchanged fields are refused or read as far as they say something; nothing else is raised."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import FormatError, StateError
from state_pipelines.snapshot import declare
from state_pipelines.sql import list_operators, read_plan
from tests.snapshots import DATA
from tests.sql.small_plans import SOURCE, join, make_plan, scan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = json.loads(gzip.decompress((DATA / "sql/plans/flink-2.2.json.gz").read_bytes()))["plan"]
JUNK: tuple[object, ...] = (
    None,
    -1,
    10**9,
    "",
    "INT",
    True,
    1.5,
    [],
    [None],
    [[]],
    [{}],
    {},
    {"type": "ROW"},
    {"kind": "INPUT_REF"},
)
Steps = tuple["str | int", ...]


def list_paths(value: Any, path: Steps = ()) -> Iterator[Steps]:
    """Paths of all values below one."""
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in pairs:
        yield from list_paths(each, (*path, name))


def test_a_join_with_one_input_names_the_node(tmp_path: Path) -> None:
    text = make_plan(scan(1), join(3, SOURCE, SOURCE))
    with pytest.raises(FormatError, match=r"node 3 \(join\) of the plan lacks inputs"):
        list_operators(read_plan(text))
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(FormatError) as error:
        declare({"plans": [str(tmp_path / "plan.json")]})
    assert error.value.where.file == str(tmp_path / "plan.json")


@pytest.mark.slow
def test_random_damage_is_no_other_error() -> None:
    chance = random.Random(7)
    paths = [each for each in list_paths(CONTENT) if each]
    refused = 0
    for _ in range(60):
        content = json.loads(json.dumps(CONTENT))
        *way, last = chance.choice(paths)
        holder = content
        for step in way:
            holder = holder[step]
        if isinstance(holder, dict) and chance.random() < 0.3:
            del holder[last]
        else:
            holder[last] = chance.choice(JUNK)
        try:
            list_operators(read_plan(json.dumps(content)))
        except StateError:
            refused += 1
    assert 0 < refused < 60
