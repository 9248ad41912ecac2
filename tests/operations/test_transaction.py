"""A new snapshot appears as a whole or not at all, whatever ends the transaction."""

import gc
from pathlib import Path

import pytest

import state_pipelines as sp
from state_pipelines.errors import ProofError, TargetExistsError
from state_pipelines.operations.dump import dump
from state_pipelines.operations.proofs import ProofCheck, ProofReport
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.storage import create_file, join, resolve
from tests.flink.harness import diff_entries
from tests.snapshot.savepoints import orders


def begin(directory: Path) -> SnapshotTransaction:
    return SnapshotTransaction(resolve(str(directory / "new")))


def fill(transaction: SnapshotTransaction) -> None:
    """Stage the orders, with a temporary file beside them."""
    with create_file(join(transaction.scratch, "spill")) as file:
        file.write(b"records")
    old = orders().open()
    transaction.stage(old.metadata, old)


def judge(*, ok: bool) -> ProofReport:
    return ProofReport("orders", "order", 1, 1, (ProofCheck("round_trip", ok, "values", "equal", "different"),))


@pytest.mark.slow
def test_what_was_staged_reads_as_the_old_snapshot_before_and_after_it_is_published(tmp_path: Path) -> None:
    old = orders().open()
    with begin(tmp_path) as transaction:
        staged = transaction.stage(old.metadata, old)
        assert not diff_entries(dump(old), dump(staged))
        assert not (tmp_path / "new" / "_metadata").exists()
        transaction.commit(judge(ok=True))
    assert not diff_entries(dump(old), dump(sp.open_snapshot(str(tmp_path / "new"), old.declarations)))
    assert transaction.copied == len([*(tmp_path / "new").iterdir()]) - len(["_metadata", "_state-pipelines.json"])


def test_a_failed_proof_leaves_nothing(tmp_path: Path) -> None:
    with begin(tmp_path) as transaction:
        fill(transaction)
        with pytest.raises(ProofError, match="round_trip"):
            transaction.commit(judge(ok=False))
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_one_that_nobody_leaves_is_not_ended_by_the_garbage_collector(tmp_path: Path) -> None:
    transaction = begin(tmp_path).__enter__()
    fill(transaction)
    scratch = Path(transaction.scratch.path)
    del transaction
    gc.collect()
    assert (scratch / "spill").exists()


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with begin(tmp_path) as transaction:
            fill(transaction)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not [*tmp_path.iterdir()]


def test_a_block_without_commit_leaves_nothing(tmp_path: Path) -> None:
    with begin(tmp_path) as transaction:
        fill(transaction)
    assert not [*tmp_path.iterdir()]


def test_temporary_files_are_gone_once_the_snapshot_is_published(tmp_path: Path) -> None:
    with begin(tmp_path) as transaction:
        fill(transaction)
        transaction.commit()
        assert [each.name for each in tmp_path.iterdir()] == ["new"]


def test_a_snapshot_that_would_need_other_files_is_not_published(tmp_path: Path) -> None:
    old = orders().open()
    with begin(tmp_path) as transaction:
        transaction.stage(old.metadata, old)
        next(each for each in (tmp_path / "new").iterdir() if not each.name.startswith(("_", "."))).unlink()
        with pytest.raises(ProofError, match="would not be self-contained"):
            transaction.commit()
    with begin(tmp_path) as transaction:
        transaction.stage(old.metadata, old, files=FileMode.REFERENCE)
        transaction.commit()


def test_a_target_that_holds_something_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "notes").write_text("mine")
    with pytest.raises(TargetExistsError), begin(tmp_path):
        pass
    assert (tmp_path / "new" / "notes").read_text() == "mine"
