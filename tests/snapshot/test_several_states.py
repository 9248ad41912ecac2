"""States that are read together are those that are read one by one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from state_pipelines.errors import FormatError, NotFoundError
from state_pipelines.keyed.canonical import CanonicalFile
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.snapshot import Operator, open_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOTS = sorted(
    path
    for directory in (ROOT / "tests" / "data" / "rescaling", ROOT / "examples" / "orders")
    for path in directory.rglob("savepoint-*")
)
COMPRESSED = next(path for path in SNAPSHOTS if path.parent.name == "canonical-snappy")


def collect(batches: Iterable[tuple[str, pa.RecordBatch]]) -> dict[str, pa.Table]:
    found: dict[str, list[pa.RecordBatch]] = {}
    for name, batch in batches:
        found.setdefault(name, []).append(batch)
    return {name: pa.Table.from_batches(each) for name, each in found.items()}


def read_alone(
    operator: Operator, options: TableOptions | None = None, key_groups: KeyGroupRange | None = None
) -> dict[str, pa.Table]:
    batches = ((state.name, each) for state in operator.keyed_states for each in state.batches(options, key_groups))
    return collect(batches)


def keyed_operators(snapshot: Path) -> list[Operator]:
    return [operator for operator in open_snapshot(str(snapshot)).operators if operator.keyed_states]


@pytest.mark.slow
@pytest.mark.parametrize("snapshot", SNAPSHOTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_all_states_have_the_rows_that_they_have_alone(snapshot: Path) -> None:
    for operator in keyed_operators(snapshot):
        assert collect(operator.batches_by_state()) == read_alone(operator)


def orders() -> Operator:
    return next(each for path in SNAPSHOTS for each in keyed_operators(path) if len(each.keyed_states) > 2)


def test_states_columns_and_key_groups_are_chosen() -> None:
    operator, options, half = orders(), TableOptions(columns=("key_group",)), KeyGroupRange(0, 64)
    names = [state.name for state in operator.keyed_states][1:]
    alone = {name: rows for name, rows in read_alone(operator, options, half).items() if name in names}
    assert len(alone) > 0
    assert collect(operator.batches_by_state(names, options, half)) == alone


def test_no_states_are_no_rows() -> None:
    assert not collect(orders().batches_by_state([]))


def test_a_state_that_is_not_there_is_told() -> None:
    with pytest.raises(NotFoundError, match="no keyed state nothing"):
        collect(orders().batches_by_state(["nothing"]))


def test_damage_behind_snappy_is_told_with_its_place(tmp_path: Path) -> None:
    shutil.copytree(COMPRESSED, tmp_path, dirs_exist_ok=True)
    (_, file), *_ = keyed_operators(tmp_path)[0].keyed_files
    assert isinstance(file, CanonicalFile)
    last, place = file.sections[-1], tmp_path / Path(file.name).name
    data = bytearray(place.read_bytes())
    data[last.end - 1] ^= 1
    place.write_bytes(data)
    with pytest.raises(FormatError) as raised:
        collect(keyed_operators(tmp_path)[0].batches_by_state())
    where = raised.value.where
    assert where.file == str(place)
    assert where.offset is not None
    assert last.start <= where.offset < last.end
