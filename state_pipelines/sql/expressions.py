"""Expressions of compiled plans as text, with every reference to an input replaced by the text of that column.

Source: `RexNodeJsonSerializer`, `AggregateCallJsonSerializer`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from state_pipelines.sql.compiled_plans import list_mappings

MOST_TEXT = 1000
"""Characters of an expression; a longer one is its beginning and a hash, since texts contain each other."""

_MOST_DEPTH = 200
_INTERNAL_NAME = re.compile(r"\$(.+)\$\d+")
_NAMES = ("internalName", "systemName", "catalogName", "class")


def render_expression(value: object, columns: Sequence[str], *, depth: int = 0) -> str:
    """Return an expression as text.

    Args:
        value: JSON of the plan.
        columns: text of each column of the input.
        depth: of the expression inside others.
    """
    if not isinstance(value, Mapping) or depth > _MOST_DEPTH:
        return _render_json(value)

    def render(each: object) -> str:
        return render_expression(each, columns, depth=depth + 1)

    match value.get("kind"):
        case "INPUT_REF" | "PATTERN_INPUT_REF":
            text = find_column(columns, value.get("inputIndex"))
            return text if "alpha" not in value else f"{value['alpha']}:{text}"
        case "LITERAL":
            return _render_literal(value)
        case "FIELD_ACCESS":
            return f"{render(value.get('expr'))}.{value.get('name')}"
        case "CORREL_VARIABLE":
            return str(value.get("correl"))
        case "CALL":
            return shorten(_render_call(value, [render(each) for each in value.get("operands") or ()], render))
    return _render_json(value)


def find_column(columns: Sequence[str], index: object) -> str:
    """Return the text of a column; a mark where there is no such column."""
    return columns[index] if isinstance(index, int) and 0 <= index < len(columns) else f"?{index}"


def find_function(value: Mapping[str, Any]) -> str:
    """Return the name of the function that a call names: SUM, $SUM0, CAST, or that of a function of the user."""
    for name in _NAMES:
        found = value.get(name)
        if isinstance(found, str):
            internal = _INTERNAL_NAME.fullmatch(found)
            return internal[1] if internal else found
    return "?"


def render_aggregate(call: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return an aggregate call as text, such as `SUM(DISTINCT src.amount) FILTER (src.ok)`."""
    found = call.get("argList")
    arguments = [find_column(columns, each) for each in found] if isinstance(found, list) else []
    text = ", ".join(arguments)
    function = find_function(call)
    if not arguments and function == "COUNT":
        text = "*"
    if call.get("distinct"):
        text = f"DISTINCT {text}"
    if call.get("approximate"):
        text = f"APPROXIMATE {text}"
    if call.get("ignoreNulls"):
        text += " IGNORE NULLS"
    filtered = call.get("filterArg", -1)
    where = f" FILTER ({find_column(columns, filtered)})" if isinstance(filtered, int) and filtered >= 0 else ""
    return shorten(f"{function}({text}){where}")


def shorten(text: str) -> str:
    """Return a text, or its beginning and a hash where it is long; equal texts stay equal, others differ."""
    if len(text) <= MOST_TEXT:
        return text
    return f"{text[: MOST_TEXT // 2]}…#{digest(text)}"


def digest(value: object) -> str:
    """Return a hash of JSON, as 12 hexadecimal digits."""
    return hashlib.sha256(_render_json(value).encode(errors="backslashreplace")).hexdigest()[:12]


def _render_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _render_literal(value: Mapping[str, Any]) -> str:
    found = value.get("value")
    kind = value.get("type")
    plain = isinstance(kind, str) and kind.removesuffix(" NOT NULL") in ("INT", "BIGINT", "BOOLEAN")
    if found is None and "symbol" in value:
        return str(value["symbol"])
    if plain:
        return str(found)
    if isinstance(kind, str) and kind.startswith(("CHAR(", "VARCHAR(")):
        return "'" + str(found).replace("'", "''") + "'"
    return f"{found}:{kind if isinstance(kind, str) else _render_json(kind)}"


def _render_call(value: Mapping[str, Any], operands: list[str], render: Any) -> str:
    name = find_function(value)
    if name in ("CAST", "TRY_CAST", "REINTERPRET"):
        kind = value.get("type")
        return f"{name}({', '.join(operands)} AS {kind if isinstance(kind, str) else _render_json(kind)})"
    syntax = value.get("syntax")
    if syntax == "BINARY" and len(operands) > 1:
        return "(" + f" {name} ".join(operands) + ")"
    if syntax == "POSTFIX" and len(operands) == 1:
        return f"({operands[0]} {name})"
    extra = [f"{key}={render(value[key])}" for key in ("rexWindowBound", "rangeBounds") if key in value]
    return f"{name}({', '.join([*operands, *extra])})"


def render_sort(spec: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the columns of a sort specification, with their directions."""
    fields = list_mappings(spec.get("fields"))
    return ", ".join(
        f"{find_column(columns, each.get('index'))} {'ASC' if each.get('isAscending') else 'DESC'}"
        f"{' NULLS LAST' if each.get('nullIsLast') else ''}"
        for each in fields
    )
