"""A PyFlink job with every kind of state: `make` ends in a savepoint, `read` starts from one and writes what it finds.

Run by the Python that has `apache-flink`; nothing of this project is imported.
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import json
import sys
import time
from pathlib import Path

from pyflink.common import Configuration, Instant, Row, Time, Types, WatermarkStrategy
from pyflink.datastream import (
    AggregateFunction,
    BroadcastProcessFunction,
    KeyedProcessFunction,
    ReduceFunction,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)

KEYS = 12
"""Keys of every operator; numbers from 0 on are dealt out to them in turn."""

ROUNDS = 3
"""Elements of each key that `make` processes before it only waits."""

TIMER = 4_922_899_200_000
"""Time of the processing-time timers (in 2126)."""

ALL_NAMES = [
    *("tiny", "flag", "small", "whole", "large", "single", "double", "letter", "big", "exact", "instant"),
    *("day", "clock", "moment", "raw", "ints", "words", "longs", "scores", "pair", "inner", "anything"),
]
ALL_TYPES = [
    *(Types.BYTE(), Types.BOOLEAN(), Types.SHORT(), Types.INT(), Types.LONG(), Types.FLOAT(), Types.DOUBLE()),
    *(Types.CHAR(), Types.BIG_INT(), Types.BIG_DEC(), Types.INSTANT(), Types.SQL_DATE(), Types.SQL_TIME()),
    *(Types.SQL_TIMESTAMP(), Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.PRIMITIVE_ARRAY(Types.INT())),
    *(Types.BASIC_ARRAY(Types.STRING()), Types.LIST(Types.LONG()), Types.MAP(Types.STRING(), Types.DOUBLE())),
    *(Types.TUPLE([Types.INT(), Types.STRING()]), Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])),
    Types.PICKLED_BYTE_ARRAY(),
]
TYPED = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])
TYPED_AFTER = Types.ROW_NAMED(["n", "s", "grade"], [Types.LONG(), Types.STRING(), Types.INT()])
ITEM = Types.ROW_NAMED(["sku", "amount"], [Types.STRING(), Types.INT()])
ITEM_AFTER = Types.ROW_NAMED(["sku", "amount", "unit"], [Types.STRING(), Types.INT(), Types.STRING()])


class Sum(ReduceFunction):
    """Adds numbers."""

    def reduce(self, one, other):
        """The sum."""
        return one + other


class Average(AggregateFunction):
    """Sum and count as accumulator."""

    def create_accumulator(self):
        """Nothing seen."""
        return 0, 0

    def add(self, value, accumulator):
        """One more value."""
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        """Sum and count, to look at."""
        return list(accumulator)

    def merge(self, one, other):
        """Both together."""
        return one[0] + other[0], one[1] + other[1]


def with_ttl(descriptor, enabled=True):
    """The descriptor, with time to live if that is wanted."""
    if enabled:
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(3650)).build())
    return descriptor


def make_all(number):
    """A row with a value of every type; every third one is null throughout."""
    if number % 3 == 2:
        return Row(**dict.fromkeys(ALL_NAMES))
    values = [
        *(number - 128, number % 2 == 0, -number, number * 1000, number * 10**12, number / 4, number / 8),
        *(f"é{number}", -(2**60) + number, decimal.Decimal("12.50") + number, Instant(10**9 + number, 5)),
        *(datetime.date(2024, 2, 1 + number % 28), datetime.time(12, 30, number % 60, 250_000)),
        datetime.datetime(2024, 2, 29, 23, 59, number % 60, 125_000),
        *(bytes([0, 255, number % 256]), [number, -1], ["a", None, "ü"], [number, None], {"x": 1.5, "y": None}),
        *((number, "p"), Row(a=None, b="in"), {"k": [1, (2.5, None)], "s": {"one"}, "b": b"\x01"}),
    ]
    return Row(**dict(zip(ALL_NAMES, values, strict=True)))


class States(KeyedProcessFunction):
    """Fills the states of each key, or writes what they hold."""

    def __init__(self, reads, after, markers, lines):
        """Choose reading or writing, the types after a migration or before, and the files of markers and lines."""
        self.reads, self.after, self.markers, self.lines = reads, after, markers, lines
        self.seen = set()

    def open(self, context):
        """Register the states."""
        self.pickled = context.get_state(ValueStateDescriptor("pickled", Types.PICKLED_BYTE_ARRAY()))
        self.typed = context.get_state(ValueStateDescriptor("typed", TYPED_AFTER if self.after else TYPED))
        self.all = context.get_state(ValueStateDescriptor("all", Types.ROW_NAMED(ALL_NAMES, ALL_TYPES)))
        self.ttl = context.get_state(with_ttl(ValueStateDescriptor("ttl", Types.LONG()), not self.after))
        self.plain = context.get_state(with_ttl(ValueStateDescriptor("plain", Types.DOUBLE()), self.after))
        self.list = context.get_list_state(ListStateDescriptor("list", Types.STRING()))
        item = ITEM_AFTER if self.after else ITEM
        self.items = context.get_list_state(with_ttl(ListStateDescriptor("items", item)))
        self.map = context.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.LONG()))
        pair = Types.TUPLE([Types.INT(), Types.STRING()])
        self.pairs = context.get_map_state(with_ttl(MapStateDescriptor("pairs", pair, ITEM)))
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", Sum(), Types.LONG()))
        accumulator = Types.TUPLE([Types.LONG(), Types.LONG()])
        self.average = context.get_aggregating_state(AggregatingStateDescriptor("average", Average(), accumulator))

    def process_element(self, number, context):
        """Fill or write the states of a key, once."""
        key = context.get_current_key()
        if not self.reads:
            if number < KEYS * ROUNDS:
                self.fill(number, context)
                Path(self.markers, f"{number}").touch()
            else:
                time.sleep(0.001)
        elif key not in self.seen:
            self.seen.add(key)
            write_line(self.lines, {"operator": "states", "key": key, **self.show()})
            Path(self.markers, f"{key}").touch()
        return []

    def fill(self, number, context):
        """Give every state a value."""
        key = context.get_current_key()
        self.pickled.update({"key": key, "number": number, "parts": [1, 2.5, None, True, (b"x", {"y"})]})
        self.typed.update(Row(n=number, s=f"s{number}"))
        self.all.update(make_all(number))
        self.ttl.update(number)
        self.plain.update(number / 2)
        self.list.add_all([f"x{number}", f"y{number}"])
        self.items.add(Row(sku=f"sku-{number}", amount=number))
        self.map.put(f"m{number % 2}", number)
        self.pairs.put((number, "p"), Row(sku="sku", amount=None))
        self.sum.add(number)
        self.average.add(number)
        context.timer_service().register_processing_time_timer(TIMER + number)

    def show(self):
        """The values of the key."""
        return {
            "pickled": repr(self.pickled.value()),
            "typed": self.typed.value().as_dict(),
            "all": repr(self.all.value()),
            "ttl": self.ttl.value(),
            "plain": self.plain.value(),
            "list": list(self.list.get()),
            "items": [each.as_dict() for each in self.items.get()],
            "map": dict(sorted(self.map.items())),
            "pairs": [[list(name), each.as_dict()] for name, each in sorted(self.pairs.items())],
            "sum": self.sum.get(),
            "average": self.average.get(),
        }


class Keyed(KeyedProcessFunction):
    """A single value under keys of another type."""

    def __init__(self, name, reads, markers, lines):
        """Choose as for `States`; `name` is that of the operator."""
        self.name, self.reads, self.markers, self.lines = name, reads, markers, lines
        self.seen = set()

    def open(self, context):
        """Register the state."""
        self.value = context.get_state(ValueStateDescriptor("value", Types.STRING()))

    def process_element(self, number, context):
        """Fill or write the value of a key, once."""
        key = context.get_current_key()
        if not self.reads:
            if number < KEYS:
                self.value.update(f"v{number}")
        elif repr(key) not in self.seen:
            self.seen.add(repr(key))
            write_line(self.lines, {"operator": self.name, "key": repr(key), "value": self.value.value()})
        return []


class Rules(BroadcastProcessFunction):
    """Broadcast state of Python."""

    def __init__(self):
        """One state."""
        self.descriptor = MapStateDescriptor("rules", Types.STRING(), ITEM)

    def process_element(self, value, context):
        """Nothing."""
        return []

    def process_broadcast_element(self, value, context):
        """Two entries."""
        if value < 2:
            context.get_broadcast_state(self.descriptor).put(f"rule-{value}", Row(sku="r", amount=value))
        else:
            time.sleep(0.01)
        return []


def write_line(path, line):
    """Append a line of JSON."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def build(env, options):
    """The operators."""
    reads = options.command == "read"
    arguments = (reads, options.markers, options.lines)
    numbers = env.from_source(
        NumberSequenceSource(0, 10**9), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    numbers = numbers.uid("numbers").set_parallelism(1)
    if options.key == "string":
        keyed = numbers.key_by(lambda number: f"key-{number % KEYS}", key_type=Types.STRING())
    else:
        keyed = numbers.key_by(lambda number: number % KEYS, key_type=Types.LONG())
    states = States(reads, options.after, options.markers, options.lines)
    keyed.process(states, output_type=Types.STRING()).uid("states").name("states").print()
    if options.small:
        return
    others = {
        "by-long": (lambda number: number % KEYS, Types.LONG()),
        "by-tuple": (lambda number: (number % KEYS, "k"), Types.TUPLE([Types.LONG(), Types.STRING()])),
        "by-row": (lambda number: Row(number % KEYS, "k"), Types.ROW([Types.LONG(), Types.STRING()])),
        "by-pickle": (lambda number: ("p", number % KEYS), None),
    }
    for name, (select, kind) in others.items():
        function = Keyed(name, *arguments)
        numbers.key_by(select, key_type=kind).process(function, output_type=Types.STRING()).uid(name).name(name).print()
    rules = Rules()
    broadcast = numbers.broadcast(rules.descriptor)
    numbers.connect(broadcast).process(rules, output_type=Types.STRING()).uid("rules").name("rules").print()


def main():
    """Run until the savepoint is taken, or everything is read."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("make", "read"))
    parser.add_argument("savepoint", help="where savepoints go, or the one to start from")
    parser.add_argument("--markers", required=True)
    parser.add_argument("--lines", default="")
    parser.add_argument("--backend", default="hashmap")
    parser.add_argument("--format", default="CANONICAL")
    parser.add_argument("--key", default="string")
    parser.add_argument("--after", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--mode", default="process")
    options = parser.parse_args()
    config = Configuration()
    settings = {
        "python.execution-mode": options.mode,
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "python.fn-execution.bundle.size": "10",
        "state.backend.type": options.backend,
        "taskmanager.memory.managed.size": "256m",
        "rest.bind-port": "0",
    }
    if options.command == "read":
        settings["execution.state-recovery.path"] = options.savepoint
        settings["execution.state-recovery.ignore-unclaimed-state"] = "true" if options.small else "false"
    for name, value in settings.items():
        config.set_string(name, value)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.set_parallelism(2)
    env.set_max_parallelism(128)
    build(env, options)
    job = env.execute_async("python-states")
    wanted = KEYS if options.command == "read" else KEYS * ROUNDS
    deadline = time.monotonic() + 120
    while len(list(Path(options.markers).iterdir())) < wanted:
        if time.monotonic() > deadline or str(job.get_job_status().result()).endswith("FAILED"):
            raise SystemExit(f"the job did not get through: {job.get_job_status().result()}")
        time.sleep(0.2)
    time.sleep(1.5)
    if options.command == "read":
        job.cancel().result()
        return
    from pyflink.java_gateway import get_gateway

    format_type = get_gateway().jvm.org.apache.flink.core.execution.SavepointFormatType
    url = Path(options.savepoint).absolute().as_uri()
    # `JobClient.stop_with_savepoint` of PyFlink 2.2.1 fails before it calls Java.
    job._j_job_client.stopWithSavepoint(False, url, getattr(format_type, options.format)).get()


if __name__ == "__main__":
    main()
