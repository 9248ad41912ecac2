"""Two inputs of one keyed function, as one DataFrame: connected streams, the second keyed or broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from state_pipelines.datastream import (
    KeyedBroadcastProcessFunction,
    KeyedBroadcastProcessOperator,
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
    Row,
)
from state_pipelines.errors import UsageError
from state_pipelines.spark.keyed_inputs import require_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from state_pipelines.datastream import Function, MapStateDescriptor, TypeInformation

INPUT = "input"
"""Column with 1 for the rows of the first input, 2 for those of the second."""

BROADCAST_INPUT = 2
"""Number of the broadcast input."""

_INPUTS = ("first", "second")
"""Columns with the rows of each input, null in the rows of the other."""

_WITH_BROADCAST = ("first", "broadcast")
"""The same where the second input is broadcast."""


def connect(
    first: DataFrame,
    second: DataFrame,
    *,
    key: str | Sequence[str],
    second_key: str | Sequence[str] | None = None,
    timestamp: str | None = None,
    second_timestamp: str | None = None,
    broadcast: bool = False,
) -> DataFrame:
    """Connect two DataFrames, or two streams, for a function of two inputs (`DataStream.connect`).

    The result is the input of `keyed_process` and `keyed_batches`. As in Flink, nothing orders the inputs against each
    other, unless `order_by` does: by `timestamp`, or with `["input", …]` all rows of the first before the second.
    Rows of a broadcast input come first: every subtask gets all those of a batch before any row with a key.

    Args:
        first: the first input.
        second: the second input.
        key: columns of the key in the first input.
        second_key: those in the second input, in the same order; default the same names.
        timestamp: column of event time in the first input.
        second_timestamp: that in the second input; default the same name, of a broadcast input none.
        broadcast: the second input has no keys, and each of its rows goes to every subtask: for a
            `KeyedBroadcastProcessFunction`, otherwise a `KeyedCoProcessFunction` takes the result.

    Returns:
        The columns of the key and of event time under the names of the first input; `input`, 1 or 2; `first` and
        `second`, or `broadcast`, structs with all columns of a row of that input, null in rows of the other.

    Raises:
        UsageError: a column is missing or has one of the names above, the types of keys or event times differ, or a
            broadcast input is given a key.
    """
    columns: list[list[str | None]] = [[key] if isinstance(key, str) else [*key]]
    inputs = _WITH_BROADCAST if broadcast else _INPUTS
    if broadcast:
        if second_key is not None:
            raise UsageError("a broadcast input has no keys", hint="Leave second_key out")
        columns.append([None] * len(columns[0]))
    else:
        other = key if second_key is None else second_key
        columns.append([other] if isinstance(other, str) else [*other])
    if len(columns[0]) != len(columns[1]):
        raise UsageError(
            f"the key of the first input has {len(columns[0])} columns, that of the second {len(columns[1])}",
            hint="Name the columns of both in the same order",
        )
    if timestamp is not None:
        columns[0].append(timestamp)
        columns[1].append(second_timestamp or (None if broadcast else timestamp))
    elif second_timestamp is not None:
        raise UsageError("only the second input has event time", hint="Give timestamp for the first input too")
    frames = [first, second]
    for df, own in zip(frames, columns, strict=True):
        require_columns(df, [each for each in own if each is not None])
    for one, two in zip(*columns, strict=True):
        if one is None or two is None:
            continue
        found = [first.schema[one].dataType.simpleString(), second.schema[two].dataType.simpleString()]
        if found[0] != found[1]:
            raise UsageError(
                f"{one} of the first input is {found[0]}, and {two} of the second is {found[1]}",
                hint="Cast one of them: the keys, and the event times, of both inputs have one type",
            )
    names = [each for each in columns[0] if each is not None]
    unclear = {name for name in names if name in (INPUT, *inputs) or names.count(name) > 1}
    if unclear:
        raise UsageError(
            f"the result would have two columns named {', '.join(sorted(unclear))}",
            hint="Rename that key or event time in the first input",
        )
    tagged = []
    for index, (df, own) in enumerate(zip(frames, columns, strict=True)):
        rows = [sql.lit(None).cast(each.schema).alias(name) for each, name in zip(frames, inputs, strict=True)]
        rows[index] = sql.struct(*(sql.col(f"`{name}`") for name in df.columns)).alias(inputs[index])
        common = [
            (sql.lit(None).cast(first.schema[name].dataType) if column is None else sql.col(f"`{column}`")).alias(name)
            for column, name in zip(own, names, strict=True)
        ]
        tagged.append(df.select(*common, sql.lit(index + 1).alias(INPUT), *rows))
    return tagged[0].union(tagged[1])


def check_inputs(df: DataFrame, function: Function) -> None:
    """Refuse a DataFrame of one input for a function of two, and one whose second input is not as the function has it.

    Raises:
        UsageError: the function has two inputs, and the DataFrame is not such a one of `connect`.
    """
    for kind, inputs, call in (
        (KeyedCoProcessFunction, _INPUTS, "connect(first, second, key=…)"),
        (KeyedBroadcastProcessFunction, _WITH_BROADCAST, "connect(first, second, key=…, broadcast=True)"),
    ):
        structs = [df.schema[name].dataType for name in inputs if name in df.columns]
        is_connected = INPUT in df.columns and [type(each) for each in structs] == [StructType, StructType]
        if isinstance(function, kind) and not is_connected:
            second = "a broadcast one" if kind is KeyedBroadcastProcessFunction else "both with keys"
            raise UsageError(
                f"{type(function).__name__} has two inputs, {second}, and the DataFrame is not one of such",
                hint=f"Give it {call}",
            )


class InputRows:
    """Makes the rows that a function gets out of those of `connect`, with the columns of their own input.

    Args:
        inputs: columns with the rows of each input.
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        self._inputs = inputs
        self._factories: dict[int, Row] = {}

    def read(self, row: Row) -> tuple[int, Any]:
        """Return the number of the input, and the row of that input."""
        number = row[INPUT]
        fields = row[self._inputs[number - 1]]
        make_row = self._factories.get(number)
        if make_row is None:
            make_row = self._factories[number] = Row(*fields)
        return number, make_row(*fields.values())


class ConnectedOperator(KeyedCoProcessOperator):
    """Runs a `KeyedCoProcessFunction` over rows of `connect`.

    Args:
        function: that the user wrote.
        key_selector: finds the key in such a row.
        key_type: type of the keys.
        options: as of `KeyedOperator`.
    """

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        key_selector: Callable[[Any], Any],
        key_type: TypeInformation,
        **options: Any,
    ) -> None:
        super().__init__(function, key_selector, key_selector, key_type, **options)
        self._rows = InputRows(_INPUTS)

    def process(self, row: Row, timestamp: int | None = None) -> list[Any]:
        """Process a row of one of the inputs, which the function gets as a `Row` with the columns of that input.

        Args:
            row: of `connect`.
            timestamp: epoch milliseconds of event time; None without.

        Returns:
            What the function emits.
        """
        number, value = self._rows.read(row)
        function = self.function
        process_element = function.process_element1 if number == 1 else function.process_element2
        return self._process(process_element, self._get_key1(row), value, timestamp)


class ConnectedBroadcastOperator(KeyedBroadcastProcessOperator):
    """Runs a `KeyedBroadcastProcessFunction` over rows of `connect`.

    Args:
        function: that the user wrote.
        key_selector: finds the key in a row with one.
        key_type: type of the keys.
        broadcast_state_descriptors: of the broadcast states.
        options: as of `KeyedOperator`.
    """

    def __init__(
        self,
        function: KeyedBroadcastProcessFunction,
        key_selector: Callable[[Any], Any],
        key_type: TypeInformation,
        broadcast_state_descriptors: Sequence[MapStateDescriptor],
        **options: Any,
    ) -> None:
        super().__init__(function, key_selector, key_type, broadcast_state_descriptors, **options)
        self._rows = InputRows(_WITH_BROADCAST)

    def process(self, row: Row, timestamp: int | None = None) -> list[Any]:
        """Process a row of one of the inputs; as `ConnectedOperator.process`."""
        number, value = self._rows.read(row)
        if number == BROADCAST_INPUT:
            return self.process_broadcast(value, timestamp)
        return self._process(self._get_key(row), value, timestamp)
