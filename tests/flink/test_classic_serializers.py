"""Serializers of users: a function here goes on from real Flink's state and Flink from its, with snapshots of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.datastream import (
    KeyedProcessFunction,
    KeyedProcessOperator,
    ListStateDescriptor,
    RestoredState,
    TaskInfo,
    Types,
    ValueStateDescriptor,
    write_savepoint,
)
from state_pipelines.keyed.key_groups import compute_operator_index
from state_pipelines.operations.dump import dump
from state_pipelines.serializers.build import basic, generic_array
from state_pipelines.snapshot import open_snapshot
from tests.flink import harness, jobs
from tests.flink.classic_serializers import LABELLED_MAP, NOTE, LabelledMap, Note

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state_pipelines.datastream import RuntimeContext

pytestmark = pytest.mark.flink

UID = "classics"
NUMBERS = range(12)
TEXT = Note(snapshot_class=NOTE)
TOTALS = LabelledMap(snapshot_class=LABELLED_MAP, outer_version=2, label="in cents", key=TEXT, value=basic("Long"))


def make_values(n: int) -> tuple[str, list[str], list[tuple[str, int | None]], list[str | None]]:
    """State that the Java function keeps for a number."""
    return (
        f"note {n} €",
        [f"first {n}", ""],
        [(f"total {i}", None if (n, i) == (5, 1) else 100 * n + i) for i in range(n % 3)],
        [None if (n, i) == (8, 0) else f"text {n}/{i}" for i in range(n % 3)],
    )


class Classics(KeyedProcessFunction):
    """Emits what there is of a number, and keeps what the function in Java does."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.note = runtime_context.get_state(ValueStateDescriptor("note", Types.of(TEXT)))
        self.notes = runtime_context.get_list_state(ListStateDescriptor("notes", Types.of(TEXT)))
        self.totals = runtime_context.get_state(ValueStateDescriptor("totals", Types.of(TOTALS)))
        array = Types.of(generic_array("java.lang.String", TEXT))
        self.texts = runtime_context.get_state(ValueStateDescriptor("texts", array))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        totals = self.totals.value()
        yield self.note.value(), [*self.notes.get()], totals and sorted(totals), self.texts.value()
        note, notes, totals, texts = make_values(value)
        self.note.update(note)
        self.notes.update(notes)
        self.totals.update(totals)
        self.texts.update(texts)


def run(restored: RestoredState | None) -> tuple[list[KeyedProcessOperator], list[Any]]:
    operators = [
        KeyedProcessOperator(
            Classics(),
            lambda n: f"key-{n}",
            Types.STRING(),
            task=TaskInfo(index=index, parallelism=2, max_parallelism=128),
        )
        for index in range(2)
    ]
    emitted: list[Any] = []
    for operator in operators:
        operator.open(restored)
    context = operators[0].backend.key_context
    for n in NUMBERS:
        group = context.find_key_group(f"key-{n}", context.encode(f"key-{n}"))
        emitted += operators[compute_operator_index(group, 2, 128)].process(n)
    return operators, emitted


@pytest.mark.parametrize(("format", "backend"), [("canonical", "hashmap"), ("rocksdb", "rocksdb")])
def test_serializers_of_users_go_both_ways(version: str, tmp_path: Path, format: str, backend: str) -> None:
    savepoint, entries = harness.make_snapshot(version, jobs.classic_job(), tmp_path / "flink", backend=backend)
    flink = open_snapshot(str(savepoint), uids=[UID, "numbers"])
    operators, found = run(RestoredState.of(flink.operator(UID)))
    assert found == [make_values(n) for n in NUMBERS]
    write_savepoint(str(tmp_path / "restored"), {UID: operators}, base=flink, format=format)

    fresh, found = run(None)
    assert found == [(None, [], None, None)] * len(NUMBERS)
    own = write_savepoint(str(tmp_path / "own"), {UID: fresh}, base=flink, format=format)
    assert not harness.diff_entries(entries, list(dump(own)))

    for name, parallelism in (("restored", 3), ("own", 2)):
        result = harness.restore(version, tmp_path / name, jobs.classic_job(), backend=backend, parallelism=parallelism)
        assert result.ok, result.error
        difference = harness.diff_entries(entries, result.entries)
        assert not difference, str(difference)
