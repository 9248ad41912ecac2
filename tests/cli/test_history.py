from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
import yaml

from state_pipelines.operations.migration.history import RevisionDirectory
from state_pipelines.operations.migration.migration_files import load_migration
from tests.flink.harness import ORDERS
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

MIGRATIONS = ORDERS / "migrations"
COUNT = """
revision: 0002_count
description: Orders count their changes.
operator: orders
state: order
upgrade:
  - add: {field: changes, type: int, default: 1}
downgrade:
  - drop: {field: changes}
loss:
  - {field: changes, reason: the downgrade drops it}
"""
LATER = """
revision: 0003_later
operator: orders
state: order
upgrade:
  - set: {field: changes, expression: changes + 1}
downgrade:
  - set: {field: changes, expression: changes - 1}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    target = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, target)
    (target / "0002_count.yaml").write_text(COUNT, encoding="utf-8")
    return target


def test_history_lists_the_revisions(call: Callable[..., Called], directory: Path) -> None:
    called = call("history", directory)
    assert called.code == 0
    assert [line.rstrip() for line in called.out.splitlines()] == [
        "    revision    changes         way back  description",
        "    0001        orders / order  yes       Amounts become euros as DOUBLE, customers become ids, orders get a "
        "priority, notes go.",
        "    0002_count  orders / order  yes       Orders count their changes.",
    ]


def test_history_marks_where_a_snapshot_is(call: Callable[..., Called], directory: Path) -> None:
    called = call("history", directory, orders().path)
    assert called.code == 0
    assert [line.split()[:2] for line in called.out.splitlines() if "*" in line] == [["*", "base"]]


def test_history_as_json(call: Callable[..., Called], directory: Path) -> None:
    found = call("history", directory, orders().path, "--json").json
    assert (found["head"], found["path"]) == ("0002_count", str(directory))
    first, second = found["revisions"]
    assert (first["revises"], second["revises"]) == ("base", "0001")
    assert second["changes"] == [{"operator": "orders", "state": "order"}]
    assert second["reversible"]
    assert found["current"]["revision"] == "base"
    assert found["current"]["pending"] == ["0001", "0002_count"]


def test_history_of_an_empty_directory(call: Callable[..., Called], tmp_path: Path) -> None:
    assert call("history", tmp_path).out == f"there are no revisions in {tmp_path}\n"


def test_a_broken_directory_is_an_error(call: Callable[..., Called], directory: Path) -> None:
    (directory / "0003.yaml").write_text(COUNT, encoding="utf-8")
    called = call("history", directory)
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith("error: revision 0002_count is in two files: 0002_count.yaml and 0003.yaml")


def test_current_tells_the_revision(call: Callable[..., Called], directory: Path) -> None:
    called = call("current", directory, orders().path)
    assert (called.code, called.out) == (0, "base (before head by 0001, 0002_count)\n")


def test_current_says_when_it_cannot_tell(call: Callable[..., Called], directory: Path) -> None:
    (directory / "0000.yaml").write_text(
        "{revision: '0000', operator: orders, state: order, "
        "upgrade: [{set: {field: amount, expression: amount}}], downgrade: {impossible: none}}",
        encoding="utf-8",
    )
    called = call("current", directory, orders().path)
    assert called.code == 1
    assert called.out == (
        "the snapshot may be at base or 0000 (0000: 0000 leaves no trace in the serializers of this snapshot)\n"
    )
    assert call("current", directory, orders().path, "--json").json["candidates"] == ["base", "0000"]


def test_current_of_another_job(call: Callable[..., Called], tmp_path: Path) -> None:
    (tmp_path / "0001.yaml").write_text(COUNT.replace("operator: orders", "operator: carts"), encoding="utf-8")
    called = call("current", tmp_path, orders().path)
    assert called.code == 1
    assert "no operator carts" in called.out


def test_migrate_has_nothing_to_do_at_its_target(call: Callable[..., Called], directory: Path, tmp_path: Path) -> None:
    arguments = ("--migrations", directory, "--to", "base", "--out", tmp_path / "new")
    called = call("migrate", orders().path, *arguments)
    assert (called.code, called.out) == (
        0,
        "the snapshot is at base already: nothing to do, nothing was written\n",
    )
    assert call("migrate", orders().path, *arguments, "--json").json["path"] is None
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Give either --migrations DIR or --migration FILE"),
        (("--migrations", "a", "--migration", "b"), "--migrations does not go with --migration"),
        (("--migration", "b", "--to", "head"), "--to does not go with --migration"),
        (("--migrations", "b", "--downgrade"), "--downgrade does not go with --migrations"),
    ],
)
def test_migrate_takes_a_directory_or_a_file(
    call: Callable[..., Called], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    called = call("migrate", orders().path, *arguments, "--out", tmp_path / "new")
    assert called.code == 2
    assert message in called.err


@pytest.mark.parametrize(("end", "code"), [("-1", 2), ("0009", 2)])
def test_migrate_refuses_targets_that_are_not_there(
    call: Callable[..., Called], directory: Path, tmp_path: Path, end: str, code: int
) -> None:
    called = call("migrate", orders().path, "--migrations", directory, "--to", end, "--out", tmp_path / "new")
    assert called.code == code


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_chain_of_two_revisions_and_back(call: Callable[..., Called], directory: Path, tmp_path: Path) -> None:
    up = call("migrate", orders().path, "--migrations", directory, "--out", tmp_path / "new", "--json")
    assert up.code == 0, up.err
    assert (up.json["from"], up.json["to"], up.json["rows"]) == ("base", "0002_count", 200)
    assert [each["revision"] for each in up.json["revisions"]] == ["0001", "0002_count"]
    assert up.json["proof"]["ok"]
    assert call("current", directory, tmp_path / "new").out == "0002_count (head)\n"
    (directory / "0003_later.yaml").write_text(LATER, encoding="utf-8")
    down = call(
        "migrate",
        tmp_path / "new",
        "--migrations",
        directory,
        "--from",
        "0002",
        "--to",
        "base",
        "--out",
        tmp_path / "old",
    )
    assert down.code == 0, down.err
    assert "downgrade 0002_count: Orders count their changes." in down.out
    assert call("check", tmp_path / "old", orders().path).code == 0


def test_a_new_revision_follows_the_last(call: Callable[..., Called], directory: Path) -> None:
    called = call("revision", directory, "-m", "Amounts in cents, again!")
    path = directory / "0003_amounts_in_cents_again.yaml"
    assert called.code == 0, called.err
    assert called.out.endswith(f"new revision: {path}\n")
    found = load_migration(path)
    assert (found.revision, found.revises) == (path.stem, "0002_count")
    assert found.description == "Amounts in cents, again!"
    assert RevisionDirectory(directory).head == path.stem


def test_the_first_revision_makes_the_directory(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("revision", tmp_path / "new", "-m", "first", "--json")
    assert called.json == {
        "path": str(tmp_path / "new" / "0001_first.yaml"),
        "revision": "0001_first",
        "revises": "base",
        "remarks": [],
        "undecided": True,
    }


def test_a_draft_makes_the_snapshot_fit_the_new_types(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call(
        "revision", tmp_path, "-m", "wide", "--autogenerate", orders().path, "--type", "orders/quantities=Double"
    )
    assert called.code == 0, called.err
    content = yaml.safe_load((tmp_path / "0001_wide.yaml").read_text(encoding="utf-8"))
    assert content["state"] == "quantities"
    assert content["upgrade"] == [{"convert": {"to": "Double"}}]
    assert content["downgrade"] == [{"convert": {"to": "Long"}}]
    assert call("current", tmp_path, orders().path).out == "base (before head by 0001_wide)\n"


def test_a_draft_takes_pending_revisions_into_account(call: Callable[..., Called], directory: Path) -> None:
    schema = "Pojo<com.acme.orders.Order>(amount: Double, id: String)"
    called = call(
        "revision", directory, orders().path, "-m", "less", "--autogenerate", "--type", f"orders/order={schema}"
    )
    assert called.code == 0, called.err
    content = yaml.safe_load((directory / "0003_less.yaml").read_text(encoding="utf-8"))
    assert "changes" in [each["drop"]["field"] for each in content["upgrade"]]
    assert all("drop" in each for each in content["upgrade"])


def test_nothing_to_draft_writes_nothing(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("revision", tmp_path, "-m", "same", "--autogenerate", orders().path, orders().path)
    assert called.code == 2
    assert "the new job has no change that needs a migration" in called.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-m", "!"), "no words to name the revision after"),
        (("-m", "x", "--autogenerate"), "needs the snapshot"),
        (("snapshot", "-m", "x"), "Add --autogenerate"),
    ],
)
def test_a_revision_that_is_not_said(
    call: Callable[..., Called], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    called = call("revision", tmp_path, *arguments)
    assert called.code == 2
    assert message in called.err


def test_a_draft_for_another_flink_says_what_it_leaves_out(call: Callable[..., Called], tmp_path: Path) -> None:
    (path,) = (ORDERS.parent / "upgrade" / "savepoint").iterdir()
    classes = tmp_path / "classes.yaml"
    classes.write_text("com.acme.shop.Customer: [name: String, tags: List<String>, articles: 'Map<String, Long>']")
    where = ("--target-release", "2.3", "--uid", "customers", "--classes", classes)
    called = call("revision", tmp_path / "revisions", path, "--autogenerate", "-m", "to flink 2", *where, "--json")
    assert called.code == 0
    (remark,) = called.json["remarks"]
    assert remark.startswith("customers / visits: not drafted: Kryo 5 does not read the data of Kryo 2")
