from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.codecs.json import to_json
from state_pipelines.datastream import (
    BroadcastProcessFunction,
    BroadcastProcessOperator,
    CheckpointedFunction,
    CheckpointListener,
    KeyedBroadcastProcessFunction,
    KeyedBroadcastProcessOperator,
    KeyedProcessFunction,
    KeyedProcessOperator,
    ListStateDescriptor,
    ManualClock,
    MapStateDescriptor,
    RestoredState,
    Row,
    StateTtlConfig,
    TaskInfo,
    Time,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.errors import UsageError
from tests.flink.harness import diff_entries
from tests.snapshots import Case, select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.datastream import FunctionInitializationContext, FunctionSnapshotContext, RuntimeContext

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
PAIR = Types.ROW_NAMED(["name", "n"], [Types.STRING(), Types.LONG()])


class Buffering(KeyedProcessFunction, CheckpointedFunction, CheckpointListener):
    """Keeps elements in a list, and writes them to operator state before a snapshot."""

    def __init__(self, register: Callable[[Any], Any] = lambda store: ()) -> None:
        self.register = register
        self.events: list[Any] = []

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.events.append(("initialize", context.is_restored(), context.get_restored_checkpoint_id()))
        store = context.get_operator_state_store()
        self.buffered = store.get_list_state(ListStateDescriptor("buffered", PAIR))
        self.seen = context.get_keyed_state_store().get_state(ValueStateDescriptor("seen", Types.LONG()))
        self.registered = self.register(store)
        self.buffer = list(self.buffered.get())

    def open(self, runtime_context: RuntimeContext) -> None:
        self.events.append("open")

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.seen.update(value[1])
        self.buffer.append(Row(*value))

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.buffered.update(self.buffer)
        self.events.append(("snapshot", context.get_checkpoint_id(), context.get_checkpoint_timestamp()))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.events.append(("complete", checkpoint_id))


def start(function: Buffering, restored: RestoredState | None = None, **task: int) -> KeyedProcessOperator:
    operator = KeyedProcessOperator(
        function,
        lambda value: value[0],
        Types.STRING(),
        clock=ManualClock(77),
        task=TaskInfo(**task),  # type: ignore[arg-type]
    )
    operator.open(restored)
    return operator


def test_a_function_is_initialised_before_it_is_opened_and_told_of_checkpoints() -> None:
    function = Buffering()
    operator = start(function)
    operator.process(("a", 1))
    operator.prepare_snapshot(5)
    operator.prepare_snapshot(6, 9)
    operator.notify_checkpoint_complete(5)
    operator.notify_checkpoint_aborted(6)
    assert function.events == [
        ("initialize", False, None),
        "open",
        ("snapshot", 5, 77),
        ("snapshot", 6, 9),
        ("complete", 5),
    ]
    assert [row.as_dict() for row in function.buffered.get()] == [{"name": "a", "n": 1}]


def test_a_list_of_operator_state_is_changed_by_its_methods() -> None:
    numbers = ListStateDescriptor("numbers", Types.LONG())
    function = Buffering(lambda store: store.get_union_list_state(numbers))
    operator = start(function)
    state = function.registered
    state.add(1)
    state.add_all([2, 3])
    assert list(state) == [1, 2, 3]
    state.update([4])
    assert state.get() == [4]
    with pytest.raises(UsageError, match="null"):
        state.add(None)
    state.clear()
    assert state.get() == []
    assert operator.operator_states.get_registered_state_names() == {"buffered", "numbers"}
    assert operator.operator_states.get_registered_broadcast_state_names() == set()


@pytest.mark.parametrize(
    "register",
    [
        lambda store: store.get_union_list_state(ListStateDescriptor("buffered", PAIR)),
        lambda store: store.get_list_state(ListStateDescriptor("buffered", Types.LONG())),
        lambda store: store.get_broadcast_state(MapStateDescriptor("buffered", Types.LONG(), Types.LONG())),
    ],
)
def test_a_name_of_operator_state_is_not_used_twice(register: Callable[[Any], Any]) -> None:
    with pytest.raises(UsageError, match="the name is in use"):
        start(Buffering(register))


def test_descriptors_of_operator_state_are_checked() -> None:
    expiring = ListStateDescriptor("expiring", Types.LONG())
    expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(1)).build())
    with pytest.raises(UsageError, match="does not expire"):
        start(Buffering(lambda store: store.get_list_state(expiring)))
    with pytest.raises(UsageError, match="is no MapStateDescriptor"):
        start(Buffering(lambda store: store.get_broadcast_state(expiring)))


def test_a_failure_to_open_leaves_the_operator_closed() -> None:
    operator = KeyedProcessOperator(Buffering(lambda store: 1 / 0), lambda value: value[0], Types.STRING())
    with pytest.raises(ZeroDivisionError):
        operator.open()
    assert not operator.is_open
    with pytest.raises(UsageError, match="not open"):
        operator.operator_backend.states  # noqa: B018


class Filter(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        rules = ctx.get_broadcast_state(RULES)
        if value["kind"] in rules:
            yield value["n"] * (rules.get(value["kind"]) or 0), ctx.timestamp(), ctx.current_watermark()

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put(*value)
        yield ctx.current_processing_time()


def test_a_broadcast_state_filters_an_input_without_keys() -> None:
    with BroadcastProcessOperator(Filter(), [RULES], clock=ManualClock(7)) as operator:
        assert operator.process({"kind": "x", "n": 2}) == []
        assert operator.process_broadcast(("x", 3)) == [7]
        operator.advance_watermark(5)
        assert operator.process({"kind": "x", "n": 2}, 9) == [(6, 9, 5)]
        assert operator.advance_processing_time() == []


def test_an_input_without_keys_has_no_keyed_state() -> None:
    class Wrong(Filter):
        def open(self, runtime_context: RuntimeContext) -> None:
            runtime_context.get_state(ValueStateDescriptor("value", Types.LONG()))

    with pytest.raises(UsageError, match="'keyed stream'"):
        BroadcastProcessOperator(Wrong(), [RULES]).open()
    with pytest.raises(UsageError, match="without keys"):
        BroadcastProcessOperator(Filter(), []).open(
            RestoredState.of(select("2.2", "heap")[0].open_told().operator("basic-types"))
        )


def test_only_descriptors_that_the_operator_has_are_used() -> None:
    with BroadcastProcessOperator(Filter(), []) as operator, pytest.raises(UsageError, match="Check for typos"):
        operator.process({"kind": "x", "n": 2})


def test_the_other_side_only_reads() -> None:
    class Wrong(Filter):
        def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
            state = ctx.get_broadcast_state(RULES)
            assert not hasattr(state, "put")
            state.clear()
            yield 1

    with BroadcastProcessOperator(Wrong(), [RULES]) as operator, pytest.raises(UsageError, match="read-only"):
        operator.process(1)


class Totals(KeyedBroadcastProcessFunction):
    """Adds numbers per key; a broadcast number goes to all keys, and a timer emits the total."""

    total = ValueStateDescriptor("total", Types.LONG())

    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = runtime_context.get_state(self.total)

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> None:
        self.state.update((self.state.value() or 0) + value[1] * (ctx.get_broadcast_state(RULES)["factor"] or 1))
        ctx.timer_service().register_event_time_timer(10)

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES)["factor"] = value
        found: list[Any] = []

        def add(key: Any, state: Any) -> None:
            state.update(state.value() + 100)
            found.append((key, state.value()))

        ctx.apply_to_keyed_state(self.total, add)
        yield sorted(found)

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield (
            ctx.get_current_key(),
            self.state.value(),
            ctx.time_domain().name,
            ctx.get_broadcast_state(RULES)["factor"],
        )


def test_a_broadcast_element_reaches_the_state_of_all_keys() -> None:
    operator = KeyedBroadcastProcessOperator(Totals(), lambda value: value[0], Types.STRING(), [RULES])
    with operator:
        for value in (("a", 1), ("b", 2), ("a", 3)):
            assert operator.process(value) == []
        assert operator.process_broadcast(2) == [[("a", 104), ("b", 102)]]
        operator.process(("a", 1))
        assert sorted(operator.advance_watermark(10)) == [
            ("a", 106, "EVENT_TIME", 2),
            ("b", 102, "EVENT_TIME", 2),
        ]


def test_a_broadcast_element_has_no_key() -> None:
    class Wrong(Totals):
        def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> Iterator[Any]:
            yield self.state.value()

    operator = KeyedBroadcastProcessOperator(Wrong(), lambda value: value[0], Types.STRING(), [RULES])
    with operator, pytest.raises(UsageError, match="No key set"):
        operator.process_broadcast(1)


class Everything(KeyedProcessFunction, CheckpointedFunction):
    """Registers the operator states of a snapshot."""

    def __init__(self, infos: list[Any]) -> None:
        self.infos = infos
        self.states: dict[str, Any] = {}

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.restored = context.get_restored_checkpoint_id()
        store = context.get_operator_state_store()
        for info in self.infos:
            if info.backend_type == "BROADCAST":
                descriptor = MapStateDescriptor(info.name, info.key_serializer, info.value_serializer)
                self.states[info.name] = descriptor, store.get_broadcast_state(descriptor)
            else:
                get = store.get_union_list_state if info.distribution_mode == "UNION" else store.get_list_state
                elements = ListStateDescriptor(info.name, Types.of(info.element, stored=True))
                self.states[info.name] = elements, get(elements)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        return None

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        return None


@pytest.mark.parametrize("case", select("1.20", "heap") + select("2.2", "rocksdb") + select("2.3", "heap"), ids=str)
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_functions_see_the_operator_state_that_flink_wrote(case: Case, parallelism: int) -> None:
    operator = case.open_told().operator("operator-states")
    expected = [each for each in case.entries() if each["op"] == "operator-states" and each["kind"] == "operator"]
    broadcast = [each for each in case.entries() if each["op"] == "operator-states" and each["kind"] == "broadcast"]
    split = [each for each in expected if each["mode"] == "SPLIT_DISTRIBUTE"]
    union = [each for each in expected if each["mode"] == "UNION"]
    assert split
    assert union
    assert broadcast
    seen: list[Any] = []
    for index in range(parallelism):
        function = Everything([state.info for state in operator.operator_states])
        runner = KeyedProcessOperator(
            function,
            lambda value: value,
            Types.LONG(),
            task=TaskInfo(index=index, parallelism=parallelism),
            layouts=operator.record_context.layouts,
        )
        runner.open(RestoredState.of(operator))
        assert function.restored == operator.snapshot.checkpoint_id
        for name, (descriptor, state) in function.states.items():
            of = descriptor.type_info
            if isinstance(descriptor, MapStateDescriptor):
                found = [
                    {
                        "ukey": to_json(of.key_type.serializer, of.key_type.to_internal_type(key)),
                        "value": to_json(of.value_type.serializer, of.value_type.to_internal_type(value)),
                        "kind": "broadcast",
                    }
                    for key, value in state.items()
                ]
            else:
                found = [
                    {"value": to_json(of.elem_type.serializer, value), "kind": "operator"} for value in state.get()
                ]
            seen += [{**each, "state": name, "op": "operator-states"} for each in found]
        runner.close()
    wanted = split + union * parallelism + broadcast_once(broadcast) * parallelism
    difference = diff_entries(wanted, seen, ("subtask", "mode", "index"))
    assert not difference, difference


def broadcast_once(entries: list[Any]) -> list[Any]:
    return [each for each in entries if each["subtask"] == 0]
