"""Descriptions of states in logs of changes, byte by byte those of Flink's logger."""

from __future__ import annotations

from typing import Any

import pytest

from state_pipelines.backends.changelog import ChangelogStore
from state_pipelines.backends.entry_store import HeapStore
from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.datastream import (
    Duration,
    ListStateDescriptor,
    ManualClock,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.datastream.table_states import BackendKeyedStates
from state_pipelines.errors import ValueRangeError
from state_pipelines.keyed.changelog.changes import METADATA_KEY_GROUP
from state_pipelines.metadata.handles import KeyGroupRange, LoggedChange
from state_pipelines.serializers.build import basic
from tests.backends.golden_descriptions import read_golden

HALF_HOUR = StateTtlConfig.new_builder(Time.minutes(30))
DESCRIPTIONS = read_golden()


def day() -> StateTtlConfig.Builder:
    return StateTtlConfig.new_builder(Duration.of_days(1))


CONFIGURED: dict[str, StateTtlConfig.Builder] = {
    "ttl": HALF_HOUR,
    "on-read": StateTtlConfig.new_builder(Time.milliseconds(1500))
    .update_ttl_on_read_and_write()
    .return_expired_if_not_cleaned_up(),
    "full": day().cleanup_full_snapshot(),
    "incremental": day().cleanup_incrementally(7, True),
    "filter": day().cleanup_in_rocksdb_compact_filter(500, Duration.of_hours(2)),
    "all": day()
    .cleanup_full_snapshot()
    .cleanup_incrementally(7, False)
    .cleanup_in_rocksdb_compact_filter(500)
    .disable_cleanup_in_background(),
}


def describe(descriptor: Any) -> list[LoggedChange]:
    """The changes of a state that was registered and not used."""
    store = ChangelogStore(HeapStore(1))
    backend = KeyedStateBackend(store, basic("String"), KeyGroupRange(0, 128), 128, LayoutContext())
    BackendKeyedStates(backend, ManualClock(0)).register(descriptor)
    assert not store.without_log
    return store.take_changes()


def expect(name: str) -> list[LoggedChange]:
    return [LoggedChange(METADATA_KEY_GROUP, DESCRIPTIONS[name])]


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_description_has_the_configuration_of_ttl(name: str) -> None:
    descriptor = ValueStateDescriptor("state", Types.STRING())
    descriptor.enable_time_to_live(CONFIGURED[name].build())
    assert describe(descriptor) == expect(name)


def test_elements_with_ttl() -> None:
    descriptor = ListStateDescriptor("state", Types.STRING())
    descriptor.enable_time_to_live(HALF_HOUR.build())
    assert describe(descriptor) == expect("ttl-list")


def test_a_description_has_the_default_value() -> None:
    assert describe(ValueStateDescriptor("state", Types.STRING(), default_value="Grüße")) == expect("default")


def test_every_recorded_description_is_compared() -> None:
    assert DESCRIPTIONS.keys() == {*CONFIGURED, "ttl-list", "default"}


def test_ttl_has_no_default_value() -> None:
    descriptor = ValueStateDescriptor("state", Types.STRING(), default_value="Grüße")
    descriptor.enable_time_to_live(HALF_HOUR.build())
    assert describe(descriptor) == expect("ttl")


def test_a_default_value_of_another_type_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="state"):
        describe(ValueStateDescriptor("state", Types.LONG(), default_value="none"))
