"""Proofs count the records of a shared database as it is stored, not as it is clipped."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from state_pipelines.keyed.rocksdb import RocksFile
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.convert import convert
from state_pipelines.operations.local_processes import run_tasks
from state_pipelines.operations.rescale import parse_request, rescale
from state_pipelines.operations.write.transaction import check_source_whole
from state_pipelines.snapshot import Snapshot, open_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.snapshot import Operator

ORDERS = "examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return share_databases(tmp_path_factory.mktemp("shared"))


def share_databases(directory: Path) -> Snapshot:
    """Make a snapshot whose subtasks share RocksDB databases, as a rescaling leaves them."""
    orders = open_snapshot(ORDERS, uids=["orders"])
    convert(orders, str(directory / "rocksdb"), "rocksdb")
    native = open_snapshot(str(directory / "rocksdb"), uids=["orders"])
    rescale(native, str(directory / "rescaled"), parse_request({"parallelism": 4}))
    return open_snapshot(str(directory / "rescaled"), uids=["orders"])


@pytest.mark.slow
def test_a_conversion_counts_shared_databases_whole(shared: Snapshot, tmp_path: Path) -> None:
    proof = convert(shared, str(tmp_path / "new"), "canonical").proof
    assert proof is not None
    (check,) = [each for each in proof.checks if each.name == "source_read_whole"]
    assert check.ok
    assert check.counts is not None
    assert check.counts.compared > 200


def test_files_that_nobody_shares_need_no_count() -> None:
    assert check_source_whole(open_snapshot(ORDERS, uids=["orders"]).operators, run_tasks) is None


def test_records_that_a_clip_leaves_out_are_missing(shared: Snapshot) -> None:
    operator = shared.operator("orders")
    (index, file), *others = operator.keyed_files
    assert isinstance(file, RocksFile)
    groups = file.key_groups
    clipped = replace(file, key_groups=KeyGroupRange(groups.start, groups.number - 1))
    wrong = SimpleNamespace(
        label=operator.label,
        keyed_files=((index, clipped), *others),
        files=operator.files,
        record_context=operator.record_context,
    )
    check = check_source_whole([cast("Operator", wrong)], run_tasks)
    assert check is not None
    assert not check.ok
    assert check.counts is not None
    assert check.counts.missing > 0
    assert {"after", "expected"} <= check.rows[0].values.keys()
