"""Pairs of queries whose state is migrated, and the runs of both in real Flink: several jobs in one Java process.

The old query reads the first part of the data and stops with a savepoint; the new one goes on with the second part. It
is right if it changes the result of a run of the new query over the first part to that of a run over both.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from state_pipelines.sql.planner import start_java
from tests.flink.harness import compile_folders, install_formats
from tests.flink.planned_states import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

PLACE = "file:///data-of-the-test"
TABLES = {
    "o": "id BIGINT, cid BIGINT, k BIGINT NOT NULL, amount BIGINT, qty INT, price DECIMAL(10, 2), note STRING, "
    "ts TIMESTAMP(3), p AS PROCTIME(), WATERMARK FOR ts AS ts",
    "c": "cid BIGINT, name STRING, city STRING, zone INT",
}
FUNCTIONS = {"fee": "Fee", "words": "Words", "weighted": "WeightedAverage", "seen": "Seen"}
"""Functions of `java/sqlfunctions` by the name that queries have for them."""

KEYS = 20
_DEADLINE = 90.0
_LINE = re.compile(r"(?:\d+> )?([+-][IUD])\[(.*)\]")


@dataclass(frozen=True)
class Pair:
    """An old and a new query.

    Attributes:
        name: of the pair.
        old: the old query.
        new: the new one.
        partial: columns of the result that begin empty at the savepoint; the first column is the key.
        settings: of both queries.
        old_settings: of the old query alone.
        new_settings: of the new query alone.
        window: whether the last column is the end of a window, which decides when a row is emitted.
        over: whether each row is emitted once, when the time in its last column has passed; the first column is unique.
        plain: whether the old job runs from SQL text, without uids.
        untouched: whether nothing but names and serializers changes.
        ordered: whether the result depends on the order of rows, which several subtasks do not keep.
    """

    name: str
    old: str
    new: str
    partial: tuple[int, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    old_settings: Mapping[str, str] = field(default_factory=dict)
    new_settings: Mapping[str, str] = field(default_factory=dict)
    window: bool = False
    over: bool = False
    plain: bool = False
    untouched: bool = False
    ordered: bool = False


def group(select: str, rest: str = "FROM o GROUP BY cid") -> str:
    return f"SELECT cid, {select} {rest}"


_MINI_BATCH = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "50 ms",
    "table.exec.mini-batch.size": "5",
}
_ONE_PHASE = {**_MINI_BATCH, "table.optimizer.agg-phase-strategy": "ONE_PHASE"}
_TWO_PHASES = {**_MINI_BATCH, "table.optimizer.agg-phase-strategy": "TWO_PHASE"}
_INNER = "FROM (SELECT cid, qty, SUM(amount) AS s, COUNT(*) AS n FROM o GROUP BY cid, qty) GROUP BY cid"
_JOIN = "FROM o JOIN c ON o.cid = c.cid"
_KEYED = "(SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY {} ORDER BY p DESC) AS r FROM {}) WHERE r = 1)"
_LAST = "FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY cid ORDER BY p DESC) AS r FROM o) WHERE r = 1"
_FIRST = "FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY cid ORDER BY ts) AS r FROM o) WHERE r = 1"
_TOP = "FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY cid ORDER BY amount DESC) AS r FROM o) WHERE r <= {}"
_WORDS = "FROM o, LATERAL TABLE(words(note)) AS w(word) GROUP BY cid"
_AMOUNTS = "(SELECT cid, qty, {} AS n FROM o GROUP BY cid, qty)"
_TOP_OF = "FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY cid ORDER BY n DESC) AS r FROM {}) WHERE r <= {}"
_ONE_ORDER, _ORDERS = (f"{_KEYED.format(each, 'o')} a" for each in ("cid", "id"))
_CITIES = "(SELECT cid, MAX(city) AS city FROM c GROUP BY cid) b ON a.cid = b.cid"
_OVER = "FROM o WINDOW w AS (PARTITION BY cid ORDER BY {} PRECEDING AND CURRENT ROW)"
_WINDOW = "FROM TABLE(TUMBLE(TABLE o, DESCRIPTOR(ts), INTERVAL '10' MINUTE)) GROUP BY cid, window_start, window_end"


def unite(join: str, most: int, latest: int) -> str:
    """A query with a join and two ranks, whose rows have its name in their first column."""
    found = {
        "city": ("id", "amount", "city", f"FROM (SELECT a.id, a.amount, b.city FROM {_ORDERS} {join} {_CITIES})"),
        "most": ("cid", "amount", "id", _TOP.format(most)),
        "often": ("cid", "qty", "n", _TOP_OF.format(_AMOUNTS.format("COUNT(*)"), latest)),
    }
    parts = []
    for name, (*columns, rest) in found.items():
        texts = (f"CAST({each} AS STRING) AS r{index}" for index, each in enumerate(columns, 1))
        parts.append(f"SELECT '{name}' AS r0, {', '.join(texts)} {rest}")
    return " UNION ALL ".join(parts)


PAIRS = (
    Pair("swap", group("SUM(amount), SUM(k)"), group("SUM(k), SUM(amount)")),
    Pair("swap-counts", group("COUNT(note), COUNT(amount)"), group("COUNT(amount), COUNT(note)")),
    Pair("swap-min-max", group("MIN(amount), MAX(amount)"), group("MAX(amount), MIN(amount)")),
    Pair(
        "swap-distinct",
        group("COUNT(DISTINCT amount), COUNT(DISTINCT k)"),
        group("COUNT(DISTINCT k), COUNT(DISTINCT amount)"),
    ),
    Pair("add-sum", group("COUNT(*)"), group("COUNT(*), SUM(amount)"), (2,)),
    Pair("add-first", group("SUM(amount)"), group("COUNT(note), SUM(amount)"), (1,)),
    Pair("add-max", group("SUM(amount)"), group("SUM(amount), MAX(note)"), (2,)),
    Pair("add-avg", group("SUM(amount)"), group("SUM(amount), AVG(qty)"), (2,)),
    Pair("add-decimal", group("COUNT(*)"), group("COUNT(*), SUM(price), MIN(price)"), (2, 3)),
    Pair("add-distinct", group("COUNT(*)"), group("COUNT(*), COUNT(DISTINCT amount)"), (2,)),
    Pair("add-second-distinct", group("COUNT(DISTINCT k)"), group("COUNT(DISTINCT amount), COUNT(DISTINCT k)"), (1,)),
    Pair("add-listagg", group("COUNT(*)"), group("COUNT(*), LISTAGG(note)"), (2,), ordered=True),
    Pair("add-first-value", group("COUNT(*)"), group("COUNT(*), LAST_VALUE(note)"), (2,), ordered=True),
    Pair("drop", group("COUNT(*), SUM(amount), MAX(note)"), group("SUM(amount)")),
    Pair("drop-distinct", group("COUNT(DISTINCT k), COUNT(DISTINCT amount)"), group("COUNT(DISTINCT amount)")),
    Pair("drop-and-swap", group("SUM(amount), MAX(qty), SUM(k)"), group("SUM(k), SUM(amount)")),
    Pair("avg-of-sum-and-count", group("SUM(amount), COUNT(amount)"), group("AVG(amount)")),
    Pair("sum-and-count-of-avg", group("AVG(amount)"), group("COUNT(amount), SUM(amount)")),
    Pair("avg-beside", group("SUM(amount), COUNT(amount)"), group("COUNT(amount), AVG(amount), SUM(amount)")),
    Pair("count-of-not-null", group("COUNT(*), SUM(amount)"), group("SUM(amount), COUNT(k)")),
    Pair(
        "fold-distinct",
        group("COUNT(DISTINCT k)"),
        group("COUNT(DISTINCT k), MAX(k), MIN(k), SUM(DISTINCT k)"),
    ),
    Pair(
        "fold-distinct-nullable",
        group("COUNT(*), COUNT(DISTINCT amount)"),
        group("MIN(amount), MAX(amount), COUNT(DISTINCT amount), SUM(DISTINCT amount), COUNT(*)"),
    ),
    Pair("retract-swap", group("SUM(s), SUM(n)", _INNER), group("SUM(n), SUM(s)", _INNER)),
    Pair("retract-add", group("SUM(s)", _INNER), group("SUM(s), COUNT(n)", _INNER)),
    Pair("retract-max-swap", group("MAX(s), MAX(n)", _INNER), group("MAX(n), MAX(s)", _INNER)),
    Pair("mini-batch-on", group("COUNT(*), SUM(amount)"), group("COUNT(*), SUM(amount)"), new_settings=_ONE_PHASE),
    Pair(
        "two-phases",
        group("COUNT(*), SUM(amount)"),
        group("SUM(amount), COUNT(*)"),
        old_settings=_ONE_PHASE,
        new_settings=_TWO_PHASES,
    ),
    Pair(
        "one-phase",
        group("COUNT(*), SUM(amount)"),
        group("COUNT(*), SUM(amount)"),
        old_settings=_TWO_PHASES,
        new_settings=_ONE_PHASE,
    ),
    Pair("ids", group("SUM(amount)"), group("SUM(amount)"), untouched=True),
    Pair("ids-of-a-cast", group("SUM(amount)"), group("CAST(SUM(amount) AS STRING)"), untouched=True),
    Pair("plain-sql", group("SUM(amount), SUM(k)"), group("SUM(k), SUM(amount)"), plain=True),
    Pair("join-swap", f"SELECT o.id, c.name, c.city {_JOIN}", f"SELECT o.id, c.city, c.name {_JOIN}"),
    Pair("join-drop", f"SELECT o.id, o.amount, c.name, c.city {_JOIN}", f"SELECT o.id, c.name {_JOIN}"),
    Pair(
        "join-swap-outer",
        "SELECT o.id, c.name, c.city FROM o LEFT JOIN c ON o.cid = c.cid",
        "SELECT o.id, c.city, c.name FROM o LEFT JOIN c ON o.cid = c.cid",
    ),
    Pair(
        "join-sides",
        "SELECT o.id, c.name FROM o JOIN c ON o.cid = c.cid",
        "SELECT o.id, c.name FROM c JOIN o ON o.cid = c.cid",
    ),
    Pair(
        "join-keyed-swap",
        f"SELECT a.cid, a.amount, b.name, b.city FROM {_KEYED.format('cid', 'o')} a JOIN "
        f"(SELECT cid, MAX(name) AS name, MAX(city) AS city FROM c GROUP BY cid) b ON a.cid = b.cid",
        f"SELECT a.cid, a.amount, b.city, b.name FROM {_KEYED.format('cid', 'o')} a JOIN "
        f"(SELECT cid, MAX(city) AS city, MAX(name) AS name FROM c GROUP BY cid) b ON a.cid = b.cid",
    ),
    Pair(
        "join-to-left",
        f"SELECT o.id, c.name, c.city {_JOIN}",
        "SELECT o.id, c.city FROM o LEFT JOIN c ON o.cid = c.cid",
    ),
    Pair("join-to-full", f"SELECT o.id, c.name {_JOIN}", "SELECT o.id, c.name FROM o FULL JOIN c ON o.cid = c.cid"),
    Pair("join-to-inner", "SELECT o.id, c.name FROM o LEFT JOIN c ON o.cid = c.cid", f"SELECT o.id, c.name {_JOIN}"),
    Pair(
        "join-rows-to-full",
        f"SELECT a.cid, a.amount, b.city FROM {_ONE_ORDER} JOIN {_CITIES}",
        f"SELECT a.cid, a.amount, b.city FROM {_ONE_ORDER} FULL JOIN {_CITIES}",
    ),
    Pair(
        "join-rows-to-inner",
        f"SELECT a.cid, a.amount, b.city FROM {_ONE_ORDER} FULL JOIN {_CITIES}",
        f"SELECT a.cid, a.amount, b.city FROM {_ONE_ORDER} JOIN {_CITIES}",
    ),
    Pair(
        "join-keys-to-full",
        f"SELECT a.id, a.amount, b.city FROM {_ORDERS} JOIN {_CITIES}",
        f"SELECT a.id, a.amount, b.city FROM {_ORDERS} FULL JOIN {_CITIES}",
    ),
    Pair(
        "join-keys-to-inner",
        f"SELECT a.id, a.amount, b.city FROM {_ORDERS} FULL JOIN {_CITIES}",
        f"SELECT a.id, a.amount, b.city FROM {_ORDERS} JOIN {_CITIES}",
    ),
    Pair("top-fewer", f"SELECT cid, amount, id {_TOP.format(5)}", f"SELECT cid, id, amount {_TOP.format(2)}"),
    # The state of numbered rows may hold more than it emits.
    Pair("top-unnumbered", f"SELECT cid, amount, id, r {_TOP.format(3)}", f"SELECT cid, amount, id {_TOP.format(3)}"),
    Pair("top-to-first", f"SELECT cid, amount, id {_TOP.format(3)}", f"SELECT cid, amount, id {_TOP.format(1)}"),
    *(
        Pair(
            f"top-{name}",
            f"SELECT cid, qty, n {_TOP_OF.format(_AMOUNTS.format(of), 3)}",
            f"SELECT cid, qty, n {_TOP_OF.format(_AMOUNTS.format(of), limit)}",
            # Equal counts: which of them has the higher rank depends on the order of the rows.
            ordered=True,
        )
        for name, of, limit in (
            ("update-fewer", "COUNT(*)", 2),
            ("update-to-first", "COUNT(*)", 1),
            ("retract-fewer", "SUM(amount)", 2),
        )
    ),
    *(
        Pair(
            f"over-{name}",
            f"SELECT id, cid, k, qty, SUM(amount) OVER w{last} {_OVER.format(bounds)}",
            f"SELECT id, cid, k, qty, COUNT(*) OVER w, AVG(k) OVER w, SUM(amount) OVER w, SUM(qty) OVER w{last} "
            f"{_OVER.format(bounds)}",
            over=bool(last),
        )
        for name, bounds, last in (
            ("rows", "p ROWS BETWEEN 3", ""),
            ("time-rows", "ts ROWS BETWEEN 2", ", ts"),
            ("time-range", "ts RANGE BETWEEN INTERVAL '15' MINUTE", ", ts"),
        )
    ),
    Pair("layouts", unite("JOIN", 5, 3), unite("FULL JOIN", 2, 1), ordered=True),
    Pair("dedup-swap", f"SELECT cid, amount, id {_LAST}", f"SELECT cid, id, amount {_LAST}", ordered=True),
    Pair("dedup-add", f"SELECT cid, amount {_LAST}", f"SELECT cid, amount, note {_LAST}", (2,), ordered=True),
    Pair("dedup-drop", f"SELECT cid, amount, note {_LAST}", f"SELECT cid, note {_LAST}", ordered=True),
    Pair("dedup-rowtime-swap", f"SELECT cid, amount, id {_FIRST}", f"SELECT cid, id, amount {_FIRST}", ordered=True),
    Pair("top-swap", f"SELECT cid, amount, id, k {_TOP.format(3)}", f"SELECT cid, k, amount, id {_TOP.format(3)}"),
    Pair("top-drop", f"SELECT cid, amount, id, k {_TOP.format(3)}", f"SELECT cid, amount, id {_TOP.format(3)}"),
    Pair(
        "window-swap",
        group("SUM(amount), SUM(k), window_end", _WINDOW),
        group("SUM(k), SUM(amount), window_end", _WINDOW),
        window=True,
    ),
    Pair(
        "window-drop",
        group("SUM(amount), COUNT(*), MAX(note), window_end", _WINDOW),
        group("COUNT(*), window_end", _WINDOW),
        window=True,
    ),
    Pair(
        "two-queries",
        "SELECT n, SUM(s), MAX(s) FROM (SELECT cid, COUNT(*) AS n, SUM(amount) AS s FROM o GROUP BY cid) GROUP BY n",
        "SELECT n, MAX(s), SUM(s) FROM (SELECT cid, SUM(amount) AS s, COUNT(*) AS n FROM o GROUP BY cid) GROUP BY n",
    ),
    Pair("function-add", group("SUM(fee(amount))"), group("COUNT(*), SUM(fee(amount))"), (1,)),
    Pair("function-table-swap", group("SUM(id), COUNT(word)", _WORDS), group("COUNT(word), SUM(id)", _WORDS)),
    Pair("function-swap", group("weighted(amount, qty), SUM(amount)"), group("SUM(amount), weighted(amount, qty)")),
    Pair("function-beside", group("weighted(amount, qty)"), group("COUNT(*), weighted(amount, qty)"), (1,)),
    Pair(
        "function-drop",
        group("weighted(amount, qty), SUM(k), seen(CAST(qty AS STRING))"),
        group("SUM(k), seen(CAST(qty AS STRING))"),
    ),
    Pair(
        "function-view",
        group("seen(CAST(qty AS STRING)), AVG(amount)"),
        group("AVG(amount), seen(CAST(qty AS STRING))"),
    ),
    Pair(
        "function-exchange",
        group("seen(note), seen(CAST(qty AS STRING))"),
        group("seen(CAST(qty AS STRING)), seen(note)"),
    ),
    Pair(
        "ttl-swap", group("SUM(amount), SUM(k)"), group("SUM(k), SUM(amount)"), settings={"table.exec.state.ttl": "1 d"}
    ),
    Pair("retract-extremes", group("MAX(s)", _INNER), group("COUNT(*), MIN(s), MAX(s)", _INNER)),
    Pair("retract-other-extreme", group("MIN(s), SUM(n)", _INNER), group("SUM(n), MAX(s)", _INNER)),
    Pair(
        "retract-extremes-of-distinct",
        group("COUNT(DISTINCT s)", _INNER),
        group("MIN(s), COUNT(DISTINCT s), MAX(s)", _INNER),
    ),
    Pair(
        "retract-marks",
        group("COUNT(DISTINCT s) FILTER (WHERE n > 3), COUNT(DISTINCT s), COUNT(*)", _INNER),
        group("COUNT(*), COUNT(DISTINCT s), COUNT(DISTINCT s) FILTER (WHERE n > 3)", _INNER),
    ),
    Pair(
        "over-views",
        f"SELECT id, cid, COUNT(DISTINCT k) OVER w, COUNT(DISTINCT qty) OVER w {_OVER.format('p ROWS BETWEEN 3')}",
        f"SELECT id, cid, COUNT(DISTINCT qty) OVER w, COUNT(DISTINCT k) OVER w {_OVER.format('p ROWS BETWEEN 3')}",
    ),
    Pair(
        "window-views",
        group("COUNT(DISTINCT k), COUNT(DISTINCT amount), window_end", _WINDOW),
        group("COUNT(DISTINCT amount), COUNT(DISTINCT k), window_end", _WINDOW),
        window=True,
    ),
    Pair(
        "over-rows-fewer",
        f"SELECT id, cid, k, qty, SUM(amount) OVER w {_OVER.format('p ROWS BETWEEN 4')}",
        f"SELECT id, cid, k, qty, COUNT(*) OVER w, SUM(amount) OVER w {_OVER.format('p ROWS BETWEEN 1')}",
    ),
    Pair(
        "over-time-rows-fewer",
        f"SELECT id, k, SUM(amount) OVER w, AVG(qty) OVER w, ts {_OVER.format('ts ROWS BETWEEN 4')}",
        f"SELECT id, k, AVG(qty) OVER w, SUM(amount) OVER w, SUM(k) OVER w, ts {_OVER.format('ts ROWS BETWEEN 2')}",
        over=True,
    ),
)


_ROCKSDB = {"state.backend.type": "rocksdb"}
# One file is read by one subtask, and the others do not hold back the watermark.
_WIDE = {"parallelism.default": "3", "table.exec.source.idle-timeout": "100 ms"}
VARIANTS: tuple[Mapping[str, str], ...] = ({}, {**_ROCKSDB, **_WIDE}, _WIDE, _ROCKSDB)
"""Options of jobs: heap or RocksDB, one subtask or three."""


def choose_options(pair: Pair, number: int) -> dict[str, str]:
    """Options of the jobs of a pair: successive numbers give all variants; ordered rows have one subtask."""
    options = dict(VARIANTS[number % len(VARIANTS)])
    return {key: value for key, value in options.items() if key not in _WIDE} if pair.ordered else options


def make_orders(start: int, stop: int) -> str:
    """Rows of the table of orders, as CSV; every key has some."""
    rows = []
    for number in range(start, stop):
        cid, minute = number * 7 % KEYS, number // 4
        amount = "" if number % 11 == 3 else str(number * 37 % 101 - 20)
        note = "" if number % 5 == 1 else f"note {number * 13 % 17}"
        stamp = f"2026-01-01 {minute // 60:02}:{minute % 60:02}:{number % 4:02}.000"
        price = f"{number * 31 % 500}.{number % 100:02}"
        rows.append(f"{number},{cid},{number * 5 % 23},{amount},{number % 6},{price},{note},{stamp}")
    return "\n".join([*rows, ""])


def make_customers(start: int, stop: int) -> str:
    """Rows of the table of customers, as CSV."""
    rows = [f"{each},name {each},city {each % 4},{each % 3}" for each in range(start, stop)]
    return "\n".join([*rows, ""])


_HALF, _ALL = 120, 260
PARTS = {
    "o": (make_orders(0, _HALF), make_orders(_HALF, _ALL)),
    "c": (make_customers(0, 12), make_customers(12, KEYS)),
}
FIRST_END, LAST_END = "2026-01-01T00:29", "2026-01-01T01:04"
"""Times of the last rows of both parts of the orders."""

Rows = Counter[str]


def write_data(directory: Path) -> None:
    """Write the data: `first`, `second` and `both`, each with a folder for every table."""
    for table, (first, second) in PARTS.items():
        for name, text in (("first", first), ("second", second), ("both", first + second)):
            folder = directory / name / table
            folder.mkdir(parents=True)
            (folder / "rows.csv").write_text(text)


class Flink:
    """Flink in a Java process."""

    def __init__(self, java: Any, directory: Path) -> None:
        self.java, self.directory = java, directory
        self.count = 0

    def _environment(self, options: Mapping[str, str]) -> Any:
        configuration = self.java.org.apache.flink.configuration.Configuration()
        slots = {"taskmanager.numberOfTaskSlots": "3", "state.backend.type": "hashmap"}
        for key, value in {**SETTINGS, **slots, **options}.items():
            configuration.setString(key, value)
        streams = self.java.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
        tables = self.java.org.apache.flink.table.api.bridge.java.StreamTableEnvironment
        return tables.create(streams.getExecutionEnvironment(configuration))

    def _declare(self, environment: Any, query: str, directory: str) -> str:
        for table, columns in TABLES.items():
            options = f"'connector' = 'filesystem', 'path' = '{directory}/{table}', 'format' = 'csv', "
            options += "'csv.null-literal' = '', 'source.monitor-interval' = '50 ms'"
            environment.executeSql(f"CREATE TABLE {table} ({columns}) WITH ({options})")
        for name, of in FUNCTIONS.items():
            environment.executeSql(f"CREATE FUNCTION {name} AS 'com.acme.functions.{of}'")
        schema = environment.sqlQuery(query).getResolvedSchema()
        names = [f"r{index}" for index in range(schema.getColumnCount())]
        types = [each.getDataType().getLogicalType().copy(True).asSerializableString() for each in schema.getColumns()]
        columns = ", ".join(f"{name} {of}" for name, of in zip(names, types, strict=True))
        environment.executeSql(f"CREATE TABLE printed ({columns}) WITH ('connector' = 'print')")
        return f"INSERT INTO printed {query}"

    def compile(self, query: str, settings: Mapping[str, str]) -> str:
        """The compiled plan of a query."""
        environment = self._environment(settings)
        return str(environment.compilePlanSql(self._declare(environment, query, PLACE)).asJsonString())

    def start(self, plan: str, data: str, options: Mapping[str, str], *, bounded: bool, text: str = "") -> Job:
        """Start a plan, or the text of a query, over the data in a directory."""
        self.count += 1
        output = self.directory / f"output-{self.count}"
        stream = self.java.java.io.PrintStream(str(output))
        self.java.java.lang.System.setOut(stream)
        environment = self._environment(options)
        if text:
            client = environment.executeSql(self._declare(environment, text, data)).getJobClient().get()
        else:
            content = json.loads(plan.replace(PLACE, data))
            for node in content["nodes"]:
                given = node.get("scanTableSource", {}).get("table", {}).get("resolvedTable", {}).get("options", {})
                if bounded:
                    given.pop("source.monitor-interval", None)
            reference = self.java.org.apache.flink.table.api.PlanReference.fromJsonString(json.dumps(content))
            client = environment.loadPlan(reference).execute().getJobClient().get()
        return Job(self.java, client, output)

    def run(self, plan: str, data: str, options: Mapping[str, str]) -> Rows:
        """The result of a plan over all of the data."""
        job = self.start(plan, data, options, bounded=True)
        job.client.getJobExecutionResult().get()
        return job.rows()


@dataclass
class Job:
    """A running job, whose rows are printed into a file."""

    java: Any
    client: Any
    output: Path

    def changes(self) -> list[tuple[str, str]]:
        """Kind and text of the rows that were emitted so far."""
        found = _LINE.finditer(self.output.read_text()) if self.output.exists() else ()
        return [(each[1], each[2]) for each in found]

    def rows(self) -> Rows:
        """The rows that were added, without those that were taken back, which count less than zero."""
        found: Rows = Counter()
        for kind, row in self.changes():
            found[row] += 1 if kind in ("+I", "+U") else -1
        return Counter({row: count for row, count in found.items() if count})

    def wait(self, done: Callable[[], bool]) -> bool:
        """Wait until something holds, the job fails, or too much time has passed; return whether it holds."""
        end = time.monotonic() + _DEADLINE
        while not done():
            status = str(self.client.getJobStatus().get())
            if status not in ("INITIALIZING", "CREATED", "RUNNING"):
                with suppress(Exception):
                    self.client.getJobExecutionResult().get()
                raise RuntimeError(f"the job is {status}")
            if time.monotonic() > end:
                return False
            self.java.java.lang.Thread.sleep(20)
        return True

    def stop(self, target: Path) -> str:
        """Stop with a savepoint; gives its path."""
        from py4j.protocol import Py4JJavaError

        canonical = self.java.org.apache.flink.core.execution.SavepointFormatType.CANONICAL
        taken: list[str] = []

        def take() -> bool:
            try:
                taken.append(str(self.client.stopWithSavepoint(False, str(target), canonical).get()))
            except Py4JJavaError as error:
                # A subtask without rows may begin after the others have emitted all of theirs.
                if "Not all required tasks are currently running" not in str(error.java_exception):
                    raise
            return bool(taken)

        assert self.wait(take), "not all tasks begin to run"
        return taken[0].removeprefix("file:")

    def cancel(self) -> None:
        """Stop at once."""
        with suppress(Exception):
            self.client.cancel().get()
            self.client.getJobExecutionResult().get()


@contextmanager
def open_flink(version: str, directory: Path) -> Iterator[Flink]:
    """Start a Java process with a Flink."""
    directory.mkdir(parents=True, exist_ok=True)
    home = install_formats(version)
    classes = compile_folders(home, ["tests/flink/java/sqlfunctions"])
    with start_java([*home.jars, classes]) as java:
        yield Flink(java, directory)


def take_savepoint(flink: Flink, pair: Pair, directory: Path, options: Mapping[str, str]) -> tuple[str, str]:
    """Run the old query over the first part; gives its plan and the savepoint."""
    settings = {**pair.settings, **pair.old_settings}
    plan = flink.compile(pair.old, settings)
    live = directory / "live"
    write_live(live, 0)
    expected = flink.run(plan, f"file://{directory}/first", {**options, **settings})
    text = pair.old if pair.plain else ""
    job = flink.start(plan, f"file://{live}", {**options, **settings}, bounded=False, text=text)
    if pair.window or pair.over:
        # Windows that are open now are emitted later.
        complete = job.wait(lambda: bool(job.rows()) and set(job.rows()) <= set(expected))
    else:
        complete = job.wait(lambda: job.rows() == expected)
    assert complete, (expected - job.rows(), job.rows() - expected)
    savepoint = job.stop(directory / "savepoints")
    (directory / "emitted.json").write_text(json.dumps([*find_last(job.rows())]))
    return plan, savepoint


def write_live(live: Path, part: int) -> None:
    """Give a monitored directory a part of the data."""
    for table, texts in PARTS.items():
        folder = live / table
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".part-{part}.csv"
        draft.write_text(texts[part])
        draft.rename(folder / f"part-{part}.csv")


def compare(flink: Flink, pair: Pair, plan: str, savepoint: str, directory: Path, options: Mapping[str, str]) -> str:
    """Run the new plan from a savepoint over the second part; gives differences to the right result, else nothing."""
    settings = {**options, **pair.settings, **pair.new_settings}

    def run(part: str) -> Rows:
        return flink.run(plan, f"file://{directory}/{part}", settings)

    expected: dict[str, str] = {}
    changes: Rows = Counter()
    if pair.partial:
        expected = _mix(find_last(run("both")), find_last(run("second")), pair.partial)
    else:
        changes = _find_changes(pair, run, json.loads((directory / "emitted.json").read_text()))
    live = directory / "live"
    write_live(live, 1)
    restored = {**settings, "execution.savepoint.path": savepoint, "execution.state-recovery.path": savepoint}
    job = flink.start(plan, f"file://{live}", restored, bounded=False)

    def done() -> bool:
        return find_last(_positive(job.rows())) == expected if pair.partial else job.rows() == changes

    try:
        if job.wait(done):
            return ""
        if pair.partial:
            found = find_last(_positive(job.rows()))
            return str({key: (row, found.get(key)) for key, row in expected.items() if found.get(key) != row})
        return f"missing {changes - job.rows()}, unexpected {job.rows() - changes}"
    finally:
        job.cancel()


def _positive(rows: Rows) -> Rows:
    return Counter({row: count for row, count in rows.items() if count > 0})


def _find_changes(pair: Pair, run: Callable[[str], Rows], emitted: Sequence[str]) -> Rows:
    if pair.over:
        return Counter({row: 1 for row in run("both") if row.partition(", ")[0] not in emitted})
    if pair.window:
        ends = ((row, row.rpartition(", ")[2]) for row in run("both"))
        return Counter({row: 1 for row, end in ends if FIRST_END < end <= LAST_END})
    found = Counter(run("both"))
    found.subtract(run("first"))
    return Counter({row: count for row, count in found.items() if count})


def find_last(rows: Rows) -> dict[str, str]:
    """Rows by their first column."""
    return {row.partition(", ")[0]: row for row in rows}


def _mix(exact: Mapping[str, str], later: Mapping[str, str], columns: tuple[int, ...]) -> dict[str, str]:
    """Rows with some columns of a run over the second part alone."""
    mixed = {}
    for key, row in exact.items():
        values, others = row.split(", "), later[key].split(", ")
        mixed[key] = ", ".join(others[n] if n in columns else value for n, value in enumerate(values))
    return mixed
