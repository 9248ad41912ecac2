"""Template of a compiled plan: the savepoint of a run without input, in a cluster inside a Java process.

It has the operators, uids, states and serializers that Flink itself gives the plan. Sources read an empty directory and
sinks drop their rows, so that no connector is needed; a lookup join, which keeps no keyed state, becomes a projection
that has NULL for the columns of its table. Functions of the user need their jar.
"""

from __future__ import annotations

import copy
import json
import re
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.sql.planner import find_flink, find_jars, start_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SETTINGS = {
    "execution.target": "local",
    "rest.port": "0",
    "rest.bind-port": "0",
    "taskmanager.memory.network.min": "64mb",
    "taskmanager.memory.network.max": "64mb",
    "taskmanager.memory.managed.size": "64mb",
    "taskmanager.numberOfTaskSlots": "1",
    "parallelism.default": "1",
    "restart-strategy.type": "none",
    "state.backend.type": "hashmap",
}
_FIELD = re.compile(r"`((?:[^`]|``)*)` (.*)", re.DOTALL)
_ENDED = ("FAILED", "FINISHED", "CANCELED")
_SECONDS = 120.0
_PAUSE = 0.05
_TIMES = {"TIMESTAMP_WITHOUT_TIME_ZONE": "", "TIMESTAMP_WITH_LOCAL_TIME_ZONE": " WITH LOCAL TIME ZONE"}


def stub_tables(plan: str, directory: str, formats: Sequence[str]) -> str:
    """Return a plan whose sources read an empty directory and whose sinks drop their rows; numbers and uids stay.

    Nodes of lookup joins become projections, with the numbers and columns that they had.

    Args:
        plan: the JSON of the plan.
        directory: URL of an empty directory.
        formats: names of formats whose jar is available.

    Raises:
        UnsupportedError: a column of a source is of a type that has no text, a lookup join keeps state, or there is no
            format.
    """
    if not formats:
        raise UnsupportedError(
            "the Flink installation has no jar of a format (flink-json, flink-csv)", hint="Use a complete installation"
        )
    content = json.loads(plan)
    by_id = {each["id"]: each for each in content["nodes"]}
    inputs = {each["target"]: by_id[each["source"]] for each in content["edges"]}
    for node in content["nodes"]:
        if node["type"].startswith("stream-exec-lookup-join"):
            node.update(_project(node, inputs[node["id"]]))
            node.pop("temporalTable", None)
        if "scanTableSource" in node:
            options = {"connector": "filesystem", "path": directory, "format": formats[0]}
            options["source.monitor-interval"] = "1 h"
            schema = {"columns": _list_columns(node["outputType"]), "watermarkSpecs": []}
            table = {"schema": schema, "partitionKeys": [], "options": options}
            name = node["scanTableSource"]["table"]["identifier"]
            node["scanTableSource"] = {"table": {"identifier": name, "resolvedTable": table}}
        if "dynamicTableSink" in node:
            sink = copy.deepcopy(node["dynamicTableSink"])
            sink.pop("abilities", None)
            sink["table"]["resolvedTable"] |= {"options": {"connector": "blackhole"}, "partitionKeys": []}
            node["dynamicTableSink"] = sink
    return json.dumps(content)


def _project(node: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a projection with the columns of a lookup join: those of its input, and NULL.

    Source: `CommonExecCalc`, `StreamExecLookupJoin`.

    Raises:
        UnsupportedError: the join keeps the rows that it found.
    """
    if node.get("upsertMaterialize"):
        raise UnsupportedError(
            f"node {node['id']}, a lookup join, keeps the rows that it found (its input has retractions), for which "
            "there is no stub"
        )
    found = []
    kept = len(_list_types(source["outputType"]))
    for index, of in enumerate(_list_types(node["outputType"])):
        if index < kept:
            found.append({"kind": "INPUT_REF", "inputIndex": index, "type": of})
        else:
            nullable = of.removesuffix(" NOT NULL") if isinstance(of, str) else {**of, "nullable": True}
            found.append({"kind": "LITERAL", "value": None, "type": nullable})
    return {"type": "stream-exec-calc_1", "projection": found, "condition": None}


def _list_types(row: Any) -> list[Any]:
    """Return the types of the columns of a row as the plan has them: texts, or mappings."""
    if isinstance(row, dict):
        return [each["fieldType"] for each in row["fields"]]
    return [of for _, of in _split_row(str(row))]


def _list_columns(row: object) -> list[dict[str, str]]:
    if isinstance(row, dict):
        return [{"name": each["name"], "dataType": _name_type(each["fieldType"])} for each in row["fields"]]
    return [{"name": name, "dataType": of} for name, of in _split_row(str(row))]


def _name_type(of: object) -> str:
    if isinstance(of, str):
        return of
    root = of.get("type") if isinstance(of, dict) else None
    if not isinstance(of, dict) or root not in _TIMES:
        raise UnsupportedError(f"a source has a column of type {json.dumps(of)[:80]}, for which there is no stub")
    nullable = "" if of.get("nullable", True) else " NOT NULL"
    return f"TIMESTAMP({of['precision']}){_TIMES[root]}{nullable}"


def _split_row(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and type of the fields of `ROW<…>`."""
    inner, depth, quoted, start = text[text.index("<") + 1 : text.rindex(">")], 0, False, 0
    fields = []
    for index, char in enumerate(inner):
        if char == "`":
            quoted = not quoted
        elif not quoted and char in "<>()":
            depth += 1 if char in "<(" else -1
        elif char == "," and not depth and not quoted:
            fields.append(inner[start:index])
            start = index + 1
    for each in (*fields, inner[start:]):
        if (match := _FIELD.fullmatch(each.strip())) is None:
            raise UnsupportedError(f"the type {text[:80]} of a source is not a ROW with named columns")
        yield match[1].replace("``", "`"), match[2]


@contextmanager
def open_cluster(
    flink_home: str | None = None, flink: str | None = None, jars: Sequence[str] = ()
) -> Iterator[Callable[[str, str], str]]:
    """Start a Java process; yield a function that runs a plan and writes its template, a savepoint.

    The function takes the plan and a directory for the template, and returns the path of the template. Arguments and
    errors are those of `compile_script`. The function raises UsageError if Flink does not run the plan, such as without
    the jar of a function.
    """
    found = find_flink(flink_home, flink)
    paths = [*find_jars(jars), *found.paths]
    formats = [name for name in ("json", "csv") if any(each.name.startswith(f"flink-{name}-") for each in paths)]
    with start_java(paths) as java:
        yield lambda plan, directory: _take(java, plan, Path(directory), formats)


def _take(java: Any, plan: str, directory: Path, formats: Sequence[str]) -> str:
    from py4j.protocol import Py4JJavaError

    empty = directory / "empty"
    empty.mkdir(parents=True)
    stubbed = stub_tables(plan, f"file://{empty}", formats)
    try:
        client = _start(java, stubbed, _SETTINGS)
    except Py4JJavaError as error:
        text = _explain(error)
        raise UsageError(f"Flink does not run the plan: {text}", hint=_find_hint(text)) from None
    canonical = java.org.apache.flink.core.execution.SavepointFormatType.CANONICAL
    end, refusal = time.monotonic() + _SECONDS, ""
    while time.monotonic() < end:
        status = str(client.getJobStatus().get())
        if status in _ENDED:
            raise UsageError(
                f"the job of the plan is {status}, so no savepoint can be taken as its template", hint=_HINT
            )
        try:
            # Flink refuses savepoints until all tasks run.
            path = str(client.stopWithSavepoint(False, f"file://{directory}/savepoint", canonical).get())
            return path.removeprefix("file:")
        except Py4JJavaError as error:
            refusal = _explain(error)
        time.sleep(_PAUSE)
    raise UsageError(f"Flink takes no savepoint of the plan: {refusal}", hint=_HINT)


_HINT = "Give the jars of functions (--jars), or leave out --template"
_CLASSES = (
    "The plan has no classes of functions: compile it with SET 'table.plan.compile.catalog-objects' = 'ALL', or leave "
    "out --template"
)
_MOST_MESSAGE = 400


def _find_hint(text: str) -> str:
    return _CLASSES if "Cannot resolve function" in text else _HINT


def _start(java: Any, plan: str, settings: Mapping[str, str]) -> Any:
    configuration = java.org.apache.flink.configuration.Configuration()
    for key, value in settings.items():
        configuration.setString(key, value)
    streams = java.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
    tables = java.org.apache.flink.table.api.bridge.java.StreamTableEnvironment
    environment = tables.create(streams.getExecutionEnvironment(configuration))
    reference = java.org.apache.flink.table.api.PlanReference.fromJsonString(plan)
    return environment.loadPlan(reference).execute().getJobClient().get()


def _explain(error: Any) -> str:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    text = " ".join(str(cause.getMessage() or "").split())
    text = f"{cause.getClass().getSimpleName()} {text}"
    return text if len(text) <= _MOST_MESSAGE else f"{text[:_MOST_MESSAGE].rpartition('. ')[0] or text[:_MOST_MESSAGE]}"
