from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.datastream import (
    Duration,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.errors import UsageError
from tests.datastream.operators import Script
from tests.datastream.test_states import AGGREGATING, Add, Average

if TYPE_CHECKING:
    from state_pipelines.datastream.functions import StateDescriptor

TTL = 100


def expiring(descriptor: StateDescriptor, **calls: tuple[Any, ...]) -> StateDescriptor:
    """Give a descriptor a TTL of 100 ms; `calls` are methods of the builder and their arguments."""
    builder = StateTtlConfig.new_builder(Time.milliseconds(TTL))
    for name, arguments in calls.items():
        getattr(builder, name)(*arguments)
    descriptor.enable_time_to_live(builder.build())
    return descriptor


def value(**calls: tuple[Any, ...]) -> Script:
    return Script(expiring(ValueStateDescriptor("value", Types.LONG()), **calls))


def elements(**calls: tuple[Any, ...]) -> Script:
    return Script(expiring(ListStateDescriptor("list", Types.LONG()), **calls))


def entries(**calls: tuple[Any, ...]) -> Script:
    return Script(expiring(MapStateDescriptor("map", Types.STRING(), Types.STRING()), **calls))


def stored(script: Script) -> list[Any]:
    """Keys with something stored."""
    descriptor = script.function.descriptors[0]
    return sorted(script.operator.backend.register(descriptor.make_info()).keys())


ONCE = {"return_expired_if_not_cleaned_up": ()}
ON_READ = {"update_ttl_on_read_and_write": ()}
QUIET = {"disable_cleanup_in_background": ()}


def test_a_value_expires_when_its_life_has_ended() -> None:
    script = value()
    script.run(lambda state: state.update(5))
    script.clock.millis += TTL - 1
    assert script.run(lambda state: state.value()) == 5
    script.clock.millis += 1
    assert script.run(lambda state: state.value()) is None
    assert stored(script) == []


def test_a_write_prolongs_the_life_of_a_value() -> None:
    script = value()
    for _ in range(3):
        script.run(lambda state: state.update(5))
        script.clock.millis += TTL - 1
    assert script.run(lambda state: state.value()) == 5


def test_a_read_prolongs_the_life_of_a_value_on_read_and_write() -> None:
    script = value(**ON_READ)
    script.run(lambda state: state.update(5))
    for _ in range(3):
        script.clock.millis += TTL - 1
        assert script.run(lambda state: state.value()) == 5
    script.clock.millis += TTL
    assert script.run(lambda state: state.value()) is None


def test_a_read_does_not_prolong_the_life_of_a_value_on_create_and_write() -> None:
    script = value()
    script.run(lambda state: state.update(5))
    script.clock.millis += TTL - 1
    script.run(lambda state: state.value())
    script.clock.millis += 1
    assert script.run(lambda state: state.value()) is None


def test_an_expired_value_is_returned_once_if_it_is_not_cleaned_up() -> None:
    script = value(**ONCE, **QUIET)
    script.run(lambda state: state.update(5))
    script.clock.millis += TTL
    assert [script.run(lambda state: state.value()) for _ in range(2)] == [5, None]


def test_a_life_up_to_the_end_of_time_does_not_overflow() -> None:
    descriptor = ValueStateDescriptor("value", Types.LONG())
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time((1 << 63) - 1)).build())
    script = Script(descriptor)
    script.run(lambda state: state.update(5))
    script.clock.millis = (1 << 63) - 2
    assert script.run(lambda state: state.value()) == 5


def test_none_removes_a_value_with_ttl() -> None:
    script = value()
    script.run(lambda state: state.update(5))
    script.run(lambda state: state.update(None))
    assert stored(script) == []


def test_every_element_expires_on_its_own() -> None:
    script = elements()
    script.run(lambda state: state.add(1))
    script.clock.millis += 60
    script.run(lambda state: state.add_all([2, 3]))
    script.clock.millis += 40
    assert script.run(lambda state: list(state)) == [2, 3]
    script.clock.millis += 60
    assert script.run(lambda state: list(state)) == []
    assert stored(script) == []


def test_a_read_prolongs_the_life_of_the_elements_that_are_left() -> None:
    script = elements(**ON_READ)
    script.run(lambda state: state.add(1))
    script.clock.millis += 60
    script.run(lambda state: state.add(2))
    script.clock.millis += 40
    assert script.run(lambda state: list(state)) == [2]
    script.clock.millis += 99
    assert script.run(lambda state: list(state)) == [2]


def test_expired_elements_are_returned_while_one_is_left() -> None:
    script = elements(**ONCE, **QUIET)
    script.run(lambda state: state.add(1))
    script.clock.millis += 60
    script.run(lambda state: state.add(2))
    script.clock.millis += 40
    assert [script.run(lambda state: list(state)) for _ in range(2)] == [[1, 2], [1, 2]]
    script.clock.millis += 60
    assert [script.run(lambda state: list(state)) for _ in range(2)] == [[1, 2], []]


def test_every_entry_expires_on_its_own() -> None:
    script = entries()
    script.run(lambda state: state.put("x", "1"))
    script.clock.millis += 60
    script.run(lambda state: state.put_all({"y": "2", "z": None}))
    script.clock.millis += 40
    assert script.run(lambda state: (state.get("x"), state.contains("x"))) == (None, False)
    assert script.run(lambda state: dict(state.items())) == {"y": "2", "z": None}
    assert script.run(lambda state: (state.contains("z"), state.get("z"))) == (True, None)
    script.clock.millis += 60
    assert script.run(lambda state: list(state)) == []
    assert stored(script) == []


def test_a_read_prolongs_the_life_of_one_entry() -> None:
    script = entries(**ON_READ)
    script.run(lambda state: state.put_all({"x": "1", "y": "2"}))
    script.clock.millis += 99
    assert script.run(lambda state: state.get("x")) == "1"
    script.clock.millis += 1
    assert script.run(lambda state: dict(state.items())) == {"x": "1"}


def test_an_expired_entry_is_returned_once() -> None:
    script = entries(**ONCE, **QUIET)
    script.run(lambda state: state.put_all({"x": "1", "y": "2"}))
    script.clock.millis += TTL
    assert [script.run(lambda state: state.get("x")) for _ in range(2)] == ["1", None]
    assert [script.run(lambda state: dict(state.items())) for _ in range(2)] == [{"y": "2"}, {}]


def test_a_map_with_expired_entries_is_not_empty() -> None:
    script = entries(**QUIET)
    script.run(lambda state: state.put("x", "1"))
    script.clock.millis += TTL
    assert not script.run(lambda state: state.is_empty())
    script.run(lambda state: state.remove("x"))
    assert script.run(lambda state: state.is_empty())


def test_an_expired_value_does_not_count_for_a_sum() -> None:
    script = Script(expiring(ReducingStateDescriptor("sum", Add(), Types.LONG())))
    script.run(lambda state: state.add(5))
    script.clock.millis += TTL
    script.run(lambda state: state.add(1))
    assert script.run(lambda state: state.get()) == 1
    script.run(lambda state: state.add(None))
    assert stored(script) == []


def test_an_expired_value_counts_for_a_sum_where_it_is_returned() -> None:
    script = Script(expiring(ReducingStateDescriptor("sum", Add(), Types.LONG()), **ONCE, **QUIET))
    script.run(lambda state: state.add(5))
    script.clock.millis += TTL
    script.run(lambda state: state.add(1))
    assert script.run(lambda state: state.get()) == 6


def test_an_expired_accumulator_is_replaced() -> None:
    descriptor = type(AGGREGATING)("average", Average(), AGGREGATING.type_info)
    script = Script(expiring(descriptor))
    script.run(lambda state: [state.add(1), state.add(2)])
    assert script.run(lambda state: state.get()) == 1.5
    script.clock.millis += TTL
    assert script.run(lambda state: state.get()) is None
    script.run(lambda state: state.add(8))
    assert script.run(lambda state: state.get()) == 8
    script.run(lambda state: state.add(None))
    assert stored(script) == []


@pytest.mark.parametrize("make", [value, elements, entries])
def test_expired_values_of_other_keys_are_removed_by_accesses(make: Any) -> None:
    script = make()
    write = {"value": lambda state: state.update(1), "list": lambda state: state.add(1)}.get(
        script.function.descriptors[0].name, lambda state: state.put("x", "1")
    )
    for number in range(20):
        script.run(write, f"old-{number}")
    script.clock.millis += TTL
    for _ in range(10):
        script.run(write, "new")
    assert stored(script) == ["new"]


def test_values_that_are_not_expired_survive_the_clean_up() -> None:
    script = value()
    for number in range(40):
        script.clock.millis += 10
        script.run(lambda state: state.update(1), f"{number:02}")
        alive = [f"{each:02}" for each in range(max(0, number - 9), number + 1)]
        assert set(alive) <= set(stored(script))
    for _ in range(20):
        script.run(lambda state: state.value(), "39")
    assert stored(script) == [f"{each:02}" for each in range(30, 40)]


def test_nothing_is_removed_in_background_when_that_is_disabled() -> None:
    script = value(**QUIET)
    script.run(lambda state: state.update(1), "old")
    script.clock.millis += TTL
    for _ in range(10):
        script.run(lambda state: state.update(1), "new")
    assert stored(script) == ["new", "old"]


def test_the_clean_up_runs_for_every_record_on_request() -> None:
    script = value(disable_cleanup_in_background=(), cleanup_incrementally=(10, True))
    script.run(lambda state: state.update(1), "old")
    script.clock.millis += TTL
    script.run(lambda state: None, "new")
    assert stored(script) == []


def test_the_clean_up_of_some_keys_needs_an_access() -> None:
    script = value(cleanup_incrementally=(10, False))
    script.run(lambda state: state.update(1), "old")
    script.clock.millis += TTL
    script.run(lambda state: None, "new")
    assert stored(script) == ["old"]
    script.run(lambda state: state.clear(), "new")
    assert stored(script) == []


def test_full_snapshots_leave_expired_values_out_on_request() -> None:
    for calls, kept in (({}, ["old"]), ({"cleanup_full_snapshot": ()}, [])):
        script = value(disable_cleanup_in_background=(), **calls)
        script.run(lambda state: state.update(1), "old")
        script.clock.millis += TTL
        script.operator.prepare_snapshot(1)
        assert stored(script) == kept


def test_the_current_key_survives_the_clean_up() -> None:
    script = value(cleanup_incrementally=(10, True))
    for key in "abc":
        script.run(lambda state: state.update(1), key)
    script.clock.millis += TTL
    script.run(lambda state: state.update(2), "b")
    assert script.operator.backend.current_key == "b"
    assert stored(script) == ["b"]


def test_defaults_are_those_of_flink() -> None:
    config = StateTtlConfig.new_builder(Duration.of_hours(1)).build()
    cleanup = config.get_cleanup_strategies()
    assert config.is_enabled()
    assert config.get_update_type() is StateTtlConfig.UpdateType.OnCreateAndWrite
    assert config.get_state_visibility() is StateTtlConfig.StateVisibility.NeverReturnExpired
    assert config.get_ttl_time_characteristic() is StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
    assert config.get_ttl() == Duration.of_hours(1)
    assert cleanup.is_cleanup_in_background()
    assert not cleanup.in_full_snapshot()
    incremental, compaction = (
        cleanup.get_incremental_cleanup_strategy(),
        cleanup.get_rocksdb_compact_filter_cleanup_strategy(),
    )
    assert incremental is not None
    assert compaction is not None
    assert (incremental.get_cleanup_size(), incremental.run_cleanup_for_every_record()) == (5, False)
    assert compaction.get_query_time_after_num_entries() == 1000
    assert compaction.get_periodic_compaction_time() == Duration.of_days(30)


def test_without_clean_up_in_background_only_what_is_configured_runs() -> None:
    builder = StateTtlConfig.new_builder(Time.seconds(1)).disable_cleanup_in_background()
    cleanup = builder.build().get_cleanup_strategies()
    assert cleanup.get_incremental_cleanup_strategy() is None
    assert cleanup.get_rocksdb_compact_filter_cleanup_strategy() is None
    cleanup = builder.cleanup_in_rocksdb_compact_filter(7).build().get_cleanup_strategies()
    compaction = cleanup.get_rocksdb_compact_filter_cleanup_strategy()
    assert compaction is not None
    assert compaction.get_query_time_after_num_entries() == 7


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="positive"):
        StateTtlConfig.new_builder(Time.seconds(0))
    with pytest.raises(UsageError, match="positive"):
        StateTtlConfig.new_builder(Time.seconds(1)).cleanup_incrementally(0, False)
    disabled = StateTtlConfig.new_builder(Time.seconds(1)).set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    with pytest.raises(UsageError, match="Disabled"):
        ValueStateDescriptor("value", Types.LONG()).enable_time_to_live(disabled)
