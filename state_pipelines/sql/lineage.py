"""Expressions of a plan, and their lineage: the columns of tables that they are computed from.

* `render_expression`, `render_aggregate`: expressions of compiled plans as text, with every reference to an input
  replaced by the text of that column. Source: `RexNodeJsonSerializer`, `AggregateCallJsonSerializer`.
* `Lineage`, `trace_lineage`: the texts of each node. Two nodes with equal texts hold equal rows for equal input,
  whatever their ids, and whatever projections, exchanges and mini-batches lie between the tables and them. Where the
  meaning of a node is not known in detail, its texts hold a hash of all that the plan says of it, so that a change of
  anything is a change of the text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from state_pipelines.errors import StateError
from state_pipelines.sql.compiled_plans import Plan, PlanNode, list_mappings, read_type, reading_fields
from state_pipelines.sql.conversions import keeps_values

MOST_TEXT = 1000
"""Maximum number of characters of an expression. Of longer ones the beginning and a hash are used, because texts
contain each other."""

NULL = "NULL"
"""Text of a literal without a value."""

LOSSY = ", lossy"
"""End of the text of a cast that may lose something of a value."""

_MOST_DEPTH = 200
_INTERNAL_NAME = re.compile(r"\$(.+)\$\d+")
_NAMES = ("internalName", "systemName", "catalogName", "class")


def render_expression(value: object, columns: Sequence[str], *, depth: int = 0) -> str:
    """Return an expression of a plan as text, over the texts of the columns of its input.

    Args:
        value: JSON of the plan.
        columns: text of each column of the input.
        depth: number of expressions that this one is nested in.
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
    """Return the text of a column; a placeholder if there is no such column."""
    return columns[index] if isinstance(index, int) and 0 <= index < len(columns) else f"?{index}"


def find_function(value: Mapping[str, Any]) -> str:
    """Return the name of the function in a call: SUM, $SUM0, CAST, or the name of a user-defined function."""
    for name in _NAMES:
        found = value.get(name)
        if isinstance(found, str):
            internal = _INTERNAL_NAME.fullmatch(found)
            return internal[1] if internal else found
    return "?"


def _render_function(value: Mapping[str, Any]) -> str:
    """Return the function of a call as text; for a user-defined function with its class, which identifies it."""
    name, of = find_function(value), value.get("class")
    return f"{name} of {of}" if isinstance(of, str) and of != name else name


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
    return shorten(f"{_render_function(call)}({text}){where}")


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
    if isinstance(value.get("sarg"), Mapping):
        return _render_ranges(value["sarg"], kind)
    if found is None and "symbol" in value:
        return str(value["symbol"])
    if found is None and not set(value) <= {"kind", "value", "type"}:
        # The value is in a field with a name that is not known here; the hash makes different values differ in text.
        return digest(value)
    if found is None:
        return NULL
    if plain:
        return str(found)
    if isinstance(kind, str) and kind.startswith(("CHAR(", "VARCHAR(")):
        return "'" + str(found).replace("'", "''") + "'"
    return f"{found}:{kind if isinstance(kind, str) else _render_json(kind)}"


def _render_ranges(found: Mapping[str, Any], kind: object) -> str:
    """Return the values and ranges that SEARCH looks for (`RexNodeJsonSerializer.serializeSarg`)."""

    def render(bound: object) -> str:
        return _render_literal({"value": bound.get("value"), "type": kind}) if isinstance(bound, Mapping) else ""

    texts = []
    for each in list_mappings(found.get("ranges")):
        lower, upper = each.get("lower"), each.get("upper")
        if lower == upper and lower is not None:
            texts.append(render(lower))
            continue
        marks = [isinstance(bound, Mapping) and bound.get("boundType") == "CLOSED" for bound in (lower, upper)]
        texts.append(f"{'[' if marks[0] else '('}{render(lower)}..{render(upper)}{']' if marks[1] else ')'}")
    rest = {key: each for key, each in found.items() if key != "ranges" and each != "UNKNOWN"}
    return f"{{{', '.join(texts)}}}{f' {_render_json(rest)}' if rest else ''}"


def _render_call(value: Mapping[str, Any], operands: list[str], render: Any) -> str:
    name = find_function(value)
    if name in ("CAST", "TRY_CAST", "REINTERPRET"):
        kind = value.get("type")
        target = kind if isinstance(kind, str) else _render_json(kind)
        return f"{name}({', '.join(operands)} AS {target}{LOSSY if _loses_values(value) else ''})"
    syntax = value.get("syntax")
    if syntax == "BINARY" and len(operands) > 1:
        return "(" + f" {name} ".join(operands) + ")"
    if syntax == "POSTFIX" and len(operands) == 1:
        return f"({operands[0]} {name})"
    extra = [f"{key}={render(value[key])}" for key in ("rexWindowBound", "rangeBounds") if key in value]
    return f"{_render_function(value)}({', '.join([*operands, *extra])})"


def _loses_values(cast: Mapping[str, Any]) -> bool:
    """Return whether a cast may lose something of a value, such as digits or the end of a text."""
    operands = list_mappings(cast.get("operands"))
    try:
        before, after = read_type(operands[0].get("type") if operands else None), read_type(cast.get("type"))
    except StateError:
        return False
    return not keeps_values(before, after)


def render_sort(spec: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the columns of a sort specification, with their directions."""
    fields = list_mappings(spec.get("fields"))
    return ", ".join(
        f"{find_column(columns, each.get('index'))} {'ASC' if each.get('isAscending') else 'DESC'}"
        f"{' NULLS LAST' if each.get('nullIsLast') else ''}"
        for each in fields
    )


_DEFAULT_PATH = ("default_catalog", "default_database")
_IDENTIFIER = re.compile(r"`((?:[^`]|``)*)`")
_REPEATED = re.compile(r"\b(other|third|\d+th) ")
_PAIR = re.compile(r"(\S+) = ((?:(?:other|third|\d+th) )*[^\s();]+)")
# Fields of a node that the description of its rows leaves out: they say how the node is run, or where it is in the
# plan, not what its rows are.
_IGNORED = ("id", "type", "description", "inputProperties", "configuration", "state", "outputType")
# Abilities of sources that do not change which rows are read; what they change of columns is in the output type.
_PROJECTIONS = ("ProjectPushDown", "ReadingMetadata", "WatermarkPushDown", "SourceWatermark")


@dataclass(frozen=True)
class Lineage:
    """The rows that a node emits.

    Attributes:
        columns: each column as text: its expression over columns of tables.
        rows: the rows as text: tables, filters, joins, keys of aggregates.
        tables: the tables of these columns; a table that is joined several times is repeated.
    """

    columns: tuple[str, ...]
    rows: str
    tables: tuple[str, ...] = ()


def trace_lineage(plan: Plan) -> Mapping[int, Lineage]:
    """Trace the columns of all nodes of a plan to the columns of its tables.

    Raises:
        FormatError: a node lacks inputs or fields of its kind.
    """
    found: dict[int, Lineage] = {}
    for node in plan.nodes:
        inputs = [found[each] for each in node.inputs]
        traced = None
        with reading_fields(node):
            if node.kind in AGGREGATES:
                base = find_arguments(plan, node, found)
                traced = None if base is None else _trace_aggregate(plan, node, base, inputs[0])
            elif node.kind in _TRACES:
                traced = _TRACES[node.kind](node, inputs)
        if traced is None or (len(traced.columns) != len(node.columns) and node.row is not None):
            traced = _trace_unknown(node, inputs)
        tables = traced.tables or _join_tables(inputs)
        found[node.id] = Lineage(tuple(map(shorten, traced.columns)), shorten(traced.rows), tables)
    return found


def _join_tables(inputs: Sequence[Lineage]) -> tuple[str, ...]:
    """Return the tables of all inputs of a node that is no join, each as often as in the input that repeats it most."""
    counts = Counter[str]()
    for each in inputs:
        counts |= Counter(each.tables)
    return tuple(sorted(counts.elements()))


def describe_node(plan: Plan, node: PlanNode, found: Mapping[int, Lineage]) -> str:
    """Describe a node by the text of its rows, in which `#0`, `#1` … stand for the rows of its inputs.

    Args:
        plan: the plan that has the node.
        node: the node.
        found: texts of all nodes of the plan.
    """
    inputs = [replace(found[each], rows=f"#{index}") for index, each in enumerate(node.inputs)]
    with reading_fields(node):
        if node.kind in AGGREGATES:
            base = find_arguments(plan, node, found)
            if base is not None:
                return _trace_aggregate(plan, node, replace(base, rows="#0"), inputs[0]).rows
        elif node.kind == "over-aggregate":
            return "; ".join(text for text, _ in _list_over(node, inputs[0]))
        elif (trace := _TRACES.get(node.kind)) is not None and (traced := trace(node, inputs)) is not None:
            return traced.rows
    return _trace_unknown(node, inputs).rows


def find_mark(text: str) -> str:
    """Return the last mark of a repeated table in a text, such as `other` (see `_mark_right`); empty without one."""
    found = _REPEATED.findall(text)
    return found[-1] if found else ""


def list_joined_pairs(text: str) -> Mapping[str, frozenset[str]]:
    """Return the equalities of columns in the text of joined rows, grouped by the mark of their right column."""
    found: dict[str, set[str]] = {}
    for left, right in _PAIR.findall(text):
        found.setdefault(find_mark(right), set()).add(f"{left} = {right}")
    return {mark: frozenset(pairs) for mark, pairs in found.items()}


def without_filters(plan: Plan) -> Plan:
    """Return the plan without the conditions of its nodes, so that its texts only say which columns rows come from."""
    return replace(plan, nodes=tuple(replace(each, content=_drop_conditions(each)) for each in plan.nodes))


def find_conditions(node: PlanNode, inputs: Sequence[Lineage]) -> tuple[str, ...]:
    """Return the conditions of a node that `without_filters` leaves out, as texts."""
    columns = [text for each in inputs for text in each.columns]
    found = [node.content.get(name) for name in _CONDITIONS]
    found += [_below(node.mapping("intervalJoinSpec"), "joinSpec").get("nonEquiCondition")]
    found += [node.mapping("joinSpec").get("nonEquiCondition")]
    texts = [render_expression(each, columns) for each in found if each is not None]
    if node.kind == "table-source-scan":
        rows = _trace_source(node, ()).rows
        texts += [rows.partition(" where ")[2]] if " where " in rows else []
    return tuple(texts)


_CONDITIONS = ("condition", "filterCondition")


def _drop_conditions(node: PlanNode) -> Mapping[str, Any]:
    content = {key: value for key, value in node.content.items() if key not in _CONDITIONS}
    for name in ("joinSpec", "intervalJoinSpec", "scanTableSource"):
        if isinstance(content.get(name), Mapping):
            content[name] = _drop_inner(content[name])
    return content


def _drop_inner(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    found = {key: value for key, value in spec.items() if key != "nonEquiCondition"}
    if isinstance(found.get("joinSpec"), Mapping):
        found["joinSpec"] = _drop_inner(found["joinSpec"])
    if "abilities" in found:
        kept = list_mappings(found["abilities"])
        found["abilities"] = [each for each in kept if each.get("type") != "FilterPushDown"]
    return found


def find_table(node: PlanNode) -> str:
    """Return the name of the table that a source or sink names, without the default catalog and database."""
    holder = node.mapping("scanTableSource") or node.mapping("dynamicTableSink")
    return _name_table(holder)


def _name_table(holder: Mapping[str, Any]) -> str:
    table = holder.get("table")
    identifier = str(table.get("identifier", "")) if isinstance(table, Mapping) else ""
    path = [each.replace("``", "`") for each in _IDENTIFIER.findall(identifier)] or [identifier]
    if tuple(path[:-1]) == _DEFAULT_PATH:
        path = path[-1:]
    return ".".join(path) or "anonymous"


def find_table_options(node: PlanNode) -> Mapping[str, Any]:
    """Return the options of the table that a source or sink names, as the plan has them."""
    holder = node.mapping("scanTableSource") or node.mapping("dynamicTableSink")
    return _below(holder, "table", "resolvedTable", "options")


def find_arguments(plan: Plan, node: PlanNode, found: Mapping[int, Lineage]) -> Lineage | None:
    """Return the columns to which the arguments of an aggregate refer; None if they are not found.

    The arguments of a second phase refer to the input of the first phase, or to the result of an incremental node.
    """
    if node.kind not in SECOND_PHASES:
        return found[node.inputs[0]] if node.inputs else None
    for each in walk_up(plan, node):
        if each.kind in FIRST_PHASES:
            return found[each.inputs[0]] if each.inputs else None
        if each.kind == INCREMENTAL:
            base = find_arguments(plan, each, found)
            own = found[each.inputs[0]]
            return None if base is None else _trace_calls(plan, each, base, own, INCREMENTAL_FIELDS)
        if each.kind not in PASSED:
            return None
    return None


def walk_up(plan: Plan, node: PlanNode) -> Sequence[PlanNode]:
    """Return the nodes upstream of a node, nearest first, up to the first one that has not exactly one input."""
    chain = []
    while len(node.inputs) == 1:
        node = plan.by_id[node.inputs[0]]
        chain.append(node)
    return chain


def _trace_source(node: PlanNode, _: Sequence[Lineage]) -> Lineage:
    table = find_table(node)
    source = node.mapping("scanTableSource")
    abilities = [each for each in list_mappings(source.get("abilities")) if each.get("type") not in _PROJECTIONS]
    resolved = _below(source, "table", "resolvedTable", "schema")
    columns = [f"{table}.{each.get('name')}" for each in list_mappings(resolved.get("columns"))]
    rows = table
    for each in abilities:
        if each.get("type") == "FilterPushDown":
            wheres = [render_expression(one, columns) for one in each.get("predicates") or ()]
            if wheres:
                rows += f" where {' and '.join(sorted(wheres))}"
        else:
            rows += f" {each.get('type')} {digest(each)}"
    return Lineage(tuple(f"{table}.{name}" for name in node.columns), rows, (table,))


def _below(value: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        found = value.get(name)
        if not isinstance(found, Mapping):
            return {}
        value = found
    return value


def _trace_calc(node: PlanNode, inputs: Sequence[Lineage]) -> Lineage:
    (source,) = inputs
    projection = node.content.get("projection")
    expressions = projection if isinstance(projection, list) else []
    condition = node.content.get("condition")
    rows = source.rows
    if condition is not None:
        rows += f" where {render_expression(condition, source.columns)}"
    return Lineage(tuple(render_expression(each, source.columns) for each in expressions), rows)


def _trace_passed(_: PlanNode, inputs: Sequence[Lineage]) -> Lineage:
    return inputs[0]


def _trace_union(node: PlanNode, inputs: Sequence[Lineage]) -> Lineage:
    # The order of the branches in the query does not matter: sorted, equal unions have equal texts.
    branches = sorted(inputs, key=lambda each: each.rows)
    columns = zip(*(each.columns for each in branches), strict=False)
    return Lineage(
        tuple(texts[0] if len(set(texts)) == 1 else f"union({', '.join(texts)})" for texts in columns),
        f"union({'; '.join(each.rows for each in branches)})",
    )


def _trace_aggregate(plan: Plan, node: PlanNode, base: Lineage, own: Lineage) -> Lineage:
    fields = INCREMENTAL_FIELDS if node.kind == INCREMENTAL else _FIELDS
    whole = _trace_calls(plan, node, base, own, fields)
    if node.kind not in FIRST_PHASES and node.kind != INCREMENTAL:
        return whole
    # The columns after the keys are buffers, which only the next phase reads.
    keys = node.indices("finalAggGrouping" if node.kind == INCREMENTAL else "grouping")
    columns = tuple(find_column(own.columns, each) for each in keys)
    buffers = (f"{name} of {digest(whole.columns)}" for name in node.columns[len(columns) :])
    return Lineage((*columns, *buffers), whole.rows)


def _trace_calls(plan: Plan, node: PlanNode, base: Lineage, own: Lineage, fields: tuple[str, str]) -> Lineage:
    """Return the rows that an aggregate emits, as texts: its keys and the results of its calls.

    Args:
        plan: the plan that has the node.
        node: the aggregate.
        base: rows with the columns to which the arguments of the calls refer.
        own: rows of the input, with the columns to which the keys refer.
        fields: names of the fields with the keys and the calls.
    """
    grouping, calls = fields
    keys = [find_column(own.columns, each) for each in node.indices(grouping)]
    window = _render_window(plan, node, base)
    by = f" by ({', '.join([*keys, *([window] if window else [])])})"
    texts = [render_aggregate(each, base.columns) + by for each in node.mappings(calls)]
    properties = [f"{_below(each, 'property').get('kind')}{by}" for each in node.mappings("namedWindowProperties")]
    return Lineage((*keys, *texts, *properties), f"aggregate({base.rows}){by}")


def _render_window(plan: Plan, node: PlanNode, base: Lineage) -> str:
    """Return the window of an aggregate, with the column of its time; empty where it has none."""
    window = node.mapping("window")
    if window:
        time = _below(window, "timeField").get("fieldIndex")
        rest = {key: value for key, value in window.items() if key not in ("alias", "timeField")}
        return f"window {_render_mapping(rest)} of {find_column(base.columns, time)}"
    return render_windowing(plan, node, "windowing", base)


def render_windowing(plan: Plan, node: PlanNode, name: str, base: Lineage) -> str:
    """Return the window of a window table function, with the column of its time where the node says it."""
    windowing = node.mapping(name)
    if not windowing:
        return ""
    text = f"window {_render_mapping(_below(windowing, 'window'))}"
    if node.kind in SECOND_PHASES:
        first = next((each for each in walk_up(plan, node) if each.kind in FIRST_PHASES), None)
        windowing = windowing if first is None else first.mapping(name)
    time = windowing.get("timeAttributeIndex", windowing.get("windowEnd", windowing.get("sliceEnd")))
    return f"{text} of {find_column(base.columns, time)}"


def _render_mapping(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={each}" for key, each in sorted(value.items()))


def _trace_kept_columns(node: PlanNode, inputs: Sequence[Lineage]) -> Lineage:
    """Trace a node that chooses or sorts rows of its input (deduplication, rank, limit, sort) and keeps its columns."""
    (source,) = inputs
    columns = source.columns
    keys = [find_column(columns, each) for name in ("uniqueKeys", "partitionKeys") for each in node.indices(name)]
    keys += [
        find_column(columns, each)
        for name in ("partition", "partitionSpec")
        for each in node.mapping(name).get("fields") or ()
    ]
    sorts = [render_sort(node.mapping(name), columns) for name in ("orderBy", "sortSpec")]
    known = ("isRowtime", "keepLastRow", "rankType", "rankRange", "rankStart", "rankEnd", "orderKey")
    rest = {name: node.content[name] for name in known if node.content.get(name) is not None}
    window = _below(node.mapping("windowing"), "window")
    condition = node.content.get("filterCondition")
    if isinstance(rest.get("orderKey"), int):
        rest["orderKey"] = find_column(columns, rest["orderKey"])
    if isinstance(range_ := rest.get("rankRange"), Mapping):
        rest["rankRange"] = _render_mapping(range_)
    texts = [*keys, *(f"order {each}" for each in sorts if each), _render_mapping(rest)]
    if window:
        texts.append(f"window {_render_mapping(window)}")
    if condition is not None:
        texts.append(f"where {render_expression(condition, columns)}")
    rows = f"{_SHORT_KINDS.get(node.kind, node.kind)}({source.rows}; {'; '.join(texts)})"
    if node.content.get("outputRowNumber"):
        columns = (*columns, f"number in {digest(rows)}")
    return Lineage(columns, rows)


# Shorter names in texts; kinds of nodes that keep the same rows have the same name.
_SHORT_KINDS = {"changelog-normalize": "normalize", "sort-limit": "rank"}


def _trace_join(node: PlanNode, inputs: Sequence[Lineage]) -> Lineage:
    left, right = inputs
    spec = node.mapping("joinSpec") or _below(node.mapping("intervalJoinSpec"), "joinSpec")
    kind = spec.get("joinType")
    mark = _mark_right(left, right)
    if mark:
        # Both sides read the same table. If a query exchanges the sides, only the mark makes their texts differ.
        right = replace(right, columns=tuple(f"{mark}{each}" for each in right.columns))
    both = (*left.columns, *right.columns)
    nulls = find_null_keys(spec)
    keys = zip(spec.get("leftKeys") or (), spec.get("rightKeys") or (), nulls, strict=False)
    pairs = [
        f"{find_column(left.columns, one)} {_EQUAL[is_null]} {find_column(right.columns, other)}"
        for one, other, is_null in keys
    ]
    condition = spec.get("nonEquiCondition")
    if condition is not None:
        pairs.append(render_expression(condition, both))
    rest: dict[str, Any] = {}
    if "isTemporalFunctionJoin" in node.content:
        rest["isTemporalFunctionJoin"] = node.content["isTemporalFunctionJoin"]
    bounds = _below(node.mapping("intervalJoinSpec"), "windowBounds")
    rest |= {name: each for name, each in bounds.items() if name not in _TIME_INDICES}
    for name, side in (("leftWindowing", left), ("rightWindowing", right)):
        if windowing := node.mapping(name):
            rest[name] = [_render_mapping(_below(windowing, "window")), _find_window_column(windowing, side)]
    if times := find_join_times(node, inputs):
        rest["times"] = times
    text = f" with {digest(rest)}" if rest else ""
    rows = f"{node.kind} {kind}({left.rows}; {right.rows}; {' and '.join(pairs) or 'true'}{text})"
    if kind in ("SEMI", "ANTI"):
        return Lineage(left.columns, rows, left.tables)
    return Lineage(both, rows, (*left.tables, *right.tables))


_EQUAL = ("=", "IS NOT DISTINCT FROM")


def find_null_keys(spec: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return for each key of a join whether NULL equals NULL (IS NOT DISTINCT FROM, `JoinSpec.filterNulls`)."""
    found = spec.get("filterNulls")
    keys = spec.get("leftKeys") or ()
    return tuple(not each for each in found) if isinstance(found, list) else (False,) * len(keys)


def _mark_right(left: Lineage, right: Lineage) -> str:
    """Return the mark for columns of a join's right side, by how often the left side already has one of its tables.

    The mark does not depend on the number of columns that the query reads of a table: if it reads one more, the texts
    of the other columns stay.
    """
    times = max((left.tables.count(each) for each in right.tables), default=0)
    if times == 0 and not set(left.columns).isdisjoint(right.columns):
        times = 1
    return _MARKS[times] if times < len(_MARKS) else f"{times + 1}th "


_MARKS = ("", "other ", "third ")
"""Words before columns of a table that is joined for the second or the third time."""

_TIME_INDICES = ("leftTimeIndex", "rightTimeIndex")


def _find_window_column(windowing: Mapping[str, Any], side: Lineage) -> str:
    """Return the text of the column with the window of a row; unlike its index, it stays if other columns are added."""
    names = ("timeAttributeIndex", "windowEnd", "sliceEnd")
    return next((find_column(side.columns, windowing[name]) for name in names if name in windowing), "")


def find_join_times(node: PlanNode, inputs: Sequence[Lineage]) -> tuple[str, ...]:
    """Return the times of both sides of an interval join or a temporal join; empty for other nodes."""
    bounds = _below(node.mapping("intervalJoinSpec"), "windowBounds")
    indices = [bounds.get(name) for name in _TIME_INDICES]
    if node.kind == "temporal-join":
        indices = [node.content.get(f"{side}TimeAttributeIndex") for side in ("left", "right")]
    if len(inputs) != len(indices) or not any(isinstance(each, int) for each in indices):
        return ()
    sides = zip(inputs, indices, strict=True)
    return tuple(find_column(side.columns, index) if isinstance(index, int) else "" for side, index in sides)


def _trace_over(node: PlanNode, inputs: Sequence[Lineage]) -> Lineage:
    (source,) = inputs
    columns = _list_over_columns(node, source)
    texts = [
        f"{render_aggregate(each, columns)} {over}"
        for over, group in _list_over(node, source)
        for each in list_mappings(group.get("aggCalls"))
    ]
    kept = source.columns
    if len(kept) + len(texts) < len(node.columns):
        # Before Flink 2.0, an OVER aggregate also returns the constants of its window bounds, as columns after those of
        # its input.
        kept = columns
    return Lineage((*kept, *texts), source.rows)


def _list_over_columns(node: PlanNode, source: Lineage) -> tuple[str, ...]:
    constants = node.mapping("overSpec").get("constants") or ()
    return (*source.columns, *(render_expression(each, ()) for each in constants))


def _list_over(node: PlanNode, source: Lineage) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the windows of an OVER as texts, each with its group of aggregate calls in the plan."""
    spec = node.mapping("overSpec")
    columns = _list_over_columns(node, source)
    keys = [find_column(columns, each) for each in _below(spec, "partition").get("fields") or ()]
    for group in list_mappings(spec.get("groups")):
        order = render_sort(_below(group, "orderBy"), columns)
        bounds = [_render_bound(group.get(name), columns) for name in ("lowerBound", "upperBound")]
        unit = "rows" if group.get("isRows") else "range"
        yield f"over ({', '.join(keys)}; {order}; {unit} {' to '.join(bounds)})", group


def _render_bound(bound: object, columns: Sequence[str]) -> str:
    if not isinstance(bound, Mapping):
        return str(bound)
    offset = bound.get("offset")
    text = f"{bound.get('kind')}{' preceding' if bound.get('isPreceding') else ''}"
    return text if offset is None else f"{text} {render_expression(offset, columns)}"


def _trace_sink(node: PlanNode, inputs: Sequence[Lineage]) -> Lineage:
    return Lineage(inputs[0].columns, f"{inputs[0].rows} into {find_table(node)}") if inputs else Lineage((), "")


def _trace_correlate(node: PlanNode, inputs: Sequence[Lineage]) -> Lineage | None:
    """Return the columns of the left side, and those of a table function with its arguments, such as UNNEST."""
    (left,) = inputs
    names = node.columns[: len(left.columns)]

    def resolve(value: object) -> object:
        if isinstance(value, list):
            return [resolve(each) for each in value]
        if not isinstance(value, Mapping):
            return value
        if value.get("kind") == "FIELD_ACCESS" and _below(value, "expr").get("kind") == "CORREL_VARIABLE":
            # The correlation variable is the row of the left side.
            return {"kind": "INPUT_REF", "inputIndex": names.index(str(value.get("name")))}
        return {key: resolve(each) for key, each in value.items()}

    call = render_expression(resolve(node.content.get("functionCall")), left.columns)
    added = tuple(f"column {number} of {call}" for number in range(1, len(node.columns) - len(left.columns) + 1))
    condition = node.content.get("condition")
    where = "" if condition is None else f" where {render_expression(condition, (*left.columns, *added))}"
    return Lineage((*left.columns, *added), f"{node.kind} {node.content.get('joinType')}({left.rows}; {call}{where})")


def _trace_lookup(node: PlanNode, inputs: Sequence[Lineage]) -> Lineage | None:
    """Return the columns of the left side, and those of the table in which rows are looked up by key."""
    (left,) = inputs
    source = _below(node.mapping("temporalTable"), "lookupTableSource")
    table = _name_table(source)
    row = read_type(node.mapping("temporalTable").get("outputType"))
    columns = tuple(f"{table}.{name}" for name in row.names)
    keys = [
        f"{find_column(columns, int(index))} = {_render_lookup_key(key, left)}"
        for index, key in sorted(node.mapping("lookupKeys").items())
    ]
    projection = node.content.get("projectionOnTemporalTable")
    added = [render_expression(each, columns) for each in projection] if isinstance(projection, list) else columns
    both = (*left.columns, *added)
    conditions = {
        "filterOnTemporalTable": columns,
        "preFilterCondition": left.columns,
        "joinCondition": both,
        "remainingJoinCondition": both,
    }
    texts = [
        render_expression(node.content[name], given)
        for name, given in conditions.items()
        if node.content.get(name) is not None
    ]
    abilities = [each for each in list_mappings(source.get("abilities")) if each.get("type") not in _PROJECTIONS]
    rest = f"; {digest(abilities)}" if abilities else ""
    kind = node.content.get("joinType")
    rows = f"{node.kind} {kind}({left.rows}; {table}{rest}; {' and '.join([*keys, *texts])})"
    mark = _mark_right(left, Lineage(tuple(added), table, (table,)))
    return Lineage((*left.columns, *(f"{mark}{each}" for each in added)), rows, (*left.tables, table))


def _render_lookup_key(key: object, left: Lineage) -> str:
    if not isinstance(key, Mapping):
        return str(key)
    return find_column(left.columns, key["index"]) if "index" in key else render_expression(key.get("literal", key), ())


def _trace_expand(node: PlanNode, inputs: Sequence[Lineage]) -> Lineage | None:
    """Trace a node of GROUPING SETS, ROLLUP or CUBE, which repeats each row per set with other columns set to NULL."""
    (source,) = inputs
    projects = [[render_expression(each, source.columns) for each in one] for one in node.content["projects"]]
    by_column = [list(dict.fromkeys(texts)) for texts in zip(*projects, strict=True)]
    varied = [len(texts) > 1 for texts in by_column]
    names = [next((text for text in texts if text != NULL), NULL) for texts in by_column]
    columns = [f"{name} in grouping sets" if varies else name for name, varies in zip(names, varied, strict=True)]
    if varied and varied[-1]:
        # The last column is the number of the grouping set, with a bit for each column that is NULL.
        columns[-1] = f"set of {', '.join(name for name, varies in zip(names[:-1], varied, strict=False) if varies)}"
    sets = [", ".join(text for text, varies in zip(one, varied, strict=True) if varies) for one in projects]
    sets.sort()
    return Lineage(tuple(columns), f"expand({source.rows}; {'; '.join(sets)})")


def _trace_window_function(node: PlanNode, inputs: Sequence[Lineage]) -> Lineage:
    (source,) = inputs
    windowing = node.mapping("windowing")
    time = find_column(source.columns, windowing.get("timeAttributeIndex"))
    text = f"window {_render_mapping(_below(windowing, 'window'))} of {time}"
    added = node.columns[len(source.columns) :]
    return Lineage((*source.columns, *(f"{name} of {text}" for name in added)), f"{source.rows} in {text}")


def _trace_unknown(node: PlanNode, inputs: Sequence[Lineage]) -> Lineage:
    content = {key: value for key, value in node.content.items() if key not in _IGNORED}
    mark = digest([node.kind, content, [each.columns for each in inputs], [each.rows for each in inputs]])
    return Lineage(tuple(f"{name} of opaque:{mark}" for name in node.columns), f"{node.kind} opaque:{mark}")


INCREMENTAL = "incremental-group-aggregate"
_FIELDS = ("grouping", "aggCalls")
INCREMENTAL_FIELDS = ("partialAggGrouping", "partialOriginalAggCalls")
FIRST_PHASES = ("local-group-aggregate", "local-window-aggregate")
SECOND_PHASES = ("global-group-aggregate", "global-window-aggregate", INCREMENTAL)
AGGREGATES = (
    *FIRST_PHASES,
    *SECOND_PHASES,
    "group-aggregate",
    "group-window-aggregate",
    "window-aggregate",
)
PASSED = ("exchange", "mini-batch-assigner", "watermark-assigner", "drop-update-before")
_TRACES: Mapping[str, Callable[[PlanNode, Sequence[Lineage]], Lineage | None]] = {
    **dict.fromkeys(PASSED, _trace_passed),
    **dict.fromkeys(("calc", "async-calc", "python-calc"), _trace_calc),
    **dict.fromkeys(("join", "interval-join", "temporal-join", "window-join"), _trace_join),
    **dict.fromkeys(
        (
            "changelog-normalize",
            "deduplicate",
            "limit",
            "rank",
            "sort",
            "sort-limit",
            "temporal-sort",
            "window-deduplicate",
            "window-rank",
        ),
        _trace_kept_columns,
    ),
    "correlate": _trace_correlate,
    "expand": _trace_expand,
    "lookup-join": _trace_lookup,
    "over-aggregate": _trace_over,
    "sink": _trace_sink,
    "table-source-scan": _trace_source,
    "union": _trace_union,
    "window-table-function": _trace_window_function,
}
"""Nodes whose meaning is known in detail, besides aggregates."""
