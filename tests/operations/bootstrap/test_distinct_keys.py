"""Keys that occur twice are found: in one part, in two, in a key group that is too large to be held."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from state_pipelines.errors import IncompatibleError
from state_pipelines.keyed.state_table import RecordEncoder
from state_pipelines.operations.write import keyed_rewrite
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.operations.write.savepoint_plan import EncodedStates, plan_savepoint
from state_pipelines.operations.write.spills import write_state_spill
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.serializers.text import parse
from state_pipelines.storage import join, resolve
from tests.operations.one_state import OneState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot

STATES = {
    "VALUE": ("Long", ("value", pa.int64())),
    "MAP": ("Map<String, Long>", ("map_value", pa.int64())),
}


def write(target: Path, parts: Sequence[Sequence[str]], kind: str = "VALUE", format: str = "canonical") -> Snapshot:
    """A savepoint of one key group, each part with these keys, or map keys of the key `k`."""
    value, (column, column_type) = STATES[kind]
    state = OneState("o", "s", kind, parse("String"), parse(value), parallelism=1, max_parallelism=1)
    plan = plan_savepoint(None, [state.description], Format(format))
    with SnapshotTransaction(resolve(str(target))) as transaction:
        encoder = RecordEncoder(plan.operators[0].layouts["s"], "s")
        files = []
        for number, keys in enumerate(parts):
            columns = {"state_key": keys} if kind == "VALUE" else {"state_key": ["k"] * len(keys), "map_key": keys}
            table = pa.table(columns | {column: pa.array([number] * len(keys), column_type)})
            files.append(write_state_spill(encoder, table.to_batches(), join(transaction.scratch, str(number))))
        snapshot, _ = plan.write(transaction, EncodedStates({("o", "s"): tuple(files)}))
        transaction.commit()
    return snapshot


MANY = [f"key-{number}" for number in range(5000)]
TWICE = [
    pytest.param([["a", "b", "a"]], "a", id="in one part"),
    pytest.param([["a", "b"], ["c", "b"]], "b", id="in two parts"),
    pytest.param([MANY, MANY[-1:]], MANY[-1], id="among many"),
    pytest.param([["", "a"], [""]], "", id="empty"),
]


@pytest.mark.parametrize("limit", [0, keyed_rewrite.LARGE], ids=["streamed", "held"])
@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize(("parts", "key"), TWICE)
def test_a_key_that_comes_twice_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[list[str]], key: str, kind: str, limit: int
) -> None:
    monkeypatch.setattr(keyed_rewrite, "LARGE", limit)
    with pytest.raises(IncompatibleError, match=rf"several rows of the state have the key .*'{key}'"):
        write(tmp_path / "new", parts, kind)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("format", ["heap", "rocksdb"])
def test_native_formats_refuse_it_too(tmp_path: Path, format: str) -> None:
    with pytest.raises(IncompatibleError, match="'b'"):
        write(tmp_path / "new", [["a", "b"], ["b"]], format=format)


@pytest.mark.parametrize("limit", [0, keyed_rewrite.LARGE], ids=["streamed", "held"])
@pytest.mark.parametrize("kind", STATES)
def test_keys_that_differ_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, limit: int) -> None:
    monkeypatch.setattr(keyed_rewrite, "LARGE", limit)
    snapshot = write(tmp_path / "new", [MANY, [], ["a"]], kind)
    assert snapshot.operators[0].state("s").count().entries == len(MANY) + 1
