"""Sinks on `TwoPhaseCommitSinkFunction`: the open transaction of each subtask and those to be committed.

Source: `org.apache.flink.streaming.api.functions.sink.TwoPhaseCommitSinkFunction` (state `state`); the
sink defines the transaction, its serializer the layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.json import dumps, to_json
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.connectors.connector_state import ConnectorStateKind
from state_pipelines.connectors.registry import connector_state, write_plain_element
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.connectors.connector_state import Row

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
