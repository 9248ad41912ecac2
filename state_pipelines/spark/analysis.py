"""Analysis of the SQL of a migration before any data are read: names, types, constants, and what it is permitted to do.

Migration files come with a job, and are reviewed less than its code. Spark's SQL reads files and tables, and calls Java
and Python; a file may do none of it by itself: its SQL is over the row that it changes, unless the user allows more.
Every expression of a plan is parsed, which resolves and evaluates nothing, and the parsed tree is checked before Spark
analyses it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from state_pipelines.errors import MigrationError, at
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.state_table import KeyedTable, TableOptions
from state_pipelines.operations.migration.flows import (
    Apply,
    Call,
    KeepKeys,
    Read,
    StateMerge,
    TableFill,
    list_sqls,
    walk_flow,
)
from state_pipelines.operations.migration.steps import Direction, list_expressions
from state_pipelines.operations.migration.structs import find_bare
from state_pipelines.serializers.tree import StateKind
from state_pipelines.spark.flows import FlowRunner, name_columns
from state_pipelines.spark.operator_state import make_encoder
from state_pipelines.spark.tasks import translate_failures
from state_pipelines.spark.types import PAYLOAD, STORED, VISIBLE, find_layouts, hidden, layout_type, spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.operations.migration.flows import Flow, OperatorPlan
    from state_pipelines.operations.migration.migration_planner import Chain
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator


def analyse_plans(spark: SparkSession, plans: Iterable[tuple[Operator, OperatorPlan]]) -> None:
    """Let Spark analyse every expression of plans and of their reverse migrations (`back`), before any row is read.

    The expressions are applied to frames that have the columns of the states, and no rows.

    Raises:
        MigrationError: Spark refuses an expression, or a constant cannot be evaluated; names operator, state and step.
    """
    for operator, plan in plans:
        for each in (plan, plan.back):
            for flow in () if each is None else each.changed.values():
                assert each is not None
                # An `EmptyReader` takes the layouts of states from the plan. It need not read file headers for the
                # subclasses of a state's class: the planned shapes list them already.
                shapes = {read.state: read.shape for read in walk_flow(flow, beside=True) if isinstance(read, Read)}
                reader = EmptyReader(spark, operator, shapes, each.row_layouts)
                with at(operator=operator.label):
                    FlowRunner(reader, each.row_layouts, folding=True).build(flow)


def differ_by_case(plans: Iterable[tuple[Operator, OperatorPlan]]) -> bool:
    """Return whether two names that SQL may use differ only in case, so that Spark must resolve names by case."""
    for _, plan in plans:
        for each in (plan, plan.back):
            for flow in () if each is None else each.changed.values():
                assert each is not None
                for node in walk_flow(flow, beside=True):
                    if isinstance(node, StateMerge) and _collide([*VISIBLE, *(name for name, _ in node.inputs)]):
                        return True
                    if node.shape.kind == StateKind.TIMER:
                        continue
                    kind = layout_type(find_layouts(node.shape.payload, each.row_layouts)[1])
                    fields = kind.names if isinstance(kind, StructType) else []
                    if _collide({*fields, *VISIBLE, "value"}) or _has_collision(kind):
                        return True
    return False


def _collide(names: Collection[str]) -> bool:
    return len({name.lower() for name in names}) < len(names)


def _has_collision(kind: DataType) -> bool:
    match kind:
        case StructType():
            return _collide(kind.names) or any(_has_collision(each.dataType) for each in kind)
        case ArrayType(elementType=element):
            return _has_collision(element)
        case MapType(keyType=key, valueType=value):
            return _has_collision(key) or _has_collision(value)
        case _:
            return False


@dataclass(frozen=True)
class EmptyReader:
    """Reader whose frames have the columns of a state but no rows, to analyse SQL; see `flows.FrameReader`.

    Attributes:
        operator: the operator that has the states, or will have them.
        shapes: shape of each state, by name of the state.
        layouts: context from which the layouts of serializers are derived.
    """

    spark: SparkSession
    operator: Operator
    shapes: Mapping[str, StateShape]
    layouts: LayoutContext

    def read(self, name: str, keys: tuple[str, ...], *, stored: bool = False) -> DataFrame:
        """See `flows.FrameReader.read`."""
        schema = spark_schema(self._make_schema(self.shapes[name], keys))
        # Spark must not know that the frame is empty: it would simplify the plan and evaluate no constants.
        frame = self.spark.range(0).mapInArrow(_pass, schema)
        return frame.withColumn(STORED, F.col(PAYLOAD)) if stored else frame

    def _make_schema(self, shape: StateShape, keys: tuple[str, ...]) -> pa.Schema:
        if not shape.is_keyed:
            *others, payload = make_encoder(self.operator, shape, self.layouts).types.items()
            extra = others[0] if shape.kind == StateKind.BROADCAST else ("list_index", pa.int64())
            return pa.schema([(hidden("subtask"), pa.int32()), (hidden(extra[0]), extra[1]), (PAYLOAD, payload[1])])
        assert shape.key is not None
        layout = derive_keyed_layout(shape.info, shape.key, self.operator.max_parallelism, self.layouts)
        names = name_columns(layout, keys)
        schema = KeyedTable(layout, TableOptions(columns=tuple(names), key_bytes=True), "").schema
        return pa.schema([each.with_name(names[each.name]) for each in schema])


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


FUNCTION_GROUPS = frozenset(
    f"{name}_funcs"
    for name in (
        *("agg", "array", "bitwise", "collection", "conditional", "conversion", "csv", "datetime", "hash", "json"),
        *("lambda", "map", "math", "predicate", "sketch", "string", "struct", "url", "variant", "vector"),
    )
)
"""Groups of Spark's built-in functions (`ExpressionInfo.getGroup`) whose functions see nothing but their arguments."""

FUNCTIONS = frozenset(
    {"aes_decrypt", "aes_encrypt", "assert_true", "bitmap_count", "hmac", "raise_error", "try_aes_decrypt", "typeof"}
    | {"uuid"}
)
"""Allowed functions of other groups. All other functions of those groups call Java, read files or name the session."""

_ANALYSIS = frozenset(
    f"org.apache.spark.sql.catalyst.analysis.Unresolved{name}"
    for name in ("Attribute", "Function", "Star", "ExtractValue", "Alias")
)
"""Nodes of the package `analysis` that may occur in expressions over a row; others stand for relations or any
function."""

_SESSION_NAMES = frozenset({("current_user",), ("session_user",), ("user",)})
"""Names that Spark takes for functions of the session if the row has no column of the name
(`LiteralFunctionResolution`)."""

_TIME_NAMES = frozenset({("current_date",), ("current_time",), ("current_timestamp",), ("localtimestamp",)})
"""Functions that return the current time, which are allowed."""

_ATTRIBUTE = "org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute"
_FUNCTION = "org.apache.spark.sql.catalyst.analysis.UnresolvedFunction"
_HINT_SQL = "Write it with SQL functions over the row; if you trust the file, allow it with --allow-sql"
_HINT_PYTHON = "If you trust the file and the module that it names, allow it with --allow-python"


def require_permitted(
    spark: SparkSession,
    plans: Iterable[tuple[Operator, OperatorPlan]],
    *,
    allow_sql: bool,
    allow_python: bool,
) -> None:
    """Refuse plans that do more than SQL over their rows.

    Args:
        spark: its parser is used.
        plans: the operators with their plans; the reverse migration of a plan (`back`) is checked as well.
        allow_sql: allow any SQL: subqueries, tables, files, windows, functions of Java and of the session.
        allow_python: allow Python functions that a file names.

    Raises:
        MigrationError: an expression does more than is allowed, or a step names a Python function without permission.
    """
    for operator, plan in plans:
        for each in (plan, plan.back):
            for name, flow in () if each is None else each.changed.items():
                for node in walk_flow(flow, beside=True):
                    step = None if isinstance(node, Read) else node.step or None
                    with at(operator=operator.label, state=name, path=step):
                        if not allow_python:
                            _refuse_python(node)
                        if not allow_sql:
                            _refuse_tables(node)
                        for sql in () if allow_sql else _list_computed(node, plan.row_layouts):
                            require_row_level(spark, sql, partial(_list_columns, node, plan.row_layouts))


def require_expressions(spark: SparkSession, chain: Chain) -> None:
    """Refuse SQL texts of steps that are not exactly one expression, before they are inserted into longer SQL.

    Raises:
        MigrationError: Spark cannot parse a text by itself; names file, operator, state and step.
    """
    session: Any = spark._jsparkSession
    parser = session.sessionState().sqlParser()
    for migration, direction in chain:
        for change in migration.changes:
            steps = {direction: change.steps(direction)}
            if not change.impossible:
                steps |= {each: change.steps(each) for each in Direction}
            for each, listed in steps.items():
                for number, step in enumerate(listed, 1):
                    where = {"operator": change.operator, "state": change.state, "file": migration.path or None}
                    with at(path=f"{each} {number}", **where):
                        for text in list_expressions(step):
                            with translate_failures(f"{text!r} is not an expression"):
                                parser.parseExpression(text)


def _refuse_tables(node: object) -> None:
    if isinstance(node, Apply) and isinstance(node.stage, TableFill):
        raise MigrationError(f"the step reads the table {node.stage.table}", hint=_HINT_SQL)


def _refuse_python(node: object) -> None:
    if isinstance(node, Apply) and isinstance(node.stage, Call) and isinstance(node.stage.function, str):
        raise MigrationError(f"the step calls the Python function {node.stage.function}", hint=_HINT_PYTHON)


def _list_computed(node: Flow, layouts: LayoutContext) -> Iterator[str]:
    """Yield the SQL expressions of a node that compute something; leave out those that are only the name of a column.

    Names of columns need no check, and are most of the expressions in long chains of revisions.
    """
    sqls = tuple(list_sqls(node))
    columns = _list_columns(node, layouts) if any(map(find_bare, sqls)) else ()
    yield from (sql for sql in sqls if find_bare(sql) not in columns)


def _list_columns(node: Flow, layouts: LayoutContext) -> Collection[str]:
    """Return the names that the SQL of a node may use for columns."""
    if isinstance(node, StateMerge):
        return (*VISIBLE, *(name for name, _ in node.inputs))
    assert isinstance(node, Apply)
    shape = node.stage.by.shape if isinstance(node.stage, KeepKeys) else node.input.shape
    kind = layout_type(find_layouts(shape.payload, layouts)[1])
    return (*VISIBLE, "value", *(kind.names if isinstance(kind, StructType) else ()))


def require_row_level(spark: SparkSession, sql: str, list_columns: Callable[[], Collection[str]] = tuple) -> None:
    """Refuse SQL that is more than an expression over the columns of a row.

    Args:
        spark: its parser is used.
        sql: the expression.
        list_columns: returns the names of the row's columns; called only if a name may belong to the session instead.

    Raises:
        MigrationError: the SQL has a subquery or a window, calls a function that is not in `FUNCTION_GROUPS` or
            `FUNCTIONS`, or names the user or a variable of the session; or Spark cannot parse it.
    """
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    with translate_failures("the migration cannot be applied"):
        tree = json.loads(session.sessionState().sqlParser().parseExpression(sql).toJSON())
    for node in _walk(tree):
        kind = node["class"]
        if kind == _FUNCTION:
            name = str(node["nameParts"]).removeprefix("[").removesuffix("]").lower()
            if not _is_allowed(jvm, name):
                raise _refuse(sql, f"calls the function {name}")
        elif kind == _ATTRIBUTE:
            names = tuple(str(node["nameParts"]).removeprefix("[").removesuffix("]").split(", "))
            if _may_be_of_session(session, names) and not _is_column(spark, names[0], list_columns()):
                raise _refuse(sql, f"names {'.'.join(names)}, which is of the session and no column of the row,")
        elif _has_plan(jvm, kind):
            raise _refuse(sql, "has a subquery")
        elif kind.endswith(".WindowExpression"):
            raise _refuse(sql, "looks at other rows (OVER)")
        elif ".catalyst.analysis." in kind and kind not in _ANALYSIS:
            raise _refuse(sql, f"is not an expression over a row ({kind.rpartition('.')[2]})")


def _may_be_of_session(session: Any, names: tuple[str, ...]) -> bool:
    """Return whether a name may mean the user or a variable of the session, if no column of the row has this name."""
    lower = tuple(name.lower() for name in names)
    if lower in _SESSION_NAMES or (lower[0] == "session" and len(lower) > 1) or lower[:2] == ("system", "session"):
        return True
    has_variables = not session.sessionState().catalogManager().tempVariableManager().isEmpty()
    return has_variables and lower not in _TIME_NAMES


def _is_column(spark: SparkSession, name: str, columns: Collection[str]) -> bool:
    if spark.conf.get("spark.sql.caseSensitive") == "true":
        return name in columns
    return name.lower() in {each.lower() for each in columns}


def _refuse(sql: str, why: str) -> MigrationError:
    return MigrationError(f"the expression {sql} {why}, which a migration file may not do by itself", hint=_HINT_SQL)


def _walk(value: object) -> Iterator[dict[str, Any]]:
    """Yield every node in the JSON of `TreeNode.toJSON`, also nodes inside fields of other nodes."""
    if isinstance(value, dict):
        if "class" in value:
            yield value
        for each in value.values():
            yield from _walk(each)
    elif isinstance(value, list):
        for each in value:
            yield from _walk(each)


@cache
def _is_allowed(jvm: Any, name: str) -> bool:
    if name in FUNCTIONS:
        return True
    analysis = jvm.org.apache.spark.sql.catalyst.analysis
    identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name)
    found = analysis.FunctionRegistry.builtin().lookupFunction(identifier)
    return bool(found.isDefined()) and found.get().getGroup() in FUNCTION_GROUPS


@cache
def _has_plan(jvm: Any, kind: str) -> bool:
    """Return whether expressions of a class hold a logical plan (`PlanExpression`), as subqueries do."""
    expressions = "org.apache.spark.sql.catalyst.expressions"
    base = jvm.java.lang.Class.forName(f"{expressions}.PlanExpression")
    return bool(base.isAssignableFrom(jvm.java.lang.Class.forName(kind)))
