"""`StateTtlConfig` as Flink's changelog stores it: a Java serialization stream.

Class descriptors and bytes are the same in Flink 1.20 to 2.3.
Source: `KvStateChangeLoggerImpl.writeDefaultValueAndTtl`, `StateTtlConfig`, `java.time.Ser`, `java.util.EnumMap`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from state_pipelines.binary.java_stream import (
    BLOCK_DATA,
    ENUM,
    EXTERNALIZABLE,
    SERIALIZABLE,
    WRITE_METHOD,
    JavaBlock,
    JavaClass,
    JavaClassData,
    JavaClassDesc,
    JavaContent,
    JavaEnum,
    JavaField,
    JavaObject,
    JavaString,
    JavaValue,
    write_stream,
)
from state_pipelines.datastream.durations import Duration, to_millis
from state_pipelines.datastream.ttl_config import StateTtlConfig

if TYPE_CHECKING:
    from state_pipelines.datastream.durations import Time

_CONFIG = "org.apache.flink.api.common.state.StateTtlConfig"
_CLEANUP = f"{_CONFIG}$CleanupStrategies"
_NANOS_OF_SECOND = 1_000_000_000
# `java.time.Ser.DURATION_TYPE`, seconds, nanoseconds of the second.
_DURATION_TYPE = 1
_DURATION = struct.Struct(">bqi")

_Strategies = StateTtlConfig.CleanupStrategies.Strategies


def _signature(name: str) -> JavaString:
    return JavaString(f"L{name.replace('.', '/')};")


def _enum_class(name: str) -> JavaClassDesc:
    return JavaClassDesc(name, 0, SERIALIZABLE | ENUM, (), _ENUM)


# Each object is written once, and by a reference to it from then on, as in Java.
_ENUM = JavaClassDesc("java.lang.Enum", 0, SERIALIZABLE | ENUM)
_VISIBILITY = _enum_class(f"{_CONFIG}$StateVisibility")
_CHARACTERISTIC = _enum_class(f"{_CONFIG}$TtlTimeCharacteristic")
_UPDATE_TYPE = _enum_class(f"{_CONFIG}$UpdateType")
_STRATEGIES = _enum_class(f"{_CLEANUP}$Strategies")
_DURATION_SIGNATURE = _signature("java.time.Duration")
_SERIALIZED_TIME = JavaClassDesc("java.time.Ser", -7683839454370182990, EXTERNALIZABLE | BLOCK_DATA)
_ENUM_MAP = JavaClassDesc(
    "java.util.EnumMap",
    458661240069192865,
    SERIALIZABLE | WRITE_METHOD,
    (JavaField("L", "keyType", _signature("java.lang.Class")),),
)
_CLEANUP_STRATEGIES = JavaClassDesc(
    _CLEANUP,
    -1617740467277313524,
    SERIALIZABLE,
    (JavaField("Z", "isCleanupInBackground"), JavaField("L", "strategies", _signature("java.util.EnumMap"))),
)
_EMPTY_STRATEGY = JavaClassDesc(f"{_CLEANUP}$EmptyCleanupStrategy", 1373998465131443873, SERIALIZABLE)
_INCREMENTAL_STRATEGY = JavaClassDesc(
    f"{_CONFIG}$IncrementalCleanupStrategy",
    3109278696501988780,
    SERIALIZABLE,
    (JavaField("I", "cleanupSize"), JavaField("Z", "runCleanupForEveryRecord")),
)
_FILTER_STRATEGY = JavaClassDesc(
    f"{_CONFIG}$RocksdbCompactFilterCleanupStrategy",
    3109278796506988980,
    SERIALIZABLE,
    (JavaField("J", "queryTimeAfterNumEntries"), JavaField("L", "periodicCompactionTime", _DURATION_SIGNATURE)),
)
_TTL_CONFIG = JavaClassDesc(
    _CONFIG,
    -7592693245044289793,
    SERIALIZABLE,
    (
        JavaField("L", "cleanupStrategies", _signature(_CLEANUP)),
        JavaField("L", "stateVisibility", _signature(_VISIBILITY.name)),
        JavaField("L", "ttl", _DURATION_SIGNATURE),
        JavaField("L", "ttlTimeCharacteristic", _signature(_CHARACTERISTIC.name)),
        JavaField("L", "updateType", _signature(_UPDATE_TYPE.name)),
    ),
)


def write_ttl_config(config: StateTtlConfig) -> bytes:
    """Write a configuration as `ObjectOutputStream.writeObject` does."""
    return write_stream(
        _object(
            _TTL_CONFIG,
            _make_cleanup(config.get_cleanup_strategies()),
            JavaEnum(_VISIBILITY, JavaString(config.get_state_visibility().name)),
            _make_duration(config.get_ttl()),
            JavaEnum(_CHARACTERISTIC, JavaString(config.get_ttl_time_characteristic().name)),
            JavaEnum(_UPDATE_TYPE, JavaString(config.get_update_type().name)),
        )
    )


def _make_cleanup(cleanup: StateTtlConfig.CleanupStrategies) -> JavaObject:
    configured = cleanup.get_configured_strategies()
    entries: list[JavaContent] = [JavaBlock(len(configured).to_bytes(4, "big"))]
    for name in _Strategies:
        if name in configured:
            entries += [JavaEnum(_STRATEGIES, JavaString(name.name)), _make_strategy(configured[name])]
    strategies = JavaObject(_ENUM_MAP, (JavaClassData((JavaClass(_STRATEGIES),), tuple(entries)),))
    return _object(_CLEANUP_STRATEGIES, cleanup.is_cleanup_in_background(), strategies)


def _make_strategy(strategy: StateTtlConfig.CleanupStrategies.CleanupStrategy) -> JavaObject:
    match strategy:
        case StateTtlConfig.CleanupStrategies.IncrementalCleanupStrategy():
            return _object(_INCREMENTAL_STRATEGY, strategy.get_cleanup_size(), strategy.run_cleanup_for_every_record())
        case StateTtlConfig.CleanupStrategies.RocksdbCompactFilterCleanupStrategy():
            return _object(
                _FILTER_STRATEGY,
                strategy.get_query_time_after_num_entries(),
                _make_duration(strategy.get_periodic_compaction_time()),
            )
        case _:
            return _object(_EMPTY_STRATEGY)


def _make_duration(length: Time | Duration) -> JavaObject:
    nanos = length.nanos if isinstance(length, Duration) else Duration.of_millis(to_millis(length)).nanos
    data = _DURATION.pack(_DURATION_TYPE, *divmod(nanos, _NANOS_OF_SECOND))
    return JavaObject(_SERIALIZED_TIME, (JavaClassData(annotation=(JavaBlock(data),)),))


def _object(desc: JavaClassDesc, *values: JavaValue) -> JavaObject:
    return JavaObject(desc, (JavaClassData(values),))
