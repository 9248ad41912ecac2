"""Permissions of a migration file: SQL over the row that it changes, unless the user allows more.

Migration files come with a job, and are reviewed less than its code. Spark's SQL reads files and tables, and calls Java
and Python; a file may do none of it by itself. Every expression of a plan is parsed, which resolves and evaluates
nothing, and the parsed tree is looked through before Spark analyses it.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import MigrationError, at
from state_pipelines.operations.migration.flows import Apply, Call, Read, list_sqls, walk_flow
from state_pipelines.spark.failures import translate_failures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from state_pipelines.operations.migration.migration_plan import OperatorPlan
    from state_pipelines.snapshot import Operator

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
"""Functions of other groups that are allowed too. The others there call Java, read files or name the session."""

_ANALYSIS = frozenset(
    f"org.apache.spark.sql.catalyst.analysis.Unresolved{name}"
    for name in ("Attribute", "Function", "Star", "ExtractValue", "Alias")
)
"""Nodes of the package `analysis` that stand in expressions over a row; others become relations or any function."""

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
        plans: of the operators, with their ways back.
        allow_sql: allow any SQL: subqueries, tables, files, windows, functions of Java and of the session.
        allow_python: allow Python functions that a file names.

    Raises:
        MigrationError: an expression does more, or a step names a Python function, and that is not allowed.
    """
    for operator, plan in plans:
        for each in (plan, plan.back):
            for name, flow in () if each is None else each.changed.items():
                for node in walk_flow(flow):
                    step = None if isinstance(node, Read) else node.step or None
                    with at(operator=operator.label, state=name, path=step):
                        if not allow_python:
                            _refuse_python(node)
                        for sql in () if allow_sql else list_sqls(node):
                            require_row_level(spark, sql)


def _refuse_python(node: object) -> None:
    if isinstance(node, Apply) and isinstance(node.stage, Call) and isinstance(node.stage.function, str):
        raise MigrationError(f"the step calls the Python function {node.stage.function}", hint=_HINT_PYTHON)


def require_row_level(spark: SparkSession, sql: str) -> None:
    """Refuse SQL that is more than an expression over the columns of a row.

    Raises:
        MigrationError: it has a subquery or a window, or calls a function that is not in `FUNCTION_GROUPS` or
            `FUNCTIONS`; or Spark cannot parse it.
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
        elif _has_plan(jvm, kind):
            raise _refuse(sql, "has a subquery")
        elif kind.endswith(".WindowExpression"):
            raise _refuse(sql, "looks at other rows (OVER)")
        elif ".catalyst.analysis." in kind and kind not in _ANALYSIS:
            raise _refuse(sql, f"is not an expression over a row ({kind.rpartition('.')[2]})")


def _refuse(sql: str, why: str) -> MigrationError:
    return MigrationError(f"the expression {sql} {why}, which a migration file may not do by itself", hint=_HINT_SQL)


def _walk(value: object) -> Iterator[dict[str, Any]]:
    """Every node of a tree as `TreeNode.toJSON` writes it, those inside fields of others too."""
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
    """Return whether a class of expressions holds a plan, as subqueries do."""
    expressions = "org.apache.spark.sql.catalyst.expressions"
    base = jvm.java.lang.Class.forName(f"{expressions}.PlanExpression")
    return bool(base.isAssignableFrom(jvm.java.lang.Class.forName(kind)))
