"""Kryo state of Flink 1.20 becomes Avro state: every record, and the bytes that name the serializer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.kryo import load_classes
from state_pipelines.operations.check.check import check_jobs
from state_pipelines.operations.dump import dump
from state_pipelines.operations.jobs.job_state import describe_job, read_schema, replace_avro
from state_pipelines.operations.migration import load_migration
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.registry import read_snapshot, write_snapshot
from state_pipelines.serializers.tree import Avro, ListOf
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import migrate
from tests.flink.harness import read_entries
from tests.snapshots import CLASSES

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark import MigrationResult

pytestmark = pytest.mark.spark

STATES = ("v_generic", "l_generic")
SCHEMA = {
    "type": "record",
    "name": "Thing",
    "namespace": "oracle.avro",
    "fields": [
        {"name": "a", "type": "int"},
        {"name": "b", "type": "string"},
        {"name": "list", "type": {"type": "array", "items": "string"}},
        {"name": "map", "type": {"type": "map", "values": "int"}},
        {"name": "nullable", "type": ["null", "long"]},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN", "BLUE"]}},
        {"name": "d", "type": "double"},
        {"name": "longs", "type": {"type": "array", "items": "long"}},
    ],
}
REVISION = """
revision: "0001"
changes:
""" + "".join(
    f"""
  - operator: op-kryo
    state: {state}
    upgrade: [convert: {{avro: schema.avsc}}]
    downgrade: [convert: {{to: "Kryo<oracle.model.GenericThing>"}}]
"""
    for state in STATES
)


@pytest.fixture(scope="module")
def folder(fixtures: Path) -> Path:
    return fixtures / "made" / "1.20.5" / "main-hashmap-canonical"


@pytest.fixture(scope="module")
def old(folder: Path) -> Snapshot:
    (metadata,) = folder.glob("*/_metadata")
    return open_snapshot(str(metadata.parent), uids=["op-kryo"], classes=load_classes(CLASSES))


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("revisions") / "schema.avsc"
    file.write_text(json.dumps(SCHEMA, indent=2), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def migrated(
    spark: SparkSession, old: Snapshot, schema: Path, tmp_path_factory: pytest.TempPathFactory
) -> MigrationResult:
    file = schema.with_name("0001.yaml")
    file.write_text(REVISION, encoding="utf-8")
    return migrate(old, load_migration(file), str(tmp_path_factory.mktemp("new") / "up"))


def plain(value: Any) -> Any:
    """A value of `dump` without what tells how it was serialized."""
    match value:
        case {"@map": entries}:
            return {key: plain(each) for key, each in entries}
        case {"@enum": name}:
            return name
        case dict():
            return {name: plain(each) for name, each in value.items() if not name.startswith("@")}
        case list():
            return [plain(each) for each in value]
    return value


def find_serializer(snapshot: Snapshot, state: str) -> Serializer:
    found = snapshot.operator("op-kryo").state(state).serializer
    return found.element if isinstance(found, ListOf) else found


@pytest.mark.parametrize("state", STATES)
def test_every_record_equals_what_flink_read_out_of_kryo(folder: Path, migrated: MigrationResult, state: str) -> None:
    before = [each for each in read_entries(folder / "expected.jsonl.gz") if each.get("state") == state]
    after = list(dump(open_snapshot(migrated.path, uids=["op-kryo"]), operator="op-kryo", state=state))
    assert before
    assert {str(each["key"]): plain(each["value"]) for each in after} == {
        str(each["key"]): plain(each["value"]) for each in before
    }


def test_the_way_back_to_kryo_gives_the_same_bytes(migrated: MigrationResult) -> None:
    assert migrated.proof is not None
    assert migrated.proof.ok
    assert "round_trip" in [each.name for each in migrated.proof.checks]


@pytest.mark.parametrize("state", STATES)
def test_the_serializer_is_stored_as_flink_stores_it(fixtures: Path, migrated: MigrationResult, state: str) -> None:
    ours = find_serializer(open_snapshot(migrated.path, uids=["op-kryo"]), state)
    assert isinstance(ours, Avro)
    files = sorted((fixtures / "flink" / "serializers" / "flink-avro").glob("generic-*-1.20/serializer-snapshot"))
    (data,) = (each.read_bytes() for each in files)
    theirs = read_snapshot(Reader(data))
    assert isinstance(theirs, Avro)
    assert (ours.snapshot_class, ours.snapshot_version) == (theirs.snapshot_class, theirs.snapshot_version)
    assert ours.runtime_class == theirs.runtime_class
    assert json.loads(ours.schema_json) == SCHEMA
    # The schema is text without blanks, behind its length.
    assert [len(each.schema_json) for each in (ours, theirs)] == [
        len(json.dumps(json.loads(each.schema_json), separators=(",", ":"))) for each in (ours, theirs)
    ]
    assert write(replace(ours, schema_json=theirs.schema_json)) == data


def write(serializer: Serializer) -> bytes:
    writer = Writer()
    write_snapshot(writer, serializer)
    return writer.getvalue()


@pytest.mark.parametrize("target", ["1.20", "2.2"])
def test_a_job_with_the_schema_restores_it(migrated: MigrationResult, schema: Path, target: str) -> None:
    job = describe_job(open_snapshot(migrated.path, uids=["op-kryo"]))
    new = job
    for state in STATES:
        new = replace_avro(new, f"op-kryo/{state}", read_schema(str(schema)))
    report = check_jobs(job, new, target=target)
    assert {each.outcome for each in report.checks if each.state in STATES} == {Outcome.AS_IS}
