"""Values of Kryo go to Flink and back: a function adds some, Flink takes a savepoint, and the function adds more.

Flink 1.20 writes them with Kryo 2, Flink 2.x with Kryo 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import state_pipelines as sp
from state_pipelines.cli import main
from state_pipelines.codecs.java import CollectionKind, CollectionValue, ObjectValue
from state_pipelines.datastream import (
    KeyedProcessFunction,
    KeyedProcessOperator,
    ListStateDescriptor,
    RestoredState,
    TaskInfo,
    Types,
    write_savepoint,
)
from state_pipelines.javaclasses import load_field_lists
from state_pipelines.operations.dump import dump
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from state_pipelines.datastream import RuntimeContext
    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.flink

UID, KEY = "customers", "customer-14"
JOB = jobs.shop_job("v1")
FORMATS = {"hashmap": "heap", "rocksdb": "rocksdb"}
VISIT = "final com.acme.shop.Visit: [page: String, millis: long, articles: ArrayList<String>]"


class AddVisit(KeyedProcessFunction):
    """Adds a visit of the page that the element names."""

    def __init__(self, snapshot: Snapshot) -> None:
        element = snapshot.operator(UID).state("visits").serializer.nested[0]
        self.descriptor = ListStateDescriptor("visits", element)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.visits = runtime_context.get_list_state(self.descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        articles = CollectionValue("java.util.ArrayList", CollectionKind.LIST, (f"article of {value}",))
        self.visits.add(ObjectValue("com.acme.shop.Visit", (("articles", articles), ("millis", 5), ("page", value))))


def open_shop(path: Path) -> Snapshot:
    classes = load_field_lists([harness.ROOT / "examples" / "upgrade" / "classes.yaml"])
    return sp.open_snapshot(str(path), classes=classes, uids=[UID, "views"])


def add_visit(snapshot: Snapshot, page: str, target: Path, backend: str) -> list[harness.Entry]:
    """Run the function in two subtasks over one element; return the entries of the new savepoint."""
    operators = []
    for index in range(2):
        info = TaskInfo(index=index, parallelism=2, max_parallelism=128)
        operator = KeyedProcessOperator(AddVisit(snapshot), lambda _: KEY, Types.STRING(), task=info)
        operator.open(RestoredState.of(snapshot.operator(UID)))
        keys = operator.backend.key_context
        if keys.find_key_group(KEY, keys.encode(KEY)) in operator.backend.key_groups:
            operator.process(page)
        operators.append(operator)
    write_savepoint(str(target), {UID: operators}, base=snapshot, format=FORMATS[backend])
    return list(dump(open_shop(target)))


def list_visits(entries: Iterable[harness.Entry], key: str) -> list[Any]:
    return [one for each in entries if each.get("state") == "visits" and each["key"] == key for one in each["value"]]


def require_equal(expected: Iterable[harness.Entry], found: Iterable[harness.Entry]) -> None:
    wanted, seen = ([each for each in entries if each["op"] == UID] for entries in (expected, found))
    difference = harness.diff_entries(wanted, seen)
    assert not difference, str(difference)


def test_visits_go_to_flink_and_back(version: str, backend: str, tmp_path: Path) -> None:
    old, _ = harness.make_snapshot(version, JOB, tmp_path / "old", backend=backend, kind="native")
    snapshot = open_shop(old)
    assert snapshot.kryo_version == (2 if version.startswith("1.") else 5)
    changed = add_visit(snapshot, "first", tmp_path / "changed", backend)
    assert [each["page"] for each in list_visits(changed, KEY)] == ["page-14", "page-34", "page-54", "first"]

    path, entries = harness.make_snapshot(
        version, JOB, tmp_path / "new", backend=backend, kind="native", start=tmp_path / "changed", records=0
    )
    require_equal(changed, entries)
    again = open_shop(path)
    require_equal(entries, dump(again))

    more = add_visit(again, "second", tmp_path / "more", backend)
    assert [each["page"] for each in list_visits(more, KEY)][-2:] == ["first", "second"]
    result = harness.restore(version, tmp_path / "more", JOB, backend=backend, parallelism=3)
    assert result.ok, result.error
    require_equal(more, result.entries)


def test_flink_starts_from_visits_that_the_command_has_written(version: str, tmp_path: Path) -> None:
    visits = [{"page": "start", "millis": 7, "articles": ["a", "b"]}, {"page": "cart", "millis": 8, "articles": []}]
    rows = pa.table({"customer": ["customer-14", "customer-99"], "visits": [visits, visits[:1]]})
    pq.write_table(rows, tmp_path / "visits.parquet")
    (tmp_path / "classes.yaml").write_text(VISIT)
    (tmp_path / "visits.yaml").write_text(f"""
operators:
  - uid: {UID}
    key: String
    parallelism: 2
    states:
      - name: visits
        kind: LIST
        rows: visits.parquet
        type: List<Kryo<com.acme.shop.Visit>>
        columns: {{state_key: customer, value: visits}}
classes: [classes.yaml]
""")
    target = tmp_path / "start"
    words = ["bootstrap", str(tmp_path / "visits.yaml"), "--out", str(target), "--flink-version", version]
    called = CliRunner().invoke(main, words)
    assert called.exit_code == 0, called.output
    _, entries = harness.make_snapshot(version, JOB, tmp_path / "new", start=target, records=60)
    for key, pages in (("customer-14", ["start", "cart", "page-14", "page-34", "page-54"]), ("customer-99", ["start"])):
        assert [each["page"] for each in list_visits(entries, key)] == pages
    assert list_visits(entries, "customer-99") == [{"@class": "com.acme.shop.Visit", **visits[0]}]
