from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.datastream import (
    CheckpointedFunction,
    KeyedProcessFunction,
    KeyedProcessOperator,
    ListStateDescriptor,
    ManualClock,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RestoredState,
    Row,
    StateTtlConfig,
    TaskInfo,
    Time,
    TimeDomain,
    Types,
    ValueStateDescriptor,
    write_savepoint,
)
from state_pipelines.errors import TargetExistsError, UsageError
from state_pipelines.keyed.key_groups import compute_operator_index
from state_pipelines.operations.dump import dump
from state_pipelines.snapshot import open_snapshot
from tests.datastream.test_states import Add
from tests.flink.harness import diff_entries
from tests.snapshots import select

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state_pipelines.datastream import FunctionInitializationContext, FunctionSnapshotContext, RuntimeContext

KEYS = [f"user-{number}" for number in range(30)]
VISIT = Types.ROW_NAMED(["page", "at"], [Types.STRING(), Types.LONG()])


class Visits(KeyedProcessFunction, CheckpointedFunction):
    """Uses state of all kinds, timers and operator state."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.log = context.get_operator_state_store().get_list_state(ListStateDescriptor("log", Types.STRING()))
        self.rules = context.get_operator_state_store().get_broadcast_state(
            MapStateDescriptor("rules", Types.STRING(), Types.INT())
        )
        self.is_restored = context.is_restored()

    def open(self, runtime_context: RuntimeContext) -> None:
        expiring = ValueStateDescriptor("recent", VISIT)
        expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(10)).build())
        self.recent = runtime_context.get_state(expiring)
        self.count = runtime_context.get_reducing_state(ReducingStateDescriptor("count", Add(), Types.LONG()))
        self.pages = runtime_context.get_list_state(ListStateDescriptor("pages", VISIT))
        self.last = runtime_context.get_map_state(MapStateDescriptor("last", Types.STRING(), Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        user, page, at = value
        self.recent.update(Row(page, at))
        self.count.add(1)
        self.pages.add(Row(page, at))
        self.last[page] = at
        self.rules["limit"] = 7
        self.log.add(user)
        ctx.timer_service().register_event_time_timer(at + 1000)
        ctx.timer_service().register_processing_time_timer(at + 2000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, self.count.get(), sorted(self.last), len(list(self.pages))

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        return None


def start(parallelism: int, restored: RestoredState | None = None) -> list[KeyedProcessOperator]:
    operators = [
        KeyedProcessOperator(
            Visits(),
            lambda value: value[0],
            Types.STRING(),
            task=TaskInfo(index=index, parallelism=parallelism),
            clock=ManualClock(5_000),
        )
        for index in range(parallelism)
    ]
    for operator in operators:
        operator.open(restored)
    return operators


def route(operators: list[KeyedProcessOperator], key: str) -> KeyedProcessOperator:
    context = operators[0].backend.key_context
    group = context.find_key_group(key, context.encode(key))
    return operators[compute_operator_index(group, len(operators), 128)]


def visit(operators: list[KeyedProcessOperator], start: int) -> None:
    for number, user in enumerate(KEYS):
        for page in ("home", "cart")[: 1 + number % 2]:
            route(operators, user).process((user, page, start + number), start + number)


def finish(operators: list[KeyedProcessOperator]) -> list[Any]:
    """What all timers emit."""
    return sorted(value for each in operators for value in each.advance_watermark(1 << 60))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("format", ["canonical", "heap", "rocksdb"])
@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_a_function_goes_on_from_its_savepoint(tmp_path: Path, format: str, parallelism: int, compressed: bool) -> None:
    undisturbed = start(1)
    visit(undisturbed, 1000)
    visit(undisturbed, 2000)

    before = start(2)
    visit(before, 1000)
    path = str(tmp_path / "savepoint")
    savepoint = write_savepoint(path, {"visits": before}, checkpoint_id=7, format=format, compressed=compressed)
    restored = RestoredState.of(savepoint.operator("visits"))
    assert restored.checkpoint_id == 7
    after = start(parallelism, restored)
    assert all(each.function.is_restored for each in after)  # type: ignore[attr-defined]
    logged = [user for each in after for user in each.function.log]  # type: ignore[attr-defined]
    assert sorted(logged) == sorted(2 * KEYS[1::2] + KEYS[::2])
    assert all(dict(each.function.rules.items()) == {"limit": 7} for each in after)  # type: ignore[attr-defined]
    visit(after, 2000)
    assert sum(each.count_timers(TimeDomain.PROCESSING_TIME) for each in after) == 2 * len(KEYS)
    assert finish(after) == finish(undisturbed)


def test_a_savepoint_is_read_like_those_of_flink(tmp_path: Path) -> None:
    operators = start(2)
    visit(operators, 1000)
    write_savepoint(str(tmp_path / "savepoint"), {"visits": operators})
    snapshot = open_snapshot(str(tmp_path / "savepoint"), uids=["visits"])
    table = snapshot.operator("visits").state("count").to_arrow()
    assert dict(zip(table["state_key"].to_pylist(), table["value"].to_pylist(), strict=True)) == {
        user: 1 + number % 2 for number, user in enumerate(KEYS)
    }
    lines = list(dump(snapshot))
    assert {line["kind"] for line in lines} == {"keyed", "timer", "operator", "broadcast"}
    assert sum(line["kind"] == "timer" for line in lines) == 2 * len(KEYS)


def test_a_savepoint_has_no_values_that_ttl_leaves_out(tmp_path: Path) -> None:
    for name, clean in (("all", False), ("clean", True)):
        builder = StateTtlConfig.new_builder(Time.seconds(1)).disable_cleanup_in_background()
        descriptor = ValueStateDescriptor("value", Types.LONG())
        descriptor.enable_time_to_live((builder.cleanup_full_snapshot() if clean else builder).build())

        class Keep(KeyedProcessFunction):
            def open(self, runtime_context: RuntimeContext) -> None:
                self.state = runtime_context.get_state(descriptor)  # noqa: B023

            def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
                self.state.update(value[1])

        clock = ManualClock(0)
        with KeyedProcessOperator(Keep(), lambda value: value[0], Types.STRING(), clock=clock) as operator:
            operator.process(("old", 1))
            clock.millis = 1000
            operator.process(("new", 2))
            savepoint = write_savepoint(str(tmp_path / name), {"keep": [operator]})
        keys = savepoint.operator("keep").state("value").to_arrow()["state_key"].to_pylist()
        assert sorted(keys) == (["new"] if clean else ["new", "old"])


def test_a_savepoint_needs_all_subtasks(tmp_path: Path) -> None:
    operators = start(2)
    for wrong in (operators[:1], operators[::-1], []):
        with pytest.raises(UsageError, match="a savepoint needs"):
            write_savepoint(str(tmp_path / "savepoint"), {"visits": wrong})
    with pytest.raises(UsageError, match="not a format"):
        write_savepoint(str(tmp_path / "savepoint"), {"visits": operators}, format="keep")
    assert not (tmp_path / "savepoint").exists()


def test_a_savepoint_does_not_overwrite_another(tmp_path: Path) -> None:
    operators = start(1)
    write_savepoint(str(tmp_path / "savepoint"), {"visits": operators})
    with pytest.raises(TargetExistsError):
        write_savepoint(str(tmp_path / "savepoint"), {"visits": operators})


def test_other_operators_are_copied_from_a_base(tmp_path: Path) -> None:
    (case,) = select("2.2", "heap-checkpoint")
    base = case.open_told()
    operators = start(2)
    visit(operators, 1000)
    written = write_savepoint(str(tmp_path / "savepoint"), {"visits": operators}, base=base)
    assert written.checkpoint_id == base.checkpoint_id + 1
    lines = list(dump(written))
    assert {"numbers", "few-states", "visits"} <= {line["op"] for line in lines}
    difference = diff_entries(case.entries(), [line for line in lines if line["op"] != "visits"])
    assert not difference, difference

    replaced = write_savepoint(str(tmp_path / "replaced"), {"visits": start(1)}, base=written)
    assert replaced.checkpoint_id == base.checkpoint_id + 2
    assert not [line for line in dump(replaced) if line["op"] == "visits"]
