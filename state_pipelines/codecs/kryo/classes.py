"""Classes that need no declaration: Kryo's and Flink's registrations, collections, enums and field lists of the JDK.

Source: `com.esotericsoftware.kryo.Kryo`, `com.twitter.chill.java`, `FlinkChillPackageRegistrar` of Flink 1.x and its
successor in `flink-core` 2.x.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import TYPE_CHECKING

from state_pipelines.codecs.java.typed_values import CollectionKind
from state_pipelines.codecs.kryo.field_lists import FieldLists, load_classes

if TYPE_CHECKING:
    from state_pipelines.codecs.kryo.wire import Version

FIRST_IDS = (
    "java.lang.Integer",
    "java.lang.String",
    "java.lang.Float",
    "java.lang.Boolean",
    "java.lang.Byte",
    "java.lang.Character",
    "java.lang.Short",
    "java.lang.Long",
    "java.lang.Double",
    "java.lang.Void",
)
"""Classes of the ids 0 to 9; a primitive type shares the id of its wrapper. Kryo 5 does not register the last one."""

FLINK_BASE = 73
FLINK_IDS = (
    "java.util.Arrays$ArrayList",
    "java.util.BitSet",
    "java.util.PriorityQueue",
    "java.util.regex.Pattern",
    "java.sql.Date",
    "java.sql.Time",
    "java.sql.Timestamp",
    "java.net.URI",
    "java.net.InetSocketAddress",
    "java.util.UUID",
    "java.util.Locale",
    "java.text.SimpleDateFormat",
)
"""Classes of the ids 73 to 84, which Flink's streaming runtime registers."""

USER_BASE = FLINK_BASE + len(FLINK_IDS)


def first_ids(version: Version) -> tuple[str, ...]:
    """Return the classes that Kryo registers itself, by id.

    The registrations of the user follow them where Flink's streaming runtime is absent (tests of flink-core).
    """
    return FIRST_IDS if version == 2 else FIRST_IDS[:-1]


WRAPPERS = {
    "java.lang.Boolean": "boolean",
    "java.lang.Byte": "byte",
    "java.lang.Character": "char",
    "java.lang.Short": "short",
    "java.lang.Integer": "int",
    "java.lang.Long": "long",
    "java.lang.Float": "float",
    "java.lang.Double": "double",
}


class CollectionVariant(Enum):
    """Layout of the elements of a collection class."""

    PLAIN = auto()
    SORTED = auto()
    """A comparator is stored with the size."""
    IMMUTABLE = auto()
    """Never null inside."""
    SINGLE = auto()
    EMPTY = auto()
    ENUMS = auto()
    """`EnumSet`: enum class, then ordinals."""
    ARRAY = auto()
    """`Arrays.asList`: Kryo 2 adds the component class."""


@dataclass(frozen=True)
class Shape:
    """Layout of a collection class.

    Attributes:
        kind: list, set or map.
        variant: layout of the elements.
    """

    kind: CollectionKind
    variant: CollectionVariant = CollectionVariant.PLAIN


_LISTS = (
    "ArrayList LinkedList Vector Stack ArrayDeque ArrayList$SubList AbstractList$SubList "
    "AbstractList$RandomAccessSubList Collections$UnmodifiableList Collections$UnmodifiableRandomAccessList "
    "Collections$UnmodifiableCollection Collections$SynchronizedList Collections$SynchronizedRandomAccessList "
    "Collections$SynchronizedCollection "
    "Collections$CopiesList concurrent.CopyOnWriteArrayList concurrent.ConcurrentLinkedQueue "
    "concurrent.ConcurrentLinkedDeque concurrent.LinkedBlockingQueue concurrent.LinkedBlockingDeque "
    "concurrent.ArrayBlockingQueue"
)
_SETS = (
    "HashSet LinkedHashSet Collections$UnmodifiableSet Collections$SynchronizedSet concurrent.CopyOnWriteArraySet "
    "concurrent.ConcurrentSkipListSet concurrent.ConcurrentHashMap$KeySetView Collections$SetFromMap"
)
_MAPS = (
    "HashMap LinkedHashMap Hashtable Properties IdentityHashMap WeakHashMap EnumMap concurrent.ConcurrentHashMap "
    "Collections$UnmodifiableMap Collections$SynchronizedMap"
)
SHAPES: dict[str, Shape] = {
    **{f"java.util.{name}": Shape(CollectionKind.LIST) for name in _LISTS.split()},
    **{f"java.util.{name}": Shape(CollectionKind.SET) for name in _SETS.split()},
    **{f"java.util.{name}": Shape(CollectionKind.MAP) for name in _MAPS.split()},
    **{
        f"java.util.ImmutableCollections${name}": Shape(CollectionKind.LIST, CollectionVariant.IMMUTABLE)
        for name in ("List12", "ListN", "SubList")
    },
    **{
        f"java.util.ImmutableCollections${name}": Shape(CollectionKind.SET, CollectionVariant.IMMUTABLE)
        for name in ("Set12", "SetN")
    },
    **{
        f"java.util.ImmutableCollections${name}": Shape(CollectionKind.MAP, CollectionVariant.IMMUTABLE)
        for name in ("Map1", "MapN")
    },
    "java.util.Collections$EmptyList": Shape(CollectionKind.LIST, CollectionVariant.EMPTY),
    "java.util.Collections$EmptySet": Shape(CollectionKind.SET, CollectionVariant.EMPTY),
    "java.util.Collections$EmptyMap": Shape(CollectionKind.MAP, CollectionVariant.EMPTY),
    "java.util.Collections$SingletonList": Shape(CollectionKind.LIST, CollectionVariant.SINGLE),
    "java.util.Collections$SingletonSet": Shape(CollectionKind.SET, CollectionVariant.SINGLE),
    "java.util.Collections$SingletonMap": Shape(CollectionKind.MAP, CollectionVariant.SINGLE),
    "java.util.PriorityQueue": Shape(CollectionKind.LIST, CollectionVariant.SORTED),
    "java.util.TreeSet": Shape(CollectionKind.SET, CollectionVariant.SORTED),
    "java.util.TreeMap": Shape(CollectionKind.MAP, CollectionVariant.SORTED),
    "java.util.RegularEnumSet": Shape(CollectionKind.SET, CollectionVariant.ENUMS),
    "java.util.JumboEnumSet": Shape(CollectionKind.SET, CollectionVariant.ENUMS),
    "java.util.Arrays$ArrayList": Shape(CollectionKind.LIST, CollectionVariant.ARRAY),
}

_FINAL_TIMES = (
    "LocalDate LocalTime LocalDateTime Instant Duration Period ZonedDateTime OffsetDateTime OffsetTime Year YearMonth "
    "MonthDay ZoneOffset"
)
_FINAL_UTILITIES = "UUID Locale Currency Optional OptionalInt OptionalLong OptionalDouble regex.Pattern"
FINAL_CLASSES = frozenset(
    {"java.lang.String", "java.lang.Void", "java.lang.StringBuilder", "java.lang.StringBuffer", "java.lang.Class"}
    | WRAPPERS.keys()
    | {f"java.time.{name}" for name in _FINAL_TIMES.split()}
    | {f"java.util.{name}" for name in _FINAL_UTILITIES.split()}
    | {"java.net.URI", "java.net.URL"}
)
"""Final classes of the JDK: a field of such a type stores no class before its value."""

_BOTH = """
java.lang.Object: []
java.util.AbstractMap$SimpleEntry<K, V>: [key: K, value: V]
java.util.AbstractMap$SimpleImmutableEntry<K, V>: [key: K, value: V]
final java.util.KeyValueHolder<K, V>: [key: K, value: V]
java.util.concurrent.atomic.AtomicReference<V>: [value: V]
java.util.concurrent.atomic.AtomicIntegerArray: [array: "int[]"]
java.util.concurrent.atomic.AtomicLongArray: [array: "long[]"]
java.util.Collections$ReverseComparator: []
java.util.Collections$ReverseComparator2<T>: [cmp: java.util.Comparator]
java.lang.String$CaseInsensitiveComparator: []
enum java.util.Comparators$NaturalOrderComparator: [INSTANCE]
enum java.time.DayOfWeek: [MONDAY, TUESDAY, WEDNESDAY, THURSDAY, FRIDAY, SATURDAY, SUNDAY]
enum java.time.Month: [JANUARY, FEBRUARY, MARCH, APRIL, MAY, JUNE, JULY, AUGUST, SEPTEMBER, OCTOBER, NOVEMBER, DECEMBER]
enum java.util.concurrent.TimeUnit: [NANOSECONDS, MICROSECONDS, MILLISECONDS, SECONDS, MINUTES, HOURS, DAYS]
enum java.math.RoundingMode: [UP, DOWN, CEILING, FLOOR, HALF_UP, HALF_DOWN, HALF_EVEN, UNNECESSARY]
enum java.time.temporal.ChronoUnit: [NANOS, MICROS, MILLIS, SECONDS, MINUTES, HOURS, HALF_DAYS, DAYS, WEEKS, MONTHS,
  YEARS, DECADES, CENTURIES, MILLENNIA, ERAS, FOREVER]
enum org.apache.flink.types.RowKind: [INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE]
org.apache.flink.types.Row:
  - fieldByName: Map<String, Object>
  - fieldByPosition: Object[]
  - kind: org.apache.flink.types.RowKind
  - positionByName: LinkedHashMap<String, Integer>
interface org.apache.avro.Schema:
org.apache.avro.generic.GenericData$Record: [schema: org.apache.avro.Schema, values: "Object[]"]
final org.apache.flink.streaming.connectors.kafka.internals.KafkaTopicPartition:
  [topic: String, partition: int, cachedHash: int]
org.apache.rocketmq.common.message.MessageQueue: [topic: String, brokerName: String, queueId: int]
org.apache.flink.streaming.connectors.kinesis.model.SequenceNumber:
  [sequenceNumber: String, subSequenceNumber: long, cachedHash: int]
"""
_KRYO_2 = """
final java.time.LocalDateTime: [date: LocalDate, time: LocalTime]
final java.time.OffsetDateTime: [dateTime: LocalDateTime, offset: ZoneOffset]
final java.time.OffsetTime: [time: LocalTime, offset: ZoneOffset]
final java.time.ZonedDateTime: [dateTime: LocalDateTime, offset: ZoneOffset, zone: ZoneId]
final java.time.ZoneRegion: [id: String]
final java.util.Optional<T>: [value: T]
"""
# Kryo 5 writes the value of an Optional with its class, regardless of the declared type.
_KRYO_5 = """
final java.util.Optional: [value: Object]
"""


@cache
def known_classes(version: Version) -> FieldLists:
    """Return the field lists of classes that everybody has, for one release line of Kryo."""
    tuples = "\n".join(
        f"org.apache.flink.api.java.tuple.Tuple{arity}{_parameters(arity)}: "
        f"[{', '.join(f'f{i}: T{i}' for i in range(arity))}]"
        for arity in range(26)
    )
    return load_classes(_BOTH + (_KRYO_2 if version == 2 else _KRYO_5) + tuples)


def _parameters(arity: int) -> str:
    return f"<{', '.join(f'T{i}' for i in range(arity))}>" if arity else ""
