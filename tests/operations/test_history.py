from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
import yaml

from state_pipelines.errors import MigrationError, MissingFileError, NotFoundError, StateError, UsageError
from state_pipelines.operations.migration.history import (
    BASE,
    HEAD,
    RevisionDirectory,
    Schemas,
    apply_migration,
    find_position,
    order_revisions,
)
from state_pipelines.operations.migration.migration_files import parse_migration
from state_pipelines.operations.migration.shapes import StateShape
from state_pipelines.operations.migration.steps import Direction
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, pojo
from state_pipelines.serializers.state_meta_info import keyed_state
from tests.flink.harness import ORDERS
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.operations.migration.migration_files import Migration
    from state_pipelines.serializers.tree import Serializer

LONG, STRING, DOUBLE = basic("Long"), basic("String"), basic("Double")
ORDER = pojo("shop.Order", {"amount": LONG, "customer": STRING})

RENAME = {"upgrade": [{"rename": {"customer": "buyer"}}], "downgrade": [{"rename": {"buyer": "customer"}}]}
CAST = {
    "upgrade": [{"cast": {"field": "amount", "to": "Double"}}],
    "downgrade": [{"cast": {"field": "amount", "to": "Long"}}],
}
ADD = {
    "upgrade": [{"add": {"field": "note", "type": "String", "default": None}}],
    "downgrade": [{"drop": {"field": "note"}}],
}
VALUES = {
    "upgrade": [{"set": {"field": "amount", "expression": "amount + 1"}}],
    "downgrade": [{"set": {"field": "amount", "expression": "amount - 1"}}],
}
DROP = {"upgrade": [{"drop": {"field": "customer"}}], "downgrade": {"impossible": "customers are gone"}}


def revision(name: str, body: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"revision": name, "operator": "orders", "state": "order", **body, **others}


def parsed(*contents: dict[str, Any]) -> list[Migration]:
    return [parse_migration(each, path=f"migrations/{each['revision']}.yaml") for each in contents]


def write(directory: Path, *contents: dict[str, Any], allow_python: bool = False) -> RevisionDirectory:
    for each in contents:
        (directory / f"{each['revision']}.yaml").write_text(yaml.safe_dump(each), encoding="utf-8")
    return RevisionDirectory(directory, allow_python=allow_python)


def schemas(payload: Serializer = ORDER) -> Schemas:
    shape = StateShape(keyed_state("order", "VALUE", payload, VOID_NAMESPACE), STRING)

    def find(name: str) -> str:
        if name != "orders":
            raise NotFoundError(f"the snapshot has no operator {name}")
        return "id"

    return Schemas({"id": {"order": shape}}, find)


def positions(*contents: dict[str, Any]) -> list[tuple[str, ...]]:
    """Where a snapshot is found to be, when it is at base, and after each of the revisions."""
    revisions = parsed(*contents)
    states = [schemas()]
    for each in revisions:
        states.append(apply_migration(states[-1], each, Direction.UPGRADE)[0])
    return [find_position(revisions, each, BASE).candidates for each in states]


def test_without_revises_the_order_is_that_of_the_file_names(tmp_path: Path) -> None:
    directory = write(tmp_path, revision("0002", ADD), revision("0001", RENAME), revision("0003", CAST))
    assert [each.revision for each in directory.revisions] == ["0001", "0002", "0003"]
    assert directory.head == "0003"


def test_revises_says_the_order() -> None:
    files = parsed(
        revision("a", ADD, revises="b"), revision("b", RENAME, revises="c"), revision("c", CAST, revises="base")
    )
    assert [each.revision for each in order_revisions(files)] == ["c", "b", "a"]


def test_a_file_without_revises_follows_the_one_before_it() -> None:
    files = parsed(revision("a", ADD, revises="c"), revision("b", RENAME), revision("c", CAST, revises="base"))
    assert [each.revision for each in order_revisions(files)] == ["c", "a", "b"]


def test_python_files_and_others_lie_side_by_side(tmp_path: Path) -> None:
    content = revision("0002", ADD)
    (tmp_path / "0002.py").write_text(f"MIGRATION = {content!r}\n", encoding="utf-8")
    (tmp_path / "__init__.py").write_text("raise SystemExit\n", encoding="utf-8")
    (tmp_path / "order.avsc").write_text("{}", encoding="utf-8")
    directory = write(tmp_path, revision("0001", RENAME), allow_python=True)
    assert [each.path.rpartition("/")[2] for each in directory.revisions] == ["0001.yaml", "0002.py"]


def test_an_empty_directory_is_at_base(tmp_path: Path) -> None:
    directory = RevisionDirectory(tmp_path)
    assert (directory.revisions, directory.head) == ((), BASE)
    assert directory.current(schemas()).revision == BASE


def test_a_directory_may_lie_on_any_storage(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    files.pipe("/history/0001.yaml", yaml.safe_dump(revision("0001", RENAME)).encode())
    files.pipe("/history/0002.yaml", yaml.safe_dump(revision("0002", ADD)).encode())
    try:
        directory = RevisionDirectory("memory://history")
        assert [each.path for each in directory.revisions] == [
            "memory:///history/0001.yaml",
            "memory:///history/0002.yaml",
        ]
    finally:
        files.rm("/history", recursive=True)


def test_a_schema_beside_a_revision_is_found_on_any_storage() -> None:
    schema = b'{"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "long"}]}'
    convert = {"upgrade": [{"convert": {"avro": "order.avsc"}}], "downgrade": {"impossible": "no"}}
    files = fsspec.filesystem("memory")
    files.pipe("/schemas/0001.yaml", yaml.safe_dump(revision("0001", convert)).encode())
    files.pipe("/schemas/order.avsc", schema)
    try:
        (found,) = RevisionDirectory("memory://schemas").revisions
        assert '"amount"' in str(found.upgrade)
    finally:
        files.rm("/schemas", recursive=True)


def test_no_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such directory of revisions"):
        RevisionDirectory(tmp_path / "none")


def test_a_file_that_is_no_revision_is_named(tmp_path: Path) -> None:
    (tmp_path / "0001.yaml").write_text("just text", encoding="utf-8")
    with pytest.raises(MigrationError) as caught:
        RevisionDirectory(tmp_path)
    assert caught.value.where.file == str(tmp_path / "0001.yaml")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([revision("a", ADD), revision("c", ADD, revises="b")], r"c revises b, which no file has \[file .*c.yaml"),
        (
            [revision("a", ADD), revision("b", ADD), revision("c", ADD, revises="a")],
            r"two revisions revise a: b .*b.yaml",
        ),
        ([revision("a", ADD), revision("b", ADD, revises="base")], r"two revisions revise base: a .* and b \(b.yaml\)"),
        (
            [revision("a", ADD), revision("b", ADD, revises="c"), revision("c", ADD, revises="b")],
            r"in a circle: b \(b.yaml\) revises c, c \(c.yaml\) revises b",
        ),
        ([revision("a", ADD, revises="a")], "in a circle: a"),
        ([revision("head", ADD)], "'head' is no name for a revision"),
        ([revision("+1", ADD)], "no name for a revision"),
    ],
)
def test_what_is_no_line_is_told_with_the_files(contents: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(MigrationError, match=message):
        order_revisions(parsed(*contents))


def test_two_files_of_one_name_are_told() -> None:
    first, second = parsed(revision("a", ADD), revision("b", ADD))
    twin = parse_migration(revision("a", RENAME), path="migrations/z.yaml")
    with pytest.raises(MigrationError, match=r"revision a is in two files: a\.yaml and z\.yaml"):
        order_revisions([first, second, twin])


@pytest.fixture
def three(tmp_path: Path) -> RevisionDirectory:
    return write(tmp_path, revision("0001_who", RENAME), revision("0002_cents", CAST), revision("0002_note", ADD))


@pytest.mark.parametrize(("name", "found"), [("0001_who", "0001_who"), ("0001", "0001_who"), (HEAD, "0002_note")])
def test_a_revision_is_found_by_the_beginning_of_its_name(three: RevisionDirectory, name: str, found: str) -> None:
    assert three.get(name).revision == found


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("0002", UsageError, "several revisions begin with 0002: 0002_cents, 0002_note"),
        ("0003", NotFoundError, "There are base, 0001_who, 0002_cents, 0002_note, head"),
        ("", NotFoundError, "no revision"),
        (BASE, NotFoundError, "base is no revision"),
    ],
)
def test_what_names_no_revision_is_told(
    three: RevisionDirectory, name: str, error: type[StateError], message: str
) -> None:
    with pytest.raises(error, match=message):
        three.get(name)


@pytest.mark.parametrize(
    ("current", "target", "expected"),
    [
        ("base", "head", ["0001_who up", "0002_cents up", "0002_note up"]),
        ("head", "base", ["0002_note down", "0002_cents down", "0001_who down"]),
        ("0001", "head", ["0002_cents up", "0002_note up"]),
        ("0001", "+1", ["0002_cents up"]),
        ("0002_note", "-2", ["0002_note down", "0002_cents down"]),
        ("base", "0001", ["0001_who up"]),
        ("head", "0002_note", []),
        ("base", "+0", []),
    ],
)
def test_the_way_between_two_revisions(
    three: RevisionDirectory, current: str, target: str, expected: list[str]
) -> None:
    words = {Direction.UPGRADE: "up", Direction.DOWNGRADE: "down"}
    assert [f"{each.revision} {words[way]}" for each, way in three.between(current, target)] == expected


@pytest.mark.parametrize(("current", "target"), [("base", "-1"), ("0002_cents", "+2"), ("head", "+1")])
def test_the_way_does_not_lead_beyond_the_ends(three: RevisionDirectory, current: str, target: str) -> None:
    with pytest.raises(UsageError, match=f"leads beyond {HEAD if target[0] == '+' else BASE}"):
        three.between(current, target)


def test_the_fingerprint_changes_with_every_file(tmp_path: Path) -> None:
    before = write(tmp_path, revision("0001", RENAME)).fingerprint
    after = write(tmp_path, revision("0002", ADD)).fingerprint
    assert before != after
    assert write(tmp_path).fingerprint == after


@pytest.mark.parametrize("chain", [(RENAME, CAST, ADD), (CAST, RENAME), (ADD,), (CAST, DROP, ADD), (RENAME, VALUES)])
def test_the_place_is_among_those_that_are_found(chain: tuple[dict[str, Any], ...]) -> None:
    contents = [revision(f"{number:04}", each) for number, each in enumerate(chain, 1)]
    for name, candidates in zip([BASE, *(each["revision"] for each in contents)], positions(*contents), strict=True):
        assert name in candidates


def test_the_place_is_found_by_the_serializers() -> None:
    chain = (revision("1", RENAME), revision("2", CAST), revision("3", ADD))
    assert positions(*chain) == [("base",), ("1",), ("2",), ("3",)]


def test_a_cast_that_could_be_applied_again_is_known_to_be_applied() -> None:
    assert positions(revision("1", CAST)) == [("base",), ("1",)]


def test_a_revision_without_a_way_back_is_known_to_be_applied_when_it_no_longer_fits() -> None:
    assert positions(revision("1", DROP), revision("2", CAST)) == [("base",), ("1",), ("2",)]


def test_a_filter_without_a_way_back_hides_nothing_of_what_was_before() -> None:
    keep = {"upgrade": [{"filter": {"keep": "true", "reason": "none"}}], "downgrade": {"impossible": "gone"}}
    assert positions(revision("1", RENAME), revision("2", keep)) == [("base",), ("1", "2"), ("1", "2")]


def test_what_happened_to_one_state_tells_in_spite_of_another_without_a_way_back() -> None:
    gone = {"operator": "orders", "state": "other", "upgrade": [{"convert": {"to": "Long"}}]}
    chain = parsed(
        revision("1", RENAME), {"revision": "2", **gone, "downgrade": {"impossible": "converted"}}, revision("3", CAST)
    )
    start = schemas()
    other = StateShape(keyed_state("other", "VALUE", STRING, VOID_NAMESPACE), STRING)
    start = Schemas({"id": {**start.operators["id"], "other": other}}, start.find)
    found = [start]
    for each in chain:
        found.append(apply_migration(found[-1], each, Direction.UPGRADE)[0])
    assert [find_position(chain, each, BASE).candidates for each in found] == [("base",), ("1",), ("2",), ("3",)]


def test_a_revision_of_values_alone_cannot_be_told() -> None:
    chain = parsed(revision("1", RENAME), revision("2", VALUES), revision("3", ADD))
    after = apply_migration(schemas(), chain[0], Direction.UPGRADE)[0]
    position = find_position(chain, after, BASE)
    assert (position.revision, position.candidates) == (None, ("1", "2"))
    assert position.reasons["2"] == "2 leaves no trace in the serializers of this snapshot"
    with pytest.raises(MigrationError, match=r"may be at 1 or 2 .*Give the revision of the snapshot with --from"):
        position.require()


def test_states_of_another_job_are_at_no_revision() -> None:
    chain = parsed(revision("1", RENAME))
    position = find_position(chain, schemas(pojo("shop.Order", {"amount": LONG})), BASE)
    assert (position.revision, position.candidates) == (None, ())
    assert position.reasons == {
        "base": "1 cannot be applied: there is no field customer (orders / order)",
        "1": "1 cannot be reverted: there is no field buyer (orders / order)",
    }


def test_an_operator_that_is_not_there_is_told() -> None:
    chain = parsed(revision("1", RENAME) | {"operator": "carts"})
    assert "no operator carts" in find_position(chain, schemas(), BASE).explain()


def test_a_rename_back_and_forth_is_ambiguous_at_both_ends() -> None:
    undo = {"upgrade": RENAME["downgrade"], "downgrade": RENAME["upgrade"]}
    assert positions(revision("1", RENAME), revision("2", undo)) == [("base", "2"), ("1",), ("base", "2")]


def test_the_savepoint_of_the_example_is_at_base() -> None:
    directory = RevisionDirectory(ORDERS / "migrations")
    position = directory.current(orders().open())
    assert position.revision == BASE
    assert position.reasons == {"0001": position.reasons["0001"]}
    assert "cannot be reverted" in position.reasons["0001"]


def test_a_copy_of_a_directory_has_the_same_fingerprint(tmp_path: Path) -> None:
    shutil.copytree(ORDERS / "migrations", tmp_path / "copy")
    assert RevisionDirectory(tmp_path / "copy").fingerprint == RevisionDirectory(ORDERS / "migrations").fingerprint
