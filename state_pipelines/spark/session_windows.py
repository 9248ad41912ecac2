"""Sessions that become one where keys become one, and the rows of other states that follow them.

As Flink merges them (`TimeWindow.mergeWindows`, `WindowOperator.processElement`): sessions that touch or overlap become
the interval around them, and one of the windows under which their contents were stored keeps all contents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from state_pipelines.operations.migration.flows import SessionRole
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.spark.types import KEYS, PAYLOAD, hidden

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from state_pipelines.operations.migration.shapes import StateShape

KEY, NAMESPACE, TIMESTAMP, INDEX = (hidden(name) for name in (*KEYS[:2], "timestamp", "list_index"))
ORDER = hidden("order")
"""Column by which the rows of one new key are ordered."""

OLD_KEY = hidden("compared_key")
"""Column of the old key as it is compared, see `equal_keys.compare_key`."""

SESSION, STORED_UNDER = hidden("session"), hidden("stored_under")
_NEW_SESSION, _NEW_STORED, _GROUP = hidden("new_session"), hidden("new_stored"), hidden("session_group")


def list_sessions(frame: DataFrame, shape: StateShape) -> DataFrame:
    """The frame of a state of sessions, with the columns `SESSION` and `STORED_UNDER`."""
    is_list = shape.kind == StateKind.LIST
    session, stored = (
        (F.col(PAYLOAD)["f0"], F.col(PAYLOAD)["f1"]) if is_list else (F.col(hidden("map_key")), F.col(PAYLOAD))
    )
    return frame.withColumn(SESSION, session).withColumn(STORED_UNDER, stored)


@dataclass(frozen=True)
class UnitedSessions:
    """Sessions under new keys, one row per old session, with the session that it is part of.

    Attributes:
        frame: rows of `list_sessions` under new keys, with `ORDER` and `OLD_KEY`.
        compared: the columns that are equal for sessions of one new key.
        is_sql: the sessions are of SQL.
    """

    frame: DataFrame
    compared: Sequence[str]
    is_sql: bool

    def unite(self) -> DataFrame:
        """The rows with new sessions and the windows of their contents."""
        start, end = F.col(SESSION)["start"], F.col(SESSION)["end"]
        order = Window.partitionBy(*self.compared).orderBy(start, end, ORDER)
        before = order.rowsBetween(Window.unboundedPreceding, -1)
        # TimeWindow.intersects: the end of one may be the start of the other.
        begins = F.coalesce(start > F.max(end).over(before), F.lit(True))
        frame = self.frame.withColumn(_GROUP, begins.cast("int"))
        so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        frame = frame.withColumn(_GROUP, F.sum(_GROUP).over(so_far))
        group = Window.partitionBy(*self.compared, _GROUP)
        whole = group.orderBy(start, end, ORDER).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        united = F.struct(F.min(start).over(group).alias("start"), F.max(end).over(group).alias("end"))
        return frame.withColumn(_NEW_SESSION, united).withColumn(_NEW_STORED, F.first(STORED_UNDER).over(whole))

    def list_rows(self) -> DataFrame:
        """The rows of the new state of sessions; lists keep the order of the first session of each."""
        positions = [name for name in (ORDER, INDEX) if name in self.frame.columns]
        group = Window.partitionBy(*self.compared, _GROUP).orderBy(*positions)
        frame = self.unite().withColumn(hidden("number"), F.row_number().over(group))
        frame = frame.where(F.col(hidden("number")) == 1)
        if INDEX in frame.columns:
            pair = F.struct(F.col(_NEW_SESSION).alias("f0"), F.col(_NEW_STORED).alias("f1"))
            order = Window.partitionBy(*self.compared).orderBy(*positions)
            frame = frame.withColumn(PAYLOAD, pair).withColumn(INDEX, F.row_number().over(order) - 1)
        else:
            frame = frame.withColumn(hidden("map_key"), F.col(_NEW_SESSION)).withColumn(PAYLOAD, F.col(_NEW_STORED))
        return frame

    def take_along(self, rows: DataFrame, role: SessionRole) -> DataFrame:
        """Rows of another state with the windows of the new sessions; those of no session keep theirs.

        Timers at the end of a session or later, such as for allowed lateness, keep their distance to its end.

        Args:
            rows: under new keys, with `OLD_KEY`.
            role: of the state.
        """
        old, new = (STORED_UNDER, _NEW_STORED) if role is SessionRole.STORED else (SESSION, _NEW_SESSION)
        found = self.unite().select(OLD_KEY, F.col(old).alias(NAMESPACE), F.col(new).alias(SESSION))
        joined = rows.join(found.dropDuplicates([OLD_KEY, NAMESPACE]), [OLD_KEY, NAMESPACE], "left")
        if TIMESTAMP in joined.columns:
            moved = F.col(TIMESTAMP) + (F.col(SESSION)["end"] - F.col(NAMESPACE)["end"])
            # A timer of SQL is in local time, and of the end of a session always.
            at_end = F.lit(True) if self.is_sql else F.col(TIMESTAMP) >= F.col(NAMESPACE)["end"] - 1
            time = F.when(F.col(SESSION).isNotNull() & at_end, moved).otherwise(F.col(TIMESTAMP))
            joined = joined.withColumn(TIMESTAMP, time)
        return joined.withColumn(NAMESPACE, F.coalesce(SESSION, NAMESPACE)).select(*rows.columns)


def leave_out_sessions(
    rows: DataFrame, sessions: DataFrame, contents: tuple[DataFrame, DataFrame], role: SessionRole
) -> DataFrame:
    """The rows whose session did not lose all its contents; all frames have `OLD_KEY`.

    Args:
        rows: of a state; those of the sessions themselves are of `list_sessions`.
        sessions: rows of `list_sessions`.
        contents: before and after a filter.
        role: of the state of `rows`.
    """
    pair = [OLD_KEY, NAMESPACE]
    before, after = (each.select(*pair).distinct() for each in contents)
    lost = before.join(after, pair, "left_anti").withColumnRenamed(NAMESPACE, STORED_UNDER)
    gone = sessions.select(OLD_KEY, SESSION, STORED_UNDER).join(lost, [OLD_KEY, STORED_UNDER], "left_semi")
    if role is SessionRole.SET:
        return rows.join(gone.select(OLD_KEY, SESSION), [OLD_KEY, SESSION], "left_anti").select(*rows.columns)
    window: Column = F.col(STORED_UNDER if role is SessionRole.STORED else SESSION)
    found = gone.select(OLD_KEY, window.alias(NAMESPACE))
    return rows.join(found, pair, "left_anti").select(*rows.columns)
