"""The function of the job in `tests/flink/python/job.py`, without the states that hold pickles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.datastream import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    Row,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.datastream import RuntimeContext
    from state_pipelines.datastream.functions import StateDescriptor

KEYS = 12
ROUNDS = 3
TIMER = 4_922_899_200_000
ITEM = Types.ROW_NAMED(["sku", "amount"], [Types.STRING(), Types.INT()])


class Average(AggregateFunction):
    """Sum and count as accumulator."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> list[int]:
        return list(accumulator)

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


def with_ttl(descriptor: StateDescriptor) -> Any:
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(3650)).build())
    return descriptor


class States(KeyedProcessFunction):
    """Fills the states of each key as the job does; a negative number writes what they hold."""

    def open(self, runtime_context: RuntimeContext) -> None:
        context = runtime_context
        row = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])
        self.typed = context.get_state(ValueStateDescriptor("typed", row))
        self.ttl = context.get_state(with_ttl(ValueStateDescriptor("ttl", Types.LONG())))
        self.plain = context.get_state(ValueStateDescriptor("plain", Types.DOUBLE()))
        self.list = context.get_list_state(ListStateDescriptor("list", Types.STRING()))
        self.items = context.get_list_state(with_ttl(ListStateDescriptor("items", ITEM)))
        self.map = context.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.LONG()))
        pair = Types.TUPLE([Types.INT(), Types.STRING()])
        self.pairs = context.get_map_state(with_ttl(MapStateDescriptor("pairs", pair, ITEM)))
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))
        accumulator = Types.TUPLE([Types.LONG(), Types.LONG()])
        self.average = context.get_aggregating_state(AggregatingStateDescriptor("average", Average(), accumulator))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        number = value if isinstance(value, int) else value.number
        if number < 0:
            yield ctx.get_current_key(), repr(self.show())
            return
        self.typed.update(Row(n=number, s=f"s{number}"))
        self.ttl.update(number)
        self.plain.update(number / 2)
        self.list.add_all([f"x{number}", f"y{number}"])
        self.items.add(Row(sku=f"sku-{number}", amount=number))
        self.map.put(f"m{number % 2}", number)
        self.pairs.put((number, "p"), Row(sku="sku", amount=None))
        self.sum.add(number)
        self.average.add(number)
        ctx.timer_service().register_processing_time_timer(TIMER + number)

    def show(self) -> dict[str, Any]:
        typed = self.typed.value()
        return {
            "typed": typed and typed.as_dict(),
            "ttl": self.ttl.value(),
            "plain": self.plain.value(),
            "list": list(self.list.get()),
            "items": [each.as_dict() for each in self.items.get()],
            "map": dict(sorted(self.map.items())),
            "pairs": [[list(name), each.as_dict()] for name, each in sorted(self.pairs.items())],
            "sum": self.sum.get(),
            "average": self.average.get(),
        }


def expect(key: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """What the states of a key hold after some rounds of the job."""
    numbers = [key + turn * KEYS for turn in range(rounds)]
    last = numbers[-1]
    return {
        "typed": {"n": last, "s": f"s{last}"},
        "ttl": last,
        "plain": last / 2,
        "list": [f"{letter}{number}" for number in numbers for letter in "xy"],
        "items": [{"sku": f"sku-{number}", "amount": number} for number in numbers],
        "map": {f"m{number % 2}": number for number in numbers},
        "pairs": [[[number, "p"], {"sku": "sku", "amount": None}] for number in numbers],
        "sum": sum(numbers),
        "average": [sum(numbers), rounds],
    }
