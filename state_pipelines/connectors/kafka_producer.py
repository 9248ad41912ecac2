"""Sinks on `TwoPhaseCommitSinkFunction`, with the exactly-once sink `FlinkKafkaProducer` of 1.x.

Facts from `org.apache.flink.streaming.connectors.kafka.FlinkKafkaProducer`: list state `state` is that of a
`TwoPhaseCommitSinkFunction`, union state `next-transactional-id-hint-v2` stores the free transactional ids. Older
releases keep the hint as a POJO in `next-transactional-id-hint`; its fields are the same.

Sinks on `TwoPhaseCommitSinkFunction`: the open transaction of each subtask and those to be committed. Source:
`org.apache.flink.streaming.api.functions.sink.TwoPhaseCommitSinkFunction` (state `state`); the sink defines the
transaction, its serializer the layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.json import dumps, to_json
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.connectors.registry import ConnectorStateKind, connector_state, require, write_plain_element
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from state_pipelines.connectors.registry import Row

COLUMNS = pa.schema(
    [
        pa.field("role", pa.string(), False),
        pa.field("transaction", pa.string()),
        pa.field("started", pa.timestamp("ms", tz="UTC")),
    ]
)
"""`role`: `open`, or `to commit`; `transaction`: as JSON, in the form of `codecs.json`."""


@dataclass(frozen=True)
class Transaction:
    """A transaction.

    Attributes:
        value: as the scalar codec gives it.
        started: epoch milliseconds.
        text: `value` as JSON.
    """

    value: object
    started: int
    text: str


@dataclass(frozen=True)
class TwoPhaseCommitState:
    """State of one subtask.

    Attributes:
        pending: the open transaction, or None.
        committing: transactions that the checkpoint is to commit.
        context: context of the user, as the scalar codec gives it, or None.
    """

    pending: Transaction | None
    committing: tuple[Transaction, ...]
    context: object = None


def rows(state: TwoPhaseCommitState) -> Iterator[Row]:
    """Yield a row of `COLUMNS` per transaction."""
    for role, transactions in (("open", (state.pending,)), ("to commit", state.committing)):
        for each in transactions:
            if each is not None:
                yield {"role": role, "transaction": each.text, "started": each.started}


def is_two_phase_commit(serializer: tree.Serializer) -> bool:
    """Return whether the elements are states of such sinks, other than `FlinkKafkaProducer` (`kafka_producer`)."""
    return transaction_serializer(serializer) is not None and not is_kafka_producer(serializer)


def is_kafka_producer(serializer: tree.Serializer) -> bool:
    """Return whether the elements are states of a `FlinkKafkaProducer`."""
    match transaction_serializer(serializer):
        case tree.Basic(kind=BasicKind.KAFKA_TRANSACTION_STATE):
            return True
    return False


def transaction_serializer(serializer: tree.Serializer) -> tree.Serializer | None:
    """Return the serializer of the transactions of a sink; None when the elements are not states of such sinks."""
    match serializer:
        case tree.Variants(kind=tree.VariantKind.TWO_PHASE_COMMIT, serializers=(transaction, _)):
            return transaction
    return None


def write_two_phase_commit(state: TwoPhaseCommitState, serializer: tree.Serializer, context: LayoutContext) -> bytes:
    """Write what `read_two_phase_commit` reads."""

    def plain(each: Transaction | None) -> dict[str, object] | None:
        return None if each is None else {"transaction": each.value, "started": each.started}

    value = {
        "pending": plain(state.pending),
        "committing": [plain(each) for each in state.committing],
        "context": state.context,
    }
    return write_plain_element(value, serializer, context)


@connector_state(
    "two-phase-commit",
    kind=ConnectorStateKind.WRITER,
    operator_state_names=["state"],
    accepts=is_two_phase_commit,
    write=write_two_phase_commit,
    rows=rows,
    columns=COLUMNS,
)
def read_two_phase_commit(element: bytes, serializer: tree.Serializer, context: LayoutContext) -> TwoPhaseCommitState:
    """Read the state of one subtask.

    Raises:
        FormatError: the bytes do not fit the serializer.
        UnsupportedError: the serializer of the transactions is not covered.
    """
    if not isinstance(serializer, tree.Variants):
        raise UnsupportedError("the serializer is not that of a TwoPhaseCommitSinkFunction")
    value = read_value(derive_layout(serializer, context), Reader(element), tail=False)
    if not isinstance(value, dict):
        raise FormatError("the state of a sink is not made of fields")
    node = serializer.serializers[0]

    def transaction(each: dict[str, object]) -> Transaction:
        started = each["started"]
        if not isinstance(started, int):
            raise FormatError("a transaction has no time")
        return Transaction(each["transaction"], started, dumps({"": to_json(node, each["transaction"])})[4:-1])

    pending = value["pending"]
    return TwoPhaseCommitState(
        None if pending is None else transaction(pending),
        tuple(transaction(each) for each in value["committing"]),
        value["context"],
    )


_HINT_CLASSES = ("FlinkKafkaProducer$NextTransactionalIdHint", "FlinkKafkaProducer011$NextTransactionalIdHint")
_HINT_FIELDS = ("nextFreeTransactionalId", "lastParallelism")

WRITER_COLUMNS = pa.schema(
    [
        pa.field("role", pa.string(), False),
        pa.field("transactional_id", pa.string()),
        pa.field("producer_id", pa.int64()),
        pa.field("epoch", pa.int16()),
        pa.field("started", pa.timestamp("ms", tz="UTC")),
    ]
)
"""`role`: `open` or `to commit` of a transaction, `pool` of a transactional id that the subtask may use.

Without exactly-once delivery a transaction has no transactional id, and its producer id and epoch are -1."""

HINT_COLUMNS = pa.schema(
    [pa.field("next_free_transactional_id", pa.int64(), False), pa.field("last_parallelism", pa.int32(), False)]
)


@dataclass(frozen=True)
class TransactionalIdHint:
    """Hint that keeps transactional ids apart from those of earlier runs.

    Attributes:
        next_free: the first number that no subtask has used.
        last_parallelism: of the sink when the hint was written.
        class_name: class of the object, where the serializer names it; else empty.
    """

    next_free: int
    last_parallelism: int
    class_name: str = ""


def writer_rows(state: TwoPhaseCommitState) -> Iterator[Row]:
    """Yield a row of `WRITER_COLUMNS` per transaction, then one per transactional id of the pool."""
    for role, transactions in (("open", (state.pending,)), ("to commit", state.committing)):
        for each in transactions:
            if each is not None:
                value = cast("Mapping[str, object]", each.value)
                yield {
                    "role": role,
                    "transactional_id": value["transactionalId"],
                    "producer_id": value["producerId"],
                    "epoch": value["epoch"],
                    "started": each.started,
                }
    for name in _pool(state):
        yield {"role": "pool", "transactional_id": name}


connector_state(
    "legacy-kafka",
    kind=ConnectorStateKind.WRITER,
    operator_state_names=["state"],
    accepts=is_kafka_producer,
    write=write_two_phase_commit,
    rows=writer_rows,
    columns=WRITER_COLUMNS,
)(read_two_phase_commit)


def hint_rows(hint: TransactionalIdHint) -> Iterator[Row]:
    """Yield one row of `HINT_COLUMNS`."""
    yield {"next_free_transactional_id": hint.next_free, "last_parallelism": hint.last_parallelism}


def is_hint(serializer: tree.Serializer) -> bool:
    """Return whether the elements are hints, by their own serializer or as a POJO."""
    match serializer:
        case tree.Basic(kind=BasicKind.KAFKA_NEXT_TRANSACTIONAL_ID_HINT):
            return True
        case tree.Pojo(pojo_class=name, fields=fields):
            return name.endswith(_HINT_CLASSES) and {each.name for each in fields} == set(_HINT_FIELDS)
    return False


def write_hint(hint: TransactionalIdHint, serializer: tree.Serializer, context: LayoutContext) -> bytes:
    """Write what `read_hint` reads."""
    value: dict[str, object] = dict(zip(_HINT_FIELDS, (hint.next_free, hint.last_parallelism), strict=True))
    return write_plain_element({"class": hint.class_name, **value} if hint.class_name else value, serializer, context)


@connector_state(
    "legacy-kafka",
    kind=ConnectorStateKind.TRANSACTIONAL_IDS,
    operator_state_names=["next-transactional-id-hint", "next-transactional-id-hint-v2"],
    accepts=is_hint,
    write=write_hint,
    rows=hint_rows,
    columns=HINT_COLUMNS,
)
def read_hint(element: bytes, serializer: tree.Serializer, context: LayoutContext) -> TransactionalIdHint:
    """Read a hint.

    Raises:
        FormatError: it could not be one.
    """
    reader = Reader(element)
    value = read_value(derive_layout(serializer, context), reader, tail=False)
    if not isinstance(value, dict):
        raise FormatError("a hint of transactional ids is null")
    next_free, last_parallelism = (cast("int", value[name]) for name in _HINT_FIELDS)
    hint = TransactionalIdHint(next_free, last_parallelism, str(value.get("class", "")))
    require(reader, hint.next_free >= 0 and hint.last_parallelism >= 0, "a hint of transactional ids is negative")
    return hint


def _pool(state: TwoPhaseCommitState) -> tuple[str, ...]:
    context = cast("Mapping[str, tuple[str, ...]] | None", state.context)
    return () if context is None else tuple(context["transactionalIds"])
