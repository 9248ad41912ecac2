from __future__ import annotations

import shutil
import subprocess
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.operations.check.check import CheckVerdict, check_migration
from state_pipelines.operations.migration import Rename, load_migration
from state_pipelines.operations.migration.steps import Convert
from state_pipelines.serializers.text import parse
from tests.flink.harness import ORDERS
from tests.snapshot.savepoints import orders, types

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

UIDS = [part for uid in ("orders", "pricing", "order-counter") for part in ("--uid", uid)]


def drop_operator(snapshot: Path, uid: str) -> None:
    file = snapshot / "_metadata"
    metadata = read_metadata(file.read_bytes(), str(file))
    kept = tuple(each for each in metadata.operator_states if each.uid != uid)
    file.write_bytes(write_metadata(replace(metadata, operator_states=kept)))


def test_state_that_restores(call: Callable[..., Called], savepoint: Path) -> None:
    called = call("check", savepoint, savepoint)
    assert called.code == 0
    assert called.out.startswith("fully compatible: Flink 2.2, any backend")


def test_json_holds_the_verdict(call: Callable[..., Called], savepoint: Path) -> None:
    report = call("check", savepoint, savepoint, "--json", "--backend", "rocksdb").json
    assert (report["verdict"], report["ok"], report["backend"], report["loses_state"]) == (
        "fully compatible",
        True,
        "rocksdb",
        False,
    )


def test_a_snapshot_that_the_target_cannot_read(call: Callable[..., Called], savepoint: Path) -> None:
    called = call("check", savepoint, savepoint, "--target", "1.20")
    assert called.code == 1
    assert called.out.startswith("incompatible")
    assert "Unrecognized checkpoint version number: 6" in called.out


def test_an_operator_that_the_new_job_does_not_have(call: Callable[..., Called], savepoint: Path, broken: Path) -> None:
    drop_operator(broken, "pricing")
    called = call("check", savepoint, broken)
    assert called.code == 1
    assert called.out.startswith("incompatible")


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--strict",), 1)])
def test_non_restored_state_may_be_allowed(
    call: Callable[..., Called], savepoint: Path, broken: Path, options: tuple[str, ...], code: int
) -> None:
    drop_operator(broken, "pricing")
    called = call("check", savepoint, broken, "--allow-non-restored-state", *options)
    assert called.code == code
    assert called.out.startswith("partially compatible (state will be dropped or starts empty): Flink 2.2")
    assert called.out.endswith("state would be lost: pricing\n")


def test_an_operator_that_is_new(call: Callable[..., Called], savepoint: Path, broken: Path) -> None:
    drop_operator(broken, "pricing")
    called = call("check", broken, savepoint)
    assert called.code == 0
    assert called.out.startswith("partially compatible")


def test_other_releases_may_be_compared(call: Callable[..., Called], savepoint: Path) -> None:
    assert call("check", orders("1.20").path, savepoint, *UIDS).code == 0


@pytest.mark.parametrize(
    ("age", "option", "code"), [("int", "--scan", 1), ("int", "--no-scan", 3), ("Integer", "--scan", 3)]
)
def test_a_field_that_became_primitive_and_nulls_in_the_data(
    call: Callable[..., Called], tmp_path: Path, age: str, option: str, code: int
) -> None:
    person = tmp_path / "person.yaml"
    person.write_text(f"""types.Person: [name: String, age: {age}, id: long, active: boolean, home: types.Place,
        color: types.Color, born: Instant, balance: BigDecimal, tags: 'String[]']""")
    called = call("check", types("2.2", "heap").path, "--job-classes", person, option)
    assert called.code == code
    assert ("the data hold nulls in the field age of types.Person" in called.out) == (code == 1)


def test_an_empty_directory_says_nothing_about_the_state(
    call: Callable[..., Called], savepoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "classes").mkdir()
    called = call("check", savepoint, "--job-classes", tmp_path / "classes")
    assert called.code == 3
    assert "assumed unchanged: orders/order" in called.out
    assert "and assumed unchanged: com.acme.orders.Address, com.acme.orders.Order" in " ".join(called.out.split())


def test_markdown_goes_to_a_file(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.md"
    call("check", savepoint, savepoint, "--markdown", file)
    assert file.read_text(encoding="utf-8").startswith("## State compatibility: fully compatible")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "next"), "error: 'next' is not a release of Flink"),
        (("--backend", "redis"), "Invalid value for '--backend'"),
        (("--markdown", "missing/report.md"), "error: the report cannot be written"),
    ],
)
def test_wrong_use(call: Callable[..., Called], savepoint: Path, arguments: tuple[str, ...], message: str) -> None:
    called = call("check", savepoint, savepoint, *arguments)
    assert (called.code, called.out) == (2, "")
    assert message in called.err


# Other descriptions of the new job

ORDER = """
class com.acme.orders.Order: {id: String, customerId: String, amount: double, quantity: int, priority: int,
  updatedAt: Instant, address: com.acme.orders.Address, status: com.acme.orders.OrderStatus}
"""


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    file = tmp_path / "classes.yaml"
    file.write_text(ORDER, encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second release of the orders example, compiled without Flink."""
    if shutil.which("javac") is None:
        pytest.skip("needs a JDK: there is no javac on the PATH")
    target = tmp_path_factory.mktemp("v2")
    java = ORDERS / "java"
    names = ("OrderEvent", "Address", "OrderStatus")
    sources = [java / "v2/com/acme/orders/Order.java", *(java / f"job/com/acme/orders/{each}.java" for each in names)]
    subprocess.run(["javac", "-d", target, *sources], check=True)
    return target


def summarize(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            each["operator"],
            each["state"],
            each["place"],
            each["outcome"],
            finding["path"],
            finding["old"],
            finding["new"],
        )
        for each in report["checks"]
        for finding in each["findings"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("release", ["1.20", "2.2"])
def test_class_files_say_what_the_migration_says(
    call: Callable[..., Called], compiled: Path, tmp_path: Path, release: str
) -> None:
    snapshot = orders(release)
    jar = tmp_path / "job.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for file in compiled.rglob("*.class"):
            archive.write(file, file.relative_to(compiled))
    migration = load_migration(ORDERS / "migrations" / "0001_amount_as_double.yaml")
    expected = check_migration(snapshot.open(), migration, target=release).unmigrated.to_json()
    for options in (("--class-path", compiled), ("--jar", jar)):
        called = call("check", snapshot.path, *UIDS, *options, "--target-release", release, "--json")
        assert called.code == 1
        assert summarize(called.json) == summarize(expected)


def test_declared_classes_and_the_draft(call: Callable[..., Called], savepoint: Path, classes: Path) -> None:
    drafts = classes.parent / "drafts"
    called = call("check", savepoint, "--job-classes", classes, "--draft", drafts)
    assert called.code == 1
    assert called.out.startswith("incompatible")
    (file,) = drafts.iterdir()
    assert called.out.endswith(f"drafted: {file}\n")
    migration = load_migration(file)
    assert migration.change.upgrade[0] == Rename((("customer", "customerId"),))
    report = check_migration(orders().open(), migration)
    assert report.migrated.verdict is CheckVerdict.FULLY_COMPATIBLE


def test_a_guessed_rename_is_told(call: Callable[..., Called], savepoint: Path, classes: Path) -> None:
    drafts = classes.parent / "drafts"
    called = call("check", savepoint, "--job-classes", classes, "--draft", drafts, "--json")
    (remark,) = called.json["remarks"]
    assert "customerId is taken to be `customer` under another name; if it is another field, write" in remark
    assert f"# {remark}\n" in (drafts / "0001_draft.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_draft_is_not_overwritten(call: Callable[..., Called], savepoint: Path, classes: Path) -> None:
    drafts = classes.parent / "drafts"
    call("check", savepoint, "--job-classes", classes, "--draft", drafts)
    called = call("check", savepoint, "--job-classes", classes, "--draft", drafts)
    assert called.code == 2
    assert "the directory of the draft is not empty" in called.err


def test_a_type_on_the_command_line(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    drafts = tmp_path / "drafts"
    called = call("check", savepoint, "--type", "orders/quantities=int", "--draft", drafts)
    assert called.code == 1
    (change,) = load_migration(drafts / "0001_draft.yaml").changes
    assert (change.state, change.upgrade) == ("quantities", (Convert(parse("Int")),))


def test_what_cannot_be_drafted_is_told(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "operators: {pricing: {states: {prices: {kind: BROADCAST, key: Long, value: Double}}}}", encoding="utf-8"
    )
    called = call("check", savepoint, file, "--draft", tmp_path / "drafts")
    assert called.code == 1
    assert "note: pricing / prices: no step is known: the user keys were String and are Long\n" in called.out
    assert not (tmp_path / "drafts").exists()


def test_operator_state_is_drafted(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("operators: {order-counter: {states: {counts: {kind: UNION, element: Long}}}}", encoding="utf-8")
    drafts = tmp_path / "drafts"
    assert call("check", savepoint, file, "--draft", drafts).code == 1
    (change,) = load_migration(drafts / "0001_draft.yaml").changes
    assert (change.state, change.upgrade) == ("counts", (Convert(parse("Long"), "TODO", ("f0", "f1")),))


def test_a_description_in_a_file(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("operators: {orders: {states: {history: String, fresh: Long}}}", encoding="utf-8")
    called = call("check", savepoint, file, "--markdown", "-")
    assert called.code == 0
    assert called.out.startswith("## State compatibility: partially compatible (state will be dropped or starts empty)")
    assert call("check", savepoint, file, "--strict").code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "there is no new job to check against"),
        (("--type", "orders/order"), "is not of the form"),
        (("--type", "orders/late=long"), "has no state 'late'"),
        (("--jar", "missing.jar"), "the file does not exist"),
        (("--avro", "orders/order=missing.avsc"), "the schema cannot be read"),
        (("--type", "orders/order=long", "--json", "--markdown", "-"), "both want the standard output"),
    ],
)
def test_wrong_use_of_descriptions(
    call: Callable[..., Called], savepoint: Path, arguments: tuple[str, ...], message: str
) -> None:
    called = call("check", savepoint, *arguments)
    assert (called.code, called.out) == (2, "")
    assert message in called.err


def test_a_snapshot_needs_no_types(call: Callable[..., Called], savepoint: Path) -> None:
    assert call("check", savepoint, savepoint, "--type", "orders/order=long").code == 2


GUEST = "types.Guest extends types.Person: [visits: int]"


@pytest.mark.parametrize(
    ("old", "new", "options", "code", "text"),
    [
        ("", "", (), 0, ""),
        ("", GUEST, (), 3, "an object is of class types.Guest"),
        ("", GUEST, ("--no-scan",), 3, "the data may hold subclasses of types.Person"),
        (GUEST, "{}", (), 3, "those of the new job are not known"),
        (GUEST, GUEST, (), 0, ""),
        (GUEST, GUEST.replace("int", "long"), (), 1, "the fields differ (visits has another type)"),
    ],
)
def test_a_subclass_that_the_snapshot_does_not_list(
    call: Callable[..., Called], tmp_path: Path, old: str, new: str, options: tuple[str, ...], code: int, text: str
) -> None:
    declared = []
    for flag, content in (("--classes", old), ("--job-classes", new)):
        file = tmp_path / f"{flag.strip('-')}.yaml"
        file.write_text(content, encoding="utf-8")
        declared += [flag, file] if content else []
    heap = types("2.2", "heap").path
    called = call("check", heap, heap, *declared, *options)
    assert called.code == code
    assert text in " ".join(called.out.split())


def test_what_is_said_of_several_states_is_said_once(call: Callable[..., Called]) -> None:
    old, new = types("2.2", "heap").path, types("2.2", "heap-snappy").path
    called = call("check", old, new)
    assert called.out.count("the max parallelism was 128 and the job sets it to 1024") == 1
    assert called.out.count("Set the max parallelism to 128") == 1


SHOP = ORDERS.parent / "upgrade" / "savepoint"


@pytest.mark.parametrize(
    ("target", "options", "code", "text"),
    [
        ("1.20", (), 0, "fully compatible"),
        ("2.3", (), 1, "Make com.acme.shop.Visit a POJO in the new job"),
        ("2.3", ("--draft",), 1, "nothing was drafted: see the notes"),
    ],
)
def test_the_same_job_on_another_flink(
    call: Callable[..., Called], tmp_path: Path, target: str, options: tuple[str, ...], code: int, text: str
) -> None:
    (path,) = SHOP.iterdir()
    values = (tmp_path / "drafts",) if options else ()
    called = call("check", path, "--uid", "customers", "--uid", "views", "--target", target, *options, *values)
    assert called.code == code
    assert text in " ".join(called.out.split())


def test_without_a_release_there_is_no_new_job(call: Callable[..., Called]) -> None:
    (path,) = SHOP.iterdir()
    called = call("check", path)
    assert called.code == 2
    assert "--target-release for the same job on another Flink" in " ".join(called.err.split())


CUSTOMER = "com.acme.shop.Customer: [name: String, tags: List<String>, articles: 'Map<String, Long>']"
VISIT = "final com.acme.shop.Visit: [page: String, millis: long, articles: List<String>]"


@pytest.mark.parametrize(
    ("old", "new", "code", "text"),
    [
        (VISIT, VISIT, 0, ""),
        (VISIT, VISIT.replace("long", "Long"), 1, "the fields differ (millis has another type)"),
        (VISIT, VISIT.replace("page", "url"), 1, "(page is gone, url is new)"),
        ("", VISIT, 3, "Flink does not verify the fields of com.acme.shop.Visit, and those of the snapshot"),
    ],
)
def test_fields_that_kryo_wrote(
    call: Callable[..., Called], tmp_path: Path, old: str, new: str, code: int, text: str
) -> None:
    (tmp_path / "old.yaml").write_text(f"{CUSTOMER}\n{old}", encoding="utf-8")
    (tmp_path / "new.yaml").write_text(f"{CUSTOMER}\n{new}", encoding="utf-8")
    (path,) = SHOP.iterdir()
    declared = ("--classes", tmp_path / "old.yaml", "--job-classes", tmp_path / "new.yaml")
    called = call("check", path, path, "--target", "1.20", *declared)
    assert called.code == code
    assert text in " ".join(called.out.split())


@pytest.mark.slow
def test_operators_under_other_uids_are_found_and_renamed(
    call: Callable[..., Called], savepoint: Path, tmp_path: Path
) -> None:
    new, request, renamed = tmp_path / "new-job", tmp_path / "renames.yaml", tmp_path / "renamed"
    call("rescale", savepoint, "--out", new, "--rename", "orders=orders-v2", "--rename", "order-counter=counter")
    found = call("check", savepoint, new, "--rename-request", request)
    assert found.code == 1
    assert "orders is probably orders-v2 now: both have the states " in found.out
    assert "order-counter is probably counter now: " in found.out
    assert f"request for rescale: {request}" in found.out
    assert call("rescale", savepoint, "--request", request, "--out", renamed).code == 0
    checked = call("check", renamed, new, "--json")
    assert (checked.code, checked.json["verdict"], checked.json["matches"]) == (0, "fully compatible", [])


def test_a_rename_request_is_not_overwritten(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    (tmp_path / "renames.yaml").write_text("mine")
    assert call("check", savepoint, savepoint, "--rename-request", tmp_path / "renames.yaml").code == 2
    assert (tmp_path / "renames.yaml").read_text() == "mine"
