"""Serializers of Flink's runtime: timers, TTL, and the composites of streaming, CEP and sinks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from state_pipelines.serializers.tree.base import Composite, Serializer


@dataclass(frozen=True, kw_only=True)
class Timer(Composite):
    """`TimerSerializer`: timestamp with its sign flipped, key, namespace."""

    snapshot_class: str = "org.apache.flink.streaming.api.operators.TimerSerializerSnapshot"
    outer_version: int = 2
    key: Serializer
    namespace: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Key and namespace serializer."""
        return (self.key, self.namespace)


@dataclass(frozen=True, kw_only=True)
class Ttl(Composite):
    """`TtlStateFactory.TtlSerializer`: last access in epoch milliseconds, then the user's value."""

    snapshot_class: str = "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot"
    outer_version: int = 2
    timestamp: Serializer
    inner: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Timestamp and user serializer."""
        return (self.timestamp, self.inner)


@dataclass(frozen=True, kw_only=True)
class TtlAware(Serializer):
    """`TtlAwareSerializer`: stores whether TTL is enabled; data as the wrapped serializer writes them."""

    snapshot_version: int = 1
    ttl_enabled: bool
    inner: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The wrapped serializer."""
        return (self.inner,)


class VariantKind(StrEnum):
    """Serializer of a `Variants` node: the word before `Serializer` in its class name."""

    UNION = "Union"
    BUFFER_ENTRY = "BufferEntry"
    STREAM_ELEMENT = "StreamElement"
    NODE_ID = "NodeId"
    SHARED_BUFFER_EDGE = "SharedBufferEdge"
    SHARED_BUFFER_NODE = "SharedBufferNode"
    SHARED_BUFFER_EDGES = "SharedBufferEdges"
    """Before reference counts."""
    LOCKABLE = "Lockable"
    NFA_STATE = "NFAState"
    SINGLE_THREAD_ACCESS_CHECKING = "SingleThreadAccessChecking"
    TWO_PHASE_COMMIT = "TwoPhaseCommit"
    SCALA_OPTION = "ScalaOption"
    SCALA_TRY = "ScalaTry"
    TRAVERSABLE = "Traversable"
    META_SQN_INFO = "MetaSqnInfo"
    ROW_SQN_INFO = "RowSqnInfo"
    SEQUENCED_NODE = "SequencedNode"
    """The last three: sequenced multiset state of SQL in 2.2."""


@dataclass(frozen=True, kw_only=True)
class Variants(Composite):
    """Composite serializers of the streaming, CEP and sink runtime with individual data layouts.

    Attributes:
        kind: which serializer it is.
        serializers: nested serializers.
        flag: the one boolean some of them store (supportsNullTransaction, supportsPreviousTimestamp).
        text: the one string some of them store (Traversable's builder code).
    """

    FLAGGED: ClassVar[frozenset[VariantKind]] = frozenset({VariantKind.NFA_STATE, VariantKind.TWO_PHASE_COMMIT})

    kind: VariantKind
    serializers: tuple[Serializer, ...]
    flag: bool | None = None
    text: str | None = None

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The nested serializers."""
        return self.serializers
