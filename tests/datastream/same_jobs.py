"""Functions of the job in `tests/flink/java/types`, in Python: each name is that of its class in Java."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.datastream import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    KeyedProcessOperator,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    Row,
    StateTtlConfig,
    TaskInfo,
    Time,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.keyed.hashing.class_hashes import parse_hash_expression
from state_pipelines.keyed.key_groups import compute_operator_index

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.datastream import RuntimeContext
    from state_pipelines.datastream.functions import StateDescriptor

NUMBERS = 12
ROUNDS = 3
FAR = 4_922_899_200_000
TEXTS = ("", "a", "Grüße", "漢字", "smile 😀", 'quote " and \\ and\nline', "\0", "x" * 200)
PLACE = Types.POJO("types.Place", {"number": Types.INT(), "region": Types.STRING()})
HASHES = {"types.Place": parse_hash_expression("objects(region, number)")}
PAIR = Types.TUPLE([Types.INT(), Types.STRING()])


def text(n: int) -> str:
    return TEXTS[n % len(TEXTS)]


def place(n: int) -> Row:
    return Row(number=n * 100 - 300, region=("north", "süd", "")[n % 3])


class Average(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class EveryState(KeyedProcessFunction):
    """Every kind of keyed state and both kinds of timers, with or without a time to live."""

    def __init__(self, *, ttl: bool) -> None:
        self.ttl = ttl

    def live(self, descriptor: StateDescriptor) -> Any:
        if self.ttl:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(36_500)).build())
        return descriptor

    def open(self, runtime_context: RuntimeContext) -> None:
        context, live, pair = runtime_context, self.live, Types.TUPLE([Types.LONG(), Types.LONG()])
        self.value = context.get_state(live(ValueStateDescriptor("value", Types.STRING())))
        self.list = context.get_list_state(live(ListStateDescriptor("list", PLACE)))
        self.map = context.get_map_state(live(MapStateDescriptor("map", Types.LONG(), Types.STRING())))
        self.composites = context.get_map_state(live(MapStateDescriptor("composites", PLACE, PAIR)))
        self.sum = context.get_reducing_state(live(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG())))
        self.average = context.get_aggregating_state(live(AggregatingStateDescriptor("average", Average(), pair)))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
        n = value
        self.value.update(text(n))
        for i in range(n % 4):
            self.list.add(place(n + i))
            self.map.put(n * i, None if i == 2 and not self.ttl else text(n + i))
            self.composites.put(place(i), (n, text(i)))
        self.sum.add(n * 10)
        self.sum.add(-1)
        self.average.add(n)
        self.average.add(7)
        if not self.ttl:
            ctx.timer_service().register_event_time_timer(FAR + n)
            ctx.timer_service().register_event_time_timer(-n)
            ctx.timer_service().register_processing_time_timer(FAR + n * 1000)


class FewStates(KeyedProcessFunction):
    """States of three kinds and timers that change from round to round."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.STRING()))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", PLACE))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.STRING()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
        turn, n = divmod(value, NUMBERS)
        timers = ctx.timer_service()
        match 0 if turn == 0 else (n + turn) % 4:
            case 0:
                self.value.update(text(n + turn))
                for i in range(n % 3 + 1):
                    self.list.add(place(n + i))
                    self.map.put(n * i, None if i == 2 else text(n + i))
                timers.register_event_time_timer(n)
                timers.register_processing_time_timer(FAR + n)
            case 1:
                self.list.add(place(n * turn))
                self.map.remove(n)
                self.map.put(-1 - turn, "new")
                timers.delete_event_time_timer(n)
            case 2:
                self.value.clear()
                self.list.clear()
                self.map.clear()
                timers.delete_processing_time_timer(FAR + n)


def run_jobs(parallelism: int, max_parallelism: int) -> dict[str, list[KeyedProcessOperator]]:
    """Subtasks that have processed what the jobs in Java had: all numbers, and of `few-states` all rounds."""
    jobs: dict[str, tuple[Callable[[], KeyedProcessFunction], Callable[[int], Any], Any, int]] = {
        "state-kinds": (lambda: EveryState(ttl=False), place, PLACE, 1),
        "ttl-states": (lambda: EveryState(ttl=True), lambda n: f"key-{n}{text(n)}", Types.STRING(), 1),
        "few-states": (FewStates, lambda n: f"key-{n % NUMBERS}", Types.STRING(), ROUNDS),
    }
    return {
        uid: run_job(make, key, key_type, range(NUMBERS * rounds), parallelism, max_parallelism)
        for uid, (make, key, key_type, rounds) in jobs.items()
    }


def run_job(
    make: Callable[[], KeyedProcessFunction],
    key: Callable[[int], Any],
    key_type: Any,
    numbers: range,
    parallelism: int,
    max_parallelism: int,
) -> list[KeyedProcessOperator]:
    operators = [
        KeyedProcessOperator(
            make(),
            key,
            key_type,
            task=TaskInfo(index=index, parallelism=parallelism, max_parallelism=max_parallelism),
            hashes=HASHES if key_type is PLACE else None,
        )
        for index in range(parallelism)
    ]
    for operator in operators:
        operator.open()
    context = operators[0].backend.key_context
    for number in numbers:
        value = key_type.to_internal_type(key(number))
        group = context.find_key_group(value, context.encode(value))
        operators[compute_operator_index(group, parallelism, max_parallelism)].process(number, number * 7000)
    return operators
